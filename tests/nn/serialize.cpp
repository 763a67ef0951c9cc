#include "support.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "lockstep/base/file_internal.h"
#include "lockstep/nn/files/safetensors_internal.h"
#include "tests/support/files.h"

namespace {

ls::StateDict parse(const std::string& bytes, ls::Metadata* metadata = nullptr) {
  return ls::parse_safetensors(std::as_bytes(std::span(bytes)), "memory", metadata);
}

// A dict with one tensor of every dtype, 0-d and empty ones, and views.
ls::StateDict everything() {
  ls::manual_seed(8);
  ls::StateDict dict;
  for (const ls::DType dtype :
       {ls::kBool, ls::kUInt8, ls::kInt32, ls::kInt64, ls::kFloat16, ls::kBFloat16, ls::kFloat32, ls::kFloat64}) {
    dict.insert(std::string("values.") + ls::name(dtype), ls::randint(0, 2, {3, 5}).to(dtype));
  }
  dict.insert("odd", ls::tensor({7}, {.dtype = ls::kUInt8}));
  dict.insert("scalar", ls::tensor(2.5));
  dict.insert("empty", ls::zeros({0, 3}));
  dict.insert("transposed", ls::randn({3, 4}).t());
  dict.insert("repeated", ls::tensor({1.0, 2.0}).expand({3, 2}));
  dict.insert("slice", ls::randn({10}).slice(0, 1, 9, 3));
  dict.insert("elsewhere", ls::randn({2}).to("cpu:1"));
  dict.insert("naïve \"name\"\n", ls::full({2}, -0.0));
  return dict;
}

int failing_call = -1, calls_made = 0;
template <class R>
bool fails(R) {
  if (calls_made++ != failing_call) return false;
  errno = ENOSPC;
  return true;
}

}  // namespace

TEST_CASE("every dtype, views, 0-d and empty tensors are saved and loaded with the same bits") {
  const ls::StateDict dict = everything();
  ls::save(dict, "everything.safetensors", {{"format", "pt"}, {"note", "a \"quoted\"\ttext, é"}});
  ls::Metadata metadata;
  const ls::StateDict back = ls::load("everything.safetensors", &metadata);
  CHECK(metadata == ls::Metadata{{"format", "pt"}, {"note", "a \"quoted\"\ttext, é"}});
  REQUIRE(back.size() == dict.size());
  for (const auto& entry : dict) {
    const auto& name = entry.first;
    const auto& tensor = entry.second;
    INFO(name);
    const ls::Tensor& read = back.at(name);
    CHECK(read.dtype() == tensor.dtype());
    CHECK(read.shape() == tensor.shape());
    CHECK(read.is_contiguous());
    CHECK(read.to(ls::kFloat64).to_vector<double>() == tensor.to(ls::Device()).to(ls::kFloat64).to_vector<double>());
  }
  ls::save(back, "again.safetensors", metadata);
  CHECK(content_of_file("again.safetensors") == content_of_file("everything.safetensors"));
}

TEST_CASE("the writer follows the reference implementation: padded header, large alignments first, then names") {
  ls::save({{"b", ls::tensor({1, 2})},
            {"u", ls::tensor({3}, {.dtype = ls::kUInt8})},
            {"z", ls::tensor({1.0})},
            {"a", ls::tensor({1.0}, {.dtype = ls::kFloat64})},
            {"c", ls::tensor({2.0})}},
           "order.safetensors");
  const std::string bytes = content_of_file("order.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  CHECK(header % 8 == 0);
  const std::string json = bytes.substr(8, header);
  CHECK(json.starts_with("{\"__metadata__\":{\"format\":\"pt\",\"lockstep.xxh3\":\""));
  CHECK(json.substr(0, json.find_last_not_of(' ') + 1)
            .ends_with("\"b\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]},\"a\":{\"dtype\":\"F64\","
                       "\"shape\":[1],\"data_offsets\":[16,24]},"
                       "\"c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[24,28]},\"z\":{\"dtype\":\"F32\","
                       "\"shape\":[1],\"data_offsets\":[28,32]},"
                       "\"u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[32,33]}}"));
  CHECK(bytes.size() == 8 + header + 33);
}

TEST_CASE("the checker in Python accepts our files, which hold PyTorch's values") {
  if (std::system("python3 -c 'import numpy' 2>/dev/null") != 0) {
    MESSAGE("skipped: no python3 with numpy");
    return;
  }
  ls::save(golden("model_from_torch"), "ours.safetensors");
  CHECK(std::system("python3 " LOCKSTEP_GOLDEN_DIR "/check_ours.py ours.safetensors " LOCKSTEP_GOLDEN_DIR
                    "/model_from_torch.safetensors") == 0);
  ls::save(everything(), "everything.safetensors");
  CHECK(std::system("python3 " LOCKSTEP_GOLDEN_DIR "/check_ours.py everything.safetensors") == 0);
  ls::save({}, "nothing.safetensors");
  CHECK(std::system("python3 " LOCKSTEP_GOLDEN_DIR "/check_ours.py nothing.safetensors") == 0);
}

TEST_CASE("the checksum detects a changed payload byte, and files without a checksum are read") {
  ls::save({{"w", ls::ones({100})}}, "checked.safetensors");
  std::string bytes = content_of_file("checked.safetensors");
  bytes[bytes.size() - 150] ^= 1;
  const std::string text = error_of<ls::IoError>([&] { parse(bytes); });
  CHECK_MESSAGE(contains(text, "memory: the payload's checksum is"), text);
  const ls::StateDict torch = golden("model_from_torch");
  CHECK(torch.at("fc1.weight").shape() == ls::Shape{8, 4});
}

TEST_CASE("the loaded metadata has the format, but not the checksum, so it can be saved again") {
  ls::save({{"w", ls::ones({2})}}, "metadata.safetensors", {{"step", "12"}});
  ls::Metadata metadata;
  parse(content_of_file("metadata.safetensors"), &metadata);
  CHECK(metadata == ls::Metadata{{"format", "pt"}, {"step", "12"}});
  ls::save({{"w", ls::ones({2})}}, "metadata.safetensors", {{"format", "np"}});
  parse(content_of_file("metadata.safetensors"), &metadata);
  CHECK(metadata == ls::Metadata{{"format", "np"}});
}

TEST_CASE("an entry that cannot be saved is refused by name, and the old file stays") {
  ls::save({{"w", ls::ones({2})}}, "kept.safetensors");
  const std::string before = content_of_file("kept.safetensors");
  CHECK(error_of([] {
          ls::save({{"w", ls::Tensor()}}, "kept.safetensors");
        }) == "save: the entry \"w\" is an undefined tensor");
  CHECK(error_of([] {
          ls::save({{"__metadata__", ls::ones({1})}}, "kept.safetensors");
        }) == "save: the name \"__metadata__\" is reserved by the format");
  CHECK(error_of([] { ls::save({{"a\xff", ls::ones({1})}}, "kept.safetensors"); }).ends_with("is not UTF-8"));
  CHECK(contains(error_of<ls::IoError>([] { ls::save({}, "no/such/folder/x.safetensors"); }), "no/such/folder"));
  CHECK(content_of_file("kept.safetensors") == before);
}

TEST_CASE("a save that fails at any system call keeps the old file complete") {
  const std::string path = "fault.safetensors";
  ls::save({{"w", ls::zeros({1000})}}, path);
  const std::string before = content_of_file(path);
  static const ls::FileSystemCalls real = ls::FileSystemCalls::real();
  ls::FileSystemCalls faulty = real;
  faulty.open = [](const char* p, int flags, mode_t mode) { return fails(0) ? -1 : real.open(p, flags, mode); };
  faulty.pwrite = [](int fd, const void* data, std::size_t size, off_t offset) {
    return fails(0) ? ssize_t{-1} : real.pwrite(fd, data, size, offset);
  };
  faulty.fsync = [](int fd) { return fails(0) ? -1 : real.fsync(fd); };
  faulty.rename = [](const char* from, const char* to) { return fails(0) ? -1 : real.rename(from, to); };
  int failures = 0;
  for (failing_call = 0;; ++failing_call) {
    calls_made = 0;
    bool failed = false;
    try {
      ls::AtomicFile file(path, faulty);
      nn::safetensors::write({{"w", ls::ones({1000})}}, {}, file);
      file.commit();
    } catch (const ls::IoError&) {
      failed = true;
    }
    const bool whole = content_of_file(path) == before || ls::equal(ls::load(path).at("w"), ls::ones({1000}));
    CHECK(whole);
    if (!failed && calls_made <= failing_call) break;
    failures += failed;
  }
  CHECK(failures >= 4);
  CHECK(ls::equal(ls::load(path).at("w"), ls::ones({1000})));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("."))
    files += entry.path().string().find("fault") != std::string::npos;
  CHECK(files == 1);  // no temporary file remains
}

TEST_CASE("a header of any length is read, even if the length's bytes are those of a pickle") {
  // One more byte of text makes the file of `save` either no longer or eight bytes longer, so one of eight texts gives
  // the wanted length.
  for (const std::uint64_t wanted : {0x0280u, 0x10280u, 0x90280u, 0x0380u, 0x0480u, 0x0580u}) {
    const auto bytes_with = [&](std::size_t text) {
      ls::save({{"w", ls::ones({2})}}, "length.safetensors", {{"note", std::string(text, 'x')}});
      return content_of_file("length.safetensors");
    };
    const auto header_of = [](const std::string& bytes) {
      std::uint64_t length = 0;
      std::memcpy(&length, bytes.data(), 8);
      return length;
    };
    const std::string bytes = bytes_with(wanted - header_of(bytes_with(0)));
    REQUIRE(header_of(bytes) == wanted);
    REQUIRE(bytes[0] == '\x80');
    CHECK(ls::equal(ls::load("length.safetensors").at("w"), ls::ones({2})));
    CHECK(contains(error_of<ls::IoError>([&] { parse(bytes.substr(0, bytes.size() - 3)); }), "truncated"));
  }
}

TEST_CASE("a header of 64 MiB whose length has the bytes of a zip archive is read" *
          doctest::skip(LOCKSTEP_SLOWDOWN > 1)) {
  constexpr std::uint64_t kZip = 0x04034b50;  // "PK\3\4", the first bytes of a zip archive
  std::string json = "{\"__metadata__\":{\"0\":\"\"";
  for (int i = 1; json.size() + (1 << 20) + 100 < kZip; ++i)
    json += ",\"" + std::to_string(i) + "\":\"" + std::string(1 << 20, 'x') + '"';
  json += ",\"rest\":\"" + std::string(kZip - json.size() - 12, 'x') + "\"}}";
  REQUIRE(json.size() == kZip);
  CHECK(parse(std::string("PK\x03\x04\0\0\0\0", 8) + json).empty());
}

TEST_CASE("an entry that load would refuse is not saved") {
  const auto refusal = [](const ls::StateDict& dict, const ls::Metadata& metadata) {
    return error_of([&] { ls::save(dict, "refused.safetensors", metadata); });
  };
  const std::string large(ls::limits::kSafetensorsTextBytes + 1, 'x');
  CHECK(contains(refusal({{large, ls::ones({1})}}, {}), "a text of more than 2097152 bytes"));
  CHECK(refusal({}, {{"note", large}}) ==
        "save: 1 metadata entries are beyond the limits of 16384 entries with texts of 2097152 bytes");
  ls::Metadata many;
  for (std::uint64_t i = 0; i < ls::limits::kSafetensorsMetadata; ++i) many[std::to_string(i)] = "";
  CHECK(contains(refusal({}, many), "save: 2 metadata entries are beyond"));  // with the format and the checksum
  ls::StateDict names;
  for (int i = 0; i < 9; ++i) names.insert(std::string(1 << 20, static_cast<char>('a' + i)), ls::ones({1}));
  CHECK(contains(refusal(names, {}), "more than 8388608 bytes of names"));
  CHECK_FALSE(std::filesystem::exists("refused.safetensors"));
}

TEST_CASE("the error for a file of another format names the format") {
  CHECK(contains(error_of<ls::IoError>([] { ls::load("does_not_exist.safetensors"); }), "does_not_exist.safetensors"));
  CHECK(contains(error_of<ls::IoError>([] { ls::load("."); }), "."));
  for (const std::string& magic : {std::string("PK\x03\x04", 4), std::string("\x80\x02\x8a\x0a", 4)}) {
    const std::string text = error_of<ls::IoError>([&] { parse(magic + "rest of it"); });
    CHECK_MESSAGE((contains(text, "PyTorch pickle") && contains(text, "scripts/convert_checkpoint.py")), text);
  }
}

TEST_CASE("a reader gives tensors and ranges of their elements without reading the whole file") {
  const ls::StateDict dict = everything();
  ls::save(dict, "ranges.safetensors", {{"note", "n"}});
  // Counts the bytes that are read.
  struct Counting final : ls::ByteSource {
    ls::InputFile file{"ranges.safetensors"};
    mutable std::uint64_t bytes = 0;
    std::uint64_t size() const override { return file.size(); }
    const std::string& name() const override { return file.name(); }
    void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
      bytes += out.size();
      file.read_at(offset, out);
    }
  } source;
  const nn::safetensors::Reader reader(source);
  CHECK(reader.metadata() == ls::Metadata{{"format", "pt"}, {"note", "n"}});
  CHECK(reader.entries().size() == dict.size());
  for (const auto& entry : reader.entries()) {
    INFO(entry.name);
    const ls::Tensor want = dict.at(entry.name).to(ls::Device()).contiguous();
    CHECK(same_bits(reader.read(entry), want));
    const std::int64_t numel = want.numel();
    for (std::int64_t first = 0; first <= numel; ++first) {
      source.bytes = 0;
      const std::int64_t count = (numel - first + 1) / 2;
      const ls::TensorPart whole = ls::TensorPart::whole(entry.shape);
      const ls::Tensor range = reader.read(entry, whole.narrow(first, count));
      CHECK(same_bits(range, want.reshape({numel}).slice(0, first, first + count)));
      CHECK(source.bytes == static_cast<std::uint64_t>(count) * ls::item_size(want.dtype()));
    }
    CHECK(contains(error_of([&] {
                     static_cast<void>(reader.read(entry, {.run = numel + 1, .stride = numel + 1, .numel = numel + 1}));
                   }),
                   "are outside [0,"));
    CHECK(contains(
        error_of([&] { static_cast<void>(reader.read(entry, {.first = -1, .run = 1, .stride = 1, .numel = 1})); }),
        "elements [-1, 0)"));
  }
  for (const auto& entry : reader.entries()) {  // columns, from any element of the slice to any other
    if (entry.shape.dim() != 2) continue;
    INFO(entry.name);
    const ls::Tensor want = dict.at(entry.name).to(ls::Device()).contiguous();
    for (std::int64_t of = 1; of <= entry.shape[1]; ++of) {
      if (entry.shape[1] % of != 0) continue;
      const std::int64_t each = entry.shape[1] / of;
      for (std::int64_t index = 0; index < of; ++index) {
        const ls::TensorPart slice = ls::TensorPart::slice(entry.shape, 1, index, of);
        const ls::Tensor columns = want.narrow(1, index * each, each).reshape({slice.numel});
        for (std::int64_t from = 0; from <= slice.numel; ++from) {
          source.bytes = 0;
          const std::int64_t count = (slice.numel - from + 1) / 2;
          CHECK(same_bits(reader.read(entry, slice.narrow(from, count)), columns.narrow(0, from, count)));
          CHECK(source.bytes == static_cast<std::uint64_t>(count) * ls::item_size(want.dtype()));
        }
      }
    }
  }
  nn::safetensors::PayloadReader payload(source, reader.payload());
  while (payload.read(7)) continue;
  CHECK_NOTHROW(reader.check(payload.checksum()));
  CHECK_THROWS_AS(reader.check(payload.checksum() + 1), ls::IoError);
}

TEST_CASE("a range of bools is checked, and its error has the element's index in the whole tensor") {
  ls::save({{"b", ls::ones({9}).to(ls::kBool)}}, "bools.safetensors");
  std::string bytes = content_of_file("bools.safetensors");
  bytes[bytes.size() - 2] = 2;
  const ls::MemorySource source(std::as_bytes(std::span(bytes)), "memory");
  const nn::safetensors::Reader reader(source);
  const ls::TensorPart whole = ls::TensorPart::whole({9});
  CHECK_NOTHROW(static_cast<void>(reader.read(reader.entries()[0], whole.narrow(0, 7))));
  for (const ls::TensorPart& part : {whole.narrow(5, 4), ls::TensorPart::slice({3, 3}, 1, 1, 3)})  // 1, 4, 7
    CHECK(error_of<ls::IoError>([&] { static_cast<void>(reader.read(reader.entries()[0], part)); }) ==
          "memory: tensor \"b\": element 7 is the byte 2, a bool is 0 or 1");
}

TEST_CASE("a part of a tensor is written in several steps, and a large one in several pieces") {
  const ls::Tensor large = numbers({5 << 20}), line = numbers({100}), square = numbers({10, 10});
  ls::save({{"large", large}, {"line", line}, {"square", square.t()}}, "whole.safetensors");
  const nn::safetensors::Layout layout({{"large", large, large.shape(), ls::TensorPart::whole(large.shape())},
                                        {"line", line, line.shape(), ls::TensorPart::whole(line.shape())},
                                        {"square", square.t(), square.shape(), ls::TensorPart::whole(square.shape())}},
                                       {});
  ls::AtomicFile file("steps.safetensors");
  nn::safetensors::PartWriter writer(layout, file);
  int steps = 1;
  while (writer.write(1)) ++steps;
  CHECK(steps == 4);  // two of the large tensor
  file.write(layout.header(writer.checksum()));
  file.commit();
  CHECK(content_of_file("steps.safetensors") == content_of_file("whole.safetensors"));
  CHECK(same_bits(ls::load("steps.safetensors").at("large"), large));
}
