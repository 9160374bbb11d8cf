//===- CheckDriverApi.cpp - DriverApi.h against a cuda.h ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Compiles if what DriverApi.h declares has the layouts and numbers of cuda.h:
//   c++ -std=c++20 -fsyntax-only -I CUDA_HOME/include -I runtime/include CheckDriverApi.cpp
//
//===----------------------------------------------------------------------===//

#include "../../lib/Cuda/DriverApi.h"
#include <cuda.h>

namespace ours = segue::cuda;

#define SEGUE_SAME_PLACE(type, field, theirs, named)                                                                   \
  static_assert(offsetof(ours::type, field) == offsetof(theirs, named) &&                                              \
                sizeof(ours::type::field) == sizeof(theirs::named))
static_assert(sizeof(ours::MemProperties) == sizeof(CUmemAllocationProp));
SEGUE_SAME_PLACE(MemProperties, location, CUmemAllocationProp, location);
SEGUE_SAME_PLACE(MemProperties, flags, CUmemAllocationProp, allocFlags);
static_assert(sizeof(ours::MemAccess) == sizeof(CUmemAccessDesc));
SEGUE_SAME_PLACE(MemAccess, flags, CUmemAccessDesc, flags);
static_assert(sizeof(ours::DeviceUuid) == sizeof(CUuuid));
static_assert(sizeof(ours::StreamAttribute) == sizeof(CUstreamAttrValue));
SEGUE_SAME_PLACE(CacheWindow, begin, CUaccessPolicyWindow, base_ptr);
SEGUE_SAME_PLACE(CacheWindow, bytes, CUaccessPolicyWindow, num_bytes);
SEGUE_SAME_PLACE(CacheWindow, share, CUaccessPolicyWindow, hitRatio);
SEGUE_SAME_PLACE(CacheWindow, within, CUaccessPolicyWindow, hitProp);
SEGUE_SAME_PLACE(CacheWindow, beyond, CUaccessPolicyWindow, missProp);
static_assert(CU_MEM_ALLOCATION_TYPE_PINNED == 1 && CU_MEM_LOCATION_TYPE_DEVICE == 1 &&
              CU_MEM_ACCESS_FLAGS_PROT_READWRITE == 3 && CU_MEM_ALLOC_GRANULARITY_MINIMUM == 0);
static_assert(sizeof(CUresult) == sizeof(ours::CUresult) && sizeof(CUdeviceptr) == sizeof(ours::CUdeviceptr) &&
              sizeof(CUmemGenericAllocationHandle) == sizeof(ours::CUmemHandle));

#define SEGUE_SAME(name, theirs) static_assert(int(ours::name) == int(theirs))
SEGUE_SAME(success, CUDA_SUCCESS);
SEGUE_SAME(invalidValue, CUDA_ERROR_INVALID_VALUE);
SEGUE_SAME(outOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SEGUE_SAME(deinitialized, CUDA_ERROR_DEINITIALIZED);
SEGUE_SAME(noDevice, CUDA_ERROR_NO_DEVICE);
SEGUE_SAME(invalidImage, CUDA_ERROR_INVALID_IMAGE);
SEGUE_SAME(eccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
SEGUE_SAME(noBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
SEGUE_SAME(invalidPtx, CUDA_ERROR_INVALID_PTX);
SEGUE_SAME(nvlinkUncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE);
SEGUE_SAME(unsupportedPtx, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
SEGUE_SAME(notFound, CUDA_ERROR_NOT_FOUND);
SEGUE_SAME(notReady, CUDA_ERROR_NOT_READY);
SEGUE_SAME(illegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
SEGUE_SAME(launchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT);
SEGUE_SAME(contextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
SEGUE_SAME(deviceAssert, CUDA_ERROR_ASSERT);
SEGUE_SAME(hardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR);
SEGUE_SAME(illegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION);
SEGUE_SAME(misalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS);
SEGUE_SAME(invalidAddressSpace, CUDA_ERROR_INVALID_ADDRESS_SPACE);
SEGUE_SAME(invalidPc, CUDA_ERROR_INVALID_PC);
SEGUE_SAME(launchFailed, CUDA_ERROR_LAUNCH_FAILED);
SEGUE_SAME(notPermitted, CUDA_ERROR_NOT_PERMITTED);
SEGUE_SAME(unknownError, CUDA_ERROR_UNKNOWN);
SEGUE_SAME(attributeClockRate, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
SEGUE_SAME(attributeMemoryClockRate, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
SEGUE_SAME(attributeMemoryBusWidth, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
SEGUE_SAME(attributeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SEGUE_SAME(attributeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SEGUE_SAME(attributeMultiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SEGUE_SAME(attributeThreadsPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
SEGUE_SAME(attributeVirtualMemory, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SEGUE_SAME(functionMaxThreads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SEGUE_SAME(functionLocalBytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
SEGUE_SAME(limitStackSize, CU_LIMIT_STACK_SIZE);
SEGUE_SAME(limitKeptCache, CU_LIMIT_PERSISTING_L2_CACHE_SIZE);
SEGUE_SAME(attributeMostKeptCache, CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE);
SEGUE_SAME(attributeMostCacheWindow, CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE);
SEGUE_SAME(streamCacheWindow, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW);
SEGUE_SAME(cacheNormal, CU_ACCESS_PROPERTY_NORMAL);
SEGUE_SAME(cacheKept, CU_ACCESS_PROPERTY_PERSISTING);
SEGUE_SAME(pointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SEGUE_SAME(pointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SEGUE_SAME(memoryOfDevice, CU_MEMORYTYPE_DEVICE);
SEGUE_SAME(streamNonBlocking, CU_STREAM_NON_BLOCKING);
SEGUE_SAME(eventBlockingSync, CU_EVENT_BLOCKING_SYNC);
SEGUE_SAME(eventNoTiming, CU_EVENT_DISABLE_TIMING);
SEGUE_SAME(captureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
SEGUE_SAME(waitValueGreaterEqual, CU_STREAM_WAIT_VALUE_GEQ);
