// PNG files by libpng (https://www.libpng.org/pub/png/libpng-manual.txt).
#include <png.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/data/codecs/codec_internal.h"

namespace lockstep::data::codecs {
namespace {

struct PngSource {
  const std::byte* next;
  std::size_t left;
};

extern "C" {
void png_fail(png_structp png, png_const_charp message) {
  auto& error = *static_cast<ErrorState*>(png_get_error_ptr(png));
  std::strncpy(error.message, message, sizeof(error.message) - 1);
  std::longjmp(error.jump, 1);
}
void png_ignore(png_structp, png_const_charp) {}
void png_read(png_structp png, png_bytep out, std::size_t count) {
  auto& source = *static_cast<PngSource*>(png_get_io_ptr(png));
  if (count > source.left) png_error(png, "the file ends early");
  std::memcpy(out, source.next, count);
  source.next += count;
  source.left -= count;
}
}

struct PngState {
  explicit PngState(ErrorState* error)
      : png(png_create_read_struct(PNG_LIBPNG_VER_STRING, error, png_fail, png_ignore)),
        info(png ? png_create_info_struct(png) : nullptr) {}
  ~PngState() { png_destroy_read_struct(&png, &info, nullptr); }
  PngState(const PngState&) = delete;
  PngState& operator=(const PngState&) = delete;

  png_structp png;
  png_infop info;
};

class PngReader {
 public:
  PngReader(std::span<const std::byte> bytes, const std::string& name)
      : name_(name), source_{bytes.data(), bytes.size()}, state_(&error_), png_(state_.png), info_(state_.info) {
    LOCKSTEP_CHECK_IO(info_, "{}: libpng cannot start: no memory, or not the version of its header", name_);
  }

  // Reads the chunks before the pixels. Chunks that do not change the pixels are not stored.
  ImageSize read_header() {
    run([&] {
      png_set_read_fn(png_, &source_, png_read);
      png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
      png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
      png_read_info(png_, info_);
    });
    const ImageSize size = {png_get_image_width(png_, info_), png_get_image_height(png_, info_)};
    LOCKSTEP_CHECK_IO(std::max(size.width, size.height) <= limits::kPngSide,
                      "{}: {} x {} pixels; a side of at most {} is read", name_, size.width, size.height,
                      limits::kPngSide);
    return size;
  }
  // The bytes of a row in the file, before compression.
  std::size_t row_bytes() const { return png_get_rowbytes(png_, info_); }

  // Chooses the conversions, and returns the number of channels. torchvision chooses the same (decode_png.cpp).
  std::int64_t convert(ImageReadMode mode) {
    const int type = png_get_color_type(png_, info_);
    const bool has_color = (type & PNG_COLOR_MASK_COLOR) != 0;
    const bool has_alpha = (type & PNG_COLOR_MASK_ALPHA) != 0 || png_get_valid(png_, info_, PNG_INFO_tRNS) != 0;
    const bool keeps = mode == ImageReadMode::kUnchanged;
    const bool wants_color = keeps ? has_color : mode >= ImageReadMode::kRgb;
    const bool wants_alpha = keeps ? has_alpha : mode == ImageReadMode::kGrayAlpha || mode == ImageReadMode::kRgbAlpha;
    run([&] {
      png_set_expand(png_);    // palette to RGB, 1, 2 and 4 bits to 8, transparent colours to alpha
      png_set_scale_16(png_);  // v * 255 / 65535, rounded
      if (has_alpha && !wants_alpha) png_set_strip_alpha(png_);
      if (!has_alpha && wants_alpha) png_set_add_alpha(png_, 0xffff, PNG_FILLER_AFTER);
      if (has_color && !wants_color) png_set_rgb_to_gray(png_, PNG_ERROR_ACTION_NONE, 0.2989, 0.587);
      if (!has_color && wants_color) png_set_gray_to_rgb(png_);
      png_read_update_info(png_, info_);
    });
    return (wants_color ? 3 : 1) + (wants_alpha ? 1 : 0);
  }

  // Reads the pixels and the rest of the file. The passes of an interlaced image are read one by one, which needs the
  // memory of one row only.
  void read(const Planes& planes, std::int64_t channels) {
    const png_uint_32 width = png_get_image_width(png_, info_), height = png_get_image_height(png_, info_);
    std::vector<std::uint8_t> row(png_get_rowbytes(png_, info_));
    LOCKSTEP_CHECK_IO(row.size() == static_cast<std::size_t>(width * channels),
                      "{}: libpng makes rows of {} bytes, expected {} x {}", name_, row.size(), width, channels);
    const bool is_interlaced = png_get_interlace_type(png_, info_) == PNG_INTERLACE_ADAM7;
    run([&] {
      for (int pass = 0; pass < (is_interlaced ? PNG_INTERLACE_ADAM7_PASSES : 1); ++pass) {
        const png_uint_32 rows = is_interlaced ? PNG_PASS_ROWS(height, pass) : height;
        const std::int64_t first = is_interlaced ? PNG_PASS_START_COL(pass) : 0;
        const std::int64_t step = is_interlaced ? PNG_PASS_COL_OFFSET(pass) : 1;
        if (first >= width) continue;  // no pixel of a narrow image is in this pass
        for (png_uint_32 i = 0; i < rows; ++i) {
          png_read_row(png_, row.data(), nullptr);
          planes.write(is_interlaced ? PNG_ROW_FROM_PASS_ROW(i, pass) : i, first, step, row.data(), channels);
        }
      }
      png_read_end(png_, nullptr);
    });
  }

 private:
  template <class Body>
  void run(const Body& body) {
    if (!runs(error_, body)) throw IoError(fmt::format("{}: damaged PNG image: {}", name_, error_.message));
  }

  const std::string& name_;
  PngSource source_;
  ErrorState error_;
  PngState state_;
  png_structp png_;
  png_infop info_;
};

}  // namespace
}  // namespace lockstep::data::codecs

extern "C" void lockstep_decode_png(std::span<const std::byte> bytes, const lockstep::data::ImageOptions& options,
                                    const std::string& name, lockstep::Tensor& image) {
  using namespace lockstep::data::codecs;
  PngReader reader(bytes, name);
  const ImageSize size = reader.read_header();
  const double raw_bytes = static_cast<double>(reader.row_bytes()) * static_cast<double>(size.height);
  check_size(size, raw_bytes / lockstep::limits::kDeflateRatio, bytes, options, name);
  const std::int64_t channels = reader.convert(options.mode);
  const Planes planes(channels, size);
  reader.read(planes, channels);
  image = planes.tensor();
}
