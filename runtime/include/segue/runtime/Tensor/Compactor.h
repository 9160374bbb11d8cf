//===- Compactor.h - storages whose bytes may move --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Addresses on a device are dynamic: if there are enough free bytes for an
// allocation but no free range that is long enough, live storages are moved by
// copies on the compute queue, behind all queued work that touches them, and get
// their new addresses at once. Code that has read an address has queued the work
// that needs it before the next allocation; code that reads it later gets the new
// one.
//
// Storages enter and leave on any thread; they are moved on the thread that
// submits. Blocks that no storage stands for have an address that somebody keeps:
// they stay.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TENSOR_COMPACTOR_H
#define SEGUE_RUNTIME_TENSOR_COMPACTOR_H

#include "segue/runtime/Fence.h"
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace segue::inline runtime {

class Storage;

class Compactor {
public:
  Compactor() = default;
  Compactor(const Compactor &) = delete;
  Compactor &operator=(const Compactor &) = delete;

  /// Returns the mutex that is held while storages move.
  std::recursive_mutex &mutex() { return mutex_; }
  /// Adds a storage, which has its memory by now.
  void enter(Storage &storage);
  /// Removes a storage, before its memory is given back.
  void leave(Storage &storage);

protected:
  ~Compactor() = default;

  /// Tells a storage its new address, to which queued work at `moved` brings the bytes.
  static void move(Storage &storage, std::byte *data, const Fence &moved);
  static uint32_t alignmentOf(const Storage &storage);

  std::recursive_mutex mutex_;
  /// The storages by address, without those of no bytes.
  std::map<std::byte *, Storage *> storages_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TENSOR_COMPACTOR_H
