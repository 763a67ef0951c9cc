/// \file
/// Collation of examples to a batch: stacks tensors along a new first dimension.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep::data {

/// One example of a data set, or a batch of examples. Use it as `const auto& [inputs, targets] = example;`.
struct Example {
  Tensor input;   ///< input of the model
  Tensor target;  ///< expected output
};

/// Stacks n tensors of equal shape and dtype to (n, ...). The result has no history. Throws InvalidArgument naming the
/// first tensor that differs.
Tensor stack_rows(std::span<const Tensor> rows);

namespace detail {

struct Anything {
  template <class T>
  operator T() const;  // declared only: converts to a member of any type
};

template <std::size_t>
using OneTensor = Tensor;

// Whether E{...} accepts these tensors: alone, with one more member, and with a list as the next member.
template <class E, std::size_t... I>
constexpr bool takes_tensors(std::index_sequence<I...>) {
  return requires { E{OneTensor<I>()...}; };
}
template <class E, std::size_t... I>
constexpr bool takes_one_more(std::index_sequence<I...>) {
  return requires { E{OneTensor<I>()..., Anything()}; };
}
template <class E, std::size_t... I>
constexpr bool takes_a_list(std::index_sequence<I...>) {
  return requires { E{OneTensor<I>()..., {Tensor(), Tensor()}}; };
}

inline constexpr std::size_t kMaxMembers = 6;

// The number of members of an aggregate that consists of up to kMaxMembers tensors; 0 for any other type. Aggregates
// with arrays, recognised by the list that initialises them, give 0: a structured binding counts an array as one
// member.
template <class E, std::size_t kCount = 1>
constexpr std::size_t count_tensors() {
  if constexpr (!std::is_aggregate_v<E> || kCount > kMaxMembers) {
    return 0;
  } else if constexpr (takes_a_list<E>(std::make_index_sequence<kCount - 1>()) ||
                       !takes_tensors<E>(std::make_index_sequence<kCount>())) {
    return 0;
  } else if constexpr (takes_one_more<E>(std::make_index_sequence<kCount>())) {
    return count_tensors<E, kCount + 1>();
  } else {
    return kCount;
  }
}

// Calls visit with the members of an aggregate.
template <class E, class Visit>
decltype(auto) with_members(E& example, Visit&& visit) {
  constexpr std::size_t kCount = count_tensors<std::remove_const_t<E>>();
  if constexpr (kCount == 1) {
    auto& [a] = example;
    return visit(a);
  } else if constexpr (kCount == 2) {
    auto& [a, b] = example;
    return visit(a, b);
  } else if constexpr (kCount == 3) {
    auto& [a, b, c] = example;
    return visit(a, b, c);
  } else if constexpr (kCount == 4) {
    auto& [a, b, c, d] = example;
    return visit(a, b, c, d);
  } else if constexpr (kCount == 5) {
    auto& [a, b, c, d, e] = example;
    return visit(a, b, c, d, e);
  } else if constexpr (kCount == 6) {
    auto& [a, b, c, d, e, f] = example;
    return visit(a, b, c, d, e, f);
  }
}

struct AreTensors {
  template <class... Members>
  constexpr std::bool_constant<(std::is_same_v<std::remove_const_t<Members>, Tensor> && ...)> operator()(
      Members&...) const {
    return {};
  }
};

template <class E>
constexpr bool made_of_tensors() {
  if constexpr (count_tensors<E>() == 0)
    return false;
  else
    return decltype(with_members(std::declval<E&>(), AreTensors()))::value;
}

}  // namespace detail

/// True if examples of type E have a default collate function: a Tensor, or an aggregate of one to six Tensors.
template <class E>
inline constexpr bool kStackable = std::is_same_v<E, Tensor> || detail::made_of_tensors<E>();

/// The default collate function: stacks member by member; a member that is undefined in all examples stays undefined.
template <class E>
requires kStackable<E> E stack_examples(const std::vector<E>& examples) {
  if constexpr (std::is_same_v<E, Tensor>) {
    return stack_rows(examples);
  } else {
    return detail::with_members(examples.front(), [&]<class... Members>(Members&...) {
      constexpr std::size_t kCount = sizeof...(Members);
      std::vector<Tensor> columns[kCount];
      for (const E& example : examples) {
        std::size_t column = 0;
        detail::with_members(example, [&](const auto&... members) { (columns[column++].push_back(members), ...); });
      }
      return [&]<std::size_t... I>(std::index_sequence<I...>) { return E{stack_rows(columns[I])...}; }
      (std::make_index_sequence<kCount>());
    });
  }
}

}  // namespace lockstep::data
