// Parses CSV text into rows of numbers (RFC 4180: quoted fields). Lines end in LF, CRLF, CR, or CR CR LF.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <locale>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"

namespace lockstep::data {

// Reads numbers row by row from a view of the text. Every error is an IoError "file:line:column: ...", with line and
// column counted from 1, the column in bytes.
class CsvReader {
 public:
  CsvReader(std::string_view text, std::string file, char delimiter)
      : text_(text), file_(std::move(file)), delimiter_(delimiter) {
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    if (text_.starts_with(kByteOrderMark)) first_row_.position = first_row_.line_start = kByteOrderMark.size();
    LOCKSTEP_CHECK_IO(!only_blank_left(first_row_.position), "{}: the file is empty", file_);
  }

  // The names of the columns: the fields of the first line if that is a header, otherwise "0", "1", ... The first row
  // follows.
  std::vector<std::string> read_names(bool header) {
    std::vector<std::string> names;
    std::uint64_t bytes = 0;
    Field field;
    next_ = first_row_;
    do {
      const Cursor start = next_;
      field = next_field(next_);
      bytes += field.text.size();
      if (header && bytes > limits::kCsvHeaderBytes)
        fail(start, field.position, fmt::format("the header has more than {} bytes", limits::kCsvHeaderBytes));
      if (names.size() == limits::kCsvColumns)
        fail(start, field.position, fmt::format("more than {} columns", limits::kCsvColumns));
      names.push_back(header ? name_of(field) : std::to_string(names.size()));
    } while (!field.last);
    if (header) first_row_ = next_;
    return names;
  }

  // Returns to the first row.
  void rewind() { next_ = first_row_; }

  // Reads the next row into `values`; returns false after the last row. Fields must be finite numbers in the range of
  // f32. `columns` has a name for each value, for messages. Empty lines are allowed only at the end.
  bool next_row(std::span<double> values, const std::vector<std::string>& columns) {
    if (only_blank_left(next_.position)) return false;
    line_ = next_.line;
    for (std::size_t i = 0;; ++i) {
      const Cursor start = next_;
      const Field field = next_field(next_);
      if (i == values.size()) {
        fail(start, field.position,
             fmt::format("more fields than the {} columns: {}", values.size(), in_quotes(field.text)));
      }
      values[i] = number(field, start, columns[i]);
      if (!field.last) continue;
      if (i + 1 == values.size()) return true;
      fail(start, field.position + field.text.size(),
           fmt::format("the line has {} fields, expected {}", i + 1, values.size()));
    }
  }

  // Throws IoError with the line number of the last row read.
  [[noreturn]] void fail_at_row(const std::string& message) const {
    throw IoError(fmt::format("{}:{}: {}", file_, line_, message));
  }

 private:
  struct Cursor {
    std::size_t position = 0;
    std::size_t line_start = 0;
    std::int64_t line = 1;
  };
  struct Field {
    std::string_view text;     // without its quotes
    std::size_t position = 0;  // start of the field in the text
    bool last = false;         // the last field of its line
    bool escaped = false;      // contains doubled quotes
  };

  Field next_field(Cursor& cursor) const {
    const std::size_t begin = cursor.position;
    if (begin < text_.size() && text_[begin] == '"') return quoted_field(cursor);
    std::size_t end = begin;
    while (end < text_.size() && text_[end] != delimiter_ && !is_line_end(text_[end])) ++end;
    cursor.position = end;
    Field field{.text = text_.substr(begin, end - begin), .position = begin};
    field.last = end_of_line(cursor, "a field");
    return field;
  }

  // Reads "...", in which "" means a quote; delimiters and line ends belong to the field.
  Field quoted_field(Cursor& cursor) const {
    const Cursor start = cursor;
    Field field{.text = {}, .position = start.position};
    std::size_t at = start.position + 1;
    for (; at < text_.size(); ++at) {
      if (is_line_end(text_[at])) {
        ++cursor.line;
        cursor.line_start = at + line_end_at(at);
        at = cursor.line_start - 1;
      } else if (text_[at] == '"') {
        if (at + 1 == text_.size() || text_[at + 1] != '"') break;
        field.escaped = true;
        ++at;
      }
    }
    if (at == text_.size()) fail(start, start.position, "a quoted field without an end");
    field.text = text_.substr(start.position + 1, at - start.position - 1);
    cursor.position = at + 1;
    field.last = end_of_line(cursor, "a quoted field");
    return field;
  }

  // Skips the delimiter (returns false) or the end of the line or file (returns true).
  bool end_of_line(Cursor& cursor, const char* after) const {
    const std::string_view rest = text_.substr(cursor.position);
    if (rest.starts_with(delimiter_)) {
      ++cursor.position;
      return false;
    }
    const std::size_t ending = line_end_at(cursor.position);
    if (ending == 0 && !rest.empty()) {
      fail(cursor, cursor.position,
           fmt::format("expected '{}' or the end of the line after {}, found {}", delimiter_, after,
                       in_quotes(rest.substr(0, 1))));
    }
    cursor.position += ending;
    cursor.line_start = cursor.position;
    ++cursor.line;
    return true;
  }

  static bool is_line_end(char c) { return c == '\n' || c == '\r'; }

  // The length of the line end at `position`, 0 if there is none. CR alone is that of old spreadsheets; CR CR LF is a CRLF
  // that was written in text mode.
  std::size_t line_end_at(std::size_t position) const {
    const std::string_view rest = text_.substr(position);
    for (const std::string_view end : {"\r\r\n", "\r\n", "\n", "\r"}) {
      if (rest.starts_with(end)) return end.size();
    }
    return 0;
  }

  bool only_blank_left(std::size_t position) const {
    return text_.find_first_not_of("\r\n \t", position) == std::string_view::npos;
  }

  static std::string_view trimmed(std::string_view text) {
    constexpr std::string_view kBlank = " \t";
    const auto first = text.find_first_not_of(kBlank);
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
  }

  // The field's text, trimmed, with doubled quotes replaced by single ones.
  static std::string name_of(const Field& field) {
    const std::string_view text = trimmed(field.text);
    if (!field.escaped) return std::string(text);
    std::string name;
    for (std::size_t i = 0; i < text.size(); ++i) {
      name += text[i];
      if (text.substr(i).starts_with("\"\"")) ++i;
    }
    return name;
  }

  double number(const Field& field, const Cursor& start, const std::string& column) const {
    std::string_view text = trimmed(field.text);
    if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);  // from_chars rejects a plus sign
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = error != std::errc::invalid_argument && end == text.data() + text.size() && !text.empty();
    if (error == std::errc::result_out_of_range) value = rounded(std::string(text));
    const bool fits = error != std::errc::invalid_argument && std::abs(value) <= std::numeric_limits<float>::max();
    if (whole && fits) return value;
    fail(start, field.position,
         fmt::format("column {}: expected a {}, found {}", in_quotes(column),
                     whole ? "finite number that f32 can hold" : "number", in_quotes(field.text)));
  }

  // A number that f64 cannot hold: 0 where it is too small.
  static double rounded(const std::string& text) {
    double value = 0;
    std::istringstream stream(text);
    stream.imbue(std::locale::classic());
    stream >> value;
    return value;
  }

  [[noreturn]] void fail(const Cursor& cursor, std::size_t position, const std::string& message) const {
    throw IoError(fmt::format("{}:{}:{}: {}", file_, cursor.line, position - cursor.line_start + 1, message));
  }

  std::string_view text_;
  std::string file_;
  char delimiter_;
  Cursor first_row_, next_;
  std::int64_t line_ = 0;  // of the last row read
};

}  // namespace lockstep::data
