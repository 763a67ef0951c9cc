/// \file
/// Options that one backend has and the others do not (InitOptions::backend_options).
#pragma once

#include <memory>
#include <string_view>
#include <utility>

namespace lockstep::parallel {

/// Options of one backend, or none: NcclOptions, or SimOptions (parallel/simulate/simulate.h).
class BackendOptions {
 public:
  BackendOptions() = default;
  /// Takes options whose type names its backend in `kBackend`.
  template <class Options>
  requires requires { Options::kBackend; }
  BackendOptions(Options options)
      : backend_(Options::kBackend), options_(std::make_shared<const Options>(std::move(options))) {}

  std::string_view backend() const { return backend_; }  ///< name of the backend; empty if no options were given
  /// Returns the options given, or the defaults if those are of another type.
  template <class Options>
  Options get() const {
    return backend_ == Options::kBackend ? *static_cast<const Options*>(options_.get()) : Options();
  }

 private:
  std::string_view backend_;
  std::shared_ptr<const void> options_;
};

/// Options of the backend nccl.
struct NcclOptions {
  static constexpr std::string_view kBackend = "nccl";  ///< name of the backend
  /// Several ranks may share a GPU. For tests: it is slow, and operations have ten times the timeout.
  bool allow_shared_gpu = false;
};

}  // namespace lockstep::parallel
