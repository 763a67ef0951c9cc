#include "lockstep/nn/deferred.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/initial_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random.h"
#include "lockstep/tensor/random/random_ops_internal.h"

namespace lockstep::nn {
namespace {

constinit thread_local bool deferring = false;

// Takes the next number for random values of `count` elements.
Initial numbered(Initial rule, std::int64_t count, DType dtype) {
  rule.dtype = dtype;
  if (rule.kind != Initial::kConstant) rule.position = random::draw_initial(raw::blocks_of(count, dtype));
  return rule;
}

// The values of elements `first`, first + 1, ... in `shape`.
Tensor values(const Initial& rule, std::int64_t first, const Shape& shape, const TensorOptions& options) {
  Tensor out;
  if (rule.kind == Initial::kConstant) {
    out = raw::full(shape, rule.a, options);
  } else if (rule.kind == Initial::kUniform) {
    out = raw::uniform_at(rule.position, first, shape, rule.a, rule.b, options);
  } else if (rule.kind == Initial::kTruncatedNormal) {
    out = truncated_normal(rule, first, shape, options);
  } else if (rule.kind == Initial::kOrthogonal) {
    out = orthogonal(rule, first, shape, options);
  } else {
    out = raw::normal_at(rule.position, first, shape, options);
    if (rule.b != 1) out.mul_(rule.b);
    if (rule.a != 0) out.add_(rule.a);
  }
  const std::int64_t begin = std::max(rule.zero_begin - first, std::int64_t{0}),
                     end = std::min(rule.zero_end - first, out.numel());
  if (begin < end) raw::view(out, {out.numel()}).slice(0, begin, end).zero_();
  return out;
}

// The same for a deferred tensor, whose dtype Module::to may have changed since its rule was set.
Tensor converted_values(const Initial& rule, std::int64_t first, const Shape& shape, const TensorOptions& options) {
  return values(rule, first, shape, {.dtype = rule.dtype, .device = options.device})
      .to(options.dtype.value_or(rule.dtype));
}

// A deferred tensor's storage owns the rule.
Initial& rule_of(const char* op, const Tensor& x) {
  LOCKSTEP_CHECK(is_deferred(x), "{}: {} has values already", op, describe(x));
  const Storage& storage = *x.impl().storage;
  LOCKSTEP_CHECK(x.is_contiguous() && static_cast<std::size_t>(x.numel()) * item_size(x.dtype()) == storage.bytes(),
                 "{}: a part or transposition of a deferred parameter cannot be initialised by itself; call "
                 "nn::materialize(module) first",
                 op);
  return *static_cast<Initial*>(storage.owner().get());
}

}  // namespace

DeferredInit::DeferredInit() : outer_(std::exchange(deferring, true)) {}
DeferredInit::DeferredInit(std::uint64_t seed) : DeferredInit() { manual_seed(seed); }
DeferredInit::~DeferredInit() { end(); }
void DeferredInit::end() {
  if (!std::exchange(ended_, true)) deferring = outer_;
}

bool is_deferred(const Tensor& parameter) {
  return parameter.defined() && parameter.device().type() == DeviceType::kDeferred;
}

Tensor initial(const Shape& shape, const Initial& rule) {
  const Initial full_rule = numbered(rule, shape.numel(), kFloat32);
  if (!deferring) return values(full_rule, 0, shape, {.dtype = kFloat32});
  return raw::wrap_memory(nullptr, shape, kFloat32, Device(DeviceType::kDeferred, 0),
                          std::make_shared<Initial>(full_rule));
}

Tensor deferred_as(const Tensor& x, DType dtype) {
  return x.dtype() == dtype
             ? x
             : raw::wrap_memory(nullptr, x.shape(), dtype, x.device(), std::make_shared<Initial>(rule_of("to", x)));
}

void initialise(const Tensor& x, const Initial& rule) {
  const NoGradGuard no_grad;
  const Initial full_rule = numbered(rule, x.numel(), x.dtype());
  if (is_deferred(x))
    rule_of("init", x) = full_rule;
  else if (rule.kind == Initial::kConstant)
    x.fill_(rule.a);
  else
    x.copy_(values(full_rule, 0, x.shape(), x.options()));
}

Tensor initial_values(const Tensor& parameter, Device device) {
  return converted_values(rule_of("initial_values", parameter), 0, parameter.shape(),
                          {.dtype = parameter.dtype(), .device = device});
}

Tensor initial_values(const Tensor& parameter, const TensorPart& part, Device device) {
  const Initial& rule = rule_of("initial_values", parameter);
  LOCKSTEP_CHECK(part.fits(parameter.numel()), "initial_values: elements {} of a parameter with {}", part.to_string(),
                 parameter.numel());
  const TensorOptions options{.dtype = parameter.dtype(), .device = device};
  if (part.is_consecutive()) return converted_values(rule, part.at(0), {part.numel}, options);
  const Tensor out = raw::empty({part.numel}, options);
  std::int64_t done = 0;
  for (std::int64_t k = 0; k < part.runs(); ++k) {
    const auto [first, count] = part.run_at(k);
    raw::copy(converted_values(rule, first, {count}, options), raw::slice(out, 0, done, done + count, 1));
    done += count;
  }
  return out;
}

Tensor initial_values(const Tensor& parameter, std::int64_t first, std::int64_t count, Device device) {
  LOCKSTEP_CHECK(first >= 0 && count >= 0 && count <= parameter.numel() - first,
                 "initial_values: elements {} to {} of a parameter with {}", first, first + count, parameter.numel());
  return initial_values(parameter, TensorPart::whole(parameter.shape()).narrow(first, count), device);
}

}  // namespace lockstep::nn
