//===- CheckNcclApi.cpp - NcclApi.h against an nccl.h ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Compiles if what NcclApi.h declares has the layouts, numbers and parameters of nccl.h:
//   c++ -std=c++20 -fsyntax-only -I CUDA_HOME/include -I NCCL/include -I runtime/include CheckNcclApi.cpp
//
//===----------------------------------------------------------------------===//

#include "../../lib/Cuda/Nccl/NcclApi.h"
#include <nccl.h>
#include <type_traits>

namespace ours = segue::cuda;

/// A parameter as the machine passes it: all pointers alike, enums as their numbers, the id as its bytes.
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
template <> struct Passed<ncclUniqueId> {
  using type = ours::NcclId;
};
template <typename T> struct PassedCall;
template <typename R, typename... A> struct PassedCall<R(A...)> {
  using type = typename Passed<R>::type(typename Passed<A>::type...);
};
#define SEGUE_SAME_CALL(name, symbol, ...)                                                                             \
  static_assert(std::is_same_v<PassedCall<ours::NcclApi::name##_t>::type, PassedCall<decltype(::symbol)>::type>);
SEGUE_NCCL_CALLS(SEGUE_SAME_CALL)

static_assert(sizeof(ours::NcclId) == sizeof(ncclUniqueId) && alignof(ours::NcclId) == alignof(ncclUniqueId));
#define SEGUE_SAME_PLACE(field, theirs)                                                                                \
  static_assert(offsetof(ours::NcclConfig, field) == offsetof(ncclConfig_t, theirs) &&                                \
                sizeof(ours::NcclConfig::field) == sizeof(ncclConfig_t::theirs))
SEGUE_SAME_PLACE(size, size);
SEGUE_SAME_PLACE(magic, magic);
SEGUE_SAME_PLACE(version, version);
SEGUE_SAME_PLACE(blocking, blocking);
SEGUE_SAME_PLACE(unset, cgaClusterSize);
static_assert(sizeof(ours::NcclConfig) <= sizeof(ncclConfig_t) && ours::NcclConfig().unset == NCCL_CONFIG_UNDEF_INT);
static_assert(ours::NcclConfig().magic == ncclConfig_t(NCCL_CONFIG_INITIALIZER).magic);

#define SEGUE_SAME(name, theirs) static_assert(int(ours::name) == int(theirs))
SEGUE_SAME(ncclOk, ncclSuccess);
SEGUE_SAME(ncclCudaError, ncclUnhandledCudaError);
SEGUE_SAME(ncclSystemFailed, ncclSystemError);
SEGUE_SAME(ncclInternalFailed, ncclInternalError);
SEGUE_SAME(ncclBadArgument, ncclInvalidArgument);
SEGUE_SAME(ncclBadUsage, ncclInvalidUsage);
SEGUE_SAME(ncclRemoteFailed, ncclRemoteError);
SEGUE_SAME(ncclNotYet, ncclInProgress);
SEGUE_SAME(ncclBytes, ncclUint8);
SEGUE_SAME(ncclFloats, ncclFloat32);
SEGUE_SAME(ncclAdd, ncclSum);
