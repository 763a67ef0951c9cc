// A file, an index or a folder of weights.
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <string_view>

#include <nlohmann/json.hpp>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/files/weights_internal.h"
#include "lockstep/nn/module_internal.h"

namespace lockstep::nn {
namespace {

constexpr std::uint64_t kMostIndexBytes = 64 << 20;
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kFile = "model.safetensors";

bool is_folder(const std::string& path) {
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

bool exists(const std::string& path) {
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0;
}

std::string in_folder(const std::string& path) {
  if (!is_folder(path)) return path;
  const std::string folder = path.ends_with('/') ? path : path + "/";
  for (const char* name : {kFile, kIndex}) {  // transformers prefers the single file, too
    if (exists(folder + name)) return folder + name;
  }
  for (const char* pickle : {"pytorch_model.bin", "pytorch_model.bin.index.json"})
    LOCKSTEP_CHECK_IO(!exists(folder + pickle),
                      "{}{}: the weights in this folder are PyTorch pickles; convert each (the script is also in "
                      "share/lockstep):\npython3 scripts/convert_checkpoint.py IN.bin OUT.safetensors",
                      folder, pickle);
  throw IoError(fmt::format("{}: the folder has neither {} nor {}; pass the path of a file", path, kIndex, kFile));
}

// "gpt2/model.safetensors.index.json" for "gpt2/model-00001-of-00003.safetensors", if that file exists; "": no index.
std::string index_of(const std::string& path) {
  constexpr std::string_view kShard = "-00001-of-00003.safetensors";
  if (path.size() <= kShard.size() || path.size() - path.rfind("-of-") != kShard.size() - kShard.rfind("-of-"))
    return "";
  const std::string index = path.substr(0, path.size() - kShard.size()) + ".safetensors.index.json";
  return exists(index) ? index : "";
}

// The file of each tensor. Files are next to the index.
std::map<std::string, std::string> read_index(const std::string& path) {
  const std::vector<std::byte> bytes = read_file(path, kMostIndexBytes);
  const auto* const text = reinterpret_cast<const char*>(bytes.data());
  const auto json = nlohmann::json::parse(text, text + bytes.size(), nullptr, /*allow_exceptions=*/false);
  const auto wrong = [&](const std::string& what) { return IoError(fmt::format("{}: {}", path, what)); };
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    throw wrong("expected an index of safetensors files: JSON with an object \"weight_map\"");
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : json["weight_map"].items()) {
    if (!file.is_string()) throw wrong(fmt::format("weight_map: {}: expected a file name", lockstep::in_quotes(name)));
    const auto text_of_file = file.get<std::string>();
    if (text_of_file.empty() || text_of_file.find('/') != std::string::npos || text_of_file == "..")
      throw wrong(
          fmt::format("weight_map: {} is not the name of a file next to the index", lockstep::in_quotes(text_of_file)));
    files.emplace(name, text_of_file);
  }
  return files;
}

}  // namespace

WeightFiles::WeightFiles(const std::string& path) : path_(in_folder(path)) {
  if (path_.ends_with(".json")) {
    open_index();
    return;
  }
  files_.push_back(std::make_unique<File>(path_));
  index_ = index_of(path_);
  for (const safetensors::Entry& entry : files_[0]->reader.entries()) tensors_.push_back({files_[0].get(), &entry});
}

void WeightFiles::open_index() {
  const std::map<std::string, std::string> file_of = read_index(path_);
  std::set<std::string> read;
  std::map<std::string, const File*> opened;
  for (const auto& [name, file] : file_of) opened[file] = nullptr;
  const std::string folder = path_.substr(0, path_.rfind('/') + 1);
  for (auto& [file, place] : opened) {
    files_.push_back(std::make_unique<File>(folder + file));
    place = files_.back().get();
    for (const safetensors::Entry& entry : place->reader.entries()) {
      const auto found = file_of.find(entry.name);
      if (found == file_of.end()) {
        unlisted_.push_back({place, &entry});
      } else if (found->second == file) {
        tensors_.push_back({place, &entry});
        read.insert(entry.name);
      }
    }
  }
  for (const auto& [name, file] : file_of)
    LOCKSTEP_CHECK_IO(read.contains(name), "{}: the tensor {} is not in {}", path_, quoted_name(name), folder + file);
}

}  // namespace lockstep::nn

namespace lockstep {

StateDict open(const std::string& path) {
  const nn::WeightFiles files(path);
  std::map<const nn::WeightFiles::File*, std::shared_ptr<std::byte>> mapped;
  for (const auto& file : files.files()) mapped.emplace(file.get(), file->source.map());
  StateDict dict;
  for (const auto& [file, entry] : files.tensors()) {
    if (file->reader.supports("open", *entry)) dict.insert(entry->name, file->reader.map(*entry, mapped.at(file)));
  }
  return dict;
}

}  // namespace lockstep
