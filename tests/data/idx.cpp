#include <zlib.h>

#include <bit>
#include <cstdlib>

#include "support.h"

using namespace ls::data;

namespace {

std::string big(std::uint32_t value) {
  std::string out;
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
  return out;
}

std::string idx(int type, const std::vector<std::uint32_t>& sizes, const std::string& data) {
  std::string out = {0, 0, static_cast<char>(type), static_cast<char>(sizes.size())};
  for (const std::uint32_t size : sizes) out += big(size);
  return out + data;
}

std::string gzip(const std::string& text) {
  z_stream z = {};
  REQUIRE(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&z, text.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&z, Z_FINISH) == Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

ls::Tensor parse(const std::string& bytes) { return parse_idx(bytes_of(bytes), "f.idx"); }
std::string io_error(const std::string& bytes) {
  return error_of<ls::IoError>([&] { parse(bytes); });
}

const std::string kSmall = idx(0x08, {2, 3}, {1, 2, 3, 4, 5, static_cast<char>(255)});

}  // namespace

TEST_CASE("IDX bytes are read as u8 in their shape, plain and gzip") {
  for (const std::string& file : {kSmall, gzip(kSmall)}) {
    const ls::Tensor t = parse(file);
    CHECK(t.shape() == ls::Shape{2, 3});
    CHECK(t.dtype() == ls::kUInt8);
    CHECK(t.to_vector<int>() == std::vector<int>{1, 2, 3, 4, 5, 255});
  }
}

TEST_CASE("every IDX type is read, big-endian") {
  using Doubles = std::vector<double>;
  const auto check = [](const std::string& file, ls::DType dtype, const Doubles& expected) {
    for (const std::string& bytes : {file, gzip(file)}) {
      const ls::Tensor t = parse(bytes);
      CHECK(t.dtype() == dtype);
      CHECK(t.to_vector<double>() == expected);
    }
  };
  check(idx(0x09, {2}, "\xff\x05"), ls::kInt32, {-1, 5});
  check(idx(0x0b, {2}, std::string("\xff\xfe\x01\x00", 4)), ls::kInt32, {-2, 256});
  check(idx(0x0c, {2}, big(static_cast<std::uint32_t>(-3)) + big(70000)), ls::kInt32, {-3, 70000});
  check(idx(0x0d, {2}, big(std::bit_cast<std::uint32_t>(1.5f)) + big(std::bit_cast<std::uint32_t>(-0.25f))),
        ls::kFloat32, {1.5, -0.25});
  const auto bits = std::bit_cast<std::uint64_t>(-2.75);
  check(idx(0x0e, {1}, big(static_cast<std::uint32_t>(bits >> 32)) + big(static_cast<std::uint32_t>(bits))),
        ls::kFloat64, {-2.75});
}

TEST_CASE("a long file of wider elements is converted completely") {
  std::string data;
  const std::uint32_t count = 50000;
  for (std::uint32_t i = 0; i < count; ++i) data += big(i);
  CHECK(ls::equal(parse(gzip(idx(0x0c, {count}, data))), ls::arange(50000).to(ls::kInt32)));
}

TEST_CASE("an empty array is valid") {
  CHECK(parse(idx(0x08, {0, 28, 28}, "")).shape() == ls::Shape{0, 28, 28});
  CHECK(parse(gzip(idx(0x0d, {5, 0}, ""))).shape() == ls::Shape{5, 0});
}

TEST_CASE("zeros after a gzip file are padding, anything else is an error") {
  for (const std::size_t zeros : {1, 511, 4096})
    CHECK(parse(gzip(kSmall) + std::string(zeros, '\0')).to_vector<int>() == parse(kSmall).to_vector<int>());
  for (const std::string& rest : {std::string("\0\0\1", 3), std::string("x"), std::string("\0\x1f\x8b", 3)})
    CHECK(contains(io_error(gzip(kSmall) + rest), "something follows the compressed data"));
}

TEST_CASE("a gzip file of several members is read as one file") {
  CHECK(parse(gzip(kSmall.substr(0, 7)) + gzip(kSmall.substr(7))).to_vector<int>() ==
        std::vector<int>{1, 2, 3, 4, 5, 255});
}

TEST_CASE("errors of IDX files name the fault and its offset") {
  CHECK(contains(io_error(""), "f.idx: byte 0: IDX magic: 2 bytes needed, 0 left"));
  CHECK(contains(io_error("\x7f"
                          "ELF1234"),
                 "not an IDX file"));
  CHECK(contains(io_error(idx(0x0a, {1}, "1")), "IDX type 0x0a"));
  CHECK(contains(io_error(idx(0x08, {}, "")), "0 dimensions"));
  CHECK(contains(io_error(idx(0x08, {1, 1, 1, 1, 1, 1, 1, 1, 1}, "1")), "9 dimensions"));
  CHECK(contains(io_error(kSmall.substr(0, 10)), "f.idx: byte 8: IDX size: 4 bytes needed, 2 left"));
  CHECK(contains(io_error(kSmall.substr(0, kSmall.size() - 1)),
                 "f.idx: byte 12: shape (2, 3) needs 6 bytes of data, the file has 5"));
  CHECK(contains(io_error(kSmall + "x"), "needs 6 bytes of data, the file has 7"));
}

TEST_CASE("sizes whose product overflows, or that no file could hold, are refused before memory is allocated") {
  const std::uint32_t huge = 0xffffffff;
  CHECK(contains(io_error(idx(0x0e, {huge, huge, huge}, "")), "is more than the"));
  CHECK(contains(io_error(idx(0x08, {0, huge, huge, huge}, "")), "is more than the"));
  CHECK(contains(io_error(idx(0x08, {huge, 17}, "")), "is more than the"));
  CHECK(contains(io_error(idx(0x08, {huge}, "abc")), "the file has 3"));
  CHECK(contains(io_error(gzip(idx(0x08, {huge}, "abc"))), "compressed bytes cannot give that"));
  CHECK(contains(io_error(gzip(idx(0x08, {20000}, "abc"))), "the file decompresses to 3"));
  CHECK(ls::allocator_stats().peak_bytes < (1 << 26));
}

TEST_CASE("a gzip file that inflates to more than its header says is refused") {
  CHECK(contains(io_error(gzip(kSmall + std::string(10000000, 'x'))), "the file decompresses to more"));
}

TEST_CASE("damaged gzip data are refused: truncated, changed, with a wrong checksum, with trailing bytes") {
  const std::string whole = gzip(idx(0x08, {100}, std::string(100, 'a')));
  for (std::size_t length = 2; length < whole.size(); ++length)
    CHECK(contains(io_error(whole.substr(0, length)), "f.idx: "));
  CHECK(contains(io_error(whole.substr(0, whole.size() - 1)), "the compressed data end too early"));
  std::string wrong = whole;
  wrong[whole.size() - 6] ^= 1;
  CHECK(contains(io_error(wrong), "incorrect data check"));
  CHECK(contains(io_error(whole + "junk"), "something follows the compressed data"));
}

TEST_CASE("an IDX file with any byte changed gives an array or an IoError") {
  for (const std::string& whole : {kSmall, gzip(kSmall)}) {
    for (std::size_t at = 0; at < whole.size(); ++at) {
      for (int byte = 0; byte < 256; ++byte) {
        std::string changed = whole;
        changed[at] = static_cast<char>(byte);
        try {
          parse(changed);
        } catch (const ls::IoError&) {
        }
      }
    }
  }
}

TEST_CASE("images are read as f32 between 0 and 1, labels as i64, from files") {
  write_file("images.idx", idx(0x08, {2, 1, 2}, {0, 51, static_cast<char>(255), 1}));
  write_file("labels.gz", gzip(idx(0x08, {2}, {7, 9})));
  const IdxDataset set("images.idx", "labels.gz");
  CHECK(set.size() == 2);
  const Example one = set.get(0);
  CHECK(one.input.shape() == ls::Shape{1, 2});
  CHECK(one.target.shape() == ls::Shape{});
  CHECK(one.target.item<int>() == 7);
  CHECK(one.target.dtype() == ls::kInt64);
  const Example batch = set.get_batch(Rows{1, 0, 1});
  CHECK(batch.input.shape() == ls::Shape{3, 1, 2});
  CHECK(batch.input.to_vector<float>() == std::vector<float>{1, 1 / 255.0f, 0, 51 / 255.0f, 1, 1 / 255.0f});
  CHECK(batch.target.to_vector<std::int64_t>() == Rows{9, 7, 9});
  const Example stacked = stack_examples(set.get_each(Rows{1, 0, 1}));
  CHECK(same_bits(stacked.input, batch.input));
  CHECK(same_bits(stacked.target, batch.target));
}

TEST_CASE("normalised pixels are (p / 255 - mean) / std") {
  const IdxDataset set(parse(idx(0x08, {1, 1, 2}, {0, static_cast<char>(255)})), parse(idx(0x08, {1}, "1")),
                       {.mean = 0.5, .std = 0.25});
  CHECK(set.get(0).input.to_vector<float>() == std::vector<float>{-2, 2});
}

TEST_CASE("images and labels that do not match are refused") {
  const ls::Tensor images = ls::zeros({2, 4, 4}, {.dtype = ls::kUInt8}), labels = ls::zeros({2}, {.dtype = ls::kInt32});
  CHECK(contains(error_of([&] { IdxDataset(images, labels.narrow(0, 0, 1)); }), "labels are (1) i32 cpu"));
  CHECK(contains(error_of([&] { IdxDataset(images.to(ls::kFloat32), labels); }), "images must be u8"));
  CHECK(contains(error_of([&] { IdxDataset(labels, images); }), "images must be u8"));
  CHECK(contains(error_of([&] { IdxDataset(images, labels.to(ls::kFloat32)); }), "labels must be integers"));
  CHECK(contains(error_of([&] { IdxDataset(images, labels, {.std = 0}); }), ".std is 0"));
  CHECK(contains(error_of([&] { IdxDataset(images, labels).get(2); }), "index 2 is outside [0, 2)"));
}
