// The messages that each kind of operation of a MessageGroup sends and receives.
#include <algorithm>
#include <cstring>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/small_vector.h"
#include "lockstep/parallel/comm/backends/message_group_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::size_t kPieceBytes = 1 << 20;    // of a reduction: received while the previous piece is added
constexpr std::int64_t kPiecesAhead = 16;       // maximum of receives posted in advance, so that senders need not wait
constexpr std::size_t kStagedBytes = 64 << 20;  // approximate memory of those receives for all peers
constexpr std::size_t kMessageBytes = 256 << 20;  // of other operations: below the int limit of MPI's counts

std::byte* bytes_at(const Tensor& tensor, std::size_t offset = 0) {
  return static_cast<std::byte*>(tensor.raw_data()) + offset;
}

}  // namespace

// --- data to and from a rank -----------------------------------------------------------------------------------------

// Returns the data that this rank sends to `peer` in an operation that is a single exchange.
std::byte* MessageGroup::data_for(const Call& call, int peer) const {
  if (!call.sends(rank_) || !call.receives(peer)) return nullptr;
  return bytes_at(call.in, call.flow().in_parts ? static_cast<std::size_t>(peer) * call.bytes() : 0);
}

// Returns the destination of data from `peer`; null for reductions, which combine it.
std::byte* MessageGroup::place_from(const Call& call, int peer) const {
  if (call.flow().reduces || !call.sends(peer) || !call.receives(rank_)) return nullptr;
  return bytes_at(call.out, call.flow().out_parts ? static_cast<std::size_t>(peer) * call.bytes() : 0);
}

void MessageGroup::keep_own_part(const Call& call) const {
  const std::byte* const from = data_for(call, rank_);
  std::byte* const to = place_from(call, rank_);
  if (from && to && from != to) std::memcpy(to, from, call.bytes());
}

void MessageGroup::send_transfer(MessageWork& work) {
  const Call& call = work.call;
  const Header header = header_of(call);
  const bool small = is_small(call);
  std::vector<std::byte>& message = work.messages.emplace_back(sizeof(Header) + (small ? call.bytes() : 0));
  std::memcpy(message.data(), &header, sizeof(header));
  if (small && call.count > 0) std::memcpy(message.data() + sizeof(header), bytes_at(call.in), call.bytes());
  work.last.push_back(transport_->send(call.root, Channel::kTransferHeaders, message.data(), message.size()));
  if (!small) post(work.last, true, call.root, Channel::kTransfers, bytes_at(call.in), call.bytes(), kMessageBytes);
}

// --- after all headers agree ----------------------------------------------------------------------------------------

void MessageGroup::begin(MessageWork& work) {
  const Call& call = work.call;
  if (call.count == 0 || call.kind == Kind::kBarrier || call.kind == Kind::kSend) return;
  if (call.kind == Kind::kRecv && is_small(call)) {
    const PostedHeaders::Slot& slot = transfer_headers_[static_cast<std::size_t>(call.root)].slots.front();
    std::memcpy(call.out.raw_data(), slot.memory.data() + sizeof(Header), call.bytes());
    return;
  }
  if (is_small(call)) return finish_small(work);
  if (call.kind == Kind::kRecv) {
    work.steps.emplace_back();
    return post(work.steps.back().needs, false, call.root, Channel::kTransfers, bytes_at(call.out), call.bytes(),
                kMessageBytes);
  }
  if (!canonical_) {
    if (std::unique_ptr<Request> request = transport_->start_native(call)) {
      return work.steps.emplace_back().needs.push_back(std::move(request));
    }
  }
  call.flow().reduces ? begin_reduction(work) : begin_exchange(work);
}

void MessageGroup::post(Requests& requests, bool sending, int peer, Channel channel, std::byte* data, std::size_t bytes,
                        std::size_t piece_bytes) {
  for (std::size_t at = 0; at < bytes; at += piece_bytes) {
    const std::size_t count = std::min(piece_bytes, bytes - at);
    requests.push_back(sending ? transport_->send(peer, channel, data + at, count)
                               : transport_->receive(peer, channel, data + at, count));
  }
}

void MessageGroup::begin_exchange(MessageWork& work) {
  const Call& call = work.call;
  Requests& needs = work.steps.emplace_back().needs;
  for (int k = 1; k < size_; ++k) {
    const int from = (rank_ + size_ - k) % size_;
    if (std::byte* const place = place_from(call, from))
      post(needs, false, from, Channel::kParts, place, call.bytes(), kMessageBytes);
  }
  for (int k = 1; k < size_; ++k) {
    const int to = (rank_ + k) % size_;
    if (std::byte* const data = data_for(call, to))
      post(needs, true, to, Channel::kParts, data, call.bytes(), kMessageBytes);
  }
  keep_own_part(call);
}

// --- large reductions -----------------------------------------------------------------------------------------------

// Returns the elements of `in` that a rank receives from all ranks and combines.
Range MessageGroup::owned(const Call& call, int rank) const {
  if (call.kind == Kind::kReduceScatter) return {rank * call.count, (rank + 1) * call.count};
  if (call.kind == Kind::kReduce) return {0, rank == call.root ? call.count : 0};
  return share_of(call.count, call.dtype, rank, size_);
}

// Returns the elements of a piece of those that this rank owns.
Range MessageGroup::piece_range(const Call& call, std::int64_t piece) const {
  const Range own = owned(call, rank_);
  const std::int64_t elements = piece_elements(item_size(call.dtype)), first = own.begin + piece * elements;
  return {first, std::min(first + elements, own.end)};
}

// Returns the elements of a piece. With many ranks pieces are smaller, so that the staging memory holds several per
// rank.
std::int64_t MessageGroup::piece_elements(std::size_t item) const {
  const std::size_t bytes =
      std::max<std::size_t>(kPieceBytes / static_cast<std::size_t>(std::max(1, size_ / 4)), 65536);
  return static_cast<std::int64_t>(bytes / item);
}

std::int64_t MessageGroup::pieces_ahead(std::size_t item) const {
  const auto column = static_cast<std::size_t>(piece_elements(item) * size_) * item;
  return std::clamp(static_cast<std::int64_t>(kStagedBytes / column), std::int64_t{4}, kPiecesAhead);
}

void MessageGroup::begin_reduction(MessageWork& work) {
  const Call& call = work.call;
  const std::size_t item = item_size(call.dtype), piece_bytes = static_cast<std::size_t>(piece_elements(item)) * item;
  const auto range_bytes = [&](const Range& range) { return static_cast<std::size_t>(range.count()) * item; };
  const Range own = owned(call, rank_);
  const std::int64_t pieces = (own.count() + piece_elements(item) - 1) / piece_elements(item);
  const std::int64_t ahead = pieces_ahead(item);
  const std::size_t staged_bytes = static_cast<std::size_t>(std::min(pieces, ahead) * (size_ - 1)) * piece_bytes;
  if (staging_.size() < staged_bytes) staging_.resize(staged_bytes);
  work.steps.resize(static_cast<std::size_t>(pieces));
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    if (piece < ahead) receive_piece(work.steps[static_cast<std::size_t>(piece)].needs, call, piece);
    work.steps[static_cast<std::size_t>(piece)].then = [this, &work, piece] { finish_piece(work, piece); };
  }
  for (int k = 1; k < size_; ++k) {
    const int from = (rank_ + size_ - k) % size_, to = (rank_ + k) % size_;
    const Range theirs = owned(call, from), wanted = owned(call, to);
    if (call.kind == Kind::kAllReduce)
      post(work.last, false, from, Channel::kResults, bytes_at(call.out, static_cast<std::size_t>(theirs.begin) * item),
           range_bytes(theirs), piece_bytes);
    post(work.last, true, to, Channel::kParts, bytes_at(call.in, static_cast<std::size_t>(wanted.begin) * item),
         range_bytes(wanted), piece_bytes);
  }
}

// Posts receives for all other ranks' data of a piece of this rank's elements.
void MessageGroup::receive_piece(Requests& requests, const Call& call, std::int64_t piece) {
  const std::size_t bytes = static_cast<std::size_t>(piece_range(call, piece).count()) * item_size(call.dtype);
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) requests.push_back(transport_->receive(r, Channel::kParts, staged(call, r, piece), bytes));
  }
}

std::byte* MessageGroup::staged(const Call& call, int rank, std::int64_t piece) {
  const std::size_t item = item_size(call.dtype), piece_bytes = static_cast<std::size_t>(piece_elements(item)) * item;
  const std::int64_t column = rank < rank_ ? rank : rank - 1;
  return staging_.data() + static_cast<std::size_t>(piece % pieces_ahead(item) * (size_ - 1) + column) * piece_bytes;
}

void MessageGroup::finish_piece(MessageWork& work, std::int64_t piece) {
  const Call& call = work.call;
  const std::size_t item = item_size(call.dtype);
  const Range range = piece_range(call, piece);
  const std::size_t first = static_cast<std::size_t>(range.begin) * item;
  const bool gets_part = call.kind == Kind::kReduceScatter;
  void* const out = bytes_at(call.out, gets_part ? first - static_cast<std::size_t>(rank_) * call.bytes() : first);
  SmallVector<const void*, 8> inputs;
  for (int r = 0; r < size_; ++r) inputs.push_back(r == rank_ ? bytes_at(call.in, first) : staged(call, r, piece));
  combine(call, {inputs.begin(), inputs.size()}, {&out, 1}, 0, range.count());
  for (int k = 1; k < size_ && call.kind == Kind::kAllReduce; ++k)
    work.last.push_back(
        transport_->send((rank_ + k) % size_, Channel::kResults, out, static_cast<std::size_t>(range.count()) * item));
  const std::int64_t next = piece + pieces_ahead(item);
  if (next < static_cast<std::int64_t>(work.steps.size()))
    receive_piece(work.steps[static_cast<std::size_t>(next)].needs, call, next);
}

}  // namespace lockstep::parallel
