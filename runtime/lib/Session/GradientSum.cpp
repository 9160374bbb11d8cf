//===- GradientSum.cpp - sums of gradients --------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "GradientSum.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferPlan.h"

namespace segue::inline runtime {

/// Elements that pay for waking another thread.
static constexpr int64_t addGrain = 1 << 14;

/// Adds argument 1 to argument 0, both f32.
static int64_t addKernel(void *const *args, int64_t begin, int64_t end) {
  float *into = static_cast<float *>(args[0]);
  const float *from = static_cast<const float *>(args[1]);
  for (int64_t i = begin; i < end; ++i)
    into[i] += from[i];
  return 0;
}

void addGradient(Tensor &sum, Tensor gradient) {
  if (!sum) {
    sum = std::move(gradient);
    return;
  }
  const DeviceRef device = sum.device();
  TensorDesc desc(sum.shape(), ElementType::f32);
  bool isOnHost = isHostSpace(sum.desc().layout.space) && !device->hasUnifiedMemory();
  if (isOnHost)
    desc.layout.space = sum.desc().layout.space;
  // What somebody else may still read is not written to.
  if (sum.element() != ElementType::f32 || !sum.desc().isDense())
    sum = toLayout(device, sum, desc);
  else if (!sum.isSoleOwner())
    sum = copyTo(device, sum, desc);
  Tensor addend = toLayout(device, gradient, desc);
  Storage &into = *sum.storage(), &from = *addend.storage();
  void *args[] = {sum.bytes(), addend.bytes()};
  int64_t count = int64_t(sum.elementCount());
  if (isOnHost) { // no queue computes there
    wait(sum);
    wait(addend);
    if (device->hasBytes())
      addKernel(args, 0, count);
    return;
  }
  if (device->runsInline()) {
    device->launch(addKernel, args, count, addGrain, device->threads());
    return;
  }
  Fence after = into.uses();
  after.join(from.writes());
  Work work;
  work.label = "add gradients";
  work.cost = {.memoryBytes = 3 * uint64_t(count) * sizeof(float), .flops = uint64_t(count)};
  work.run = [device = device.get(), sum = into.outcome(), addend = from.outcome(), to = args[0], what = args[1],
              count] {
    if (sum->error())
      return;
    if (const Error *error = addend->error())
      return sum->fail(error->within("a sum of gradients lacks one"));
    void *args[] = {to, what};
    device->launch(addKernel, args, count, addGrain, device->threads());
  };
  Fence fence(Queue::Compute, device->enqueue(Queue::Compute, after, std::move(work)));
  into.addWrite(fence);
  from.addRead(fence);
}

} // namespace segue::inline runtime
