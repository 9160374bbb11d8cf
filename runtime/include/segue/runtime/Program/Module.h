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
  /// Held by saved values, without inputs kept by reference.
  uint64_t savedBytes() const { return savedBytes_; }
  /// The tensors that backward reads, null where a gradient belongs; lives as long as the token, its copies,
  /// and the backward that uses it up. Whoever moves memory between two calls may put
  /// the same value, laid elsewhere, in the place of one.
  using Tensors = std::vector<Tensor>;
  std::weak_ptr<Tensors> tensors() const { return held_; }

private:
  friend class Module;
  /// In the order of backward's inputs. Null: nothing.
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

  const Binary &binary() const { return binary_; }
  const DeviceRef &device() const { return device_; }
  const std::string &name() const { return name_; }

  /// Values of roles parameter, frozen and hyper of forward, in its order.
  const std::vector<Value> &parameters() const { return parameters_; }
  const std::vector<Value> &frozen() const { return frozen_; }
  const std::vector<Value> &hypers() const { return hypers_; }
  /// Inputs of the caller, and outputs to him, by position.
  const std::vector<Value> &inputs() const { return inputs_; }
  const std::vector<Value> &outputs() const { return outputs_; }

  bool hasBackward() const { return find("backward") != nullptr; }
  /// True if backward updates parameters itself: it gives them in the place of their
  /// gradients, and reads states of the optimizer and its scalars besides.
  bool updatesInBackward() const;
  /// True if backward takes a gradient of this output; if it gives one of this
  /// input or parameter.
  bool takesGradientOf(std::string_view output) const;
  bool givesGradientOf(std::string_view value) const;

  /// Finds the value called so; a null tensor means there is none.
  using Lookup = std::function<Tensor(const Value &value)>;

  /// Runs inference (or forward where there is no other), returns the outputs
  /// by position. Throws MissingInput naming the value that `values` lacks,
  /// and what Executor::run throws.
  std::vector<Tensor> infer(const Lookup &values, EventSink *events = nullptr) const;
  std::vector<Tensor> infer(const TensorMap &values, EventSink *events = nullptr) const;

  /// Runs forward. The token keeps what backward needs alive. Without a
  /// backward program it is empty. Throws as infer.
  ForwardResult forward(const Lookup &values, EventSink *events = nullptr) const;
  ForwardResult forward(const TensorMap &values, EventSink *events = nullptr) const;

  /// Runs backward with the gradients of the outputs by the outputs' names; a
  /// gradient that is not given counts as zeros. Returns the gradients by the
  /// name of the parameter or input they belong to. Uses the token up: saved
  /// values are freed as backward passes them. Throws InvalidArgument without
  /// a backward program or for an empty token, NameUnknown for a gradient of
  /// what is no output, LayoutMismatch for one of another shape.
  TensorMap backward(Token token, const TensorMap &outputGradients, EventSink *events = nullptr) const;

  /// Backward where `values` stand for what backward reads again of forward,
  /// by name, in the place of what the token holds. An empty token serves if
  /// they are complete; else throws MissingInput naming the first that lacks.
  /// For callers that keep inputs and outputs themselves, as PyTorch does. A backward that
  /// updates parameters gets states and scalars of the optimizer from `values`, too;
  /// `others` gets its results that are neither gradients nor statistics, by position
  /// (null elsewhere), and may be null.
  TensorMap backward(Token token, const TensorMap &outputGradients, const TensorMap &values,
                     EventSink *events = nullptr, std::vector<Tensor> *others = nullptr) const;

  /// The program called so, or null: "optimizer", "grad_norm".
  const Program *find(std::string_view program) const;

private:
  /// Where an input of backward comes from: an output of forward, an input of
  /// forward, the gradient of an output (index into outputs()), or the optimizer's state
  /// and scalars, which the caller has.
  enum class Source : int8_t { SavedOutput, ForwardInput, Gradient, Optimizer };
  struct BackwardInput {
    Source source;
    size_t index;
  };

  void joinBackward();
  std::vector<Tensor> gather(const Program &program, const Lookup &values) const;

  DeviceRef device_;
  Binary binary_;
  std::string name_;
  std::vector<Value> parameters_, frozen_, hypers_, inputs_, outputs_;
  std::vector<BackwardInput> backwardInputs_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PROGRAM_MODULE_H
