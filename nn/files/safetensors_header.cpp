// The header of a safetensors file: JSON that is parsed while it is read. Every token is checked as soon as it is
// complete. Memory holds the parsed header, but no copy of its text.
#include <algorithm>
#include <array>
#include <istream>
#include <limits>
#include <streambuf>
#include <utility>

#include <nlohmann/json.hpp>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/files/safetensors_internal.h"

namespace lockstep::nn::safetensors {
namespace {

// Dtypes of the format that Lockstep does not support.
constexpr std::string_view kOtherDTypes[] = {"I8",      "I16",     "U16",         "U32",        "U64",
                                             "C64",     "F4",      "F6_E2M3",     "F6_E3M2",    "F8_E4M3",
                                             "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"};

// Streams the header's text in pieces.
class HeaderText final : public std::streambuf {
 public:
  HeaderText(const ByteSource& source, std::uint64_t bytes) : source_(source), end_(kTextOffset + bytes) {}

 private:
  int_type underflow() override {
    if (offset_ == end_) return traits_type::eof();
    const auto piece = std::span(piece_).first(std::min<std::uint64_t>(end_ - offset_, sizeof(piece_)));
    source_.read_at(offset_, std::as_writable_bytes(piece));
    for (const char c : piece) check(c);
    setg(piece.data(), piece.data(), piece.data() + piece.size());
    return traits_type::to_int_type(piece[0]);
  }

  // The JSON parser stores the bytes since the last string began or ended, several times in an error message, and
  // treats a zero byte as the end.
  void check(char c) {
    LOCKSTEP_CHECK_IO(c != '\0', "{}: byte {}: a zero byte in the header", source_.name(), offset_);
    const bool is_quote = c == '"' && !is_escaped_;
    is_escaped_ = in_text_ && c == '\\' && !is_escaped_;
    if (is_quote) {
      in_text_ = !in_text_;
      begin_ = offset_;
    }
    const std::uint64_t most = in_text_ ? limits::kSafetensorsTextBytes : limits::kSafetensorsBlankBytes;
    LOCKSTEP_CHECK_IO(offset_++ - begin_ <= most, "{}: byte {}: header: {} of more than {} bytes", source_.name(),
                      begin_, in_text_ ? "a text" : "a piece without texts", most);
  }

  const ByteSource& source_;
  std::uint64_t offset_ = kTextOffset, end_;
  std::uint64_t begin_ = kTextOffset;  // offset of the current string, or of the bytes after the last string
  bool in_text_ = false, is_escaped_ = false;
  char piece_[16 << 10];
};

class HeaderParser final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderParser(Header& header, const std::string& file) : header_(header), file_(file) {}

  bool null() override {
    if (place_ == Place::kTop && key_ == kMetadataKey) return begin_metadata();  // as some writers have none
    return in_unknown_or_fail("null");
  }
  bool boolean(bool) override { return in_unknown_or_fail("true or false"); }
  bool number_integer(number_integer_t) override { return in_unknown_or_fail("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return in_unknown_or_fail("a number that is not an integer, or too large");
  }
  bool binary(binary_t&) override { unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (is_unknown()) return true;
    if (place_ == Place::kShape) return add_size(value);
    if (place_ != Place::kOffsets) unexpected("a number");
    if (offsets_ == 2) fail("data_offsets has more than two numbers");
    (offsets_++ == 0 ? entry().begin : entry().end) = value;
    return true;
  }

  bool string(string_t& text) override {
    if (is_unknown()) return true;
    if (place_ == Place::kMetadata) {
      if (!header_.metadata.try_emplace(key_, text).second) fail("a key appears twice");
      require_at_most("keys", header_.metadata.size(), limits::kSafetensorsMetadata);
      return true;
    }
    if (place_ != Place::kEntry || key_ != "dtype") unexpected("a string");
    for (const DTypeName& known : kDTypes) {
      if (known.name == text) return entry().dtype = known.dtype, true;
    }
    for (const std::string_view other : kOtherDTypes) {
      if (other == text) return entry().unsupported = text, true;
    }
    fail(fmt::format("unknown dtype {}", lockstep::in_quotes(text)));
  }

  bool start_object(std::size_t) override {
    if (is_unknown()) return ++unknown_depth_, true;
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop && key_ == kMetadataKey) {
      begin_metadata();
      place_ = Place::kMetadata;
    } else if (place_ == Place::kTop) {
      require_at_most("tensors", header_.entries.size() + 1, limits::kSafetensorsTensors);
      require_at_most("bytes of names", name_bytes_ += key_.size(), limits::kSafetensorsNameBytes);
      header_.entries.emplace_back().name = key_;  // copied: a moved string would keep the parser's larger buffer
      place_ = Place::kEntry;
      seen_ = {};
      is_unknown_field_ = false;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(string_t& name) override {
    if (unknown_depth_ > 0) return true;
    key_ = std::move(name);
    if (place_ != Place::kEntry) return true;
    const auto field = static_cast<std::size_t>(std::ranges::find(kFields, key_) - kFields);
    is_unknown_field_ = field == std::size(kFields);
    if (is_unknown_field_) return true;
    if (std::exchange(seen_[field], true)) fail(fmt::format("{} appears twice", key_));
    return true;
  }

  bool end_object() override {
    if (unknown_depth_ > 0) return --unknown_depth_, true;
    for (std::size_t i = 0; i < std::size(kFields) && place_ == Place::kEntry; ++i) {
      if (!seen_[i]) fail(fmt::format("{} is missing", kFields[i]));
    }
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }

  bool start_array(std::size_t) override {
    if (is_unknown()) return ++unknown_depth_, true;
    if (place_ != Place::kEntry || key_ == "dtype") unexpected("an array");
    place_ = key_ == "shape" ? Place::kShape : Place::kOffsets;
    offsets_ = 0;
    return true;
  }

  bool end_array() override {
    if (unknown_depth_ > 0) return --unknown_depth_, true;
    if (place_ == Place::kOffsets && offsets_ != 2)
      fail(fmt::format("data_offsets has {} numbers, expected 2", offsets_));
    place_ = Place::kEntry;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    throw IoError(fmt::format("{}: byte {}: the header is not valid JSON in UTF-8 here", file_, 8 + position));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kEntry, kShape, kOffsets, kEnd };
  static constexpr std::string_view kFields[] = {"dtype", "shape", "data_offsets"};  // of each tensor

  Entry& entry() { return header_.entries.back(); }
  // Whether the parser is in the value of a tensor's field that the format does not have. Readers leave those out.
  bool is_unknown() const { return place_ == Place::kEntry && is_unknown_field_; }
  bool in_unknown_or_fail(const char* found) const {
    if (!is_unknown()) unexpected(found);
    return true;
  }
  bool begin_metadata() {
    if (std::exchange(saw_metadata_, true)) fail("the key appears twice");
    return true;
  }
  bool in_entry() const { return place_ == Place::kEntry || place_ == Place::kShape || place_ == Place::kOffsets; }

  void require_at_most(const char* what, std::uint64_t count, std::uint64_t most) const {
    if (count > most) fail(fmt::format("more than {} {}", most, what));
  }

  bool add_size(std::uint64_t size) {
    if (entry().shape.dim() == kMaxDims)
      fail(fmt::format("more than {} dimensions, which Lockstep does not support", kMaxDims));
    if (size > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) fail(fmt::format("size {} is too large", size));
    entry().shape.push_back(static_cast<std::int64_t>(size));
    return true;
  }

  [[noreturn]] void fail(const std::string& message) const {
    const std::string where = in_entry() ? "tensor " + lockstep::in_quotes(header_.entries.back().name)
                              : place_ == Place::kMetadata
                                  ? fmt::format("{}: {}", kMetadataKey, lockstep::in_quotes(key_))
                              : place_ == Place::kTop ? lockstep::in_quotes(key_)
                                                      : "start";
    throw IoError(fmt::format("{}: header: {}: {}", file_, where, message));
  }

  [[noreturn]] void unexpected(const char* found) const {
    const bool in_array = place_ == Place::kShape || place_ == Place::kOffsets;
    const bool wants_string = place_ == Place::kMetadata || (place_ == Place::kEntry && key_ == "dtype");
    const char* wanted = in_array                  ? "a non-negative integer"
                         : wants_string            ? "a string"
                         : place_ == Place::kEntry ? "an array"
                                                   : "an object";
    fail(fmt::format("{}{}found {}, expected {}", in_entry() ? key_ : "", in_entry() ? ": " : "", found, wanted));
  }

  Header& header_;
  const std::string& file_;
  Place place_ = Place::kStart;
  std::string key_;
  std::uint64_t name_bytes_ = 0;  // total of all tensors so far
  bool saw_metadata_ = false;
  std::array<bool, std::size(kFields)> seen_ = {};  // fields of the current tensor
  bool is_unknown_field_ = false;
  std::uint64_t unknown_depth_ = 0;  // objects and arrays that are open in the value of an unknown field
  int offsets_ = 0;
};

// Checks that dtype and shape need as many bytes as there are between the offsets.
void check_size(const Entry& entry, const std::string& file) {
  LOCKSTEP_CHECK_IO(entry.begin <= entry.end, "{}: header: tensor {}: data_offsets go backwards: [{}, {}]", file,
                    lockstep::in_quotes(entry.name), entry.begin, entry.end);
  if (!entry.unsupported.empty()) return;
  const auto bytes = array_bytes(entry.shape, item_size(entry.dtype), std::uint64_t{1} << 62);
  LOCKSTEP_CHECK_IO(bytes, "{}: header: tensor {}: shape {} is too large for any memory", file,
                    lockstep::in_quotes(entry.name), entry.shape.to_string());
  LOCKSTEP_CHECK_IO(
      entry.end - entry.begin == *bytes, "{}: header: tensor {}: {} bytes for shape {} {}, the offsets give {}", file,
      lockstep::in_quotes(entry.name), *bytes, entry.shape.to_string(), name(entry.dtype), entry.end - entry.begin);
}

void check_names(const std::vector<Entry>& entries, const std::string& file) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const Entry& entry : entries) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  LOCKSTEP_CHECK_IO(twice == names.end(), "{}: header: tensor {} appears twice", file, lockstep::in_quotes(*twice));
}

// Checks that the tensors cover the payload from 0 to the end of the file, without gaps or overlaps.
void check_layout(const std::vector<Entry>& entries, std::uint64_t payload_bytes, const std::string& file) {
  std::uint64_t end = 0;
  for (const Entry& entry : entries) {
    LOCKSTEP_CHECK_IO(entry.begin == end,
                      "{}: header: tensor {}: begins at {}, expected {}, where the one before it ends", file,
                      lockstep::in_quotes(entry.name), entry.begin, end);
    end = entry.end;
  }
  LOCKSTEP_CHECK_IO(end == payload_bytes, "{}: the tensors take {} bytes, {} follow the header: the file is {}", file,
                    end, payload_bytes, end > payload_bytes ? "truncated" : "too long");
}

}  // namespace

Header read_header(const ByteSource& source, std::uint64_t file_bytes) {
  const std::string& file = source.name();
  LOCKSTEP_CHECK_IO(file_bytes >= kTextOffset, "{}: {} bytes, a safetensors file has at least 8", file, file_bytes);
  std::byte start[kTextOffset + 1] = {};
  source.read_at(0, std::span(start).first(std::min<std::uint64_t>(file_bytes, sizeof(start))));
  const auto bytes = ByteReader(start, file).little<std::uint64_t>("header length");
  LOCKSTEP_CHECK_IO(bytes <= limits::kSafetensorsHeaderBytes, "{}: byte 0: the header has {} bytes, the limit is {}",
                    file, bytes, limits::kSafetensorsHeaderBytes);
  LOCKSTEP_CHECK_IO(bytes <= file_bytes - kTextOffset,
                    "{}: byte 0: the header has {} bytes, {} follow: the file is truncated", file, bytes,
                    file_bytes - kTextOffset);
  LOCKSTEP_CHECK_IO(bytes > 0 && start[kTextOffset] == std::byte{'{'},
                    "{}: byte 8: the header does not begin with '{{'", file);
  Header header;
  header.payload = kTextOffset + bytes;
  HeaderText text(source, bytes);
  std::istream stream(&text);
  HeaderParser parser(header, file);
  nlohmann::json::sax_parse(stream, &parser);
  for (const Entry& entry : header.entries) check_size(entry, file);
  check_names(header.entries, file);
  std::stable_sort(header.entries.begin(), header.entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_layout(header.entries, file_bytes - header.payload, file);
  return header;
}

}  // namespace lockstep::nn::safetensors
