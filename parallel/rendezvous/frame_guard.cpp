#include "lockstep/parallel/rendezvous/frame_guard_internal.h"

#include <algorithm>
#include <span>

#include "lockstep/parallel/rendezvous/store_frames_internal.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

void write_little(char* to, std::unsigned_integral auto value) {
  for (std::size_t i = 0; i < sizeof(value); ++i) to[i] = static_cast<char>(value >> (8 * i) & 0xff);
}

}  // namespace

FrameGuard::Forged::Forged()
    : CommError("store: a frame was altered or repeated on its way, or comes from somebody else") {}

void FrameGuard::seal(std::string& frame) {
  char number[sizeof(sent_)];
  write_little(number, sent_++);
  write_little(frame.data(), static_cast<std::uint32_t>(frame.size() - kFrameHeader + kTrailer));
  frame.append(number, sizeof(number));
  const Digest mac = out_({frame});
  frame.append(mac.data(), kMacBytes);
}

std::string_view FrameGuard::open(std::string_view bytes) {
  if (bytes.size() < kFrameHeader + kTrailer) throw Forged();
  const std::string_view guarded = bytes.substr(0, bytes.size() - kMacBytes), mac = bytes.substr(guarded.size());
  const std::string_view content = guarded.substr(0, guarded.size() - sizeof(received_));
  ByteReader number(std::as_bytes(std::span(guarded.substr(content.size()))), "store: frame");
  const Digest expected = in_({guarded});
  if (!same_secret(view(expected).substr(0, kMacBytes), mac)) throw Forged();
  if (number.little<std::uint64_t>("number") != received_) throw Forged();
  ++received_;
  return content.substr(kFrameHeader);
}

std::optional<std::string_view> first_opened(std::optional<FrameGuard>& guard, std::string_view bytes,
                                             std::size_t most) {
  const auto content = first_frame(bytes, most + (guard ? FrameGuard::kTrailer : 0));
  if (!content || !guard) return content;
  return guard->open(bytes.substr(0, kFrameHeader + content->size()));
}

}  // namespace lockstep::parallel
