//===- ToLayout.cpp - the one operation that moves bytes ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"

namespace segue::inline runtime {

bool hasLayout(const Tensor &tensor, const Layout &layout) {
  return satisfies(tensor.shape(), tensor.desc().layout, layout, tensor.device()->hasUnifiedMemory());
}

static void checkShapes(const Tensor &tensor, const TensorDesc &desc) {
  if (tensor.shape() != desc.shape)
    throw Error(ErrorCode::LayoutMismatch, "toLayout: " + tensor.desc().str() + " given, " + desc.str() +
                                               " wanted; a layout never changes the shape");
}

void copyInto(const Tensor &source, const Tensor &target) {
  checkShapes(source, target.desc());
  if (!target.storage()->isWritable())
    throw Error(ErrorCode::InvalidArgument, "copyInto: " + target.desc().str() + " is read-only memory");
  CopyPlan plan(source.shape(), {source.element(), source.desc().strides()},
                {target.element(), target.desc().strides()});
  plan.run(source.bytes(), target.bytes(), target.device()->threads());
  target.storage()->bumpVersion();
}

Tensor copyTo(const DeviceRef &device, const Tensor &tensor, const TensorDesc &desc) {
  checkShapes(tensor, desc);
  // Both are memory of this process; a device with memory of its own adds its
  // hops here.
  if (!tensor.device()->hasUnifiedMemory() || !device->hasUnifiedMemory())
    throw Error(ErrorCode::Unsupported,
                "toLayout: from device \"" + tensor.device()->name() + "\" to \"" + device->name() + "\"");
  TensorDesc placed = desc;
  placed.layout.offset = 0;
  Tensor copy = Tensor::empty(device, std::move(placed));
  if (!isInjective(copy.shape(), copy.desc().strides()))
    throw Error(ErrorCode::InvalidArgument, "toLayout: " + desc.str() + " puts two elements in one place");
  copyInto(tensor, copy);
  return copy;
}

Tensor toLayout(const DeviceRef &device, const Tensor &tensor, const TensorDesc &desc) {
  checkShapes(tensor, desc);
  if (tensor.device() == device && tensor.element() == desc.element && hasLayout(tensor, desc.layout))
    return tensor;
  return copyTo(device, tensor, desc);
}

Tensor toHost(const Tensor &tensor) {
  // Any alignment will do on the host.
  return toLayout(tensor.device(), tensor,
                  TensorDesc(tensor.shape(), tensor.element(),
                             Layout{.space = Space::Host, .alignment = uint32_t(byteSize(tensor.element()))}));
}

} // namespace segue::inline runtime
