// shm: ranks are processes of one host that share memory.
//
// Segments are memfds: they have no names, so none can be left behind, are sealed against shrinking, and are reserved
// before use. Rank 0 makes them and passes them over Unix sockets, on which the kernel identifies the peer process.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/comm/backends/shared_group_internal.h"
#include "lockstep/parallel/rendezvous/formation_watch_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::uint64_t kShmMagic = 0x6c6f636b73746570;  // "lockstep"
constexpr std::size_t kLongestName = 64;                 // of rank 0's socket

// Throws LocalFailure where this process lacks something, else CommError: then another rank may be the cause.
[[noreturn]] void throw_system(const std::string& what) {
  constexpr int kLacks[] = {EMFILE, ENFILE, ENOMEM, ENOBUFS, EACCES, EPERM};
  const bool is_local = std::ranges::find(kLacks, errno) != std::end(kLacks);
  const std::string text = fmt::format("shm: {}: {}", what, reason(errno));
  if (is_local) throw LocalFailure(text);
  throw CommError(text);
}

// A message between rank 0 and another rank. With `status` 0 it contains a segment's descriptor.
struct Message {
  std::uint64_t magic = kShmMagic;
  std::int64_t rank = 0;     // of the sender
  std::uint64_t number = 0;  // of the segment
  std::uint64_t bytes = 0;
  std::int64_t status = 0;  // an errno
  std::uint64_t limit = 0;  // the limit of rank 0's process that was reached, if any
};

void send_message(int socket, const Message& message, int fd) {
  iovec data{const_cast<Message*>(&message), sizeof(message)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof(int));
  }
  if (uninterrupted([&] { return sendmsg(socket, &header, MSG_NOSIGNAL); }) != sizeof(message))
    throw_system("cannot send to a rank");
}

// Waits until `fd` is readable; false after the deadline. A `watch` ends the wait if the group can no longer be made.
bool wait_readable(int fd, Deadline& deadline, FormationWatch* watch) {
  while (!deadline.passed()) {
    pollfd entry{fd, POLLIN, 0};
    const int ready = poll(&entry, 1, static_cast<int>(deadline.slice().count()));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw_system("poll");
    if (watch) watch->check();
  }
  return false;
}

// Receives one message and its descriptor, if any. Returns false if the peer has closed or sent something else.
bool receive_message(int socket, Message* message, Descriptor* fd) {
  iovec data{message, sizeof(*message)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); got >= 0 && c; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(int))) continue;
    int received;
    std::memcpy(&received, CMSG_DATA(c), sizeof(int));
    *fd = Descriptor(received);
  }
  if (header.msg_flags & MSG_CTRUNC)  // the kernel dropped the descriptor
    throw LocalFailure(fmt::format("shm: cannot receive a segment of shared memory: {}", reason(EMFILE)));
  return got == sizeof(*message) && message->magic == kShmMagic;
}

// Reserves the memory of bytes [from, to), so that touching it later cannot fail. Works in pieces, because an
// interrupted piece starts again. Returns 0 or an errno.
int reserve(int fd, std::size_t from, std::size_t to) {
  constexpr std::size_t kPiece = 32 << 20;
  while (from < to) {
    const std::size_t bytes = std::min(kPiece, to - from);
    if (fallocate(fd, 0, static_cast<off_t>(from), static_cast<off_t>(bytes)) == 0)
      from += bytes;
    else if (errno != EINTR)
      return errno;
  }
  return 0;
}

// Makes a memfd of message.bytes, with a fixed size. On failure the message contains the reason.
Descriptor create_memory(Message& message, bool reserved) {
  // A size beyond this limit would raise SIGXFSZ.
  if (message.bytes > file_size_limit()) {
    message.status = EFBIG;
    message.limit = file_size_limit();
    return {};
  }
  Descriptor fd(memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool made = fd.get() >= 0 && ftruncate(fd.get(), static_cast<off_t>(message.bytes)) == 0 &&
                    fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
  message.status = !made ? errno : reserved ? reserve(fd.get(), 0, message.bytes) : 0;
  if (rlimit limit{}; message.status == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0) message.limit = limit.rlim_cur;
  return fd;
}

std::string no_memory(const Message& message) {
  const std::string what = fmt::format("shm: no {} MiB of shared memory", (message.bytes >> 20) + 1);
  if (message.status == EFBIG)
    return fmt::format(
        "{}: rank 0's process may write files of {} KiB at most\n"
        "Raise its limit with ulimit -f unlimited, or use the backend gloo",
        what, message.limit >> 10);
  if (message.status == EMFILE)
    return fmt::format("{}: rank 0's process has no file descriptor left of {}\nRaise its limit with ulimit -n", what,
                       message.limit);
  return fmt::format("{}: {}\nFree memory, or raise the container's memory limit", what,
                     reason(static_cast<int>(message.status)));
}

[[noreturn]] void throw_not_mapped(std::size_t bytes) {
  const int error = errno;
  std::string text = fmt::format("shm: cannot map {} MiB of shared memory: {}", (bytes >> 20) + 1, reason(error));
  if (rlimit limit{}; error == ENOMEM && getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    text = fmt::format(
        "shm: cannot map {} MiB of shared memory: the process's address space is limited to {} KiB\n"
        "Raise the limit with ulimit -v unlimited",
        (bytes >> 20) + 1, limit.rlim_cur >> 10);
  throw LocalFailure(text);
}

std::shared_ptr<Segment> map_memory(int fd, std::size_t block_bytes, std::size_t blocks) {
  const std::size_t bytes = block_bytes * blocks;
  struct stat info {};
  if (fstat(fd, &info) != 0) throw_system("fstat");
  const int seals = fcntl(fd, F_GET_SEALS);
  if (static_cast<std::size_t>(info.st_size) != bytes || seals < 0 || !(seals & F_SEAL_SHRINK))
    throw CommError(fmt::format("shm: the segment has {} bytes, expected {}, sealed", info.st_size, bytes));
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) throw_not_mapped(bytes);
  return std::make_shared<Segment>(static_cast<std::byte*>(base), block_bytes,
                                   std::shared_ptr<void>(base, [bytes](void* p) { munmap(p, bytes); }));
}

class ProcessMemory final : public SharedMemory {
 public:
  ProcessMemory(const InitOptions& options, const Rendezvous& place)
      : rank_(place.rank), size_(place.size), peers_(static_cast<std::size_t>(place.size)),
        processes_(static_cast<std::size_t>(place.size), 0), alive_(static_cast<std::size_t>(place.size)) {
    Deadline deadline(options.timeout);
    if (rank_ == 0)
      accept_all(*place.store, deadline, place.watch.get());
    else
      connect_to_first(*place.store);
    share_processes(*place.store);
  }

  std::shared_ptr<Segment> allocate(std::size_t block_bytes, Deadline& deadline) override {
    const auto blocks = static_cast<std::size_t>(size_);
    return map_memory(share_memory(block_bytes * blocks, true, deadline, nullptr).get(), block_bytes, blocks);
  }

  std::shared_ptr<Segment> allocate_control(std::size_t bytes, Deadline& deadline, FormationWatch* watch) {
    const std::shared_ptr<Segment> control = map_memory(share_memory(bytes, true, deadline, watch).get(), bytes, 1);
    const auto blocks = static_cast<std::size_t>(size_);
    arena_file_ = share_memory(kArenaBytes * blocks, false, deadline, watch);
    arena_ = map_memory(arena_file_.get(), kArenaBytes, blocks);
    return control;
  }

  std::shared_ptr<Segment> arena() override { return arena_; }
  void reserve_arena(std::size_t from, std::size_t to) override {
    const std::size_t own = static_cast<std::size_t>(rank_) * kArenaBytes;
    if (const int error = reserve(arena_file_.get(), own + from, own + to))
      throw LocalFailure(no_memory({.bytes = to - from, .status = error}));
  }

  void release_arena(std::size_t bytes) override {
    const auto own = static_cast<off_t>(static_cast<std::size_t>(rank_) * kArenaBytes);
    if (bytes > 0)  // best effort: on failure the memory is kept
      fallocate(arena_file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, own, static_cast<off_t>(bytes));
  }

  int cores() override {
    cpu_set_t all;
    CPU_ZERO(&all);
    for (const pid_t process : processes_) {
      cpu_set_t own;
      if (sched_getaffinity(process, sizeof(own), &own) == 0) CPU_OR(&all, &all, &own);
    }
    return CPU_COUNT(&all);
  }

  // Returns a new memfd, which rank 0 makes and sends to all ranks.
  Descriptor share_memory(std::size_t bytes, bool reserved, Deadline& deadline, FormationWatch* watch) {
    Message message{.rank = rank_, .number = allocations_++, .bytes = bytes};
    Descriptor fd;
    if (rank_ == 0) {
      fd = create_memory(message, reserved);
      send_to_all(message, fd.get());
    } else {
      const Message expected = message;
      if (!wait_readable(peer(0), deadline, watch))
        throw CommTimeout(fmt::format("shm: rank 0 did not share {} bytes of memory in time", message.bytes));
      if (!receive_message(peer(0), &message, &fd) || message.number != expected.number ||
          (message.status == 0 && fd.get() < 0)) {
        throw_if_ended();
        throw CommError("shm: rank 0 is gone or shared something else");
      }
      message.bytes = expected.bytes;
    }
    if (message.status != 0) throw DeviceError(no_memory(message));
    return fd;
  }

  std::string lost(int rank) override {
    const Descriptor& process = alive_[static_cast<std::size_t>(rank)];
    pollfd entry{process.get(), POLLIN, 0};
    if (process.get() < 0 || poll(&entry, 1, 0) <= 0) return {};
    return fmt::format("its process {} has ended", processes_[static_cast<std::size_t>(rank)]);
  }

 private:
  // Sends to all ranks even if one has ended, which is reported afterwards.
  void send_to_all(const Message& message, int fd) {
    std::string failed;
    for (int r = 1; r < size_; ++r) {
      try {
        send_message(peer(r), message, message.status == 0 ? fd : -1);
      } catch (const CommError& error) {
        if (failed.empty()) failed = fmt::format("rank {}: {}", r, error.what());
      }
    }
    if (failed.empty()) return;
    throw_if_ended();
    throw CommError(failed);
  }

  [[noreturn]] void throw_ended(int rank) const {
    throw CommError(fmt::format("shm: rank {} (process {}) ended while {}", rank,
                                processes_[static_cast<std::size_t>(rank)],
                                arena_ ? "memory was being shared" : "the group was being made"));
  }

  // Explains a broken connection: a rank has ended, or is ending (its sockets close first). All ranks name that rank.
  // Rank 0, which then ends the group, is named only if no other rank has ended.
  void throw_if_ended() {
    std::vector<pollfd> entries;
    for (const Descriptor& process : alive_) entries.push_back({process.get(), POLLIN, 0});
    if (poll(entries.data(), entries.size(), 100) <= 0) return;
    for (int k = 1; k <= size_; ++k) {
      const int r = k % size_;
      if (entries[static_cast<std::size_t>(r)].revents & POLLIN) throw_ended(r);
    }
  }

  int peer(int rank) const { return peers_[static_cast<std::size_t>(rank)].get(); }

  void accept_all(Store& store, Deadline& deadline, FormationWatch* watch) {
    std::uint64_t random[2];
    if (getrandom(random, sizeof(random), 0) != sizeof(random)) throw_system("getrandom");
    const std::string name = fmt::format("lockstep-shm-{:016x}{:016x}", random[0], random[1]);
    const Descriptor listener = listen_abstract(name, SocketKind::kPackets);
    if (!listener) throw_system("cannot listen");
    store.set("shm/address", name);
    for (int missing = size_ - 1; missing > 0;) {
      if (!wait_readable(listener.get(), deadline, watch)) throw_missing();
      Descriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (socket.get() < 0) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        throw_system("accept");
      }
      Deadline hello(std::chrono::seconds(5));
      Message message;
      Descriptor none;
      const Peer other = peer_of(socket);
      if (!is_trusted(other) || !wait_readable(socket.get(), hello, watch) ||
          !receive_message(socket.get(), &message, &none))
        continue;
      if (message.rank < 1 || message.rank >= size_ || peer(static_cast<int>(message.rank)) >= 0) continue;
      processes_[static_cast<std::size_t>(message.rank)] = other.pid;
      peers_[static_cast<std::size_t>(message.rank)] = std::move(socket);
      --missing;
    }
  }

  void connect_to_first(Store& store) {
    const std::string name = store.get("shm/address");
    if (name.empty() || name.size() > kLongestName) throw CommError("shm: rank 0 left no address in the store");
    Descriptor socket = connect_abstract(name, SocketKind::kPackets);
    if (!socket) throw_system("cannot connect to rank 0");
    const Peer first = peer_of(socket);
    if (!is_trusted(first)) throw CommError("shm: rank 0's socket belongs to another user");
    processes_[0] = first.pid;
    send_message(socket.get(), {.rank = rank_}, -1);
    peers_[0] = std::move(socket);
  }

  // Rank 0 gets all process ids from the kernel and puts them in the store. All ranks open pidfds for all processes.
  void share_processes(Store& store) {
    processes_[static_cast<std::size_t>(rank_)] = getpid();
    if (rank_ == 0) {
      for (int r = 0; r < size_; ++r)
        store.set(fmt::format("shm/process/{}", r), std::to_string(processes_[static_cast<std::size_t>(r)]));
    }
    int ended = -1;
    for (int k = 1; k <= size_; ++k) {
      const int r = k % size_;
      if (r == rank_) continue;
      pid_t& process = processes_[static_cast<std::size_t>(r)];
      if (process == 0) process = parse_process(store.get(fmt::format("shm/process/{}", r)));
      alive_[static_cast<std::size_t>(r)] = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
      if (alive_[static_cast<std::size_t>(r)].get() >= 0) continue;
      if (errno != ESRCH) throw_system(fmt::format("cannot watch rank {} (process {})", r, process));
      if (ended < 0) ended = r;
    }
    if (ended < 0) return;
    if (ended == 0) throw_if_ended();  // another rank may be the cause
    throw_ended(ended);
  }

  static pid_t parse_process(const std::string& text) {
    pid_t process = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), process);
    if (error != std::errc() || end != text.data() + text.size() || process <= 0)
      throw CommError(fmt::format("shm: the store says that a rank's process is '{}'", text));
    return process;
  }

  [[noreturn]] void throw_missing() const {
    std::string missing;
    for (int r = 1; r < size_; ++r) {
      if (peer(r) < 0) missing += fmt::format(" {}", r);
    }
    throw CommTimeout(fmt::format("shm: ranks that did not connect:{}", missing));
  }

  int rank_, size_;
  std::vector<Descriptor> peers_;  // on rank 0: to all others; on the others: to rank 0
  std::vector<pid_t> processes_;
  std::vector<Descriptor> alive_;  // pidfds
  Descriptor arena_file_;
  std::shared_ptr<Segment> arena_;
  std::uint64_t allocations_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_shm(const InitOptions& options, const Rendezvous& place) {
  LOCKSTEP_CHECK(place.size <= kMaxLocalRanks, "shm: {} ranks, at most {}", place.size, kMaxLocalRanks);
  auto memory = std::make_unique<ProcessMemory>(options, place);
  Deadline deadline(options.timeout);
  const std::size_t bytes = (Control::bytes(place.size) + kPage - 1) / kPage * kPage;
  const std::shared_ptr<Segment> control = memory->allocate_control(bytes, deadline, place.watch.get());
  return std::make_unique<SharedGroup>(options, place, std::move(memory), control);
}

}  // namespace lockstep::parallel
