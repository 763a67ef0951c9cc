#include "lockstep/base/modules_internal.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace lockstep {
namespace {

// The folder of the binary that contains this code.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || !info.dli_fname) return ".";
  const std::string path = info.dli_fname;
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

}  // namespace

std::string module_file(const std::string& name) {
  return fmt::format("{}/lockstep/liblockstep_{}.so", own_folder(), name);
}

// Installed modules are in a folder of their own; in the build folder they are next to the library.
void* open_module(const std::string& name, const std::string& entry, std::string& why) {
  for (const std::string& path : {module_file(name), fmt::format("{}/liblockstep_{}.so", own_folder(), name)}) {
    if (void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      void* const found = dlsym(handle, entry.c_str());
      if (!found) why = fmt::format("{} has no function {}: it is not a module of Lockstep", path, entry);
      return found;
    }
    const char* const error = dlerror();
    // A missing file is reported by its name; for other errors the loader's message is the reason.
    if (error && !std::string(error).starts_with(path + ": cannot open shared object file")) why = error;
  }
  return nullptr;
}

}  // namespace lockstep
