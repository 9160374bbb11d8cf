//===- Item.h - bytes that may be away --------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An item is a set of bytes that may lie somewhere else than where programs
// compute with it: a saved tensor, a parameter, a gradient, a state of an
// optimizer, or a block of weights that travel together. It has at most one copy per
// tier. Each copy goes through one state
// machine, whose transitions are checked in every build:
//
//            fetch, leave              its work is done
//   Absent ---------------> Coming ----------------------> Present
//     ^                        |  the copy failed           |   ^
//     |<-----------------------+                     leave  |   | needed again,
//     |                                                     v   | or the copy failed
//     +------------------------------------------------- Leaving
//              the copy in the tier below is known to be whole
//
// A version says which value a copy holds. The item's truth is a copy that is
// whole (Present or Leaving) and has the newest version; Item::enter refuses the
// transition that would leave an item without one.
//
// One thread, that submits.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_RESIDENCY_ITEM_H
#define SEGUE_RUNTIME_RESIDENCY_ITEM_H

#include "segue/runtime/Residency/ItemSource.h"
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace segue::inline runtime {

class TransferChecksum;

/// The place of a copy. The tier that programs compute in comes first.
enum class Tier : uint8_t { Device, Host };
inline constexpr std::array tierNames{std::string_view("device"), std::string_view("host")};
std::string_view name(Tier tier);

enum class CopyState : uint8_t { Absent, Coming, Present, Leaving };
std::string_view name(CopyState state);

/// Returns true if the state machine has a transition from `now` to `next`.
bool canFollow(CopyState now, CopyState next);

/// The lifetime of an item: it lives to the end of the step at most, or as long as somebody
/// holds its home.
enum class ItemLifetime : uint8_t { Step, Session };

/// The copy of an item in one tier. A tier of the host keeps its memory while the
/// state is Absent: it is the home that a later copy comes to.
struct ItemCopy {
  CopyState state = CopyState::Absent;
  /// The memory of the copy; null for the home of an item with a source.
  Tensor tensor;
  /// The value that `tensor` holds, or will hold once it has come.
  uint64_t version = 0;

  /// Returns true if the bytes are there for work that waits for the tensor's fence.
  bool isWhole() const { return state == CopyState::Present || state == CopyState::Leaving; }
  bool exists() const { return state != CopyState::Absent; }
};

class Item {
public:
  using Id = uint64_t;

  Item(Id id, std::string name, ItemLifetime lifetime) : id(id), name(std::move(name)), lifetime(lifetime) {}

  const Id id;
  /// Names the tensor in errors and warnings.
  const std::string name;
  const ItemLifetime lifetime;
  /// The layout in which programs read it. Null for an item with a source before its first
  /// fetch.
  std::shared_ptr<const TensorDesc> onDevice;
  OwnerId owner = 0;

  const ItemCopy &device() const { return at(Tier::Device); }
  const ItemCopy &host() const { return at(Tier::Host); }
  const ItemCopy &at(Tier tier) const { return copies_[size_t(tier)]; }

  /// Returns true if the copy of `tier` is not whole or holds another version than the newest.
  bool isStale(Tier tier) const { return !at(tier).isWhole() || at(tier).version != version_; }
  /// Returns true if another tier than `tier` has the newest value.
  bool isBeside(Tier tier) const;
  /// Returns true if it was needed while it left, and stayed, and nothing has come over the link for it since.
  bool isRescued() const { return isRescued_; }
  /// Returns true if a copy of it is under way.
  bool isMoving() const { return device().state == CopyState::Coming || device().state == CopyState::Leaving; }
  /// Returns true if its last copy to the host failed, so that the device's copy stayed.
  bool isKept() const { return isKept_; }
  uint64_t version() const { return version_; }

  /// Makes a transition of the copy in `tier`, for the verbs of Residency. Throws
  /// StateTransition, with nothing changed, where the machine has none, or where the
  /// item would lose its last truth.
  void enter(Tier tier, CopyState next);
  /// Makes `tensor` the copy of `tier`, which holds the newest value from now on.
  void put(Tier tier, Tensor tensor, CopyState state);
  /// Notes that queued work is about to write the device's copy. Throws StateTransition
  /// where there is none.
  void write();

private:
  friend class Residency;

  ItemCopy &copy(Tier tier) { return copies_[size_t(tier)]; }

  std::array<ItemCopy, tierNames.size()> copies_;
  /// The home, if it is no tensor; the fence of the last copies to it, and the version that
  /// it last held whole.
  ItemSource *source_ = nullptr;
  Fence saved_;
  uint64_t savedVersion_ = 1;
  uint64_t version_ = 1;
  /// True if it was asked for while its copy on the device was Leaving.
  bool stays_ = false;
  bool isRescued_ = false;
  bool isKept_ = false;
  /// True if the ends of its copies are reported to whoever made them.
  bool isReported_ = false;
  /// The hash of what went to the host last; null if copies are not checked.
  std::shared_ptr<TransferChecksum> checksum_;
  /// The outcome of the program that wrote the value which is on its way to the host.
  std::shared_ptr<Outcome> program_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_RESIDENCY_ITEM_H
