//===- GradientSum.cpp - sums of gradients --------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "GradientSum.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferPlan.h"

namespace segue::inline runtime {

/// Returns the description of a sum, where the gradient lies.
static TensorDesc descOfSum(const Tensor &gradient) {
  TensorDesc desc(gradient.shape(), ElementType::f32);
  if (isHostSpace(gradient.desc().layout.space) && !gradient.device()->hasUnifiedMemory())
    desc.layout.space = gradient.desc().layout.space;
  return desc;
}

void ownSum(Tensor &sum) {
  // A sum that somebody else may still read is not written to.
  if (sum.element() != ElementType::f32 || !sum.desc().isDense())
    sum = toLayout(sum.device(), sum, descOfSum(sum));
  else if (!sum.isSoleOwner())
    sum = copyTo(sum.device(), sum, descOfSum(sum));
}

void addGradient(Tensor &sum, Tensor gradient) {
  if (!sum) {
    sum = std::move(gradient);
    return;
  }
  const DeviceRef device = sum.device();
  ownSum(sum);
  TensorDesc desc = descOfSum(sum);
  bool isOnHost = isHostSpace(desc.layout.space);
  Tensor addend = toLayout(device, gradient, desc);
  Storage &into = *sum.storage(), &from = *addend.storage();
  auto *to = reinterpret_cast<float *>(sum.bytes());
  auto *what = reinterpret_cast<const float *>(addend.bytes());
  int64_t count = int64_t(sum.elementCount());
  if (isOnHost) { // no queue computes there
    wait(sum);
    wait(addend);
    for (int64_t i = 0; i < count && device->hasBytes(); ++i)
      to[i] += what[i];
    return;
  }
  if (device->runsInline()) {
    device->wait(into.uses());
    device->wait(from.writes());
    device->engine().add(to, what, count);
    return;
  }
  Fence after = into.uses();
  after.join(from.writes());
  Work work;
  work.label = "add gradients";
  work.cost = {.memoryBytes = 3 * uint64_t(count) * sizeof(float), .flops = uint64_t(count)};
  work.run = [device = device.get(), to, what, count] { device->engine().add(to, what, count); };
  work.mayBegin = [sum = into.outcome(), addend = from.outcome()] {
    if (sum->error())
      return false;
    if (const Error *error = addend->error()) {
      sum->fail(error->within("a sum of gradients lacks one"));
      return false;
    }
    return true;
  };
  work.ended = [sum = into.outcome()](const Error *error) {
    if (error)
      sum->fail(error->within("a sum of gradients"));
  };
  Fence fence(Queue::Compute, device->enqueue(Queue::Compute, after, std::move(work)));
  into.addWrite(fence);
  from.addRead(fence);
}

} // namespace segue::inline runtime
