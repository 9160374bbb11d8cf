//===- Storage.cpp - the bytes behind tensors -----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Tensor/Storage.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"

namespace segue::inline runtime {

/// Ids only need to differ; the counter is the one datum of the process.
static uint64_t nextStorageId() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

std::shared_ptr<Storage> Storage::allocate(DeviceRef device, Space space, uint64_t bytes, uint32_t alignment) {
  if (!device->hasSpace(space))
    throw Error(ErrorCode::Unsupported,
                "device \"" + device->name() + "\" has no space " + std::string(segue::name(space)));
  std::shared_ptr<Storage> storage(new Storage);
  storage->data_ = static_cast<std::byte *>(device->allocate(space, bytes, alignment));
  if (!storage->data_)
    throw Error(ErrorCode::DeviceOom, "device \"" + device->name() + "\" has no " + std::to_string(bytes) +
                                          " bytes left in " + std::string(segue::name(space)));
  storage->id_ = nextStorageId();
  storage->device_ = std::move(device);
  storage->space_ = space;
  storage->bytes_ = bytes;
  storage->alignment_ = alignment;
  return storage;
}

std::shared_ptr<Storage> Storage::wrap(DeviceRef device, void *data, uint64_t bytes, std::function<void()> release,
                                       bool writable) {
  std::shared_ptr<Storage> storage(new Storage);
  storage->id_ = nextStorageId();
  storage->device_ = std::move(device);
  storage->space_ = Space::Host;
  storage->bytes_ = bytes;
  storage->data_ = static_cast<std::byte *>(data);
  storage->external_ = true;
  storage->writable_ = writable;
  storage->release_ = std::move(release);
  return storage;
}

Storage::~Storage() {
  if (external_) {
    if (release_)
      release_();
  } else if (data_) {
    device_->free(space_, data_, bytes_, alignment_);
  }
}

} // namespace segue::inline runtime
