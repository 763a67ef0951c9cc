// Decoding of PNG and JPEG files. golden/image_files holds files, and what torchvision makes of them.
#include "lockstep/data/images.h"

#include <map>

#include "../support/peak_memory.h"
#include "image_bytes.h"
#include "support.h"

using ls::data::ImageReadMode;

namespace {

const std::pair<const char*, ImageReadMode> kModes[] = {{"unchanged", ImageReadMode::kUnchanged},
                                                        {"gray", ImageReadMode::kGray},
                                                        {"gray_alpha", ImageReadMode::kGrayAlpha},
                                                        {"rgb", ImageReadMode::kRgb},
                                                        {"rgb_alpha", ImageReadMode::kRgbAlpha}};

ls::Tensor decode(const std::string& file, ImageReadMode mode = ImageReadMode::kUnchanged) {
  return ls::data::decode_image(bytes_of(file), {.mode = mode}, "image");
}
std::string decode_error(const std::string& file) {
  return error_of<ls::IoError>([&] { decode(file); });
}
std::vector<int> values(const ls::Tensor& image) { return image.to_vector<int>(); }

// The files of golden/image_files by name.
std::map<std::string, std::string> files() {
  std::map<std::string, std::string> found;
  for (const auto& [name, x] : golden("image_files")) {
    if (!name.ends_with("/file")) continue;
    const std::vector<int> bytes = x.to_vector<int>();
    found[name.substr(0, name.size() - 5)] = std::string(bytes.begin(), bytes.end());
  }
  return found;
}

}  // namespace

TEST_CASE("images have the pixels that torchvision decodes, in every mode") {
  const ls::StateDict dict = golden("image_files");
  const auto every_file = files();
  int compared = 0;
  for (const auto& [name, want] : dict) {
    const std::string file = name.substr(0, name.find('/')), label = name.substr(file.size() + 1);
    for (const auto& [mode_name, mode] : kModes) {
      if (label != mode_name) continue;
      check_close(decode(every_file.at(file), mode), want, name, {});
      ++compared;
    }
  }
  CHECK(compared == 103);
}

TEST_CASE("16 bits, transparent colours, palettes and gamma follow the documented rules") {
  const std::string rows = std::string("\0\x00\xff\xff\xff\x05\x00\x7f\x7f", 9);  // four values of 16 bits
  CHECK(values(decode(png_file(4, 1, 16, 0, rows))) == std::vector<int>{1, 255, 5, 127});
  CHECK(values(decode(png_file(1, 1, 16, 6, rows))) == std::vector<int>{1, 255, 5, 127});
  CHECK(decode(png_file(2, 1, 16, 4, rows)).shape() == ls::Shape{2, 1, 2});
  CHECK(values(decode(png_file(2, 1, 16, 4, rows), ImageReadMode::kGray)) == std::vector<int>{1, 5});
  CHECK(values(decode(png_file(4, 1, 16, 0, rows), ImageReadMode::kGrayAlpha)) ==
        std::vector<int>{1, 255, 5, 127, 255, 255, 255, 255});

  const std::string gray("\0\x10\x20", 3), transparent = png_chunk("tRNS", std::string("\0\x20", 2));
  CHECK(values(decode(png_file(2, 1, 8, 0, gray, transparent))) == std::vector<int>{0x10, 0x20, 255, 0});
  CHECK(values(decode(png_file(2, 1, 8, 0, gray, transparent), ImageReadMode::kGray)) == std::vector<int>{0x10, 0x20});
  const std::string colors = png_chunk("PLTE", "\x01\x02\x03\x04\x05\x06"), indices("\0\x40", 2);
  CHECK(values(decode(png_file(2, 1, 1, 3, indices, colors))) == std::vector<int>{1, 4, 2, 5, 3, 6});
  CHECK(values(decode(png_file(2, 1, 1, 3, indices, colors + png_chunk("tRNS", "\x09")))) ==
        std::vector<int>{1, 4, 2, 5, 3, 6, 9, 255});
  const std::string gamma = png_chunk("gAMA", big(100000, 4)), color = std::string("\0\x0a\x64\xc8", 4);
  for (const auto& [name, mode] : kModes) {
    const std::string label = name;
    INFO(label);
    CHECK(same_bits(decode(png_file(1, 1, 8, 2, color, gamma), mode), decode(png_file(1, 1, 8, 2, color), mode)));
  }
}

TEST_CASE("JPEG images get an opaque alpha channel, and CMYK becomes RGB") {
  for (const auto& [name, file] : files()) {
    if (!name.starts_with("jpeg")) continue;
    const std::string label = name;
    INFO(label);
    for (const bool is_gray : {false, true}) {
      const ls::Tensor plain = decode(file, is_gray ? ImageReadMode::kGray : ImageReadMode::kRgb);
      const ls::Tensor alpha = decode(file, is_gray ? ImageReadMode::kGrayAlpha : ImageReadMode::kRgbAlpha);
      const std::int64_t channels = plain.size(0);
      REQUIRE(alpha.size(0) == channels + 1);
      CHECK(same_bits(alpha.narrow(0, 0, channels), plain));
      CHECK(ls::equal(alpha[channels], ls::full_like(alpha[channels], 255)));
    }
    if (name == "jpeg_cmyk") CHECK(same_bits(decode(file), decode(file, ImageReadMode::kRgb)));
  }
}

TEST_CASE("read_image reads what decode_image decodes, and names the file in errors") {
  const std::string file = png_of_color(3, 2, 1, 2, 3);
  CHECK(same_bits(ls::data::read_image(write_file("color.png", file)), decode(file)));
  CHECK(ls::data::read_image("color.png", {.mode = ImageReadMode::kGray}).shape() == ls::Shape{1, 2, 3});
  const auto error = [](const std::string& path) { return error_of<ls::IoError>([&] { ls::data::read_image(path); }); };
  CHECK(contains(error("nowhere.png"), "nowhere.png: cannot open"));
  CHECK(contains(error("."), ".: is a directory"));
  CHECK(contains(error(write_file("empty.png", "")), "empty.png: expected a PNG or JPEG image, found 0 bytes"));
  CHECK(contains(error(write_file("short.png", file.substr(0, 60))),
                 "short.png: damaged PNG image: the file ends early"));
  CHECK(contains(decode_error("GIF89a\1\1"), "found 8 bytes that begin with \"GIF89a"));
  CHECK(contains(error_of([&] { ls::data::decode_image(bytes_of(file), {.max_pixels = 0}); }), ".max_pixels is 0"));
}

TEST_CASE("every incomplete file is an error") {
  for (const auto& [name, file] : files()) {
    for (std::size_t size = 0; size < file.size(); ++size) {
      const std::string found = decode_error(file.substr(0, size));
      if (!found.starts_with("image: ")) FAIL_CHECK(name << " cut to " << size << ": " << found);
    }
  }
}

TEST_CASE("a changed byte gives an error or an image of bounded size") {
  const PeakMemory memory;
  int errors = 0, images = 0;
  for (const auto& [name, file] : files()) {
    for (std::size_t at = 0; at < file.size(); at += LOCKSTEP_SLOWDOWN) {
      for (const int change : {0x01, 0x80, 0xff}) {
        std::string changed = file;
        changed[at] = static_cast<char>(changed[at] ^ change);
        try {
          static_cast<void>(decode(changed));
          ++images;
        } catch (const ls::IoError&) {
          ++errors;
        }
      }
    }
  }
  CHECK(errors > 1000 / LOCKSTEP_SLOWDOWN);
  CHECK(images > 100 / LOCKSTEP_SLOWDOWN);
  CHECK(memory.bytes() < 64 << 20);
}

TEST_CASE("sizes that a file cannot hold are errors before memory is allocated") {
  const PeakMemory memory;
  const std::string rows("\0\1\2\3", 4);
  const auto png_error = [&](std::uint32_t width, std::uint32_t height) {
    return decode_error(png_file(width, height, 8, 2, rows));
  };
  CHECK(contains(png_error(0, 1), "damaged PNG image: "));
  CHECK(contains(png_error(1, 0), "damaged PNG image: "));
  CHECK(contains(png_error(0xffffffff, 1), "damaged PNG image: "));
  CHECK(contains(png_error(0x7fffffff, 1), "2147483647 x 1 pixels; a side of at most 1000000 is read"));
  CHECK(contains(png_error(1'000'000, 1'000'000), "more than .max_pixels = 178956970"));
  CHECK(contains(png_error(10'000, 10'000), "cannot hold 10000 x 10000 pixels"));
  CHECK(contains(png_error(1, 2), "damaged PNG image: "));

  CHECK(contains(decode_error(jpeg_of_scans(0, 8, 0)), "damaged JPEG image: "));
  CHECK(contains(decode_error(jpeg_of_scans(8, 0, 0)), "damaged JPEG image: "));
  std::string jpeg = jpeg_of_scans(8, 8, 3);
  CHECK(values(decode(jpeg)) == std::vector<int>(192, 128));
  const std::size_t size = jpeg.find("\xff\xc0") + 5;
  jpeg.replace(size, 4, big(10'000, 2) + big(10'000, 2));
  CHECK(contains(decode_error(jpeg), "cannot hold 10000 x 10000 pixels"));
  jpeg.replace(size, 4, big(65'500, 2) + big(65'500, 2));
  CHECK(contains(decode_error(jpeg), "more than .max_pixels"));
  jpeg.replace(size, 4, big(65'535, 2) + big(65'535, 2));
  CHECK(contains(decode_error(jpeg), "damaged JPEG image: "));
  CHECK(memory.bytes() < 8 << 20);

  const std::string small = png_of_color(4, 3, 1, 2, 3);
  CHECK(ls::data::decode_image(bytes_of(small), {.max_pixels = 12}).numel() == 36);
  CHECK(contains(error_of<ls::IoError>([&] { ls::data::decode_image(bytes_of(small), {.max_pixels = 11}); }),
                 "decode_image: 4 x 3 pixels, more than .max_pixels = 11"));
}

TEST_CASE("a JPEG image of many scans and one with arithmetic coding are errors") {
  CHECK(decode(jpeg_of_scans(20, 9, 99)).shape() == ls::Shape{3, 9, 20});
  CHECK(contains(decode_error(jpeg_of_scans(20, 9, 120)), "more than 100 scans"));
  CHECK(contains(decode_error(jpeg_of_scans(8, 8, 3, 0xc9)), "arithmetic coding"));
  CHECK(contains(decode_error(jpeg_of_scans(8, 8, 3, 0xc3)), "damaged JPEG image: "));  // lossless
}

TEST_CASE("chunks that do not change the pixels take no memory") {
  std::string many;
  for (int i = 0; i < 2000; ++i) many += png_chunk("tEXt", "a" + std::string(1, '\0') + std::string(10'000, 'b'));
  const std::string file = png_file(1, 1, 8, 0, std::string("\0\7", 2), many);
  const PeakMemory memory;
  CHECK(values(decode(file)) == std::vector<int>{7});
  CHECK(memory.bytes() < 1 << 20);
}
