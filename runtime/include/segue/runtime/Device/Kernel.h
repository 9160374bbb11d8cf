//===- Kernel.h - code that a device launches -------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A file holds each kernel in variants: objects of machine code for several
// instruction sets. A device makes a handle from those that it can run, and launches
// the handle:
//
//   KernelRef kernel = device.makeKernel(source);
//   device.launch(*kernel, args, range, grain, threads);
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_DEVICE_KERNEL_H
#define SEGUE_RUNTIME_DEVICE_KERNEL_H

#include "segue/runtime/Error.h"
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace segue::inline runtime {

/// The instruction set that a variant needs; of one family, later ones are preferred.
/// Code of x86-64 is a KernelFunction. In PTX and in a cubin it is an entry whose parameters
/// are those of its arguments, each .u64, then .u64 range, .u64 piece and .u64 fault: block
/// b does units [b * piece, min(range, (b + 1) * piece)), where the variant does not say how many blocks there are. A
/// block has as many threads along x as .maxntid says (else 128; the driver does not tell .reqntid). The address of an
/// argument is a multiple of its .align. A code c other than 0 is told by
/// atom.min.u64 of (b << 16 | c) to the word at `fault`, c < 2^16.
enum class KernelIsa : uint8_t { X86_64_V3, X86_64_V4, Ptx, Cubin };

/// One kernel of a file.
struct KernelSource {
  struct Variant {
    KernelIsa isa;
    /// The index of the segment of the file that holds the object.
    uint32_t segment = 0;
    /// The object's bytes, which stay where they are as long as handles are made of them.
    /// Variants of several kernels may lie in one object.
    std::span<const std::byte> object;
    std::string symbol;
    /// PTX and cubins: the blocks of the grid; 0 for one per piece of the range.
    uint64_t blocks = 0;
    /// Cubins: the compute capability that the code is for, times ten.
    uint32_t capability = 0;
  };
  /// The file and the kernel, for messages.
  std::string file, kernel;
  std::vector<Variant> variants;
};

/// A kernel as a device made it, for that device alone. Its code stays as long as the
/// handle: whoever queues it keeps it until the work is done. Any thread.
class Kernel {
public:
  virtual ~Kernel() = default;
};
using KernelRef = std::shared_ptr<const Kernel>;

/// The error of a launch that ended with a code other than 0, which is i + 1 if argument i
/// held an index outside of its table.
class __attribute__((visibility("default"))) KernelFault : public Error {
public:
  struct __attribute__((visibility("default"))) Code : ErrorDetails {
    explicit Code(int64_t value) : value(value) {}
    int64_t value;
  };
  explicit KernelFault(int64_t code)
      : Error(ErrorCode::IndexOutOfRange, "a kernel ended with code " + std::to_string(code),
              std::make_shared<const Code>(code)) {}
};

/// A kernel that is code of this process. It runs units [begin, end) and returns the code
/// of KernelFault, or 0.
using KernelFunction = int64_t (*)(void *const *args, int64_t begin, int64_t end);

/// The handle of a KernelFunction, for devices that compute on the host's processors.
class HostKernel final : public Kernel {
public:
  /// `object` keeps the code mapped; null for code of the program itself.
  explicit HostKernel(KernelFunction function, std::shared_ptr<const void> object = nullptr)
      : function_(function), object_(std::move(object)) {}
  KernelFunction function() const { return function_; }

private:
  KernelFunction function_;
  std::shared_ptr<const void> object_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_DEVICE_KERNEL_H
