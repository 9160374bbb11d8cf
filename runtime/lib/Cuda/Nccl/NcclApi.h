//===- NcclApi.h - the calls of NCCL ----------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Segue builds without an nccl.h, as it does without a cuda.h (DriverApi.h): what it needs
// of one is declared here, and the library is opened when ranks on GPUs look for it.
// runtime/test/Cuda/CheckNcclApi.cpp compares these declarations with an nccl.h. The fake
// NCCL of the tests defines the functions of this list.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_NCCL_NCCLAPI_H
#define SEGUE_LIB_CUDA_NCCL_NCCLAPI_H

#include "../DriverApi.h"
#include <climits>

namespace segue::inline runtime::cuda {

using ncclResult_t = int;
using ncclComm_t = struct ncclComm *;

/// This is ncclUniqueId, by which the ranks of a communicator find each other.
struct NcclId {
  char bytes[128];
};

/// This is ncclConfig_t as NCCL 2.14 had it; later ones have more behind it, and go by the size and the version.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef, version = 21400;
  /// 0: calls do not wait for other ranks, and the state of the communicator says when they are done.
  int blocking = 0;
  /// Stands in the padding of 2.14, and is a field of later ones: unset.
  int unset = INT_MIN;
};

/// The results of the library that Segue and the fake tell apart.
enum : ncclResult_t {
  ncclOk = 0,
  ncclCudaError = 1,
  ncclSystemFailed = 2,
  ncclInternalFailed = 3,
  ncclBadArgument = 4,
  ncclBadUsage = 5,
  ncclRemoteFailed = 6,
  ncclNotYet = 7,
};

/// Types and ways to add, by the numbers of nccl.h.
enum : int { ncclBytes = 1, ncclFloats = 7, ncclAdd = 0 };

// Each call has its name here, its symbol in the library, and its type.
#define SEGUE_NCCL_CALLS(X)                                                                                            \
  X(version, ncclGetVersion, ncclResult_t(int *))                                                                      \
  X(uniqueId, ncclGetUniqueId, ncclResult_t(NcclId *))                                                                 \
  X(errorText, ncclGetErrorString, const char *(ncclResult_t))                                                         \
  X(lastError, ncclGetLastError, const char *(ncclComm_t))                                                             \
  X(init, ncclCommInitRankConfig, ncclResult_t(ncclComm_t *, int, NcclId, int, NcclConfig *))                          \
  X(finalize, ncclCommFinalize, ncclResult_t(ncclComm_t))                                                              \
  X(destroy, ncclCommDestroy, ncclResult_t(ncclComm_t))                                                                \
  X(abort, ncclCommAbort, ncclResult_t(ncclComm_t))                                                                    \
  X(state, ncclCommGetAsyncError, ncclResult_t(ncclComm_t, ncclResult_t *))                                            \
  X(groupStart, ncclGroupStart, ncclResult_t())                                                                        \
  X(groupEnd, ncclGroupEnd, ncclResult_t())                                                                            \
  X(allReduce, ncclAllReduce, ncclResult_t(const void *, void *, size_t, int, int, ncclComm_t, CUstream))              \
  X(reduce, ncclReduce, ncclResult_t(const void *, void *, size_t, int, int, int, ncclComm_t, CUstream))               \
  X(broadcast, ncclBroadcast, ncclResult_t(const void *, void *, size_t, int, int, ncclComm_t, CUstream))              \
  X(reduceScatter, ncclReduceScatter, ncclResult_t(const void *, void *, size_t, int, int, ncclComm_t, CUstream))      \
  X(allGather, ncclAllGather, ncclResult_t(const void *, void *, size_t, int, ncclComm_t, CUstream))

/// The library's functions.
struct NcclApi {
#define SEGUE_NCCL_MEMBER(name, symbol, ...)                                                                           \
  using name##_t = __VA_ARGS__;                                                                                        \
  name##_t *name = nullptr;
  SEGUE_NCCL_CALLS(SEGUE_NCCL_MEMBER)
#undef SEGUE_NCCL_MEMBER

  /// The version that the library says it is: 22707 is 2.27.7.
  int versionCode = 0;

  /// The library of this process, opened once: what SEGUE_NCCL_LIBRARY names, or else
  /// libnccl.so.2 where the system finds it or where Python's wheels of NVIDIA have it. Throws
  /// Unsupported, with what to install, where there is none, or where it is older than NCCL
  /// 2.14. Any thread may call.
  static const NcclApi &open();

  /// Returns a text such as "unhandled system error (2): socketPollConnect ...". `communicator` may be null.
  std::string describe(ncclResult_t result, ncclComm_t communicator) const;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_NCCL_NCCLAPI_H
