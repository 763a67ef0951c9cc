#include "tools/diff/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/base/file_internal.h"
#include "tools/report/json.h"

namespace diff {
namespace {

using report::Json;

constexpr std::uint64_t kLargestFile = std::uint64_t{8} << 30;
constexpr std::int64_t kMostElements = std::int64_t{1} << 40;
constexpr std::array<const char*, 7> kNames = {"input",    "output",    "input_gradient", "micro_batch_gradient",
                                               "gradient", "parameter", "buffer"};

What what_named(const std::string& name) {
  const auto found = std::ranges::find(kNames, name, [](const char* each) { return std::string_view(each); });
  if (found == kNames.end()) throw ls::IoError(fmt::format("\"what\" is \"{}\"", name.substr(0, 80)));
  return static_cast<What>(found - kNames.begin());
}

ls::DType dtype_named(const std::string& name) {
  for (int i = 0; i < ls::kDTypeCount; ++i) {
    if (name == ls::name(static_cast<ls::DType>(i))) return static_cast<ls::DType>(i);
  }
  throw ls::IoError(fmt::format("\"dtype\" is \"{}\"", name.substr(0, 80)));
}

std::uint64_t hexadecimal(const std::string& text) {
  std::uint64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size())
    throw ls::IoError(fmt::format("\"hash\" is \"{}\", expected a hexadecimal number", text.substr(0, 80)));
  return number;
}

ls::Shape shape_of(const Json& sizes) {
  std::vector<std::int64_t> shape;
  std::int64_t elements = 1;
  for (const Json& size : sizes) {
    shape.push_back(report::integer<std::int64_t>(size, "shape"));
    if (shape.back() < 0 || (shape.back() > 0 && elements > kMostElements / shape.back()))
      throw ls::IoError(fmt::format("\"shape\" is {}", sizes.dump().substr(0, 80)));
    elements *= shape.back();
  }
  return shape;
}

ls::TensorPart part_of(const Json& json, const ls::Shape& whole) {
  if (!json.contains("part")) return ls::TensorPart::whole(whole);
  std::array<std::int64_t, 5> numbers;
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = report::integer<std::int64_t>(json.at("part").at(i), "part");
  const ls::TensorPart part = {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
  if (!part.fits(ls::TensorPart::whole(whole).numel)) throw ls::IoError("\"part\" is no part of the shape");
  return part;
}

void read_line(RunRecord& run, const Json& json, int rank, std::int64_t number) {
  Key key{.step = report::integer<std::int64_t>(json.at("step"), "step"),
          .what = what_named(json.at("what")),
          .micro_batch = report::integer<int>(json.at("micro_batch"), "micro_batch"),
          .name = json.at("name"),
          .call = report::integer<std::int64_t>(json.at("call"), "call")};
  Line line{.rank = rank,
            .dtype = dtype_named(json.at("dtype")),
            .shape = shape_of(json.at("shape")),
            .part = {},
            .hash = hexadecimal(json.at("hash")),
            .number = number};
  line.part = part_of(json, line.shape);
  if (json.contains("at")) line.at = report::integer<std::int64_t>(json.at("at"), "at");
  run.tensors[std::move(key)].push_back(std::move(line));
}

// From the first line of a file.
std::vector<int> ranks_of(const Json& json) {
  if (json.at("format") != 1)
    throw ls::IoError(fmt::format("format {}, expected 1: another version of Lockstep wrote it",
                                  json.at("format").dump().substr(0, 80)));
  std::vector<int> ranks;
  for (const Json& rank : json.at("ranks")) ranks.push_back(report::integer<int>(rank, "ranks"));
  if (ranks.empty()) throw ls::IoError("\"ranks\" is empty");
  return ranks;
}

std::string path_of(const RunRecord& run, int rank, const char* extension) {
  return fmt::format("{}/rank{}.{}", run.directory, rank, extension);
}

}  // namespace

std::vector<int> add_rank(RunRecord& run, int rank, std::span<const std::byte> bytes, const std::string& path) {
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::vector<int> ranks;
  for (std::int64_t number = 1;; ++number) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) break;
    try {
      const Json json = Json::parse(text.substr(0, end));
      if (number > 1)
        read_line(run, json, rank, number);
      else
        ranks = ranks_of(json);
    } catch (const nlohmann::json::exception& error) {
      throw ls::IoError(fmt::format("{}, line {}: {}", path, number, report::shortened(error.what())));
    } catch (const ls::Error& error) {
      throw ls::IoError(fmt::format("{}, line {}: {}", path, number, error.what()));
    }
    text.remove_prefix(end + 1);
  }
  if (ranks.empty()) throw ls::IoError(fmt::format("{}: the file has no complete line", path));
  return ranks;
}

const char* name(What what) { return kNames[static_cast<std::size_t>(what)]; }

// Groups of a mesh may have written to one directory, so that the ranks of one file are not all.
RunRecord read_run(const std::string& directory) {
  RunRecord run{.directory = directory, .tensors = {}};
  std::set<int> found, wanted;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(directory, none)) {
    const std::string file = entry.path().filename().string();
    int rank = -1;
    if (std::sscanf(file.c_str(), "rank%d.jsonl", &rank) != 1 || path_of(run, rank, "jsonl") != directory + "/" + file)
      continue;
    found.insert(rank);
  }
  if (found.empty())
    throw ls::IoError(fmt::format(
        "{}: there is no file rank0.jsonl; expected a directory of a Recorder or of LOCKSTEP_RECORD", directory));
  for (const int rank : found) {
    const std::string path = path_of(run, rank, "jsonl");
    for (const int other : add_rank(run, rank, ls::read_file(path, kLargestFile), path)) wanted.insert(other);
  }
  for (const int rank : wanted) {
    if (!found.contains(rank))
      throw ls::IoError(
          fmt::format("{}: rank {} belongs to the run, but there is no file rank{}.jsonl\nCopy the files of "
                      "all hosts to one directory",
                      directory, rank, rank));
  }
  return run;
}

ls::Tensor values_of(const RunRecord& run, const Line& line) {
  const ls::InputFile file(path_of(run, line.rank, "values"));
  const std::size_t bytes = static_cast<std::size_t>(line.part.numel) * ls::item_size(line.dtype);
  const auto at = static_cast<std::uint64_t>(line.at.value_or(0));
  if (at > file.size() || bytes > file.size() - at)
    throw ls::IoError(fmt::format("{}: {} bytes, expected {} at {}", file.name(), file.size(), bytes, at));
  const ls::Tensor values = ls::empty({line.part.numel}, {.dtype = line.dtype});
  file.read_at(at, {static_cast<std::byte*>(values.raw_data()), bytes});
  return values;
}

}  // namespace diff
