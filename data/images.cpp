#include "lockstep/data/images.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/file_internal.h"
#include "lockstep/base/modules_internal.h"
#include "lockstep/data/codecs/codec_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

#if LOCKSTEP_LINKS_PNG
extern "C" lockstep::data::ImageDecoder lockstep_decode_png;
#endif
#if LOCKSTEP_LINKS_JPEG
extern "C" lockstep::data::ImageDecoder lockstep_decode_jpeg;
#endif

namespace lockstep::data {
namespace {

struct Codec {
  const char* name;
  const char* package;
  std::string_view magic;                // the first bytes of a file
  std::atomic<ImageDecoder*> decoder{};  // null: the module is not open yet
};
// A static library links the modules.
constinit Codec codecs_known[] = {
#if LOCKSTEP_LINKS_PNG
    {"png", "libpng-dev", "\x89PNG\r\n\x1a\n", lockstep_decode_png},
#else
    {"png", "libpng-dev", "\x89PNG\r\n\x1a\n"},
#endif
#if LOCKSTEP_LINKS_JPEG
    {"jpeg", "libjpeg-dev", "\xff\xd8\xff", lockstep_decode_jpeg},
#else
    {"jpeg", "libjpeg-dev", "\xff\xd8\xff"},
#endif
};

ImageDecoder* decoder_of(Codec& codec, const std::string& name) {
  if (ImageDecoder* const open = codec.decoder) return open;
  std::string why;
  void* const entry = open_module(codec.name, fmt::format("lockstep_decode_{}", codec.name), why);
  if (!entry) {
    throw NotBuilt(
        fmt::format("{}: a {} image; its decoder is the module {}, {}\n"
                    "Install {}, then configure and build Lockstep again",
                    name, codec.name, module_file(codec.name),
                    why.empty() ? "which does not exist" : "which cannot be opened: " + why, codec.package));
  }
  return codec.decoder = reinterpret_cast<ImageDecoder*>(entry);
}

}  // namespace

Tensor decode_image(std::span<const std::byte> bytes, const ImageOptions& options, const std::string& name) {
  LOCKSTEP_CHECK(options.max_pixels > 0, "decode_image: .max_pixels is {}, expected a positive number",
                 options.max_pixels);
  LOCKSTEP_CHECK(options.mode <= ImageReadMode::kRgbAlpha, "decode_image: .mode is {}, which is no ImageReadMode",
                 static_cast<int>(options.mode));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (Codec& codec : codecs_known) {
    if (!text.starts_with(codec.magic)) continue;
    Tensor image;
    decoder_of(codec, name)(bytes, options, name, image);
    return image;
  }
  throw IoError(fmt::format("{}: expected a PNG or JPEG image, found {} bytes that begin with {}", name, bytes.size(),
                            in_quotes(text.substr(0, 8))));
}

Tensor read_image(const std::string& path, const ImageOptions& options) {
  return decode_image(read_file(path, limits::kCompressedBytes), options, path);
}

namespace codecs {

void check_size(const ImageSize& size, double least, std::span<const std::byte> bytes, const ImageOptions& options,
                const std::string& name) {
  LOCKSTEP_CHECK_IO(size.width > 0 && size.height > 0, "{}: the image has no pixels: {} x {}", name, size.width,
                    size.height);
  LOCKSTEP_CHECK_IO(size.height <= options.max_pixels / size.width,
                    "{}: {} x {} pixels, more than .max_pixels = {}; set it higher if you trust the file", name,
                    size.width, size.height, options.max_pixels);
  LOCKSTEP_CHECK_IO(static_cast<double>(bytes.size()) >= least,
                    "{}: a file of {} bytes cannot hold {} x {} pixels: it is damaged or incomplete", name,
                    bytes.size(), size.width, size.height);
}

Planes::Planes(std::int64_t channels, const ImageSize& size)
    : tensor_(raw::full({channels, size.height, size.width}, 255, {.dtype = kUInt8})),
      data_(static_cast<std::uint8_t*>(tensor_.raw_data())), size_(size) {}

void Planes::write(std::int64_t y, std::int64_t first, std::int64_t step, const std::uint8_t* row,
                   std::int64_t channels) const {
  for (std::int64_t c = 0; c < channels; ++c) {
    std::uint8_t* const out = data_ + (c * size_.height + y) * size_.width;
    const std::uint8_t* in = row + c;
    for (std::int64_t x = first; x < size_.width; x += step, in += channels) out[x] = *in;
  }
}

}  // namespace codecs
}  // namespace lockstep::data
