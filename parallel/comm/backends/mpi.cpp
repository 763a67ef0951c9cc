// mpi: ranks that were started by mpirun. Collectives consist of MPI's sends and receives (MessageGroup), except large
// broadcast, all_gather and all_to_all with Reduction::kNative, which use MPI's own collectives.
//
// MPI is initialised once per process, on first use, unless the program has initialised it; then the program finalizes
// it. All calls test and none blocks, so that waiting ends by the deadline. If MPI was initialised with less than
// MPI_THREAD_MULTIPLE, only one thread may use groups.
#define OMPI_SKIP_MPICXX 1  // the removed C++ bindings of MPI
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/comm/backends/message_group_internal.h"
#include "lockstep/parallel/rendezvous/modules_internal.h"

namespace lockstep::parallel {
namespace {

std::string text_of(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  return std::string(text, static_cast<std::size_t>(length));
}

void check(int code, const char* what) {
  if (code != MPI_SUCCESS) throw CommError(fmt::format("mpi: {}: {}", what, text_of(code)));
}

// The communicator of a destroyed group. MPI reuses the number of a freed communicator, and messages in flight would
// reach the new one, so it is freed after the goodbye of every peer, which is the peer's last message.
struct Retired {
  MPI_Comm comm;
  std::vector<MPI_Request> goodbyes;  // sends and receives
};

// A collective of MPI that its group has dropped after a failure. Such requests can neither be cancelled nor freed, so
// MPI may use the memory until the collective is complete, which may be never.
struct Dropped {
  MPI_Request request;
  Tensor in, out;
};

// The use of MPI by this process, for its end.
struct Use {
  std::mutex mutex;
  std::vector<Retired> retired;
  std::vector<Dropped> dropped;
  bool initialised_here = false;
  bool poisoned = false;  // a group has failed: peers may be gone, and finalizing would wait for them
};
Use& use() {
  static Use instance;
  return instance;
}

// The program may have finalized MPI, or is at its end, where a group can outlive MPI.
bool is_finalized() {
  int finalized = 1;
  return MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0;
}

void finalize_at_exit() {
  if (use().initialised_here && !use().poisoned && !is_finalized()) MPI_Finalize();
}

void initialise() {
  const std::lock_guard lock(use().mutex);
  int is_initialised = 0;
  if (is_finalized())
    throw CommError("init_process_group: mpi: MPI is finalized in this process; it cannot start again");
  check(MPI_Initialized(&is_initialised), "MPI_Initialized");
  if (is_initialised) return;
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  use().initialised_here = true;
  std::atexit(finalize_at_exit);
}

class MpiRequest : public Request {
 public:
  MpiRequest(int peer, bool receiving) : Request(peer), receiving_(receiving) {}
  ~MpiRequest() override {
    if (request == MPI_REQUEST_NULL || is_finalized()) return;
    if (receiving_ && MPI_Cancel(&request) == MPI_SUCCESS)
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    else
      MPI_Request_free(&request);
  }
  MPI_Request request = MPI_REQUEST_NULL;

 private:
  bool receiving_;
};

class CollectiveRequest final : public MpiRequest {
 public:
  explicit CollectiveRequest(const Call& call) : MpiRequest(-1, false), in_(call.in), out_(call.out) {}
  ~CollectiveRequest() override {
    const MPI_Request left = std::exchange(request, MPI_REQUEST_NULL);
    if (left == MPI_REQUEST_NULL) return;
    const std::lock_guard lock(use().mutex);
    use().dropped.push_back({left, std::move(in_), std::move(out_)});
  }

 private:
  Tensor in_, out_;
};

void free_retired() {
  const std::lock_guard lock(use().mutex);
  std::erase_if(use().dropped, [](Dropped& each) {
    int done = 0;
    return MPI_Test(&each.request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done;
  });
  std::erase_if(use().retired, [](Retired& each) {
    int done = 0;
    const int code =
        MPI_Testall(static_cast<int>(each.goodbyes.size()), each.goodbyes.data(), &done, MPI_STATUSES_IGNORE);
    return code == MPI_SUCCESS && done && MPI_Comm_free(&each.comm) == MPI_SUCCESS;
  });
}

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(const Rendezvous& place) {
    initialise();
    free_retired();
    int size = 0, rank = 0;
    check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    const auto& members = place.members;
    const int expected = place.global_rank(place.rank);
    LOCKSTEP_CHECK(rank == expected && (!members.empty() || size == place.size),
                   "init_process_group: mpi: this is rank {} of {}, but MPI says rank {} of {}\n"
                   "Start the program with mpirun -np {}, and use init_method mpi://",
                   expected, place.size, rank, size, place.size);
    if (members.empty()) {
      check(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
    } else {
      MPI_Group world, group;
      check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
      check(MPI_Group_incl(world, place.size, members.data(), &group), "MPI_Group_incl");
      const int code = MPI_Comm_create_group(MPI_COMM_WORLD, group, 0, &comm_);
      MPI_Group_free(&group);
      MPI_Group_free(&world);
      check(code, "MPI_Comm_create_group");
    }
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    for (int peer = 0; peer < place.size; ++peer) {
      if (peer != place.rank)
        check(MPI_Irecv(nullptr, 0, MPI_BYTE, peer, kGoodbye, comm_, &goodbyes_.emplace_back(MPI_REQUEST_NULL)),
              "MPI_Irecv");
    }
    rank_ = place.rank;
    size_ = place.size;
  }
  ~MpiTransport() override {
    if (is_finalized() || failed_) return;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      MPI_Request& request = goodbyes_.emplace_back(MPI_REQUEST_NULL);
      if (MPI_Isend(nullptr, 0, MPI_BYTE, peer, kGoodbye, comm_, &request) != MPI_SUCCESS) return;
    }
    const std::lock_guard lock(use().mutex);
    use().retired.push_back({comm_, std::move(goodbyes_)});
  }

  std::unique_ptr<Request> send(int to, Channel channel, const void* data, std::size_t bytes) override {
    if (is_finalized()) throw PeerLost{to, "MPI is finalized", false};
    auto request = std::make_unique<MpiRequest>(to, false);
    lost_if(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, static_cast<int>(channel), comm_, &request->request),
            to);
    return request;
  }
  std::unique_ptr<Request> receive(int from, Channel channel, void* data, std::size_t bytes) override {
    auto request = std::make_unique<MpiRequest>(from, true);
    const int source = from == kAnyRank ? MPI_ANY_SOURCE : from;
    lost_if(
        MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, source, static_cast<int>(channel), comm_, &request->request),
        from);
    return request;
  }
  bool finish(Request& request, Deadline*) override {
    int done = 0;
    lost_if(MPI_Test(&static_cast<MpiRequest&>(request).request, &done, MPI_STATUS_IGNORE), request.peer());
    return done != 0;
  }
  bool is_closed(int) override { return false; }  // mpirun ends the job if a rank dies
  bool blocks() const override { return false; }

  // MPI's collectives are used for data that every rank receives, but not for sums: MPI_Iallreduce of OpenMPI 4.1
  // takes 2 to 4 times as long as the group's own, which is as fast as the blocking MPI_Allreduce.
  std::unique_ptr<Request> start_native(const Call& call) override {
    const std::size_t bytes = call.bytes();
    if (bytes > 1 << 30) return nullptr;  // near the int limit of MPI's counts
    auto request = std::make_unique<CollectiveRequest>(call);
    const auto count = static_cast<int>(bytes);
    void* const in = call.in.defined() ? call.in.raw_data() : nullptr;
    void* const out = call.out.defined() ? call.out.raw_data() : nullptr;
    const bool in_place =
        call.kind == Kind::kAllGather && in == static_cast<std::byte*>(out) + static_cast<std::size_t>(rank_) * bytes;
    switch (call.kind) {
      case Kind::kBroadcast:
        lost_if(MPI_Ibcast(out, count, MPI_BYTE, call.root, comm_, &request->request), -1);
        return request;
      case Kind::kAllGather:
        lost_if(MPI_Iallgather(in_place ? MPI_IN_PLACE : in, count, MPI_BYTE, out, count, MPI_BYTE, comm_,
                               &request->request),
                -1);
        return request;
      case Kind::kAllToAll:
        lost_if(MPI_Ialltoall(in, count, MPI_BYTE, out, count, MPI_BYTE, comm_, &request->request), -1);
        return request;
      default:
        return nullptr;
    }
  }

  // MPI completes pending messages. After a failure the communicator is never freed.
  void hang_up(bool failed) override {
    failed_ = failed;
    if (!failed) return;
    const std::lock_guard lock(use().mutex);
    use().poisoned = true;
  }

 private:
  static void lost_if(int code, int peer) {
    if (code != MPI_SUCCESS) throw PeerLost{peer, text_of(code), false};
  }

  static constexpr int kGoodbye = kChannels;

  int rank_ = 0, size_ = 0;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::vector<MPI_Request> goodbyes_;
  bool failed_ = false;
};

std::unique_ptr<Backend> make_mpi(const InitOptions& options, const Rendezvous& place) {
  return std::make_unique<MessageGroup>(options, place, std::make_unique<MpiTransport>(place));
}

void place_of_mpi(int* rank, int* size) {
  initialise();
  check(MPI_Comm_rank(MPI_COMM_WORLD, rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, size), "MPI_Comm_size");
}

void gather_by_mpi(const void* own, void* all, std::size_t bytes) {
  const auto count = static_cast<int>(bytes);
  check(MPI_Allgather(own, count, MPI_BYTE, all, count, MPI_BYTE, MPI_COMM_WORLD), "MPI_Allgather");
}

constexpr BackendModule kMpiModule{
    .version = LOCKSTEP_VERSION, .make = make_mpi, .place = place_of_mpi, .gather = gather_by_mpi};

}  // namespace
}  // namespace lockstep::parallel

extern "C" const lockstep::parallel::BackendModule* lockstep_backend_mpi();
const lockstep::parallel::BackendModule* lockstep_backend_mpi() { return &lockstep::parallel::kMpiModule; }
