//===- GradientHooks.cpp - gradients that the caller sees and may change --===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../Tensor/NullHandles.h"
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

SessionState::NewestGradient SessionState::newestOf(const Tensor &sum) {
  Item *item = residency && residency->isHome(sum) ? residency->findHome(sum) : nullptr;
  if (item && item->device().exists())
    return {residency->need(*item, /*isWritten=*/true), item};
  return {sum, item};
}

void SessionState::written(const NewestGradient &gradient) {
  if (gradient.item && residency->isHome(gradient.tensor))
    residency->homeWritten(*gradient.item);
}

bool SessionState::isSeenElsewhere(size_t slot) {
  const Tensor &sum = tape.gradient(GradientTape::ValueId(slot));
  auto isSame = [&](const Tensor &other) { return other && other.storage() == sum.storage(); };
  auto hasSame = [&](const TensorMap &map) {
    return std::ranges::any_of(map, [&](const auto &entry) { return isSame(entry.second); });
  };
  for (size_t other = 0; other < tape.valueCount(); ++other)
    if (other != slot && isSame(tape.gradient(GradientTape::ValueId(other))))
      return true;
  return sum.storage()->isExternal() || hasSame(inputGradients) || hasSame(lastOutputs) ||
         std::ranges::any_of(values, isSame);
}

void SessionState::callHooks(std::span<const GradientHook> hooks, double divisor) {
  for (const GradientHook &hook : hooks) {
    size_t slot = table.require(hook.key);
    requireGiven(hook.call, "the hook on the gradient of \"" + hook.key + "\"");
    const ParameterInfo &info = table.infos()[slot];
    if (!info.trained || updatesInBackward())
      throw Error(ErrorCode::InvalidArgument,
                  "a hook is on the gradient of \"" + info.key + "\", which " +
                      (info.trained ? "is used up in backward by the optimizer there; compile without in-backward"
                                    : "is frozen and has none; take the hook away"));
    Tensor &sum = tape.gradient(GradientTape::ValueId(slot));
    if (!sum || !device->hasBytes())
      continue;
    NewestGradient newest = newestOf(sum);
    bool isScaled = divisor != 1;
    Tensor seen = Tensor::onHost(device, sum.shape(), isScaled ? ElementType::f32 : sum.element());
    copyInto(newest.tensor, seen);
    wait(seen);
    if (isScaled)
      scaleElements(seen, 1 / divisor);
    {
      struct Within {
        bool &flag;
        explicit Within(bool &flag) : flag(flag) { flag = true; }
        ~Within() { flag = false; }
      } within(isInHook);
      hook.call(seen);
    }
    if (isScaled)
      scaleElements(seen, divisor);
    if (!newest.item && isSeenElsewhere(slot)) {
      sum = copyTo(device, seen, sum.desc());
      wait(sum);
      continue;
    }
    copyInto(seen, newest.tensor);
    wait(newest.tensor);
    written(newest);
  }
}

} // namespace segue::inline runtime
