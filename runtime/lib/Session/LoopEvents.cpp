//===- LoopEvents.cpp - what a loop does with tensors of others -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "LoopEvents.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <set>

namespace segue::inline runtime {

/// A weight of so many bytes is copied, as biases and gains of norms are.
static constexpr uint64_t smallWeightBytes = 64 << 10;

static bool isWeight(const Value &value) { return value.role == Role::Parameter || value.role == Role::Frozen; }

Tensor copiedTo(const DeviceRef &device, const Tensor &tensor, Space space) {
  Layout layout{.space = space, .alignment = uint32_t(byteSize(tensor.element()))};
  auto desc = std::make_shared<const TensorDesc>(tensor.shape(), tensor.element(), std::move(layout));
  return device->transfer().toLayout(device, tensor, std::move(desc));
}

Tensor handOut(const DeviceRef &device, Tensor tensor) {
  return !tensor || isHostSpace(tensor.desc().layout.space) ? tensor : copiedTo(device, tensor, Space::Host);
}

std::vector<Tensor> handOut(const DeviceRef &device, std::vector<Tensor> tensors) {
  for (Tensor &tensor : tensors)
    tensor = handOut(device, std::move(tensor));
  return tensors;
}

std::vector<Tensor> lastingInputs(const Module &module, std::span<const Tensor> inputs) {
  std::set<std::string_view> readAgain;
  for (const Value &value : module.find("backward")->inputs())
    if (value.role != Role::Saved && value.role != Role::Gradient)
      readAgain.insert(value.name);
  std::vector<Tensor> lasting(inputs.size()), copies;
  const std::vector<Value> &values = module.find("forward")->inputs();
  for (size_t i = 0; i < inputs.size() && i < values.size(); ++i) {
    const Tensor &input = inputs[i];
    if (!input)
      continue;
    if (readAgain.contains(values[i].name)) {
      lasting[i] = input;
    } else if (isWeight(values[i]) && isHostSpace(input.desc().layout.space) &&
               input.desc().spanBytes() <= smallWeightBytes) {
      // What stands for it on a twin lasts, and has no bytes that could change.
      lasting[i] = input.device()->hasBytes() ? copyTo(input.device(), input, input.desc()) : input;
      copies.push_back(lasting[i]);
    }
  }
  for (const Tensor &copy : copies)
    wait(copy);
  return lasting;
}

//===----------------------------------------------------------------------===//
// Weights
//===----------------------------------------------------------------------===//

void LoopWeights::forget() {
  cursor_.reset();
  given_.clear();
  coming_.clear();
}

void LoopWeights::on(const event::Submit &) { forget(); }

void LoopWeights::on(const event::OfferInput &offer) {
  const Value &value = offer.program.inputs()[offer.input];
  const TensorDesc &given = offer.value.desc();
  if (!isWeight(value) || !isHostSpace(given.layout.space))
    return;
  offer.isDeferred = true;
  // What is converted on its way, or goes further than the device's memory, comes as any input does.
  if (isAhead_ && given.element == value.desc().element && value.desc().layout.space == Space::DeviceDram)
    given_[offer.input] = offer.value;
}

/// Queues copies of the weights that `block` is the first to touch, unless they are on their way.
void LoopWeights::send(const Program &program, size_t block, bool mustCome) {
  const BlockUses &uses = cursor_.usesOf(program);
  if (block >= uses.blocks.size())
    return;
  for (uint32_t input : uses.blocks[block].firstTouched) {
    auto given = given_.find(input);
    if (given == given_.end() || coming_.contains(input))
      continue;
    const Value &value = program.inputs()[input];
    TransferOptions options;
    options.owner = device_->memory().intern(
        {.program = program.name(), .value = value.name, .role = std::string(name(value.role))});
    try {
      coming_[input] = device_->transfer().copyTo(device_, given->second, value.sharedDesc, options);
    } catch (const Error &error) {
      // It comes with its block, then.
      coming_.erase(input);
      if (mustCome || error.code() != ErrorCode::DeviceOom)
        throw;
      return;
    }
  }
}

void LoopWeights::on(const event::BlockBegin &begin) {
  if (!isAhead_)
    return;
  size_t block = cursor_.begin(begin.program);
  send(begin.program, block, /*mustCome=*/true);
  send(begin.program, block + 1, /*mustCome=*/false);
}

void LoopWeights::on(const event::BlockInput &need) {
  auto coming = coming_.find(need.input);
  if (coming == coming_.end())
    return; // `value` is brought as any input is
  need.value = std::move(coming->second);
  coming_.erase(coming);
  given_.erase(need.input);
}

void LoopWeights::on(const event::BlockEnd &end) {
  if (isAhead_)
    cursor_.end(end.program);
}

} // namespace segue::inline runtime
