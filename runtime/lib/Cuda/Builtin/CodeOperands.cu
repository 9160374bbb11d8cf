//===- CodeOperands.cu - operands of products of codes with codes ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// These kernels stand around a product that cuBLASLt makes of two matrices of codes:
//
//   quantizeRows     rows of floats as codes, with a scale each, by a block per row
//   transposeCodes   columns of a weight as rows, since such products read both operands
//                    along the depth
//   finishCodes      numbers of the sums: zero points, scales, bias
//
// A row is quantised by its largest magnitude. One that is 0, or whose scale would be
// denormal, becomes zeros; one with an infinity or NaN has NaN for a scale, and with it
// all of its results.
//
//===----------------------------------------------------------------------===//

#include "Codes.h"

#include "BuiltinArgs.h"

using namespace segue;
using namespace segue::cuda;
using namespace segue::elements;

namespace {
constexpr int transposedTile = 64;
using WordOfCodes [[gnu::may_alias]] = uint32_t;

/// Returns a number of a row: where the scales of a weight lie along the depth, times that scale.
GPU_FUNCTION float numberAt(const QuantizeRowsArgs &args, int64_t row, int64_t column) {
  float number = gpu::element(args.x, args.xElement, row * args.xStride + column);
  return args.factors ? number * args.factors[column] : number;
}

/// Returns the sum of the numbers of the block's threads, in one order. Between two calls the threads wait for each
/// other, as in largestOfBlock.
GPU_FUNCTION float sumOfBlock(float number) {
  GPU_SHARED float sums[gpu::blockThreads / gpu::warpThreads];
  for (int distance = 16; distance; distance /= 2)
    number += gpu::floatOf(gpu::shuffle(gpu::bitsOf(number), distance));
  if (gpu::thread() % gpu::warpThreads == 0)
    sums[gpu::thread() / gpu::warpThreads] = number;
  gpu::waitForBlock();
  float sum = 0;
  for (float each : sums)
    sum += each;
  return sum;
}

template <typename Code> GPU_FUNCTION void quantizeRow(const QuantizeRowsArgs &args, int64_t row) {
  uint32_t largest = 0;
  for (int64_t column = gpu::thread(); column < args.columns; column += gpu::blockThreads)
    largest = gpu::larger(largest, bitsOf(numberAt(args, row, column)) & kMagnitude);
  largest = gpu::largestOfBlock(largest);
  bool isFinite = largest < kInfinity;
  float scale = isFinite ? floatOf(largest) / Code::largest : 0.0f; // denormals are flushed
  float inverse = scale > 0 ? 1.0f / scale : 0.0f, sum = 0;
  uint8_t *codes = static_cast<uint8_t *>(args.codes) + row * args.codeStride;
  for (int64_t column = gpu::thread(); column < args.codeStride; column += gpu::blockThreads) {
    bool isThere = column < args.columns;
    uint8_t code = encodeOne<Code>(isThere ? numberAt(args, row, column) : 0.0f, inverse);
    codes[column] = code;
    if (args.rowSums && isThere)
      sum += args.zeroPoints ? Code::value(code) * args.zeroPoints[column] : Code::value(code);
  }
  if (args.rowSums)
    sum = sumOfBlock(sum);
  if (gpu::thread())
    return;
  args.scales[row] = isFinite ? scale : floatOf(0x7fc00000u);
  if (args.rowSums)
    args.rowSums[row] = sum;
}
} // namespace

GPU_KERNEL(quantizeRows, QuantizeRowsArgs) {
  for (int64_t row = gpu::block(); row < args.rows; row += gpu::blocks()) {
    if (args.storage == StorageType::Int8Row)
      quantizeRow<Int8Code>(args, row);
    else
      quantizeRow<E4M3Code>(args, row);
  }
}

GPU_KERNEL(transposeCodes, TransposeCodesArgs) {
  constexpr int extent = transposedTile, words = extent / 4, lines = int(gpu::blockThreads) / words;
  GPU_SHARED struct {
    alignas(16) uint8_t at[extent][extent + 4];
  } tile;
  int word = int(gpu::thread()) % words * 4, line = int(gpu::thread()) / words;
  int64_t rowTiles = (args.targetStride + extent - 1) / extent, columnTiles = (args.columns + extent - 1) / extent;
  for (int64_t i = gpu::block(); i < rowTiles * columnTiles; i += gpu::blocks()) {
    int64_t firstRow = i % rowTiles * extent, firstColumn = i / rowTiles * extent;
    gpu::waitForBlock(); // others may still read the last tile
    GPU_UNROLL
    for (int pass = 0; pass < extent; pass += lines) {
      int64_t row = firstRow + pass + line, column = firstColumn + word;
      uint32_t four = 0; // rows beyond the last are terms of the sums
      if (row < args.rows && column < args.columns)
        four = *reinterpret_cast<const WordOfCodes *>(static_cast<const uint8_t *>(args.codes) + row * args.codeStride +
                                                      column);
      GPU_UNROLL
      for (int k = 0; k < 4; ++k)
        tile.at[word + k][pass + line] = uint8_t(four >> (8 * k));
    }
    gpu::waitForBlock();
    GPU_UNROLL
    for (int pass = 0; pass < extent; pass += lines) {
      int64_t row = firstRow + word, column = firstColumn + pass + line;
      if (column < args.columns && row < args.targetStride)
        *reinterpret_cast<WordOfCodes *>(static_cast<uint8_t *>(args.target) + column * args.targetStride + row) =
            *reinterpret_cast<const WordOfCodes *>(&tile.at[pass + line][word]);
    }
  }
}

GPU_KERNEL(finishCodes, FinishCodesArgs) {
  for (int64_t i = gpu::firstIndex(); i < args.rows * args.columns; i += gpu::indexStep()) {
    int64_t row = i / args.columns, column = i % args.columns, at = row * args.sumStride + column;
    float sum = args.isInteger ? float(static_cast<const int32_t *>(args.sums)[at])
                               : static_cast<const float *>(args.sums)[at];
    if (args.rowSums)
      sum -= args.zeroPoints ? args.zeroPoints[column] * args.rowSums[row] : args.rowSums[row];
    // First what the sum of the numbers is, which is infinite where that of floats is.
    sum *= args.rowScales[row];
    if (args.scales)
      sum *= args.scales[column];
    if (args.bias)
      sum += gpu::element(args.bias, args.biasElement, column);
    gpu::setElement(args.y, args.yElement, row * args.yStride + column, sum);
  }
}
