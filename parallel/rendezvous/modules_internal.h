// Backends that are shared objects of their own, opened on first use: what they need (gloo, MPI) is no burden for
// programs that do without. A static build links them in.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::parallel {

class Backend;
struct InitOptions;
struct Rendezvous;

// What a module offers. It returns this from `lockstep_backend_<name>`.
struct BackendModule {
  const char* version;  // it was built for; no other is used
  std::unique_ptr<Backend> (*make)(const InitOptions& options, const Rendezvous& place);
  // For init_method "mpi://", null where a module does not know: this process's place in its job, and a
  // value of each rank, of `bytes`, on all ranks.
  void (*place)(int* rank, int* size);
  void (*gather)(const void* own, void* all, std::size_t bytes);
  bool keeps_store = false;  // its groups use the store as long as they live
};
using BackendEntry = const BackendModule*();

// Whether there can be a module of this name, in this build or in another.
bool is_backend_module(std::string_view name);
// All such names: "sim, gloo, mpi and nccl".
std::string backend_module_names();
// Opens the module; it stays. Throws NotBuilt naming the file that was looked for and what makes it.
const BackendModule& backend_module(std::string_view name);

}  // namespace lockstep::parallel
