// The first exchange of a collective (message_rounds_internal.h): headers, and the parts of a small operation. Parts
// that are summed travel as sums; the others, side by side.
#include <algorithm>
#include <cstring>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/small_vector.h"
#include "lockstep/parallel/comm/backends/message_group_internal.h"

namespace lockstep::parallel {
namespace {

// Sums of f16 and bf16 are rounded once, from all parts.
bool is_summed_on_the_way(const Call& call) { return call.flow().reduces && item_size(call.dtype) != 2; }

// Bytes of the part of one rank: what the others need of its `in`.
std::size_t part_bytes(const Call& call, int rank, int size) {
  if (call.kind == Kind::kBarrier || !call.sends(rank)) return 0;
  return call.bytes() * static_cast<std::size_t>(call.flow().in_parts ? size : 1);
}

// Bytes of the parts of a range of ranks.
std::size_t bytes_of(const Call& call, const RankRange& ranks, int size) {
  if (ranks.empty()) return 0;
  if (is_summed_on_the_way(call)) return part_bytes(call, ranks.begin, size);
  if (!call.flow().from_root)
    return part_bytes(call, ranks.begin, size) * static_cast<std::size_t>(ranks.end - ranks.begin);
  return ranks.contains(call.root) ? part_bytes(call, call.root, size) : 0;
}

std::size_t bytes_of(const Call& call, const HeldParts& held, int size) {
  return bytes_of(call, held.low, size) + bytes_of(call, held.high, size);
}

// Merges the parts of two ranges, of which one is empty, or both lie next to each other, or `b` contains `a`.
void merge(const Call& call, const RankRange& a, const std::byte* a_data, const RankRange& b, const std::byte* b_data,
           int size, std::byte* out) {
  const std::size_t a_bytes = bytes_of(call, a, size), b_bytes = bytes_of(call, b, size);
  if (a.empty() || (b.begin <= a.begin && b.end >= a.end)) {
    std::memcpy(out, b_data, b_bytes);
  } else if (b.empty()) {
    std::memcpy(out, a_data, a_bytes);
  } else if (is_summed_on_the_way(call)) {
    const void* const inputs[] = {a.begin < b.begin ? a_data : b_data, a.begin < b.begin ? b_data : a_data};
    void* const sum = out;
    raw::combine({.inputs = inputs, .outputs = {&sum, 1}, .dtype = call.dtype, .op = combine_op(call.op)}, 0,
                 static_cast<std::int64_t>(a_bytes / item_size(call.dtype)));
  } else {
    const bool a_first = a.begin < b.begin;
    std::memcpy(out + (a_first ? 0 : b_bytes), a_data, a_bytes);
    std::memcpy(out + (a_first ? a_bytes : 0), b_data, b_bytes);
  }
}

}  // namespace

// --- headers --------------------------------------------------------------------------------------------------------

Header header_of(const Call& call) {
  Header header{.tag = call.tag, .signature = signature_of(call), .count = call.count};
  if (call.is_message()) return header;  // the tensors' shapes may differ
  header.tag = static_cast<std::int32_t>(call.failed_steps);
  header.number = call.number;
  header.detail = call.detail;
  header.purpose = call.purpose;
  return header;
}

void MessageGroup::check_header(const Call& call, int peer, const Header& got) {
  const Header own = header_of(call);
  if (std::memcmp(&own, &got, sizeof(Header)) == 0) return;
  const bool transfer = call.kind == Kind::kRecv;
  if (!transfer && got.magic == Header::kMagic && got.tag != own.tag)
    throw StepFailed{got.tag > own.tag ? peer : rank_};
  const auto text = [&](const Header& header) {
    if (header.magic != Header::kMagic) return std::string("something else");
    const std::string called = call_text(header.signature, static_cast<std::uint64_t>(header.count), header.purpose);
    return called + (transfer ? fmt::format(" with tag {}", header.tag) : "");
  };
  const bool same_text = text(own) == text(got);
  throw Disagreement{peer, fmt::format("{} {} {}, {} {} {}{}", text_of(rank_), transfer ? "expects" : "called",
                                       text(own), text_of(peer), transfer ? "sent" : "called", text(got),
                                       !same_text                 ? ""
                                       : own.number != got.number ? fmt::format(" as its operation #{}", got.number)
                                                                  : ", of another shape, scale, name or id")};
}

// Receives and checks the next header from a rank; false if it has not arrived yet.
bool MessageGroup::receive_header(MessageWork& work, PostedHeaders& posted, Deadline* deadline) {
  const PostedHeaders::Slot& slot = posted.slots.front();
  if (!slot.request) throw PeerLost{posted.peer, "it left before", false};
  if (!finish(work, *slot.request, deadline)) return false;
  Header header;
  std::memcpy(&header, slot.memory.data(), sizeof(header));
  check_header(work.call, posted.peer, header);
  return true;
}

// --- the exchange ---------------------------------------------------------------------------------------------------

bool MessageGroup::is_small(const Call& call) const {
  if (call.is_message()) return call.bytes() <= transfer_bytes_;
  return bytes_of(call, rounds_.back().held_after, size_) <= kExchangedBytes;  // the largest message is the last one
}

// Composes this rank's message of the first round, and sends it if the rank does not receive one before.
void MessageGroup::start_exchange(MessageWork& work) {
  const Call& call = work.call;
  const std::size_t bytes = is_small(call) ? part_bytes(call, rank_, size_) : 0;
  std::vector<std::byte>& message = work.messages.emplace_back(sizeof(Header) + bytes);
  const Header header = header_of(call);
  std::memcpy(message.data(), &header, sizeof(header));
  if (bytes > 0) std::memcpy(message.data() + sizeof(header), call.in.raw_data(), bytes);
  send_round(work);
}

void MessageGroup::send_round(MessageWork& work) {
  const int to = rounds_[work.round].to;
  const std::vector<std::byte>& message = work.messages.back();
  work.rounds_sent = work.round + 1;
  if (to >= 0) work.last.push_back(transport_->send(to, Channel::kHeaders, message.data(), message.size()));
}

// Advances the exchange as far as possible; false if a message has not arrived yet.
bool MessageGroup::exchange(MessageWork& work, Deadline* deadline) {
  for (; work.round < rounds_.size(); ++work.round) {
    if (work.rounds_sent == work.round) send_round(work);
    const Round& round = rounds_[work.round];
    if (round.from < 0) continue;
    PostedHeaders& posted = headers_[static_cast<std::size_t>(round.from)];
    if (!receive_header(work, posted, deadline)) return false;
    merge_message(work, round, posted.slots.front().memory);
    recycle(posted);
  }
  return true;
}

// Composes the message of the next round from this one's and the received one.
void MessageGroup::merge_message(MessageWork& work, const Round& round, const std::vector<std::byte>& received) {
  const Call& call = work.call;
  const std::size_t bytes = is_small(call) ? bytes_of(call, round.held_after, size_) : 0;
  if (bytes == 0) return;  // the same header
  std::vector<std::byte> merged(sizeof(Header) + bytes);
  const std::byte* own = work.messages.back().data();
  const std::byte* other = received.data() + sizeof(Header);
  std::byte* out = merged.data();
  std::memcpy(out, own, sizeof(Header));
  own += sizeof(Header), out += sizeof(Header);
  for (RankRange HeldParts::*const each : {&HeldParts::low, &HeldParts::high}) {
    merge(call, round.held.*each, own, round.received.*each, other, size_, out);
    own += bytes_of(call, round.held.*each, size_);
    other += bytes_of(call, round.received.*each, size_);
    out += bytes_of(call, round.held_after.*each, size_);
  }
  work.messages.push_back(std::move(merged));
}

// Completes a small collective from the parts of all ranks.
void MessageGroup::finish_small(const MessageWork& work) {
  const Call& call = work.call;
  if (!call.receives(rank_)) return;
  const std::byte* const parts = work.messages.back().data() + sizeof(Header);
  const std::size_t own_part = call.flow().in_parts ? static_cast<std::size_t>(rank_) * call.bytes() : 0;
  const auto part_of = [&](int rank) { return parts + bytes_of(call, RankRange{0, rank}, size_) + own_part; };
  if (!call.flow().reduces) {
    for (int r = 0; r < size_; ++r) {
      if (std::byte* const place = place_from(call, r)) std::memcpy(place, part_of(r), call.bytes());
    }
    return;
  }
  SmallVector<const void*, 8> inputs;
  if (is_summed_on_the_way(call)) {
    const HeldParts& all = rounds_.back().held_after;
    inputs.push_back(parts + own_part);
    if (!all.high.empty()) inputs.push_back(parts + bytes_of(call, all.low, size_) + own_part);
  } else {
    for (int r = 0; r < size_; ++r) inputs.push_back(part_of(r));
  }
  void* const out = call.out.raw_data();
  combine(call, {inputs.begin(), inputs.size()}, {&out, 1}, 0, call.count);
}

}  // namespace lockstep::parallel
