// Where the ranks of a job meet: an address at which rank 0 serves a store. One for the processes of one host, one for
// several hosts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/place_internal.h"
#include "lockstep/parallel/rendezvous/store.h"

namespace lockstep::parallel {

class MeetingPlace {
 public:
  virtual ~MeetingPlace() = default;

  // For rank 0: serves a store there and joins it. Null where somebody else has the address. Throws
  // UnknownHost where a later try may help, CommError where the address cannot be had at all.
  virtual std::shared_ptr<Store> host() = 0;

  // Why host() has returned null, where it can tell.
  virtual std::string taken() const { return {}; }

  // Tries once to join the store that is there. Throws as host() does.
  struct Joined {
    std::shared_ptr<Store> store = nullptr;
    bool is_foreign = false;   // what is there is not of this job; it may be about to end
    std::string failure = {};  // without a store: why, for the user
  };
  virtual Joined join(Deadline deadline) = 0;

  // This host's address towards the others.
  virtual std::string own_address() = 0;
};

std::unique_ptr<MeetingPlace> make_unix_place(const Place& place);
std::unique_ptr<MeetingPlace> make_tcp_place(const Place& place);

// Meets the other ranks at `place`, within `timeout`. Throws CommError or CommTimeout that names who is missing or there
// twice.
Rendezvous meet(const Place& place, std::chrono::milliseconds timeout);

}  // namespace lockstep::parallel
