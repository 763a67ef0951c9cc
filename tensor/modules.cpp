#include "lockstep/tensor/modules_internal.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace lockstep {
namespace {

// The folder of the file that this code was loaded from.
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

// Installed modules have a folder of their own; in the build folder they lie beside the library.
void* open_module(const std::string& name, const std::string& entry, std::string& why) {
  for (const std::string& path : {module_file(name), fmt::format("{}/liblockstep_{}.so", own_folder(), name)}) {
    if (void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      void* const found = dlsym(handle, entry.c_str());
      if (!found) why = fmt::format("{} has no {}: it is no module of Lockstep", path, entry);
      return found;
    }
    const char* const error = dlerror();
    // That a file is missing is said by its name; what else is wrong with one that is there, the loader knows.
    if (error && !std::string(error).starts_with(path + ": cannot open shared object file")) why = error;
  }
  return nullptr;
}

}  // namespace lockstep
