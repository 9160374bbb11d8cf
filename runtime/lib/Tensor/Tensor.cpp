//===- Tensor.cpp - a value over shared storage ---------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Tensor/Tensor.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <algorithm>
#include <bit>

namespace segue::inline runtime {

/// Alignments above a page say nothing that anyone asks for.
static constexpr uint32_t greatestAlignment = 4096;

Tensor Tensor::empty(const DeviceRef &device, std::shared_ptr<const TensorDesc> desc) {
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

Tensor Tensor::zeros(const DeviceRef &device, TensorDesc desc) {
  Tensor tensor = empty(device, std::move(desc));
  device->transfer().fillZero(tensor);
  return tensor;
}

Tensor Tensor::onHost(const DeviceRef &device, Shape shape, ElementType element) {
  Tensor tensor = empty(device, TensorDesc(std::move(shape), element, Layout{.space = Space::Host}));
  if (const Fence &before = tensor.storage_->uses(); !before.empty())
    device->wait(before); // its former contents
  return tensor;
}

Tensor Tensor::scalar(const DeviceRef &device, float value) {
  Tensor tensor = empty(device, TensorDesc({}, ElementType::f32));
  device->transfer().writeScalar(tensor, &value, sizeof value);
  return tensor;
}

Tensor Tensor::scalar(const DeviceRef &device, int64_t value) {
  Tensor tensor = empty(device, TensorDesc({}, ElementType::i64));
  device->transfer().writeScalar(tensor, &value, sizeof value);
  return tensor;
}

Tensor Tensor::wrap(const DeviceRef &device, TensorDesc desc, void *data, std::function<void()> release,
                    bool writable) {
  desc.layout.offset = 0;
  desc.layout.space = Space::Host;
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
  tensor.storage_ = Storage::wrap(device, data, bytes, std::move(release), writable);
  tensor.descHash_ = desc.hash();
  tensor.desc_ = std::make_shared<const TensorDesc>(std::move(desc));
  return tensor;
}

Tensor Tensor::in(std::shared_ptr<Storage> storage, std::shared_ptr<const TensorDesc> desc) {
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

double Tensor::item() const {
  if (elementCount() != 1)
    throw Error(ErrorCode::InvalidArgument,
                desc().str() + " has " + std::to_string(elementCount()) + " elements; item() reads a tensor of one");
  Tensor host = toHost(*this);
  if (!device()->hasBytes())
    return 0; // after the time that it takes
  switch (element()) {
  case ElementType::f32:
    return *host.data<float>();
  case ElementType::bf16:
    return bf16ToFloat(*host.data<uint16_t>());
  case ElementType::f16:
    return f16ToFloat(*host.data<uint16_t>());
  case ElementType::i64:
    return double(*host.data<int64_t>());
  case ElementType::i32:
    return *host.data<int32_t>();
  case ElementType::i8:
    return *host.data<int8_t>();
  case ElementType::i1:
    return *host.data<uint8_t>() != 0;
  }
  return 0;
}

} // namespace segue::inline runtime
