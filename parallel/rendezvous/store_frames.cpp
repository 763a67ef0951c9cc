#include <concepts>
#include <span>

#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/store_frames_internal.h"
#include "lockstep/parallel/rendezvous/store_table_internal.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

std::string with_length(const std::string& content) {
  std::string out;
  out.reserve(kFrameHeader + content.size());
  put_little(out, static_cast<std::uint32_t>(content.size()));
  return out += content;
}

ByteReader reader_of(std::string_view content) {
  return ByteReader(std::as_bytes(std::span(content.data(), content.size())), "store: frame");
}

void expect_end(const ByteReader& reader) {
  if (reader.remaining() > 0) reader.fail(fmt::format("{} bytes too many", reader.remaining()));
}

}  // namespace

std::string frame(const StoreHello& hello) {
  std::string content;
  put_little(content, StoreHello::kMagic);
  put_little(content, hello.version);
  put_little(content, hello.job.low);
  put_little(content, hello.job.high);
  return with_length(content);
}

std::string frame(std::uint8_t code, const std::vector<std::string>& fields) {
  std::string content;
  put_little(content, code);
  put_little(content, static_cast<std::uint32_t>(fields.size()));
  for (const std::string& field : fields) {
    put_little(content, static_cast<std::uint32_t>(field.size()));
    content += field;
  }
  return with_length(content);
}

std::string frame(const StoreRequest& request) {
  return frame(static_cast<std::uint8_t>(request.op), to_fields(request));
}

// Another version may have other fields after its number.
StoreHello read_hello(std::string_view content) {
  ByteReader reader = reader_of(content);
  if (reader.little<std::uint64_t>("magic number") != StoreHello::kMagic) reader.fail("no hello of a Lockstep store");
  StoreHello hello;
  hello.version = reader.little<std::uint32_t>("version");
  if (hello.version != StoreHello::kVersion) return hello;
  hello.job.low = reader.little<std::uint64_t>("job");
  hello.job.high = reader.little<std::uint64_t>("job");
  expect_end(reader);
  return hello;
}

StoreMessage read_message(std::string_view content) {
  ByteReader reader = reader_of(content);
  StoreMessage message;
  message.code = reader.little<std::uint8_t>("code");
  const auto count = reader.little<std::uint32_t>("number of fields");
  if (count > kMaxWaitKeys + 1) reader.fail(fmt::format("{} fields, at most {} are allowed", count, kMaxWaitKeys + 1));
  for (std::uint32_t i = 0; i < count; ++i)
    message.fields.emplace_back(reader.text(reader.little<std::uint32_t>("length of a field"), "field"));
  expect_end(reader);
  return message;
}

std::optional<std::string_view> first_frame(std::string_view bytes, std::size_t most) {
  if (bytes.size() < kFrameHeader) return std::nullopt;
  const auto size = reader_of(bytes).little<std::uint32_t>("length");
  if (size > most) reader_of(bytes).fail(fmt::format("a frame of {} bytes, at most {} are allowed", size, most));
  if (bytes.size() - kFrameHeader < size) return std::nullopt;
  return bytes.substr(kFrameHeader, size);
}

}  // namespace lockstep::parallel
