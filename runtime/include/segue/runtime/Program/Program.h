//===- Program.h - the signature of one compiled entry ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A Program is one entry of a Binary: what it takes and gives, which of these
// are in place, and what backward needs. Immutable; any thread may read it.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PROGRAM_PROGRAM_H
#define SEGUE_RUNTIME_PROGRAM_PROGRAM_H

#include "segue/runtime/Layout/TensorDesc.h"
#include <memory>
#include <string>
#include <vector>

namespace segue::inline runtime {

class BinaryImage;

/// A Role says what a value is to the training step. Values are those of schemas/program.fbs.
enum class Role : int8_t {
  Input = 0,
  Parameter = 1,
  Frozen = 2,
  Output = 3,
  Saved = 4,
  Gradient = 5,
  State = 6,
  Hyper = 7,
  Statistics = 8
};

std::string_view name(Role role);

/// A part of a training step; the values of schemas/program.fbs.
enum class Phase : int8_t { StepBegin = 0, Forward = 1, Backward = 2, Optimizer = 3, StepEnd = 4 };

std::string_view name(Phase phase);

/// One input or output of a program.
struct Value {
  std::string name;
  Role role = Role::Input;
  /// The description, which is shared with the tensors that the program returns.
  std::shared_ptr<const TensorDesc> sharedDesc;
  /// The value that this one belongs to (gradient, state, saved), or empty.
  std::string of;
  /// The place in the source, such as "model.py:12:3 (h.0.attn)", or empty.
  std::string location;
  /// Other layouts that the caller may choose, best first: for an input, spaces where it
  /// may lie as well; for an output, layouts that its last command can write at no cost.
  /// Shape and element type are those of `desc`.
  std::vector<std::shared_ptr<const TensorDesc>> alternatives;

  const TensorDesc &desc() const & { return *sharedDesc; }
  TensorDesc desc() && { return *sharedDesc; }
};

/// Output `output` lies in the storage of input `input`. Unless `required`, it does so only
/// where the caller donates that input.
struct Alias {
  uint32_t input = 0, output = 0;
  bool required = false;
};

/// One saved value of a forward program, as the services see it.
struct SavePoint {
  /// The index of the output, or that of the input if `aliasesInput`.
  uint32_t value = 0;
  bool aliasesInput = false;
  uint32_t backwardInput = 0;
  uint32_t backwardOrder = 0;
  uint64_t bytes = 0;
  uint64_t recomputeFlops = 0;
  std::string block;
  /// The index in the file of the program that computes the value again, as its output
  /// `recomputeOutput`; -1 if none does. See Recomputation.h.
  int32_t recomputeProgram = -1;
  uint32_t recomputeOutput = 0;
};

/// Commands of one kind in a program, for inspection.
struct CommandCount {
  std::string kind;
  uint64_t count = 0;
};

class Program {
public:
  // A Program that was moved from is what it was.
  Program(const Program &) = default;
  Program &operator=(const Program &) = default;

  // References that these functions return hold as long as a handle over the file lives. A temporary, which may be
  // the last of them, gives copies: a range over its inputs is a range over what is there.

  const std::string &name() const &;
  const std::vector<Value> &inputs() const &;
  const std::vector<Value> &outputs() const &;
  /// Return a value, or throw InvalidArgument for an index outside.
  const Value &input(size_t index) const &;
  const Value &output(size_t index) const &;
  std::string name() && { return name(); }
  std::vector<Value> inputs() && { return inputs(); }
  std::vector<Value> outputs() && { return outputs(); }
  Value input(size_t index) && { return input(index); }
  Value output(size_t index) && { return output(index); }
  /// Returns the index of the input or output called so, or -1.
  int findInput(std::string_view name) const;
  int findOutput(std::string_view name) const;

  /// Returns the phases that its commands enter, in their order: Forward, Backward or
  /// Optimizer. A program without any runs in whatever phase is current.
  const std::vector<Phase> &phases() const &;
  std::vector<Phase> phases() && { return phases(); }

  const std::vector<Alias> &aliases() const &;
  const std::vector<SavePoint> &savePoints() const &;
  std::vector<Alias> aliases() && { return aliases(); }
  std::vector<SavePoint> savePoints() && { return savePoints(); }

  /// Returns a hash of names, roles and descs with their alternatives, as in the file.
  uint64_t signatureHash() const;
  /// Returns a hash of names, roles, shapes and element types, which is the same for every
  /// compilation of one source, whatever its layouts. stitch_hints.json names programs by
  /// it.
  uint64_t interfaceHash() const;

  /// Return the bytes of the temporaries of all spaces, and the least that any placement could reach.
  uint64_t arenaBytes() const;
  uint64_t arenaLowerBound() const;
  std::vector<CommandCount> commandCounts() const;
  /// Returns the floating point operations of all matmul commands of one run.
  uint64_t matmulFlops() const;

  /// Returns the program with that index in the same file. Throws InvalidArgument if it has no such.
  Program sibling(size_t index) const;

  const std::shared_ptr<const BinaryImage> &image() const & { return image_; }
  std::shared_ptr<const BinaryImage> image() && { return image_; }
  size_t index() const { return index_; }

private:
  friend class Binary;
  Program(std::shared_ptr<const BinaryImage> image, size_t index) : image_(std::move(image)), index_(index) {}

  std::shared_ptr<const BinaryImage> image_;
  size_t index_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PROGRAM_PROGRAM_H
