// Sites, calls and positions of random draws, and the repetition of a function's draws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::random {

// A part of a draw, in counter blocks: block i of the part is block i / own * all + first + i % own of the draw, so it has
// `own` of each `all` blocks.
struct BlockPart {
  std::uint64_t own = 0, all = 0, first = 0;  // own 0: the whole draw
};

// The start of a draw: element i of a kernel uses word i % 4 of counter block i / 4.
struct Position {
  std::uint64_t seed;    // the key
  std::uint64_t stream;  // upper half of the counter: site, micro-batch, upper bits of the call
  std::uint64_t offset;  // lower half of the counter: lower bits of the call, and the first block
  BlockPart part = {};
  // In a CUDA graph: the copy of the position in device memory, which kernels read instead.
  const Position* on_device = nullptr;
};

// A site is a number of kSiteBits bits. The site of a module is the hash of its path.
inline constexpr int kSiteBits = 40;
inline constexpr std::uint64_t kUserSite = 0, kInitialSite = 1;  // code outside of modules; initial values

// Where a thread draws: a site and a micro-batch.
struct Place {
  std::uint64_t site;
  std::uint64_t micro_batch;
};
Place current_place();

// Counts a call, and returns the position of its `blocks` counter blocks (of four 32-bit words). Throws InvalidArgument
// for more than 2^36 blocks.
Position next_call(const Place& place, std::uint64_t blocks);
// The same, unless an enclosing DrawFrame repeats an earlier call; frames record it.
Position draw(const Place& place, std::uint64_t blocks);
inline Position draw_initial(std::uint64_t blocks) { return draw({kInitialSite, 0}, blocks); }

// While it exists, the calling thread runs `module`, whose path determines the site of draws. Each draw calls
// `find_site` with the outermost running module and `module`; current_module() calls `describe`, unless it is null.
class SiteGuard {
 public:
  using FindSite = std::uint64_t (*)(const void* called, const void* module);
  using Describe = std::string (*)(const void* module);
  SiteGuard(const void* module, FindSite find_site, Describe describe = nullptr);
  ~SiteGuard();
  SiteGuard(const SiteGuard&) = delete;
  SiteGuard& operator=(const SiteGuard&) = delete;

  // The module that was running before; null if none was.
  const void* outer_module() const { return outer_ ? outer_->module_ : nullptr; }
  std::uint64_t site() const;
  std::string description() const { return describe_ ? describe_(module_) : ""; }

 private:
  const void* module_;
  FindSite find_site_;
  Describe describe_;
  const SiteGuard* outer_;
};

// A description of the module that the calling thread runs; empty outside of modules.
std::string current_module();

// The calling thread's innermost SiteGuard; null outside of modules.
const SiteGuard* innermost_site_guard();

// While it exists, the calling thread draws at the site of another thread, whose innermost guard is `guard`. The guard
// must outlive it.
class SiteContext {
 public:
  explicit SiteContext(const SiteGuard* guard);
  ~SiteContext();
  SiteContext(const SiteContext&) = delete;
  SiteContext& operator=(const SiteContext&) = delete;

 private:
  const SiteGuard* previous_;
};

// The seed and the numbers of calls of a rank that is a thread. All other threads share those of the process.
struct RankState;
// The calling thread is such a rank until the last result of its calls is destroyed on it. A rank begins with a copy of
// the process's state.
std::shared_ptr<void> become_rank();
// The state of the calling thread's rank; null: the process's.
std::shared_ptr<RankState> rank_state();

// While it exists, the calling thread draws as a thread of the rank with this state.
class RankStateGuard {
 public:
  explicit RankStateGuard(std::shared_ptr<RankState> state);
  ~RankStateGuard();
  RankStateGuard(const RankStateGuard&) = delete;
  RankStateGuard& operator=(const RankStateGuard&) = delete;

 private:
  std::shared_ptr<RankState> previous_;
};

struct Draw {
  std::uint64_t blocks;
  Position position;
};

// While it exists, the calling thread repeats the draws in `repeated`, in order, unless `repeated` is null. Each draw is
// appended to `recorded`, unless it is null, and to that of enclosing frames up to the frame that repeats. Throws
// InvalidArgument for a draw whose number of blocks differs from the repeated one.
struct DrawFrame {
  DrawFrame(std::vector<Draw>* recorded, const std::vector<Draw>* repeated);
  ~DrawFrame();
  DrawFrame(const DrawFrame&) = delete;
  DrawFrame& operator=(const DrawFrame&) = delete;

  std::vector<Draw>* recorded;
  const std::vector<Draw>* repeated;
  std::size_t next = 0;  // index into `repeated`
  DrawFrame* outer;
};

// Whether the calling thread repeats draws.
bool is_repeating();
// Whether the calling thread records or repeats draws.
bool has_draw_frame();

}  // namespace lockstep::random
