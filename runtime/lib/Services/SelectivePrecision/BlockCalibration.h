//===- BlockCalibration.h - what a block's low forms change -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Plays a forward block by block, from the programs `segment.<k>` that the
// compiler made of it (segue-outline-blocks). A block runs on the inputs that it
// has in a normal forward, once with its weights as they are, whose outputs go
// on to the next, and once for each low form of each of its units; outputs are
// compared on the host. Weights of one block are on the device at a time.
//
// A layer's output is not seen by itself: its error is that of its block's
// output with this layer alone in the low form.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_SELECTIVEPRECISION_BLOCKCALIBRATION_H
#define SEGUE_LIB_SERVICES_SELECTIVEPRECISION_BLOCKCALIBRATION_H

#include "../Actors/PrecisionActor.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Services/OutputError.h"
#include "segue/runtime/Services/PrecisionUnits.h"
#include "segue/runtime/Program/Module.h"
#include <set>

namespace segue::inline runtime {

class BlockCalibration {
public:
  using UnitForm = std::pair<size_t, Precision>;

  /// Refers to `host` and `plan`. `wanted` are the errors to measure.
  BlockCalibration(PrecisionHost &host, const PrecisionPlan &plan, std::set<UnitForm> wanted);

  /// Returns a module that has no programs for its blocks, or null.
  static const Module *lacksSegments(const std::vector<Module> &modules);

  /// Plays one batch. Throws what submit throws; the sample does not count then. Parameters of other ranks are gathered
  /// in any case.
  void sample(const TensorMap &batch);
  /// Gives another rank that plays a batch what it needs of this one's parameters.
  void serve();

  int64_t samples() const { return samples_; }
  /// Returns the mean over the samples; nothing for what was not measured.
  std::vector<std::optional<double>> errors(Precision form) const;
  /// Returns the slab weights that could not be read, by unit.
  const std::map<size_t, Error> &failures() const { return failures_; }

private:
  struct Piece {
    Program program;
    std::string block;
  };
  using Errors = std::map<UnitForm, OutputError>;

  /// A Course goes through the pieces of a module.
  struct Course {
    size_t module;
    Module::Lookup values;
    /// The outputs of pieces so far, with weights as they are and in each low form: these of blocks that go on.
    TensorMap high;
    std::map<UnitForm, TensorMap> low;
    /// The last piece that reads a value, and the last one of a block.
    std::map<std::string, size_t, std::less<>> lastReader, lastOfBlock;
  };
  Course begin(size_t module, const PrecisionHost::Values &values) const;
  void play(Course &course, size_t k, const TensorMap &gathered, Errors &errors);
  /// Takes what the module gives, whose pieces have been played.
  void end(Course &course, PrecisionHost::Outputs &outputs) const;
  std::vector<Tensor> inputsOf(const Piece &piece, const Course &course, const TensorMap &gathered,
                               const TensorMap &low) const;
  std::vector<Tensor> runLow(const Piece &piece, UnitForm which, std::vector<Tensor> inputs);

  PrecisionHost &host_;
  const PrecisionPlan &plan_;
  std::set<UnitForm> wanted_;
  std::vector<std::vector<Piece>> pieces_;
  std::map<UnitForm, double> sums_;
  std::map<size_t, Error> failures_;
  int64_t samples_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_SELECTIVEPRECISION_BLOCKCALIBRATION_H
