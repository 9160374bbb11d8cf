//===- ShapeOps.cpp - evaluates ops that make or move elements ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Evaluators.h"

using namespace mlir;
using namespace segue;
using namespace segue::interpreter;

//===----------------------------------------------------------------------===//
// Values from nothing
//===----------------------------------------------------------------------===//

static LogicalResult evaluateConstant(ConstantOp op, const Frame &, Results out) {
  FailureOr<HostTensor> elements = constantOf(op, op.getValue());
  if (succeeded(elements))
    out[0] = std::move(*elements);
  return elements;
}

static LogicalResult evaluateIota(IotaOp op, const Frame &, Results out) {
  forEachIndex(out[0].type.getShape(), [&](ArrayRef<int64_t> index, int64_t i) {
    if (out[0].isFloat())
      out[0].floats[i] = static_cast<double>(index[op.getDim()]);
    else
      out[0].ints[i] = index[op.getDim()];
  });
  return success();
}

static std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    uint64_t a = uint64_t(0xD2511F53) * counter[0], b = uint64_t(0xCD9E8D57) * counter[2];
    counter = {uint32_t(b >> 32) ^ counter[1] ^ key[0], uint32_t(b), uint32_t(a >> 32) ^ counter[3] ^ key[1],
               uint32_t(a)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

double interpreter::drawUniform(uint64_t seed, uint64_t step, int64_t id, int64_t element) {
  uint64_t block = element / 4;
  std::array<uint32_t, 4> words =
      philox({uint32_t(block), uint32_t(block >> 32) ^ uint32_t(id), uint32_t(step), uint32_t(step >> 32)},
             {uint32_t(seed), uint32_t(seed >> 32)});
  return (words[element % 4] >> 8) * 0x1p-24;
}

static LogicalResult evaluateRandom(RandomOp op, const Frame &in, Results out) {
  for (int64_t i = 0; i < out[0].size(); ++i)
    out[0].floats[i] = drawUniform(in[op.getSeed()].ints[0], in[op.getStep()].ints[0], op.getId(), i);
  return success();
}

void interpreter::addSources(EvaluatorTable &table) {
  table.add(evaluateConstant);
  table.add(evaluateIota);
  table.add(evaluateRandom);
}

//===----------------------------------------------------------------------===//
// Shape ops
//===----------------------------------------------------------------------===//

static LogicalResult evaluateReshape(ReshapeOp op, const Frame &in, Results out) {
  const HostTensor &input = in[op.getInput()];
  for (int64_t i = 0; i < input.size(); ++i)
    copyElement(out[0], i, input, i);
  return success();
}

static LogicalResult evaluateToLayout(ToLayoutOp op, const Frame &in, Results out) {
  const HostTensor &input = in[op.getInput()];
  for (int64_t i = 0; i < input.size(); ++i)
    copyElement(out[0], i, input, i);
  return success();
}

static LogicalResult evaluateTranspose(TransposeOp op, const Frame &in, Results out) {
  const HostTensor &input = in[op.getInput()];
  SmallVector<int64_t> from(input.type.getRank());
  forEachIndex(out[0].type.getShape(), [&](ArrayRef<int64_t> index, int64_t i) {
    for (auto [k, dim] : llvm::enumerate(op.getPermutation()))
      from[dim] = index[k];
    copyElement(out[0], i, input, positionOf(input.type.getShape(), from));
  });
  return success();
}

static LogicalResult evaluateBroadcast(BroadcastOp op, const Frame &in, Results out) {
  const HostTensor &input = in[op.getInput()];
  SmallVector<int64_t> from(input.type.getRank());
  forEachIndex(out[0].type.getShape(), [&](ArrayRef<int64_t> index, int64_t i) {
    for (auto [k, dim] : llvm::enumerate(op.getDims()))
      from[k] = input.type.getDimSize(k) == 1 ? 0 : index[dim];
    copyElement(out[0], i, input, positionOf(input.type.getShape(), from));
  });
  return success();
}

static LogicalResult evaluateSlice(SliceOp op, const Frame &in, Results out) {
  const HostTensor &input = in[op.getInput()];
  SmallVector<int64_t> from(input.type.getRank());
  forEachIndex(out[0].type.getShape(), [&](ArrayRef<int64_t> index, int64_t i) {
    for (size_t k = 0; k < from.size(); ++k)
      from[k] = op.getStarts()[k] + index[k] * op.getSteps()[k];
    copyElement(out[0], i, input, positionOf(input.type.getShape(), from));
  });
  return success();
}

static LogicalResult evaluatePad(PadOp op, const Frame &in, Results out) {
  const HostTensor &input = in[op.getInput()];
  HostTensor value = HostTensor::fromAttr(
      DenseElementsAttr::get(RankedTensorType::get({}, input.type.getElementType()), Attribute(op.getValue())));
  for (int64_t i = 0; i < out[0].size(); ++i)
    copyElement(out[0], i, value, 0);
  SmallVector<int64_t> to(input.type.getRank());
  forEachIndex(input.type.getShape(), [&](ArrayRef<int64_t> index, int64_t i) {
    for (size_t k = 0; k < to.size(); ++k)
      to[k] = op.getLow()[k] + index[k] * (op.getInterior()[k] + 1);
    copyElement(out[0], positionOf(out[0].type.getShape(), to), input, i);
  });
  return success();
}

static LogicalResult evaluateConcat(ConcatOp op, const Frame &in, Results out) {
  int64_t offset = 0;
  for (Value value : op.getInputs()) {
    const HostTensor &input = in[value];
    forEachIndex(input.type.getShape(), [&](ArrayRef<int64_t> index, int64_t i) {
      SmallVector<int64_t> to(index);
      to[op.getDim()] += offset;
      copyElement(out[0], positionOf(out[0].type.getShape(), to), input, i);
    });
    offset += input.type.getDimSize(op.getDim());
  }
  return success();
}

void interpreter::addShapeOps(EvaluatorTable &table) {
  table.add(evaluateReshape);
  table.add(evaluateToLayout);
  table.add(evaluateTranspose);
  table.add(evaluateBroadcast);
  table.add(evaluateSlice);
  table.add(evaluatePad);
  table.add(evaluateConcat);
}
