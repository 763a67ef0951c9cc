// Parses CSV text into rows of numbers (RFC 4180: quoted fields, LF or CRLF line ends).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tensor/error.h"

namespace lockstep::data {

// Reads numbers row by row from a view of the text. Every error is an IoError "file:line:column: ...", with line and
// column counted from 1, the column in bytes.
class CsvReader {
 public:
  CsvReader(std::string_view text, std::string file, char delimiter);

  // Reads the first line as a header and returns its fields. An empty file is an error.
  std::vector<std::string> read_header();
  // The number of fields in the next line, without reading it.
  std::size_t count_fields() const;

  // Returns to the first row.
  void rewind();
  // Reads the next row into `values`; returns false after the last row. Fields must be finite numbers in the range of
  // f32. `columns` has a name for each value, for messages. Empty lines are allowed only at the end.
  bool next_row(std::span<double> values, const std::vector<std::string>& columns);

  std::int64_t line() const { return line_; }  // line number of the last row read
  // Throws IoError with the line number of the last row read.
  [[noreturn]] void fail_at_row(const std::string& message) const;

 private:
  struct Cursor {
    std::size_t position = 0;
    std::size_t line_start = 0;
    std::int64_t line = 1;
  };
  struct Field {
    std::string_view text;  // without its quotes
    std::size_t position;   // start of the field in the text
    bool last;              // the last field of its line
    bool escaped;           // contains doubled quotes
  };

  Field next_field(Cursor& cursor) const;
  static std::string name_of(const Field& field);
  Field quoted_field(Cursor& cursor) const;
  bool end_of_line(Cursor& cursor, const char* after) const;
  bool only_blank_left(std::size_t position) const;
  double number(const Field& field, const Cursor& start, const std::string& column) const;
  [[noreturn]] void fail(const Cursor& cursor, std::size_t position, const std::string& message) const;

  std::string_view text_;
  std::string file_;
  char delimiter_;
  Cursor first_row_, next_;
  std::int64_t line_ = 0;
};

}  // namespace lockstep::data
