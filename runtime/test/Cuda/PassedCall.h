//===- PassedCall.h - calls of a library as the machine sees them -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Calls that Segue declares are compared with those of a library's header, whose types
// have other names.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_CUDA_PASSEDCALL_H
#define SEGUE_RUNTIME_TEST_CUDA_PASSEDCALL_H

#include <type_traits>

/// A parameter as the machine passes it: all pointers alike, enums as their numbers.
template <typename T> struct Passed {
  using type = T;
};
template <typename T>
  requires std::is_pointer_v<T>
struct Passed<T> {
  using type = void *;
};
template <typename T>
  requires std::is_enum_v<T>
struct Passed<T> {
  using type = int;
  static_assert(sizeof(T) == sizeof(int));
};
template <typename T> struct PassedCall;
template <typename R, typename... A> struct PassedCall<R(A...)> {
  using type = typename Passed<R>::type(typename Passed<A>::type...);
};

#endif // SEGUE_RUNTIME_TEST_CUDA_PASSEDCALL_H
