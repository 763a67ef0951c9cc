#include "lockstep/data/inflate_internal.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/base/check_internal.h"

namespace lockstep::data {
namespace {

constexpr int kGzipWindow = 15 + 16;  // zlib's codes: 32 KiB of history, plus 16 for the gzip wrapper
constexpr int kBareWindow = -15;      // negative for no wrapper

uInt zlib_count(std::size_t count) {
  return static_cast<uInt>(std::min<std::size_t>(count, std::numeric_limits<uInt>::max()));
}

}  // namespace

bool is_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

Inflater::Inflater(std::span<const std::byte> compressed, Compression compression, std::string name)
    : compressed_(compressed), left_(compressed), compression_(compression), name_(std::move(name)) {
  const int result = inflateInit2(&stream_, compression == Compression::kGzip ? kGzipWindow : kBareWindow);
  LOCKSTEP_CHECK_IO(result == Z_OK, "{}: zlib cannot start: {}", name_, zError(result));
}

Inflater::~Inflater() { inflateEnd(&stream_); }

void Inflater::rewind() {
  inflateReset(&stream_);
  left_ = compressed_;
  ended_ = false;
}

std::size_t Inflater::read(std::span<std::byte> out) {
  std::size_t done = 0;
  while (done < out.size() && !ended_) {
    const uInt offered = zlib_count(left_.size()), wanted = zlib_count(out.size() - done);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(left_.data()));
    stream_.avail_in = offered;
    stream_.next_out = reinterpret_cast<Bytef*>(out.data() + done);
    stream_.avail_out = wanted;
    const int result = inflate(&stream_, Z_NO_FLUSH);
    const std::size_t consumed = offered - stream_.avail_in, produced = wanted - stream_.avail_out;
    left_ = left_.subspan(consumed);
    done += produced;
    if (result == Z_STREAM_END) {
      ended_ = !next_member();
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      fail(stream_.msg ? stream_.msg : zError(result));
    } else if (consumed == 0 && produced == 0) {
      fail("the compressed data end too early");
    }
  }
  return done;
}

// gzip files may be joined end to end, and padded with zeros (as tapes and block devices do); anything else after the end
// is an error.
bool Inflater::next_member() {
  const bool is_padding = std::ranges::all_of(left_, [](std::byte value) { return value == std::byte{0}; });
  if (left_.empty() || (compression_ == Compression::kGzip && is_padding)) return false;
  if (compression_ != Compression::kGzip || !is_gzip(left_)) fail("something follows the compressed data");
  inflateReset(&stream_);
  return true;
}

void Inflater::fail(const char* what) const {
  throw IoError(fmt::format("{}: damaged compressed data: {}", name_, what));
}

}  // namespace lockstep::data
