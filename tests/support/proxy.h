// A network that misbehaves, between clients and a server of this host: it delays bytes, splits and merges them, and, where
// asked to harm, flips a bit, resets, cuts off or falls silent. What it does follows from the seed and the number of the
// connection.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

enum class Harm { kNone, kFlip, kReset, kCut, kStall };

struct ProxyPlan {
  explicit ProxyPlan(unsigned seed);
  unsigned seed;
  Harm harm;
  int harmed;           // the connection that it happens to: 0 or 1; all others are delayed, split and merged alone
  bool towards_server;  // the direction
  int position;         // after as many bytes, or at this one
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
