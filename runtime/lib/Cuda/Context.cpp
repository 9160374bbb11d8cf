//===- Context.cpp - one GPU of this process ------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Context.h"
#include <algorithm>
#include <iterator>

namespace segue::inline runtime::cuda {

bool &isInHostFunction() {
  static thread_local bool inside = false;
  return inside;
}

/// Returns true for results that every later call of the process gives, too (docs/cuda.md).
static bool endsEverything(CUresult result) {
  static constexpr CUresult sticky[] = {
      deinitialized,      eccUncorrectable,   nvlinkUncorrectable, illegalAddress,      launchTimeout,
      contextIsDestroyed, deviceAssert,       hardwareStackError,  illegalInstruction,  misalignedAddress,
      invalidAddressSpace, invalidPc,         launchFailed,        unknownError};
  return std::ranges::find(sticky, result) != std::end(sticky);
}

/// The least compute capability, times ten: that which the PTX of the runtime's own kernels is for.
static constexpr int leastCapability = 80;

Context::Context(std::string device, const Api &api, int number)
    : device_(std::move(device)), api_(api), number_(number) {
  int count = 0;
  CUresult result = api_.deviceCount(&count);
  if (result && result != noDevice)
    check(result, "cuDeviceGetCount");
  if (number >= count)
    throw Error(ErrorCode::Unsupported,
                "device \"" + device_ + "\": " +
                    (count == 0 ? "the CUDA driver finds no GPU"
                                : "the CUDA driver finds " + std::to_string(count) + " GPU" + (count > 1 ? "s" : "") +
                                      ", the last is cuda:" + std::to_string(count - 1)));
  check(api_.deviceGet(&handle_, number), "cuDeviceGet");
  char name[256] = "";
  check(api_.deviceName(name, sizeof name - 1, handle_), "cuDeviceGetName");
  model_ = name;
  if (!attribute(attributeVirtualMemory))
    throw Error(ErrorCode::Unsupported, "device \"" + device_ + "\": " + model_ +
                                            " cannot map memory into ranges of addresses (cuMemMap), and Segue "
                                            "places memory so; use a GPU and a driver that can");
  if (int version = capability(); version < leastCapability)
    throw Error(ErrorCode::Unsupported, "device \"" + device_ + "\": " + model_ + " has compute capability " +
                                            std::to_string(version / 10) + "." + std::to_string(version % 10) +
                                            ", and kernels need 8.0 at least, that of an A100");
  check(api_.primaryRetain(&context_, handle_), "cuDevicePrimaryCtxRetain");
}

Context::~Context() {
  if (context_)
    (void)api_.primaryRelease(handle_);
}

int Context::capability() const {
  return 10 * attribute(attributeCapabilityMajor) + attribute(attributeCapabilityMinor);
}

int Context::attribute(int which) const {
  int value = 0;
  check(api_.deviceAttribute(&value, which, handle_), "cuDeviceGetAttribute");
  return value;
}

std::string Context::uuid() const {
  DeviceUuid uuid = {};
  check(api_.deviceUuid(&uuid, handle_), "cuDeviceGetUuid");
  std::string digits;
  for (char byte : uuid.bytes)
    for (int half : {byte >> 4 & 15, byte & 15})
      digits += "0123456789abcdef"[half];
  return digits;
}

bool Context::succeeded(CUresult result, const char *call) const noexcept {
  if (result && endsEverything(result) && !isLost()) {
    std::lock_guard lock(mutex_);
    if (!loss_) {
      loss_.emplace(ErrorCode::DeviceLost,
                    "device \"" + device_ + "\" has failed: " + call + " gives " + api_.describe(result) +
                        "; nothing runs on it any more, only a new process can use it; what lies in the host's "
                        "memory is whole");
      isLost_.store(true, std::memory_order_release);
    }
  }
  return result == success;
}

void Context::check(CUresult result, const char *call, ErrorCode code) const {
  if (succeeded(result, call))
    return;
  throwIfLost();
  throw Error(result == outOfMemory ? ErrorCode::DeviceOom : code,
              "device \"" + device_ + "\": " + call + " gives " + api_.describe(result));
}

} // namespace segue::inline runtime::cuda
