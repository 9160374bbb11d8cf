//===- StateStagehand.h - states leave under pressure -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Decides which gradients and optimizer states leave the device, and when they return, in a
// session without a plan: what is needed last leaves first. A policy: events in,
// decisions out, no clock and no device. The rules are in
// docs/specs/state-stagehand.md.
//
//   using Kind = StateEvent::Kind;
//   StateStagehand policy({.highBytes = high, .lowBytes = low, .windowBlocks = 2});
//   policy.tell({.kind = Kind::StepBegin, .number = 1});
//   policy.tell({.kind = Kind::Know, .id = "w0.grad", .bytes = 4096, .isOnDevice = true});
//   for (const std::string &id : policy.tell({.kind = Kind::Pressure, .bytes = 65536}).leaves) ...
//   policy.tell({.kind = Kind::Program});
//   policy.tell({.kind = Kind::Block, .first = {"w0.grad", "w0.m"}, .last = {"w0.grad", "w0.m"}});
//   for (const std::string &id : policy.tell({.kind = Kind::BlockBegin, .number = 0, .usedBytes = used}).fetches) ...
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_STATESTAGEHAND_H
#define SEGUE_RUNTIME_SERVICES_STATESTAGEHAND_H

#include "segue/runtime/Json.h"
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace segue::inline runtime {

struct StateLimits {
  /// The watermarks, in bytes of all that the device's allocator has allocated.
  int64_t highBytes = std::numeric_limits<int64_t>::max(), lowBytes = 0;
  int64_t windowBlocks = 2;
};

/// Something that happens. The kind says which fields are used.
struct StateEvent {
  enum class Kind : uint8_t {
    /// A step begins, whose number is `number`.
    StepBegin,
    /// A program of the optimizer begins. Block follows for each of its blocks, with the
    /// items that it is the first to touch, and the last.
    Program,
    Block,
    /// The item `id` of `bytes` is new, or is there again.
    Know,
    /// Nobody reads the item any more: a gradient was used up, or becomes part of a sum.
    Forget,
    /// `usedBytes` are in use. Items leave if that is too much, or if they had to leave
    /// before.
    Watch,
    /// Block `number` of the program begins, or ends.
    BlockBegin,
    BlockEnd,
    /// A block touches the item, which is on the device then.
    Need,
    /// `bytes` of the device are missing.
    Pressure,
    /// An item that was to leave has left, or stays; one that was to come did not.
    Left,
    Stayed,
    Denied,
    AbortStep,
    StepEnd
  };

  Kind kind = Kind::Watch;
  std::string id = {};
  int64_t number = 0, bytes = 0, usedBytes = 0;
  /// Fields of Know. An item that is no state is a gradient.
  bool isState = false, isOnDevice = false;
  std::vector<std::string> first = {}, last = {};
};

class StateStagehand {
public:
  explicit StateStagehand(StateLimits limits) : limits_(limits) {}

  struct Moves {
    /// The ids of items in the order in which they are to go.
    std::vector<std::string> leaves = {}, fetches = {};
    /// True if the step has ended, so that its record is there.
    bool hasEnded = false;
  };

  /// Takes an event and returns what is to move. Throws StateTransition for an item, and InvalidArgument for a block,
  /// that is not known.
  Moves tell(const StateEvent &event);

  /// Returns the record of the last step, as its line of telemetry has it.
  Json telemetry() const;

private:
  enum class Where { Nowhere, Host, Device, Leaving };
  struct Known {
    int64_t bytes = 0;
    bool isState = false;
    Where where = Where::Nowhere;
    bool isInUse = false;
    /// True if it had to leave once: from then on it leaves as soon as it can.
    bool isDisplaced = false;
    /// True if its copy failed in this step.
    bool isKept = false;
    /// For a state, its place in the last program that read it; for a gradient, how many
    /// were made before it.
    int64_t place = 0;
    /// The block of the current program that needs it first, or -1.
    int64_t block = -1;
  };
  struct Block {
    std::vector<std::string> first, last;
  };
  struct Figures {
    int64_t step = 0, left = 0, leftBytes = 0, fetchedAhead = 0, fetchedLate = 0, rescued = 0, kept = 0;
    bool isAborted = false;
  };

  using Items = std::map<std::string, Known>;

  Known &find(const std::string &id);
  void beginStep(int64_t step);
  void forgetProgram();
  void addBlock(const StateEvent &event);
  void know(const StateEvent &event);
  void forget(Known &item);
  void need(Known &item);
  void stay(Known &item);
  Moves watch(int64_t usedBytes);
  Moves endBlock(int64_t index, int64_t usedBytes);
  Moves makeRoom(int64_t bytes);
  Items::iterator last(bool laterOnly);
  void leave(Items::iterator item, Moves &moves);
  void fetchAhead(int64_t from, int64_t usedBytes, Moves &moves);

  StateLimits limits_;
  Items items_;
  std::vector<Block> blocks_;
  /// The index of the block that is open, or was last.
  int64_t position_ = -1;
  int64_t made_ = 0, leavingBytes_ = 0;
  Figures figures_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_STATESTAGEHAND_H
