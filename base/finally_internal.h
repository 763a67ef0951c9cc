// Actions at the end of a scope. Not installed.
#pragma once

#include <exception>
#include <utility>

namespace lockstep {

// Calls `body` at the end of its scope.
template <class Body>
class Finally {
 public:
  explicit Finally(Body body) : body_(std::move(body)) {}
  ~Finally() { body_(); }
  Finally(const Finally&) = delete;
  Finally& operator=(const Finally&) = delete;

 private:
  Body body_;
};

// Calls `body` at the end of its scope if an exception ends it.
template <class Body>
class OnError {
 public:
  explicit OnError(Body body) : body_(std::move(body)) {}
  ~OnError() {
    if (std::uncaught_exceptions() > before_) body_();
  }
  OnError(const OnError&) = delete;
  OnError& operator=(const OnError&) = delete;

 private:
  Body body_;
  int before_ = std::uncaught_exceptions();
};

}  // namespace lockstep
