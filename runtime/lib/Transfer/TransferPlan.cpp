//===- TransferPlan.cpp - from one layout to another, in steps ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Within one memory a transfer is one relayout. Over the link it is
//
//   given --host relayout--> wire --link--> wire --device relayout--> wanted
//
// or its mirror image, where either relayout is left out if the wire is what
// stands beside it. Choosing the wire is all the planning there is. A disk below the
// host's memory is one more edge, which the step over the link takes along.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Transfer/TransferPlan.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <array>

namespace segue::inline runtime {

//===----------------------------------------------------------------------===//
// Losslessness
//===----------------------------------------------------------------------===//

/// Returns true if every value of `from` is a value of `to`.
static bool widens(ElementType from, ElementType to) {
  if (from == to || from == ElementType::i1)
    return true;
  switch (from) {
  case ElementType::bf16:
  case ElementType::f16:
    return to == ElementType::f32 || to == ElementType::f64;
  case ElementType::f32:
    return to == ElementType::f64;
  case ElementType::i8: // 8 significant bits are exact in every float
    return to != ElementType::i1;
  case ElementType::i32:
    return to == ElementType::i64 || to == ElementType::f64;
  default:
    return false;
  }
}

bool isLossless(const TensorDesc &given, const TensorDesc &wanted) {
  const Layout &from = given.layout, &to = wanted.layout;
  if (!isQuantized(to.storage))
    return widens(given.element, wanted.element);
  // Into codes: only the very bytes.
  return from.storage == to.storage && given.element == wanted.element && (to.zeroPoints || !from.zeroPoints);
}

//===----------------------------------------------------------------------===//
// The chain
//===----------------------------------------------------------------------===//

std::string TransferStep::hop() const {
  std::string text = std::string(segue::name(from)) + " -> " + std::string(segue::name(target.layout.space));
  return text;
}

/// The alignment of buffers in between if nothing says otherwise, in bytes: enough for any reader.
static constexpr uint32_t wireAlignment = 64;

/// Returns `desc` in `space`, at the start of memory of its own.
static TensorDesc placed(TensorDesc desc, Space space) {
  desc.layout.space = space;
  desc.layout.offset = 0;
  desc.layout.alignment = wireAlignment;
  return desc;
}

static TensorDesc dense(const TensorDesc &desc) {
  return TensorDesc(desc.shape, desc.element,
                    Layout{.storage = desc.layout.storage, .zeroPoints = desc.layout.zeroPoints});
}

/// The memory of `desc` as bytes in a row.
static TensorDesc rawBytes(const TensorDesc &desc) { return TensorDesc({int64_t(desc.spanBytes())}, ElementType::i8); }

/// Returns true if the same values have the same bytes in both.
static bool sameBytes(const TensorDesc &a, const TensorDesc &b) {
  if (a.element != b.element)
    return false;
  return canonicalize(a.shape, placed(a, Space::Host).layout) == canonicalize(b.shape, placed(b, Space::Host).layout);
}

namespace {
class Planner {
public:
  Planner(TransferPlan &plan, const TensorDesc &given, const TensorDesc &wanted, const StitchOptions &options,
          bool isDiskBelowHost)
      : plan_(plan), given_(given), wanted_(wanted), options_(options), isDiskBelowHost_(isDiskBelowHost),
        now_(&given_) {
    plan_.steps.reserve(3); // `now_` points into it
  }

  void withinOneMemory(bool unified) {
    bool onHost = isHostSpace(given_.layout.space) && isHostSpace(wanted_.layout.space);
    if (onHost && !unified)
      hostRelayout(Queue::HostToDevice, wanted_);
    else
      relayout(TransferStep::Kind::DeviceRelayout, Queue::Compute, wanted_);
    (onHost ? plan_.hostBytes : plan_.d2dBytes) += plan_.steps.back().bytes;
  }

  void hostToDevice() {
    // At equal size the device converts: the forms of the given tensor come first.
    TensorDesc wire = smallest({given_, dense(given_), wanted_, dense(wanted_)});
    bool staged = given_.layout.space == Space::Host;
    if (!sameBytes(wire, given_)) {
      hostRelayout(Queue::HostToDevice, placed(wire, hostSpaceFor(wire)));
      plan_.hostBytes += plan_.steps.back().bytes;
    }
    bool arrived = sameBytes(wire, wanted_) && wanted_.layout.space == Space::DeviceDram;
    link(Queue::HostToDevice, arrived ? wanted_ : placed(wire, Space::DeviceDram), now_->layout.space);
    if (!arrived) {
      relayout(TransferStep::Kind::DeviceRelayout, Queue::Compute, wanted_);
      plan_.d2dBytes += plan_.steps.back().bytes;
    }
    plan_.bounces = uint32_t(staged) + uint32_t(wanted_.layout.space == Space::DeviceL1);
  }

  void deviceToHost() {
    TensorDesc wire = smallest({wanted_, dense(wanted_), given_, dense(given_)});
    bool staged = wanted_.layout.space == Space::Host;
    if (!sameBytes(wire, given_) || given_.layout.space == Space::DeviceL1) {
      relayout(TransferStep::Kind::DeviceRelayout, Queue::Compute, placed(wire, Space::DeviceDram));
      plan_.d2dBytes += plan_.steps.back().bytes;
    }
    bool arrived = sameBytes(wire, wanted_);
    TensorDesc landing = arrived ? wanted_ : placed(wire, hostSpaceFor(wire));
    link(Queue::DeviceToHost, landing, landing.layout.space);
    if (!arrived) {
      hostRelayout(Queue::DeviceToHost, wanted_);
      plan_.hostBytes += plan_.steps.back().bytes;
    }
    plan_.bounces = uint32_t(staged) + uint32_t(given_.layout.space == Space::DeviceL1);
  }

private:
  static const TensorDesc &smaller(const TensorDesc &a, const TensorDesc &b) {
    return b.spanBytes() < a.spanBytes() ? b : a;
  }

  static TensorDesc smallest(const std::array<TensorDesc, 4> &candidates) {
    const TensorDesc *best = &candidates[0];
    for (const TensorDesc &candidate : candidates)
      best = &smaller(*best, candidate);
    return *best;
  }

  /// Returns pinned memory, and then without staging, if it takes no more than staging
  /// would.
  Space hostSpaceFor(const TensorDesc &wire) const {
    return wire.spanBytes() <= options_.stagingChunkBytes * options_.stagingBuffers ? Space::HostPinned : Space::Host;
  }

  /// On `queue`, or that of the disk which it reads or writes.
  void hostRelayout(Queue queue, TensorDesc target) {
    bool reads = isDiskBelowHost_ && now_->layout.space == Space::Disk;
    bool writes = isDiskBelowHost_ && target.layout.space == Space::Disk;
    (reads ? plan_.diskReadBytes : plan_.diskWriteBytes) += reads || writes ? target.spanBytes() : 0;
    relayout(TransferStep::Kind::HostRelayout, reads ? Queue::DiskRead : writes ? Queue::DiskWrite : queue,
             std::move(target));
  }

  void append(TransferStep step) {
    plan_.steps.push_back(std::move(step));
    now_ = &plan_.steps.back().target;
  }

  void relayout(TransferStep::Kind kind, Queue queue, TensorDesc target) {
    TransferStep step;
    step.kind = kind;
    step.queue = queue;
    step.from = now_->layout.space;
    step.bytes = target.spanBytes();
    // A view that repeats elements comes as it is, out of L1: few bytes, which nobody may write by index.
    bool repeats = !isInjective(target.shape, target.layout);
    step.relayout = repeats ? std::make_shared<const CopyPlan>(rawBytes(*now_), rawBytes(target))
                            : std::make_shared<const CopyPlan>(*now_, target);
    step.target = std::move(target);
    append(std::move(step));
  }

  void link(Queue queue, TensorDesc target, Space hostSpace) {
    TransferStep step;
    step.kind = TransferStep::Kind::Link;
    step.queue = queue;
    step.from = now_->layout.space;
    step.bytes = target.spanBytes();
    step.staged = hostSpace == Space::Host;
    step.passesHost = isDiskBelowHost_ && hostSpace == Space::Disk;
    if (step.passesHost)
      (queue == Queue::HostToDevice ? plan_.diskReadBytes : plan_.diskWriteBytes) += step.bytes;
    (queue == Queue::HostToDevice ? plan_.h2dBytes : plan_.d2hBytes) += step.bytes;
    if (step.staged)
      plan_.hostBytes += step.bytes;
    step.target = std::move(target);
    append(std::move(step));
  }

  TransferPlan &plan_;
  const TensorDesc &given_, &wanted_;
  const StitchOptions &options_;
  bool isDiskBelowHost_;
  /// The tensor after the steps so far.
  const TensorDesc *now_;
};
} // namespace

TransferPlan planTransfer(const TensorDesc &given, const TensorDesc &wanted, const Device &device,
                          const StitchOptions &options, bool forced) {
  if (given.shape != wanted.shape)
    throw Error(ErrorCode::LayoutMismatch,
                "toLayout: " + given.str() + " given, " + wanted.str() + " wanted; a layout never changes the shape");
  wanted.validate();
  if (!device.hasSpace(wanted.layout.space))
    throw Error(ErrorCode::Unsupported, "toLayout: " + wanted.str() + " wanted, but device \"" + device.name() +
                                            "\" has no space " + std::string(name(wanted.layout.space)) +
                                            "; choose another space or device");
  if (!isInjective(wanted.shape, wanted.layout))
    throw Error(ErrorCode::InvalidArgument, "toLayout: " + wanted.str() + " puts two elements in one place");

  bool unified = device.hasUnifiedMemory();
  TransferPlan plan;
  plan.elided =
      !forced && given.element == wanted.element && satisfies(given.shape, given.layout, wanted.layout, unified);
  plan.lossy = !isLossless(given, wanted);
  if (plan.elided || wanted.elementCount() == 0)
    return plan;

  Planner planner(plan, given, wanted, options, device.diskLink().has_value());
  bool fromHost = isHostSpace(given.layout.space), toHost = isHostSpace(wanted.layout.space);
  if (unified || fromHost == toHost)
    planner.withinOneMemory(unified);
  else if (fromHost)
    planner.hostToDevice();
  else
    planner.deviceToHost();

  // Zero points that come along only to be used up on the device need not, if
  // they are all zero; whether they are shows when the host looks at them.
  if (!unified && fromHost && !toHost && given.layout.zeroPoints && !wanted.layout.zeroPoints &&
      plan.steps.front().kind == TransferStep::Kind::Link) {
    TensorDesc without = given;
    without.layout.zeroPoints = false;
    plan.withoutZeroPoints = std::make_shared<const TransferPlan>(planTransfer(without, wanted, device, options, true));
  }
  return plan;
}

} // namespace segue::inline runtime
