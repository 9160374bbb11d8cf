//===- TransferPlan.h - from one layout to another, in steps ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// How toLayout gets a tensor from the description that is given to the one that
// is wanted, on a device: a chain of at most three steps, each a relayout within
// one memory or a copy over the link, with the bytes of each. Two rules make the
// chain. Few bytes cross the link: the form in which they cross (the *wire*) is
// the smallest of source and target as they are and dense; at equal size the
// device converts. L1 is reached through device_dram, and a disk below the host's memory
// through that.
//
//   TransferPlan plan = planTransfer(given, wanted, device, options);
//   plan.h2dBytes;                       // what crosses
//
// A plan is a value without tensors: any thread may make and read one.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TRANSFER_TRANSFERPLAN_H
#define SEGUE_RUNTIME_TRANSFER_TRANSFERPLAN_H

#include "segue/runtime/Fence.h"
#include "segue/runtime/Layout/TensorDesc.h"
#include "segue/runtime/Transfer/StitchOptions.h"
#include <memory>
#include <vector>

namespace segue::inline runtime {

class CopyPlan;
class Device;

/// Returns true for spaces that the host reads and programs do not compute in: host,
/// host_pinned and disk.
constexpr bool isHostSpace(Space space) {
  return space == Space::Host || space == Space::HostPinned || space == Space::Disk;
}

struct TransferStep {
  enum class Kind : uint8_t {
    /// A relayout within the host's memory, by a CopyPlan.
    HostRelayout,
    /// A relayout within the device's memory, L1 included, by a CopyPlan.
    DeviceRelayout,
    /// A copy over the link, bytes as they are.
    Link,
  };
  Kind kind = Kind::DeviceRelayout;
  Queue queue = Queue::Compute;
  Space from = Space::DeviceDram;
  /// The tensor that the step writes; that of the last step is the one that was wanted.
  TensorDesc target;
  /// The bytes written at the target; for a Link, those that cross the link.
  uint64_t bytes = 0;
  /// For a Link: true if the host side is pageable, so that bytes go through pinned buffers.
  bool staged = false;
  /// Link only: the host side is a disk below the host's memory. Bytes go over two edges, the
  /// link and the disk, each with its queue, through pinned buffers; `queue` is the link's.
  bool passesHost = false;
  /// Null for Link.
  std::shared_ptr<const CopyPlan> relayout;

  /// Returns the hop as a text: "host -> device_dram".
  std::string hop() const;
};

struct TransferPlan {
  /// True if there is nothing to do: the given tensor serves as it is.
  bool elided = false;
  /// True if bits of the stored value may be lost.
  bool lossy = false;
  std::vector<TransferStep> steps;
  /// Sums over the steps of the bytes that cross the link, that are written by copies
  /// within the device's memory, and that are written by copies within the host's, those
  /// into and out of staging buffers included.
  uint64_t h2dBytes = 0, d2hBytes = 0, d2dBytes = 0, hostBytes = 0;
  /// Read from a disk below the host's memory, and written to it.
  uint64_t diskReadBytes = 0, diskWriteBytes = 0;
  /// Spaces between source and target that are neither's.
  uint32_t bounces = 0;
  /// For row storages whose zero points are worth a look before they cross the link: the
  /// same transfer without them, for zero points that are all zero.
  std::shared_ptr<const TransferPlan> withoutZeroPoints;
};

/// Plans a transfer. With `forced`, a copy is wanted even if the given tensor would
/// serve. Throws LayoutMismatch if the shapes differ, InvalidArgument if `wanted` puts
/// two elements in one place, Unsupported naming the space that the device lacks.
TransferPlan planTransfer(const TensorDesc &given, const TensorDesc &wanted, const Device &device,
                          const StitchOptions &options, bool forced = false);

/// Returns true if every stored value of `given` can be had back from `wanted`:
/// equal or wider elements, row storage to elements, never elements to row storage.
bool isLossless(const TensorDesc &given, const TensorDesc &wanted);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TRANSFER_TRANSFERPLAN_H
