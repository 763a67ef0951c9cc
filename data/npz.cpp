// The zip format, as far as NumPy's archives use it: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
#include <zlib.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/file_internal.h"
#include "lockstep/data/inflate_internal.h"
#include "lockstep/data/npy_internal.h"
#include "lockstep/data/readers.h"

namespace lockstep::data {
namespace {

constexpr std::uint32_t kEndSignature = 0x06054b50, kEnd64Signature = 0x06064b50, kLocator64Signature = 0x07064b50;
constexpr std::uint32_t kEntrySignature = 0x02014b50, kLocalSignature = 0x04034b50;
constexpr std::uint64_t kEndBytes = 22, kLocatorBytes = 20, kEnd64Bytes = 56, kLocalBytes = 30, kCommentBytes = 65535;
constexpr std::uint32_t kSeeZip64 = 0xffffffff;  // a 32-bit field whose value stands in a zip64 record
constexpr std::uint16_t kZip64Extra = 1, kEncryptedFlag = 1, kStored = 0, kDeflated = 8;
constexpr std::string_view kSuffix = ".npy";

struct Directory {
  std::uint64_t entries, bytes, offset;
};

struct Entry {
  std::string name;
  std::uint16_t method;
  std::uint32_t crc;
  std::uint64_t compressed_bytes, bytes, offset;  // the offset is that of the local header
};

void check_range(const ByteSource& source, std::uint64_t offset, std::uint64_t count) {
  std::uint64_t end = 0;
  LOCKSTEP_CHECK_IO(checked_add(offset, count, &end) && end <= source.size(),
                    "{}: byte {}: {} bytes needed, the file has {}", source.name(), offset, count, source.size());
}

std::vector<std::byte> read_part(const ByteSource& source, std::uint64_t offset, std::uint64_t count) {
  check_range(source, offset, count);
  std::vector<std::byte> part(count);
  source.read_at(offset, part);
  return part;
}

Directory read_end64(const ByteSource& source, std::uint64_t end_offset) {
  LOCKSTEP_CHECK_IO(end_offset >= kLocatorBytes, "{}: zip: the zip64 record is missing", source.name());
  const auto locator_bytes = read_part(source, end_offset - kLocatorBytes, kLocatorBytes);
  ByteReader locator(locator_bytes, source.name(), end_offset - kLocatorBytes);
  if (locator.little<std::uint32_t>("zip64 locator") != kLocator64Signature)
    locator.fail("the zip64 locator is missing");
  locator.skip(4, "zip64 locator: disk");
  const auto offset = locator.little<std::uint64_t>("zip64 locator: offset");
  const auto record_bytes = read_part(source, offset, kEnd64Bytes);
  ByteReader record(record_bytes, source.name(), offset);
  if (record.little<std::uint32_t>("zip64 record") != kEnd64Signature) record.fail("the zip64 record is missing");
  record.seek(32, "zip64 record");
  Directory directory;
  directory.entries = record.little<std::uint64_t>("zip64 record: entries");
  directory.bytes = record.little<std::uint64_t>("zip64 record: directory size");
  directory.offset = record.little<std::uint64_t>("zip64 record: directory offset");
  return directory;
}

// The end record is found from the back: only a comment of at most 64 KiB may follow it.
Directory read_end(const ByteSource& source) {
  const std::uint64_t tail_bytes = std::min(source.size(), kEndBytes + kCommentBytes);
  const std::uint64_t tail_offset = source.size() - tail_bytes;
  const auto tail = read_part(source, tail_offset, tail_bytes);
  ByteReader reader(tail, source.name(), tail_offset);
  for (std::uint64_t at = tail_bytes < kEndBytes ? 0 : tail_bytes - kEndBytes + 1; at-- > 0;) {
    reader.seek(at, "zip end record");
    if (reader.little<std::uint32_t>("zip end record") != kEndSignature) continue;
    reader.skip(6, "zip end record: disks");
    Directory directory;
    directory.entries = reader.little<std::uint16_t>("zip end record: entries");
    directory.bytes = reader.little<std::uint32_t>("zip end record: directory size");
    directory.offset = reader.little<std::uint32_t>("zip end record: directory offset");
    if (at + kEndBytes + reader.little<std::uint16_t>("zip end record: comment length") != tail_bytes) continue;
    const bool zip64 = directory.entries == 0xffff || directory.bytes == kSeeZip64 || directory.offset == kSeeZip64;
    return zip64 ? read_end64(source, tail_offset + at) : directory;
  }
  throw IoError(fmt::format("{}: not an npz file: no zip end record", source.name()));
}

// The zip64 field holds, in this order, the values that did not fit their 32 bits.
void read_zip64_extra(ByteReader extra, Entry& entry) {
  while (extra.remaining() >= 4) {
    const auto id = extra.little<std::uint16_t>("zip extra field");
    const auto size = extra.little<std::uint16_t>("zip extra field");
    if (id != kZip64Extra) {
      extra.skip(size, "zip extra field");
      continue;
    }
    for (std::uint64_t* value : {&entry.bytes, &entry.compressed_bytes, &entry.offset}) {
      if (*value == kSeeZip64) *value = extra.little<std::uint64_t>("zip64 extra field");
    }
    return;
  }
}

Entry read_entry(ByteReader& reader) {
  if (reader.little<std::uint32_t>("zip directory entry") != kEntrySignature) reader.fail("not a zip directory entry");
  reader.skip(4, "zip entry: versions");
  const auto flags = reader.little<std::uint16_t>("zip entry: flags");
  Entry entry;
  entry.method = reader.little<std::uint16_t>("zip entry: method");
  reader.skip(4, "zip entry: time");
  entry.crc = reader.little<std::uint32_t>("zip entry: checksum");
  entry.compressed_bytes = reader.little<std::uint32_t>("zip entry: compressed size");
  entry.bytes = reader.little<std::uint32_t>("zip entry: size");
  const auto name_bytes = reader.little<std::uint16_t>("zip entry: name length");
  const auto extra_bytes = reader.little<std::uint16_t>("zip entry: extra length");
  const auto comment_bytes = reader.little<std::uint16_t>("zip entry: comment length");
  reader.skip(8, "zip entry: attributes");
  entry.offset = reader.little<std::uint32_t>("zip entry: offset");
  entry.name = reader.text(name_bytes, "zip entry: name");
  const std::uint64_t extra_offset = reader.offset();
  read_zip64_extra(ByteReader(reader.bytes(extra_bytes, "zip entry: extra"), reader.file(), extra_offset), entry);
  reader.skip(comment_bytes, "zip entry: comment");
  if (flags & kEncryptedFlag) reader.fail(fmt::format("{} is encrypted", in_quotes(entry.name)));
  return entry;
}

std::vector<Entry> read_directory(const ByteSource& source) {
  const Directory directory = read_end(source);
  LOCKSTEP_CHECK_IO(directory.entries <= limits::kZipEntries && directory.bytes <= limits::kZipDirectoryBytes,
                    "{}: zip: {} entries in {} bytes; at most {} in {} are read", source.name(), directory.entries,
                    directory.bytes, limits::kZipEntries, limits::kZipDirectoryBytes);
  const auto bytes = read_part(source, directory.offset, directory.bytes);
  ByteReader reader(bytes, source.name(), directory.offset);
  std::vector<Entry> entries;
  for (std::uint64_t i = 0; i < directory.entries; ++i) entries.push_back(read_entry(reader));
  return entries;
}

const Entry& pick(const std::vector<Entry>& entries, const std::string& name, const std::string& file) {
  const Entry* found = nullptr;
  std::string names;
  int matches = 0;
  for (const Entry& entry : entries) {
    const bool array = entry.name.ends_with(kSuffix);
    const auto stem = entry.name.substr(0, entry.name.size() - (array ? kSuffix.size() : 0));
    if (names.size() < 200) names += (names.empty() ? "" : ", ") + in_quotes(stem);
    if (name.empty() || stem == name) {
      found = &entry;
      ++matches;
    }
  }
  LOCKSTEP_CHECK(matches == 1, "load_npz: {}: {} arrays match {}; there are: {}", file, matches,
                 name.empty() ? "the empty name, which picks the only one" : in_quotes(name), names);
  return *found;
}

// The content of an entry, from front to back. Memory holds the compressed bytes and not what they inflate
// to.
class Content {
 public:
  Content(const ByteSource& source, const Entry& entry)
      : source_(source), entry_(entry), name_(source.name() + ": " + in_quotes(entry.name)) {
    const auto local = read_part(source, entry.offset, kLocalBytes);
    ByteReader reader(local, source.name(), entry.offset);
    if (reader.little<std::uint32_t>("zip local header") != kLocalSignature) reader.fail("not a zip local header");
    reader.seek(26, "zip local header");
    const std::uint64_t name_bytes = reader.little<std::uint16_t>("zip local header: name length");
    const std::uint64_t extra_bytes = reader.little<std::uint16_t>("zip local header: extra length");
    begin_ = entry.offset + kLocalBytes + name_bytes + extra_bytes;
    check_range(source, begin_, entry.compressed_bytes);
    if (entry.method == kStored) {
      require_size(entry.compressed_bytes);
      return;
    }
    LOCKSTEP_CHECK_IO(entry.method == kDeflated, "{}: zip method {}; stored (0) and deflated (8) are read", name_,
                      entry.method);
    LOCKSTEP_CHECK_IO(
        entry.bytes <= limits::kInflatedBytes && entry.bytes / limits::kDeflateRatio <= entry.compressed_bytes,
        "{}: the archive says {} bytes; {} compressed ones cannot give that (limit: {})", name_, entry.bytes,
        entry.compressed_bytes, limits::kInflatedBytes);
    compressed_ = read_part(source, begin_, entry.compressed_bytes);
    inflater_ = std::make_unique<Inflater>(compressed_, Compression::kDeflate, name_);
  }

  std::uint64_t size() const { return entry_.bytes; }
  const std::string& name() const { return name_; }

  // Throws IoError where there are fewer bytes than `out` has.
  void read(std::span<std::byte> out) {
    if (inflater_) {
      const std::size_t count = inflater_->read(out);
      if (count < out.size()) require_size(position_ + count);
    } else {
      source_.read_at(begin_ + position_, out);
    }
    position_ += out.size();
  }

  // Compares size and checksum with the archive's, so that nothing is allocated later for bytes that are not
  // there. Returns to the first byte.
  void check() {
    std::vector<std::byte> chunk(64 << 10);
    uLong crc = 0;
    while (position_ < size()) {
      const auto part = std::span(chunk).first(std::min<std::uint64_t>(chunk.size(), size() - position_));
      read(part);
      crc = crc32_z(crc, reinterpret_cast<const Bytef*>(part.data()), part.size());
    }
    if (inflater_) require_size(size() + inflater_->read(std::span(chunk).first(1)));
    LOCKSTEP_CHECK_IO(crc == entry_.crc, "{}: its checksum is {:08x}, the archive says {:08x}", name_, crc, entry_.crc);
    position_ = 0;
    if (inflater_) inflater_->rewind();
  }

 private:
  void require_size(std::uint64_t found) const {
    LOCKSTEP_CHECK_IO(found == size(), "{}: has {} bytes{}, the archive says {}", name_, found,
                      found > size() ? " or more" : "", size());
  }

  const ByteSource& source_;
  const Entry& entry_;
  std::string name_;
  std::uint64_t begin_ = 0, position_ = 0;
  std::vector<std::byte> compressed_;
  std::unique_ptr<Inflater> inflater_;
};

}  // namespace

Tensor parse_npz(const ByteSource& source, const std::string& name) {
  const std::vector<Entry> entries = read_directory(source);
  const Entry& entry = pick(entries, name, source.name());
  Content content(source, entry);
  content.check();
  return read_npy(
      {.size = content.size(), .name = content.name(), .read = [&](std::span<std::byte> out) { content.read(out); }});
}

}  // namespace lockstep::data

namespace lockstep {

Tensor load_npz(const std::string& path, const std::string& name) { return data::parse_npz(InputFile(path), name); }

}  // namespace lockstep
