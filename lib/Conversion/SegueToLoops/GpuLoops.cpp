//===- GpuLoops.cpp - what threads of a GPU share of a kernel -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// KernelShape maps to a grid like this:
//
//   Map            a thread per group of neighbouring elements
//   Rows           a team of threads per row, or per chunk of rows; a thread strides over the columns
//   Columns        a block per tile of columns; threads share the rows and add their sums in shared memory
//   Own loops      a thread per unit of the range
//
// A thread meets the same columns in every level of a row, so it reads again only what it wrote itself. All that threads tell each
// other are the sums of a team: by shuffles in a warp, then by shared memory, where every thread adds the sums of the warps in
// their order. So a sum has the same bits on every run.
//
//===----------------------------------------------------------------------===//

#include "KernelBuilder.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace segue;

//===----------------------------------------------------------------------===//
// The schedule
//===----------------------------------------------------------------------===//

/// The bytes of one access of memory.
static constexpr int64_t kAccessBytes = 16;
/// The most elements that a thread computes at once: registers hold all of them.
static constexpr int64_t kMostLanes = 8;
/// The most threads that share a row.
static constexpr int64_t kMostTeam = 512;
/// The multiprocessors that a grid should keep busy, of the GPUs at hand: H100 has 132.
static constexpr int64_t kWantedBlocks = 128;

/// The elements of the narrowest number in 16 bytes, as far as they divide `extent`. Bytes of truth values and codes do not count.
static int64_t lanesFor(FusedOp fused, int64_t extent) {
  int64_t narrowest = 8;
  Block &body = *fused.getBody().begin();
  auto look = [&](Value value) {
    if (unsigned bits = elementOf(value).getIntOrFloatBitWidth(); bits >= 16)
      narrowest = std::min<int64_t>(narrowest, bits / 8);
  };
  llvm::for_each(body.getArguments(), look);
  llvm::for_each(body.getTerminator()->getOperands(), look);
  int64_t lanes = std::min(kMostLanes, kAccessBytes / narrowest);
  while (extent % lanes)
    lanes /= 2;
  return lanes;
}

GpuSchedule GpuSchedule::of(FusedOp fused, const LoopPlan &plan) {
  const KernelShape &shape = plan.shape;
  GpuSchedule schedule;
  switch (shape.kind) {
  case KernelShape::Kind::Map:
    schedule.lanes = lanesFor(fused, shape.elements());
    schedule.units = schedule.threads * schedule.lanes;
    return schedule;
  case KernelShape::Kind::Rows: {
    schedule.lanes = lanesFor(fused, shape.cols);
    int64_t steps = shape.cols / schedule.lanes;
    if (!shape.chunks && steps <= 2) {
      schedule.threads = schedule.units = 128;
      return schedule;
    }
    // A row takes as few rounds as the most threads allow, and each round is as full as it can be.
    int64_t rounds = llvm::divideCeil(steps, kMostTeam);
    schedule.team = llvm::alignTo(llvm::divideCeil(steps, rounds), kWarp);
    schedule.threads = schedule.team == kWarp && !shape.chunks ? 4 * kWarp : schedule.team;
    schedule.units = schedule.teams();
    return schedule;
  }
  case KernelShape::Kind::Columns:
    // 32 bytes are the least that memory gives at once.
    while (schedule.columns > 8 && shape.cols / schedule.columns < kWantedBlocks)
      schedule.columns /= 2;
    schedule.units = schedule.columns;
    return schedule;
  case KernelShape::Kind::OwnByRows:
  case KernelShape::Kind::OwnByColumns:
    schedule.threads = schedule.units = 2 * kWarp;
    return schedule;
  }
  llvm_unreachable("a kind of kernels without a schedule");
}

//===----------------------------------------------------------------------===//
// The function
//===----------------------------------------------------------------------===//

void KernelBuilder::beginOnGpu() {
  OpBuilder &b = front();
  block = gpu::BlockIdOp::create(b, loc, gpu::Dimension::x);
  thread = gpu::ThreadIdOp::create(b, loc, gpu::Dimension::x);
  const KernelShape &shape = plan.shape;
  int64_t range = shape.kind == KernelShape::Kind::Map    ? shape.elements()
                  : shape.kind == KernelShape::Kind::Rows ? (shape.chunks ? shape.chunks : shape.rows)
                  : shape.kind == KernelShape::Kind::OwnByRows ? shape.rows
                                                               : shape.cols;
  auto add = [&](Value l, Value r) -> Value { return arith::AddIOp::create(b, loc, l, r); };
  begin = arith::MulIOp::create(b, loc, block, constantIndex(gpu->units));
  end = arith::MinUIOp::create(b, loc, add(begin, constantIndex(gpu->units)), constantIndex(range));
  member = constantIndex(0);
  switch (shape.kind) {
  case KernelShape::Kind::Map:
    begin = add(begin, arith::MulIOp::create(b, loc, thread, constantIndex(gpu->lanes)));
    break;
  case KernelShape::Kind::Rows:
    if (gpu->team == gpu->threads) {
      member = thread;
    } else if (gpu->team == 1) {
      begin = add(begin, thread);
    } else {
      Value team = constantIndex(gpu->team);
      member = arith::RemUIOp::create(b, loc, thread, team);
      begin = add(begin, arith::DivUIOp::create(b, loc, thread, team));
    }
    break;
  case KernelShape::Kind::Columns:
    break;
  case KernelShape::Kind::OwnByRows:
  case KernelShape::Kind::OwnByColumns:
    begin = add(begin, thread);
    end = arith::MinUIOp::create(b, loc, add(begin, constantIndex(1)), end);
    break;
  }
  function->setAttr(kGpuBlocksAttr, b.getI64IntegerAttr(llvm::divideCeil(range, gpu->units)));
  function->setAttr(kGpuThreadsAttr, b.getI64IntegerAttr(gpu->threads));
}

void KernelBuilder::endOnGpu() {
  OpBuilder &b = top().builder;
  if (status) {
    Value zero = arith::ConstantOp::create(b, loc, b.getI64IntegerAttr(0));
    Value code = memref::LoadOp::create(b, loc, status, constantIndex(0));
    Value isBad = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ne, code, zero);
    where(isBad, [&] {
      OpBuilder &then = top().builder;
      Value number = arith::IndexCastOp::create(then, loc, then.getI64Type(), block);
      Value sixteen = arith::ConstantOp::create(then, loc, then.getI64IntegerAttr(16));
      Value told = arith::OrIOp::create(then, loc, arith::ShLIOp::create(then, loc, number, sixteen).getResult(), code);
      memref::AtomicRMWOp::create(then, loc, arith::AtomicRMWKind::minu, told, function.getArguments().back(),
                                  ValueRange(constantIndex(0)));
    });
  }
  func::ReturnOp::create(b, loc, ValueRange());
}

//===----------------------------------------------------------------------===//
// Teams of threads
//===----------------------------------------------------------------------===//

Value KernelBuilder::shared(int64_t elements, Type type) {
  OpBuilder &b = front();
  auto space = gpu::AddressSpaceAttr::get(b.getContext(), gpu::AddressSpace::Workgroup);
  return memref::AllocaOp::create(b, loc, MemRefType::get({elements}, type, MemRefLayoutAttrInterface(), space));
}

void KernelBuilder::where(Value condition, function_ref<void()> write) {
  OpBuilder &outer = top().builder;
  auto branch = scf::IfOp::create(outer, loc, condition, /*withElseRegion=*/false);
  outer.setInsertionPoint(branch);
  Scope inner(branch.getThenBodyBuilder());
  inner.guarded = true;
  scopes.push_back(&inner);
  write();
  scopes.pop_back();
  outer.setInsertionPointAfter(branch);
}

void KernelBuilder::teamBarrier() {
  OpBuilder &b = top().builder;
  if (gpu->team > kWarp)
    gpu::BarrierOp::create(b, loc);
  else if (gpu->team == kWarp)
    NVVM::SyncWarpOp::create(b, loc, arith::ConstantOp::create(b, loc, b.getI32IntegerAttr(-1)).getResult());
}

Value KernelBuilder::teamReduce(ReduceKind kind, Value value) {
  if (gpu->team == 1)
    return value;
  OpBuilder &b = top().builder;
  // Shuffles move words of 32 or 64 bits.
  Type type = value.getType();
  auto integer = dyn_cast<IntegerType>(type);
  bool isNarrow = integer && integer.getWidth() < 32;
  if (isNarrow)
    value = arith::ExtSIOp::create(b, loc, b.getI32Type(), value);
  Value width = arith::ConstantOp::create(b, loc, b.getI32IntegerAttr(kWarp));
  for (int32_t distance = kWarp / 2; distance > 0; distance /= 2) {
    Value offset = arith::ConstantOp::create(b, loc, b.getI32IntegerAttr(distance));
    auto other = gpu::ShuffleOp::create(b, loc, value, offset, width, gpu::ShuffleMode::XOR);
    value = combine(kind, value, other.getShuffleResult(), b);
  }
  int64_t warps = gpu->team / kWarp;
  if (warps > 1) {
    Value sums = shared(warps, value.getType()), warp = constantIndex(kWarp);
    Value lane = arith::RemUIOp::create(b, loc, member, warp), number = arith::DivUIOp::create(b, loc, member, warp);
    where(arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, lane, constantIndex(0)),
          [&] { memref::StoreOp::create(top().builder, loc, value, sums, number); });
    gpu::BarrierOp::create(b, loc);
    for (int64_t at = 0; at < warps; ++at) {
      Value sum = memref::LoadOp::create(b, loc, sums, constantIndex(at));
      value = at ? combine(kind, value, sum, b) : sum;
    }
    // The next sums of this team come to the same place.
    gpu::BarrierOp::create(b, loc);
  }
  return isNarrow ? arith::TruncIOp::create(b, loc, type, value).getResult() : value;
}

SmallVector<Value> KernelBuilder::threadLoop(ValueRange initial, function_ref<SmallVector<Value>(ValueRange)> write) {
  int64_t step = gpu->team * gpu->lanes;
  bool isEven = plan.shape.cols % step == 0;
  Value first = member;
  if (gpu->lanes != 1)
    first = arith::MulIOp::create(top().builder, loc, member, constantIndex(gpu->lanes));
  // Where all threads make the same number of rounds, LLVM knows that number.
  auto results = loop(isEven ? constantIndex(0) : first, constantIndex(plan.shape.cols), step, initial,
                      [&](Value at, ValueRange carried) -> SmallVector<Value> {
                        laneBase = isEven ? arith::AddIOp::create(top().builder, loc, at, first).getResult() : at;
                        return write(carried);
                      });
  laneBase = {};
  return results;
}

//===----------------------------------------------------------------------===//
// Columns
//===----------------------------------------------------------------------===//

void KernelBuilder::buildColumnsOnGpu() {
  OpBuilder &b = top().builder;
  Value columns = constantIndex(gpu->columns), rows = constantIndex(plan.shape.rows);
  int64_t stripes = gpu->threads / gpu->columns;
  Value lane = arith::RemUIOp::create(b, loc, thread, columns), stripe = arith::DivUIOp::create(b, loc, thread, columns);
  Value column = arith::AddIOp::create(b, loc, begin, lane);
  Value isInside = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ult, column, end);
  blockStart = begin;
  rowScope = innermost();
  defineColumn(column);

  SmallVector<Value> initial;
  for (ReduceOp reduce : plan.columnReduces)
    initial.push_back(identity(reduce.getKind(), computeType(elementOf(reduce.getInput())), b));
  // A thread beyond the last column walks no row.
  Value last = arith::SelectOp::create(b, loc, isInside, rows, constantIndex(0));
  auto sums = loop(stripe, last, stripes, initial, [&](Value row, ValueRange carried) -> SmallVector<Value> {
    for (const LoopPlan::Loop &each : plan.rowLoops)
      define(each.variable, row);
    SmallVector<Value> next;
    for (ReduceOp reduce : plan.columnReduces)
      next.push_back(element(reduce.getInput(), plan.element));
    if (failedToBuild)
      return SmallVector<Value>(carried);
    for (auto [value, reduce, sum] : llvm::zip_equal(next, plan.columnReduces, carried))
      value = combine(reduce.getKind(), sum, value, top().builder);
    return next;
  });

  for (auto [reduce, sum] : llvm::zip_equal(plan.columnReduces, sums)) {
    Value all = shared(gpu->threads, sum.getType());
    memref::StoreOp::create(b, loc, sum, all, thread);
    columnSums[reduce.getResult()] = all;
  }
  gpu::BarrierOp::create(b, loc);
  Value isFirst = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, stripe, constantIndex(0));
  where(arith::AndIOp::create(b, loc, isInside, isFirst), [&] {
    OpBuilder &then = top().builder;
    // The stripes' sums are added in their order, and take the place of the first.
    for (ReduceOp reduce : plan.columnReduces) {
      Value all = columnSums.lookup(reduce.getResult());
      Value sum = memref::LoadOp::create(then, loc, all, lane);
      for (int64_t at = 1; at < stripes; ++at) {
        Value place = arith::AddIOp::create(then, loc, lane, constantIndex(at * gpu->columns));
        sum = combine(reduce.getKind(), sum, memref::LoadOp::create(then, loc, all, place), then);
      }
      if (reduce.getKind() == ReduceKind::Mean) {
        Value count = arith::ConstantOp::create(then, loc, then.getFloatAttr(sum.getType(), static_cast<double>(plan.shape.rows)));
        sum = arith::DivFOp::create(then, loc, sum, count);
      }
      memref::StoreOp::create(then, loc, sum, all, lane);
    }
    storeColumn(column);
  });
}
