/// \file
/// FileStore: the store of processes of one host and one user that share a file and nothing else.
///
/// The file is made by the first and removed by the last of its users. It must be a regular file of this user with mode
/// 0600, or not be there; symbolic links are not followed. One that an earlier run left (none of its processes is alive)
/// is begun anew. A file that is broken is an IoError naming the place. Any number of threads may use one store.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/store.h"

namespace lockstep::parallel {

struct FileStoreOptions {
  int world_size =
      -1;  ///< users to expect: before so many have come the file stays, though all have left; -1: any number
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  ///< of calls that wait
};

/// A store in a file, as the head of this file says.
class FileStore final : public Store {
 public:
  using Store::get;
  using Store::wait;
  /// Throws IoError where the file cannot be had or is not what it should be.
  explicit FileStore(const std::string& path, const FileStoreOptions& options = {});
  ~FileStore() override;
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) override;
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override;
  bool delete_key(const std::string& key) override;
  /// After the end of the process, the next user of the file carries out the will.
  std::unique_ptr<LastWill> leave_last_will(const std::vector<std::string>& keys, const std::string& value) override;

 private:
  struct State;
  class Will;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::parallel
