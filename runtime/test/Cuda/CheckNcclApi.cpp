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
#include "PassedCall.h"
#include <nccl.h>

namespace ours = segue::cuda;

/// The id goes by its bytes.
template <> struct Passed<ncclUniqueId> {
  using type = ours::NcclId;
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
