//===- KernelModels.cpp - how ops take part in kernels --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// KernelOpInterface of the ops that are computed element by element without being
// elementwise. Ops that write loops of their own are in OwnLoops.cpp.
//
//===----------------------------------------------------------------------===//

#include "KernelModels.h"
#include "KernelBuilder.h"
#include "Philox.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/DialectRegistry.h"

using namespace mlir;
using namespace segue;

static ArrayRef<int64_t> extentsOf(Value value) { return cast<RankedTensorType>(value.getType()).getShape(); }
static int64_t countOf(Value value) { return cast<RankedTensorType>(value.getType()).getNumElements(); }

//===----------------------------------------------------------------------===//
// Values from nothing
//===----------------------------------------------------------------------===//

namespace {
struct ConstantModel : KernelModel<ConstantModel, ConstantOp> {
  KernelRole getKernelRole(Operation *op) const {
    return cast<ConstantOp>(op).getSplat() ? KernelRole::Source : KernelRole::Outside;
  }
  bool getKernelReads(Operation *, IndexSpace &, const IndexExpr &, SmallVectorImpl<KernelRead> &) const {
    return true;
  }
  Value buildElement(Operation *op, KernelBuilder &kernel, const IndexExpr &, size_t) const {
    Attribute element = cast<ConstantOp>(op).getSplat();
    if (!element) {
      op->emitOpError("with different elements is not part of a kernel");
      return {};
    }
    OpBuilder &b = kernel.front();
    if (Type type = computeType(elementOf(op->getResult(0))); isa<FloatType>(type))
      return arith::ConstantOp::create(
          b, kernel.getLoc(), b.getFloatAttr(type, cast<FloatAttr>(element).getValueAsDouble()));
    return arith::ConstantOp::create(b, kernel.getLoc(), cast<TypedAttr>(element));
  }
};

struct IotaModel : KernelModel<IotaModel, IotaOp> {
  KernelRole getKernelRole(Operation *) const { return KernelRole::Source; }
  static std::optional<IndexExpr> count(IotaOp op, IndexSpace &space, const IndexExpr &index) {
    ArrayRef<int64_t> shape = op.getType().getShape();
    int64_t outer = 1, inner = 1, dim = op.getDim();
    for (auto [at, extent] : llvm::enumerate(shape))
      (static_cast<int64_t>(at) < dim ? outer : inner) *= static_cast<int64_t>(at) == dim ? 1 : extent;
    auto indices = space.delinearize(index, {outer, shape[dim], inner});
    return indices ? std::optional<IndexExpr>((*indices)[1]) : std::nullopt;
  }
  bool getKernelReads(Operation *op, IndexSpace &space, const IndexExpr &index, SmallVectorImpl<KernelRead> &) const {
    return count(cast<IotaOp>(op), space, index).has_value();
  }
  Value buildElement(Operation *op, KernelBuilder &kernel, const IndexExpr &index, size_t scope) const {
    auto at = count(cast<IotaOp>(op), kernel.getSpace(), index);
    if (!at)
      return {};
    Value counted = kernel.materialize(*at, scope);
    OpBuilder &b = kernel.builderOf(scope);
    Location loc = kernel.getLoc();
    Type type = computeType(elementOf(op->getResult(0)));
    if (isa<IntegerType>(type))
      return arith::IndexCastOp::create(b, loc, type, counted);
    Type whole = type.isF64() ? b.getI64Type() : b.getI32Type(); // from i32 there is a vector conversion
    return arith::SIToFPOp::create(b, loc, type, arith::IndexCastOp::create(b, loc, whole, counted).getResult());
  }
};

struct RandomModel : KernelModel<RandomModel, RandomOp> {
  KernelRole getKernelRole(Operation *) const { return KernelRole::Member; }
  bool getKernelReads(Operation *op, IndexSpace &, const IndexExpr &, SmallVectorImpl<KernelRead> &reads) const {
    for (Value scalar : op->getOperands())
      reads.push_back({scalar, {}, {}});
    return true;
  }
  Value buildElement(Operation *op, KernelBuilder &kernel, const IndexExpr &index, size_t scope) const {
    auto random = cast<RandomOp>(op);
    Value seed = kernel.element(random.getSeed(), {}), step = kernel.element(random.getStep(), {});
    if (!seed || !step)
      return {};
    Value at = kernel.materialize(index, scope);
    return buildPhilox(kernel.builderOf(scope), kernel.getLoc(), seed, step, random.getId(), at);
  }
};

//===----------------------------------------------------------------------===//
// Elements from elsewhere
//===----------------------------------------------------------------------===//

template <typename OpTy> struct ViewModel : KernelModel<ViewModel<OpTy>, OpTy> {
  KernelRole getKernelRole(Operation *) const { return KernelRole::View; }
  bool getKernelReads(Operation *op, IndexSpace &space, const IndexExpr &index,
                      SmallVectorImpl<KernelRead> &reads) const {
    auto operand = space.throughView(op, index);
    if (operand)
      reads.push_back({op->getOperand(0), *operand, {}});
    return operand.has_value();
  }
  Value buildElement(Operation *op, KernelBuilder &kernel, const IndexExpr &index, size_t) const {
    auto operand = kernel.getSpace().throughView(op, index);
    return operand ? kernel.element(op->getOperand(0), *operand) : Value();
  }
};

struct GatherModel : KernelModel<GatherModel, GatherOp> {
  KernelRole getKernelRole(Operation *) const { return KernelRole::Member; }
  OperandAccess getOperandAccess(Operation *, unsigned operand) const {
    return operand == 0 ? OperandAccess::Found : OperandAccess::Element;
  }
  static int64_t tableRows(GatherOp op) { return extentsOf(op.getTable()).front(); }
  static int64_t rowElements(GatherOp op) { return countOf(op.getTable()) / tableRows(op); }
  /// The index of the result as that of the indices and the rest of the row.
  static std::optional<SmallVector<IndexExpr>> split(GatherOp op, IndexSpace &space, const IndexExpr &index) {
    return space.delinearize(index, {countOf(op.getIndices()), rowElements(op)});
  }
  bool getKernelReads(Operation *op, IndexSpace &space, const IndexExpr &index,
                      SmallVectorImpl<KernelRead> &reads) const {
    auto gather = cast<GatherOp>(op);
    auto parts = split(gather, space, index);
    if (!parts)
      return false;
    IndexExpr table = (*parts)[1];
    table.add(space.addVariable(tableRows(gather), /*splittable=*/false), rowElements(gather));
    reads.push_back({gather.getTable(), table, {}});
    reads.push_back({gather.getIndices(), (*parts)[0], {}});
    return true;
  }
  Value buildElement(Operation *op, KernelBuilder &kernel, const IndexExpr &index, size_t) const {
    auto gather = cast<GatherOp>(op);
    auto parts = split(gather, kernel.getSpace(), index);
    if (!parts) {
      kernel.fail();
      return {};
    }
    size_t scope = kernel.scopeOf(gather.getIndices(), (*parts)[0]);
    Value row = kernel.checkedIndex(gather.getIndices(), (*parts)[0], tableRows(gather), scope);
    if (!row)
      return {};
    IndexExpr table = (*parts)[1];
    table.add(kernel.addVariable(row, tableRows(gather), scope), rowElements(gather));
    return kernel.element(gather.getTable(), table);
  }
};
} // namespace

//===----------------------------------------------------------------------===//
// Results in parts
//===----------------------------------------------------------------------===//

static std::optional<SmallVector<KernelRead>> readsOfConcat(IndexSpace &space, ConcatOp op,
                                                                 const IndexExpr &index) {
  // The shape is [outer, along], where an operand takes a piece of `along`.
  ArrayRef<int64_t> shape = op.getType().getShape();
  int64_t outer = 1, inner = 1, dim = op.getDim();
  for (auto [at, extent] : llvm::enumerate(shape))
    (static_cast<int64_t>(at) < dim ? outer : inner) *= static_cast<int64_t>(at) == dim ? 1 : extent;
  auto indices = space.delinearize(index, {outer, shape[dim] * inner});
  if (!indices)
    return std::nullopt;
  SmallVector<KernelRead> operands;
  int64_t start = 0;
  for (Value input : op.getInputs()) {
    int64_t length = extentsOf(input)[dim] * inner;
    KernelRead operand{input, (*indices)[1], {}};
    operand.index.offset -= start;
    operand.index.add((*indices)[0], length);
    operand.guards.push_back({(*indices)[1], start, start + length, 1});
    operands.push_back(std::move(operand));
    start += length;
  }
  return operands;
}

namespace {
/// The reads of a `pad`: dimensions as runs, where one that is not padded joins the one before it.
class PaddedReads {
public:
  /// One run, and where in it an element lies.
  struct Run {
    int64_t extent, low, interior, high;
    /// The elements of what joined it, which all numbers here count.
    int64_t unit;
    IndexExpr index;
    int64_t padded() const { return low + extent + (extent - 1) * interior + high; }
    int64_t step() const { return interior + 1; }
    Guard guard() const { return {index, low, low + (extent - 1) * step() + 1, step()}; }
  };

  static std::optional<PaddedReads> of(IndexSpace &space, PadOp op, const IndexExpr &index) {
    PaddedReads reads;
    for (auto [extent, low, interior, high] :
         llvm::zip_equal(extentsOf(op.getInput()), op.getLow(), op.getInterior(), op.getHigh())) {
      bool isPadded = low != 0 || high != 0 || (interior != 0 && extent > 1);
      if (!reads.runs.empty() && !isPadded && (reads.runs.back().interior == 0 || extent == 1)) {
        Run &before = reads.runs.back();
        before = {before.extent * extent, before.low * extent, before.interior, before.high * extent,
                  before.unit * extent,   {}};
        continue;
      }
      reads.runs.push_back({extent, low, interior, high, 1, {}});
    }
    auto indices = space.delinearize(
        index, llvm::map_to_vector(reads.runs, [](const Run &run) { return run.padded(); }));
    if (!indices)
      return std::nullopt;
    for (auto [run, at] : llvm::zip_equal(reads.runs, *indices))
      run.index = at;
    return reads;
  }

  /// The read of `op`. Of each run, `place` may say where in the operand it is read: then it has no guard.
  KernelRead read(IndexSpace &space, PadOp op, function_ref<std::optional<IndexExpr>(const Run &)> place) const {
    KernelRead read{op.getInput(), {}, {}};
    int64_t stride = 1;
    for (const Run &run : llvm::reverse(runs)) {
      std::optional<IndexExpr> at = run.padded() == run.extent ? run.index : place(run);
      if (!at) {
        read.guards.push_back(run.guard());
        at = run.index;
        at->offset -= run.low;
        at = run.step() == 1 ? *at : space.quotient(*at, run.step());
      }
      read.index.add(*at, stride);
      stride *= run.extent;
    }
    return read;
  }

private:
  SmallVector<Run> runs;
};
} // namespace

static std::optional<SmallVector<KernelRead>> readsOfPad(IndexSpace &space, PadOp op, const IndexExpr &index) {
  auto reads = PaddedReads::of(space, op, index);
  if (!reads)
    return std::nullopt;
  return SmallVector<KernelRead>{reads->read(space, op, [](const PaddedReads::Run &) { return std::nullopt; })};
}

namespace {
/// PartsModel is the model that `pad` and `concat` share: each operand gives a part of the result.
template <typename Model, typename OpTy,
          std::optional<SmallVector<KernelRead>> (*readsOf)(IndexSpace &, OpTy, const IndexExpr &)>
struct PartsModel : KernelModel<Model, OpTy> {
  KernelRole getKernelRole(Operation *) const { return KernelRole::Member; }
  OperandAccess getOperandAccess(Operation *, unsigned) const { return OperandAccess::Part; }
  bool getKernelReads(Operation *op, IndexSpace &space, const IndexExpr &index,
                      SmallVectorImpl<KernelRead> &reads) const {
    auto parts = readsOf(space, cast<OpTy>(op), index);
    if (parts)
      llvm::append_range(reads, *parts);
    return parts.has_value();
  }
};

struct ConcatModel : PartsModel<ConcatModel, ConcatOp, readsOfConcat> {
  Value buildElement(Operation *op, KernelBuilder &kernel, const IndexExpr &index, size_t scope) const {
    auto parts = readsOfConcat(kernel.getSpace(), cast<ConcatOp>(op), index);
    if (!parts) {
      kernel.fail();
      return {};
    }
    Type type = computeType(elementOf(op->getResult(0)));
    return kernel.chosenElement(*parts, type, scope, [&](OpBuilder &b) -> Value { // no element is of no operand
      return arith::ConstantOp::create(b, kernel.getLoc(), cast<TypedAttr>(b.getZeroAttr(type)));
    });
  }
};

struct PadModel : PartsModel<PadModel, PadOp, readsOfPad> {
  Value buildElement(Operation *base, KernelBuilder &kernel, const IndexExpr &index, size_t scope) const {
    auto op = cast<PadOp>(base);
    auto reads = PaddedReads::of(kernel.getSpace(), op, index);
    if (!reads) {
      kernel.fail();
      return {};
    }
    Type type = computeType(elementOf(op.getResult()));
    auto padding = [&](OpBuilder &b) -> Value {
      auto value = cast<TypedAttr>(op.getValue());
      if (auto number = dyn_cast<FloatAttr>(value))
        value = b.getFloatAttr(type, number.getValueAsDouble());
      return arith::ConstantOp::create(b, kernel.getLoc(), value);
    };
    // Around the operand an element of it is read all the same, and not taken, where an outer loop says so: a branch in
    // the innermost loop would keep that from several elements at once. Where there is more padding than operand, most
    // of the reads would be in vain.
    SmallVector<Value> inside;
    KernelRead read = reads->read(kernel.getSpace(), op, [&](const PaddedReads::Run &run) -> std::optional<IndexExpr> {
      if (run.interior || 2 * run.extent < run.padded() || decide(kernel.getSpace(), run.guard()) != Truth::Runtime)
        return std::nullopt;
      auto separated = kernel.getSpace().separate(run.index, run.unit);
      if (!separated)
        return std::nullopt;
      auto [at, rest] = *separated;
      at.offset -= run.low / run.unit;
      auto clamped = kernel.clampedIndex(at, run.extent / run.unit);
      if (!clamped)
        return std::nullopt;
      inside.push_back(clamped->second);
      rest.add(clamped->first, run.unit);
      return rest;
    });
    Value value = kernel.chosenElement(read, type, scope, padding);
    for (Value condition : inside)
      if (value)
        value = arith::SelectOp::create(kernel.builderOf(scope), kernel.getLoc(), condition, value,
                                        padding(kernel.front()));
    return value;
  }
};

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

struct ReduceModel : KernelModel<ReduceModel, ReduceOp> {
  KernelRole getKernelRole(Operation *) const { return KernelRole::Member; }
  bool hasKernelLoops(Operation *) const { return true; }
  FailureOr<KernelShape> getKernelShape(Operation *op) const {
    using Kind = KernelShape::Kind;
    FailureOr<ReduceExtents> e = ReduceExtents::of(cast<ReduceOp>(op));
    if (failed(e))
      return op->emitOpError("reduces dimensions that are not adjacent; run `segue-form-kernels` first");
    if (e->inner == 1)
      return KernelShape{Kind::Rows, e->outer, e->reduced};
    if (e->outer == 1)
      return KernelShape{Kind::Columns, e->reduced, e->inner};
    return KernelShape{Kind::Rows, e->outer * e->reduced, e->inner, e->outer};
  }
  bool getKernelReads(Operation *, IndexSpace &, const IndexExpr &, SmallVectorImpl<KernelRead> &) const {
    llvm_unreachable("a reduction reads what its loops are at");
  }
  Value buildElement(Operation *op, KernelBuilder &kernel, const IndexExpr &index, size_t scope) const {
    return kernel.reducedElement(op, index, scope);
  }
};
} // namespace

void segue::registerKernelModels(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, SegueDialect *) {
    ConstantModel::attach(context);
    IotaModel::attach(context);
    RandomModel::attach(context);
    ViewModel<ReshapeOp>::attach(context);
    ViewModel<TransposeOp>::attach(context);
    ViewModel<BroadcastOp>::attach(context);
    ViewModel<SliceOp>::attach(context);
    GatherModel::attach(context);
    PadModel::attach(context);
    ConcatModel::attach(context);
    ReduceModel::attach(context);
    attachOwnLoops(context);
  });
}
