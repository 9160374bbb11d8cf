//===- Module.h - a compiled module and its calls ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A Module is a binary seen as a function with named values: `forward` and
// `backward` joined by an opaque token, and `infer`. It owns no parameters:
// the caller passes them by name, so that a Session or PyTorch can own them.
//
//   Module module(device, Binary::load("mlp.segue"));
//   ForwardResult result = module.forward(values);          // name → Tensor
//   TensorMap gradients = module.backward(std::move(result.token), {{"y", dy}});
//
// One thread at a time per device.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PROGRAM_MODULE_H
#define SEGUE_RUNTIME_PROGRAM_MODULE_H

#include "segue/runtime/Program/Executor.h"
#include <functional>
#include <map>

namespace segue::inline runtime {

/// The name of the result of a backward that updates parameters: sums of squares of their gradients, f32, one each.
inline constexpr std::string_view gradSquaresName = "grad_norm_squares";

using TensorMap = std::map<std::string, Tensor, std::less<>>;

/// Holds what a forward keeps for its backward: the saved values, and the forward
/// inputs that backward reads again. Opaque: values leave it only through
/// Module::backward. Dropping it frees them.
class Token {
public:
  Token() = default;
  explicit operator bool() const { return held_ != nullptr; }
  /// Returns the bytes held by saved values, without inputs kept by reference.
  uint64_t savedBytes() const { return held_ ? savedBytes_ : 0; }
  /// The tensors that backward reads, null where a gradient belongs. They live as long as the token, its
  /// copies, and the backward that uses it up. Code that moves memory between two calls may replace one by a
  /// tensor of the same value that is laid elsewhere.
  using Tensors = std::vector<Tensor>;
  std::weak_ptr<Tensors> tensors() const { return held_; }

private:
  friend class Module;
  /// The tensors in the order of backward's inputs; null if the token holds nothing.
  std::shared_ptr<Tensors> held_;
  uint64_t savedBytes_ = 0;
};

struct ForwardResult {
  /// The outputs of role output, by position: see Module::outputs().
  std::vector<Tensor> outputs;
  Token token;
};

class Module {
public:
  /// `name` stands for the module in messages; empty: the binary's own name.
  /// Throws NameUnknown if the binary has neither forward nor inference, and
  /// FileCorrupt if the signatures of its programs do not belong together.
  Module(DeviceRef device, Binary binary, std::string name = {});

  // A Module that was moved from has neither values nor a device, and refuses to run. A temporary gives copies of what it has.

  const Binary &binary() const & { return binary_; }
  const DeviceRef &device() const & { return device_; }
  const std::string &name() const & { return name_; }
  Binary binary() && { return binary_; }
  DeviceRef device() && { return device_; }
  std::string name() && { return name_; }

  /// Return the values of roles parameter, frozen and hyper of forward, in its order.
  const std::vector<Value> &parameters() const & { return parameters_; }
  const std::vector<Value> &frozen() const & { return frozen_; }
  const std::vector<Value> &hypers() const & { return hypers_; }
  std::vector<Value> parameters() && { return parameters_; }
  std::vector<Value> frozen() && { return frozen_; }
  std::vector<Value> hypers() && { return hypers_; }
  /// Return the inputs that the caller gives, and the outputs that it gets, by position.
  const std::vector<Value> &inputs() const & { return inputs_; }
  const std::vector<Value> &outputs() const & { return outputs_; }
  std::vector<Value> inputs() && { return inputs_; }
  std::vector<Value> outputs() && { return outputs_; }

  /// Returns this module for a process in which it never runs, as another rank has it: it shows what it takes and
  /// gives, and find() finds no program.
  Module elsewhere() const;
  bool isElsewhere() const { return isElsewhere_; }

  bool hasBackward() const { return inFile("backward") != nullptr; }
  /// Returns true if backward updates parameters itself: it returns them in the place of
  /// their gradients, and also reads states of the optimizer and its scalars.
  bool updatesInBackward() const;
  /// Return true if backward takes a gradient of this output, and if it returns one of this
  /// input or parameter.
  bool takesGradientOf(std::string_view output) const;
  bool givesGradientOf(std::string_view value) const;

  /// A function that finds the value of that name; a null tensor means that there is none.
  using Lookup = std::function<Tensor(const Value &value)>;

  /// Runs inference (or forward where there is no other), returns the outputs
  /// by position. Throws MissingInput naming the value that `values` lacks,
  /// InvalidArgument for an empty function, and what Executor::run throws.
  std::vector<Tensor> infer(const Lookup &values, EventSink *events = nullptr) const;
  std::vector<Tensor> infer(const TensorMap &values, EventSink *events = nullptr) const;

  /// Runs forward. The token keeps what backward needs alive. Without a
  /// backward program it is empty. Throws as infer.
  ForwardResult forward(const Lookup &values, EventSink *events = nullptr) const;
  ForwardResult forward(const TensorMap &values, EventSink *events = nullptr) const;

  /// Returns true if there is a forward that updates its parameters first, by gradients of the step before.
  bool updatesInForward() const { return find(updatingForward) != nullptr; }
  /// The name of that program: forward, and the commands of "optimizer" before those that read what they write.
  static constexpr std::string_view updatingForward = "forward_updating";
  /// Runs it. `updates` are its inputs behind those of forward: what "optimizer" reads besides parameters, in its
  /// order. `updated` gets what "optimizer" returns. Throws as forward, and as Executor::run where a program writes in
  /// place.
  ForwardResult forwardUpdating(const Lookup &values, std::vector<Tensor> updates, std::vector<Tensor> &updated,
                                EventSink *events = nullptr) const;

  /// Runs backward with the gradients of the outputs by the outputs' names; a
  /// gradient that is not given counts as zeros. Returns the gradients by the
  /// name of the parameter or input they belong to. Uses the token up: saved
  /// values are freed as backward passes them. Throws InvalidArgument without
  /// a backward program or for an empty token, NameUnknown for a gradient of
  /// what is no output, LayoutMismatch for one of another shape.
  TensorMap backward(Token token, const TensorMap &outputGradients, EventSink *events = nullptr) const;

  /// Runs backward with `values` for what it reads again of forward, by name, in the place
  /// of what the token holds. An empty token serves if they are complete; otherwise throws
  /// MissingInput naming the first one that lacks. Serves callers that keep inputs and
  /// outputs themselves, as PyTorch does. A backward that updates parameters takes states
  /// and scalars of the optimizer from `values`, too. `others` may be null; otherwise it
  /// gets the results that are neither gradients nor statistics, by position (null
  /// elsewhere).
  TensorMap backward(Token token, const TensorMap &outputGradients, const TensorMap &values,
                     EventSink *events = nullptr, std::vector<Tensor> *others = nullptr) const;

  /// Returns the program of that name, such as "optimizer" or "grad_norm", or null.
  const Program *find(std::string_view program) const & { return isElsewhere_ ? nullptr : inFile(program); }
  const Program *find(std::string_view program) && = delete;

private:
  /// The origin of an input of backward: an output of forward, an input of forward, the
  /// gradient of an output (index into outputs()), or the optimizer's state and scalars,
  /// which the caller has.
  enum class Source : int8_t { SavedOutput, ForwardInput, Gradient, Optimizer };
  struct BackwardInput {
    Source source;
    size_t index;
  };

  const Program *inFile(std::string_view program) const;
  void joinBackward();
  std::vector<Tensor> gather(std::span<const Value> inputs, const Lookup &values) const;
  /// Runs forward, or what begins with its inputs and outputs; results behind these go into `others`, unless null.
  ForwardResult forwardBy(const Program &program, std::vector<Tensor> inputs, EventSink *events,
                          std::vector<Tensor> *others) const;

  DeviceRef device_;
  Binary binary_;
  std::string name_;
  std::vector<Value> parameters_, frozen_, hypers_, inputs_, outputs_;
  std::vector<BackwardInput> backwardInputs_;
  bool isElsewhere_ = false;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PROGRAM_MODULE_H
