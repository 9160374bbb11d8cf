//===- BlasApi.h - the calls of cuBLASLt ------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Segue builds without a cublasLt.h, as it does without a cuda.h (DriverApi.h): what it
// needs of one is declared here, and the library is opened for the first product.
// runtime/test/Cuda/CheckBlasApi.cpp compares these declarations with a cublasLt.h. The
// fake cuBLASLt of the tests defines the functions of this list.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_BLASAPI_H
#define SEGUE_LIB_CUDA_BLASAPI_H

#include "DriverApi.h"

namespace segue::inline runtime::cuda {

using cublasStatus_t = int;
using cublasLtHandle_t = struct cublasLtContext *;
using cublasLtMatmulDesc_t = struct cublasLtMatmulDescOpaque_t *;
using cublasLtMatrixLayout_t = struct cublasLtMatrixLayoutOpaque_t *;
using cublasLtMatmulPreference_t = struct cublasLtMatmulPreferenceOpaque_t *;

/// This is cublasLtMatmulAlgo_t: how a product is done, as the library chose it.
struct BlasAlgorithm {
  uint64_t data[8];
};
/// This is cublasLtMatmulHeuristicResult_t.
struct BlasAnswer {
  BlasAlgorithm algorithm;
  size_t workspaceBytes;
  cublasStatus_t state;
  float waves;
  int reserved[4];
};

/// The results of the library that Segue and the fake tell apart.
enum : cublasStatus_t {
  blasSuccess = 0,
  blasNotInitialized = 1,
  blasAllocFailed = 3,
  blasInvalidValue = 7,
  blasArchMismatch = 8,
  blasExecutionFailed = 13,
  blasInternalError = 14,
  blasNotSupported = 15,
};

/// Element types, ways to compute and attributes, by the numbers of library_types.h, cublas_api.h and cublasLt.h.
enum : int {
  blasF32 = 0,
  blasF64 = 1,
  blasF16 = 2,
  blasI8 = 3,
  blasI32 = 10,
  blasBf16 = 14,
  blasE4M3 = 28,
  blasE5M2 = 29,

  computeF32 = 68,
  computeF64 = 70,
  computeI32 = 72,
  computeTf32 = 77,

  matmulPointerMode = 2,
  matmulTransposeA = 3,
  matmulTransposeB = 4,
  matmulEpilogue = 7,
  matmulBiasPointer = 8,
  matmulBiasBatchStride = 10,
  matmulSumsPointer = 11,
  matmulSumsLead = 12,
  matmulBiasType = 26,

  layoutOrder = 1,
  layoutBatchCount = 5,
  layoutBatchStride = 6,

  preferenceWorkspaceBytes = 1,
  preferenceReductions = 3,
  preferenceAlignmentA = 5,
  preferenceAlignmentB = 6,
  preferenceAlignmentC = 7,
  preferenceAlignmentD = 8,

  orderColumns = 0,
  orderRows = 1,
};
enum : uint32_t {
  epilogueNone = 1,
  epilogueBias = 4,
  /// Gelu tanh, alone or with the sums written beside; that of a bias may be added to these numbers.
  epilogueGelu = 32,
  epilogueGeluAndSums = 160,
  /// Sums of parts of a product are kept in the workspace, in the type of the sums, and added in a second step.
  reductionInComputeType = 2,
};

// Each call has its name here, its symbol in the library, and its type.
#define SEGUE_CUBLASLT_CALLS(X)                                                                                        \
  X(version, cublasLtGetVersion, size_t())                                                                             \
  X(statusName, cublasLtGetStatusName, const char *(cublasStatus_t))                                                   \
  X(statusText, cublasLtGetStatusString, const char *(cublasStatus_t))                                                 \
  X(create, cublasLtCreate, cublasStatus_t(cublasLtHandle_t *))                                                        \
  X(destroy, cublasLtDestroy, cublasStatus_t(cublasLtHandle_t))                                                        \
  X(descCreate, cublasLtMatmulDescCreate, cublasStatus_t(cublasLtMatmulDesc_t *, int, int))                            \
  X(descDestroy, cublasLtMatmulDescDestroy, cublasStatus_t(cublasLtMatmulDesc_t))                                      \
  X(descSet, cublasLtMatmulDescSetAttribute, cublasStatus_t(cublasLtMatmulDesc_t, int, const void *, size_t))          \
  X(layoutCreate, cublasLtMatrixLayoutCreate,                                                                          \
    cublasStatus_t(cublasLtMatrixLayout_t *, int, uint64_t, uint64_t, int64_t))                                        \
  X(layoutDestroy, cublasLtMatrixLayoutDestroy, cublasStatus_t(cublasLtMatrixLayout_t))                                \
  X(layoutSet, cublasLtMatrixLayoutSetAttribute, cublasStatus_t(cublasLtMatrixLayout_t, int, const void *, size_t))    \
  X(preferenceCreate, cublasLtMatmulPreferenceCreate, cublasStatus_t(cublasLtMatmulPreference_t *))                    \
  X(preferenceDestroy, cublasLtMatmulPreferenceDestroy, cublasStatus_t(cublasLtMatmulPreference_t))                    \
  X(preferenceSet, cublasLtMatmulPreferenceSetAttribute,                                                               \
    cublasStatus_t(cublasLtMatmulPreference_t, int, const void *, size_t))                                             \
  X(heuristic, cublasLtMatmulAlgoGetHeuristic,                                                                         \
    cublasStatus_t(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,             \
                   cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int, BlasAnswer *,      \
                   int *))                                                                                             \
  X(matmul, cublasLtMatmul,                                                                                            \
    cublasStatus_t(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t,         \
                   const void *, cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t, void *,   \
                   cublasLtMatrixLayout_t, const BlasAlgorithm *, void *, size_t, CUstream))

/// The library's functions.
struct BlasApi {
#define SEGUE_CUBLASLT_MEMBER(name, symbol, ...)                                                                       \
  using name##_t = __VA_ARGS__;                                                                                        \
  name##_t *name = nullptr;
  SEGUE_CUBLASLT_CALLS(SEGUE_CUBLASLT_MEMBER)
#undef SEGUE_CUBLASLT_MEMBER

  /// The library of this process, opened once: what SEGUE_CUBLASLT_LIBRARY names, or else
  /// libcublasLt.so.13 or .12 where the system finds them or where Python's wheels of
  /// NVIDIA lie. Throws Unsupported, `device` in the message, where there is none, or where
  /// it is older than cuBLAS 12. Any thread may call.
  static const BlasApi &open(const std::string &device);

  /// Returns a text such as "CUBLAS_STATUS_NOT_SUPPORTED (15): ...".
  std::string describe(cublasStatus_t status) const;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_BLASAPI_H
