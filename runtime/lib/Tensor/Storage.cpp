//===- Storage.cpp - the bytes behind tensors -----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Tensor/Storage.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Tensor/DramCompactor.h"
#include "segue/runtime/Tensor/L1Compactor.h"

namespace segue::inline runtime {

static uint64_t nextStorageId() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

std::string_view name(StorageState state) {
  static constexpr std::string_view names[] = {"pending", "ready", "failed", "freed"};
  return names[uint8_t(state)];
}

static Compactor *compactorOf(Device &device, Space space) {
  if (space == Space::DeviceL1)
    return device.l1Compactor();
  return space == Space::DeviceDram ? device.dramCompactor() : nullptr;
}

/// A move in L1 happens within an allocation, which therefore ends with the
/// storage among those that may; in DRAM it stays where it is until then.
static std::unique_lock<std::recursive_mutex> lockL1(Compactor *compactor, Space space) {
  return compactor && space == Space::DeviceL1 ? std::unique_lock(compactor->mutex())
                                               : std::unique_lock<std::recursive_mutex>();
}

std::shared_ptr<Storage> Storage::allocate(DeviceRef device, Space space, uint64_t bytes, uint32_t alignment,
                                           OwnerId owner, Lifetime lifetime) {
  std::shared_ptr<Storage> storage(new Storage);
  Compactor *compactor = compactorOf(*device, space);
  auto lock = lockL1(compactor, space);
  MemoryBlock block = device->memory().allocate(space, bytes, alignment, owner, lifetime);
  storage->data_ = static_cast<std::byte *>(block.data);
  storage->uses_ = block.after;
  storage->id_ = nextStorageId();
  storage->device_ = std::move(device);
  storage->space_ = space;
  storage->bytes_ = bytes;
  storage->alignment_ = alignment;
  storage->account_ = block.account;
  if (compactor)
    compactor->enter(*storage);
  return storage;
}

std::shared_ptr<Storage> Storage::wrap(DeviceRef device, void *data, uint64_t bytes, std::function<void()> release,
                                       bool writable, Space space) {
  if (space != Space::Host)
    device->lendMemory(data, bytes);
  std::shared_ptr<Storage> storage(new Storage);
  storage->id_ = nextStorageId();
  storage->device_ = std::move(device);
  storage->space_ = space;
  storage->bytes_ = bytes;
  storage->data_ = static_cast<std::byte *>(data);
  storage->external_ = true;
  storage->writable_ = writable;
  storage->release_ = std::move(release);
  return storage;
}

/// The owner of the memory may do with it what he likes from here on, on his stream if he has one.
void Storage::awaitUses() noexcept {
  if (uses_.empty())
    return;
  if (!ownerStream_)
    return device_->wait(uses_);
  try {
    device_->letStreamWait(ownerStream_, uses_);
  } catch (const std::exception &) { // a device that failed uses nothing any more
  }
}

void Storage::free() noexcept {
  if (freed_)
    return;
  freed_ = true;
  if (DerivedCopies *copies = derived_.load(std::memory_order_acquire))
    copies->forget(id_);
  if (external_) {
    if (release_) {
      awaitUses();
      if (space_ != Space::Host)
        device_->takeBackMemory(data_, bytes_);
      release_();
      release_ = nullptr;
    }
  } else if (data_) {
    Compactor *compactor = compactorOf(*device_, space_);
    auto lock = lockL1(compactor, space_);
    if (compactor)
      compactor->leave(*this);
    device_->memory().free(space_, data_, bytes_, alignment_, account_, uses_);
  }
  data_ = nullptr;
}

Storage::~Storage() { free(); }

void Storage::renew() {
  if (DerivedCopies *copies = derived_.exchange(nullptr, std::memory_order_acq_rel))
    copies->forget(id_);
  setRetained(true);
  setDonated(false);
  // Work of its former life may still be queued, and fail.
  if (outcome_ && (outcome_->error() || !device_->isDone(writes_)))
    outcome_ = nullptr;
  id_ = nextStorageId();
  version_.store(0, std::memory_order_relaxed);
}

StorageState Storage::state() const {
  if (freed_)
    return StorageState::Freed;
  if (failure())
    return StorageState::Failed;
  return writes_.empty() || device_->isDone(writes_) ? StorageState::Ready : StorageState::Pending;
}

void Outcome::fail(const Error &error) {
  const Error *expected = nullptr;
  auto *copy = new Error(error);
  if (!error_.compare_exchange_strong(expected, copy, std::memory_order_acq_rel))
    delete copy;
}

const std::shared_ptr<Outcome> &Storage::outcome() {
  if (!outcome_)
    outcome_ = std::make_shared<Outcome>();
  return outcome_;
}

void Storage::requireUsable(std::string_view what) const {
  if (freed_)
    throw Error(ErrorCode::UseAfterFree, std::string(what) + " was freed; its bytes serve others now");
  if (const Error *error = failure())
    throw error->within(std::string(what) + " was never written");
}

} // namespace segue::inline runtime
