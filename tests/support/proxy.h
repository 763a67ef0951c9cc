// A proxy that simulates a bad network between clients and a server of this host. It delays, splits and merges bytes,
// and on request flips a bit, resets or cuts the connection, or stops forwarding. The seed and the number of the
// connection determine its behaviour.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

enum class Harm { kNone, kFlip, kReset, kCut, kStall };

struct ProxyPlan {
  explicit ProxyPlan(unsigned seed);
  unsigned seed;
  Harm harm;
  int harmed;           // the connection that is harmed: 0 or 1; the others are only delayed, split and merged
  bool towards_server;  // the direction
  int position;         // the byte at which the harm happens
};

class Proxy {
 public:
  Proxy(int server_port, const ProxyPlan& plan);
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;
  int port() const { return port_; }
  bool has_harmed() const { return has_harmed_; }

 private:
  struct Line;
  struct Loop;
  int port_ = 0;
  std::atomic<bool> stopping_{false}, has_harmed_{false};
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};
