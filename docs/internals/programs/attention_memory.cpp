// Bytes of a training step of four transformer blocks: attention composed or by tiles, blocks' results kept or recomputed.
#include <lockstep/lockstep.h>

#include <cstdio>
#include <cstdlib>

namespace ls = lockstep;
constexpr std::int64_t kWidth = 64, kHeads = 4;

struct Block : ls::nn::Module {
  bool by_tiles;
  ls::nn::Linear& qkv = add<ls::nn::Linear>("qkv", kWidth, 3 * kWidth);
  ls::nn::Sequential& mlp = add<ls::nn::Sequential>("mlp", ls::nn::Linear(kWidth, 4 * kWidth), ls::nn::GELU(),
                                                    ls::nn::Linear(4 * kWidth, kWidth));
  explicit Block(bool tiles) : by_tiles(tiles) {}
  ls::Tensor forward(const ls::Tensor& x) const override {  // (time, width)
    const ls::Tensor all = qkv(x).reshape({-1, 3, kHeads, kWidth / kHeads}).permute({1, 2, 0, 3});
    const ls::Tensor q = all[0], k = all[1], v = all[2];
    const auto mask = [&] { return ls::triu(ls::full({x.size(0), x.size(0)}, -1e30), 1); };
    const ls::Tensor y = by_tiles ? ls::scaled_dot_product_attention(q, k, v, {.is_causal = true})
                                  : ls::matmul(ls::softmax(ls::matmul(q / 4, k.transpose(1, 2)) + mask(), -1), v);
    return x + mlp(x + y.transpose(0, 1).reshape(x.shape()));
  }
};

int main(int, char** argv) {
  ls::set_num_threads(1);  // each thread would have tiles of its own
  for (int variant = 0; variant < 4; ++variant) {
    const Block block(variant >= 2);
    const std::int64_t before = ls::allocator_stats().allocated_bytes;
    ls::reset_peak_bytes();
    ls::Tensor x = ls::ones({std::atol(argv[1]), kWidth});
    for (int i = 0; i < 4; ++i) x = variant % 2 == 1 ? ls::autograd::checkpoint(block, x) : block(x);
    const double kept = static_cast<double>(ls::allocator_stats().allocated_bytes - before) * 1e-6;
    x.sum().backward();
    std::printf("attention %s, results %s: %6.2f MB after forward, at most %6.2f MB\n",
                variant >= 2 ? "by tiles" : "composed", variant % 2 == 1 ? "recomputed" : "kept      ", kept,
                static_cast<double>(ls::allocator_stats().peak_bytes - before) * 1e-6);
  }
}
