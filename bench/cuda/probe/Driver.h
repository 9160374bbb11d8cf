//===- Driver.h - the calls of the CUDA driver that the probe makes -------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The probe builds with a C++ compiler alone: what it needs of cuda.h is
// declared here, and libcuda.so.1 is opened when it starts. CheckDriver.cpp
// compares these declarations with a cuda.h.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_BENCH_CUDA_DRIVER_H
#define SEGUE_BENCH_CUDA_DRIVER_H

#include <cstddef>
#include <cstdint>

namespace probe {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st *;
using CUmodule = struct CUmod_st *;
using CUfunction = struct CUfunc_st *;
using CUstream = struct CUstream_st *;
using CUevent = struct CUevent_st *;
using CUgraph = struct CUgraph_st *;
using CUgraphNode = struct CUgraphNode_st *;
using CUgraphExec = struct CUgraphExec_st *;
using CUmemHandle = unsigned long long;
using CUhostFn = void (*)(void *);

/// CUDA_KERNEL_NODE_PARAMS_v2.
struct KernelNodeParams {
  CUfunction func;
  unsigned grid[3];
  unsigned block[3];
  unsigned sharedBytes;
  void **arguments;
  void **extra;
  void *kernel;
  CUcontext context;
};

/// CUmemLocation, CUmemAllocationProp and CUmemAccessDesc.
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

/// CUlaunchAttributeValue as far as an access policy window goes.
struct AccessWindow {
  void *base;
  size_t bytes;
  float hitRatio;
  int hit;
  int miss;
};
union StreamAttribute {
  char pad[64];
  AccessWindow window;
};

// Name here, symbol in the library, type.
#define SEGUE_CUDA_CALLS(X)                                                                                            \
  X(init, "cuInit", CUresult(unsigned))                                                                                \
  X(driverVersion, "cuDriverGetVersion", CUresult(int *))                                                              \
  X(errorName, "cuGetErrorName", CUresult(CUresult, const char **))                                                    \
  X(errorText, "cuGetErrorString", CUresult(CUresult, const char **))                                                  \
  X(deviceGet, "cuDeviceGet", CUresult(CUdevice *, int))                                                               \
  X(deviceName, "cuDeviceGetName", CUresult(char *, int, CUdevice))                                                    \
  X(deviceTotal, "cuDeviceTotalMem_v2", CUresult(size_t *, CUdevice))                                                  \
  X(deviceAttribute, "cuDeviceGetAttribute", CUresult(int *, int, CUdevice))                                           \
  X(ctxCreate, "cuCtxCreate_v2", CUresult(CUcontext *, unsigned, CUdevice))                                            \
  X(ctxDestroy, "cuCtxDestroy_v2", CUresult(CUcontext))                                                                \
  X(ctxSetCurrent, "cuCtxSetCurrent", CUresult(CUcontext))                                                             \
  X(ctxSynchronize, "cuCtxSynchronize", CUresult())                                                                    \
  X(ctxSetLimit, "cuCtxSetLimit", CUresult(int, size_t))                                                               \
  X(ctxGetLimit, "cuCtxGetLimit", CUresult(size_t *, int))                                                             \
  X(ctxResetL2, "cuCtxResetPersistingL2Cache", CUresult())                                                             \
  X(priorityRange, "cuCtxGetStreamPriorityRange", CUresult(int *, int *))                                              \
  X(memInfo, "cuMemGetInfo_v2", CUresult(size_t *, size_t *))                                                          \
  X(memAlloc, "cuMemAlloc_v2", CUresult(CUdeviceptr *, size_t))                                                        \
  X(memFree, "cuMemFree_v2", CUresult(CUdeviceptr))                                                                    \
  X(memAllocAsync, "cuMemAllocAsync", CUresult(CUdeviceptr *, size_t, CUstream))                                       \
  X(memFreeAsync, "cuMemFreeAsync", CUresult(CUdeviceptr, CUstream))                                                   \
  X(hostAlloc, "cuMemHostAlloc", CUresult(void **, size_t, unsigned))                                                  \
  X(hostFree, "cuMemFreeHost", CUresult(void *))                                                                       \
  X(hostRegister, "cuMemHostRegister_v2", CUresult(void *, size_t, unsigned))                                          \
  X(hostUnregister, "cuMemHostUnregister", CUresult(void *))                                                           \
  X(toDevice, "cuMemcpyHtoDAsync_v2", CUresult(CUdeviceptr, const void *, size_t, CUstream))                           \
  X(toHost, "cuMemcpyDtoHAsync_v2", CUresult(void *, CUdeviceptr, size_t, CUstream))                                   \
  X(onDevice, "cuMemcpyDtoDAsync_v2", CUresult(CUdeviceptr, CUdeviceptr, size_t, CUstream))                            \
  X(fill, "cuMemsetD32Async", CUresult(CUdeviceptr, unsigned, size_t, CUstream))                                       \
  X(reserve, "cuMemAddressReserve", CUresult(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))          \
  X(addressFree, "cuMemAddressFree", CUresult(CUdeviceptr, size_t))                                                    \
  X(create, "cuMemCreate", CUresult(CUmemHandle *, size_t, const MemProperties *, unsigned long long))                 \
  X(release, "cuMemRelease", CUresult(CUmemHandle))                                                                    \
  X(map, "cuMemMap", CUresult(CUdeviceptr, size_t, size_t, CUmemHandle, unsigned long long))                           \
  X(unmap, "cuMemUnmap", CUresult(CUdeviceptr, size_t))                                                                \
  X(setAccess, "cuMemSetAccess", CUresult(CUdeviceptr, size_t, const MemAccess *, size_t))                             \
  X(granularity, "cuMemGetAllocationGranularity", CUresult(size_t *, const MemProperties *, int))                      \
  X(streamCreate, "cuStreamCreateWithPriority", CUresult(CUstream *, unsigned, int))                                   \
  X(streamDestroy, "cuStreamDestroy_v2", CUresult(CUstream))                                                           \
  X(streamSynchronize, "cuStreamSynchronize", CUresult(CUstream))                                                      \
  X(streamQuery, "cuStreamQuery", CUresult(CUstream))                                                                  \
  X(streamWaitEvent, "cuStreamWaitEvent", CUresult(CUstream, CUevent, unsigned))                                       \
  X(streamAttribute, "cuStreamSetAttribute", CUresult(CUstream, int, const StreamAttribute *))                         \
  X(writeValue, "cuStreamWriteValue32_v2", CUresult(CUstream, CUdeviceptr, uint32_t, unsigned))                        \
  X(waitValue, "cuStreamWaitValue32_v2", CUresult(CUstream, CUdeviceptr, uint32_t, unsigned))                          \
  X(hostFunction, "cuLaunchHostFunc", CUresult(CUstream, CUhostFn, void *))                                            \
  X(eventCreate, "cuEventCreate", CUresult(CUevent *, unsigned))                                                       \
  X(eventDestroy, "cuEventDestroy_v2", CUresult(CUevent))                                                              \
  X(eventRecord, "cuEventRecord", CUresult(CUevent, CUstream))                                                         \
  X(eventSynchronize, "cuEventSynchronize", CUresult(CUevent))                                                         \
  X(eventQuery, "cuEventQuery", CUresult(CUevent))                                                                     \
  X(eventElapsed, "cuEventElapsedTime", CUresult(float *, CUevent, CUevent))                                           \
  X(moduleLoad, "cuModuleLoadData", CUresult(CUmodule *, const void *))                                                \
  X(moduleUnload, "cuModuleUnload", CUresult(CUmodule))                                                                \
  X(moduleFunction, "cuModuleGetFunction", CUresult(CUfunction *, CUmodule, const char *))                             \
  X(functionAttribute, "cuFuncGetAttribute", CUresult(int *, int, CUfunction))                                         \
  X(launch, "cuLaunchKernel",                                                                                          \
    CUresult(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,      \
             void **))                                                                                                 \
  X(beginCapture, "cuStreamBeginCapture_v2", CUresult(CUstream, int))                                                  \
  X(endCapture, "cuStreamEndCapture", CUresult(CUstream, CUgraph *))                                                   \
  X(graphInstantiate, "cuGraphInstantiateWithFlags", CUresult(CUgraphExec *, CUgraph, unsigned long long))             \
  X(graphUpload, "cuGraphUpload", CUresult(CUgraphExec, CUstream))                                                     \
  X(graphLaunch, "cuGraphLaunch", CUresult(CUgraphExec, CUstream))                                                     \
  X(graphNodes, "cuGraphGetNodes", CUresult(CUgraph, CUgraphNode *, size_t *))                                         \
  X(graphNodeParams, "cuGraphKernelNodeGetParams_v2", CUresult(CUgraphNode, KernelNodeParams *))                       \
  X(graphSetParams, "cuGraphExecKernelNodeSetParams_v2",                                                               \
    CUresult(CUgraphExec, CUgraphNode, const KernelNodeParams *))                                                      \
  X(graphExecDestroy, "cuGraphExecDestroy", CUresult(CUgraphExec))                                                     \
  X(graphDestroy, "cuGraphDestroy", CUresult(CUgraph))

/// The library's functions, null until `open`.
struct Driver {
#define SEGUE_CUDA_MEMBER(name, symbol, ...)                                                                           \
  using name##_t = __VA_ARGS__;                                                                                        \
  name##_t *name = nullptr;
  SEGUE_CUDA_CALLS(SEGUE_CUDA_MEMBER)
#undef SEGUE_CUDA_MEMBER

  /// Opens libcuda.so.1 and looks every function up. Returns null, or what
  /// is missing.
  const char *open();
};

inline Driver cu;

} // namespace probe

#endif // SEGUE_BENCH_CUDA_DRIVER_H
