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

  /// Refers to `modules` and `plan`. `wanted` are the errors to measure.
  BlockCalibration(const std::vector<Module> &modules, const PrecisionPlan &plan, std::set<UnitForm> wanted);

  /// Returns a module that has no programs for its blocks, or null.
  static const Module *lacksSegments(const std::vector<Module> &modules);

  using Values = PrecisionHost::Values;
  /// Plays one batch. Throws what submit throws; the sample does not count then.
  void sample(const Values &values);

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

  void playModule(size_t module, const Values &values, std::vector<std::vector<Tensor>> &outputs, Errors &errors);
  std::vector<Tensor> gather(const Piece &piece, const Module::Lookup &values, const TensorMap &high,
                             const TensorMap &low) const;
  std::vector<Tensor> runLow(const Piece &piece, UnitForm which, std::vector<Tensor> inputs);

  const std::vector<Module> &modules_;
  const PrecisionPlan &plan_;
  std::set<UnitForm> wanted_;
  std::vector<std::vector<Piece>> pieces_;
  std::map<UnitForm, double> sums_;
  std::map<size_t, Error> failures_;
  int64_t samples_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_SELECTIVEPRECISION_BLOCKCALIBRATION_H
