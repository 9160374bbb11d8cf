//===- Stitcher.h - any schedule of modules, with gradients -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A Session trains a chain by name. A Stitcher trains whatever the caller does:
// it records the forwards of any modules, in any order, several times,
// interleaved, and plays their backwards in reverse.
//
//   Stitcher stitcher(device);
//   auto h = stitcher.forward(front, {{"w", w}, {"x", x}});
//   auto a = stitcher.forward(left, {{"v", v}, {"hidden", h[0]}, {"y", y}});
//   auto b = stitcher.forward(right, {{"v", v}, {"hidden", h[0]}, {"y", z}});
//   stitcher.backward({a[1], b[1]});               // both losses
//   Tensor gradient = stitcher.gradient(v);        // the sum over its readers
//
// A tensor is known by the memory it lies in, so that what one forward returned
// and another one takes is one value, and a parameter that two modules, or two
// models, are given is one parameter. A conversion between two forwards goes
// through toLayout of the stitcher; submit's own is found without.
//
// Gradients of parameters, and of tensors from outside, wait and are summed over
// backwards until clearGradients(): that is gradient accumulation. Sums are f32.
// Call clear() when a step is over: until then, what was seen is remembered.
//
// Modules outlive their recorded forwards. One thread at a time.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SESSION_STITCHER_H
#define SEGUE_RUNTIME_SESSION_STITCHER_H

#include "segue/runtime/HeldPointer.h"
#include "segue/runtime/Program/Module.h"
#include <memory>
#include <span>

namespace segue::inline runtime {

class Stitcher {
public:
  /// `events` is told of phases and blocks; not owned, may be null.
  explicit Stitcher(DeviceRef device, EventSink *events = nullptr);
  ~Stitcher();
  Stitcher(Stitcher &&) noexcept;
  Stitcher &operator=(Stitcher &&) noexcept;

  /// Runs forward and records it; runs inference of a module that has nothing else, which
  /// takes no part in backward. Returns the outputs by position. Throws InvalidArgument for
  /// a module of another device, and what Module::forward throws; nothing is recorded then.
  std::vector<Tensor> forward(const Module &module, const Module::Lookup &values);
  std::vector<Tensor> forward(const Module &module, const TensorMap &values);

  /// Returns the value in another layout: a gradient of the one is a gradient of the other.
  /// Throws what runtime::toLayout throws.
  Tensor toLayout(const Tensor &tensor, const TensorDesc &desc);

  /// The gradient of an output that backward begins with.
  struct Seed {
    Tensor value, gradient;
  };

  /// Plays the recorded forwards that lead to the seeds, the last one first, and
  /// frees what they saved; others stay for a later call. Throws InvalidArgument if
  /// a seed is not an output of a forward that waits, if a gradient would reach a
  /// forward that was played before (give all losses of a graph to one call), or
  /// would have to pass a module without backward to reach what trains; and
  /// LayoutMismatch for a seed of another shape: nothing has run then. What
  /// Module::backward throws drops all that was recorded.
  void backward(std::span<const Seed> seeds);
  /// Runs backward from losses, which are float scalars whose gradient is 1.
  void backward(std::initializer_list<Tensor> losses);

  /// Returns the sum so far for a parameter or a tensor from outside, or null if none
  /// reached it. The gradient of what a forward returned has been used up by backward.
  Tensor gradient(const Tensor &value) const;
  /// Returns the number of forwards that wait for their backward.
  size_t pending() const;

  /// Drops the sums that wait.
  void clearGradients();
  /// Drops recorded forwards, their saved values, and sums: an output of such a forward is
  /// a tensor from outside then.
  void clear();

private:
  struct State;
  HeldPointer<std::unique_ptr<State>, "Stitcher"> state_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SESSION_STITCHER_H
