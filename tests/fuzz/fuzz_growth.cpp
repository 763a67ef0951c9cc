// Large files that consist of a beginning, a repeated piece, and an end, for every reader. Memory must stay below the
// file's size plus 64 MiB, not counting the returned tensors, and time must grow linearly.
//
// The first byte selects the reader, the next two are the lengths of the beginning and the piece. A '#' in the piece
// is replaced by the number of the repetition.
#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/data/npy_internal.h"
#include "lockstep/data/readers.h"
#include "lockstep/nn/files/safetensors.h"
#include "lockstep/parallel/launch/launch_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/simulate/simulate.h"
#include "tests/support/peak_memory.h"

namespace ls = lockstep;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string little(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> 8 * i & 0xff);
  return out;
}

// --- files with the right lengths and checksums, which a fuzzer would not find on its own ------------

std::string deflated(const std::string& bytes, int window) {
  z_stream z = {};
  if (deflateInit2(&z, 1, Z_DEFLATED, window, 8, Z_DEFAULT_STRATEGY) != Z_OK) std::abort();
  std::string out(deflateBound(&z, bytes.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  z.avail_in = static_cast<uInt>(bytes.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  if (deflate(&z, Z_FINISH) != Z_STREAM_END) std::abort();
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

std::string as_it_is(const std::string& content) { return content; }

std::string gzip(const std::string& bytes) { return deflated(bytes, 15 + 16); }

std::string safetensors(const std::string& header) { return little(header.size(), 8) + header; }

std::string npy_header(const std::string& header) {
  return "\x93NUMPY" + std::string("\2\0", 2) + little(header.size(), 4) + header;
}

std::string end_record(std::size_t entries, std::size_t bytes, std::size_t offset) {
  return "PK\5\6" + little(0, 4) + little(entries, 2) + little(entries, 2) + little(bytes, 4) + little(offset, 4) +
         little(0, 2);
}

// Makes an archive with the given directory.
std::string zip_directory(const std::string& directory) {
  std::size_t entries = 0;
  for (auto at = directory.find("PK\1\2"); at != std::string::npos; at = directory.find("PK\1\2", at + 4)) ++entries;
  return directory + end_record(std::min<std::size_t>(entries, 0xfffe), directory.size(), 0);
}

// Makes an archive with one array of the given content.
std::string zip(const std::string& content) {
  const std::string packed = deflated(content, -15);
  const auto crc = crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size());
  const std::string facts = little(0, 2) + little(8, 2) + little(0, 4) + little(crc, 4) + little(packed.size(), 4) +
                            little(content.size(), 4) + little(1, 2) + little(0, 2);
  const std::string local = "PK\3\4" + little(20, 2) + facts + "x" + packed;
  const std::string entry =
      "PK\1\2" + little(20, 2) + little(20, 2) + facts + little(0, 2) + little(0, 8) + little(0, 4) + "x";
  return local + entry + end_record(1, entry.size(), local.size());
}

// --- readers -----------------------------------------------------------------------------------------

// Each returns the bytes of the tensors that it reads, rounded up as their storages are.
std::int64_t bytes_of(const ls::Tensor& tensor) {
  return tensor.numel() * static_cast<std::int64_t>(ls::item_size(tensor.dtype())) / 4 * 5;
}

std::int64_t csv(const std::string& file, const ls::data::CsvOptions& options) {
  const auto set = ls::data::CsvDataset::parse(bytes_of(file), "fuzz", options);
  return bytes_of(set.data()) + bytes_of(set.target());
}

std::int64_t npz(const std::string& file) {
  return bytes_of(ls::data::parse_npz(ls::MemorySource(bytes_of(file), "fuzz"), "x"));
}

std::int64_t npy(const std::string& file) {
  return bytes_of(ls::data::parse_npy(ls::MemorySource(bytes_of(file), "fuzz")));
}

std::int64_t idx(const std::string& file) { return bytes_of(ls::data::parse_idx(bytes_of(file), "fuzz")); }

std::int64_t all_tensors(const std::string& file) {
  ls::Metadata metadata;
  std::int64_t sum = 0;
  for (const auto& [name, tensor] : ls::parse_safetensors(bytes_of(file), "fuzz", &metadata)) sum += bytes_of(tensor);
  return sum;
}

std::int64_t error_file(const std::string& file) {
  return static_cast<std::int64_t>(ls::parallel::message_in(file).size());
}

std::int64_t link(const std::string& file) {
  static_cast<void>(ls::parallel::parse_link(bytes_of(file), "fuzz"));
  return 0;
}

std::int64_t csv_with_names(const std::string& file) { return csv(file, {.target = "y", .standardize = true}); }
std::int64_t csv_of_numbers(const std::string& file) { return csv(file, {.target = "0", .header = false}); }

struct Reader {
  std::string (*file)(const std::string& content);
  std::int64_t (*read)(const std::string& file);
  bool copies_file = true;     // into memory that is measured here
  std::size_t most = 8 << 20;  // bytes of content
};

const Reader kReaders[] = {
    {as_it_is, csv_with_names, false, 4 << 20},
    {as_it_is, csv_of_numbers, false, 4 << 20},
    {safetensors, all_tensors},
    {npy_header, npy},
    {as_it_is, npy},
    {zip_directory, npz},
    {zip, npz, true, 48 << 20},
    {as_it_is, idx},
    {gzip, idx, true, 48 << 20},
    {as_it_is, error_file, false, ls::parallel::kMaxErrorFile},
    {as_it_is, link, false, 64 << 10},
};

// --- growth ------------------------------------------------------------------------------------------

struct Cost {
  double seconds;       // CPU time
  std::int64_t memory;  // without the returned tensors and the file
};

double processor_seconds() {
  timespec now;
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) != 0) std::abort();
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Cost measure(const Reader& reader, const std::string& content) {
  const std::string file = reader.file(content);
  ls::empty_cache();
  const PeakMemory memory;
  const double begin = processor_seconds();
  std::int64_t result = 0;
  try {
    result = reader.read(file);
  } catch (const ls::IoError& error) {
    if (std::string_view(error.what()).size() > 400) std::abort();
  } catch (const ls::InvalidArgument& error) {
    if (std::string_view(error.what()).size() > 400) std::abort();
  }
  const std::int64_t held = reader.copies_file ? static_cast<std::int64_t>(file.size()) : 0;
  return {.seconds = processor_seconds() - begin, .memory = memory.bytes() - result - held};
}

std::string repeat(std::string_view begin, std::string_view piece, std::string_view end, std::size_t size) {
  std::string content;
  content.reserve(size + piece.size() + end.size() + 32);
  content += begin;
  for (std::size_t i = 0; content.size() + piece.size() + end.size() < size; ++i) {
    const auto mark = piece.find('#');
    content += piece.substr(0, mark);
    if (mark != std::string_view::npos) content.append(std::to_string(i)).append(piece.substr(mark + 1));
  }
  return content.append(end);
}

void fail(const char* what, double small, double large) {
  std::fprintf(stderr, "%s: %g, of a file of a 16th of the size %g\n", what, large, small);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::int64_t kAllowed = 64 << 20;
  constexpr double kUnnoticed = 1;  // seconds
  // 16 is linear, 256 quadratic. The margin is needed because a reader may take several passes for one file and stop
  // in the first pass for the other.
  constexpr double kSteepest = 100;
  if (size < 4 || data[2] == 0) return 0;
  const Reader& reader = kReaders[data[0] % std::size(kReaders)];
  std::string_view rest(reinterpret_cast<const char*>(data) + 3, size - 3);
  const auto take = [&](std::size_t count) {
    const std::string_view taken = rest.substr(0, count);
    rest.remove_prefix(taken.size());
    return taken;
  };
  const std::string_view begin = take(data[1]), piece = take(data[2]);
  if (piece.empty()) return 0;
  const Cost small = measure(reader, repeat(begin, piece, rest, reader.most / 16));
  const bool stopped_early = small.seconds < 1e-3 && small.memory < kAllowed / 100;
  if (stopped_early) return 0;
  const Cost large = measure(reader, repeat(begin, piece, rest, reader.most));
  if (large.memory > kAllowed)
    fail("bytes of memory", static_cast<double>(small.memory), static_cast<double>(large.memory));
  if (large.seconds > kUnnoticed && large.seconds > kSteepest * small.seconds)
    fail("seconds", small.seconds, large.seconds);
  return 0;
}
