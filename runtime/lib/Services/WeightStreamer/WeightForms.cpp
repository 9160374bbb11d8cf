//===- WeightForms.cpp - weights in the form that was chosen --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A weight may come from a slab in the place of its source. Which it is changes
// between steps, while no block of it is on the device, so that forward and
// backward of a step read the same values. A weight that cannot be read from
// its slab before the step has used it is read from its source in that very load,
// with its whole unit; later the step is aborted, and the next one does so.
//
//===----------------------------------------------------------------------===//

#include "WeightStreamerImpl.h"
#include "segue/runtime/Error.h"
#include <algorithm>

namespace segue::inline runtime {

std::vector<StreamedParameter> WeightStreamer::parameters() const {
  std::vector<StreamedParameter> result;
  std::vector<const Impl::Weight *> seen;
  for (const Impl::ProgramPlan *plan : impl_->phases[0])
    for (const BlockUse &use : plan->uses.blocks)
      for (uint32_t input : use.firstTouched) {
        const Impl::Weight *weight = plan->inputs[input];
        if (!weight || !weight->isStreamed || std::ranges::find(seen, weight) != seen.end())
          continue;
        seen.push_back(weight);
        result.push_back({.key = weight->key,
                          .module = plan->module,
                          .name = weight->value.name,
                          .block = use.name,
                          .desc = weight->value.desc(),
                          .isTrained = weight->value.role == Role::Parameter});
      }
  return result;
}

void WeightStreamer::onFormFailed(FormFailed handler) { impl_->formFailed = std::move(handler); }

void WeightStreamer::setForms(std::span<const FormChoice> choices) {
  Impl &s = *impl_;
  if (s.inStep || s.isEvaluating)
    throw Error(ErrorCode::StateTransition, "weight streamer: forms of weights are chosen between steps");
  for (const FormChoice &choice : choices) {
    auto it = s.weights.find(choice.weight);
    if (it == s.weights.end())
      throw Error(ErrorCode::NameUnknown,
                  "weight streamer: unit \"" + choice.unit + "\": there is no weight \"" + choice.weight + "\"");
    Impl::Weight &weight = *it->second;
    weight.unit = choice.unit;
    if (weight.slab == choice.slab)
      continue;
    if (choice.slab && std::ranges::find(s.formSlabs, choice.slab) == s.formSlabs.end())
      s.formSlabs.push_back(choice.slab);
    if (weight.block) {       // else the next start() finds it so
      s.flush(*weight.block); // what is trained beside
      s.drop(*weight.block);
    }
    weight.slab = choice.slab;
    if (weight.block)
      s.restate(*weight.block);
  }
}

/// Notes anew what crosses the link for a block, and whether files are read for it.
void WeightStreamer::Impl::restate(Block &block) {
  block.storedBytes = 0;
  block.isStaged = false;
  for (const Weight *weight : block.weights) {
    block.storedBytes += weight->slab ? weight->slab->storedBytes(weight->value.name) : weight->storedBytes;
    block.isStaged |= weight->file && !weight->slab;
  }
  policy->tell(weight_calls::restate, block.id, int64_t(block.storedBytes), block.isStaged);
}

/// A slab reads as far ahead as the pool would, in memory of its own.
void WeightStreamer::Impl::giveSlabsBuffers(const WeightLimits &limits) {
  static constexpr uint64_t mostBytes = uint64_t(512) << 20; // of the default pool, 8 GiB
  std::function<bool(uint64_t)> reserve;
  if (options.reserve)
    reserve = [this](uint64_t bytes) { return options.reserve(Space::HostPinned, bytes); };
  uint64_t bytes = uint64_t(limits.slabBytes) * uint64_t(limits.slabs);
  for (SlabSource *slab : slabs())
    slab->takeBuffers(config.pinnedPoolMiB ? bytes : std::min(bytes, mostBytes), reserve);
}

void WeightStreamer::Impl::giveUpForm(const Weight &failed, const Error &error) {
  std::string unit = failed.unit;
  for (Weight *weight : weightOrder)
    if (weight->unit == unit)
      weight->slab = nullptr;
  restate(*failed.block);
  if (formFailed)
    formFailed(unit, error);
}

/// Gives up the forms of weights that aborted steps have lost alone: a load that failed and was
/// made good by a later one is forgotten with the next.
void WeightStreamer::Impl::giveUpLost() {
  for (const auto &block : blocks)
    if (auto lost = std::exchange(block->lost, {}))
      giveUpForm(*lost->first, lost->second);
}

/// Serves a weight from a slab. On its way it lies on the device as stored, beside its
/// slot. If there is no room for that, also after others have made some, and the slab's is
/// the only form that will do, the host makes the same floats of it.
void WeightStreamer::Impl::serve(SlabSource &slab, std::string_view name, const Tensor &target,
                                 const TransferOptions &how, bool isNeeded) const {
  try {
    slab.serveInto(name, target, how);
  } catch (const Error &error) {
    if (!isNeeded || error.code() != ErrorCode::DeviceOom || isQuantized(target.desc().layout.storage))
      throw;
    Tensor host = Tensor::onHost(device, target.shape(), target.element());
    if (device->hasBytes())
      slab.copyDequantized(name, target.element(), {host.bytes(), size_t(host.desc().spanBytes())});
    engine.copyInto(host, target, how);
  }
}

/// Returns the slab of the options, and those that forms come from.
std::vector<SlabSource *> WeightStreamer::Impl::slabs() const {
  std::vector<SlabSource *> all;
  for (const auto &slab : formSlabs)
    all.push_back(slab.get());
  if (options.slab && std::ranges::find(all, options.slab.get()) == all.end())
    all.push_back(options.slab.get());
  return all;
}

/// Returns the slab that a weight comes from now, or null, and its name there.
std::pair<SlabSource *, std::string_view> WeightStreamer::Impl::slabOf(const Weight &weight) const {
  if (weight.slab)
    return {weight.slab.get(), weight.value.name};
  return {weight.source.inSlab ? options.slab.get() : nullptr, weight.source.name};
}

/// The order in which a phase will ask for what is not on the device yet.
void WeightStreamer::Impl::readSlabsAhead(const Order &order) {
  for (SlabSource *slab : slabs()) {
    std::vector<std::string> names;
    for (const std::string &id : blocksOf(order)) {
      const Block &block = *byId.at(id);
      if (stagehand().state(id) != BlockState::Unloaded)
        continue;
      for (const Weight *weight : block.weights)
        if (auto [from, name] = slabOf(*weight); from == slab)
          names.emplace_back(name);
    }
    slab->readAhead(std::move(names));
  }
}

void WeightStreamer::Impl::countServed(const Block &block) {
  for (SlabSource *slab : slabs())
    if (std::ranges::any_of(block.weights, [&](const Weight *weight) { return slabOf(*weight).first == slab; }))
      slab->blockServed();
}

SlabTelemetry WeightStreamer::Impl::takeSlabTelemetry() {
  SlabTelemetry sums;
  for (SlabSource *slab : slabs())
    sums += slab->takeTelemetry();
  return sums;
}

} // namespace segue::inline runtime
