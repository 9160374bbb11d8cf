//===- Device.cpp - what every device does --------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Device/KernelTarget.h"

namespace segue::inline runtime {

Device::Device() : memory_(*this), lane_(makeSubmitLane(*this)) {}
Device::~Device() = default;

TransferEngine &Device::transfer() {
  std::call_once(transferOnce_, [&] { transfer_ = makeTransferEngine(*this); });
  return *transfer_;
}

std::string Device::kernelTarget() const { return runtime::kernelTarget(); }

FreeMemory Device::freeMemory(Space space) const {
  for (const SpaceInfo &info : spaces())
    if (info.space == space) {
      uint64_t live = memory_.liveBytes(space);
      uint64_t free = info.capacityBytes > live ? info.capacityBytes - live : 0;
      return {free, free, free ? 1u : 0u};
    }
  return {};
}

bool Device::waitFor(const Fence &fence, double) {
  wait(fence);
  return true;
}

void Device::lendMemory(const void *data, uint64_t bytes) {
  throw Error(ErrorCode::InvalidArgument, "device \"" + name() + "\" has no memory that another library could have");
}

uint64_t Device::enqueueWaitForStream(void *stream) {
  throw Error(ErrorCode::Unsupported, "device \"" + name() + "\" has no streams");
}

void Device::letStreamWait(void *stream, const Fence &fence) {
  throw Error(ErrorCode::Unsupported, "device \"" + name() + "\" has no streams");
}

uint64_t Device::enqueueStamp(Queue queue, const Fence &after, TimestampRef stamp, std::string_view label) {
  return enqueue(queue, after, {[this, stamp = std::move(stamp)] { this->stamp(stamp); }, {}, label});
}

uint64_t Device::enqueueCall(Queue queue, const Fence &after, std::function<void()> call, std::string_view label) {
  return enqueue(queue, after, {[this, call = std::move(call)] { this->call(call); }, {}, label});
}

void Device::drain() {
  Fence all;
  for (Queue queue : allQueues)
    all.join(Fence(queue, position(queue)));
  wait(all);
}

} // namespace segue::inline runtime
