#include "support/text.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace samples {

Text::Text(const std::string& path) {
  std::string bytes;
  if (std::filesystem::is_regular_file(path)) {
    std::ifstream file(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  if (bytes.empty())
    throw ls::IoError(fmt::format("{}: expected a readable, non-empty text file\nPass another file with --file", path));
  std::array<int, 256> id{};
  for (const char c : bytes) id[static_cast<unsigned char>(c)] = 1;
  for (std::size_t c = 0; c < id.size(); ++c) {
    if (id[c] == 0) continue;
    id[c] = static_cast<int>(characters_.size());
    characters_ += static_cast<char>(c);
  }
  ids_ = ls::empty({static_cast<std::int64_t>(bytes.size())}, {.dtype = ls::kUInt8});
  std::uint8_t* out = ids_.data<std::uint8_t>();
  for (const char c : bytes) *out++ = static_cast<std::uint8_t>(id[static_cast<unsigned char>(c)]);
}

std::int64_t Text::line_end() const {
  const std::size_t at = characters_.find('\n');
  return at == std::string::npos ? 0 : static_cast<std::int64_t>(at);
}

Windows::Windows(ls::Tensor ids, std::int64_t context) : ids_(std::move(ids)), context_(context) {
  if (size() < 1)
    throw ls::InvalidArgument(
        fmt::format("--file: the training or test part has {} characters, expected at least {} (2 x --context {})\n"
                    "Use a longer text, or a smaller --context",
                    ids_.numel(), 2 * context, context));
}

ls::data::Example Windows::get(std::int64_t index) const {
  const std::int64_t start = offset_ + index * context_;
  return {ids_.narrow(0, start, context_).to(ls::kInt64), ids_.narrow(0, start + 1, context_).to(ls::kInt64)};
}

}  // namespace samples
