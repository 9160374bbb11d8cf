//===- FakeOrder.cpp - waits that a fake GPU misses -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "FakeGpu.h"
#include <algorithm>

namespace fakecuda {

/// More would hide the first.
static constexpr size_t mostMisdeedBytes = 4000;

static void join(Clock &clock, const Clock &other) {
  for (const auto &[stream, position] : other)
    clock[stream] = std::max(clock[stream], position);
}

static bool comesBefore(const PendingAccess &access, const Clock &clock) {
  auto found = clock.find(access.stream);
  return found != clock.end() && found->second >= access.position;
}

static bool conflict(const Access &a, const Access &b) {
  using enum Access::Kind;
  if (a.kind != Writes && b.kind != Writes)
    return false;
  return a.address < b.address + b.bytes && b.address < a.address + a.bytes;
}

static const char *verb(const Access &access) {
  return access.kind == Access::Kind::Reads ? " reads" : access.kind == Access::Kind::Writes ? " writes" : " was given";
}

void orderOperation(Stream &stream, const char *call, const std::vector<Access> &accesses) {
  Device &device = *stream.device;
  std::erase_if(device.pending, [&](const PendingAccess &access) { return comesBefore(access, device.seen); });
  for (const Access &access : accesses) {
    if (!access.bytes)
      continue;
    for (const PendingAccess &other : device.pending)
      if (other.stream != &stream && conflict(access, other.access) && !comesBefore(other, stream.clock) &&
          misdeeds.size() < mostMisdeedBytes)
        misdeeds += std::string(call) + verb(access) + " what " + other.call + " of another stream" +
                    verb(other.access) + ", and neither waits for the other\n";
    device.pending.push_back({&stream, stream.given + 1, call, access});
  }
}

Clock orderOf(const Stream &stream) {
  Clock clock = stream.clock;
  clock[&stream] = stream.given;
  return clock;
}

void orderRecord(Stream &stream, Event &event) { event.clock = orderOf(stream); }

void orderWait(Stream &stream, const Event &event) { join(stream.clock, event.clock); }

void orderSeen(Device &device, const Clock &before) { join(device.seen, before); }

} // namespace fakecuda
