// Elementwise kernels with several operands, casts and fills.
#include "lockstep/tensor/cuda/loops_internal.h"
#include "lockstep/tensor/kernels/elementwise_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

template <class T>
struct Constant {
  T value;
  HOST_DEVICE T operator()() const { return value; }
};

// The relation is the same for all threads, so a branch on it costs nothing and saves five kernels per dtype.
struct Related {
  raw::Compare relation;
  template <class T>
  HOST_DEVICE bool operator()(T a, T b) const {
    bool holds = false;
    with_relation(relation, [&](auto f) { holds = f(a, b); });
    return holds;
  }
};

// Likewise. A functor that does not take T leaves the result 0: the wrappers never ask for it.
struct SomeStep {
  raw::Step function;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    T result = 0;
    with_step(function, [&](auto f) {
      if constexpr (std::is_invocable_v<decltype(f), T>) result = f(x);
    });
    return result;
  }
};
struct SomeBinaryOp {
  raw::BinaryOp function;
  template <class T>
  HOST_DEVICE T operator()(T a, T b) const {
    T result = 0;
    with_binary_op(function, [&](auto f) {
      if constexpr (std::is_invocable_v<decltype(f), T, T>) result = f(a, b);
    });
    return result;
  }
};

// Any conversion, one element at a time, through the widest type of its kind, which is exact.
struct AnyCast {
  const void* in;
  void* out;
  detail::Places<2> places;
  DType from, to;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    std::int64_t at[2];
    places.find(i, at);
    if (is_floating_point(from))
      store(at[0], load_float(at[1]));
    else
      store(at[0], load_integer(at[1]));
  }
  template <class T>
  DEVICE_ONLY const T& at_in(std::int64_t at) const {
    return static_cast<const T*>(in)[at];
  }
  DEVICE_ONLY double load_float(std::int64_t at) const {
    switch (from) {
      case kFloat16:
        return to_float(at_in<Half>(at));
      case kBFloat16:
        return to_float(at_in<BFloat16>(at));
      case kFloat32:
        return at_in<float>(at);
      default:
        return at_in<double>(at);
    }
  }
  DEVICE_ONLY std::int64_t load_integer(std::int64_t at) const {
    switch (from) {
      case kInt64:
        return at_in<std::int64_t>(at);
      case kInt32:
        return at_in<std::int32_t>(at);
      default:
        return at_in<std::uint8_t>(at);  // u8, and bool as 0 or 1
    }
  }
  template <class Wide, class To>
  DEVICE_ONLY void put(std::int64_t at, Wide value) const {
    static_cast<To*>(out)[at] = Convert<Wide, To>()(value);
  }
  template <class Wide>
  DEVICE_ONLY void store(std::int64_t at, Wide value) const {
    switch (to) {
      case kBool:
        return put<Wide, bool>(at, value);
      case kUInt8:
        return put<Wide, std::uint8_t>(at, value);
      case kInt32:
        return put<Wide, std::int32_t>(at, value);
      case kInt64:
        return put<Wide, std::int64_t>(at, value);
      case kFloat16:
        return put<Wide, Half>(at, value);
      case kBFloat16:
        return put<Wide, BFloat16>(at, value);
      case kFloat32:
        return put<Wide, float>(at, value);
      default:
        return put<Wide, double>(at, value);
    }
  }
};

// Conversions that are frequent in training have their own kernels, which move several elements at once.
template <class From, class To>
bool cast_if(const Loop<2>& loop, DType from, DType to) {
  if (from != dtype_of<From> || to != dtype_of<To>) return false;
  run_view_loop<To, From>("cast", loop, Convert<From, To>{});
  return true;
}

struct WriteWords {
  std::uint64_t words[kMostWords];
  std::uint64_t* to;
  DEVICE_ONLY void operator()(std::int64_t i) const { to[i] = words[i]; }
};

template <class T, class F>
void binary(const char* op, const Loop<3>& loop, const F& f) {
  run_view_loop<T, T, T>(op, loop, f);
}

}  // namespace

void fill(const Loop<1>& loop, DType dtype, const Scalar& value) {
  const auto run = [&]<class T>(T number) { run_loop<T>("fill", loop, Constant<T>{number}); };
  if (dtype == kFloat16) return run(to_half(static_cast<float>(value.to_double())));
  if (dtype == kBFloat16) return run(to_bfloat16(static_cast<float>(value.to_double())));
  for_number(dtype, [&]<class T>(T) {
    run(dtype == kBool ? static_cast<T>(value.to_double() != 0) : scalar_value<T>(value));
  });
}

// The words are launch arguments, which are copied when the kernel is launched.
void write_words(void* to, const void* from, std::int64_t count) {
  WriteWords body;
  std::memcpy(body.words, from, static_cast<std::size_t>(count) * sizeof(std::uint64_t));
  body.to = static_cast<std::uint64_t*>(to);
  launch_elements("write_words", count, body);
}

void add(const Loop<3>& loop, DType dtype, const Scalar& alpha) {
  for_number(dtype, [&]<class T>(T) { binary<T>("add", loop, AddScaled<T>{scalar_value<T>(alpha)}); });
}
void mul(const Loop<3>& loop, DType dtype) {
  for_number(dtype, [&]<class T>(T) { binary<T>("mul", loop, Multiply{}); });
}
void div(const Loop<3>& loop, DType dtype) {
  for_float(dtype, [&]<class T>(T) { binary<T>("div", loop, Divide{}); });
}
void pow(const Loop<3>& loop, DType dtype) {
  for_number(dtype, [&]<class T>(T) { binary<T>("pow", loop, Power{}); });
}
void maximum(const Loop<3>& loop, DType dtype) {
  for_number(dtype, [&]<class T>(T) { binary<T>("maximum", loop, Maximum{}); });
}
void minimum(const Loop<3>& loop, DType dtype) {
  for_number(dtype, [&]<class T>(T) { binary<T>("minimum", loop, Minimum{}); });
}

void compare(const Loop<3>& loop, DType dtype, raw::Compare relation) {
  for_number(dtype, [&]<class T>(T) { run_loop<std::uint8_t, T, T>("compare", loop, Related{relation}); });
}

void step_function(const Loop<2>& loop, DType dtype, raw::Step function) {
  for_number(dtype, [&]<class T>(T) { run_loop<T, T>("step_function", loop, SomeStep{function}); });
}
void binary_op(const Loop<3>& loop, DType dtype, raw::BinaryOp function) {
  for_number(dtype, [&]<class T>(T) { binary<T>("binary_op", loop, SomeBinaryOp{function}); });
}

void where(const Loop<4>& loop, DType dtype) {
  for_size(dtype, [&]<class T>(T) { run_view_loop<T, std::uint8_t, T, T>("where", loop, Where{}); });
}

void cast(const Loop<2>& loop, DType from, DType to) {
  if (from == to) {
    for_size(from, [&]<class T>(T) { run_view_loop<T, T>("copy", loop, Convert<T, T>{}); });
    return;
  }
  if (cast_if<float, Half>(loop, from, to) || cast_if<Half, float>(loop, from, to) ||
      cast_if<float, BFloat16>(loop, from, to) || cast_if<BFloat16, float>(loop, from, to) ||
      cast_if<float, double>(loop, from, to) || cast_if<double, float>(loop, from, to) ||
      cast_if<bool, float>(loop, from, to) || cast_if<std::uint8_t, float>(loop, from, to) ||
      cast_if<std::int64_t, float>(loop, from, to))
    return;
  launch_elements("cast", loop.numel, AnyCast{loop.data[1], loop.data[0], detail::Places<2>(loop), from, to});
}

}  // namespace lockstep::LOCKSTEP_KERNELS
