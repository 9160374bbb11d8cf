//===- DriverApi.h - the calls of the CUDA driver ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Segue builds without a cuda.h: what it needs of one is declared here, and the driver's
// library is opened when the first device is. runtime/test/Cuda/CheckDriverApi.cpp
// compares these declarations with a cuda.h. The fake driver of the tests defines the
// functions of this list.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_DRIVERAPI_H
#define SEGUE_LIB_CUDA_DRIVERAPI_H

#include <cstddef>
#include <cstdint>
#include <string>

namespace segue::inline runtime::cuda {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st *;
using CUmodule = struct CUmod_st *;
using CUfunction = struct CUfunc_st *;
using CUstream = struct CUstream_st *;
using CUevent = struct CUevent_st *;
using CUgraph = struct CUgraph_st *;
using CUgraphExec = struct CUgraphExec_st *;
using CUmemHandle = unsigned long long;
using CUhostFn = void (*)(void *);

/// The results of the driver that Segue tells apart.
enum : CUresult {
  success = 0,
  invalidValue = 1,
  outOfMemory = 2,
  deinitialized = 4,
  noDevice = 100,
  invalidImage = 200,
  noBinaryForGpu = 209,
  eccUncorrectable = 214,
  invalidPtx = 218,
  nvlinkUncorrectable = 220,
  unsupportedPtx = 222,
  notFound = 500,
  notReady = 600,
  illegalAddress = 700,
  launchTimeout = 702,
  contextIsDestroyed = 709,
  deviceAssert = 710,
  hardwareStackError = 714,
  illegalInstruction = 715,
  misalignedAddress = 716,
  invalidAddressSpace = 717,
  invalidPc = 718,
  launchFailed = 719,
  notPermitted = 800,
  unknownError = 999,
};

/// Attributes of devices and functions, limits and flags, by cuda.h's names.
enum : int {
  attributeClockRate = 13,
  attributeMultiprocessors = 16,
  attributeMemoryClockRate = 36,
  attributeMemoryBusWidth = 37,
  attributeThreadsPerMultiprocessor = 39,
  attributeCapabilityMajor = 75,
  attributeCapabilityMinor = 76,
  attributeVirtualMemory = 102,
  functionMaxThreads = 0,
  functionLocalBytes = 3,
  limitStackSize = 0,
  limitKeptCache = 6,
  attributeMostKeptCache = 108,
  attributeMostCacheWindow = 109,
  streamCacheWindow = 1,
  cacheNormal = 0,
  cacheKept = 2,
  pointerMemoryType = 2,
  pointerDeviceOrdinal = 9,
  memoryOfDevice = 2,
};
enum : unsigned { streamNonBlocking = 1, eventBlockingSync = 1, eventNoTiming = 2, waitValueGreaterEqual = 0 };
enum : int { captureRelaxed = 2 };

/// These are CUmemLocation, CUmemAllocationProp and CUmemAccessDesc.
struct MemLocation {
  int type;
  int id;
};
struct MemProperties {
  int type;
  int handleTypes;
  MemLocation location;
  void *win32;
  unsigned char flags[8];
};
struct MemAccess {
  MemLocation location;
  int flags;
};

/// This is CUuuid, which no other GPU or part of one in any machine has.
struct DeviceUuid {
  char bytes[16];
};

/// This is CUaccessPolicyWindow, and the union of the attributes of streams, of 64 bytes, that it is one of.
struct CacheWindow {
  const void *begin;
  size_t bytes;
  float share;
  int within, beyond;
};
union StreamAttribute {
  char bytes[64];
  CacheWindow window;
};

// Each call has its name here, its symbol in the library, and its type.
#define SEGUE_CUDA_CALLS(X)                                                                                            \
  X(init, cuInit, CUresult(unsigned))                                                                                  \
  X(driverVersion, cuDriverGetVersion, CUresult(int *))                                                                \
  X(errorName, cuGetErrorName, CUresult(CUresult, const char **))                                                      \
  X(errorText, cuGetErrorString, CUresult(CUresult, const char **))                                                    \
  X(deviceCount, cuDeviceGetCount, CUresult(int *))                                                                    \
  X(deviceGet, cuDeviceGet, CUresult(CUdevice *, int))                                                                 \
  X(deviceName, cuDeviceGetName, CUresult(char *, int, CUdevice))                                                      \
  X(deviceUuid, cuDeviceGetUuid_v2, CUresult(DeviceUuid *, CUdevice))                                                  \
  X(deviceAttribute, cuDeviceGetAttribute, CUresult(int *, int, CUdevice))                                             \
  X(deviceMemory, cuDeviceTotalMem_v2, CUresult(size_t *, CUdevice))                                                   \
  X(deviceReaches, cuDeviceCanAccessPeer, CUresult(int *, CUdevice, CUdevice))                                         \
  X(primaryRetain, cuDevicePrimaryCtxRetain, CUresult(CUcontext *, CUdevice))                                          \
  X(primaryRelease, cuDevicePrimaryCtxRelease_v2, CUresult(CUdevice))                                                  \
  X(ctxSetCurrent, cuCtxSetCurrent, CUresult(CUcontext))                                                               \
  X(ctxSetLimit, cuCtxSetLimit, CUresult(int, size_t))                                                                 \
  X(ctxGetLimit, cuCtxGetLimit, CUresult(size_t *, int))                                                               \
  X(priorityRange, cuCtxGetStreamPriorityRange, CUresult(int *, int *))                                                \
  X(memInfo, cuMemGetInfo_v2, CUresult(size_t *, size_t *))                                                            \
  X(pointerAttribute, cuPointerGetAttribute, CUresult(void *, int, CUdeviceptr))                                       \
  X(hostAlloc, cuMemHostAlloc, CUresult(void **, size_t, unsigned))                                                    \
  X(hostFree, cuMemFreeHost, CUresult(void *))                                                                         \
  X(hostRegister, cuMemHostRegister_v2, CUresult(void *, size_t, unsigned))                                            \
  X(hostUnregister, cuMemHostUnregister, CUresult(void *))                                                             \
  X(toDevice, cuMemcpyHtoDAsync_v2, CUresult(CUdeviceptr, const void *, size_t, CUstream))                             \
  X(toHost, cuMemcpyDtoHAsync_v2, CUresult(void *, CUdeviceptr, size_t, CUstream))                                     \
  X(onDevice, cuMemcpyDtoDAsync_v2, CUresult(CUdeviceptr, CUdeviceptr, size_t, CUstream))                              \
  X(fill8, cuMemsetD8Async, CUresult(CUdeviceptr, unsigned char, size_t, CUstream))                                    \
  X(fill16, cuMemsetD16Async, CUresult(CUdeviceptr, unsigned short, size_t, CUstream))                                 \
  X(fill32, cuMemsetD32Async, CUresult(CUdeviceptr, unsigned, size_t, CUstream))                                       \
  X(fillRows32, cuMemsetD2D32Async, CUresult(CUdeviceptr, size_t, unsigned, size_t, size_t, CUstream))                 \
  X(reserve, cuMemAddressReserve, CUresult(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))            \
  X(addressFree, cuMemAddressFree, CUresult(CUdeviceptr, size_t))                                                      \
  X(create, cuMemCreate, CUresult(CUmemHandle *, size_t, const MemProperties *, unsigned long long))                   \
  X(release, cuMemRelease, CUresult(CUmemHandle))                                                                      \
  X(map, cuMemMap, CUresult(CUdeviceptr, size_t, size_t, CUmemHandle, unsigned long long))                             \
  X(unmap, cuMemUnmap, CUresult(CUdeviceptr, size_t))                                                                  \
  X(setAccess, cuMemSetAccess, CUresult(CUdeviceptr, size_t, const MemAccess *, size_t))                               \
  X(granularity, cuMemGetAllocationGranularity, CUresult(size_t *, const MemProperties *, int))                        \
  X(streamCreate, cuStreamCreateWithPriority, CUresult(CUstream *, unsigned, int))                                     \
  X(streamDestroy, cuStreamDestroy_v2, CUresult(CUstream))                                                             \
  X(streamSetAttribute, cuStreamSetAttribute, CUresult(CUstream, int, const StreamAttribute *))                        \
  X(streamSynchronize, cuStreamSynchronize, CUresult(CUstream))                                                        \
  X(streamWaitEvent, cuStreamWaitEvent, CUresult(CUstream, CUevent, unsigned))                                         \
  X(streamWaitValue, cuStreamWaitValue32_v2, CUresult(CUstream, CUdeviceptr, uint32_t, unsigned))                      \
  X(hostFunction, cuLaunchHostFunc, CUresult(CUstream, CUhostFn, void *))                                              \
  X(eventCreate, cuEventCreate, CUresult(CUevent *, unsigned))                                                         \
  X(eventDestroy, cuEventDestroy_v2, CUresult(CUevent))                                                                \
  X(eventRecord, cuEventRecord, CUresult(CUevent, CUstream))                                                           \
  X(eventSynchronize, cuEventSynchronize, CUresult(CUevent))                                                           \
  X(eventQuery, cuEventQuery, CUresult(CUevent))                                                                       \
  X(eventElapsed, cuEventElapsedTime, CUresult(float *, CUevent, CUevent))                                             \
  X(beginCapture, cuStreamBeginCapture_v2, CUresult(CUstream, int))                                                    \
  X(endCapture, cuStreamEndCapture, CUresult(CUstream, CUgraph *))                                                     \
  X(graphInstantiate, cuGraphInstantiateWithFlags, CUresult(CUgraphExec *, CUgraph, unsigned long long))               \
  X(graphDestroy, cuGraphDestroy, CUresult(CUgraph))                                                                   \
  X(graphLaunch, cuGraphLaunch, CUresult(CUgraphExec, CUstream))                                                       \
  X(graphExecDestroy, cuGraphExecDestroy, CUresult(CUgraphExec))                                                       \
  X(moduleLoad, cuModuleLoadData, CUresult(CUmodule *, const void *))                                                  \
  X(moduleUnload, cuModuleUnload, CUresult(CUmodule))                                                                  \
  X(moduleFunction, cuModuleGetFunction, CUresult(CUfunction *, CUmodule, const char *))                               \
  X(functionAttribute, cuFuncGetAttribute, CUresult(int *, int, CUfunction))                                           \
  X(launch, cuLaunchKernel,                                                                                            \
    CUresult(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,      \
             void **))

/// The driver's functions.
struct Api {
#define SEGUE_CUDA_MEMBER(name, symbol, ...)                                                                           \
  using name##_t = __VA_ARGS__;                                                                                        \
  name##_t *name = nullptr;
  SEGUE_CUDA_CALLS(SEGUE_CUDA_MEMBER)
#undef SEGUE_CUDA_MEMBER

  /// The driver of this process, opened and initialised once per library: libcuda.so.1,
  /// or what SEGUE_CUDA_LIBRARY names. Throws Unsupported, `device` in the message, where
  /// there is none, where it is older than CUDA 12, or where it finds no GPU.
  static const Api &open(const std::string &device);

  /// Returns a text such as "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered".
  std::string describe(CUresult result) const;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_DRIVERAPI_H
