//===- CheckBlasApi.cpp - BlasApi.h against a cublasLt.h ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Compiles if what BlasApi.h declares has the layouts, numbers and parameters of cublasLt.h:
//   c++ -std=c++20 -fsyntax-only -I CUDA_HOME/include -I runtime/include CheckBlasApi.cpp
//
//===----------------------------------------------------------------------===//

#include "../../lib/Cuda/BlasApi.h"
#include "PassedCall.h"
#include <cublasLt.h>

namespace ours = segue::cuda;

#define SEGUE_SAME_CALL(name, symbol, ...)                                                                             \
  static_assert(std::is_same_v<PassedCall<ours::BlasApi::name##_t>::type, PassedCall<decltype(::symbol)>::type>);
SEGUE_CUBLASLT_CALLS(SEGUE_SAME_CALL)

static_assert(sizeof(ours::BlasAlgorithm) == sizeof(cublasLtMatmulAlgo_t));
#define SEGUE_SAME_PLACE(field, theirs)                                                                                \
  static_assert(offsetof(ours::BlasAnswer, field) == offsetof(cublasLtMatmulHeuristicResult_t, theirs) &&             \
                sizeof(ours::BlasAnswer::field) == sizeof(cublasLtMatmulHeuristicResult_t::theirs))
static_assert(sizeof(ours::BlasAnswer) == sizeof(cublasLtMatmulHeuristicResult_t));
SEGUE_SAME_PLACE(algorithm, algo);
SEGUE_SAME_PLACE(workspaceBytes, workspaceSize);
SEGUE_SAME_PLACE(state, state);
SEGUE_SAME_PLACE(waves, wavesCount);

#define SEGUE_SAME(name, theirs) static_assert(int(ours::name) == int(theirs))
SEGUE_SAME(blasSuccess, CUBLAS_STATUS_SUCCESS);
SEGUE_SAME(blasNotInitialized, CUBLAS_STATUS_NOT_INITIALIZED);
SEGUE_SAME(blasAllocFailed, CUBLAS_STATUS_ALLOC_FAILED);
SEGUE_SAME(blasInvalidValue, CUBLAS_STATUS_INVALID_VALUE);
SEGUE_SAME(blasArchMismatch, CUBLAS_STATUS_ARCH_MISMATCH);
SEGUE_SAME(blasExecutionFailed, CUBLAS_STATUS_EXECUTION_FAILED);
SEGUE_SAME(blasInternalError, CUBLAS_STATUS_INTERNAL_ERROR);
SEGUE_SAME(blasNotSupported, CUBLAS_STATUS_NOT_SUPPORTED);
SEGUE_SAME(blasF32, CUDA_R_32F);
SEGUE_SAME(blasF64, CUDA_R_64F);
SEGUE_SAME(blasF16, CUDA_R_16F);
SEGUE_SAME(blasI8, CUDA_R_8I);
SEGUE_SAME(blasI32, CUDA_R_32I);
SEGUE_SAME(blasBf16, CUDA_R_16BF);
SEGUE_SAME(blasE4M3, CUDA_R_8F_E4M3);
SEGUE_SAME(blasE5M2, CUDA_R_8F_E5M2);
SEGUE_SAME(computeF32, CUBLAS_COMPUTE_32F);
SEGUE_SAME(computeF64, CUBLAS_COMPUTE_64F);
SEGUE_SAME(computeI32, CUBLAS_COMPUTE_32I);
SEGUE_SAME(computeTf32, CUBLAS_COMPUTE_32F_FAST_TF32);
SEGUE_SAME(matmulPointerMode, CUBLASLT_MATMUL_DESC_POINTER_MODE);
SEGUE_SAME(matmulTransposeA, CUBLASLT_MATMUL_DESC_TRANSA);
SEGUE_SAME(matmulTransposeB, CUBLASLT_MATMUL_DESC_TRANSB);
SEGUE_SAME(matmulEpilogue, CUBLASLT_MATMUL_DESC_EPILOGUE);
SEGUE_SAME(matmulBiasPointer, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SEGUE_SAME(matmulBiasBatchStride, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE);
SEGUE_SAME(matmulSumsPointer, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
SEGUE_SAME(matmulSumsLead, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
SEGUE_SAME(matmulBiasType, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
SEGUE_SAME(layoutOrder, CUBLASLT_MATRIX_LAYOUT_ORDER);
SEGUE_SAME(layoutBatchCount, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
SEGUE_SAME(layoutBatchStride, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
SEGUE_SAME(preferenceWorkspaceBytes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SEGUE_SAME(preferenceReductions, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
SEGUE_SAME(preferenceAlignmentA, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SEGUE_SAME(preferenceAlignmentB, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
SEGUE_SAME(preferenceAlignmentC, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
SEGUE_SAME(preferenceAlignmentD, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
SEGUE_SAME(orderColumns, CUBLASLT_ORDER_COL);
SEGUE_SAME(orderRows, CUBLASLT_ORDER_ROW);
SEGUE_SAME(epilogueNone, CUBLASLT_EPILOGUE_DEFAULT);
SEGUE_SAME(epilogueBias, CUBLASLT_EPILOGUE_BIAS);
SEGUE_SAME(epilogueGelu, CUBLASLT_EPILOGUE_GELU);
SEGUE_SAME(epilogueGelu | ours::epilogueBias, CUBLASLT_EPILOGUE_GELU_BIAS);
SEGUE_SAME(epilogueGeluAndSums, CUBLASLT_EPILOGUE_GELU_AUX);
SEGUE_SAME(epilogueGeluAndSums | ours::epilogueBias, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
SEGUE_SAME(reductionInComputeType, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
static_assert(CUBLAS_OP_N == 0 && CUBLAS_OP_T == 1 && CUBLASLT_POINTER_MODE_HOST == 0);
