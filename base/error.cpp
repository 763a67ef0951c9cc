#include "lockstep/base/error.h"

namespace lockstep {

void Error::add_module(const std::string& name) {
  message_ = name + (has_module_ ? "." : ": ") + message_;
  has_module_ = true;
}

void Error::set_operation(const std::string& op) {
  const std::size_t colon = message_.find(": ");
  message_.replace(0, colon == std::string::npos ? 0 : colon + 2, op + ": ");
}

void Error::add_context(const std::string& where) {
  message_ = where + ": " + message_;
  has_module_ = false;
}

void Error::add_hint(const std::string& hint) { message_ += "\n" + hint; }

}  // namespace lockstep
