//===- Kernels.h - code of files on a GPU -----------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Loads kernels (Kernel.h has the convention of their parameters) and launches them: a cubin
// that the GPU and its driver can run, which is loaded in no time, or else PTX, which the
// driver has to compile. An object is loaded once for all kernels in it, and stays as long as
// a handle of one does.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_KERNELS_H
#define SEGUE_LIB_CUDA_KERNELS_H

#include "HostWords.h"
#include "segue/runtime/Device/Kernel.h"
#include <map>

namespace segue::inline runtime::cuda {

class Module;

class CudaKernel final : public Kernel {
public:
  CudaKernel(std::shared_ptr<const Module> module, CUfunction function, unsigned threads, uint64_t blocks, uint64_t stackBytes)
      : function(function), threads(threads), blocks(blocks), stackBytes(stackBytes), module_(std::move(module)) {}

  const CUfunction function;
  /// The number of threads of a block.
  const unsigned threads;
  /// The number of blocks; 0 for one per piece of a launch's range.
  const uint64_t blocks;
  /// The bytes of local memory of a thread.
  const uint64_t stackBytes;

private:
  std::shared_ptr<const Module> module_;
};

class Kernels {
public:
  Kernels(std::shared_ptr<const Context> context, HostWords &words) : context_(std::move(context)), words_(words) {}

  /// Does what Device::makeKernel promises. Any thread may call.
  std::shared_ptr<const CudaKernel> make(const KernelSource &source);
  /// Does what Device::launch promises.
  void launch(Streams &streams, const CudaKernel &kernel, std::span<void *const> args, int64_t range, int64_t grain);

private:
  /// The variants that this GPU may be given: the newest cubin that it can run, and PTX. Null for none.
  struct Candidates {
    const KernelSource::Variant *cubin = nullptr, *ptx = nullptr;
  };
  Candidates candidates(const KernelSource &source) const;
  /// Returns null where there is another variant and the driver has no use for this one.
  std::shared_ptr<const Module> load(const KernelSource &source, const KernelSource::Variant &variant, bool hasOther);

  std::shared_ptr<const Context> context_;
  std::mutex mutex_;
  std::map<const std::byte *, std::weak_ptr<const Module>> modules_;
  HostWords &words_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_KERNELS_H
