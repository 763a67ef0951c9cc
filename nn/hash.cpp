#include "lockstep/nn/hash_internal.h"

#include <new>

#include "xxhash.h"

namespace lockstep::nn {

Hash::Hash() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_));
}

Hash::~Hash() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }

void Hash::update(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), bytes.data(), bytes.size());
}

std::uint64_t Hash::digest() const { return XXH3_64bits_digest(static_cast<XXH3_state_t*>(state_)); }

}  // namespace lockstep::nn
