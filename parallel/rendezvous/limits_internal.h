// What the store, the rendezvous and the launcher accept from others at most, and how long they wait.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "lockstep/tensor/error.h"

namespace lockstep::parallel {

// Of a store.
inline constexpr std::size_t kMaxStoreKey = 4 << 10;
inline constexpr std::size_t kMaxStoreValue = 16 << 20;
inline constexpr std::size_t kMaxStoreBytes = 512 << 20;  // all keys and values together, and ...
inline constexpr std::size_t kStoreEntryBytes = 128;      // ... for each key what the table needs besides
inline constexpr std::size_t kMaxWaitKeys = 4096;         // in one call
inline constexpr std::uint64_t kMaxStoreFile =
    2 * std::uint64_t{kMaxStoreBytes};  // of a FileStore, overwritten values included

// Of connections to a store.
inline constexpr std::size_t kMaxHelloBytes = 64;       // of the first frame, which is 28 bytes long
inline constexpr std::size_t kMaxHandshakeBytes = 768;  // of a TLS handshake before it is over, in each direction
inline constexpr std::size_t kMaxUnauthenticated =
    64;                                          // peers at once whose first frame has not come; then one is dropped
inline constexpr std::size_t kMaxAccepted = 64;  // connections between two looks at those that are there
inline constexpr std::size_t kMaxFrame = 2 * kMaxStoreValue + (64 << 10);  // of an authenticated peer
inline constexpr std::chrono::seconds kHandshakeDeadline{5};

// Between two tries to reach a store that does not listen yet.
inline constexpr std::chrono::milliseconds kConnectPoll{1};
// ... and where each try goes over a network: the pause doubles up to this.
inline constexpr std::chrono::milliseconds kLongestConnectPoll{64};
// The longest time that the system's resolver takes to say that it does not know a name.
inline constexpr std::chrono::seconds kLongestLookUp{60};
// What a run of another job that ends just now gets to free its address.
inline constexpr std::chrono::seconds kStaleRun{1};

inline constexpr int kMaxRanks = 4096;
inline constexpr std::size_t kTokenBytes = 32;  // of a new job token

// Of what the launcher reads from its workers.
inline constexpr std::size_t kMaxErrorFile = 512 << 10;  // as JSON in memory 80 times that, if it is all brackets
inline constexpr std::size_t kMaxErrorText = 4 << 10;    // of the error kept from it
inline constexpr std::size_t kMaxOutputLine = 64 << 10;  // longer lines are handed on in pieces

}  // namespace lockstep::parallel
