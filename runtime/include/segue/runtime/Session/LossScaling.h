//===- LossScaling.h - losses that are scaled for f16 -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// In f16 small gradients become 0 and large ones infinite. The gradient of the loss is therefore
// a factor instead of 1, and gradients are divided by it before anything is made of them. The factor
// grows after a number of steps whose gradients were finite, and falls with each whose gradients were not, which
// changes nothing else: the rule and the defaults are those of torch.amp.GradScaler.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SESSION_LOSSSCALING_H
#define SEGUE_RUNTIME_SESSION_LOSSSCALING_H

#include <cstdint>
#include <string>
#include <string_view>

namespace segue::inline runtime {

struct LossScaling {
  /// The factor of the next step.
  double scale = 65536;
  /// What the factor is multiplied by after `interval` finite steps in a row, and after one that is not.
  double growth = 2, backoff = 0.5;
  int64_t interval = 2000;
  /// Finite steps since the factor changed.
  int64_t finiteSteps = 0;

  /// Throws InvalidArgument for numbers that no run can go by.
  void check() const;
  /// Takes note of a step whose gradients were finite, or not. The factor stays finite in f32.
  void stepEnded(bool isFinite);
  /// False once the factor has fallen below 1: what is not finite then is no matter of scale.
  bool canFall() const { return scale >= 1; }

  /// The factor and the steps since it changed, as checkpoints have them: "65536 17".
  std::string state() const;
  /// Reads what `state` wrote. Throws FileCorrupt.
  void restore(std::string_view state);
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SESSION_LOSSSCALING_H
