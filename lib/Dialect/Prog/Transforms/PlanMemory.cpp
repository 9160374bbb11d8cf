//===- PlanMemory.cpp - prog-plan-memory ----------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "segue/Dialect/Prog/Transforms/ArenaPacking.h"
#include "segue/Dialect/Prog/Transforms/Passes.h"
#include "llvm/ADT/MapVector.h"

namespace segue::prog {
#define GEN_PASS_DEF_PROGPLANMEMORY
#include "segue/Dialect/Prog/Transforms/Passes.h.inc"
} // namespace segue::prog

using namespace mlir;
using namespace segue::prog;
using segue::Space;

/// The alloc that `value` is or looks into, or null.
static AllocOp allocOf(Value value) {
  if (auto view = value.getDefiningOp<ViewOp>())
    value = view.getSource();
  return value.getDefiningOp<AllocOp>();
}

namespace {
/// The temporaries that share a place, and the time in which they are needed.
struct Place {
  Lifetime life;
  Space space;
  bool used = false;
};

/// The lifetimes of all temporaries of a program, in their order.
class Lifetimes {
public:
  explicit Lifetimes(ProgramOp program) {
    for (auto alloc : program.getBlock().getOps<AllocOp>()) {
      placeOf.insert({alloc, places.size()});
      places.push_back({{static_cast<uint64_t>(alloc.getType().getNumElements()), 0, 0}, spaceOf(alloc.getType())});
    }
    uint32_t time = 0;
    program.walk<WalkOrder::PreOrder>([&](Operation *op) {
      if (op->getNumRegions() || isa<ViewOp, AllocOp, ConstantOp>(op))
        return;
      for (Value operand : op->getOperands())
        if (AllocOp alloc = allocOf(operand))
          use(places[placeOf[alloc]].life, places[placeOf[alloc]].used, time);
      if (auto launch = dyn_cast<LaunchOp>(op))
        launches.push_back({launch, time});
      ++time;
    });
    shareInPlace();
  }

  /// The temporaries and, per one, its entry in `places`.
  llvm::MapVector<AllocOp, unsigned> placeOf;
  SmallVector<Place> places;
  unsigned shared = 0;

private:
  static void use(Lifetime &life, bool &used, uint32_t time) {
    if (!std::exchange(used, true))
      life.first = time;
    life.last = time;
  }

  /// Lets an output take the place of an input that dies in the same launch.
  void shareInPlace() {
    for (auto [launch, time] : launches) {
      ArrayRef<int64_t> pairs = launch.getInPlace().value_or(ArrayRef<int64_t>());
      for (size_t i = 0; i < pairs.size(); i += 2)
        share(launch, time, pairs, pairs[i], pairs[i + 1]);
    }
  }

  void share(LaunchOp launch, uint32_t time, ArrayRef<int64_t> pairs, int64_t input, int64_t output) {
    AllocOp from = allocOf(launch.getArgs()[input]), to = allocOf(launch.getArgs()[output]);
    if (!from || !to || from == to || from.getType() != to.getType())
      return;
    unsigned source = placeOf[from], target = placeOf[to];
    if (source == target || places[source].life.last != time || places[target].life.first != time)
      return;
    // Wherever the launch sees either buffer, it must be as this pair.
    for (auto [i, arg] : llvm::enumerate(launch.getArgs())) {
      AllocOp alloc = allocOf(arg);
      if (!alloc || (placeOf[alloc] != source && placeOf[alloc] != target))
        continue;
      if (launch.getOffsets() && (*launch.getOffsets())[i] != 0)
        return;
      if (static_cast<int64_t>(i) == output)
        continue;
      bool listed = false;
      for (size_t pair = 0; pair < pairs.size(); pair += 2)
        listed |= pairs[pair] == static_cast<int64_t>(i) && pairs[pair + 1] == output;
      if (!listed)
        return;
    }
    places[source].life.last = places[target].life.last;
    places[target].used = false;
    // A temporary is written whole by one launch: no other shares its place yet.
    placeOf[to] = source;
    ++shared;
  }

  SmallVector<std::pair<LaunchOp, uint32_t>> launches;
};

struct PlanMemoryPass : segue::prog::impl::ProgPlanMemoryBase<PlanMemoryPass> {
  void runOnOperation() override {
    ProgramOp program = getOperation();
    Lifetimes lifetimes(program);
    Builder builder(&getContext());

    SmallVector<uint64_t> offsets(lifetimes.places.size(), 0);
    SmallVector<Attribute> arenas;
    for (Space space : {Space::Host, Space::HostPinned, Space::DeviceDram, Space::DeviceL1}) {
      SmallVector<Lifetime> lives;
      SmallVector<unsigned> members;
      for (auto [i, place] : llvm::enumerate(lifetimes.places))
        if (place.used && place.space == space) {
          lives.push_back(place.life);
          members.push_back(i);
        }
      bool present =
          llvm::any_of(lifetimes.placeOf, [&](auto &entry) { return spaceOf(entry.first.getType()) == space; });
      if (!present)
        continue;
      uint64_t bound = lowerBound(lives, kAlignment);
      Packing packing = pack(lives, kAlignment);
      for (auto [i, offset] : llvm::zip_equal(members, packing.offsets))
        offsets[i] = offset;
      // Temporaries that no command uses lie at 0, and need room there.
      for (auto &[alloc, place] : lifetimes.placeOf)
        if (!lifetimes.places[place].used && spaceOf(alloc.getType()) == space)
          packing.bytes = std::max<uint64_t>(packing.bytes, lifetimes.places[place].life.bytes);
      arenas.push_back(ArenaAttr::get(&getContext(), space, packing.bytes, bound, kAlignment));
      arenaBytes += packing.bytes;
      lowerBoundBytes += bound;
      if (bound)
        worstPermille.updateMax(packing.bytes * 1000 / bound);
    }

    for (auto &[alloc, place] : lifetimes.placeOf)
      alloc.setOffsetAttr(builder.getIntegerAttr(builder.getIntegerType(64, false), APInt(64, offsets[place])));
    program.setArenasAttr(arenas.empty() ? ArrayAttr() : builder.getArrayAttr(arenas));
    program.walk([](LaunchOp launch) { launch.removeInPlaceAttr(); });
    temporaries += lifetimes.placeOf.size();
    inPlace += lifetimes.shared;
  }
};
} // namespace
