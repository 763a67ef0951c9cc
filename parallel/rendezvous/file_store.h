/// \file
/// FileStore: the store of processes of one host and one user that share a file and nothing else.
///
/// The first user creates the file and the last one removes it. It must be a regular file of this user with mode 0600, or not
/// exist; symbolic links are not followed. A file that an earlier run left (none of its processes is alive) is overwritten. A
/// broken file is an IoError naming the place. There are no last-will entries: this store does not notice the end of a process.
/// Any number of threads may use one store.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lockstep/parallel/rendezvous/store.h"

namespace lockstep::parallel {

struct FileStoreOptions {
  int world_size = -1;  ///< users to expect: the file stays until that many have opened it; -1: any number
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  ///< of calls that wait
};

/// A store in a file, as the head of this file says.
class FileStore final : public Store {
 public:
  /// Throws IoError where the file cannot be opened or is not what it should be.
  explicit FileStore(const std::string& path, const FileStoreOptions& options = {});
  ~FileStore() override;
  std::string request(const StoreRequest& request, std::chrono::milliseconds timeout) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::parallel
