//===- Context.h - one GPU of this process ----------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Holds the primary context of a GPU, which all libraries of the process share, and says
// what results of the driver mean. Some results end everything: after a wild address the
// driver gives that error to every call in this process, for work that was done before it
// too. Then the device is lost: queued entries end with the error, allocations and copies
// throw it, and destructors go on.
//
// Within a host function of a stream the driver refuses all calls: whoever may run there
// asks isInHostFunction() first.
//
// Any thread may call all of it.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_CONTEXT_H
#define SEGUE_LIB_CUDA_CONTEXT_H

#include "DriverApi.h"
#include "segue/runtime/Error.h"
#include <atomic>
#include <mutex>
#include <optional>

namespace segue::inline runtime::cuda {

/// Returns a flag that is true on the driver's thread of host functions while it runs one.
bool &isInHostFunction();

class Context {
public:
  /// Takes GPU `number`. Throws Unsupported if there is no such GPU, or if it is older than
  /// kernels can be compiled for, or cannot map ranges of addresses.
  Context(std::string device, const Api &api, int number);
  ~Context();
  Context(const Context &) = delete;
  Context &operator=(const Context &) = delete;

  const Api &api() const { return api_; }
  int number() const { return number_; }
  /// Returns the name that the driver gives the GPU.
  const std::string &model() const { return model_; }
  int attribute(int which) const;
  /// Returns what tells it from all other GPUs of all machines, in hexadecimal digits.
  std::string uuid() const;
  /// Returns the compute capability times ten: 90 for an H100.
  int capability() const;

  /// Makes it the context of this thread. Called before any call that needs one.
  void use() const { (void)api_.ctxSetCurrent(context_); }

  /// Returns if the call succeeded. Throws DeviceLost if the result ends everything, else `code`.
  void check(CUresult result, const char *call, ErrorCode code = ErrorCode::Unsupported) const;
  /// Returns true if the call succeeded; notes a result that ends everything.
  bool succeeded(CUresult result, const char *call) const noexcept;

  bool isLost() const { return isLost_.load(std::memory_order_acquire); }
  /// Returns the error that ended everything. May be called only if isLost().
  const Error &loss() const { return *loss_; }
  void throwIfLost() const {
    if (isLost())
      throw loss();
  }

private:
  std::string device_;
  const Api &api_;
  int number_;
  CUdevice handle_ = 0;
  CUcontext context_ = nullptr;
  std::string model_;
  mutable std::mutex mutex_;
  mutable std::optional<Error> loss_;
  mutable std::atomic<bool> isLost_{false};
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_CONTEXT_H
