//===- MessageWork.cpp - what all messages to ranks have in common --------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "MessageWork.h"
#include "segue/runtime/Collectives/Transport.h"
#include "segue/runtime/Transfer/TransferEngine.h"

namespace segue::inline runtime {

void requireMessage(const DeviceRef &device, std::string_view what, const Tensor &tensor, bool isSum) {
  if (!tensor || tensor.device() != device)
    throw Error(ErrorCode::InvalidArgument, std::string(what) + ": a tensor is null, or of another device");
  if (!tensor.desc().isDense() || (isSum && tensor.element() != ElementType::f32))
    throw Error(ErrorCode::LayoutMismatch, std::string(what) + ": a tensor is " + tensor.desc().str() +
                                               ", and has to be dense" + (isSum ? " and of f32" : ""));
}

void requireRank(int rank, int ranks) {
  if (rank < 0 || rank >= ranks)
    throw Error(ErrorCode::InvalidArgument,
                "there is no rank " + std::to_string(rank) + "; there are " + std::to_string(ranks));
}

void requireParts(const Tensor &whole, const Tensor &part, int ranks) {
  if (whole.element() != part.element() || whole.elementCount() != part.elementCount() * uint64_t(ranks))
    throw Error(ErrorCode::LayoutMismatch, "the part of a rank is " + part.desc().str() + ", and the whole of " +
                                               std::to_string(ranks) + " is " + whole.desc().str());
}

Error notThere(int rank) {
  return Error(ErrorCode::RankFailed,
               "rank " + std::to_string(rank) + " has not what it was to send: it was never written",
               std::make_shared<NotSent>(rank));
}

void traceMessage(Device &device, Work &work, uint64_t bytes, std::string_view about) {
  if (!device.transfer().tracesCopies())
    return;
  auto record = std::make_shared<CopyRecord>();
  record->hop = work.label;
  record->about = about;
  record->bytes = bytes;
  record->queue = name(Queue::Network);
  auto begin = std::make_shared<Timestamp>(), end = std::make_shared<Timestamp>();
  work.run = [&device, run = std::move(work.run), begin, end] {
    device.stamp(begin);
    run();
    device.stamp(end);
  };
  work.ended = [ended = std::move(work.ended), record, begin, end](const Error *error) {
    if (begin->isKnown()) { // a message that has failed has no end
      record->begin = begin->seconds();
      record->seconds = end->isKnown() ? end->seconds() - begin->seconds() : 0;
    }
    if (ended)
      ended(error);
  };
  device.transfer().addToTrace(std::move(record));
}

std::string Transport::missed(std::string_view what) {
  std::string why = std::string(what) + " did not end within " + std::to_string(timeoutSeconds()) +
                    " s: another rank has died, hangs, or is at something else";
  abandon(why);
  return why;
}

} // namespace segue::inline runtime
