//===- Kernels.h - PTX of files on a GPU ------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Loads the PTX variants of kernels (Kernel.h has the convention of their parameters) and
// launches them. An object is loaded once for all kernels in it, and stays as long as a
// handle of one does.
//
// A kernel tells its fault by writing to a word of page-locked memory, which the host
// reads when the entry has ended: no copy is needed for the many launches without one.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_KERNELS_H
#define SEGUE_LIB_CUDA_KERNELS_H

#include "Streams.h"
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
  explicit Kernels(std::shared_ptr<const Context> context) : context_(std::move(context)), faults_(context_) {}

  /// Does what Device::makeKernel promises. Any thread may call.
  std::shared_ptr<const CudaKernel> make(const KernelSource &source);
  /// Does what Device::launch promises.
  void launch(Streams &streams, const CudaKernel &kernel, std::span<void *const> args, int64_t range, int64_t grain);

private:
  /// Words of page-locked memory, all bits set while nobody has written to them.
  class FaultWords {
  public:
    explicit FaultWords(std::shared_ptr<const Context> context) : context_(std::move(context)) {}
    ~FaultWords();
    uint64_t *take();
    void give(uint64_t *word);

  private:
    std::shared_ptr<const Context> context_;
    std::mutex mutex_;
    std::vector<void *> pages_;
    std::vector<uint64_t *> free_;
  };
  class Launched;

  std::shared_ptr<const Module> load(const KernelSource &source, const KernelSource::Variant &variant);

  std::shared_ptr<const Context> context_;
  std::mutex mutex_;
  std::map<const std::byte *, std::weak_ptr<const Module>> modules_;
  FaultWords faults_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_KERNELS_H
