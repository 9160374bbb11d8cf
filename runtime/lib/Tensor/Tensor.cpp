//===- Tensor.cpp - a value over shared storage ---------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "NullHandles.h"
#include <algorithm>
#include <bit>

namespace segue::inline runtime {

/// The greatest alignment that is noted: alignments above a page say nothing that anyone asks for.
static constexpr uint32_t greatestAlignment = 4096;

void Tensor::failNull() {
  throw Error(ErrorCode::InvalidArgument, "a null tensor was asked what it holds: it was never made, or it was moved from");
}

Tensor Tensor::empty(const DeviceRef &device, std::shared_ptr<const TensorDesc> desc) {
  requireGiven(device, "Tensor");
  if (!desc)
    throw Error(ErrorCode::InvalidArgument, "Tensor: the description is null");
  if (desc->layout.offset != 0) {
    TensorDesc moved = *desc;
    moved.layout.offset = 0;
    desc = std::make_shared<const TensorDesc>(std::move(moved));
  }
  Tensor tensor;
  tensor.storage_ = Storage::allocate(device, desc->layout.space, desc->spanBytes(), desc->layout.alignment);
  tensor.descHash_ = desc->hash();
  tensor.desc_ = std::move(desc);
  return tensor;
}

Tensor Tensor::empty(const DeviceRef &device, TensorDesc desc) {
  desc.validate();
  return empty(device, std::make_shared<const TensorDesc>(std::move(desc)));
}

Tensor Tensor::onHost(const DeviceRef &device, Shape shape, ElementType element) {
  Tensor tensor = empty(device, TensorDesc(std::move(shape), element, Layout{.space = Space::Host}));
  if (const Fence &before = tensor.storage_->uses(); !before.empty())
    device->wait(before); // its former contents
  return tensor;
}

Tensor Tensor::wrap(const DeviceRef &device, TensorDesc desc, void *data, std::function<void()> release,
                    bool writable, Space space) {
  requireGiven(device, "Tensor::wrap");
  desc.layout.offset = 0;
  desc.layout.space = space;
  desc.validate();
  uint64_t bytes = desc.spanBytes();
  if (!data && bytes)
    throw Error(ErrorCode::InvalidArgument, desc.str() + ": the pointer to wrap is null");
  auto address = reinterpret_cast<uintptr_t>(data);
  desc.layout.alignment =
      address == 0 ? greatestAlignment : uint32_t(std::min<uintptr_t>(address & -address, greatestAlignment));
  if (desc.layout.alignment < (isRowStorage(desc.layout.storage) ? alignof(float) : byteSize(desc.element)))
    throw Error(ErrorCode::InvalidArgument, desc.str() + ": the pointer to wrap is not aligned to an element");
  Tensor tensor;
  tensor.storage_ = Storage::wrap(device, data, bytes, std::move(release), writable, space);
  tensor.descHash_ = desc.hash();
  tensor.desc_ = std::make_shared<const TensorDesc>(std::move(desc));
  return tensor;
}

Tensor Tensor::in(std::shared_ptr<Storage> storage, std::shared_ptr<const TensorDesc> desc) {
  if (!storage || !desc)
    throw Error(ErrorCode::InvalidArgument,
                std::string("Tensor::in: the ") + (storage ? "description" : "storage") + " is null");
  if (!rangeFits(desc->layout.offset, desc->spanBytes(), storage->bytes()))
    throw Error(ErrorCode::InvalidArgument, desc->str() + " does not fit in a storage of " +
                                                std::to_string(storage->bytes()) + " bytes at offset " +
                                                std::to_string(desc->layout.offset));
  Tensor tensor;
  tensor.storage_ = std::move(storage);
  tensor.descHash_ = desc->hash();
  tensor.desc_ = std::move(desc);
  return tensor;
}

} // namespace segue::inline runtime
