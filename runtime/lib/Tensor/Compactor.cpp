//===- Compactor.cpp - storages whose bytes may move ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Tensor/Compactor.h"
#include "segue/runtime/Tensor/Storage.h"

namespace segue::inline runtime {

void Compactor::enter(Storage &storage) {
  if (!storage.bytes())
    return;
  std::lock_guard lock(mutex_);
  storages_[storage.data()] = &storage;
}

void Compactor::leave(Storage &storage) {
  std::lock_guard lock(mutex_);
  if (auto entry = storages_.find(storage.data()); entry != storages_.end() && entry->second == &storage)
    storages_.erase(entry);
}

void Compactor::move(Storage &storage, std::byte *data, const Fence &moved) { storage.moveTo(data, moved); }
uint32_t Compactor::alignmentOf(const Storage &storage) { return storage.alignment_; }

} // namespace segue::inline runtime
