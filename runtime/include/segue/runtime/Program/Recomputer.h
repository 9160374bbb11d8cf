//===- Recomputer.h - runs what makes saved values again --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Knows, for the forward submits of a step, how each of their saved values can
// be computed again (Recomputation.h) and from which tensors, and does so as one
// more submit. It decides nothing, and holds no tensor: inputs of forward are
// its caller's, who gives those that backward needs to backward too; saved
// values are arguments of `run`.
//
//   recomputer.onSubmit(program, inputs);                  // at event::Submit
//   SavedPlace place = recomputer.placeOf(program, output); // at event::Save
//   if (const Recomputation *again = recomputer.find(place))
//     outputs = recomputer.run(place, gather(recomputer.sourcesOf(place)));
//
// All calls come from the thread that submits.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PROGRAM_RECOMPUTER_H
#define SEGUE_RUNTIME_PROGRAM_RECOMPUTER_H

#include "segue/runtime/Program/Events.h"
#include "segue/runtime/Program/Recomputation.h"
#include "segue/runtime/Program/WeightLender.h"

namespace segue::inline runtime {

/// An output (role saved) of one forward submit of the step.
struct SavedPlace {
  size_t submit = 0;
  uint32_t output = 0;
  auto operator<=>(const SavedPlace &) const = default;
};

class Recomputer {
public:
  explicit Recomputer(DeviceRef device) : device_(std::move(device)) {}

  /// Lets values be made from parameters that a program was given in another space than it
  /// computes in, from here on; null ends that. The lender must outlive this.
  void setLender(WeightLender *lender) { lender_ = lender; }

  /// Notes a submit of the step. Returns the program's cost relative to that of others, which has no unit.
  double onSubmit(const Program &program, std::span<const Tensor> inputs);
  /// Returns the place of an output that the program submitted last saves. Throws
  /// StateTransition for another program.
  SavedPlace placeOf(const Program &program, uint32_t output) const;

  /// Returns how the value is made again, or null if nothing makes it, or only from parameters that nobody lends.
  const Recomputation *find(SavedPlace place) const;
  /// Returns true if the value may be dropped now: something makes it again, and the
  /// parameters that this takes can be lent.
  bool canDrop(SavedPlace place) const;
  /// Notes that the value is dropped: room for the parameters that it is made from is kept from here on.
  void keepRoom(SavedPlace place);
  /// Returns the bytes of parameters that would have to cross the link for a run of it now.
  uint64_t bytesToBring(SavedPlace place) const;
  /// Returns the saved values that it is made from.
  std::vector<SavedPlace> sourcesOf(SavedPlace place) const;
  /// Returns the parameters that it is made from and that lie elsewhere, as their program
  /// was given them.
  std::vector<Tensor> weightsOf(SavedPlace place) const;
  /// Returns all saved values that come from the same run, itself included, each with the
  /// index of its output of the program.
  std::vector<std::pair<SavedPlace, uint32_t>> madeWith(SavedPlace place) const;

  /// Submits the program that makes `place`, and returns its outputs. `saved` holds the
  /// values of sourcesOf(place) in their order, on the device or elsewhere. Throws
  /// StateTransition if an input of forward is gone, and what submit throws.
  std::vector<Tensor> run(SavedPlace place, std::vector<Tensor> saved);

  /// Returns a tensor that stands for `saved` while nobody has its bytes: of its shape, on
  /// the host, with the bytes of one element. Reading it gives an error that calls it by
  /// `id`.
  static Tensor placeholder(const Tensor &saved, const std::string &id);

  /// Ends the step: forgets its inputs.
  void forget() { submits_.clear(); }

  Recomputer(const Recomputer &) = delete;
  Recomputer &operator=(const Recomputer &) = delete;

private:
  /// One program of a file, with what the file says about it.
  struct Known {
    Program program; // keeps the image, by whose address it is found
    double cost = 0;
    std::vector<std::optional<Recomputation>> again;
  };
  struct Input {
    std::weak_ptr<Storage> storage;
    std::shared_ptr<const TensorDesc> desc;
    /// True for a parameter that comes with its block: the bytes on the host may be older
    /// than those on the device.
    bool isElsewhere = false;
    /// False for an input that is absent.
    bool isGiven = false;
  };
  struct Submit {
    const Known *known = nullptr;
    std::vector<Input> inputs;
  };
  const Known &know(const Program &program);
  Tensor tensorOf(const Submit &submit, uint32_t input, uint32_t output) const;

  DeviceRef device_;
  WeightLender *lender_ = nullptr;
  EventSink quiet_;
  std::vector<std::unique_ptr<Known>> known_;
  std::vector<Submit> submits_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PROGRAM_RECOMPUTER_H
