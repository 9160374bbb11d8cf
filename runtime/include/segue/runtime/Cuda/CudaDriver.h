//===- CudaDriver.h - devices `cuda:N` --------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The library SegueCuda adds GPUs of NVIDIA to the devices of Device::open. It opens
// libcuda.so.1 with the first of them; building it takes no toolkit.
//
//   useCuda();
//   auto gpu = Device::open("cuda:0");                         // GPU 0, most of its memory
//   auto half = Device::open("cuda:0,dram=40GiB,pinned=8GiB");
//
// Options: `dram=SIZE`, the capacity of device_dram (default: what is free, less 1 GiB), for
// which the driver is asked in chunks of 2 MiB, the last of them whole; `pinned=SIZE`, the
// most page-locked memory (default: an eighth of the host's); `profile=FILE`, the figures
// that steps are planned with until some have run (bench/cuda/h100.json is one); `tf32=on`,
// which lets products of f32 round their operands to TF32; `codes=on`, which lets large
// products with weights in INT8 or FP8 round x to such codes, a row at a time;
// `workspace=SIZE`, memory that products of a queue share to work in (default: none); and
// `panels=SIZE`, memory in which large products with codes have floats of their weight, or
// codes of x (default: 16 MiB). The environment variable SEGUE_CUDA_LIBRARY names another library in the place of libcuda.so.1.
//
// Such a device moves data, keeps time, launches PTX, which files have that were compiled
// with --target=sm_80 or later, and multiplies by cuBLASLt, which it opens for the first
// product (SEGUE_CUBLASLT_LIBRARY names another file). docs/cuda.md has what runs.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_CUDA_CUDADRIVER_H
#define SEGUE_RUNTIME_CUDA_CUDADRIVER_H

#include <cstdint>
#include <string>
#include <vector>

namespace segue::inline runtime {

/// Makes Device::open know the driver "cuda". Must be called before any other thread opens
/// a device; a second call does nothing.
void useCuda();

/// A GPU as the driver describes it.
struct GpuDescription {
  /// N of the device `cuda:N`.
  int number = 0;
  std::string model;
  uint64_t memoryBytes = 0;
  /// The compute capability times ten: 90 for an H100.
  int capability = 0;
  /// The numbers of the GPUs whose memory it could reach by itself. Nothing of Segue uses that.
  std::vector<int> peers;
};

/// Returns the GPUs of this machine, and opens none of them. Throws Unsupported, with the
/// reason, where there is no driver or none that Segue can use.
std::vector<GpuDescription> describeGpus();

/// The whole memory of a GPU as its driver counts it, whoever took it: contexts, code and other programs too.
struct GpuMemory {
  uint64_t totalBytes = 0, freeBytes = 0;
};
/// Asks the driver, with the context that devices of the process share. Throws what opening one throws.
GpuMemory gpuMemory(int number);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_CUDA_CUDADRIVER_H
