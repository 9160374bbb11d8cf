//===- ChooseLayouts.cpp - segue-choose-layouts ---------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A seam is a tensor that one program of a binary writes and another reads. Where
// nobody asked for its layout, each order of its dimensions, and each layout that
// an end of it was given, is priced over all programs, as commands will read and
// write it, through the views between; the cheapest is declared, dense rows where
// nothing is gained. What a layout is worth is AccessCosts' to say.
//
//===----------------------------------------------------------------------===//

#include "AccessCosts.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "segue/Conversion/SegueToProg/SegueToProg.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/DebugLog.h"

namespace segue {
#define GEN_PASS_DEF_SEGUECHOOSELAYOUTS
#include "segue/Conversion/SegueToProg/Passes.h.inc"
} // namespace segue

#define DEBUG_TYPE "segue-choose-layouts"

using namespace mlir;
using namespace segue;

namespace {
/// An argument or result of a function.
struct Place {
  func::FuncOp function;
  unsigned index = 0;
  bool isResult = false;
  /// The layout that source or hint asked for; null if nobody did.
  LayoutAttr given;

  Attribute get(StringRef attr) const {
    func::FuncOp f = function;
    return isResult ? f.getResultAttr(index, attr) : f.getArgAttr(index, attr);
  }
  Value value() const {
    func::FuncOp f = function;
    return isResult ? f.getBody().front().getTerminator()->getOperand(index) : Value(f.getArgument(index));
  }
};

/// All places of one tensor that passes between programs.
struct Seam {
  RankedTensorType type;
  SmallVector<Place> writers, readers;
  /// False where a place must lie in another value, or types differ.
  bool isFree = true;
  /// True if code that is not compiled here reads it too, in dense rows.
  bool isReadElsewhere = false;

  bool hasOpenEnd() const {
    return llvm::any_of(llvm::concat<const Place>(writers, readers), [](const Place &p) { return !p.given; });
  }
};

/// A layout that a seam may have.
struct Candidate {
  LayoutAttr layout;
  uint64_t cost = 0;
};

struct ChooseLayouts : segue::impl::SegueChooseLayoutsBase<ChooseLayouts> {
  using SegueChooseLayoutsBase::SegueChooseLayoutsBase;

  void runOnOperation() override {
    for (auto &[key, seam] : collect())
      if (seam.isFree && !seam.writers.empty() && !seam.readers.empty() && seam.hasOpenEnd() && seam.type.getRank() > 1)
        choose(key.getValue(), seam);
  }

private:
  /// The seams by kind and name. An argument that the caller gives is no seam, even where a
  /// result of the same function has its name.
  llvm::MapVector<StringAttr, Seam> collect() {
    llvm::MapVector<StringAttr, Seam> seams;
    for (auto function : getOperation().getOps<func::FuncOp>()) {
      if (function.isExternal() || !function.getBody().hasOneBlock())
        continue;
      llvm::StringSet<> taken;
      for (bool isResult : {false, true})
        for (auto [i, type] : llvm::enumerate(isResult ? function.getResultTypes() : function.getArgumentTypes()))
          add(seams, {function, static_cast<unsigned>(i), isResult, {}}, type, taken);
    }
    return seams;
  }

  /// Adds a place to its seam. `taken` are the inputs of the function by name.
  void add(llvm::MapVector<StringAttr, Seam> &seams, Place place, Type type, llvm::StringSet<> &taken) {
    auto role = dyn_cast_if_present<RoleAttr>(place.get(SegueDialect::kRoleAttr));
    auto name = dyn_cast_if_present<StringAttr>(place.get(SegueDialect::kNameAttr));
    auto tensor = dyn_cast<RankedTensorType>(type);
    if (!role || !name || !tensor)
      return;
    bool isBackward = place.function.getName() == SegueDialect::kBackward;
    StringRef kind = llvm::StringSwitch<StringRef>(stringifyRole(role.getValue()))
                         .Case("saved", "saved")
                         // The gradient that comes in is another one than that which goes out.
                         .Case("gradient", isBackward && !place.isResult ? "" : "gradient")
                         .Cases({"input", "output"}, "value")
                         .Default("");
    if (role.getValue() == Role::Input)
      taken.insert(name.getValue());
    if (kind.empty() || (role.getValue() == Role::Output && taken.contains(name.getValue())))
      return;
    Seam &seam = seams[StringAttr::get(&getContext(), kind + " " + name.getValue())];
    place.given = dyn_cast_if_present<LayoutAttr>(place.get(SegueDialect::kLayoutAttr));
    seam.isFree &= (!seam.type || seam.type == tensor) && tensor.hasStaticShape() && !tensor.getEncoding() &&
                   !(place.isResult && place.get("segue.alias"));
    seam.type = tensor;
    // Micro-batches are summed by the runtime; what @forward makes is its caller's.
    seam.isReadElsewhere |= kind == "gradient" || (role.getValue() == Role::Output &&
                                                   place.function.getName() == SegueDialect::kForward);
    (place.isResult ? seam.writers : seam.readers).push_back(place);
  }

  /// Returns what all programs pay for the open ends in `layout`, and the runtime between
  /// ends that disagree.
  static uint64_t costOf(const Seam &seam, LayoutAttr layout) {
    ArrayRef<int64_t> shape = seam.type.getShape();
    bool isStrided = layout.isStrided();
    Window window = Window::dense({}, shape, seam.type.getElementType());
    uint64_t conversion = conversionOf(window), cost = 0;
    if (isStrided)
      window.strides = SmallVector<int64_t>(layout.getStridesFor(shape));
    AccessCosts costs;
    bool isWritten = false;
    for (const Place &place : seam.writers)
      if (place.given == layout || !place.given) {
        isWritten = true;
        if (!place.given)
          cost += isStrided ? costs.write(place.value(), window) : costs.writeTiles(place.value());
      }
    for (const Place &place : seam.readers) {
      if (place.given && place.given != layout)
        cost += conversion;
      if (place.given)
        continue;
      cost += isStrided ? costs.read(place.value(), window)
                        : conversion + costs.read(place.value(), denseWindow(place.value()));
      cost += isWritten ? 0 : conversion;
    }
    bool isRows = isStrided && window.isDense();
    return cost + (seam.isReadElsewhere && !isRows ? conversion : 0);
  }

  /// Returns true if commands, or a copy, can write the layout without loss.
  bool isCandidate(const Seam &seam, LayoutAttr layout) {
    return layout.getSpace() == Space::DeviceDram && !layout.isQuantized() &&
           layout.isInjective(seam.type.getShape()) && layout.getAlignment() == kDefaultAlignment;
  }

  LayoutAttr layoutOf(const Seam &seam, ArrayRef<int64_t> strides) {
    return LayoutAttr::get(&getContext(), Space::DeviceDram, strides, {}, Storage::Element, /*zeroPoints=*/false,
                           kDefaultAlignment)
        .getCanonical(seam.type.getShape());
  }

  void choose(StringRef key, Seam &seam) {
    ++considered;
    LayoutAttr rows = layoutOf(seam, {});
    for (Place &place : llvm::concat<Place>(seam.writers, seam.readers))
      if (place.given)
        place.given = place.given.getCanonical(seam.type.getShape());
    uint64_t byRows = costOf(seam, rows);
    Candidate best{rows, byRows};
    auto consider = [&](LayoutAttr layout) {
      if (uint64_t cost = costOf(seam, layout); cost < best.cost)
        best = {layout, cost};
    };
    if (byRows > 0) {
      for (const Place &place : llvm::concat<Place>(seam.writers, seam.readers))
        if (place.given && isCandidate(seam, place.given))
          consider(place.given);
      if (seam.type.getRank() <= kMostOrderedDimensions)
        forEachOrder(seam.type.getShape(), [&](ArrayRef<int64_t> strides) { consider(layoutOf(seam, strides)); });
    }
    LDBG() << key << " of " << seam.type << ": " << best.layout << " moves " << best.cost << " bytes, dense rows "
           << byRows;
    if (explain)
      emitRemark(seam.writers.front().function.getLoc()) << key << " of " << seam.type << " lies in " << best.layout << ", which moves "
                                          << best.cost << " bytes in a step; dense rows move " << byRows;
    if (best.layout == rows)
      return;
    ++turned;
    bytesSaved += byRows - best.cost;
    for (Place place : llvm::concat<Place>(seam.writers, seam.readers))
      if (!place.given)
        place.isResult ? place.function.setResultAttr(place.index, SegueDialect::kLayoutAttr, best.layout)
                       : place.function.setArgAttr(place.index, SegueDialect::kLayoutAttr, best.layout);
  }
};
} // namespace
