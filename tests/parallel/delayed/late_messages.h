// A backend module whose ranks are threads of one process and whose messages arrive late.
#pragma once

#include "tests/support/message_ranks.h"

namespace late_messages {

namespace par = ls::parallel;

constexpr std::uint64_t kMostDelay = 12;  // attempts to receive a message

// All ranks of a group get the same post. It stays until the process ends.
inline std::shared_ptr<Post> post_of(const par::Rendezvous& place) {
  static std::mutex mutex;
  static std::vector<std::shared_ptr<Post>> posts;
  if (place.rank == 0) {
    const std::lock_guard lock(mutex);
    posts.push_back(std::make_shared<Post>(place.size, kMostDelay));
    place.store->set("post", std::to_string(posts.size() - 1));
    return posts.back();
  }
  const std::size_t number = std::stoul(place.store->get("post", std::chrono::seconds(30)));
  const std::lock_guard lock(mutex);
  return posts[number];
}

template <bool kBlocks>
std::unique_ptr<par::Backend> make(const par::InitOptions& options, const par::Rendezvous& place) {
  return std::make_unique<par::MessageGroup>(options, place,
                                             std::make_unique<PostTransport>(post_of(place), place.rank, kBlocks));
}

}  // namespace late_messages
