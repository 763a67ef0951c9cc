#include "lockstep/data/inflate_internal.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/tensor/check_internal.h"

namespace lockstep::data {
namespace {

constexpr int kGzipWindow = 15 + 16;  // zlib's codes: 32 KiB of history, plus 16 for the gzip wrapper
constexpr int kBareWindow = -15;      // negative for no wrapper

uInt zlib_count(std::size_t count) {
  return static_cast<uInt>(std::min<std::size_t>(count, std::numeric_limits<uInt>::max()));
}

}  // namespace

struct Inflater::Stream {
  z_stream z = {};
  std::span<const std::byte> input;
  Compression compression;
  bool ended = false;
};

bool is_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

Inflater::Inflater(std::span<const std::byte> compressed, Compression compression, std::string name)
    : stream_(std::make_unique<Stream>()), name_(std::move(name)) {
  stream_->input = compressed;
  stream_->compression = compression;
  const int result = inflateInit2(&stream_->z, compression == Compression::kGzip ? kGzipWindow : kBareWindow);
  LOCKSTEP_CHECK_IO(result == Z_OK, "{}: zlib cannot start: {}", name_, zError(result));
}

Inflater::~Inflater() { inflateEnd(&stream_->z); }

std::size_t Inflater::read(std::span<std::byte> out) {
  z_stream& z = stream_->z;
  std::size_t done = 0;
  while (done < out.size() && !stream_->ended) {
    const uInt offered = zlib_count(stream_->input.size()), wanted = zlib_count(out.size() - done);
    z.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(stream_->input.data()));
    z.avail_in = offered;
    z.next_out = reinterpret_cast<Bytef*>(out.data() + done);
    z.avail_out = wanted;
    const int result = inflate(&z, Z_NO_FLUSH);
    const std::size_t consumed = offered - z.avail_in, produced = wanted - z.avail_out;
    stream_->input = stream_->input.subspan(consumed);
    done += produced;
    if (result == Z_STREAM_END) {
      stream_->ended = !next_member();
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      fail(z.msg ? z.msg : zError(result));
    } else if (consumed == 0 && produced == 0) {
      fail("the compressed data end too early");
    }
  }
  return done;
}

// gzip files may be joined end to end; anything else after the end is an error.
bool Inflater::next_member() {
  if (stream_->input.empty()) return false;
  if (stream_->compression != Compression::kGzip || !is_gzip(stream_->input))
    fail("something follows the compressed data");
  inflateReset(&stream_->z);
  return true;
}

void Inflater::fail(const char* what) const {
  throw IoError(fmt::format("{}: damaged compressed data: {}", name_, what));
}

}  // namespace lockstep::data
