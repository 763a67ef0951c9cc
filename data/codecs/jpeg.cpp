// JPEG files by libjpeg-turbo (libjpeg.txt in its documentation).
#include <cstdio>  // first: jpeglib.h needs FILE

#include <jpeglib.h>

#include <jerror.h>  // after jpeglib.h

#include <algorithm>
#include <cstring>
#include <vector>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/data/codecs/codec_internal.h"

namespace lockstep::data::codecs {
namespace {

struct JpegErrors {
  jpeg_error_mgr manager;  // first: libjpeg knows the address of this member only
  ErrorState state;
};

extern "C" {
[[noreturn]] void jpeg_fail(j_common_ptr jpeg) {
  auto& errors = *reinterpret_cast<JpegErrors*>(jpeg->err);
  static_assert(sizeof(errors.state.message) >= JMSG_LENGTH_MAX);
  errors.manager.format_message(jpeg, errors.state.message);
  std::longjmp(errors.state.jump, 1);
}
// Warnings (level -1) that mean lost pixels are errors; others, as of bytes between markers, are frequent and harmless.
void jpeg_warn(j_common_ptr jpeg, int level) {
  if (level >= 0) return;
  switch (jpeg->err->msg_code) {
    case JWRN_ARITH_BAD_CODE:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC:
    case JWRN_NOT_SEQUENTIAL:
      jpeg_fail(jpeg);
    default:
      break;
  }
}
void jpeg_print(j_common_ptr) {}
// A scan of a few bytes can cover the whole image, so the time would not be proportional to the size of the file.
void jpeg_count_scans(j_common_ptr jpeg) {
  if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number <= limits::kJpegScans) return;
  auto& state = reinterpret_cast<JpegErrors*>(jpeg->err)->state;
  std::snprintf(state.message, sizeof(state.message), "more than %d scans", limits::kJpegScans);
  std::longjmp(state.jump, 1);
}
}

// As Pillow and torchvision do: values are inverted, which is Adobe's convention, and R = K - K (255 - C) / 255.
void cmyk_to_rgb(const std::uint8_t* cmyk, std::uint8_t* rgb, std::int64_t pixels) {
  for (std::int64_t i = 0; i < pixels; ++i, cmyk += 4, rgb += 3) {
    const int black = cmyk[3];
    for (int c = 0; c < 3; ++c) {
      const int product = black * (255 - cmyk[c]) + 128;
      rgb[c] = static_cast<std::uint8_t>(std::max(black - (((product >> 8) + product) >> 8), 0));
    }
  }
}

// In place; the weights are Pillow's.
void rgb_to_gray(std::uint8_t* row, std::int64_t pixels) {
  for (std::int64_t i = 0; i < pixels; ++i) {
    const std::uint8_t* const rgb = row + 3 * i;
    row[i] = static_cast<std::uint8_t>((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
  }
}

struct JpegState : jpeg_decompress_struct {
  JpegState() : jpeg_decompress_struct{} {}
  ~JpegState() { jpeg_destroy_decompress(this); }
  JpegState(const JpegState&) = delete;
  JpegState& operator=(const JpegState&) = delete;
};

class JpegReader {
 public:
  JpegReader(std::span<const std::byte> bytes, const std::string& name) : name_(name) {
    jpeg_.err = jpeg_std_error(&errors_.manager);
    errors_.manager.error_exit = jpeg_fail;
    errors_.manager.emit_message = jpeg_warn;
    errors_.manager.output_message = jpeg_print;
    progress_.progress_monitor = jpeg_count_scans;
    run([&] {
      jpeg_create_decompress(&jpeg_);
      jpeg_.progress = &progress_;
      jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
      jpeg_read_header(&jpeg_, TRUE);
    });
  }

  ImageSize size() const { return {jpeg_.image_width, jpeg_.image_height}; }

  // The fewest bytes that the image can have: every block of 8 x 8 samples has a code of at least one bit.
  double least_bytes() const {
    LOCKSTEP_CHECK_IO(!jpeg_.arith_code, "{}: a JPEG image with arithmetic coding, which is not read; convert it",
                      name_);
    double blocks = 0;
    for (int i = 0; i < jpeg_.num_components; ++i)
      blocks += static_cast<double>(jpeg_.comp_info[i].width_in_blocks) * jpeg_.comp_info[i].height_in_blocks;
    return blocks / 8;
  }

  Tensor read(ImageReadMode mode) {
    const bool is_gray = jpeg_.jpeg_color_space == JCS_GRAYSCALE;
    const bool is_cmyk = jpeg_.jpeg_color_space == JCS_CMYK || jpeg_.jpeg_color_space == JCS_YCCK;
    LOCKSTEP_CHECK_IO(jpeg_.jpeg_color_space != JCS_UNKNOWN, "{}: a JPEG image of {} components; expected 1, 3 or 4",
                      name_, jpeg_.num_components);
    const bool wants_gray = mode == ImageReadMode::kUnchanged ? is_gray : mode < ImageReadMode::kRgb;
    const bool wants_alpha = mode == ImageReadMode::kGrayAlpha || mode == ImageReadMode::kRgbAlpha;
    jpeg_.out_color_space = is_cmyk ? JCS_CMYK : wants_gray ? JCS_GRAYSCALE : JCS_RGB;
    const std::int64_t channels = wants_gray ? 1 : 3, width = size().width;
    const Planes planes(channels + wants_alpha, size());
    std::vector<std::uint8_t> row(static_cast<std::size_t>(width * (is_cmyk ? 4 : channels)));
    std::vector<std::uint8_t> converted(static_cast<std::size_t>(is_cmyk ? 3 * width : 0));
    run([&] {
      jpeg_start_decompress(&jpeg_);
      while (jpeg_.output_scanline < jpeg_.output_height) {
        const std::int64_t y = jpeg_.output_scanline;
        JSAMPROW line = row.data();
        jpeg_read_scanlines(&jpeg_, &line, 1);
        if (is_cmyk) {
          cmyk_to_rgb(line, converted.data(), width);
          line = converted.data();
          if (wants_gray) rgb_to_gray(line, width);
        }
        planes.write(y, 0, 1, line, channels);
      }
      jpeg_finish_decompress(&jpeg_);
    });
    return planes.tensor();
  }

 private:
  template <class Body>
  void run(const Body& body) {
    if (!runs(errors_.state, body))
      throw IoError(fmt::format("{}: damaged JPEG image: {}", name_, errors_.state.message));
  }

  const std::string& name_;
  JpegErrors errors_ = {};
  jpeg_progress_mgr progress_ = {};
  JpegState jpeg_;
};

}  // namespace
}  // namespace lockstep::data::codecs

extern "C" void lockstep_decode_jpeg(std::span<const std::byte> bytes, const lockstep::data::ImageOptions& options,
                                     const std::string& name, lockstep::Tensor& image) {
  lockstep::data::codecs::JpegReader reader(bytes, name);
  check_size(reader.size(), reader.least_bytes(), bytes, options, name);
  image = reader.read(options.mode);
}
