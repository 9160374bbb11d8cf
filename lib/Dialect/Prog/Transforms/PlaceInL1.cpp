//===- PlaceInL1.cpp - prog-place-in-l1 -----------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Temporaries are ranked by what L1 saves for each byte that they hold there, and
// for how long; one after another goes, as long as the arena of those that went,
// packed as prog-plan-memory will, is no larger than L1 allows.
//
//===----------------------------------------------------------------------===//

#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "segue/Dialect/Prog/Transforms/ArenaPacking.h"
#include "segue/Dialect/Prog/Transforms/LayoutCosts.h"
#include "segue/Dialect/Prog/Transforms/Passes.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/Support/DebugLog.h"

namespace segue::prog {
#define GEN_PASS_DEF_PROGPLACEINL1
#include "segue/Dialect/Prog/Transforms/Passes.h.inc"
} // namespace segue::prog

#define DEBUG_TYPE "prog-place-in-l1"

using namespace mlir;
using namespace segue::prog;
using segue::Space;

namespace {
/// A temporary in device_dram, when it is needed, and what its commands move.
struct Temporary {
  AllocOp alloc;
  Lifetime life;
  uint64_t movedBytes = 0;
  bool isUsed = false;

  uint64_t saved() const { return segue::layout_costs::kSavedPerByteInL1 * movedBytes; }
  /// Returns its share of L1: bytes times commands.
  double taken() const { return double(life.bytes) * double(life.last - life.first + 1); }
};

struct PlaceInL1 : segue::prog::impl::ProgPlaceInL1Base<PlaceInL1> {
  using ProgPlaceInL1Base::ProgPlaceInL1Base;

  void runOnOperation() override {
    SmallVector<Temporary> ranked = temporariesOf(getOperation());
    llvm::erase_if(ranked, [&](const Temporary &each) { return !each.isUsed || each.life.bytes > l1Bytes; });
    llvm::stable_sort(ranked, [](const Temporary &a, const Temporary &b) {
      return double(a.saved()) * b.taken() > double(b.saved()) * a.taken();
    });
    SmallVector<Lifetime> chosen;
    for (const Temporary &each : ranked) {
      chosen.push_back(each.life);
      bool fits = pack(chosen, kAlignment).bytes <= l1Bytes;
      LDBG() << "a temporary of " << each.life.bytes << " bytes, commands " << each.life.first << " to "
             << each.life.last << ", " << each.saved() << " bytes saved: " << (fits ? "in L1" : "no room");
      if (!fits) {
        chosen.pop_back();
        continue;
      }
      move(each.alloc);
      ++placed;
      savedBytes += each.saved();
    }
  }

private:
  static SmallVector<Temporary> temporariesOf(ProgramOp program) {
    llvm::MapVector<Operation *, Temporary> temporaries;
    for (auto alloc : program.getBlock().getOps<AllocOp>())
      if (spaceOf(alloc.getType()) == Space::DeviceDram && !alloc.getOffset())
        temporaries[alloc] = {alloc, {static_cast<uint64_t>(alloc.getType().getNumElements()), 0, 0}};
    uint32_t time = 0;
    program.walk<WalkOrder::PreOrder>([&](Operation *op) {
      if (op->getNumRegions() || isa<ViewOp, AllocOp, ConstantOp>(op))
        return;
      for (Value operand : op->getOperands()) {
        auto view = operand.getDefiningOp<ViewOp>();
        auto found = temporaries.find((view ? view.getSource() : operand).getDefiningOp());
        if (found == temporaries.end())
          continue;
        Temporary &temporary = found->second;
        temporary.life.first = temporary.isUsed ? temporary.life.first : time;
        temporary.life.last = time;
        temporary.isUsed = true;
        auto type = cast<MemRefType>(operand.getType());
        temporary.movedBytes += type.getNumElements() * segue::elementBytes(type.getElementType()).value_or(1);
      }
      ++time;
    });
    return llvm::map_to_vector(temporaries, [](auto &entry) { return entry.second; });
  }

  static void move(AllocOp alloc) {
    Attribute l1 = spaceAttr(alloc.getContext(), Space::DeviceL1);
    auto moved = [&](Value value) {
      auto type = cast<MemRefType>(value.getType());
      value.setType(MemRefType::get(type.getShape(), type.getElementType(), type.getLayout(), l1));
    };
    moved(alloc.getResult());
    for (Operation *user : alloc->getUsers())
      if (auto view = dyn_cast<ViewOp>(user))
        moved(view.getResult());
  }
};
} // namespace
