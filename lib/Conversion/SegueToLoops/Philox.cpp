//===- Philox.cpp - counter-based random numbers --------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011), with the counter and key of `segue.random`. Every element computes
// its block of four words and takes one: four times the work, but it stays
// elementwise and vectorises.
//
//===----------------------------------------------------------------------===//

#include "Philox.h"
#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;

Value segue::buildPhilox(OpBuilder &b, Location loc, Value seed, Value step, int64_t id, Value index) {
  Type i32 = b.getI32Type(), i64 = b.getI64Type();
  auto word = [&](uint32_t value) -> Value {
    return arith::ConstantOp::create(b, loc, b.getI32IntegerAttr(static_cast<int32_t>(value)));
  };
  auto wide = [&](int64_t value) -> Value { return arith::ConstantOp::create(b, loc, b.getI64IntegerAttr(value)); };
  auto low = [&](Value value) -> Value { return arith::TruncIOp::create(b, loc, i32, value); };
  auto high = [&](Value value) -> Value {
    return low(arith::ShRUIOp::create(b, loc, value, wide(32)).getResult());
  };
  auto exclusiveOr = [&](Value l, Value r) -> Value { return arith::XOrIOp::create(b, loc, l, r); };

  Value at = arith::IndexCastOp::create(b, loc, i64, index);
  Value block = arith::ShRUIOp::create(b, loc, at, wide(2));
  Value c[4] = {low(block), exclusiveOr(high(block), word(static_cast<uint32_t>(id))), low(step), high(step)};
  Value k[2] = {low(seed), high(seed)};
  for (int round = 0; round < 10; ++round) {
    if (round > 0) {
      k[0] = arith::AddIOp::create(b, loc, k[0], word(0x9E3779B9));
      k[1] = arith::AddIOp::create(b, loc, k[1], word(0xBB67AE85));
    }
    auto first = arith::MulUIExtendedOp::create(b, loc, c[0], word(0xD2511F53));
    auto second = arith::MulUIExtendedOp::create(b, loc, c[2], word(0xCD9E8D57));
    Value next[4] = {exclusiveOr(exclusiveOr(second.getHigh(), c[1]), k[0]), second.getLow(),
                     exclusiveOr(exclusiveOr(first.getHigh(), c[3]), k[1]), first.getLow()};
    std::copy(std::begin(next), std::end(next), std::begin(c));
  }

  Value lane = arith::AndIOp::create(b, loc, low(at), word(3));
  auto isLane = [&](uint32_t value) -> Value {
    return arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, lane, word(value));
  };
  Value pick = c[3];
  for (int candidate = 2; candidate >= 0; --candidate)
    pick = arith::SelectOp::create(b, loc, isLane(candidate), c[candidate], pick);
  Value bits = arith::ShRUIOp::create(b, loc, pick, word(8));
  Value number = arith::SIToFPOp::create(b, loc, b.getF32Type(), bits);
  Value scale = arith::ConstantOp::create(b, loc, b.getF32FloatAttr(0x1p-24f));
  return arith::MulFOp::create(b, loc, number, scale);
}
