//===- KernelLibrary.h - the native kernels of a binary ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Maps the ELF segments of a binary and finds, for each kernel, the best
// variant that this CPU can run. The environment variable SEGUE_ISA=v3 keeps
// to x86-64-v3 on a machine with more (v4 is the default where it is there).
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_PROGRAM_KERNELLIBRARY_H
#define SEGUE_LIB_PROGRAM_KERNELLIBRARY_H

#include "BinaryImage.h"

namespace segue::inline runtime {

class KernelLibrary {
public:
  explicit KernelLibrary(const BinaryImage &image);
  KernelLibrary(const KernelLibrary &) = delete;
  KernelLibrary &operator=(const KernelLibrary &) = delete;
  ~KernelLibrary();

  /// The entry point of a kernel, valid as long as the library. Maps its
  /// segment at the first call. Throws Unsupported if no variant runs here,
  /// FileCorrupt if the segment cannot be mapped or lacks the symbol.
  KernelFunction find(uint32_t kernel);

private:
  void *open(uint32_t segment);

  struct Handle {
    void *library = nullptr;
    /// Stays open: dlopen tells libraries apart by "/proc/self/fd/<number>".
    int file = -1;
  };

  const BinaryImage &image_;
  std::mutex mutex_;
  std::map<uint32_t, Handle> handles_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_PROGRAM_KERNELLIBRARY_H
