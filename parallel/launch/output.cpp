#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "lockstep/parallel/launch/launch_internal.h"
#include "lockstep/parallel/rendezvous/crypto_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

constexpr int bit_of(bool is_stderr) { return is_stderr ? 2 : 1; }

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  LOCKSTEP_CHECK_IO(!error, "launch: cannot make the folder {} for logs: {}", path, error.message());
}

Descriptor create(const std::string& path) {
  Descriptor file(uninterrupted([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644); }));
  LOCKSTEP_CHECK_IO(bool(file), "launch: cannot make {}: {}", path, reason(errno));
  return file;
}

void write_all(const Descriptor& file, const std::string& text, const std::string& path) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = uninterrupted([&] { return ::write(file.get(), text.data() + done, text.size() - done); });
    LOCKSTEP_CHECK_IO(count > 0, "launch: cannot write {}: {}", path, reason(errno));
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace

int StreamChoice::of(int local_rank) const {
  const auto found = std::find_if(by_local_rank.begin(), by_local_rank.end(),
                                  [&](const auto& entry) { return entry.first == local_rank; });
  return found == by_local_rank.end() ? all : found->second;
}

RankLogs::RankLogs(const LogOptions& options, const std::string& run_id)
    : options_(options), run_folder_(fmt::format("{}/{}_{}", options.folder, run_id, random_hex(4))) {
  make_folder(run_folder_);
}

bool RankLogs::redirects(int local_rank, bool is_stderr) const {
  return options_.redirects.of(local_rank) & bit_of(is_stderr) & ~options_.tee.of(local_rank);
}

bool RankLogs::wants(int local_rank, bool is_stderr) const {
  return (options_.redirects.of(local_rank) | options_.tee.of(local_rank)) & bit_of(is_stderr);
}

std::string RankLogs::path_of(int local_rank, const char* name) const {
  return fmt::format("{}/{}/{}", attempt_folder_, local_rank, name);
}

void RankLogs::begin(const Placement& place) {
  attempt_folder_ = fmt::format("{}/attempt_{}", run_folder_, place.attempt);
  files_.clear();
  files_.resize(2 * static_cast<std::size_t>(place.local_size));
  for (int rank = 0; rank < place.local_size; ++rank) {
    make_folder(fmt::format("{}/{}", attempt_folder_, rank));
    for (const bool is_stderr : {false, true}) {
      if (wants(rank, is_stderr))
        file_of(rank, is_stderr) = create(path_of(rank, is_stderr ? "stderr.log" : "stdout.log"));
    }
  }
}

Descriptor& RankLogs::file_of(int local_rank, bool is_stderr) {
  return files_[2 * static_cast<std::size_t>(local_rank) + (is_stderr ? 1 : 0)];
}

void RankLogs::write(int local_rank, bool is_stderr, const std::string& line) {
  write_all(file_of(local_rank, is_stderr), line + "\n", path_of(local_rank, is_stderr ? "stderr.log" : "stdout.log"));
}

void RankLogs::write_error(int local_rank, const std::string& error) {
  const std::string path = path_of(local_rank, "error.json");
  write_all(create(path), error_json(error), path);
}

}  // namespace lockstep::parallel
