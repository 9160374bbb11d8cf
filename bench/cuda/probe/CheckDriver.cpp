//===- CheckDriver.cpp - Driver.h against a cuda.h ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Compiles if what Driver.h declares has the layouts of cuda.h:
//   c++ -std=c++20 -fsyntax-only -I CUDA_HOME/include CheckDriver.cpp
//
//===----------------------------------------------------------------------===//

#include "Driver.h"
#include <cuda.h>

#define SEGUE_SAME_PLACE(ours, field, theirs, named)                                                                   \
  static_assert(offsetof(probe::ours, field) == offsetof(theirs, named) &&                                             \
                sizeof(probe::ours::field) == sizeof(theirs::named))
static_assert(sizeof(probe::KernelNodeParams) == sizeof(CUDA_KERNEL_NODE_PARAMS));
SEGUE_SAME_PLACE(KernelNodeParams, sharedBytes, CUDA_KERNEL_NODE_PARAMS, sharedMemBytes);
SEGUE_SAME_PLACE(KernelNodeParams, arguments, CUDA_KERNEL_NODE_PARAMS, kernelParams);
SEGUE_SAME_PLACE(KernelNodeParams, context, CUDA_KERNEL_NODE_PARAMS, ctx);
static_assert(sizeof(probe::MemProperties) == sizeof(CUmemAllocationProp));
SEGUE_SAME_PLACE(MemProperties, location, CUmemAllocationProp, location);
SEGUE_SAME_PLACE(MemProperties, flags, CUmemAllocationProp, allocFlags);
static_assert(sizeof(probe::MemAccess) == sizeof(CUmemAccessDesc));
SEGUE_SAME_PLACE(MemAccess, flags, CUmemAccessDesc, flags);
static_assert(sizeof(probe::StreamAttribute) == sizeof(CUstreamAttrValue));
SEGUE_SAME_PLACE(AccessWindow, hitRatio, CUaccessPolicyWindow, hitRatio);
SEGUE_SAME_PLACE(AccessWindow, miss, CUaccessPolicyWindow, missProp);
static_assert(CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW == 1 && CU_ACCESS_PROPERTY_PERSISTING == 2);
static_assert(CU_MEM_ALLOCATION_TYPE_PINNED == 1 && CU_MEM_LOCATION_TYPE_DEVICE == 1 &&
              CU_MEM_ACCESS_FLAGS_PROT_READWRITE == 3);
static_assert(CU_LIMIT_PERSISTING_L2_CACHE_SIZE == 6 && CU_LIMIT_STACK_SIZE == 0);
static_assert(CU_STREAM_NON_BLOCKING == 1 && CU_EVENT_BLOCKING_SYNC == 1 && CU_EVENT_DISABLE_TIMING == 2);
static_assert(CU_STREAM_WAIT_VALUE_GEQ == 0 && CU_STREAM_CAPTURE_MODE_THREAD_LOCAL == 1);
static_assert(CU_CTX_SCHED_SPIN == 1 && CU_CTX_SCHED_BLOCKING_SYNC == 4 && CU_MEMHOSTALLOC_WRITECOMBINED == 4);
static_assert(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED == 102 &&
              CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE == 108 &&
              CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE == 109);
static_assert(sizeof(CUresult) == sizeof(probe::CUresult) && sizeof(CUdeviceptr) == sizeof(probe::CUdeviceptr) &&
              sizeof(CUmemGenericAllocationHandle) == sizeof(probe::CUmemHandle));
