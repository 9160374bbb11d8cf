//===- DiskSpace.cpp - a spill file as a space of a device ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "DiskSpace.h"
#include "KernelLaunch.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/CopyPlan.h"
#include <algorithm>
#include <cstring>
#include <vector>

namespace segue::inline runtime {

void DiskSpace::copy(void *target, const void *source, uint64_t bytes) const {
  bool fromDisk = holds(source), toDisk = holds(target);
  if (!bytes)
    return;
  if (!fromDisk && !toDisk) {
    std::memcpy(target, source, bytes);
    return;
  }
  try {
    if (!fromDisk)
      return file_->write(offsetOf(target), source, bytes);
    if (!toDisk)
      return file_->read(target, offsetOf(source), bytes);
    std::vector<std::byte> piece(std::min<uint64_t>(bytes, 4 << 20));
    for (uint64_t done = 0; done < bytes; done += piece.size()) {
      uint64_t count = std::min<uint64_t>(piece.size(), bytes - done);
      file_->read(piece.data(), offsetOf(source) + done, count);
      file_->write(offsetOf(target) + done, piece.data(), count);
    }
  } catch (const Error &error) {
    if (error.code() != ErrorCode::IoFailed)
      throw;
    throw Error(ErrorCode::TransferFailed, error.what());
  }
}

void DiskSpace::relayout(const CopyPlan &plan, const void *source, void *target, int threads) const {
  bool fromDisk = holds(source), toDisk = holds(target);
  if (plan.isContiguous() && (fromDisk || toDisk))
    return copy(target, source, plan.bytesWritten());
  if (toDisk)
    file_->expectStores(offsetOf(target), plan.bytesWritten());
  relayoutHere(plan, source, target, threads);
  if (fromDisk)
    file_->dropCached(offsetOf(source), plan.bytesRead());
  if (toDisk)
    file_->dropCached(offsetOf(target), plan.bytesWritten());
}

} // namespace segue::inline runtime
