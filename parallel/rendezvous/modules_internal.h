// Backends in shared objects of their own, opened on first use: programs that do not use such a backend do not load
// its dependencies (Gloo, MPI, UCC). A static build links these backends in.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/parallel/rendezvous/rendezvous.h"

namespace lockstep::parallel {

class Backend;
struct InitOptions;

// The interface of a module. Its function `lockstep_backend_<name>` returns one.
struct BackendModule {
  const char* version;  // the library version the module was built for; must match
  std::unique_ptr<Backend> (*make)(const InitOptions& options, const Rendezvous& place);
  // For a module whose library knows the ranks: its name is then an init_method, as in "mpi://". Null in other modules.
  // `place` reports rank and size of this process; `gather` collects a value of `bytes` bytes from each rank on all
  // ranks.
  void (*place)(int* rank, int* size) = nullptr;
  void (*gather)(const void* own, void* all, std::size_t bytes) = nullptr;
  bool keeps_store = false;  // whether its groups use the store for their whole lifetime
  BackendNeeds needs = {};
};
using BackendEntry = const BackendModule*();

// Whether this or another build has a module of this name.
bool is_backend_module(std::string_view name);
// The names of all modules: "sim, gloo, mpi, ucc and nccl".
std::string backend_module_names();
// Opens the module, which then stays open. Throws NotBuilt naming the expected file and how to build it.
const BackendModule& backend_module(std::string_view name);

}  // namespace lockstep::parallel
