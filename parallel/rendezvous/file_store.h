/// \file
/// FileStore: a store in a file, shared by processes of one user on one host.
///
/// The first user creates the file and the last one removes it. It must be a regular file of this user with mode 0600,
/// or not exist; symbolic links are not followed. A file left by an earlier run, none of whose processes is alive, is
/// overwritten. A broken file is an IoError naming the position. There are no last-will entries: this store does not
/// notice the end of a process. Any number of threads may use one store.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lockstep/parallel/rendezvous/store.h"

namespace lockstep::parallel {

struct FileStoreOptions {
  int world_size = -1;  ///< number of users: the file is kept until this many have opened it; -1: any number
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  ///< time limit of calls that wait
};

/// A store in a file; the top of this header describes it.
class FileStore final : public Store {
 public:
  /// Throws IoError if the file cannot be opened, or is not a FileStore's file with the properties above.
  explicit FileStore(const std::string& path, const FileStoreOptions& options = {});
  ~FileStore() override;
  std::string request(const StoreRequest& request, std::chrono::milliseconds timeout) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::parallel
