//===- GpuHolder.h - what other libraries on a GPU need ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A library of NVIDIA's that works on the queues of a device gives its calls to the streams
// of bodies, and takes memory of the driver's for itself. This is the side of a device
// `cuda:N` that such a library's driver is given; other devices have none.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_GPUHOLDER_H
#define SEGUE_LIB_CUDA_GPUHOLDER_H

#include "Context.h"
#include "Streams.h"
#include "segue/runtime/Memory/RawMemory.h"
#include <memory>
#include <string>

namespace segue::inline runtime::cuda {

class GpuHolder {
public:
  virtual ~GpuHolder() = default;

  virtual const std::shared_ptr<const Context> &context() const = 0;
  virtual Streams &streams() = 0;

  /// Counts `bytes` of whole chunks that a library has of the driver in the books of device_dram, as those of `owner`.
  /// Throws OutOfMemory where the budget has no room for them.
  virtual MemoryBlock countForLibrary(uint64_t bytes, const std::string &owner) = 0;
  virtual void countNoMore(const MemoryBlock &block, uint64_t bytes) noexcept = 0;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_GPUHOLDER_H
