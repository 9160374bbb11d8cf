//===- TrainingCourse.h - what tells one training run from another -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Runs over the modules of SessionModules.h are compared by all that they have computed.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_SESSION_TRAININGCOURSE_H
#define SEGUE_RUNTIME_TEST_SESSION_TRAININGCOURSE_H

#include "Session/SessionModules.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <map>

namespace segue::test {

using Vector = std::vector<float>;

/// Returns memory of the caller, as a data loader has it.
inline Tensor onHost(const DeviceRef &device, float start, float step) {
  Tensor host = Tensor::onHost(device, {moduleWidth}, ElementType::f32);
  for (int64_t i = 0; i < moduleWidth; ++i)
    host.data<float>()[i] = start + step * float(i);
  return host;
}
inline Vector values(const Tensor &tensor) {
  Tensor host = toHost(tensor);
  return Vector(host.data<float>(), host.data<float>() + host.elementCount());
}

/// Gives every parameter values, which follow from `start`.
inline void setValues(Session &session, float start = 1) {
  for (const ParameterInfo &info : session.parameters())
    session.setParameter(info.key, onHost(session.device(), start *= -0.75f, 0.125f));
}

/// Returns the batch of a step with this number among its batches.
inline TensorMap batchOf(const DeviceRef &device, int64_t step, int index) {
  return {{"x", onHost(device, 0.5f - 0.25f * float(index), 0.0625f * float(step % 3 + 1))},
          {"y", onHost(device, 2 - float(index), -0.25f)}};
}

/// The figures that tell one training run from another.
struct Course {
  std::vector<double> losses, norms, clips;
  std::map<std::string, Vector> tensors;

  void add(const StepResult &result) {
    losses.push_back(result.loss);
    norms.push_back(result.gradNorm);
    clips.push_back(result.clip);
  }
  void addOutputs(const StepResult &result) {
    for (const auto &[name, tensor] : result.outputs)
      tensors["output " + name + " " + std::to_string(result.step)] = values(tensor);
  }
  void addState(const Session &session) {
    for (const ParameterInfo &info : session.parameters())
      tensors[info.key] = values(session.parameter(info.key));
    for (const auto &[name, tensor] : session.state())
      tensors[name] = values(tensor);
  }
  bool operator==(const Course &) const = default;
};

} // namespace segue::test

#endif // SEGUE_RUNTIME_TEST_SESSION_TRAININGCOURSE_H
