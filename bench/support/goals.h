// The rows of bench_run and their goals.
#pragma once

#include <limits>
#include <string>
#include <vector>

namespace bench {

inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

struct Goal {
  std::string name;
  std::string program;  // that prints the row: bench_<program> and its peers; empty if run.cpp measures it
  std::string unit = "us";
  double at_most = kNone;    // bound of our figure, in that unit
  double at_least = kNone;   // bound of peer / ours
  std::string against = "";  // beginning of the name of the ratio's peer; empty: the fastest framework
  int threads = 1;           // for which the program measures the row
};

// References that are no framework. A row whose name has the prefix is the reference's row of that name.
struct Reference {
  std::string prefix, name;
};
inline const std::vector<Reference> kReferences{
    {"bare_", "bare oneDNN"}, {"composed_", "composition"}, {"formula_", "closed form"}};

// "Equal" allows 5 %, the difference between two runs of one program.
inline constexpr double kEqual = 0.95;
inline constexpr double kNearly = 1 / 1.05;  // 5 % more than the reference

// With two threads, the peer has two threads as well.
inline const std::vector<Goal> kGoals{
    {.name = "logreg_step", .program = "small", .at_most = 1.5, .at_least = 12},
    {.name = "add10", .program = "small", .at_most = 0.1},
    {.name = "mlp_step_32", .program = "mlp", .at_least = 0.90, .against = "bare oneDNN"},
    {.name = "mlp_step_128", .program = "mlp", .at_least = 0.93, .against = "bare oneDNN"},
    {.name = "mlp_step_512", .program = "mlp", .at_least = 0.95, .against = "bare oneDNN"},
    {.name = "mlp_step_512_threads_2", .program = "mlp", .at_least = kEqual, .threads = 2},
    {.name = "exp_1m", .program = "elementwise", .at_least = 2.5},
    {.name = "exp_1m_threads_2", .program = "elementwise", .at_least = kEqual, .threads = 2},
    {.name = "sigmoid_1m", .program = "elementwise", .at_least = 2.5},
    {.name = "tanh_1m", .program = "elementwise", .at_least = 2.5},
    {.name = "add_1m", .program = "elementwise", .at_least = kEqual},
    {.name = "sum_1m", .program = "elementwise", .at_least = kEqual},
    {.name = "softmax_1024", .program = "elementwise", .at_least = 2},
    {.name = "softmax_1024_threads_2", .program = "elementwise", .at_least = kEqual, .threads = 2},
    {.name = "gelu_100k", .program = "elementwise", .at_least = 1.2},
    {.name = "gelu_100k_threads_2", .program = "elementwise", .at_least = kEqual, .threads = 2},
    {.name = "gelu_4m", .program = "elementwise", .at_least = 1.2},
    {.name = "gelu_4m_threads_2", .program = "elementwise", .at_least = kEqual, .threads = 2},
    {.name = "attention_256", .program = "attention", .at_least = 1.25, .against = "PyTorch"},
    {.name = "attention_2048", .program = "attention", .at_least = 1.25, .against = "PyTorch"},
    {.name = "attention_4096", .program = "attention", .at_least = 1.25, .against = "PyTorch"},
    {.name = "attention_2048_threads_2",
     .program = "attention",
     .at_least = kEqual,
     .against = "PyTorch",
     .threads = 2},
    {.name = "attention_256", .program = "attention", .at_least = 1.0, .against = "composition"},
    {.name = "attention_2048", .program = "attention", .at_least = 1.67, .against = "composition"},
    {.name = "attention_4096", .program = "attention", .at_least = 1.67, .against = "composition"},
    {.name = "attention_memory_4096",
     .program = "attention",
     .unit = "MB",
     .at_least = kNearly,
     .against = "closed form"},
    {.name = "gpt_step_128", .program = "gpt", .at_least = 1 / 0.45, .against = "PyTorch"},
    {.name = "gpt_step_512", .program = "gpt", .at_least = 1 / 0.50, .against = "PyTorch"},
    {.name = "gpt_step_128", .program = "gpt", .at_least = 0.71, .against = "bare oneDNN"},
    {.name = "gpt_step_512", .program = "gpt", .at_least = 0.71, .against = "bare oneDNN"},
    {.name = "gpt_step_128_threads_2", .program = "gpt", .at_least = 2, .against = "PyTorch", .threads = 2},
    {.name = "gpt_step_512_threads_2", .program = "gpt", .at_least = 1.67, .against = "PyTorch", .threads = 2},
    {.name = "gpt_step_128_threads_2", .program = "gpt", .at_least = 0.71, .against = "bare oneDNN", .threads = 2},
    {.name = "gpt_step_512_threads_2", .program = "gpt", .at_least = 0.71, .against = "bare oneDNN", .threads = 2},
    {.name = "gpt_inference_384", .program = "gpt", .at_least = 1.3, .against = "PyTorch"},
    {.name = "gpt_inference_384_threads_2", .program = "gpt", .at_least = kEqual, .against = "PyTorch", .threads = 2},
    {.name = "lstm_step", .program = "recurrent", .at_least = 1.2, .against = "PyTorch"},
    {.name = "lstm_step_threads_2", .program = "recurrent", .at_least = kEqual, .against = "PyTorch", .threads = 2},
    {.name = "gru_step", .program = "recurrent", .at_least = 1.0, .against = "PyTorch"},
    {.name = "gru_step_threads_2", .program = "recurrent", .at_least = kEqual, .against = "PyTorch", .threads = 2},
    {.name = "conv_32_14", .program = "vision", .at_least = 1.1, .against = "PyTorch"},
    {.name = "conv_32_14_threads_2", .program = "vision", .at_least = kEqual, .against = "PyTorch", .threads = 2},
    {.name = "conv_128_28", .program = "vision", .at_least = 1.1, .against = "PyTorch"},
    {.name = "conv_128_28_threads_2", .program = "vision", .at_least = kEqual, .against = "PyTorch", .threads = 2},
    {.name = "conv_64_56_backward", .program = "vision", .at_least = 1.1, .against = "PyTorch"},
    {.name = "conv_64_56_backward_threads_2",
     .program = "vision",
     .at_least = kEqual,
     .against = "PyTorch",
     .threads = 2},
    {.name = "cnn_step", .program = "vision", .at_least = 1.1, .against = "PyTorch"},
    {.name = "cnn_step_threads_2", .program = "vision", .at_least = kEqual, .against = "PyTorch", .threads = 2},
    {.name = "resnet18_step", .program = "vision", .at_least = 1.1, .against = "PyTorch"},
    {.name = "resnet18_step_threads_2", .program = "vision", .at_least = kEqual, .against = "PyTorch", .threads = 2},
    {.name = "sample_peak_memory", .program = "", .unit = "MB", .at_most = 20},
    {.name = "header_lines", .program = "", .unit = "lines", .at_most = 60'000},
    {.name = "compile_contract_01_time", .program = "", .unit = "s", .at_most = 2},
    {.name = "compile_contract_01_memory", .program = "", .unit = "MB", .at_most = 250},
    {.name = "stripped_static_sample", .program = "", .unit = "MB", .at_most = 8},
    {.name = "clean_library_build", .program = "", .unit = "s", .at_most = 240},
    // Rows without a goal: further convolutions, and the MLP's gain over LibTorch, as its goals compare with the bare loop.
    {.name = "conv_32_14_backward", .program = "vision", .against = "PyTorch"},
    {.name = "conv_16_14_backward", .program = "vision", .against = "PyTorch"},
    {.name = "conv_64_56", .program = "vision", .against = "PyTorch"},
    {.name = "conv_1_28", .program = "vision", .against = "PyTorch"},
    {.name = "conv_256_14", .program = "vision", .against = "PyTorch"},
    {.name = "conv_512_7", .program = "vision", .against = "PyTorch"},
    {.name = "conv_3_224", .program = "vision", .against = "PyTorch"},
    {.name = "conv_64_56_kernel_1", .program = "vision", .against = "PyTorch"},
    {.name = "conv_64_56_stride_2", .program = "vision", .against = "PyTorch"},
    {.name = "resnet18_step_224", .program = "vision", .against = "PyTorch"},
    {.name = "resnet18_inference", .program = "vision", .against = "PyTorch"},
    {.name = "mlp_step_32", .program = "mlp"},
    {.name = "mlp_step_128", .program = "mlp"},
    {.name = "mlp_step_512", .program = "mlp"},
};

}  // namespace bench
