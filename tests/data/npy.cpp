// NumPy's files. tests/fuzz/corpus/npy and npz hold files that NumPy wrote.
#include <zlib.h>

#include <filesystem>
#include <limits>

#include "lockstep/data/npy_internal.h"

#include "../support/files.h"
#include "../support/peak_memory.h"
#include "../support/testing.h"

namespace {

const std::string kCorpus = LOCKSTEP_GOLDEN_DIR "/../fuzz/corpus/";

std::string little(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> 8 * i & 0xff);
  return out;
}

std::string npy(const std::string& header, const std::string& data, char version = 1) {
  return std::string("\x93NUMPY") + version + '\0' + little(header.size(), version == 1 ? 2 : 4) + header + data;
}

std::string npy_of(const std::string& descr, const std::string& shape, const std::string& data,
                   const char* fortran = "False") {
  return npy("{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }\n", data);
}

ls::Tensor parse(const std::string& bytes) {
  return ls::data::parse_npy(ls::MemorySource(std::as_bytes(std::span(bytes)), "f.npy"));
}
ls::Tensor parse_npz(const std::string& bytes, const std::string& name = "") {
  return ls::data::parse_npz(ls::MemorySource(std::as_bytes(std::span(bytes)), "f.npz"), name);
}
std::string npy_error(const std::string& bytes) {
  return error_of<ls::IoError>([&] { parse(bytes); });
}
std::string npz_error(const std::string& bytes) {
  return error_of<ls::IoError>([&] { parse_npz(bytes, "x"); });
}

std::string file(const std::string& path) {
  REQUIRE(std::filesystem::exists(path));
  return content_of_file(path);
}

std::string deflate(const std::string& data) {
  z_stream z = {};
  REQUIRE(deflateInit2(&z, 1, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&z, data.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  z.avail_in = static_cast<uInt>(data.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  REQUIRE(::deflate(&z, Z_FINISH) == Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

std::uint32_t crc_of(const std::string& data) {
  return static_cast<std::uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(data.data()), data.size()));
}

// A zip archive of one stored file, with sizes and offset in a zip64 field if requested.
std::string zip(const std::string& name, const std::string& data, bool zip64 = false) {
  const std::uint32_t see64 = 0xffffffff;
  const std::uint32_t crc = crc_of(data);
  const std::string local = little(0x04034b50, 4) + little(20, 2) + little(0, 8) + little(crc, 4) +
                            little(data.size(), 4) + little(data.size(), 4) + little(name.size(), 2) + little(0, 2) +
                            name + data;
  const std::string extra = zip64 ? little(9, 2) + little(1, 2) + "z" + little(1, 2) + little(24, 2) +
                                        little(data.size(), 8) + little(data.size(), 8) + little(0, 8)
                                  : "";
  const std::uint64_t size = zip64 ? see64 : data.size();
  const std::string entry = little(0x02014b50, 4) + little(20, 2) + little(20, 2) + little(0, 8) + little(crc, 4) +
                            little(size, 4) + little(size, 4) + little(name.size(), 2) + little(extra.size(), 2) +
                            little(0, 2) + little(0, 8) + little(zip64 ? see64 : 0, 4) + name + extra;
  std::string end64;
  if (zip64) {
    end64 = little(0x06064b50, 4) + little(44, 8) + little(45, 2) + little(45, 2) + little(0, 8) + little(1, 8) +
            little(1, 8) + little(entry.size(), 8) + little(local.size(), 8);
    end64 += little(0x07064b50, 4) + little(0, 4) + little(local.size() + entry.size(), 8) + little(1, 4);
  }
  return local + entry + end64 + little(0x06054b50, 4) + little(0, 4) + little(zip64 ? 0xffff : 1, 2) +
         little(zip64 ? 0xffff : 1, 2) + little(zip64 ? see64 : entry.size(), 4) +
         little(zip64 ? see64 : local.size(), 4) + little(7, 2) + "comment";
}

// A zip archive of "x.npy", deflated, whose directory has the given size and checksum.
std::string deflated_zip(const std::string& deflated, std::uint64_t bytes, std::uint32_t crc) {
  const std::string sizes =
      little(crc, 4) + little(deflated.size(), 4) + little(bytes, 4) + little(5, 2) + little(0, 2);
  const std::string local =
      little(0x04034b50, 4) + little(20, 2) + little(0, 2) + little(8, 2) + little(0, 4) + sizes + "x.npy" + deflated;
  const std::string entry = little(0x02014b50, 4) + little(20, 2) + little(20, 2) + little(0, 2) + little(8, 2) +
                            little(0, 4) + sizes + little(0, 2) + little(0, 8) + little(0, 4) + "x.npy";
  return local + entry + little(0x06054b50, 4) + little(0, 4) + little(1, 2) + little(1, 2) + little(entry.size(), 4) +
         little(local.size(), 4) + little(0, 2);
}

const std::string kThree = npy_of("|u1", "(3,)", "\x01\x02\x03");

}  // namespace

TEST_CASE("arrays of every NumPy dtype that has a tensor dtype are read with NumPy's values") {
  struct Case {
    const char* name;
    ls::DType dtype;
    std::vector<double> expected;
  };
  const std::vector<double> with_sign{0, -1, 2, 3, 4, 100}, without{0, 1, 2, 3, 4, 100};
  for (const Case& c : std::vector<Case>{{"b1", ls::kBool, {0, 1, 1, 1, 1, 1}},
                                         {"u1", ls::kUInt8, without},
                                         {"i1", ls::kInt32, with_sign},
                                         {"i2", ls::kInt32, with_sign},
                                         {"u2", ls::kInt32, without},
                                         {"i4", ls::kInt32, with_sign},
                                         {"u4", ls::kInt64, without},
                                         {"i8", ls::kInt64, with_sign},
                                         {"u8", ls::kInt64, without},
                                         {"f2", ls::kFloat16, with_sign},
                                         {"f4", ls::kFloat32, with_sign},
                                         {"f8", ls::kFloat64, with_sign}}) {
    INFO(c.name);
    const ls::Tensor t = ls::load_npy(kCorpus + "npy/" + c.name);
    CHECK(t.shape() == ls::Shape{2, 3});
    CHECK(t.dtype() == c.dtype);
    CHECK(t.to_vector<double>() == c.expected);
  }
}

TEST_CASE("big-endian, Fortran order, 0-d, empty arrays and the later versions are read") {
  CHECK(ls::load_npy(kCorpus + "npy/big_endian").to_vector<float>() == std::vector<float>{1.5, -2});
  const ls::Tensor fortran = ls::load_npy(kCorpus + "npy/fortran");
  CHECK(fortran.shape() == ls::Shape{2, 3});
  CHECK(fortran.is_contiguous());
  CHECK(fortran.to_vector<double>() == std::vector<double>{0, 1, 2, 3, 4, 5});
  CHECK(ls::load_npy(kCorpus + "npy/scalar").item<float>() == 2.5f);
  CHECK(ls::load_npy(kCorpus + "npy/scalar").dim() == 0);
  CHECK(ls::load_npy(kCorpus + "npy/empty").shape() == ls::Shape{0, 3});
  CHECK(ls::load_npy(kCorpus + "npy/version2").to_vector<int>() == std::vector<int>{0, 1, 2});
  CHECK(ls::load_npy(kCorpus + "npy/version3").to_vector<int>() == std::vector<int>{0, 1, 2});
}

TEST_CASE("headers of Python 2 and with tabs are read") {
  const std::string data = little(1, 4) + little(2, 4);
  CHECK(parse(npy_of("<i4", "(2L, 1L)", data)).shape() == ls::Shape{2, 1});
  CHECK(parse(npy_of("<i4", "(2L,)", data)).shape() == ls::Shape{2});
  CHECK(parse(npy("{\t'descr':\t'<i4',\r\n'fortran_order':\tFalse, 'shape':\t(2,\t1), }\t\n", data)).shape() ==
        ls::Shape{2, 1});
  CHECK(contains(npy_error(npy_of("<i4", "(2LL,)", data)), "expected ','"));
  CHECK(contains(npy_error(npy_of("<i4", "(L,)", data)), "expected a size"));
}

TEST_CASE("save_npy writes the bytes of numpy.save, and load_npy reads them") {
  for (const char* name : {"b1", "u1", "i4", "i8", "f2", "f4", "f8", "scalar", "empty"}) {
    CAPTURE(name);
    ls::save_npy(ls::load_npy(kCorpus + "npy/" + name), "written.npy");
    CHECK(content_of_file("written.npy") == file(kCorpus + "npy/" + name));
  }
  const ls::Tensor x = ls::arange(24).reshape({2, 3, 4}).to(ls::kFloat32);
  for (const ls::Tensor& view :
       {x, x.transpose(0, 2), x.narrow(2, 1, 2), x.select(0, 1), x.flatten(), x.expand({2, 3, 4})}) {
    ls::save_npy(view, "view.npy");
    const ls::Tensor read = ls::load_npy("view.npy");
    CHECK(read.shape() == view.shape());
    CHECK(ls::equal(read, view));
  }
  const std::string before = content_of_file("view.npy");
  CHECK(error_of([] { ls::save_npy(ls::ones({2}, {.dtype = ls::kBFloat16}), "view.npy"); }) ==
        "save_npy: (2) bf16 cpu; NumPy has no bf16: convert it with to(kFloat32)");
  CHECK(content_of_file("view.npy") == before);
  CHECK(contains(error_of<ls::IoError>([] { ls::save_npy(ls::ones({1}), "no/such.npy"); }), "no/such.npy"));
}

TEST_CASE("objects, structures and complex numbers are refused with the reason") {
  CHECK(contains(error_of<ls::IoError>([] { ls::load_npy(kCorpus + "npy/objects"); }), "never unpickled"));
  CHECK(contains(error_of<ls::IoError>([] { ls::load_npy(kCorpus + "npy/structured"); }), "structured array"));
  CHECK(contains(error_of<ls::IoError>([] { ls::load_npy(kCorpus + "npy/complex"); }), "dtype \"<c8\" is not one of"));
}

TEST_CASE("a bool array of other bytes than 0 and 1 becomes proper bools") {
  const ls::Tensor t = parse(npy_of("|b1", "(3,)", std::string("\0\x02\xff", 3)));
  CHECK(static_cast<const std::uint8_t*>(t.raw_data())[1] == 1);
  CHECK(static_cast<const std::uint8_t*>(t.raw_data())[2] == 1);
}

TEST_CASE("a u64 value that i64 cannot hold is refused") {
  CHECK(parse(npy_of("<u8", "(1,)", little(std::numeric_limits<std::int64_t>::max(), 8))).item<std::int64_t>() ==
        std::numeric_limits<std::int64_t>::max());
  CHECK(contains(npy_error(npy_of("<u8", "(1,)", little(~std::uint64_t{0}, 8))),
                 "18446744073709551615 does not fit i64"));
}

TEST_CASE("an array larger than the read buffer is read completely") {
  std::string data;
  for (int i = 0; i < 100000; ++i) data += little(static_cast<std::uint64_t>(i), 2);
  const ls::Tensor t = parse(npy_of("<u2", "(100000,)", data));
  CHECK(t[70000].item<int>() == 70000 - 65536);
  CHECK(t[65535].item<int>() == 65535);
}

TEST_CASE("errors of npy files name the fault and its offset") {
  CHECK(contains(npy_error(""), "f.npy: byte 0: not an npy file"));
  CHECK(contains(npy_error("PK\x03\x04 and so on"), "not an npy file"));
  CHECK(contains(npy_error(npy("", "", 4)), "npy version 4"));
  CHECK(contains(npy_error(kThree.substr(0, 9)), "header length: 2 bytes needed, 1 left"));
  CHECK(contains(npy_error(kThree.substr(0, 30)), "header length"));
  CHECK(contains(npy_error(kThree.substr(0, kThree.size() - 1)),
                 "shape (3) of 1 bytes each needs 3 bytes, the file has 2"));
  CHECK(contains(npy_error(kThree + "x"), "needs 3 bytes, the file has 4"));
  CHECK(contains(npy_error(npy("{}", "")), "descr, fortran_order or shape is missing"));
  CHECK(contains(npy_error(npy("{'descr': '<f4', 'descr': '<f4'}", "")), "key \"descr\" is unknown or duplicated"));
  CHECK(contains(npy_error(npy("{'surprise': 1}", "")), "key \"surprise\""));
  CHECK(contains(npy_error(npy("['descr']", "")), "expected '{', found \"['descr']\""));
  CHECK(contains(npy_error(npy("{'descr: 1", "")), "a string without an end"));
  CHECK(contains(npy_error(npy_of("<f4", "(1,)", "1234", "Maybe")), "expected True or False"));
  CHECK(contains(npy_error(npy_of("<f4", "(-1,)", "")), "expected a size"));
  CHECK(contains(npy_error(npy_of("<f4", "(99999999999999999999,)", "")), "expected a size"));
  CHECK(contains(npy_error(npy_of("<f4", "(1,1,1,1,1,1,1,1,1)", "1234")), "more than 8 dimensions"));
  CHECK(contains(npy_error(npy_of("<f4", "(1 1)", "1234")), "expected ','"));
}

TEST_CASE("quotes in a message stay short, even if every byte needs an escape") {
  CHECK(ls::in_quotes("<f4") == "\"<f4\"");
  CHECK(ls::in_quotes("a\nb") == "\"a\\x0ab\"");
  CHECK(ls::in_quotes(std::string(40, 'x')) == '"' + std::string(40, 'x') + '"');
  CHECK(ls::in_quotes(std::string(41, 'x')) == '"' + std::string(40, 'x') + "\"...");
  CHECK(ls::in_quotes(std::string(41, '\6')).size() <= 90);
  CHECK(ls::in_quotes(std::string(41, '\6')).ends_with("\\x06\"..."));
}

TEST_CASE("a shape whose size overflows, or exceeds the file, is refused before memory is allocated") {
  CHECK(contains(npy_error(npy_of("<f8", "(4611686018427387904, 4611686018427387904)", "")), "is more than the"));
  CHECK(contains(npy_error(npy_of("<f8", "(0, 4611686018427387904, 4611686018427387904)", "")), "is more than the"));
  CHECK(contains(npy_error(npy_of("<f8", "(8000000000,)", "1234")), "the file has 4"));
  CHECK(contains(npy_error(std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12)), "header length 4294967295"));
}

TEST_CASE("the arrays of an archive are picked by name, stored, compressed or streamed") {
  CHECK(ls::load_npz(kCorpus + "npz/stored", "x").to_vector<float>() == std::vector<float>{0, 1, 2, 3});
  CHECK(ls::equal(ls::load_npz(kCorpus + "npz/stored", "y"), ls::eye(2, {.dtype = ls::kFloat64})));
  CHECK(ls::equal(ls::load_npz(kCorpus + "npz/compressed", "x"), ls::zeros({300}, {.dtype = ls::kInt32})));
  CHECK(ls::equal(ls::load_npz(kCorpus + "npz/one"), ls::arange(5)));
  CHECK(ls::equal(ls::load_npz(kCorpus + "npz/streamed", "only"), ls::arange(5)));
  CHECK(parse_npz(zip("x.npy", kThree)).to_vector<int>() == std::vector<int>{1, 2, 3});
  CHECK(parse_npz(zip("x.npy", kThree, true), "x").to_vector<int>() == std::vector<int>{1, 2, 3});
}

TEST_CASE("a name that matches no array, or an empty one with several arrays, is an error that lists the arrays") {
  CHECK(contains(error_of([] { ls::load_npz(kCorpus + "npz/stored", "z"); }),
                 "0 arrays match \"z\"; there are: \"x\", \"y\""));
  CHECK(contains(error_of([] { ls::load_npz(kCorpus + "npz/stored"); }), "2 arrays match the empty name"));
}

TEST_CASE("a damaged archive is refused") {
  CHECK(contains(npz_error(""), "not an npz file"));
  CHECK(contains(npz_error(kThree), "not an npz file"));
  std::string changed = zip("x.npy", kThree);
  changed[changed.find("\x01\x02\x03", 40)] ^= 1;
  CHECK(contains(npz_error(changed), "its checksum is"));
  std::string far = zip("x.npy", kThree);
  far.replace(far.find("comment") - 6, 4, little(0xfffffff0, 4));
  CHECK(contains(npz_error(far), "bytes needed, the file has"));
}

TEST_CASE("a small archive that inflates to a large one uses memory only for an array that is complete") {
  constexpr std::int64_t kBytes = (128 << 20) / (LOCKSTEP_SLOWDOWN > 1 ? 4 : 1), kAllowed = kBytes / 2;
  const std::string zeros(static_cast<std::size_t>(kBytes), '\0');
  const std::string good = npy_of("<f4", "(" + std::to_string(kBytes / 4) + ",)", zeros), packed = deflate(good);
  const auto memory_for = [](const std::string& bytes, const std::string& error) {
    const PeakMemory memory;
    CHECK_MESSAGE(contains(npz_error(bytes), error), npz_error(bytes));
    return memory.bytes() - static_cast<std::int64_t>(bytes.size());
  };
  const std::string other = npy_of("<f4", "(7,)", zeros);
  CHECK(memory_for(deflated_zip(deflate(other), other.size(), crc_of(other)), "shape (7) of 4 bytes each") < kAllowed);
  CHECK(memory_for(deflated_zip(packed, good.size(), 1), "its checksum is") < kAllowed);
  CHECK(memory_for(deflated_zip(packed, good.size() + 1, crc_of(good)), "bytes, the archive says") < kAllowed);
  CHECK(memory_for(deflated_zip(packed, good.size() - 1, crc_of(good)), "bytes or more, the archive says") < kAllowed);
  CHECK(memory_for(deflated_zip(packed.substr(0, 10000), good.size(), crc_of(good)), "cannot give that") < kAllowed);
  CHECK(memory_for(deflated_zip(packed.substr(0, packed.size() - 9), good.size(), crc_of(good)), "end too early") <
        kAllowed);

  const std::string archive = deflated_zip(packed, good.size(), crc_of(good));
  const PeakMemory memory;
  CHECK(parse_npz(archive).numel() == kBytes / 4);
  CHECK(memory.bytes() < static_cast<std::int64_t>(archive.size()) + kBytes + kBytes / 4 + (4 << 20));
}

TEST_CASE("an array is read from the file to the tensor through a small buffer") {
  constexpr std::int64_t kRows = LOCKSTEP_SLOWDOWN > 1 ? 1024 : 4096, kBytes = kRows * 4096, kAllowed = kBytes / 4,
                         kTensor = kBytes + kBytes / 4;  // as storages are rounded up
  const std::string data(static_cast<std::size_t>(kBytes), '\1');
  const auto memory_for = [](const auto& read) {
    ls::empty_cache();
    const PeakMemory memory;
    read();
    return memory.bytes();
  };
  const std::string shape = "(" + std::to_string(kRows) + ", 4096)";
  const std::string plain = npy_of("|u1", shape, data), turned = npy_of("|u1", shape, data, "True");
  const std::string wider = npy_of("|i1", shape, data, "True"), stored = zip("x.npy", plain);
  CHECK(memory_for([&] { parse(plain); }) < kTensor + kAllowed);
  CHECK(memory_for([&] { parse(turned); }) < kTensor + kAllowed);
  CHECK(memory_for([&] { parse(wider); }) < 4 * kTensor + kAllowed);
  CHECK(memory_for([&] { parse_npz(stored); }) < kTensor + kAllowed);
}

TEST_CASE("Fortran order is converted for any number of dimensions, across the pieces of a read") {
  for (const ls::Shape& shape : {ls::Shape{5}, ls::Shape{3, 4}, ls::Shape{2, 1, 3}, ls::Shape{7, 5, 3, 2},
                                 ls::Shape{300, 250}, ls::Shape{4, 0, 2}}) {
    const ls::Tensor want = ls::arange(0, shape.numel(), 1, {.dtype = ls::kInt32}).reshape(shape);
    std::vector<std::int64_t> order;
    std::string sizes = "(";
    for (int d = 0; d < shape.dim(); ++d) {
      order.push_back(shape.dim() - 1 - d);
      sizes += std::to_string(shape[d]) + ",";
    }
    std::string data;
    for (const int value : want.permute(order).to_vector<int>()) data += little(static_cast<std::uint64_t>(value), 4);
    CHECK(ls::equal(parse(npy_of("<i4", sizes + ")", data, "True")), want));
  }
}

TEST_CASE("npy and npz files cut off anywhere or with any byte changed give a tensor or an error of ours") {
  const auto survive = [](const std::string& bytes, bool archive) {
    try {
      archive ? parse_npz(bytes, "x") : parse(bytes);
    } catch (const ls::IoError&) {
    } catch (const ls::InvalidArgument&) {  // the array's name was destroyed
    }
  };
  for (const bool archive : {false, true}) {
    for (const std::string& whole :
         archive ? std::vector{zip("x.npy", kThree), zip("x.npy", kThree, true), file(kCorpus + "npz/compressed")}
                 : std::vector{kThree}) {
      for (std::size_t length = 0; length < whole.size(); ++length) survive(whole.substr(0, length), archive);
      for (std::size_t at = 0; at < whole.size(); ++at) {
        for (const int byte : {0, 1, 0x20, 0x27, 0x39, 0x7f, 0x80, 0xff}) {
          std::string changed = whole;
          changed[at] = static_cast<char>(byte);
          survive(changed, archive);
        }
      }
    }
  }
}
