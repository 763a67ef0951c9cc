// The command line of the benchmark drivers: --name value pairs; a name may be repeated.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

class Arguments {
 public:
  Arguments(int argc, char** argv) {
    for (int i = 1; i < argc; i += 2) {
      const std::string key = argv[i];
      if (!key.starts_with("--") || i + 1 >= argc) throw std::invalid_argument("expected --name value, got " + key);
      values_[key.substr(2)].push_back(argv[i + 1]);
    }
  }
  std::vector<std::string> all(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? std::vector<std::string>{} : found->second;
  }
  std::string get(const std::string& key, const std::string& otherwise = "") const {
    const std::vector<std::string> values = all(key);
    return values.empty() ? otherwise : values.back();
  }

 private:
  std::map<std::string, std::vector<std::string>> values_;
};

}  // namespace bench
