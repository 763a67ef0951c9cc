// Limits of the store, the rendezvous and the launcher: the most that they accept from other processes, and their
// waits.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "lockstep/base/error.h"

namespace lockstep::parallel {

// Limits of a store.
inline constexpr std::size_t kMaxStoreKey = 4 << 10;
inline constexpr std::size_t kMaxStoreValue = 16 << 20;
inline constexpr std::size_t kMaxStoreBytes = 512 << 20;  // of all keys and values together
inline constexpr std::size_t kStoreEntryBytes = 128;      // counted for each key in addition: the table's overhead
inline constexpr std::size_t kMaxWaitKeys = 4096;         // in one call
inline constexpr std::uint64_t kMaxStoreFile =
    2 * std::uint64_t{kMaxStoreBytes};  // file of a FileStore: the table before and after a change

// Limits of connections to a store.
inline constexpr std::size_t kMaxHelloBytes = 64;       // limit of the first frame, which has 28 bytes
inline constexpr std::size_t kMaxHandshakeBytes = 768;  // of a TLS handshake, in each direction
inline constexpr std::size_t kMaxUnauthenticated = 64;  // concurrent peers without a first frame; one more drops one
inline constexpr std::size_t kMaxAccepted = 64;         // new connections before the existing ones are served
inline constexpr std::size_t kMaxFrame = 2 * kMaxStoreValue + (64 << 10);  // frame of an authenticated peer
inline constexpr std::chrono::seconds kHandshakeDeadline{5};

// Pause between two attempts to reach a store that does not listen yet.
inline constexpr std::chrono::milliseconds kConnectPoll{1};
// Over a network the pause doubles up to this limit.
inline constexpr std::chrono::milliseconds kLongestConnectPoll{64};
// Longest time in which the system's resolver reports an unknown name.
inline constexpr std::chrono::seconds kLongestLookUp{60};
// Time granted to another job's run that is ending, to release its address.
inline constexpr std::chrono::seconds kStaleRun{1};

inline constexpr int kMaxRanks = 4096;
inline constexpr std::size_t kTokenBytes = 32;  // size of a new job token

// Limits of the data that the launcher reads from its workers.
inline constexpr std::size_t kMaxErrorFile = 512 << 10;  // parsed JSON takes up to 80 times that (only brackets)
inline constexpr std::size_t kMaxErrorText = 4 << 10;    // of the error text kept from that file
inline constexpr std::size_t kMaxOutputLine = 64 << 10;  // longer lines are forwarded in pieces

}  // namespace lockstep::parallel
