//===- BuiltinKernels.h - kernels that are part of the runtime --*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Launches the kernels of the folder Builtin. Their PTX is part of this library, one text
// per file, which the driver loads when a kernel of it is first launched.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_BUILTINKERNELS_H
#define SEGUE_LIB_CUDA_BUILTINKERNELS_H

#include "Builtin/BuiltinArgs.h"
#include "HostWords.h"

namespace segue::inline runtime::cuda {

enum class Builtin : uint8_t {
#define SEGUE_BUILTIN_VALUE(file, name, args, addresses) name,
  SEGUE_BUILTIN_KERNELS(SEGUE_BUILTIN_VALUE)
#undef SEGUE_BUILTIN_VALUE
};

/// The kernels of a device. Any thread; within a body a launch goes to its stream, and
/// outside of one it is waited for.
class BuiltinKernels {
public:
  BuiltinKernels(std::shared_ptr<const Context> context, Streams &streams, HostWords &words);
  ~BuiltinKernels();
  BuiltinKernels(const BuiltinKernels &) = delete;
  BuiltinKernels &operator=(const BuiltinKernels &) = delete;

  /// Launches a kernel with what it takes, the struct of the list, for `items` that a thread or a warp
  /// does each: `perBlock` of them are a block's. Does nothing if there are none.
  template <typename Args> void launch(Builtin kernel, const Args &args, int64_t items, int64_t perBlock = 256) {
    launchBytes(kernel, &args, items, perBlock);
  }

  Streams &streams() { return streams_; }
  HostWords &words() { return words_; }
  const Context &context() const { return *context_; }

private:
  CUfunction find(Builtin kernel);
  void launchBytes(Builtin kernel, const void *args, int64_t items, int64_t perBlock);

  std::shared_ptr<const Context> context_;
  Streams &streams_;
  HostWords &words_;
  int64_t mostBlocks_;
  std::mutex mutex_;
  /// The handles by file and by kernel, which are null while nobody has asked for them.
  std::vector<CUmodule> modules_;
  std::vector<CUfunction> functions_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_BUILTINKERNELS_H
