#include "lockstep/parallel/rendezvous/modules_internal.h"

#include <mutex>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/modules_internal.h"

// backend_modules.def has a line LOCKSTEP_LINKED_BACKEND(name, fix) for every backend that a static build links,
// and LOCKSTEP_BACKEND_MODULE(...) for every other backend. The fix is the advice if the module is missing.
#define LOCKSTEP_BACKEND_MODULE(name, fix)
#define LOCKSTEP_LINKED_BACKEND(name, fix) \
  extern "C" const lockstep::parallel::BackendModule* lockstep_backend_##name();
#include "backend_modules.def"
#undef LOCKSTEP_BACKEND_MODULE
#undef LOCKSTEP_LINKED_BACKEND

namespace lockstep::parallel {
namespace {

struct Known {
  const char* name;
  const char* fix;
  BackendEntry* linked;  // null: the module is a separate file
  const BackendModule* opened = nullptr;
};
Known known_backends[] = {
#define LOCKSTEP_BACKEND_MODULE(name, fix) {#name, fix, nullptr},
#define LOCKSTEP_LINKED_BACKEND(name, fix) {#name, fix, lockstep_backend_##name},
#include "backend_modules.def"
#undef LOCKSTEP_BACKEND_MODULE
#undef LOCKSTEP_LINKED_BACKEND
};

std::mutex opening;  // guards Known::opened

Known* find(std::string_view name) {
  for (Known& known : known_backends) {
    if (name == known.name) return &known;
  }
  return nullptr;
}

BackendEntry* open_entry(const Known& known) {
  std::string why;
  if (void* const entry = open_module(known.name, fmt::format("lockstep_backend_{}", known.name), why))
    return reinterpret_cast<BackendEntry*>(entry);
  throw NotBuilt(
      fmt::format("init_process_group: the backend '{}' is the module {}, {}\n"
                  "{}, or use the backend shm",
                  known.name, module_file(known.name),
                  why.empty() ? "which does not exist" : "which cannot be opened: " + why, known.fix));
}

}  // namespace

bool is_backend_module(std::string_view name) { return find(name) != nullptr; }

std::string backend_module_names() {
  std::string names;
  for (const Known& known : known_backends) {
    const bool is_last = &known == std::end(known_backends) - 1;
    names += fmt::format("{}{}", names.empty() ? "" : is_last ? " and " : ", ", known.name);
  }
  return names;
}

const BackendModule& backend_module(std::string_view name) {
  Known* const known = find(name);
  LOCKSTEP_CHECK(known, "init_process_group: there is no backend '{}'", name);
  const std::lock_guard lock(opening);
  if (known->opened) return *known->opened;
  BackendEntry* const entry = known->linked ? known->linked : open_entry(*known);
  const BackendModule* const offered = entry();
  if (std::string(offered->version) != LOCKSTEP_VERSION)
    throw NotBuilt(
        fmt::format("init_process_group: the module of backend '{}' was built for Lockstep {}, the library is {}", name,
                    offered->version, LOCKSTEP_VERSION));
  return *(known->opened = offered);
}

}  // namespace lockstep::parallel
