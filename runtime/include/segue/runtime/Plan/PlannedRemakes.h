//===- PlannedRemakes.h - saved tensors that are made again -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Knows where each saved tensor of a step is, so that one that was dropped can be
// made again from others wherever these are by then: on the device, on the host (it
// is brought back), with backward, or dropped themselves (they are made first).
//
//   remakes.onSubmit(program, inputs);                 // at event::Submit
//   remakes.onSave(program, output, saved);            // at event::Save
//   remakes.drop(saved);                               // a placeholder takes its place
//   if (remakes.isDropped(saved))                      // at event::Restore
//     saved = remakes.make(saved);
//
// Decides nothing. One thread, that submits.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PLAN_PLANNEDREMAKES_H
#define SEGUE_RUNTIME_PLAN_PLANNEDREMAKES_H

#include "segue/runtime/Program/Recomputer.h"
#include "segue/runtime/Residency/Residency.h"
#include <map>

namespace segue::inline runtime {

class PlannedRemakes {
public:
  PlannedRemakes(DeviceRef device, Residency &residency);

  /// Makes `lender` bring the parameters whose home is the host, and lend them for a run.
  /// It must outlive this.
  void borrowFrom(WeightLender &lender) { recomputer_.setLender(&lender); }

  void onSubmit(const Program &program, std::span<const Tensor> inputs) { recomputer_.onSubmit(program, inputs); }
  /// Notes that output `output` of the program that was submitted last lies in `saved`.
  void onSave(const Program &program, uint32_t output, const Tensor &saved);
  /// Notes that the bytes of the output are those of `item`, whose home is the tensor that the program returns.
  void onLeft(const Program &program, uint32_t output, const Item &item);
  /// Notes the tensor that the program was given for a saved one, and the tensor that it reads now.
  void onRestore(const Tensor &given, const Tensor &now);
  /// A tensor that somebody else moved: its holder has `now` in the place of `before`.
  void onMoved(const Tensor &before, const Tensor &now);

  /// Puts a placeholder in the place of `saved`, which was told to onSave and can be
  /// made. False, with nothing done, where it cannot.
  bool drop(Tensor &saved);
  bool isDropped(const Tensor &placeholder) const;
  /// Returns true if somebody still holds every saved tensor that the one at `place` would
  /// be made from. May be called only where none of these was dropped.
  bool hasSources(SavedPlace place) const;
  /// Returns the dropped tensor, computed by queued work. What else its run gives is kept
  /// for those that were dropped as well. Throws StateTransition if a tensor that it is
  /// made from is gone, and what a submit throws.
  Tensor make(const Tensor &placeholder);

  /// Returns the place of a tensor that onSave was told of, or nothing for others.
  std::optional<SavedPlace> placeOf(const Tensor &saved) const;
  const Recomputer &recomputer() const { return recomputer_; }
  /// Runs the program that makes `place`, and returns its outputs.
  std::vector<Tensor> run(SavedPlace place);

  /// Ends the step: forgets all saved tensors.
  void forget();

private:
  struct Saved {
    std::string id;
    std::weak_ptr<Storage> storage;
    std::shared_ptr<const TensorDesc> desc;
    std::optional<Item::Id> item;
    bool isDropped = false;
    /// The tensor, if it was made already, for another or along with it.
    Tensor made;
  };

  /// Lends parameters that come by the plan: those that are away are fetched, and stay
  /// until the plan says otherwise.
  class PlannedLender final : public WeightLender {
  public:
    explicit PlannedLender(Residency &residency) : residency_(residency) {}
    bool canLend(std::span<const Tensor>) const override { return true; }
    void keepRoom(std::span<const Tensor>) override {}
    uint64_t bytesToBring(std::span<const Tensor>) const override { return 0; } // the plan has them back in time
    std::vector<Tensor> lend(std::span<const Tensor> homes) override;
    void giveBack() override {}

  private:
    Residency &residency_;
  };

  Tensor current(SavedPlace place);

  Residency &residency_;
  PlannedLender lender_;
  Recomputer recomputer_;
  std::map<SavedPlace, Saved> saved_;
  /// The places, by the ids of the storages that stand for them.
  std::map<uint64_t, SavedPlace> byStorage_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PLAN_PLANNEDREMAKES_H
