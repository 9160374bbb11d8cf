//===- KernelClusters.cpp - which ops share a kernel ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "KernelClusters.h"
#include "TrainingSignature.h"
#include "segue/Conversion/SegueToLoops/IndexSpace.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/Support/DebugLog.h"

#define DEBUG_TYPE "segue-form-kernels"

using namespace mlir;
using namespace segue;

/// The most ops of one kernel: compile time grows with the square.
constexpr size_t kMostOps = 192;
/// The most values that a kernel joins. Each is a parameter of it, and those of a GPU's kernel take 4,352 bytes at most.
constexpr size_t kMostJoined = 256;
/// A scalar that takes more ops is computed once, by a kernel.
constexpr size_t kMostScalarOps = 24;
/// A whole row of a sum in one task holds up what is merged into it.
constexpr int64_t kMostElementsOfOneRow = 8192;
/// The greatest distance of kernels that are merged although they only share an input.
constexpr unsigned kSiblingDistance = 48;

static RankedTensorType tensorType(Value value) { return cast<RankedTensorType>(value.getType()); }
static int64_t elementsOf(Value value) { return tensorType(value).getNumElements(); }

//===----------------------------------------------------------------------===//
// What an op is
//===----------------------------------------------------------------------===//

static bool isPrimitive(Operation *op) { return kernelRoleOf(op) == KernelRole::Member; }

/// Returns true if a scalar is read, at some remove, by an op on more than scalars.
static bool hasTensorReader(Operation *op) {
  SmallVector<Operation *> work = {op};
  for (size_t at = 0; at < work.size() && at < kMostScalarOps; ++at)
    for (Operation *user : work[at]->getUsers()) {
      if (user->getNumResults() == 0)
        continue;
      if (elementsOf(user->getResult(0)) > 1)
        return true;
      work.push_back(user);
    }
  return false;
}

/// A scalar computed from arguments of the function by a few ops.
bool KernelClusters::isFreeScalar(Operation *op) {
  if (!isa<ScalarOpInterface>(op) || elementsOf(op->getResult(0)) != 1)
    return false;
  // A scalar that a barrier reads must be there as a value, and one that only scalars read
  // shares their kernel.
  if (llvm::any_of(op->getUsers(), [](Operation *user) { return !isPrimitive(user) && !isView(user); }) ||
      !hasTensorReader(op))
    return false;
  llvm::SmallPtrSet<Operation *, 16> seen;
  SmallVector<Operation *> work = {op};
  while (!work.empty()) {
    Operation *next = work.pop_back_val();
    if (!seen.insert(next).second)
      continue;
    if (seen.size() > kMostScalarOps)
      return false;
    for (Value operand : next->getOperands())
      if (Operation *def = operand.getDefiningOp()) {
        if (elementsOf(operand) != 1)
          return false;
        if (!isa<ScalarOpInterface>(def) && !isView(def) && !def->hasTrait<OpTrait::ConstantLike>())
          return false;
        work.push_back(def);
      }
  }
  return true;
}

/// Returns true if a reshape of a transposed value joins dimensions that no single stride
/// walks.
static bool needsCopy(TransposeOp transpose, ReshapeOp reshape) {
  ArrayRef<int64_t> from = transpose.getInput().getType().getShape(), shape = transpose.getType().getShape();
  ArrayRef<int64_t> to = reshape.getType().getShape();
  SmallVector<int64_t> strides(from.size(), 1);
  for (int64_t dim = static_cast<int64_t>(from.size()) - 2; dim >= 0; --dim)
    strides[dim] = strides[dim + 1] * from[dim + 1];
  // Both shapes are walked in runs of equal products.
  for (size_t at = 0, other = 0; at < shape.size();) {
    int64_t run = 1, target = other < to.size() ? to[other++] : 1, last = -1;
    do {
      int64_t dim = at++;
      run *= shape[dim];
      while (target < run && other < to.size())
        target *= to[other++];
      if (shape[dim] == 1)
        continue;
      int64_t stride = strides[transpose.getPermutation()[dim]];
      if (last >= 0 && last != stride * shape[dim])
        return true;
      last = stride;
    } while (run < target && at < shape.size());
  }
  return false;
}

/// A transpose that a library call could only read from a copy, of a value that
/// a kernel makes: the kernel writes it in that order.
static bool isWrittenTransposed(TransposeOp op) {
  Operation *source = op.getInput().getDefiningOp();
  while (source && isView(source))
    source = source->getOperand(0).getDefiningOp();
  if (!source || !isPrimitive(source))
    return false;
  return llvm::any_of(op->getUsers(), [&](Operation *user) {
    auto reshape = dyn_cast<ReshapeOp>(user);
    return reshape && needsCopy(op, reshape) && llvm::any_of(reshape->getUsers(), [](Operation *reader) {
             return !isPrimitive(reader) && !isView(reader);
           });
  });
}

void KernelClusters::classify(Operation *op) {
  auto transpose = dyn_cast<TransposeOp>(op);
  KernelRole role = transpose && isWrittenTransposed(transpose) ? KernelRole::Member
                    : isFreeScalar(op)                          ? KernelRole::Source
                                                                : kernelRoleOf(op);
  kinds[op] = role == KernelRole::Source   ? OpKind::Free
              : role == KernelRole::View   ? OpKind::View
              : role == KernelRole::Member ? OpKind::Member
                                           : OpKind::Barrier;
}

KernelShape KernelClusters::shapeOf(Operation *op) {
  if (auto kernel = dyn_cast<KernelOpInterface>(op))
    return *kernel.getKernelShape();
  return {KernelShape::Kind::Map, 1, elementsOf(op->getResult(0))};
}

//===----------------------------------------------------------------------===//
// Who reads what, and how
//===----------------------------------------------------------------------===//

/// Follows an operand through views to its source, with the index on the way.
KernelClusters::Relation KernelClusters::relate(OpOperand &operand, Value &source, int64_t elements, int64_t &cols) {
  Operation *reader = operand.getOwner();
  SmallVector<int64_t> extents = {elements};
  for (int round = 0; round < 32; ++round) {
    IndexSpace space;
    IndexExpr index;
    SmallVector<int64_t> strides(extents.size(), 1);
    for (size_t at = extents.size() - 1; at-- > 0;)
      strides[at] = strides[at + 1] * extents[at + 1];
    for (auto [extent, stride] : llvm::zip_equal(extents, strides)) {
      unsigned variable = space.addVariable(extent, /*splittable=*/true);
      if (extent != 1)
        index.add(variable, stride);
    }
    IndexExpr same = index;

    source = operand.get();
    std::optional<IndexExpr> at = index;
    if (auto kernel = dyn_cast<KernelOpInterface>(reader); kernel && !hasLoops(reader)) {
      SmallVector<KernelRead> reads;
      at = kernel.getKernelReads(space, index, reads) ? std::optional(reads[operand.getOperandNumber()].index)
                                                      : std::nullopt;
    }
    while (at && source.getDefiningOp() && kindOf(source.getDefiningOp()) == OpKind::View) {
      Operation *view = source.getDefiningOp();
      at = space.throughView(view, *at);
      source = view->getOperand(0);
    }
    if (at) {
      if (*at == same)
        return Relation::Same;
      // The row: the outer variables, with strides in rows.
      if (elements % elementsOf(source) != 0)
        return Relation::Other;
      cols = elements / elementsOf(source);
      IndexExpr row;
      for (auto [variable, stride] : llvm::enumerate(strides))
        if (extents[variable] != 1 && stride >= cols)
          row.add(variable, stride / cols);
      return *at == row ? Relation::Row : Relation::Other;
    }
    auto split = *space.wantedSplit;
    extents[split.variable] /= split.factor;
    extents.insert(extents.begin() + split.variable + 1, split.factor);
  }
  source = throughViews(source);
  return Relation::Other;
}

/// The value that `value` is a view of.
Value KernelClusters::throughViews(Value value) {
  while (value.getDefiningOp() && kindOf(value.getDefiningOp()) == OpKind::View)
    value = value.getDefiningOp()->getOperand(0);
  return value;
}

KernelClusters::Read KernelClusters::readOf(Operation *reader, unsigned at) {
  OpOperand &operand = reader->getOpOperand(at);
  Read read;
  read.elements = shapeOf(reader).elements();
  auto kernel = dyn_cast<KernelOpInterface>(reader);
  OperandAccess access = kernel ? kernel.getOperandAccess(at) : OperandAccess::Element;
  if (access != OperandAccess::Element) {
    read.source = throughViews(operand.get());
    read.relation = access == OperandAccess::Found ? Relation::Dynamic : Relation::Other;
    if (access == OperandAccess::Part)
      read.elements = std::min(read.elements, elementsOf(operand.get()));
    return read;
  }
  read.relation = relate(operand, read.source, read.elements, read.cols);
  return read;
}

SmallVector<Operation *> KernelClusters::readersOf(Value value) {
  SmallVector<Operation *> readers;
  SmallVector<Value> work = {value};
  while (!work.empty()) {
    Value next = work.pop_back_val();
    for (Operation *user : next.getUsers()) {
      OpKind kind = kindOf(user);
      if (kind == OpKind::View || kind == OpKind::Free)
        work.append(user->getResults().begin(), user->getResults().end());
      else
        readers.push_back(user);
    }
  }
  return readers;
}

/// Returns true if a read finds its place in a parameter, such as an embedding, by an index.
bool KernelClusters::isOfTable(const Read &read) {
  auto argument = dyn_cast<BlockArgument>(read.source);
  auto function = argument ? dyn_cast<func::FuncOp>(argument.getOwner()->getParentOp()) : func::FuncOp();
  if (read.relation != Relation::Dynamic || !function)
    return false;
  Role role = argumentRole(function, argument.getArgNumber());
  return role == Role::Parameter || role == Role::Frozen;
}

KernelClusters::KernelClusters(Block &block) : block(block) {
  for (Operation &op : block)
    classify(&op);
  for (Operation &op : block) {
    OpKind kind = kindOf(&op);
    if (kind != OpKind::Member && kind != OpKind::Barrier)
      continue;
    numbers[&op] = ops.size();
    ops.push_back(&op);
    Node node;
    node.ops.push_back(&op);
    node.joined = isa<ConcatOp>(op) ? op.getNumOperands() : 0;
    node.update = op.getAttr(SegueDialect::kUpdateAttr);
    node.isBarrier = kind == OpKind::Barrier;
    if (!node.isBarrier) {
      node.shape = shapeOf(&op);
      node.isElementwise = node.shape.kind == KernelShape::Kind::Map;
    }
    nodes.push_back(std::move(node));
  }
  graph.emplace(ops.size());
  reads.resize(ops.size());
  for (auto [number, op] : llvm::enumerate(ops)) {
    for (Value result : op->getResults())
      for (Operation *reader : readersOf(result))
        graph->addEdge(number, numbers.lookup(reader));
    if (nodes[number].isBarrier)
      continue;
    for (unsigned at = 0; at < op->getNumOperands(); ++at)
      reads[number].push_back(readOf(op, at));
    nodes[number].readsTable = llvm::any_of(reads[number], isOfTable);
  }
}

//===----------------------------------------------------------------------===//
// Merging
//===----------------------------------------------------------------------===//

std::optional<KernelShape> KernelClusters::joinRows(const KernelShape &a, const KernelShape &b) {
  if (a.rows != b.rows || a.cols != b.cols || (a.chunks && b.chunks && a.chunks != b.chunks))
    return std::nullopt;
  KernelShape shape = a;
  shape.chunks = std::max(a.chunks, b.chunks);
  return shape;
}

/// Returns true if anything but `consumer` needs a value of `producer`.
bool KernelClusters::escapes(unsigned producer, unsigned consumer) {
  for (Operation *op : nodes[producer].ops)
    for (Value result : op->getResults())
      for (Operation *reader : readersOf(result)) {
        unsigned leader = leaderOf(reader);
        if (leader != producer && leader != consumer)
          return true;
      }
  return false;
}

std::optional<KernelShape> KernelClusters::joinAlong(unsigned producer, unsigned consumer, ArrayRef<Edge> edges,
                                                     bool &isInlined) {
  using Kind = KernelShape::Kind;
  const Node &from = nodes[producer], &to = nodes[consumer];
  const KernelShape &a = from.shape, &b = to.shape;

  // An elementwise producer can be computed where it is read, whatever the index, if nobody
  // else needs it and no element is computed twice.
  auto inlined = [&](bool repeats) -> std::optional<KernelShape> {
    if (!from.isElementwise || escapes(producer, consumer))
      return std::nullopt;
    for (auto &[op, read] : edges) {
      if (read.relation == Relation::Dynamic)
        return std::nullopt;
      bool again = read.elements > elementsOf(read.source) || edges.size() > 1;
      if (again && !repeats)
        return std::nullopt;
    }
    isInlined = true;
    return b;
  };
  // A producer that costs next to nothing may be computed again for every reader.
  bool cheap = from.ops.size() <= 1 && elementCostOf(from.ops[0]) < kCostWorthKeeping;

  bool allSame = true, noDynamic = true;
  for (auto &[op, read] : edges) {
    allSame &= read.relation == Relation::Same;
    noDynamic &= read.relation != Relation::Dynamic;
  }
  if (!noDynamic)
    return std::nullopt;

  if (b.isOwn())
    return inlined(false);
  if (a.isOwn())
    return std::nullopt;
  if (b.kind == Kind::Columns)
    return a.kind == Kind::Map ? inlined(false) : std::nullopt;
  if (a.kind == Kind::Columns) {
    if (b.kind != Kind::Map || b.cols != a.cols || !allSame)
      return std::nullopt;
    return a;
  }
  if (a.kind == Kind::Map && b.kind == Kind::Map) {
    if (a.cols == b.cols && allSame)
      return a;
    // A value per row: computed once per row.
    bool rows = llvm::all_of(edges, [&](const Edge &edge) {
      return edge.second.relation == Relation::Row && elementsOf(edge.second.source) == a.cols && a.cols > 1;
    });
    if (rows && from.isElementwise && !escapes(producer, consumer))
      return b;
    return inlined(cheap);
  }

  // One of them works on rows.
  KernelShape rows = a.kind == Kind::Rows ? a : b;
  if (a.kind == Kind::Rows && b.kind == Kind::Rows) {
    auto both = joinRows(a, b);
    if (!both)
      return std::nullopt;
    rows = *both;
  }
  if (rows.rows == 1 && rows.cols > kMostElementsOfOneRow)
    return std::nullopt;
  auto isFull = [&](int64_t elements) { return elements == rows.elements(); };
  auto isRow = [&](int64_t elements) { return elements == rows.rows; };
  if (a.kind == Kind::Map && !isFull(a.cols) && !isRow(a.cols))
    return inlined(cheap);
  if (b.kind == Kind::Map && !isFull(b.cols) && !isRow(b.cols))
    return std::nullopt;
  for (auto &[op, read] : edges) {
    int64_t source = elementsOf(read.source);
    bool isChunk = shapeOf(read.source.getDefiningOp()).chunks != 0;
    bool same = read.relation == Relation::Same && (isFull(source) || isRow(source));
    bool toRow = read.relation == Relation::Row && isRow(source) && isFull(read.elements) && read.cols == rows.cols;
    if (isChunk || (!same && !toRow))
      return a.kind == Kind::Map ? inlined(cheap) : std::nullopt;
  }
  return rows;
}

SmallVector<KernelClusters::Edge> KernelClusters::edgesBetween(unsigned from, unsigned to) {
  SmallVector<Edge> edges;
  for (Operation *op : nodes[to].ops)
    for (const Read &read : reads[numbers.lookup(op)])
      if (Operation *def = read.source.getDefiningOp())
        if (kindOf(def) == OpKind::Member && leaderOf(def) == from) {
          edges.push_back({op, read});
          if (inlinedOps.contains(op) && read.relation != Relation::Dynamic)
            edges.back().second.relation = Relation::Other;
        }
  return edges;
}

bool KernelClusters::mayShare(const Node &a, const Node &b) {
  if (a.isBarrier || b.isBarrier || a.update != b.update || a.ops.size() + b.ops.size() > kMostOps ||
      a.joined + b.joined > kMostJoined)
    return false;
  if (!a.readsTable && !b.readsTable)
    return true;
  auto isOfSameBlock = [&](Operation *op) {
    return op->getAttr(SegueDialect::kBlockAttr) == a.ops.front()->getAttr(SegueDialect::kBlockAttr);
  };
  return llvm::all_of(a.ops, isOfSameBlock) && llvm::all_of(b.ops, isOfSameBlock);
}

bool KernelClusters::tryMerge(unsigned producer, unsigned consumer) {
  if (producer == consumer || !mayShare(nodes[producer], nodes[consumer]))
    return false;
  bool isInlined = false;
  std::optional<KernelShape> shape = joinAlong(producer, consumer, edgesBetween(producer, consumer), isInlined);
  if (!shape || !graph->canMerge(producer, consumer))
    return false;
  if (isInlined)
    inlinedOps.insert(nodes[producer].ops.begin(), nodes[producer].ops.end());
  merge(producer, consumer, *shape);
  return true;
}

void KernelClusters::merge(unsigned a, unsigned b, const KernelShape &shape) {
  LDBG() << "merges kernels at " << nodes[a].ops.back()->getName() << " and " << nodes[b].ops.back()->getName();
  unsigned leader = graph->merge(a, b);
  unsigned other = leader == a ? b : a;
  Node &kept = nodes[leader], &gone = nodes[other];
  kept.ops.append(gone.ops);
  kept.joined += gone.joined;
  llvm::sort(kept.ops, [&](Operation *l, Operation *r) { return numbers.lookup(l) < numbers.lookup(r); });
  kept.isElementwise &= gone.isElementwise;
  kept.shape = shape;
  kept.readsTable |= gone.readsTable;
  gone.ops.clear();
}

bool KernelClusters::tryMergeSiblings(unsigned a, unsigned b) {
  using Kind = KernelShape::Kind;
  if (a == b || !mayShare(nodes[a], nodes[b]))
    return false;
  unsigned first = graph->position(a), second = graph->position(b);
  if (std::max(first, second) - std::min(first, second) > kSiblingDistance)
    return false;
  const KernelShape &l = nodes[a].shape, &r = nodes[b].shape;
  std::optional<KernelShape> shape;
  if (l.isOwn() || r.isOwn())
    return false;
  if (l.kind == r.kind)
    shape = joinRows(l, r);
  else if (l.kind == Kind::Rows && r.kind == Kind::Map && r.cols == l.elements())
    shape = l;
  else if (l.kind == Kind::Map && r.kind == Kind::Rows && l.cols == r.elements())
    shape = r;
  if (!shape || shape->elements() == 1)
    return false;
  // If a value goes from one to the other, the shapes alone do not decide.
  if (!edgesBetween(a, b).empty() || !edgesBetween(b, a).empty() || !graph->canMerge(a, b))
    return false;
  merge(a, b, *shape);
  return true;
}

void KernelClusters::mergeSiblings() {
  // Readers of each value, whoever makes it. What costs nothing to have, such as
  // a constant, is not an input that blocks share: the updates of an optimizer would
  // become one kernel over parameters of many, which could not come by block.
  llvm::MapVector<std::pair<Value, Attribute>, SmallVector<unsigned>> readers;
  for (auto [number, op] : llvm::enumerate(ops)) {
    if (nodes[graph->leader(number)].isBarrier)
      continue;
    for (const Read &read : reads[number]) {
      Operation *def = read.source.getDefiningOp();
      bool isFree = def && kindOf(def) == OpKind::Free;
      Attribute block = isFree ? op->getAttr(SegueDialect::kBlockAttr) : Attribute();
      if (elementsOf(read.source) > 1 && (read.relation == Relation::Same || read.relation == Relation::Row))
        readers[{read.source, block}].push_back(number);
    }
  }
  for (auto &[value, numbersOfReaders] : readers)
    for (size_t at = 1; at < numbersOfReaders.size(); ++at)
      tryMergeSiblings(graph->leader(numbersOfReaders[at - 1]), graph->leader(numbersOfReaders[at]));
}

void KernelClusters::run() {
  auto alongValues = [&] {
    for (auto [number, op] : llvm::enumerate(ops))
      for (const Read &read : reads[number])
        if (Operation *def = read.source.getDefiningOp())
          if (kindOf(def) == OpKind::Member)
            tryMerge(leaderOf(def), graph->leader(number));
  };
  alongValues();
  mergeSiblings();
  // Merging siblings, or what came later in the block, can bring kernels of one shape together.
  alongValues();
}

SmallVector<KernelClusters::Cluster> KernelClusters::clusters() {
  SmallVector<Cluster> result;
  for (unsigned leader : graph->order())
    result.push_back({nodes[leader].ops, nodes[leader].isBarrier});
  return result;
}
