#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "lockstep/base/byte_reader_internal.h"

#include "../support/peak_memory.h"
#include "support.h"

using namespace ls::data;

namespace {

CsvDataset parse(const std::string& text, const CsvOptions& options = {.target = "y"}) {
  return CsvDataset::parse(bytes_of(text), "f.csv", options);
}

std::string io_error(const std::string& text, const CsvOptions& options = {.target = "y"}) {
  return error_of<ls::IoError>([&] { parse(text, options); });
}

std::string argument_error(const std::string& text, const CsvOptions& options) {
  return error_of([&] { parse(text, options); });
}

using Names = std::vector<std::string>;
using Floats = std::vector<float>;

}  // namespace

TEST_CASE("all columns except the target's are features, wherever the target column is") {
  const CsvDataset set = parse("a,y,b\n1,2,3\n4,5,6\n");
  CHECK(set.features() == Names{"a", "b"});
  CHECK(set.size() == 2);
  CHECK(set.data().shape() == ls::Shape{2, 2});
  CHECK(set.target().shape() == ls::Shape{2, 1});
  CHECK(set.data().to_vector<float>() == Floats{1, 3, 4, 6});
  CHECK(set.target().to_vector<float>() == Floats{2, 5});
  CHECK(set.mean().empty());
  const Example batch = set.get_batch(Rows{1, 0});
  CHECK(batch.target.shape() == ls::Shape{2, 1});
  CHECK(batch.input.dtype() == ls::kFloat32);
}

TEST_CASE(
    "CRLF, CR, CR CR LF, quotes, blanks, a byte order mark, a missing last line end and blank lines at the end are all "
    "read") {
  const Floats expected{1, -2.5f, 3e2f, 0.5f};
  for (const char* text :
       {"a,b,y\r\n1,-2.5,0\r\n3e2,.5,0\r\n", "a,b,y\r1,-2.5,0\r3e2,.5,0\r", "\"a\",b,\"y\"\r1,-2.5,0\r3e2,.5,\"0\"",
        "a,b,y\r\r\n1,-2.5,0\r\r\n3e2,.5,0\r\r\n", "a,b,\"y\"\r\r\n\"1\",-2.5,\"0\"\r\r\n3e2,.5,0\r\r\n\r\r\n",
        "\xef\xbb\xbf\"a\",\"b\",\"y\"\n\"1\",\"-2.5\",\"0\"\n 3e2 ,+0.5\t,0", "a,b,y\n1,-2.5,0\n3e2,0.5,0\n\n\r\n  \n",
        "a,b,y\r\n1,-2.5,0\r\n3e2,0.5,0\r"}) {
    CAPTURE(text);
    const CsvDataset set = parse(text);
    CHECK(set.data().to_vector<float>() == expected);
    CHECK(set.features() == Names{"a", "b"});
  }
}

TEST_CASE("quoted names may contain delimiters, quotes and line ends, and line numbers stay right") {
  const std::string text = "\"x,\"\"1\"\"\",\"two\nlines\",y\n1,2,3\n";
  CHECK(parse(text).features() == Names{"x,\"1\"", "two\nlines"});
  CHECK(contains(io_error(text + "1,b,3\n"), "f.csv:4:3: column \"two\\x0alines\": expected a number, found \"b\""));
  for (const std::string end : {"\n", "\r\n", "\r", "\r\r\n"}) {
    const std::string lines = "\"two" + end + "lines\",y" + end + "1,2" + end;
    CHECK(parse(lines).features() == Names{"two" + end + "lines"});
    CHECK(contains(io_error(lines + "1,b" + end), "f.csv:4:3: column \"y\": expected a number, found \"b\""));
    CHECK(
        contains(io_error("a,y" + end + end + "1,2" + end), "f.csv:2:1: column \"a\": expected a number, found \"\""));
  }
}

TEST_CASE("names and fields that are not UTF-8 are printed escaped") {
  CHECK(contains(io_error("caf\xe9,y\n1,b\n"), "expected a number, found \"b\""));
  CHECK(contains(io_error("caf\xe9,y\nb,1\n"), "column \"caf\\xe9\": expected a number"));
  CHECK(contains(io_error("caf\xc3\xa9,y\nb,1\n"), "column \"caf\xc3\xa9\": expected a number"));
  CHECK(contains(io_error("\xf0\x9f\x98\x80,y\n\xff\xfe,1\n"),
                 "column \"\xf0\x9f\x98\x80\": expected a number, found \"\\xff\\xfe\""));
  CHECK(contains(argument_error("caf\xe9,y\n1,2\n", {.target = "z"}), "the columns are \"caf\\xe9\", \"y\""));
  // Not shortest forms, surrogates, what is above U+10FFFF, cut sequences, and control characters.
  for (const std::string bad : {"\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
                                "\xe2\x82", "\x80", "\xc2\x9b"}) {
    std::string escaped;
    for (const char c : bad) escaped += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    CHECK(contains(io_error("a,y\n" + bad + ",1\n"), "found \"" + escaped + "\""));
  }
  // A text that is cut is cut between characters.
  const std::string wide = std::string(39, 'a') + "\xc3\xa9";
  CHECK(contains(io_error("a,y\n" + wide + ",1\n"), "found \"" + std::string(39, 'a') + "\"..."));
}

TEST_CASE("without a header columns are numbered, and the delimiter can be set") {
  const CsvDataset set = parse("1;2;3\n4;5;6\n", {.target = "0", .header = false, .delimiter = ';'});
  CHECK(set.features() == Names{"1", "2"});
  CHECK(set.data().to_vector<float>() == Floats{2, 3, 5, 6});
  CHECK(set.target().to_vector<float>() == Floats{1, 4});
}

TEST_CASE("standardised features have mean 0 and deviation 1 over the rows of the fit") {
  const CsvDataset set =
      parse("a,b,y\n1,1e6,7\n3,1000002,8\n100,1e9,9\n", {.target = "y", .standardize = true, .fit_rows = {1, 0, 1}});
  CHECK(set.mean() == std::vector<double>{2, 1000001});
  CHECK(set.deviation() == std::vector<double>{1, 1});
  CHECK(set.data().to_vector<float>() == Floats{-1, -1, 1, 1, 98, 998999999.0f});
  CHECK(set.target().to_vector<float>() == Floats{7, 8, 9});
}

TEST_CASE("without fit_rows the fit uses all rows, and the deviation divides by their number") {
  const CsvDataset set = parse("a,y\n2,0\n4,0\n4,0\n4,0\n5,0\n5,0\n7,0\n9,0\n", {.target = "y", .standardize = true});
  CHECK(set.mean()[0] == 5);
  CHECK(set.deviation()[0] == 2);
}

TEST_CASE("a constant column becomes zeros, not rounding noise") {
  std::string text = "a,y\n";
  for (int i = 0; i < 10; ++i) text += "0.1,1\n";
  const CsvDataset set = parse(text, {.target = "y", .standardize = true});
  CHECK(set.deviation()[0] == 1);
  CHECK(set.mean()[0] == 0.1);
  CHECK(set.data().to_vector<float>() == Floats(10, 0.0f));
}

TEST_CASE("a large mean does not reduce a column's precision") {
  const CsvDataset set = parse("a,y\n1600000000.25,0\n1600000000.75,0\n", {.target = "y", .standardize = true});
  CHECK(set.data().to_vector<float>() == Floats{-1, 1});
}

TEST_CASE("another file is standardised with the mean and deviation of the first") {
  const CsvDataset train = parse("a,b,y\n1,5,0\n3,5,0\n", {.target = "y", .standardize = true});
  const CsvDataset test = parse(
      "a,b,y\n5,6,0\n", {.target = "y", .standardize = true, .mean = train.mean(), .deviation = train.deviation()});
  CHECK(test.data().to_vector<float>() == Floats{3, 1});
}

TEST_CASE("the WDBC data are 569 rows of 30 features, 357 of them benign") {
  const CsvDataset set(LOCKSTEP_SAMPLE_DATA_DIR "/wdbc.csv", {.target = "benign", .standardize = true});
  CHECK(set.data().shape() == ls::Shape{569, 30});
  CHECK(set.features().front() == "mean_radius");
  CHECK(ls::sum(set.target()).item<int>() == 357);
  CHECK(set.mean()[0] == doctest::Approx(14.1272917));
  CHECK(set.deviation()[0] == doctest::Approx(3.520950761));  // divided by n, not n - 1
}

TEST_CASE("a field that is not a number is an error with file, line and column") {
  CHECK(contains(io_error("a,b,y\n1,2,3\n1,x y,3\n"), "f.csv:3:3: column \"b\": expected a number, found \"x y\""));
  CHECK(contains(io_error("a,y\r\n\"1,5\",2\r\n"), "f.csv:2:1: column \"a\": expected a number, found \"1,5\""));
  for (const char* bad : {"", " ", "1e", "0x10", "1.2.3", "--1", "+-1", "+", "1 2", "\"1\"\"2\"", "one", "1_000"}) {
    CAPTURE(bad);
    CHECK(contains(io_error("a,y\n" + std::string(bad) + ",1\n"), "f.csv:2:1: column \"a\": expected a number"));
  }
  CHECK(contains(io_error(std::string("a,y\n1\0,1\n", 9)), "found \"1\\x00\""));
  CHECK(contains(io_error("a,y\n" + std::string(1000, 'z') + ",1\n"), std::string(40, 'z') + "\"..."));
}

TEST_CASE("numbers that f32 cannot hold are refused: infinities, NaN, overflow") {
  for (const char* bad : {"inf", "-inf", "nan", "NaN", "1e39", "-1e300", "1e999", "-1e999", "1e99999999999"}) {
    CAPTURE(bad);
    CHECK(contains(io_error("a,y\n1,2\n" + std::string(bad) + ",1\n"),
                   "f.csv:3:1: column \"a\": expected a finite number"));
  }
  const std::string far = "a,y\n0,1\n1e-30,1\n1e38,1\n";
  CHECK(contains(io_error(far, {.target = "y", .standardize = true, .fit_rows = {0, 1}}),
                 "f.csv:4: column \"a\": 1e+38 is too far"));
}

TEST_CASE("numbers that are too small for a dtype are rounded, to 0 at last") {
  const ls::Tensor data = parse("a,y\n1e-400,1\n-1e-99999999999,1\n1e-310,1\n1e-40,1\n+0.1e-999,1\n" +
                                ("0." + std::string(500, '0') + "1,1\n") + ("1" + std::string(400, '0') + "e-400,1\n"))
                              .data();
  CHECK(data.flatten().to_vector<float>() == std::vector<float>{0, 0, 0, 1e-40f, 0, 0, 1});
}

TEST_CASE("lines with too few or too many fields are refused") {
  CHECK(contains(io_error("a,b,y\n1,2\n"), "f.csv:2:4: the line has 2 fields, expected 3"));
  CHECK(contains(io_error("a,b,y\n1,2,3,4\n"), "f.csv:2:7: more fields than the 3 columns: \"4\""));
  CHECK(contains(io_error("a,b,y\n1,2,3,\n"), "f.csv:2:7: more fields"));
  CHECK(contains(io_error("a,b,y\n1,2,3\n\n1,2,3\n"), "f.csv:3:1: column \"a\": expected a number, found \"\""));
}

TEST_CASE("broken quotes are refused") {
  CHECK(contains(io_error("a,y\n\"1,2\n3,4\n"), "f.csv:2:1: a quoted field without an end"));
  CHECK(contains(io_error("a,y\n1,\"2\"3\n"),
                 "f.csv:2:6: expected ',' or the end of the line after a quoted field, found \"3\""));
  CHECK(contains(io_error("\"a,y\n"), "f.csv:1:1: a quoted field without an end"));
}

TEST_CASE("a file without a table is refused") {
  CHECK(io_error("") == "f.csv: the file is empty");
  CHECK(io_error(" \r\n\n") == "f.csv: the file is empty");
  CHECK(io_error("\xef\xbb\xbf") == "f.csv: the file is empty");
  CHECK(io_error("a,y\n") == "f.csv: there are no rows after the header");
  CHECK(contains(io_error("y\n1\n"), "f.csv:1: one column, \"y\""));
  CHECK(contains(io_error("y,a,y\n1,2,3\n"), "two columns have the target's name"));
}

TEST_CASE("errors name the arguments that do not fit the file") {
  const std::string text = "a,b,y\n1,2,3\n4,5,6\n";
  CHECK(contains(argument_error(text, {.target = "z"}),
                 "f.csv: .target is \"z\", but the columns are \"a\", \"b\", \"y\""));
  CHECK(contains(argument_error(text, {}), ".target is \"\""));
  CHECK(contains(argument_error(text, {.target = "y", .fit_rows = {0}}), "need .standardize"));
  CHECK(contains(argument_error(text, {.target = "y", .standardize = true, .fit_rows = {2}}),
                 "index 2 is outside [0, 2)"));
  CHECK(contains(argument_error(text, {.target = "y", .standardize = true, .mean = {1, 2}}),
                 ".mean together with .deviation"));
  CHECK(contains(argument_error(text, {.target = "y", .standardize = true, .mean = {1}, .deviation = {1}}),
                 "there are 2 features"));
  CHECK(contains(argument_error(text, {.target = "y", .standardize = true, .mean = {1, 2}, .deviation = {1, 0}}),
                 "deviation 0"));
  CHECK(contains(argument_error(text, {.target = "y", .delimiter = '"'}), ".delimiter"));
  std::string wide = "column0";
  for (int i = 1; i < 1000; ++i) wide += ",column" + std::to_string(i);
  CHECK(contains(argument_error(wide + "\n", {.target = "z"}), "and 99"));
}

TEST_CASE("a header full of doubled quotes is read in linear time, and each pair is one quote") {
  const auto name_of = [](const std::string& field) { return parse(field + ",y\n1,2\n").features()[0]; };
  CHECK(name_of(R"("a""b""""")") == R"(a"b"")");
  CHECK(name_of("a\"\"") == "a\"\"");  // quotes inside an unquoted field are literal
  // Eight million pairs: moving the remaining text for each pair would take an hour.
  const std::size_t pairs = (ls::limits::kCsvHeaderBytes / 2 - 10) / LOCKSTEP_SLOWDOWN;
  CHECK(name_of('"' + std::string(2 * pairs, '"') + '"') == std::string(pairs, '"'));
}

TEST_CASE("a header is limited in columns and bytes, and uses no more memory than the file's size plus 64 MiB") {
  const auto memory_for = [](const std::string& text, const CsvOptions& options) {
    const PeakMemory memory;
    try {
      parse(text, options);
    } catch (const ls::IoError&) {
    }
    return memory.bytes() - static_cast<std::int64_t>(text.size());
  };
  constexpr std::int64_t kAllowed = 64 << 20;
  const std::string longest(ls::limits::kCsvHeaderBytes, 'a');
  CHECK(contains(io_error(longest + ",y\n1,2\n"), "f.csv:1:16777218: the header has more than 16777216 bytes"));
  std::string header = "y", row = "1";
  const auto append = [&](std::uint64_t columns) {
    for (std::uint64_t i = 0; i < columns; ++i) {
      header += ",a234567890123456789012345678901";
      row += ",2";
    }
  };
  constexpr std::uint64_t kMeasured = ls::limits::kCsvColumns / LOCKSTEP_SLOWDOWN;
  append(kMeasured - 1);
  CHECK(memory_for(header + "\n" + row + "\n", {.target = "y", .standardize = true}) < kAllowed);
  CHECK(memory_for(header + ",a\n" + row + "\n", {.target = "y"}) < kAllowed);
  CHECK(memory_for(row + "\n" + row + "\n", {.target = "0", .standardize = true, .header = false}) < kAllowed);
  append(ls::limits::kCsvColumns - kMeasured);
  CHECK(contains(io_error(row + ",\n"), "more than 524288 columns"));
  CHECK(contains(error_of<ls::IoError>([&] { parse(row + ",2\n", {.target = "0", .header = false}); }),
                 "more than 524288 columns"));
}

TEST_CASE("the error for an unreadable file gives the reason") {
  CHECK(contains(error_of<ls::IoError>([] { CsvDataset("no/such.csv", {.target = "y"}); }),
                 "no/such.csv: cannot open: No such file"));
  CHECK(contains(error_of<ls::IoError>([] { CsvDataset("/tmp", {.target = "y"}); }),
                 "is a directory, not a regular file"));
  const CsvDataset set(write_file("read.csv", "a,y\n1,2\n"), {.target = "y"});
  CHECK(set.size() == 1);
}

TEST_CASE("a CSV file cut off anywhere or with any byte changed gives a table or an IoError") {
  const std::string whole = "a,\"b\",y\r\n1,\"2\",3\r\n4,5,6\r\n";
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    try {
      parse(whole.substr(0, length));
    } catch (const ls::IoError&) {
    } catch (const ls::InvalidArgument&) {  // the target's name was destroyed
    }
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string changed = whole;
      changed[at] = static_cast<char>(byte);
      try {
        parse(changed);
      } catch (const ls::IoError&) {
      } catch (const ls::InvalidArgument&) {
      }
    }
  }
}
