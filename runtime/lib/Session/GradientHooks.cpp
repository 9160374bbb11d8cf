//===- GradientHooks.cpp - gradients that the caller sees and may change --===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SessionState.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>

namespace segue::inline runtime {

/// Multiplies the elements of f32 in the host's memory, dense.
static void scaleElements(Tensor &host, double factor) {
  float *begin = host.data<float>();
  std::for_each(begin, begin + host.elementCount(), [&](float &each) { each = float(each * factor); });
}

void Session::State::callHooks(std::span<const GradientHook> hooks, double divisor) {
  for (const GradientHook &hook : hooks) {
    size_t slot = table.require(hook.key);
    const ParameterInfo &info = table.infos()[slot];
    if (!info.trained || updatesInBackward())
      throw Error(ErrorCode::InvalidArgument,
                  "a hook is on the gradient of \"" + info.key + "\", which " +
                      (info.trained ? "is used up in backward by the optimizer there; compile without in-backward"
                                    : "is frozen and has none; take the hook away"));
    Tensor &sum = tape.gradient(GradientTape::ValueId(slot));
    if (!sum || !device->hasBytes())
      continue;
    Item *item = residency && residency->isHome(sum) ? residency->findHome(sum) : nullptr;
    if (item)
      residency->writeBack(*item);
    bool isScaled = divisor != 1;
    Tensor seen = Tensor::onHost(device, sum.shape(), isScaled ? ElementType::f32 : sum.element());
    copyInto(sum, seen);
    wait(seen);
    if (isScaled)
      scaleElements(seen, 1 / divisor);
    hook.call(seen);
    if (isScaled)
      scaleElements(seen, divisor);
    if (!item && !sum.isSoleOwner()) // another gradient may be the same memory
      sum = copyTo(device, seen, sum.desc());
    else
      copyInto(seen, sum);
    wait(sum);
    if (item)
      residency->homeWritten(*item);
  }
}

} // namespace segue::inline runtime
