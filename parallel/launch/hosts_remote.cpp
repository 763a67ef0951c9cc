// A launcher on a host that another one has started over ssh: what it is told, and that it ends with the connection.
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <charconv>
#include <thread>

#include "lockstep/parallel/launch/hosts_internal.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

constexpr std::string_view kHostMagic =
    "lockstep-run assignment 1 ";  // and the number of bytes in decimal, and a line end
constexpr std::size_t kMaxHeader = kHostMagic.size() + 20;

[[noreturn]] void refuse(const std::string& why) {
  throw IoError(fmt::format("stdin: {}\n--assigned is how lockstep-run --hosts starts itself on a host", why));
}

std::string read_exactly(int fd, std::size_t size) {
  std::string out(size, '\0');
  std::size_t done = 0;
  while (done < size) {
    const ssize_t count = uninterrupted([&] { return ::read(fd, out.data() + done, size - done); });
    if (count <= 0) refuse(fmt::format("ended after {} of {} bytes", done, size));
    done += static_cast<std::size_t>(count);
  }
  return out;
}

std::size_t read_header(int fd) {
  std::string line;
  while (line.empty() || line.back() != '\n') {
    if (line.size() == kMaxHeader) refuse("begins with too long a line");
    line += read_exactly(fd, 1);
    const std::size_t known = std::min(line.size(), kHostMagic.size());
    if (line.compare(0, known, kHostMagic, 0, known) != 0)
      refuse("is no assignment, or one of another version of Lockstep");
  }
  std::size_t size = 0;
  const char* const last = line.data() + line.size() - 1;
  const auto [end, error] = std::from_chars(line.data() + kHostMagic.size(), last, size);
  if (error != std::errc() || end != last || size > kMaxAssignment)
    refuse(fmt::format("its size is no number up to {}", kMaxAssignment));
  return size;
}

}  // namespace

std::string to_bytes(const Assignment& assignment) {
  std::string body;
  const auto add = [&](const std::string& word) { body += word + '\0'; };
  add(assignment.token);
  add(assignment.folder);
  add(std::to_string(assignment.environment.size()));
  for (const std::string& entry : assignment.environment) add(entry);
  for (const std::string& argument : assignment.arguments) add(argument);
  LOCKSTEP_CHECK(body.size() <= kMaxAssignment,
                 "hosts: arguments and environment are {} bytes, at most {} are possible", body.size(), kMaxAssignment);
  return fmt::format("{}{}\n{}", kHostMagic, body.size(), body);
}

Assignment read_assignment(int fd) {
  const std::string body = read_exactly(fd, read_header(fd));
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < body.size();) {
    const std::size_t end = body.find('\0', begin);
    if (end == std::string::npos) refuse("its last word has no end");
    words.push_back(body.substr(begin, end - begin));
    begin = end + 1;
  }
  constexpr std::size_t kFixed = 3;
  if (words.size() < kFixed) refuse("it has too few words");
  std::size_t count = 0;
  const std::string& number = words[2];
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), count);
  if (error != std::errc() || end != number.data() + number.size() || count > words.size() - kFixed)
    refuse("it has another number of variables than it says");
  const auto variables = words.begin() + kFixed, arguments = variables + static_cast<std::ptrdiff_t>(count);
  return {.token = words[0],
          .folder = words[1],
          .environment = {variables, arguments},
          .arguments = {arguments, words.end()}};
}

// --- the leash ----------------------------------------------------------------------------------------------------------

class Leash::State {
 public:
  State(int fd, std::chrono::milliseconds grace) : fd_(fd), grace_(grace), quit_(::eventfd(0, EFD_CLOEXEC)) {
    LOCKSTEP_CHECK_IO(bool(quit_), "launch: no eventfd: {}", reason(errno));
    thread_ = std::thread([this] { watch(); });
  }
  ~State() {
    const std::uint64_t one = 1;
    static_cast<void>(::write(quit_.get(), &one, sizeof(one)) == sizeof(one));  // cannot fail on one that stands at 0
    thread_.join();
  }

 private:
  void watch();
  bool must_quit_within(std::chrono::milliseconds time);

  int fd_;
  std::chrono::milliseconds grace_;
  Descriptor quit_;
  std::thread thread_;
};

// Killed, this process takes its ranks with it: the watchdog sees to that.
void Leash::State::watch() {
  for (;;) {
    pollfd polled[] = {{fd_, POLLIN, 0}, {quit_.get(), POLLIN, 0}};
    if (::poll(polled, 2, -1) < 0) continue;  // EINTR, or no memory for a moment
    if (polled[1].revents) return;
    char byte = 0;
    const ssize_t count = uninterrupted([&] { return ::read(fd_, &byte, 1); });
    if (count <= 0) break;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
      if (byte == signal) ::kill(::getpid(), signal);
    }
  }
  ::kill(::getpid(), SIGTERM);
  if (!must_quit_within(grace_)) ::kill(::getpid(), SIGKILL);
}

bool Leash::State::must_quit_within(std::chrono::milliseconds time) {
  for (Deadline deadline(time); !deadline.passed();) {
    pollfd quit{quit_.get(), POLLIN, 0};
    if (::poll(&quit, 1, static_cast<int>(deadline.slice().count())) > 0) return true;
  }
  return false;
}

Leash::Leash(int fd, std::chrono::milliseconds grace) : state_(std::make_unique<State>(fd, grace)) {}
Leash::~Leash() = default;

}  // namespace lockstep::parallel
