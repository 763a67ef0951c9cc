// The errors of the other ranks when a rank dies, stops or leaves. Ranks are processes that share a shm group.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "lockstep/parallel/comm/backend_internal.h"
#include "lockstep/parallel/comm/backends/segment_internal.h"
#include "lockstep/parallel/comm/group_failure_internal.h"
#include "tests/parallel/comm/collectives.h"
#include "tests/support/chaos.h"

namespace {

// A store in shared memory, which the ranks use before a group exists. `on_call` runs first, and may change the value
// that is set.
class Board final : public ls::parallel::Store {
 public:
  struct Entry {
    std::atomic<int> length{0};
    char text[120];
  };
  using Hook = std::function<void(const std::string& call, std::string& value)>;  // "set shm/address"
  Board(Entry* entries, Hook on_call) : entries_(entries), on_call_(std::move(on_call)) {}
  std::string request(const ls::parallel::StoreRequest& request, std::chrono::milliseconds) override {
    using ls::parallel::StoreOp;
    if (request.op == StoreOp::kSet) set_entry(request.keys.at(0), request.values.at(0));
    if (request.op == StoreOp::kGet) return entry_of(request.keys.at(0));
    return {};
  }

 private:
  void set_entry(const std::string& key, std::string value) {
    on_call_("set " + key, value);
    Entry& entry = entries_[place(key)];
    value.copy(entry.text, sizeof(entry.text));
    entry.length = static_cast<int>(value.size());
  }
  std::string entry_of(const std::string& key) {
    std::string none;
    on_call_("get " + key, none);
    const Entry& entry = entries_[place(key)];
    while (entry.length == 0) sched_yield();
    return {entry.text, static_cast<std::size_t>(entry.length.load())};
  }
  static std::size_t place(const std::string& key) {
    return key == "shm/address" ? 0 : 1 + static_cast<std::size_t>(key.back() - '0');
  }
  Entry* entries_;
  Hook on_call_;
};

// Makes a shm group of three in which rank 1 ends as soon as it has connected.
void check_end_while_making(bool reaped) {
  void* const memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* const entries = new (memory) Board::Entry[5];
  const auto ended = run_processes(3, [&](int rank) {
    const auto on_call = [&](const std::string& call, std::string& value) {
      if (rank == 1 && call == "get shm/process/2") _exit(5);
      if (rank != 0 || call != "set shm/process/1") return;
      pollfd entry{static_cast<int>(syscall(SYS_pidfd_open, std::stoi(value), 0)), POLLIN, 0};
      CHECK(poll(&entry, 1, -1) == 1);  // rank 1 has ended before another rank learns its process
      if (!reaped) return;
      const pid_t child = fork();  // a dead process, as for a rank whose parent has already reaped it
      if (child == 0) _exit(0);
      waitpid(child, nullptr, 0);
      value = std::to_string(child);
    };
    const auto store = std::make_shared<Board>(entries, on_call);
    const std::string error = error_of<ls::CommError>([&] {
      ls::parallel::make_shm({.timeout = std::chrono::seconds(20)}, {.rank = rank, .size = 3, .store = store});
    });
    CHECK_MESSAGE(contains(error, "rank 1 (process "), error);
    CHECK_MESSAGE(contains(error, "ended while the group was being made"), error);
  });
  CHECK_MESSAGE(ended[0].ok(), ended[0].to_string());
  CHECK(ended[1].code == 5);
  CHECK_MESSAGE(ended[2].ok(), ended[2].to_string());
  munmap(memory, 4096);
}

// Sets a limit for the rest of this process.
void set_limit(decltype(RLIMIT_NOFILE) resource, rlim_t value) {
  rlimit limit{};
  REQUIRE(getrlimit(resource, &limit) == 0);
  limit.rlim_cur = value;
  REQUIRE(setrlimit(resource, &limit) == 0);
}

// The descriptor limit under which this process can open `more` of them: each takes the lowest free number.
rlim_t room_for(int more) {
  std::vector<int> made;
  for (int i = 0; i < more; ++i) made.push_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (const int fd : made) close(fd);
  return static_cast<rlim_t>(made.back() + 1);
}

// Lets this process map only `more` bytes more than it has mapped.
void limit_address_space(std::size_t more) {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0;
  REQUIRE((file >> pages));
  set_limit(RLIMIT_AS, pages * static_cast<std::size_t>(getpagesize()) + more);
}

// Restores the limit of descriptors.
class DescriptorLimit {
 public:
  DescriptorLimit() { REQUIRE(getrlimit(RLIMIT_NOFILE, &before_) == 0); }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

// A barrier for ranks that are processes. It keeps a rank from ending, and so becoming a lost rank, while another
// still waits.
class EndTogether {
 public:
  EndTogether(void* memory, unsigned ranks) : barrier_(static_cast<pthread_barrier_t*>(memory)) {
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    REQUIRE(pthread_barrier_init(barrier_, &attributes, ranks) == 0);
    pthread_barrierattr_destroy(&attributes);
  }
  void wait() const { pthread_barrier_wait(barrier_); }

 private:
  pthread_barrier_t* barrier_;
};

// Makes a shm group of three in which rank `poor` has no descriptor left when memory is shared, and calls `check` with
// each rank's error.
void check_out_of_descriptors(int poor, const std::function<void(int rank, const std::string& error)>& check) {
  constexpr std::size_t kPage = 4096;
  void* const memory = mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* const entries = new (memory) Board::Entry[5];
  const EndTogether end(static_cast<char*>(memory) + kPage, 3);
  check_processes(3, [&](int rank) {
    const auto on_call = [&](const std::string& call, std::string&) {
      if (rank != poor) return;
      if (call == "set shm/process/2") set_limit(RLIMIT_NOFILE, room_for(2));  // rank 0 watches two ranks from here on
      if (call == "get shm/process/2")
        set_limit(RLIMIT_NOFILE, room_for(2));  // rank 1 watches both others from here on
    };
    const auto store = std::make_shared<Board>(entries, on_call);
    const std::string error = error_of<ls::Error>([&] {
      ls::parallel::make_shm({.timeout = std::chrono::seconds(20)}, {.rank = rank, .size = 3, .store = store});
    });
    end.wait();
    check(rank, error);
  });
  munmap(memory, 2 * kPage);
}

}  // namespace

TEST_CASE("an error that passes several ranks keeps its operation and its cause") {
  const std::string error = "all_reduce #3: " + std::string(400, '-') + ": rank 3 is gone";
  const std::string kept = ls::parallel::first_line(error + "\nmore", 384);
  CHECK(kept.size() == 384);
  CHECK(kept.starts_with("all_reduce #3: ---"));
  CHECK(contains(kept, "--- ... ---"));
  CHECK(kept.ends_with("---: rank 3 is gone"));
  CHECK(ls::parallel::first_line(error, error.size()) == error);
}

// UBSan needs a file descriptor of its own to check the type of an object.
TEST_CASE("rank 0 without a file descriptor for shared memory is named by all ranks, with its limit" *
          doctest::skip(LOCKSTEP_SLOWDOWN > 1)) {
  check_out_of_descriptors(0, [](int, const std::string& error) {
    CHECK_MESSAGE(contains(error, "shm: no 1 MiB of shared memory: rank 0's process has no file descriptor left of "),
                  error);
    CHECK_MESSAGE(contains(error, "Raise its limit with ulimit -n"), error);
  });
}

TEST_CASE("a rank without a file descriptor for the memory that it receives reports that" *
          doctest::skip(LOCKSTEP_SLOWDOWN > 1)) {
  check_out_of_descriptors(1, [](int rank, const std::string& error) {
    if (rank != 1) return;
    CHECK_MESSAGE(contains(error, "shm: cannot receive a segment of shared memory: Too many open files"), error);
    CHECK_MESSAGE(contains(error, "raise the limit with ulimit -n"), error);
  });
}

// Rank `poor` of three calls `limit` before communication memory is made: all errors name it, with the reason.
void check_communication_memory(int poor, void (*limit)(), const std::string& reason) {
  CAPTURE(poor);
  const auto ended = ranks_of(3, [&](const Group& group) {
    const std::string error = error_of<ls::Error>([&] {
      const DescriptorLimit until_the_error;
      if (group->rank() == poor) limit();
      const ls::Tensor memory = group->empty({16 << 20});
      group->all_reduce(memory)->wait();
    });
    const std::string prefix = group->rank() == poor ? "" : "rank " + std::to_string(poor) + " has failed: ";
    CHECK_MESSAGE(contains(error, prefix + reason), error);
  });
  for (const ExitStatus& each : ended) CHECK_MESSAGE(each.ok(), each.to_string());
}

TEST_CASE("a rank without address space for communication memory is named by the others, with the reason") {
  for (const int poor : {0, 1, 2})
    check_communication_memory(
        poor, [] { limit_address_space(8 << 20); }, "shm: cannot map 193 MiB of shared memory: the process's address");
}

TEST_CASE("a rank without a file descriptor for communication memory is named by the others, with the reason" *
          doctest::skip(LOCKSTEP_SLOWDOWN > 1)) {
  for (const int poor : {1, 2})
    check_communication_memory(
        poor, [] { set_limit(RLIMIT_NOFILE, 3); },
        "shm: cannot receive a segment of shared memory: Too many open files");
}

TEST_CASE("a rank that cannot map memory while the group is made is named by all ranks") {
  for (const int poor : {1, 2}) {
    CAPTURE(poor);
    const std::string name = fresh_group();
    const auto results = run_processes(3, [&](int rank) {
      set_master(name);
      if (rank == poor) limit_address_space(24 << 20);
      ls::parallel::init_process_group({.world_size = 3, .rank = rank, .group_name = name});
    });
    for (int rank = 0; rank < 3; ++rank) {
      const std::string& error = results[static_cast<std::size_t>(rank)].error;
      CHECK_MESSAGE(contains(error, "shm: cannot map "), error);
      if (rank != poor) CHECK_MESSAGE(contains(error, "rank " + std::to_string(poor) + ": shm: "), error);
    }
  }
}

TEST_CASE("a file size limit below the size of the shared memory is an error on all ranks, not a signal") {
  const std::string name = fresh_group();
  const auto results = run_processes(2, [&](int rank) {
    set_master(name);
    if (rank == 0) set_limit(RLIMIT_FSIZE, 1 << 20);
    ls::parallel::init_process_group({.world_size = 2, .rank = rank, .group_name = name});
  });
  for (const ExitStatus& result : results) {
    INFO(result.to_string());
    CHECK(result.code == 1);
    CHECK(contains(result.error, " MiB of shared memory: rank 0's process may write files of 1024 KiB at most"));
    CHECK(contains(result.error, "ulimit -f unlimited"));
  }
}

TEST_CASE("a rank that ends during the construction of the group is named by the others, with its process") {
  for (const bool reaped : {false, true}) {
    CAPTURE(reaped);
    check_end_while_making(reaped);
  }
}

TEST_CASE("a rank that is killed is named by the others, and the failed step leaves their parameters unchanged") {
  for (const int size : {2, 3, 5}) {
    for (const int moment : {0, 1, 17}) {
      CAPTURE(size);
      CAPTURE(moment);
      check_killed_rank(size, moment % size, moment, "shm");
    }
  }
}

TEST_CASE("a rank that throws or leaves is named by the others") {
  const auto ended = ranks_of(3, [&](const Group& group) {
    train_until(group, 1, 4, [] { throw ls::InvalidArgument("a bug in the user's code"); });
  });
  CHECK(ended[0].ok());
  CHECK(contains(ended[1].error, "a bug in the user's code"));
  CHECK(ended[2].ok());
}

TEST_CASE("a rank that is stopped causes a timeout on the others, which name it") {
  const auto ended = ranks_of(
      2,
      [&](const Group& group) {
        const ls::Tensor pids = ls::zeros({2}, {.dtype = ls::kInt64});
        group->all_gather(pids, ls::full({1}, getpid(), {.dtype = ls::kInt64}))->wait();
        if (group->rank() == 1) raise(SIGSTOP);
        const std::string error = error_of<ls::CommTimeout>([&] { group->barrier(); });
        CHECK_MESSAGE(contains(error, "rank 1 has not arrived"), error);
        kill(static_cast<pid_t>(pids[1].item<std::int64_t>()), SIGKILL);
      },
      std::chrono::milliseconds(2000));
  CHECK_MESSAGE(ended[0].ok(), ended[0].to_string());
  CHECK(ended[1].signal == SIGKILL);
}

TEST_CASE("a stopped rank is named even by a rank that waits for it only through another rank") {
  check_stopped_rank("shm");
}

TEST_CASE("a stopped rank is named even by ranks that wait for it in another group, or for such a rank") {
  check_stopped_rank_of_other_group("shm");
}

TEST_CASE("after a failure the surviving processes can make the group again") {
  const std::string again = fresh_group();
  const auto ended = ranks_of(3, [&](const Group& first) {
    Group group = first;
    if (group->rank() == 0) raise(SIGKILL);
    const int rank = group->rank() - 1;
    const std::string error = error_of<ls::CommError>([&] { group->all_reduce(ls::zeros({10}))->wait(); });
    CHECK_MESSAGE(contains(error, "rank 0 is gone"), error);
    group = ls::parallel::init_process_group({.world_size = 2, .rank = rank, .group_name = again});
    const ls::Tensor t = ls::full({3}, rank + 1);
    group->all_reduce(t)->wait();
    CHECK(t.max().item<float>() == 3);
  });
  CHECK(ended[0].signal == SIGKILL);
  CHECK_MESSAGE(ended[1].ok(), ended[1].to_string());
  CHECK_MESSAGE(ended[2].ok(), ended[2].to_string());
}

TEST_CASE("a destroyed group leaves no descriptor and no mapping") {
  with_group("shm", 2, [](const Group& outer) {
    const auto count = [](const char* folder) {
      std::ptrdiff_t entries = 0;
      for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++entries;
      return entries;
    };
    const auto use = [&] {
      const Group group = outer->split(0);
      const ls::Tensor t = group->empty({1000});
      group->all_reduce(t)->wait();
      group->all_reduce(ls::zeros({50000}))->wait();
    };
    use();
    const auto before = count("/proc/self/fd");
    for (int i = 0; i < 20; ++i) use();
    // The store's thread may close a connection a moment later: a descriptor left by each group would make 20 more.
    CHECK(count("/proc/self/fd") < before + 10);
    outer->barrier();  // a rank that leaves closes its connection to the store, whose other end counts as rank 0's
  });
}
