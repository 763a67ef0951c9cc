/// \file
/// The exceptions of the library. Every message says what failed, what was expected and found, and what to do.
#pragma once

#include <stdexcept>
#include <string>

#include "lockstep/version.h"

namespace lockstep {

/// Base of every exception that Lockstep throws.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message), message_(message) {}
  const char* what() const noexcept override { return message_.c_str(); }  ///< the message

  /// Adds a module's name while an error passes through its forward. Dotted: adding "net" to "fc1: linear: ..." gives
  /// "net.fc1: linear: ...".
  void add_module(const std::string& name);
  /// Replaces the operation that the message names: with "stack", "cat: no tensors" becomes "stack: no tensors".
  void set_operation(const std::string& op);
  /// Puts "where: " before the message.
  void add_context(const std::string& where);
  void add_hint(const std::string& hint);  ///< appends a line that says what to do

 private:
  std::string message_;
  bool has_module_ = false;
};

/// Invalid arguments of the caller: shapes, dtypes, devices, values, or the state of an object.
struct InvalidArgument : Error {
  using Error::Error;
};

/// The requested feature is not in this build (CUDA, MPI, ...).
struct NotBuilt : Error {
  using Error::Error;
};

/// A device failed or ran out of memory.
struct DeviceError : Error {
  using Error::Error;
};

/// A file or stream could not be read or written, or its contents are invalid.
struct IoError : Error {
  using Error::Error;
};

/// A rank failed, disagreed, or did not connect.
struct CommError : Error {
  using Error::Error;
};

/// A rank did not respond in time.
struct CommTimeout : CommError {
  using CommError::CommError;
};

}  // namespace lockstep
