// A store over TCP on this host, MAC included: threads, each with its own connection and key, set and get.
//   bench_store [--threads 8] [--operations 10000] [--authenticate 1] [--runs 3]
// Half of the operations are sets and half are gets. The goal: 50,000 operations a second, 99 of 100 within 1 ms.
#include <lockstep/lockstep.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/arguments.h"

namespace par = lockstep::parallel;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The seconds of each of `operations` operations.
std::vector<double> set_and_get(par::Store& store, const std::string& key, int operations) {
  const std::string value(32, 'v');
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(operations));
  while (static_cast<int>(times.size()) < operations) {
    Clock::time_point start = Clock::now();
    store.set(key, value);
    times.push_back(seconds_since(start));
    start = Clock::now();
    if (store.get(key) != value) throw std::runtime_error("bench_store: " + key + " was changed by the store");
    times.push_back(seconds_since(start));
  }
  return times;
}

void run(const par::TcpStore& server, par::TcpStoreOptions options, int threads, int operations) {
  options.is_server = false;
  std::vector<std::vector<double>> times(static_cast<std::size_t>(threads));
  std::vector<std::thread> workers;
  std::latch ready(threads + 1);
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back([&, i] {
      par::TcpStore client("127.0.0.1", server.port(), options);
      set_and_get(client, "warm/" + std::to_string(i), 100);
      ready.arrive_and_wait();
      times[static_cast<std::size_t>(i)] = set_and_get(client, "key/" + std::to_string(i), operations / threads);
    });
  }
  ready.arrive_and_wait();
  const Clock::time_point start = Clock::now();
  for (std::thread& worker : workers) worker.join();
  const double wall = seconds_since(start);

  std::vector<double> all;
  for (const auto& part : times) all.insert(all.end(), part.begin(), part.end());
  std::sort(all.begin(), all.end());
  const auto quantile = [&](double q) { return 1e3 * all[static_cast<std::size_t>(q * double(all.size() - 1))]; };
  std::printf(
      "{\"name\": \"tcp_store\", \"threads\": %d, \"authenticate\": %s, \"operations_per_second\": %.0f, "
      "\"p50_ms\": %.3f, \"p99_ms\": %.3f}\n",
      threads, options.authenticate ? "true" : "false", double(all.size()) / wall, quantile(0.5), quantile(0.99));
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv);
  const int threads = std::stoi(arguments.get("threads", "8"));
  const par::TcpStoreOptions options{.is_server = true,
                                     .token = "a token for this benchmark alone",
                                     .authenticate = arguments.get("authenticate", "1") == "1"};
  const par::TcpStore server("127.0.0.1", 0, options);
  for (int i = 0; i < std::stoi(arguments.get("runs", "3")); ++i)
    run(server, options, threads, std::stoi(arguments.get("operations", "10000")));
}
