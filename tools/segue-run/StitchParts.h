//===- StitchParts.h - programs that feed each other ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The programs of `segue-run stitch`, in the order of the command line, and where
// each of their inputs comes from:
//
//   1. a wire from an output of a part before it;
//   2. a tensor given by the name of the input, or by "part.input";
//   3. another program of the same file that has an input or output of this name
//      and comes before it: what it took or gave last. So a backward program
//      finds what its forward has saved, and an optimizer the gradients;
//   4. the next output of the part before it, by the rules of Wiring.h.
//
// Parameters, frozen values and states are found by 1 to 3 alone.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_STITCHPARTS_H
#define SEGUE_TOOLS_SEGUERUN_STITCHPARTS_H

#include "Binaries.h"
#include "segue/runtime/Files/Safetensors.h"
#include <map>
#include <optional>

namespace segue::tool {

struct StitchArguments : CommonOptions {
  /// `file[:program]`.
  std::vector<std::string> programs;
  /// `[part.]name=tensor`.
  std::vector<std::string> inputs;
  std::string weights;
  /// `part.input=part.output`.
  std::vector<std::string> wires;
  /// With true, inputs are brought to the declared layouts before the first submit.
  bool prepare = false;
};

/// A tensor of the command line, shared by all inputs that take it.
struct GivenTensor {
  Tensor tensor;
  /// True if it is the tool's own, in a layout that a program has declared.
  bool prepared = false;
};

/// A value of another part.
struct PartValue {
  size_t part = 0;
  bool isOutput = false;
  size_t index = 0;
};

struct PartInput {
  /// One of the two is there.
  GivenTensor *given = nullptr;
  /// The values that were submitted last.
  std::vector<PartValue> from;
};

struct Part {
  /// The name: "front", or "front:backward" for another than the forward program if a file
  /// gives several; the position if that would name two alike.
  std::string name;
  Executor executor;
  std::vector<PartInput> sources;
  /// The tensors of its last submit, which was the `turn`-th of all; 0 if there was none yet.
  std::vector<Tensor> inputs, outputs;
  uint64_t turn = 0;

  const Program &program() const { return executor.program(); }
};

class StitchParts {
public:
  /// Loads the files and binds every input. Throws what loading and wiring
  /// throw, MissingInput for an input that nothing gives, NameUnknown for a
  /// tensor that no input takes.
  StitchParts(DeviceRef device, const StitchArguments &arguments);

  const std::vector<Part> &parts() const { return parts_; }
  std::vector<std::string> names() const;
  /// Throws NameUnknown.
  size_t find(std::string_view name) const;

  /// Submits a part with what its sources have now. Throws MissingInput if one
  /// of them has not been submitted.
  void submit(size_t part);

  /// Throws SourceChanged if the file of the weights was changed since it was opened.
  /// Called when outputs are there.
  void checkWeights() const;

private:
  void load(const std::vector<std::string> &programs, const CommonOptions &options);
  void read(const StitchArguments &arguments);
  void bindGiven();
  void bindSameFile();
  void bindOutputs(const std::vector<std::string> &wires);
  void prepareGiven(bool all);
  Tensor sourceOf(size_t part, size_t input) const;

  DeviceRef device_;
  std::vector<Part> parts_;
  /// Tensors by "name", and by part and name.
  std::map<std::string, GivenTensor, std::less<>> byName_;
  std::map<std::pair<size_t, std::string>, GivenTensor> byPart_;
  std::optional<SafetensorsFile> weights_;
  uint64_t turns_ = 0;
};

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_STITCHPARTS_H
