#include "lockstep/parallel/comm/backends/shared_group_internal.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/comm/backends/shared_transfer_internal.h"
#include "lockstep/tensor/memory/allocator_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::size_t kArenaStep = 256 * 1024;  // memory is reserved in steps of this

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

// One Work for several pieces of a call.
class Pieces final : public Work {
 public:
  explicit Pieces(std::vector<std::shared_ptr<Operation>> pieces) : pieces_(std::move(pieces)) {}
  void wait() override {
    for (const auto& piece : pieces_) piece->wait();
  }
  bool is_completed() override {
    return std::ranges::all_of(pieces_, [](const auto& piece) { return piece->is_completed(); });
  }
  bool is_known_complete() override {
    return std::ranges::all_of(pieces_, [](const auto& piece) { return piece->is_known_complete(); });
  }

 private:
  std::vector<std::shared_ptr<Operation>> pieces_;
};

}  // namespace

SharedGroup::SharedGroup(const InitOptions& options, const Rendezvous& place, std::unique_ptr<SharedMemory> memory,
                         std::shared_ptr<Segment> control)
    : Backend(place), timeout_(options.timeout), watch_(place.watch), memory_(std::move(memory)),
      // With more ranks than cores a spinning rank would occupy the core that the awaited rank needs.
      spins_(place.size <= memory_->cores() ? Spin::kTurns : 0), control_segment_(std::move(control)),
      control_(control_segment_->base, place.size),
      liveness_(place.liveness ? std::static_pointer_cast<SharedLiveness>(place.liveness)
                               : std::make_shared<SharedLiveness>(control_segment_, control_, place.size)) {
  arena_ = memory_->arena();
  for (auto& counters : claimed_so_far_) counters.assign(static_cast<std::size_t>(size_), 0);
}

SharedGroup::~SharedGroup() {
  for (std::size_t slot = 0; slot < in_flight_.size(); ++slot) {
    const std::shared_ptr<Operation> op = in_flight_[slot];  // the slot may drop its reference
    if (!op) continue;
    try {  // dropped operations are finished, unless there is an exception: then peers may never arrive
      if (!failure_ && std::uncaught_exceptions() == 0) wait(*op);
    } catch (const Error&) {
      // The operation keeps the error; the user did not wait for it.
    }
    if (op->group) op->fail_without_group(*op->call);
  }
  finish_transfers();
  const auto departure = std::uncaught_exceptions() > 0 ? Departure::kByError : Departure::kInOrder;
  control_.rank(rank_).left.store(static_cast<std::uint32_t>(departure));
  try {
    wake_sleepers(control_.header());
  } catch (const Error&) {
    // Without the wake-up the other ranks check after a slice.
  }
}

// All ranks arrive, agree on the call, and then get a segment together.
Ref<Storage> SharedGroup::allocate(const Call& call, std::size_t bytes, Device device) {
  exchange(call);
  const std::uint64_t id = next_segment_++;
  Deadline deadline(timeout_);
  std::shared_ptr<Segment> segment;
  try {
    segment = memory_->allocate(round_up(std::max<std::size_t>(bytes, 1), kPage), deadline);
  } catch (const CommError& error) {  // a lost rank; too little memory is a DeviceError on all ranks
    fail_broken(call, error.what());
  } catch (const LocalFailure& error) {
    fail_alone(call, error);
  }
  std::erase_if(communication_memory_, [](const CommunicationMemory& old) { return old.segment.expired(); });
  communication_memory_.push_back({id, segment});
  const auto counted = static_cast<std::int64_t>(bytes);
  cpu::count_communication(counted, device.index());
  const auto owner = [segment, counted, device](void*) { cpu::count_communication(-counted, device.index()); };
  return Storage::wrap(segment->block(rank_), bytes, device, std::shared_ptr<void>(segment->base, owner));
}

std::shared_ptr<Work> SharedGroup::start(Call call) {
  failure_.check_usable(call);
  if (call.is_message()) return start_transfer(std::move(call));
  const auto shared = std::make_shared<const Call>(std::move(call));
  const std::size_t item = item_size(shared->dtype);
  Operation whole(this, shared);
  whole.count = shared->count;
  const std::size_t bytes = region_bytes(whole, size_);
  if (bytes <= kArenaBytes / 2 || find_direct(whole)) return launch(shared, 0, shared->count);
  // Too large to stage in one step. Pieces are half the arena, so that one is filled while the other is processed.
  const std::size_t each = bytes / (static_cast<std::size_t>(shared->count) * item);  // parts in the region
  const auto piece = static_cast<std::int64_t>(kArenaBytes / 2 / (each * item) / 64 * 64);
  LOCKSTEP_CHECK(piece > 0, "{}: {} ranks are too many for staging {} bytes", shared->describe(), size_, bytes);
  std::vector<std::shared_ptr<Operation>> pieces;
  for (std::int64_t first = 0; first < shared->count; first += piece)
    pieces.push_back(launch(shared, first, std::min(piece, shared->count - first)));
  return std::make_shared<Pieces>(std::move(pieces));
}

std::shared_ptr<Operation> SharedGroup::launch(const std::shared_ptr<const Call>& call, std::int64_t first,
                                               std::int64_t count) {
  auto op = std::make_shared<Operation>(this, call);
  op->first = first;
  op->count = count;
  choose_path(*op);
  arrive(op);
  return op;
}

// Chooses the path from the call and the number of ranks alone, so that all ranks choose the same one. (The
// fingerprint makes sure that all ranks pass communication memory or none does.)
void SharedGroup::choose_path(Operation& op) {
  const Call& call = *op.call;
  if (call.kind == Kind::kBarrier || call.kind == Kind::kEmpty || op.count == 0) {
    op.path = Operation::Path::kArrivalsOnly;
    return;
  }
  const bool same_everywhere = call.kind == Kind::kAllReduce || call.kind == Kind::kBroadcast;
  const std::size_t bytes = static_cast<std::size_t>(op.count) * item_size(call.dtype);
  // In communication memory shared work moves half the bytes, so it pays for smaller tensors.
  const bool direct = find_direct(op);
  if (same_everywhere && size_ == 2 && bytes <= (direct ? kInlineBytes / 4 : kInlineBytes)) {
    op.path = Operation::Path::kInline;
    put_inline(op);
  } else if (direct) {
    op.path = Operation::Path::kDirect;
    plan_tasks(op, size_);
  } else {
    op.path = Operation::Path::kStaged;
    stage(op);
    plan_tasks(op, size_);
  }
}

// Finds the call's tensors in communication memory. Tensors that overlap must be one tensor, or the smaller one part
// rank() of the larger one.
bool SharedGroup::find_direct(Operation& op) const {
  const Call& call = *op.call;
  const Flow& flow = call.flow();
  if (!call.in.defined() || !call.out.defined() || flow.to_root || call.kind == Kind::kScatter) return false;
  if (!flow.has_parts() && call.in.raw_data() != call.out.raw_data()) return false;
  const std::size_t part = call.bytes(), all = part * static_cast<std::size_t>(size_);
  const std::size_t in_bytes = flow.in_parts ? all : part, out_bytes = flow.out_parts ? all : part;
  op.in = find(call.in.raw_data(), in_bytes);
  op.out = flow.has_parts() ? find(call.out.raw_data(), out_bytes) : op.in;
  if (!op.in.segment || !op.out.segment) return false;
  const bool overlaps = op.in.segment == op.out.segment && op.in.offset < op.out.offset + out_bytes &&
                        op.out.offset < op.in.offset + in_bytes;
  if (!overlaps) return true;
  if (flow.in_parts && flow.out_parts) return false;  // all_to_all in place needs a copy
  Location &larger = flow.in_parts ? op.in : op.out, &smaller = flow.in_parts ? op.out : op.in;
  const std::size_t step = flow.has_parts() ? part : 0;
  if (smaller.offset != larger.offset + static_cast<std::size_t>(rank_) * step) return false;
  smaller = larger;
  smaller.step = step;
  return true;
}

// Returns a tensor's place in communication memory; without a segment if the tensor is elsewhere.
void* SharedGroup::address_in(int rank, const void* own, std::size_t bytes) const {
  const Location location = find(own, bytes);
  return location.segment ? location.segment->block(rank) + location.offset : nullptr;
}

Location SharedGroup::find(const void* own, std::size_t bytes) const {
  const auto* const data = static_cast<const std::byte*>(own);
  for (const CommunicationMemory& each : communication_memory_) {
    const std::shared_ptr<Segment> segment = each.segment.lock();
    if (!segment) continue;
    const std::byte* const block = segment->block(rank_);
    if (data >= block && data + bytes <= block + segment->block_bytes)
      return {.segment = segment.get(), .offset = static_cast<std::size_t>(data - block), .id = each.id};
  }
  return {};
}

void SharedGroup::stage(Operation& op) {
  const std::size_t bytes = round_up(region_bytes(op, size_), 64);
  reserve(op, bytes);
  lay_out(op, *arena_, size_);
  copy_in(op, rank_, size_);
}

void SharedGroup::release_staging() {
  for (const auto& op : in_flight_) {
    const std::shared_ptr<Operation> busy = op;
    if (busy) wait(*busy);
  }
  memory_->release_arena(arena_reserved_);
  arena_reserved_ = arena_head_ = 0;
}

// Takes the next `bytes` of the ring, after waiting for the operations whose data is there. The offset depends on the
// order of launches alone.
void SharedGroup::reserve(Operation& op, std::size_t bytes) {
  // Small operations use a small part of the ring, so that little memory is touched.
  if (arena_head_ + bytes > std::max(arena_reserved_, 2 * bytes)) arena_head_ = 0;
  op.region = arena_head_;
  arena_head_ += bytes;
  if (arena_head_ > arena_reserved_) {
    const std::size_t wanted = std::min(kArenaBytes, round_up(arena_head_, kArenaStep));
    try {
      memory_->reserve_arena(arena_reserved_, wanted);
    } catch (const LocalFailure& error) {
      fail_alone(*op.call, error);
    }
    arena_reserved_ = wanted;
  }
  for (const auto& old : in_flight_) {
    if (!old || old->path != Operation::Path::kStaged) continue;
    const std::size_t end = old->region + round_up(region_bytes(*old, size_), 64);
    if (old->region < op.region + bytes && op.region < end) {
      const std::shared_ptr<Operation> busy = old;
      wait(*busy);
    }
  }
}

// Copies the data to the inline slot, after both ranks have read the slot's previous data.
void SharedGroup::put_inline(Operation& op) {
  op.inline_number = next_inline_++;
  const std::uint64_t read = op.inline_number < kInlineSlots ? 0 : op.inline_number - kInlineSlots + 1;
  const RankState& peer = control_.rank(1 - rank_);
  const auto is_free = [&] {
    if (inline_finished_ < read) advance_before(next_sequence_);
    return inline_finished_ >= read && peer.inline_done.load(std::memory_order_seq_cst) >= read;
  };
  if (!is_free())
    wait_until(is_free, [&](Deadline& deadline) {
      fail_if_gone(*op.call, 1 - rank_);
      check_liveness(*op.call, next_sequence_, &deadline);
    });
  const Call& call = *op.call;
  if (call.kind == Kind::kBroadcast && rank_ != call.root) return;
  std::memcpy(control_.inline_data(rank_, op.inline_number), call.in.raw_data(),
              static_cast<std::size_t>(op.count) * item_size(call.dtype));
}

void SharedGroup::arrive(const std::shared_ptr<Operation>& op) {
  const std::size_t slot = next_sequence_ % kSlots;
  if (const std::shared_ptr<Operation> old = in_flight_[slot]) wait(*old);
  op->sequence = next_sequence_++;
  if (!op->tasks.empty()) op->claimed_from = claimed_so_far_[slot];
  std::uint64_t total = 0;
  for (std::size_t r = 0; r < op->tasks.size(); ++r) {
    claimed_so_far_[slot][r] += op->tasks[r];
    total += op->tasks[r];
  }
  op->done_at = done_so_far_[slot] += total;
  in_flight_[slot] = op;

  Arrival& own = control_.arrival(slot, rank_);
  const Call& call = *op->call;
  const std::uint64_t signature = signature_of(call);  // before the stores, during which peers poll their line
  const bool is_direct = op->path == Operation::Path::kDirect;
  // Advances the sequence first, so that no rank takes the new fingerprint for that of the slot's previous operation.
  own.sequence.exchange(op->sequence, std::memory_order_acq_rel);
  own.what.store(signature, std::memory_order_relaxed);
  own.count.store(static_cast<std::uint64_t>(call.count), std::memory_order_relaxed);
  own.in_at.store(is_direct ? op->in.place() : kNotDirect, std::memory_order_relaxed);
  own.out_at.store(is_direct ? op->out.place() : kNotDirect, std::memory_order_relaxed);
  own.detail.store(call.detail, std::memory_order_relaxed);
  own.failed_steps.store(call.failed_steps, std::memory_order_relaxed);
  if (call.purpose[0] != 0) own.set_purpose(call.purpose, op->sequence + 1);
  if (call.order == Reduction::kArrival) {
    op->tickets_from = tickets_so_far_[slot];
    tickets_so_far_[slot] += static_cast<std::uint64_t>(size_);
    own.ticket.store(control_.tickets(slot).value.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
  }
  own.sequence.store(op->sequence + 1, std::memory_order_seq_cst);
  // The last rank to arrive wakes the others: they can start the work, or are done.
  if (control_.header().sleepers.load(std::memory_order_seq_cst) != 0 && all_arrived(*op))
    wake_sleepers(control_.header());
}

void SharedGroup::exchange(const Call& call) {
  auto op = std::make_shared<Operation>(this, std::make_shared<const Call>(call));
  arrive(op);
  wait(*op);
}

}  // namespace lockstep::parallel
