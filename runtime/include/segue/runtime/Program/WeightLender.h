//===- WeightLender.h - parameters for programs beside a step ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A program that computes a saved value again reads parameters like any other, and
// these may live on the host and be on the device for a block at a time. Whoever
// brings them lends them for the run:
//
//   if (lender.canLend(homes))   // when it is decided that a value is dropped
//     lender.keepRoom(homes);
//   ...
//   std::vector<Tensor> weights = lender.lend(homes);
//   submit(program, weights);
//   lender.giveBack();           // the run is queued
//
// All calls come from the thread that submits.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PROGRAM_WEIGHTLENDER_H
#define SEGUE_RUNTIME_PROGRAM_WEIGHTLENDER_H

#include "segue/runtime/Tensor/Tensor.h"
#include <span>
#include <vector>

namespace segue::inline runtime {

class WeightLender {
public:
  virtual ~WeightLender() = default;

  /// Returns true if these could be lent at once now, beside what the step itself has open.
  /// `homes` are parameters as a program of the step was given them.
  virtual bool canLend(std::span<const Tensor> homes) const = 0;
  /// Keeps room to lend as much as these from here on, in later steps too.
  virtual void keepRoom(std::span<const Tensor> homes) = 0;
  /// Returns the bytes that have to cross the link before these could be lent now.
  virtual uint64_t bytesToBring(std::span<const Tensor> homes) const = 0;
  /// Returns the newest values on the device, in the order of `homes`, final once their
  /// fences are past. They stay there until giveBack(). Throws DeviceOom where there is no
  /// place for them, and what a load throws; nothing is lent then.
  virtual std::vector<Tensor> lend(std::span<const Tensor> homes) = 0;
  /// Ends the loans: everything that reads the values is queued by now.
  virtual void giveBack() = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PROGRAM_WEIGHTLENDER_H
