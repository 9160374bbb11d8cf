//===- ChooseLayouts.cpp - segue-choose-layouts ---------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A saved value passes between programs of one binary, and nobody else looks into
// it: its layout is free. Each order of its dimensions is priced over all
// programs, as commands will read and write it, through the views between; the
// cheapest is declared, dense rows where nothing is gained. The figures are in
// LayoutCosts.h.
//
//===----------------------------------------------------------------------===//

#include "FunctionLowering.h"
#include "segue/Conversion/SegueToProg/SegueToProg.h"
#include "segue/Dialect/Prog/Transforms/LayoutCosts.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/DebugLog.h"
#include "llvm/Support/InterleavedRange.h"

namespace segue {
#define GEN_PASS_DEF_SEGUECHOOSELAYOUTS
#include "segue/Conversion/SegueToProg/Passes.h.inc"
} // namespace segue

#define DEBUG_TYPE "segue-choose-layouts"

using namespace mlir;
using namespace segue;

/// Tensors of more dimensions have too many orders to try.
static constexpr int64_t kMostDimensions = 4;

static uint64_t conversion(const Window &window) { return layout_costs::kMovedPerConvertedByte * window.bytes(); }

static Window denseWindow(Value value) {
  return Window::dense({}, typeOf(value).getShape(), typeOf(value).getElementType());
}

namespace {
/// What the commands of a function pay for where a value lies.
class AccessCosts {
public:
  /// All that read `value`, if it lies in `window`.
  uint64_t read(Value value, const Window &window) {
    uint64_t cost = 0;
    bool isCopied = false; // once, whoever reads the copy
    for (OpOperand &use : value.getUses()) {
      Operation *user = use.getOwner();
      if (isViewOp(user))
        cost += readView(user, window);
      else if (auto dot = dyn_cast<DotGeneralOp>(user))
        cost += readByProduct(dot, use.getOperandNumber(), window);
      else
        isCopied |= needsCopy(use, window);
    }
    return cost + (isCopied ? conversion(window) : 0);
  }

  /// The command that makes `value`, a result of the function that lies in `place`,
  /// and those that read it there.
  uint64_t write(Value value, const Window &place) {
    uint64_t copied = conversion(place) + read(value, denseWindow(value));
    std::optional<uint64_t> direct = writeDirect(value, place);
    return direct ? std::min(copied, *direct + read(value, place)) : copied;
  }

private:
  /// A view is read where it lies, or copied for its readers.
  uint64_t readView(Operation *op, const Window &window) {
    Value result = op->getResult(0);
    if (!readDense.contains(result))
      readDense[result] = read(result, denseWindow(result));
    uint64_t copied = conversion(denseWindow(result)) + readDense.lookup(result);
    std::optional<Window> seen = applyShapeOp(op, window);
    return seen ? std::min(copied, read(result, *seen)) : copied;
  }

  static bool needsCopy(OpOperand &use, const Window &window) {
    return llvm::TypeSwitch<Operation *, bool>(use.getOwner())
        .Case([&](segue::LaunchOp) { return !window.isDense(); })
        .Case([&](segue::AttentionOp op) { return use.get() != op.getMask() && !window.hasUnitLastStride(); })
        .Case([&](segue::AttentionGradOp op) {
          if (use.get() == op.getLse())
            return !window.isDense();
          return use.get() != op.getMask() && !window.hasUnitLastStride();
        })
        // What is returned, joined or padded is written anew wherever it lies.
        .Default(false);
  }

  static uint64_t readByProduct(DotGeneralOp dot, unsigned operand, const Window &window) {
    if (operand > 1) // the bias
      return 0;
    bool isLhs = operand == 0;
    std::optional<Collapsed> batch = window.collapse(isLhs ? dot.getLhsBatch() : dot.getRhsBatch());
    SmallVector<int64_t> freeDims = isLhs ? dot.getLhsFree() : dot.getRhsFree();
    std::optional<Collapsed> free = window.collapse(freeDims);
    std::optional<Collapsed> contract = window.collapse(isLhs ? dot.getLhsContract() : dot.getRhsContract());
    if (!batch || !free || !contract)
      return conversion(window);
    const Collapsed &column = isLhs ? *contract : *free, &row = isLhs ? *free : *contract;
    if (column.extent == 1 || column.stride == 1)
      return 0;
    if (row.extent == 1 || row.stride == 1)
      return window.bytes() / layout_costs::kTurnedProductShare;
    return layout_costs::kScatteredProductPasses * window.bytes();
  }

  /// What the command pays that writes straight to `place`; nothing if it cannot.
  static std::optional<uint64_t> writeDirect(Value value, const Window &place) {
    Operation *producer = value.getDefiningOp();
    if (!producer)
      return std::nullopt;
    if (isa<TransposeOp, ReshapeOp>(producer)) {
      Value operand = producer->getOperand(0);
      std::optional<Window> inverse = invertShapeOp(producer, place);
      if (!inverse || (!operand.hasOneUse() && !inverse->isDense()))
        return std::nullopt;
      return writeDirect(operand, *inverse);
    }
    return llvm::TypeSwitch<Operation *, std::optional<uint64_t>>(producer)
        .Case([&](DotGeneralOp dot) -> std::optional<uint64_t> {
          auto all = llvm::to_vector(llvm::seq<int64_t>(0, place.shape.size()));
          size_t batch = dot.getLhsBatch().size(), rows = dot.getLhsFree().size();
          ArrayRef<int64_t> dims(all);
          std::optional<Collapsed> b = place.collapse(dims.take_front(batch)),
                                   m = place.collapse(dims.slice(batch, rows)),
                                   n = place.collapse(dims.drop_front(batch + rows));
          if (!b || !m || !n)
            return std::nullopt;
          if (n->extent == 1 || n->stride == 1)
            return 0;
          if (dot.getBias() || (m->extent != 1 && m->stride != 1))
            return std::nullopt;
          return place.bytes() / layout_costs::kTurnedProductShare;
        })
        .Case<ConcatOp, PadOp>([](auto) { return 0; })
        .Case([&](segue::AttentionOp op) -> std::optional<uint64_t> {
          bool fits = value == op.getLse() ? place.isDense() : place.hasUnitLastStride();
          return fits ? std::optional<uint64_t>(0) : std::nullopt;
        })
        .Case([&](segue::AttentionGradOp) {
          return place.hasUnitLastStride() ? std::optional<uint64_t>(0) : std::nullopt;
        })
        .Default([&](Operation *) { return place.isDense() ? std::optional<uint64_t>(0) : std::nullopt; });
  }

  /// By view: what its readers pay if it is dense.
  llvm::DenseMap<Value, uint64_t> readDense;
};

/// An argument or result of a function.
struct Place {
  func::FuncOp function;
  unsigned index = 0;
  bool isResult = false;

  Attribute get(StringRef attr) const {
    func::FuncOp f = function;
    return isResult ? f.getResultAttr(index, attr) : f.getArgAttr(index, attr);
  }
  Value value() const {
    func::FuncOp f = function;
    return isResult ? f.getBody().front().getTerminator()->getOperand(index) : Value(f.getArgument(index));
  }
};

/// All places of one saved value.
struct SavedValue {
  RankedTensorType type;
  SmallVector<Place> places;
  /// Nobody asked for a layout, and no place must lie in another value.
  bool isFree = true;
};

struct ChooseLayouts : segue::impl::SegueChooseLayoutsBase<ChooseLayouts> {
  void runOnOperation() override {
    for (auto &[name, saved] : collect())
      if (saved.isFree && saved.type.getRank() > 1 && saved.type.getRank() <= kMostDimensions)
        choose(name, saved);
  }

private:
  llvm::MapVector<StringRef, SavedValue> collect() {
    llvm::MapVector<StringRef, SavedValue> values;
    auto add = [&](Place place, Type type) {
      auto role = dyn_cast_if_present<RoleAttr>(place.get(SegueDialect::kRoleAttr));
      auto name = dyn_cast_if_present<StringAttr>(place.get(SegueDialect::kNameAttr));
      auto tensor = dyn_cast<RankedTensorType>(type);
      if (!role || role.getValue() != Role::Saved || !name || !tensor)
        return;
      SavedValue &value = values[name.getValue()];
      value.isFree &= (!value.type || value.type == tensor) && tensor.hasStaticShape() && !tensor.getEncoding() &&
                      !place.get(SegueDialect::kLayoutAttr) && !(place.isResult && place.get("segue.alias"));
      value.type = tensor;
      value.places.push_back(place);
    };
    for (auto function : getOperation().getOps<func::FuncOp>()) {
      if (function.isExternal() || !function.getBody().hasOneBlock())
        continue;
      for (auto [i, type] : llvm::enumerate(function.getArgumentTypes()))
        add({function, static_cast<unsigned>(i), /*isResult=*/false}, type);
      for (auto [i, type] : llvm::enumerate(function.getResultTypes()))
        add({function, static_cast<unsigned>(i), /*isResult=*/true}, type);
    }
    return values;
  }

  /// What all programs pay for the value laid by `strides`.
  static uint64_t costOf(const SavedValue &saved, ArrayRef<int64_t> strides) {
    Window window{{}, 0, saved.type.getElementType(), SmallVector<int64_t>(saved.type.getShape()),
                  SmallVector<int64_t>(strides)};
    AccessCosts costs;
    uint64_t cost = 0;
    for (const Place &place : saved.places)
      cost += place.isResult ? costs.write(place.value(), window) : costs.read(place.value(), window);
    return cost;
  }

  void choose(StringRef name, const SavedValue &saved) {
    ++considered;
    ArrayRef<int64_t> shape = saved.type.getShape();
    SmallVector<unsigned> order = llvm::to_vector(llvm::seq<unsigned>(0, shape.size()));
    SmallVector<int64_t> rows = prog::denseStrides(shape), best = rows;
    uint64_t byRows = costOf(saved, rows), least = byRows;
    while (std::next_permutation(order.begin(), order.end())) {
      SmallVector<int64_t> strides(shape.size());
      int64_t stride = 1;
      for (unsigned dim : llvm::reverse(order)) {
        strides[dim] = stride;
        stride *= shape[dim];
      }
      if (uint64_t cost = costOf(saved, strides); cost < least) {
        least = cost;
        best = strides;
      }
    }
    LDBG() << name << " of " << saved.type << ": strides [" << llvm::interleaved(best) << "] move " << least
           << " bytes, dense rows " << byRows;
    if (best == rows)
      return;
    ++turned;
    bytesSaved += byRows - least;
    auto layout = LayoutAttr::get(&getContext(), Space::DeviceDram, best, {}, Storage::Element, /*zeroPoints=*/false,
                                  kDefaultAlignment)
                      .getCanonical(shape);
    for (Place place : saved.places)
      place.isResult ? place.function.setResultAttr(place.index, SegueDialect::kLayoutAttr, layout)
                     : place.function.setArgAttr(place.index, SegueDialect::kLayoutAttr, layout);
  }
};
} // namespace
