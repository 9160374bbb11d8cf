//===- ItemSource.h - where the bytes of an item live -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The home of an item that is not one tensor of the host: a range of a file, a layer
// of a slab, or several tensors that travel together and lie in one place on the
// device. Residency asks it to queue copies and decides when; states, ends and what
// follows from a failure are the item's.
//
// All calls come from the thread that submits.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_RESIDENCY_ITEMSOURCE_H
#define SEGUE_RUNTIME_RESIDENCY_ITEMSOURCE_H

#include "segue/runtime/Tensor/Tensor.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <optional>

namespace segue::inline runtime {

class ItemSource {
public:
  virtual ~ItemSource() = default;

  /// Queues copies of all of its bytes to `place`, memory of the device, which gets their
  /// fences and outcome. `how.retries`, if given, says how often each copy is tried again
  /// in its queue. Returns false, with nothing queued, if they may not go now. Throws what
  /// keeps the rest of them from being queued.
  virtual bool fetchInto(const Tensor &place, const TransferOptions &how) = 0;
  /// Returns true if a fetch that failed with `error` may succeed if it is made anew.
  virtual bool mayFetchAgain(const Error &error) const = 0;
  /// Queues copies home of what has changed in `place` since the value `since` of the item,
  /// and returns their fence. Throws, with the home as it was, where it is read-only or a
  /// program failed to write the value.
  virtual Fence saveFrom(const Tensor &place, uint64_t since) = 0;
  /// Called when the copies of saveFrom have ended: returns why one failed, and forgets
  /// that; or returns nothing.
  virtual std::optional<Error> takeSaveFailure() = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_RESIDENCY_ITEMSOURCE_H
