// Splitting CSV text into rows of numbers (RFC 4180: quoted fields, LF or CRLF line ends).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tensor/error.h"

namespace lockstep::data {

// Reads numbers row by row. It keeps a view of the text. Every error is an IoError "file:line:column: ...", both counted
// from 1, the column in bytes.
class CsvReader {
 public:
  CsvReader(std::string_view text, std::string file, char delimiter);

  // The fields of the first line, which then is the header and no row. An empty file is an error.
  std::vector<std::string> read_header();
  // How many fields the next line has, without reading it.
  std::size_t count_fields() const;

  // Begins again with the first row.
  void rewind();
  // Fills `values` with the next row, whose fields must be finite numbers that f32 can hold; false after the last row.
  // `columns` are the names for messages, as many as there are values. Empty lines may stand at the end only.
  bool next_row(std::span<double> values, const std::vector<std::string>& columns);

  std::int64_t line() const { return line_; }  // of the row just read
  // Throws IoError at the place of the row just read.
  [[noreturn]] void fail_at_row(const std::string& message) const;

 private:
  struct Cursor {
    std::size_t position = 0;
    std::size_t line_start = 0;
    std::int64_t line = 1;
  };
  struct Field {
    std::string_view text;  // without its quotes
    std::size_t position;   // where it starts
    bool last;              // of its line
    bool escaped;           // holds doubled quotes
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
