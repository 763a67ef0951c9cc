// One file for every violation of the format, and the text that names its position.
#include "support.h"

#include <cstring>

#include "lockstep/base/byte_reader_internal.h"
#include "tests/support/peak_memory.h"

namespace {

std::string file(const std::string& header, std::size_t payload) {
  const auto length = static_cast<std::uint64_t>(header.size());
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(payload, '\0');
}

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + rest;
}

ls::StateDict parse(const std::string& bytes) {
  return ls::parse_safetensors(std::as_bytes(std::span(bytes)), "f", nullptr);
}

std::string error(const std::string& bytes) {
  return error_of<ls::IoError>([&] { parse(bytes); });
}

// The header of one tensor "w" with the given fields.
std::string one(const std::string& fields) { return "{\"w\":{" + fields + "}}"; }
// Returns the peak of allocated bytes while the file is read, minus its size.
std::int64_t memory_for(const std::string& bytes, const std::string& expected) {
  const PeakMemory memory;
  if (expected.empty()) {
    CHECK(!parse(bytes).empty());
  } else {
    const std::string text = error(bytes);
    CHECK_MESSAGE(contains(text, expected), text);
  }
  return memory.bytes() - static_cast<std::int64_t>(bytes.size());
}

// `count` tensors without elements, with names of `name_bytes` bytes.
std::string many_tensors(int count, std::size_t name_bytes) {
  std::string json = "{";
  for (int i = 0; i < count; ++i) {
    const std::string number = std::to_string(i);
    json += (i ? ",\"" : "\"") + number + std::string(name_bytes - number.size(), 'n') +
            R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  return json + "}";
}

std::string many_keys(int count, std::size_t value_bytes) {
  std::string json = R"({"__metadata__":{)";
  for (int i = 0; i < count; ++i)
    json += (i ? ",\"" : "\"") + std::to_string(i) + "\":\"" + std::string(value_bytes, 'v') + "\"";
  return json + R"(},"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
}

const std::string kGood = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";

}  // namespace

TEST_CASE("every valid form of the format is read") {
  CHECK(parse(file("{}", 0)).empty());
  CHECK(parse(file("{}     ", 0)).empty());
  CHECK(parse(file(R"({"__metadata__":{}})", 0)).empty());
  CHECK(parse(file(R"({"__metadata__":null})", 0)).empty());
  CHECK(parse(file(one(kGood), 8)).at("w").shape() == ls::Shape{2});
  CHECK(parse(file(one(R"("data_offsets":[0,8],"shape":[],"dtype":"F64")"), 8)).at("w").dim() == 0);
  CHECK(parse(file(one(R"("dtype":"F32","shape":[0,1000000000000],"data_offsets":[0,0])"), 0)).at("w").numel() == 0);
  const std::string two =
      R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[8,9]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("é":{"dtype":"BOOL","shape":[0],"data_offsets":[8,8]}})";
  const ls::StateDict dict = parse(file(two, 9));  // any order of names; unaligned offsets
  CHECK(dict.size() == 3);
  CHECK(dict.begin()->first == "a");
  CHECK(
      parse(
          file(
              R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"y":{"dtype":"F64","shape":[1],"data_offsets":[1,9]}})",
              9))
          .at("y")
          .item<double>() == 0);
}

TEST_CASE("lengths that do not fit the file are refused before memory is allocated") {
  CHECK(error("") == "f: 0 bytes, a safetensors file has at least 8");
  CHECK(error("1234567") == "f: 7 bytes, a safetensors file has at least 8");
  CHECK(error(with_length(100'000'001, "{}")) == "f: byte 0: the header has 100000001 bytes, the limit is 100000000");
  CHECK(error(with_length(UINT64_MAX, "{}")) ==
        "f: byte 0: the header has 18446744073709551615 bytes, the limit is 100000000");
  CHECK(error(with_length(99'999'999, "{}")) ==
        "f: byte 0: the header has 99999999 bytes, 2 follow: the file is truncated");
  CHECK(error(with_length(0, "")) == "f: byte 8: the header does not begin with '{'");
}

TEST_CASE("a header that is not JSON in UTF-8 is refused with the offset") {
  CHECK(error(file(" {}", 0)) == "f: byte 8: the header does not begin with '{'");
  CHECK(error(file("[]", 0)) == "f: byte 8: the header does not begin with '{'");
  CHECK(error(file("\xef\xbb\xbf{}", 0)) == "f: byte 8: the header does not begin with '{'");
  CHECK(error(file("{", 0)) == "f: byte 10: the header is not valid JSON in UTF-8 here");
  CHECK(error(file("{}{}", 0)) == "f: byte 11: the header is not valid JSON in UTF-8 here");
  CHECK(contains(error(file("{\"a\xff\":1}", 0)), "the header is not valid JSON in UTF-8 here"));
  CHECK(contains(error(file("{\"a\xc0\xaf\":1}", 0)), "not valid JSON"));
  CHECK(error(file(std::string("{}\0garbage", 10), 0)) == "f: byte 10: a zero byte in the header");
  CHECK(contains(error(file("{\"" + std::string(100'000, 'x'), 0)), "not valid JSON"));
  CHECK(contains(error(file(R"({"\\\"":1, "b\\":x})", 0)), "found a number"));
}

TEST_CASE("nesting, of any depth, is refused where it starts") {
  CHECK(error(file("{\"a\":" + std::string(1'000'000, '['), 0)) ==
        "f: header: \"a\": found an array, expected an object");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  CHECK(contains(error(file(objects, 0)), "the header is not valid JSON in UTF-8 here"));
}

TEST_CASE("names and keys that appear twice are refused") {
  CHECK(error(file("{\"w\":{" + kGood + "},\"w\":{" + kGood + "}}", 8)) == "f: header: tensor \"w\" appears twice");
  CHECK(error(file(R"({"__metadata__":{},"__metadata__":{}})", 0)) ==
        "f: header: \"__metadata__\": the key appears twice");
  CHECK(error(file(R"({"__metadata__":{"k":"1","k":"2"}})", 0)) ==
        "f: header: __metadata__: \"k\": a key appears twice");
  CHECK(error(file(one(R"("dtype":"F32","dtype":"F64","shape":[2],"data_offsets":[0,8])"), 8)) ==
        "f: header: tensor \"w\": dtype appears twice");
}

TEST_CASE("values of the wrong kind are refused with what was found and expected") {
  CHECK(error(file(R"({"w":1})", 0)) == "f: header: \"w\": found a number, expected an object");
  CHECK(error(file(R"({"w":"F32"})", 0)) == "f: header: \"w\": found a string, expected an object");
  CHECK(error(file(R"({"__metadata__":{"k":1}})", 0)) ==
        "f: header: __metadata__: \"k\": found a number, expected a string");
  CHECK(error(file(R"({"__metadata__":{"k":{}}})", 0)) ==
        "f: header: __metadata__: \"k\": found an object, expected a string");
  CHECK(error(file(R"({"__metadata__":true})", 0)) ==
        "f: header: \"__metadata__\": found true or false, expected an object");
  CHECK(error(file(R"({"__metadata__":null,"__metadata__":{}})", 0)) ==
        "f: header: \"__metadata__\": the key appears twice");
  CHECK(error(file(one(R"("dtype":1)"), 0)) == "f: header: tensor \"w\": dtype: found a number, expected a string");
  CHECK(error(file(one(R"("shape":true)"), 0)) ==
        "f: header: tensor \"w\": shape: found true or false, expected an array");
  CHECK(error(file(one(R"("shape":[-1])"), 0)) ==
        "f: header: tensor \"w\": shape: found a negative number, expected a non-negative integer");
  CHECK(
      contains(error(file(one(R"("shape":[2.0])"), 0)), "shape: found a number that is not an integer, or too large"));
  CHECK(contains(error(file(one(R"("shape":[1e400])"), 0)), "f: byte"));
  CHECK(contains(error(file(one(R"("shape":[18446744073709551616])"), 0)), "not an integer, or too large"));
  CHECK(error(file(one(R"("shape":[9223372036854775808])"), 0)) ==
        "f: header: tensor \"w\": size 9223372036854775808 is too large");
  CHECK(error(file(one(R"("shape":[[1]])"), 0)) ==
        "f: header: tensor \"w\": shape: found an array, expected a non-negative integer");
  CHECK(error(file(one(R"("shape":["1"])"), 0)) ==
        "f: header: tensor \"w\": shape: found a string, expected a non-negative integer");
  CHECK(error(file(one(R"("data_offsets":[0])"), 0)) ==
        "f: header: tensor \"w\": data_offsets has 1 numbers, expected 2");
  CHECK(error(file(one(R"("data_offsets":[0,1,2])"), 0)) ==
        "f: header: tensor \"w\": data_offsets has more than two numbers");
}

TEST_CASE("a field that is missing is named, and one that the format does not have is left out") {
  CHECK(error(file(one(""), 0)) == "f: header: tensor \"w\": dtype is missing");
  CHECK(error(file(one(R"("dtype":"F32","data_offsets":[0,8])"), 8)) == "f: header: tensor \"w\": shape is missing");
  CHECK(error(file(one(R"("dtype":"F32","shape":[2])"), 8)) == "f: header: tensor \"w\": data_offsets is missing");
  for (const char* extra :
       {"1", "-1.5", "null", "true", "\"text\"", "[1,[2,{}],null]", R"({"dtype":"F64","a":{"b":[]}})"}) {
    const std::string field = R"("extra":)" + std::string(extra);
    CHECK(parse(file(one(kGood + "," + field), 8)).at("w").shape() == ls::Shape{2});
    CHECK(parse(file(one(field + "," + kGood), 8)).at("w").dtype() == ls::kFloat32);
    CHECK(error(file(one(field), 0)) == "f: header: tensor \"w\": dtype is missing");
  }
}

TEST_CASE("tensors of element types that Lockstep does not have are left out with a warning, and the others are read") {
  for (const char* dtype :
       {"I8", "I16", "U16", "U32", "U64", "C64", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3"}) {
    std::vector<std::string> warnings;
    ls::on_warning([&](const std::string& message) { warnings.push_back(message); });
    const std::string header =
        R"({"v":{"dtype":")" + std::string(dtype) +
        R"(","shape":[3],"data_offsets":[0,3]},"w":{"dtype":"F32","shape":[2],"data_offsets":[3,11]}})";
    const ls::StateDict dict = parse(file(header, 11));
    ls::on_warning({});
    CHECK(dict.size() == 1);
    CHECK(dict.at("w").shape() == ls::Shape{2});
    REQUIRE(warnings.size() == 1);
    CHECK(warnings[0] ==
          "f: tensor \"v\": dtype " + std::string(dtype) +
              " is not supported; Lockstep has F64 F32 F16 BF16 I64 I32 U8 BOOL; only the others are loaded");
  }
  CHECK(error(file(one(R"("dtype":"f32","shape":[2],"data_offsets":[0,8])"), 8)) ==
        "f: header: tensor \"w\": unknown dtype \"f32\"");
}

TEST_CASE("shapes must fit the offsets, and products must not overflow") {
  const auto shape = [](const std::string& sizes, std::uint64_t end) {
    return one(R"("dtype":"F32","shape":[)" + sizes + R"(],"data_offsets":[0,)" + std::to_string(end) + "]");
  };
  CHECK(error(file(shape("3", 8), 8)) == "f: header: tensor \"w\": 12 bytes for shape (3) f32, the offsets give 8");
  CHECK(error(file(shape("4611686018427387904,4", 0), 0)) ==
        "f: header: tensor \"w\": shape (4611686018427387904, 4) is too large for any memory");
  CHECK(contains(error(file(shape("4294967296,4294967296", 0), 0)), "is too large for any memory"));
  CHECK(contains(error(file(shape("0,4294967296,4294967296", 0), 0)), "is too large for any memory"));
  CHECK(contains(error(file(shape("1,1,1,1,1,1,1,1,1", 4), 4)), "more than 8 dimensions"));
  CHECK(error(file(one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8)) ==
        "f: header: tensor \"w\": data_offsets go backwards: [8, 0]");
  CHECK(contains(error(file(one(R"("dtype":"F32","shape":[2],"data_offsets":[18446744073709551615,7])"), 8)),
                 "go backwards"));
}

TEST_CASE("tensors that leave holes, overlaps or a rest in the payload are refused") {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[)" + a +
           R"(]},"b":{"dtype":"U8","shape":[4],"data_offsets":[)" + b + "]}}";
  };
  CHECK(parse(file(two("4,8", "0,4"), 8)).size() == 2);
  CHECK(error(file(two("1,5", "5,9"), 9)) ==
        "f: header: tensor \"a\": begins at 1, expected 0, where the one before it ends");
  CHECK(error(file(two("0,4", "5,9"), 9)) ==
        "f: header: tensor \"b\": begins at 5, expected 4, where the one before it ends");
  CHECK(error(file(two("0,4", "3,7"), 7)) ==
        "f: header: tensor \"b\": begins at 3, expected 4, where the one before it ends");
  CHECK(error(file(two("0,4", "0,4"), 4)) ==
        "f: header: tensor \"b\": begins at 0, expected 4, where the one before it ends");
  CHECK(error(file(two("0,4", "4,8"), 7)) == "f: the tensors take 8 bytes, 7 follow the header: the file is truncated");
  CHECK(error(file(two("0,4", "4,8"), 9)) == "f: the tensors take 8 bytes, 9 follow the header: the file is too long");
  CHECK(error(file("{}", 1)) == "f: the tensors take 0 bytes, 1 follow the header: the file is too long");
}

TEST_CASE("a claimed size far beyond the file allocates no memory") {
  const std::uint64_t before = static_cast<std::uint64_t>(ls::allocator_stats().peak_bytes);
  const std::string text =
      error(file(one(R"("dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776])"), 8));
  CHECK(text == "f: the tensors take 1099511627776 bytes, 8 follow the header: the file is truncated");
  CHECK(static_cast<std::uint64_t>(ls::allocator_stats().peak_bytes) == before);
}

TEST_CASE("a header of 82 MiB uses no more memory than the file's size plus 64 MiB, for any content") {
  constexpr std::size_t kHeader = (82 << 20) / (LOCKSTEP_SLOWDOWN > 1 ? 8 : 1);  // still above all limits
  constexpr std::int64_t kAllowed = 64 << 20;
  const std::string text(kHeader, 'n'), empty = R"("w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  CHECK(memory_for(file("{\"" + text + "\":1}", 0), "a text of more than 2097152 bytes") < kAllowed);
  CHECK(memory_for(file("{\"w\":" + std::string(kHeader, '1') + "}", 0), "a piece without texts") < kAllowed);
  CHECK(memory_for(file("{" + std::string(kHeader, '\n') + "}", 0), "a piece without texts") < kAllowed);
  CHECK(memory_for(file(many_keys(kHeader / 14, 0), 0), "") < kAllowed);
  CHECK(memory_for(file("{\"__metadata__\":{\"k\":\"" + text + "\"}," + empty + "}", 0), "") < kAllowed);
  CHECK(memory_for(file("{\"__metadata__\":{\"" + text + "\":\"v\"}," + empty + "}", 0), "") < kAllowed);
  CHECK(memory_for(file("{\"__metadata__\":{\"k\":\"" + text, 0), "not valid JSON") < kAllowed);
  CHECK(memory_for(file("{" + empty + "}" + std::string(kHeader, ' '), 0), "") < kAllowed);
  CHECK(memory_for(file(many_tensors(kHeader / 80, 7), 0), "more than 65536 tensors") < kAllowed);
}

TEST_CASE("metadata beyond the limits are left out with a warning, wherever a text is cut; the rest is read") {
  const std::string units[] = {"n",    "\xc3\xa9", "\xf0\x9f\x98\x80", "\\u00e9",       "\\ud83d\\ude00n",
                               "\\\\", "\\\"n",    "\\u0022,",         "\\ud83d\\ude00"};
  for (const std::string& unit : units) {
    for (const std::size_t shift : {0, 1, 2, 3, 5, 7, 11}) {
      if (LOCKSTEP_SLOWDOWN > 1 && shift > 1) break;
      CAPTURE(unit);
      CAPTURE(shift);
      std::string text(shift, 'x');
      while (text.size() < ls::limits::kSafetensorsTextBytes + 100) text += unit;
      const std::string bytes = file(R"({"__metadata__":{"a":"1","long":")" + text + R"(","b":"2",")" + text +
                                         R"(":"3","c":"4"},"w":{)" + kGood + "}}",
                                     8);
      ls::Metadata metadata;
      std::vector<std::string> warnings;
      ls::on_warning([&](const std::string& message) { warnings.push_back(message); });
      const ls::StateDict dict = ls::parse_safetensors(std::as_bytes(std::span(bytes)), "f", &metadata);
      ls::on_warning({});
      CHECK(dict.at("w").shape() == ls::Shape{2});
      CHECK(metadata == ls::Metadata{{"a", "1"}, {"b", "2"}, {"c", "4"}});
      CHECK(warnings ==
            std::vector<std::string>{"f: 2 metadata entries are left out; 16384 are read, with texts of up to "
                                     "2097152 bytes"});
    }
  }
  const std::string longest(ls::limits::kSafetensorsTextBytes - 1, 'n');
  ls::Metadata metadata;
  const std::string fits = file(R"({"__metadata__":{"k":")" + longest + R"("}})", 0);
  ls::parse_safetensors(std::as_bytes(std::span(fits)), "f", &metadata);
  CHECK(metadata.at("k") == longest);
  CHECK(contains(error_of([&] {
                   ls::save({}, "f", {{"k", longest + "nnn"}});
                 }),
                 "save: 1 metadata entries are beyond"));
}

TEST_CASE("the largest valid headers stay within the same limit") {
  constexpr std::int64_t kAllowed = 64 << 20;
  CHECK(memory_for(file(many_tensors(ls::limits::kSafetensorsTensors, 128), 0), "") < kAllowed);
  CHECK(memory_for(file(many_keys(ls::limits::kSafetensorsMetadata, 6000 / LOCKSTEP_SLOWDOWN), 0), "") < kAllowed);
  const std::string long_text(ls::limits::kSafetensorsTextBytes - 1, 'n');
  CHECK(memory_for(file(R"({"__metadata__":{"k":")" + long_text + "\n\"}}", 0), "not valid JSON") < kAllowed);
  CHECK(memory_for(file("{" + std::string(ls::limits::kSafetensorsBlankBytes - 1, '\n') + "]", 0), "not valid JSON") <
        kAllowed);
}

TEST_CASE("a bool that is neither 0 nor 1 is refused") {
  std::string bytes = file(one(R"("dtype":"BOOL","shape":[3],"data_offsets":[0,3])"), 3);
  bytes.back() = 2;
  CHECK(error(bytes) == "f: tensor \"w\": element 2 is the byte 2, a bool is 0 or 1");
}

TEST_CASE("an invalid checksum is a mismatch, and messages escape and truncate names from the file") {
  CHECK(contains(error(file(R"({"__metadata__":{"lockstep.xxh3":"no"}})", 0)), "the header says \"no\""));
  const std::string text = error(file("{\"" + std::string(1000, 'n') + "\\n\":1}", 0));
  CHECK(text.size() < 200);
  CHECK(error(file("{\"a\\n\\u0007\":1}", 0)).find('\n') == std::string::npos);
}
