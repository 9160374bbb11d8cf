//===- ToLayout.cpp - the one operation that moves bytes ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Callers see these functions; the work is the transfer engine's.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Transfer/ToLayout.h"
#include "../Tensor/NullHandles.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <algorithm>

namespace segue::inline runtime {

bool hasLayout(const Tensor &tensor, const Layout &layout) {
  return satisfies(tensor.shape(), tensor.desc().layout, layout, tensor.device()->hasUnifiedMemory());
}

static bool isPlaced(const DeviceRef &device, const Tensor &tensor, const TensorDesc &desc) {
  return tensor.device() == device && tensor.shape() == desc.shape && tensor.element() == desc.element &&
         hasLayout(tensor, desc.layout) && !tensor.storage()->failure();
}

Tensor toLayout(const DeviceRef &device, const Tensor &tensor, const TensorDesc &desc) {
  requireGiven(device, "toLayout");
  requireGiven(tensor, "toLayout");
  if (isPlaced(device, tensor, desc)) {
    tensor.storage()->requireUsable(tensor.desc().str());
    return tensor;
  }
  return device->transfer().toLayout(device, tensor, std::make_shared<const TensorDesc>(desc));
}

Tensor copyTo(const DeviceRef &device, const Tensor &tensor, const TensorDesc &desc) {
  requireGiven(device, "copyTo");
  requireGiven(tensor, "copyTo");
  return device->transfer().copyTo(device, tensor, std::make_shared<const TensorDesc>(desc));
}

void copyInto(const Tensor &source, const Tensor &target) {
  requireGiven(source, "copyInto");
  requireGiven(target, "copyInto").device()->transfer().copyInto(source, target);
}

void wait(const Tensor &tensor) {
  Storage &storage = *requireGiven(tensor, "wait").storage();
  Device &device = *storage.device();
  if (!storage.writes().empty() && !device.isDone(storage.writes())) {
    double begin = device.seconds();
    device.wait(storage.writes());
    device.transfer().counters().waitNanoseconds += uint64_t((device.seconds() - begin) * 1e9);
  }
  storage.requireUsable(tensor.desc().str());
}

void waitForUses(const Tensor &tensor) {
  if (const Storage &storage = *tensor.storage(); !storage.uses().empty())
    storage.device()->wait(storage.uses());
}

Tensor toHost(const Tensor &tensor) {
  const Layout &layout = requireGiven(tensor, "toHost").desc().layout;
  // Any memory of the host will do, and any alignment.
  Layout wanted{.space = layout.space == Space::HostPinned ? Space::HostPinned : Space::Host,
                .alignment = uint32_t(byteSize(tensor.element()))};
  Tensor host = toLayout(tensor.device(), tensor, TensorDesc(tensor.shape(), tensor.element(), wanted));
  wait(host);
  return host;
}

void forEachPiece(const Tensor &tensor, const std::function<void(std::span<const std::byte> bytes)> &take) {
  requireGiven(take, "forEachPiece");
  constexpr uint64_t pieceBytes = 1 << 20;
  const TensorDesc &desc = tensor.desc();
  uint64_t width = byteSize(desc.element), count = tensor.elementCount();
  auto takeAll = [&](const Tensor &dense) { take({dense.bytes(), size_t(dense.elementCount() * width)}); };
  Space space = desc.layout.space;
  bool isInReach = space == Space::Host || space == Space::HostPinned || tensor.device()->hasUnifiedMemory();
  bool isFlat = desc.isDense() && !isQuantized(desc.layout.storage) && desc.layout.tile.empty();
  if (isInReach || !isFlat || count * width <= pieceBytes)
    return takeAll(toHost(tensor));
  for (uint64_t begin = 0; begin < count; begin += pieceBytes / width) {
    int64_t size = int64_t(std::min(pieceBytes / width, count - begin));
    auto piece = std::make_shared<TensorDesc>(Shape{size}, desc.element);
    piece->layout.space = space;
    piece->layout.offset = desc.layout.offset + begin * width;
    piece->layout.alignment = std::min<uint32_t>(desc.layout.alignment, defaultAlignment);
    takeAll(toHost(Tensor::in(tensor.storage(), std::move(piece))));
  }
}

void setRetain(const Tensor &tensor, bool retain) { tensor.storage()->setRetained(retain); }

bool donate(const Tensor &tensor) {
  if (tensor.isSoleOwner()) {
    tensor.storage()->setDonated(true);
    return true;
  }
  ++tensor.device()->transfer().counters().donationsIgnored;
  return false;
}

} // namespace segue::inline runtime
