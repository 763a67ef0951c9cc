// A text as training data for a model of characters.
#pragma once

#include <lockstep/lockstep.h>

#include <cstdint>
#include <string>

namespace samples {

namespace ls = lockstep;

// The bytes of a file as ids. A character is a byte; its id is its index among the sorted distinct bytes.
class Text {
 public:
  // Throws lockstep::IoError if the file cannot be read or is empty.
  explicit Text(const std::string& path);

  const ls::Tensor& ids() const { return ids_; }                                             // (characters), u8
  std::int64_t vocabulary() const { return static_cast<std::int64_t>(characters_.size()); }  // distinct characters
  char character(std::int64_t id) const { return characters_.at(static_cast<std::size_t>(id)); }
  // The number of a line end, with which a generated text starts; 0 if the text has none.
  std::int64_t line_end() const;

 private:
  std::string characters_;  // by number
  ls::Tensor ids_;
};

// Consecutive windows of `context` characters, without overlap: the input (context) i64, and as target the character
// that follows each.
class Windows : public ls::data::Dataset {
 public:
  // `ids` is a part of Text::ids(). Throws lockstep::InvalidArgument if it has fewer than two windows.
  Windows(ls::Tensor ids, std::int64_t context);

  std::int64_t size() const override { return ids_.numel() / context_ - 1; }
  ls::data::Example get(std::int64_t index) const override;
  // Shifts the windows of an epoch, so that a character's context differs between epochs.
  void set_epoch(std::int64_t epoch) { offset_ = epoch * (context_ / 3 + 1) % context_; }

 private:
  ls::Tensor ids_;
  std::int64_t context_, offset_ = 0;
};

}  // namespace samples
