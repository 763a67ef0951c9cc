#include "lockstep/parallel/step/record_file_internal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/warning.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

template <class Bits>
std::uint64_t hash_of(const void* data, const TensorPart& part) {
  const auto* element = static_cast<const Bits*>(data);
  std::uint64_t sum = 0;
  for (std::int64_t k = 0; k < part.runs(); ++k) {
    const TensorPart::Run run = part.run_at(k);
    for (std::int64_t i = 0; i < run.count; ++i) {
      const std::uint64_t bits = *element++;
      sum += XXH3_64bits_withSeed(&bits, sizeof(bits), static_cast<std::uint64_t>(run.first + i));
    }
  }
  return sum;
}

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

[[noreturn]] void fail(const std::string& path, const char* operation, int error) {
  if (error == EEXIST)
    throw IoError(fmt::format("Recorder: {} exists already\nRemove the directory, or name another one", path));
  throw IoError(fmt::format("Recorder: {}: {}: {}", path, operation, std::generic_category().message(error)));
}

}  // namespace

std::uint64_t record_hash(const Tensor& elements, const TensorPart& part) {
  const void* const data = elements.raw_data();
  switch (item_size(elements.dtype())) {
    case 1:
      return hash_of<std::uint8_t>(data, part);
    case 2:
      return hash_of<std::uint16_t>(data, part);
    case 4:
      return hash_of<std::uint32_t>(data, part);
    default:
      return hash_of<std::uint64_t>(data, part);
  }
}

// A file that is written from start to end, in large pieces.
struct RecordFile::Output {
  explicit Output(std::string name)
      : path(std::move(name)), file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
    if (file.get() < 0) fail(path, "open", errno);
  }
  void add(const void* data, std::size_t size) {
    const auto* const bytes = static_cast<const char*>(data);
    buffer.insert(buffer.end(), bytes, bytes + size);
    position += size;
    if (buffer.size() >= std::size_t{1} << 20) flush();
  }
  void flush() {
    const std::vector<char> bytes = std::exchange(buffer, {});
    for (std::size_t done = 0; done < bytes.size();) {
      const ssize_t written = ::write(file.get(), bytes.data() + done, bytes.size() - done);
      if (written < 0 && errno != EINTR) fail(path, "write", errno);
      if (written > 0) done += static_cast<std::size_t>(written);
    }
  }

  std::string path;
  Descriptor file;
  std::vector<char> buffer;
  std::uint64_t position = 0;
};

RecordFile::RecordFile(const std::string& directory, int rank, const std::vector<int>& ranks, bool has_values) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) fail(directory, "mkdir", error.value());
  lines_ = std::make_unique<Output>(fmt::format("{}/rank{}.jsonl", directory, rank));
  if (has_values) values_ = std::make_unique<Output>(fmt::format("{}/rank{}.values", directory, rank));
  const std::string header = fmt::format("{{\"format\":1,\"rank\":{},\"ranks\":[{}]}}\n", rank, fmt::join(ranks, ","));
  lines_->add(header.data(), header.size());
  flush();
}

RecordFile::~RecordFile() = default;

void RecordFile::add(const RecordKey& key, const Tensor& tensor, const TensorPart& part, const Shape& whole) {
  const Tensor elements = raw::contiguous(raw::to(tensor, Device()));
  std::string line = fmt::format("{{\"step\":{},\"what\":\"{}\",\"micro_batch\":{},\"name\":{},\"call\":{}", key.step,
                                 key.what, key.micro_batch, json_string(key.name), key.call);
  line += fmt::format(",\"dtype\":\"{}\",\"shape\":[{}],\"hash\":\"{:016x}\"", name(tensor.dtype()),
                      fmt::join(whole.begin(), whole.end(), ","), record_hash(elements, part));
  if (part != TensorPart::whole(whole))
    line += fmt::format(",\"part\":[{},{},{},{},{}]", part.first, part.run, part.stride, part.begin, part.numel);
  write([&] {
    if (values_) {
      line += fmt::format(",\"at\":{}", values_->position);
      values_->add(elements.raw_data(), static_cast<std::size_t>(elements.numel()) * item_size(elements.dtype()));
    }
    line += "}\n";
    lines_->add(line.data(), line.size());
  });
}

void RecordFile::flush() {
  write([&] {
    if (values_) values_->flush();
    lines_->flush();
  });
}

void RecordFile::write(FunctionRef<void()> body) {
  const std::lock_guard lock(mutex_);
  if (has_failed_) return;
  try {
    body();
  } catch (const IoError& error) {
    has_failed_ = true;
    warn("Recorder", fmt::format("{}\nThe rest of the run is not recorded", error.what()));
  }
}

}  // namespace lockstep::parallel
