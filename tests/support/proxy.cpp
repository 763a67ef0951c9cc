#include "tests/support/proxy.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <random>
#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/socket_internal.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;
using Clock = std::chrono::steady_clock;

ProxyPlan::ProxyPlan(unsigned seed) : seed(seed) {
  std::mt19937 random(seed);
  harm = static_cast<Harm>(random() % 5);
  harmed = static_cast<int>(random() % 2);
  towards_server = random() % 2 == 0;
  position = static_cast<int>(random() % 400);
}

// One connection, and the bytes in flight in both directions.
struct Proxy::Line {
  struct Way {
    std::string bytes;
    int passed = 0;
    bool ended = false;        // the sender has closed
    Clock::time_point next{};  // time of the next send
  };
  ls::Descriptor client, server;
  Way up, down;
  bool is_harmed = false, is_silent = false, is_over = false;

  bool is_harmed_way(const Way& way, const ProxyPlan& plan) const {
    return is_harmed && &way == (plan.towards_server ? &up : &down);
  }
};

struct Proxy::Loop {
  ls::Descriptor listener;
  int server_port;
  ProxyPlan plan;
  std::atomic<bool>& has_harmed;
  std::mt19937 random;
  int connections = 0;
  std::list<Line> lines;

  void accept_one() {
    ls::Descriptor client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client) return;
    std::string error;
    par::Deadline deadline(std::chrono::seconds(30));
    ls::Descriptor server = par::connect_tcp(par::resolve("127.0.0.1", server_port).at(0), deadline, error);
    par::tune_tcp(client);
    const int number = connections++;
    if (!server) return;  // no server: the client's connection is closed
    Line& line = lines.emplace_back();
    line.client = std::move(client);
    line.server = std::move(server);
    line.is_harmed = plan.harm != Harm::kNone && number == plan.harmed;
  }

  static void take_in(const ls::Descriptor& from, Line::Way& way) {
    if (way.ended || way.bytes.size() > 1 << 20) return;
    way.ended = par::receive_some(from, way.bytes, 64 << 10) == par::Transmission::kClosed;
  }

  // Harms the connection if its position is reached; false: send nothing.
  bool pass(Line& line, Line::Way& way, std::string& piece) {
    if (!line.is_harmed_way(way, plan) || way.passed + static_cast<int>(piece.size()) <= plan.position) return true;
    has_harmed = true;
    const auto place = static_cast<std::size_t>(std::max(plan.position - way.passed, 0));
    switch (plan.harm) {
      case Harm::kNone:
        return true;
      case Harm::kFlip:
        if (way.passed <= plan.position) piece[place] = static_cast<char>(piece[place] ^ (1 << plan.seed % 8));
        return true;
      case Harm::kReset: {
        const linger no_linger{1, 0};
        for (const ls::Descriptor* socket : {&line.client, &line.server})
          static_cast<void>(::setsockopt(socket->get(), SOL_SOCKET, SO_LINGER, &no_linger, sizeof(no_linger)));
        line.is_over = true;
        return false;
      }
      case Harm::kCut:
        piece.resize(place);
        line.is_over = true;
        return true;
      case Harm::kStall:
        line.is_silent = true;
        return false;
    }
    return true;
  }

  void let_out(Line& line, Line::Way& way, const ls::Descriptor& to) {
    if (line.is_over || line.is_silent || Clock::now() < way.next) return;
    if (!way.bytes.empty()) {
      // A few bytes at a time, all of them, or something between.
      const std::size_t most = random() % 3 == 0 ? way.bytes.size() : 1 + random() % 40;
      std::string piece = way.bytes.substr(0, most);
      const std::size_t taken = piece.size();
      if (pass(line, way, piece)) {
        std::size_t sent = 0;  // all of it: fewer bytes are in flight than a socket takes
        if (par::send_some(to, piece, sent) != par::Transmission::kDone) line.is_over = true;
      }
      way.bytes.erase(0, taken);
      way.passed += static_cast<int>(taken);
      if (random() % 4 == 0) way.next = Clock::now() + std::chrono::milliseconds(random() % 4);
    } else if (way.ended) {
      line.is_over = true;
    }
  }

  void turn() {
    std::vector<pollfd> polled{{listener.get(), POLLIN, 0}};
    bool is_pending = false;
    for (const Line& line : lines) {
      is_pending = is_pending || (!line.is_silent && (!line.up.bytes.empty() || !line.down.bytes.empty()));
      polled.push_back({line.client.get(), static_cast<short>(line.up.ended ? 0 : POLLIN), 0});
      polled.push_back({line.server.get(), static_cast<short>(line.down.ended ? 0 : POLLIN), 0});
    }
    ::poll(polled.data(), polled.size(), is_pending ? 1 : 20);
    for (Line& line : lines) {
      take_in(line.client, line.up);
      take_in(line.server, line.down);
      let_out(line, line.up, line.server);
      let_out(line, line.down, line.client);
      // A stalled connection still ends when its client closes.
      line.is_over = line.is_over || (line.is_silent && line.up.ended);
    }
    lines.remove_if([](const Line& line) { return line.is_over; });
    if (polled[0].revents & POLLIN) accept_one();
  }
};

Proxy::Proxy(int server_port, const ProxyPlan& plan) {
  std::string error;
  ls::Descriptor listener = par::listen_tcp(par::resolve("127.0.0.2", server_port), error);
  REQUIRE_MESSAGE(listener, error);
  port_ = par::address_of(listener).port();
  loop_.reset(new Loop{std::move(listener), server_port, plan, has_harmed_, std::mt19937(plan.seed), 0, {}});
  thread_ = std::thread([this] {
    while (!stopping_) loop_->turn();
  });
}

Proxy::~Proxy() {
  stopping_ = true;
  thread_.join();
}
