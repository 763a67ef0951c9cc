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

// Streams the header's text in pieces. Of a text beyond the limit, the parser receives only the beginning.
class HeaderText final : public std::streambuf {
 public:
  HeaderText(const ByteSource& source, std::uint64_t bytes) : source_(source), end_(kTextOffset + bytes) {}

  // Whether the last text that the parser received is a beginning.
  bool was_cut() const { return was_cut_; }
  // Number of bytes that the parser has not received.
  std::uint64_t cut_bytes() const { return cut_bytes_; }

 private:
  // A piece ends after a text that was cut, so that was_cut() is about the text that the parser has.
  int_type underflow() override {
    char* kept = nullptr;
    char* begin = nullptr;
    was_cut_ = false;
    do {
      if (next_ == filled_ && !fill()) return traits_type::eof();
      kept = begin = piece_ + next_;
      while (next_ < filled_ && !was_cut_) {
        const char c = piece_[next_++];
        if (keep(c)) *kept++ = c;
      }
    } while (kept == begin);
    setg(begin, begin, kept);
    return traits_type::to_int_type(*begin);
  }

  bool fill() {
    next_ = 0;
    filled_ = static_cast<std::size_t>(std::min<std::uint64_t>(end_ - read_, sizeof(piece_)));
    source_.read_at(read_, std::as_writable_bytes(std::span(piece_).first(filled_)));
    read_ += filled_;
    return filled_ > 0;
  }

  // Whether the parser receives the byte. It stores the bytes since the last string began or ended, several times in an
  // error message, and treats a zero byte as the end.
  bool keep(char c) {
    LOCKSTEP_CHECK_IO(c != '\0', "{}: byte {}: a zero byte in the header", source_.name(), offset_);
    const bool is_quote = c == '"' && escaped_ == 0;
    if (in_text_ && !is_quote && offset_ - begin_ > limits::kSafetensorsTextBytes && is_between_characters(c))
      is_cut_ = true;
    follow_escapes(c, is_quote);
    cut_bytes_ += is_cut_ && !is_quote ? 1 : 0;
    if (is_quote) {
      in_text_ = !in_text_;
      begin_ = offset_;
      was_cut_ = std::exchange(is_cut_, false);
    }
    LOCKSTEP_CHECK_IO(in_text_ || offset_ - begin_ <= limits::kSafetensorsBlankBytes,
                      "{}: byte {}: header: a piece without texts of more than {} bytes", source_.name(), begin_,
                      limits::kSafetensorsBlankBytes);
    ++offset_;
    return !is_cut_;
  }

  // Whether a text that ends before the byte is one that the parser accepts.
  bool is_between_characters(char c) const {
    return escaped_ == 0 && (c & 0xc0) != 0x80 && !(c == '\\' && is_high_surrogate_);
  }

  void follow_escapes(char c, bool is_quote) {
    constexpr int kBegun = 5, kFirst = 4, kSecond = 3;  // after the backslash, and with this many digits to come
    if (escaped_ == kFirst) begins_with_d_ = c == 'd' || c == 'D';
    if (escaped_ == kSecond)
      is_high_surrogate_ = begins_with_d_ && std::string_view("89abAB").find(c) != std::string_view::npos;
    else if ((escaped_ == 0 && c != '\\') || (escaped_ == kBegun && c != 'u'))
      is_high_surrogate_ = false;
    const int next = escaped_ == kBegun ? (c == 'u' ? kFirst : 0)
                     : escaped_ > 0     ? escaped_ - 1
                     : c == '\\'        ? kBegun
                                        : 0;
    escaped_ = in_text_ && !is_quote ? next : 0;
  }

  const ByteSource& source_;
  std::uint64_t read_ = kTextOffset, end_;
  std::uint64_t offset_ = kTextOffset;  // of the next byte in piece_
  std::uint64_t begin_ = kTextOffset;   // offset of the current string, or of the bytes after the last string
  std::uint64_t cut_bytes_ = 0;
  bool in_text_ = false, is_cut_ = false, was_cut_ = false;
  int escaped_ = 0;                 // characters to come of an escape: of "\\u00e9" 5 to 1, of others 5
  bool begins_with_d_ = false;      // the digits of the current escape
  bool is_high_surrogate_ = false;  // the last character is the first half of a pair of escapes
  std::size_t next_ = 0, filled_ = 0;
  char piece_[16 << 10];
};

class HeaderParser final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderParser(Header& header, const HeaderText& text, const std::string& file)
      : header_(header), text_(text), file_(file) {}

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
      if (is_key_cut_ || text_.was_cut() || header_.metadata.size() == limits::kSafetensorsMetadata)
        return ++header_.metadata_left_out, true;
      if (!header_.metadata.try_emplace(key_, text).second) fail("a key appears twice");
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
    is_key_cut_ = text_.was_cut();
    if (is_key_cut_ && place_ != Place::kMetadata)
      fail(fmt::format("a text of more than {} bytes", limits::kSafetensorsTextBytes));
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
    throw IoError(fmt::format("{}: byte {}: the header is not valid JSON in UTF-8 here", file_,
                              kTextOffset + position + text_.cut_bytes()));
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
  const HeaderText& text_;
  const std::string& file_;
  Place place_ = Place::kStart;
  std::string key_;
  std::uint64_t name_bytes_ = 0;  // total of all tensors so far
  bool saw_metadata_ = false, is_key_cut_ = false;
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

namespace {

// The bytes of the header's JSON without the spaces after it, which align the payload.
std::uint64_t without_padding(const ByteSource& source, std::uint64_t bytes) {
  char piece[4 << 10];
  while (bytes > 0) {
    const std::uint64_t count = std::min<std::uint64_t>(bytes, sizeof(piece));
    source.read_at(kTextOffset + bytes - count, std::as_writable_bytes(std::span(piece).first(count)));
    const std::size_t last = std::string_view(piece, count).find_last_not_of(' ');
    if (last != std::string_view::npos) return bytes - count + last + 1;
    bytes -= count;
  }
  return bytes;
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
  HeaderText text(source, without_padding(source, bytes));
  std::istream stream(&text);
  HeaderParser parser(header, text, file);
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
