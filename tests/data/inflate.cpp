// Decompression in pieces.
#include "lockstep/data/inflate_internal.h"

#include <zlib.h>

#include <string>
#include <vector>

#include "../support/testing.h"

TEST_CASE("compressed data are read in pieces of any size, to their end and not beyond") {
  std::string text;
  for (int i = 0; i < 50000; ++i) text += std::to_string(i) + ',';
  std::vector<std::byte> packed(compressBound(text.size()));
  uLongf size = packed.size();
  REQUIRE(compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(text.data()),
                   text.size()) == Z_OK);
  const auto bare = std::span(packed).subspan(2, size - 6);  // without zlib's own wrapper
  for (const std::size_t piece : {std::size_t{1}, std::size_t{1000}, text.size(), 2 * text.size()}) {
    ls::data::Inflater inflater(bare, ls::data::Compression::kDeflate, "f");
    std::string out, next(piece, '\0');
    while (const std::size_t count = inflater.read(std::as_writable_bytes(std::span(next))))
      out += next.substr(0, count);
    CHECK(out == text);
    CHECK(inflater.read(std::as_writable_bytes(std::span(next))) == 0);
  }
  std::vector<std::byte> padded(bare.begin(), bare.end());
  padded.push_back(std::byte{0});
  std::vector<std::byte> rest(text.size() + 1);
  ls::data::Inflater followed(padded, ls::data::Compression::kDeflate, "f");  // padding is of gzip files alone
  CHECK(contains(error_of<ls::IoError>([&] { followed.read(rest); }), "something follows"));
  ls::data::Inflater cut(bare.first(bare.size() - 1), ls::data::Compression::kDeflate, "f");
  std::vector<std::byte> all(text.size() + 1);
  CHECK(contains(error_of<ls::IoError>([&] { cut.read(all); }), "f: damaged compressed data: the compressed data end"));
}
