//===- CodeProducts.cu - products that read codes -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The kernels do what QuantizedMatmul.h says, in f32; QuantizedProducts.cpp chooses among them.
//
//   multiplyFewRows   y = x W'ᵀ of up to 8 rows: a warp per row of codes, which it reads once
//   multiplyCodes     both forms, by tiles
//   widenCodes        a panel of the weight as floats, for a product of cuBLASLt
//   finishColumns     scales and bias of the sums of such a product
//
// Codes of row storages are multiplied as they are, less the zero point, where each column
// of the result has one scale: it comes behind the last term. Scales that differ along the
// sum are part of what is multiplied. A bias comes last, then one rounding.
//
//===----------------------------------------------------------------------===//

#include "Codes.h"
#include "Tiles.h"

#include "BuiltinArgs.h"

using namespace segue;
using namespace segue::cuda;

namespace {
/// multiplyFewRows: the codes of a thread and of a warp at a time.
constexpr int codesOfThread = 16, sliceCodes = codesOfThread * int(gpu::warpThreads);
using WordsOfCodes [[gnu::vector_size(16), gnu::may_alias]] = uint32_t;

/// The scale of a row of codes, or of the group at `column` of it.
GPU_FUNCTION float scaleAt(const CodesArgs &args, int64_t row, int64_t column) {
  if (int64_t group = groupExtent(args.storage))
    return bf16ToFloat(static_cast<const uint16_t *>(args.scales)[column / group * args.out + row]);
  return static_cast<const float *>(args.scales)[row];
}

GPU_FUNCTION float zeroPointAt(const CodesArgs &args, int64_t row) {
  return args.zeroPoints ? args.zeroPoints[row] : 0.0f;
}

/// Where element `column` of a row of codes lies; an even one where two share a byte.
GPU_FUNCTION const std::byte *codesAt(const CodesArgs &args, int64_t row, int64_t column) {
  int64_t index = row * args.codeStride + column;
  return static_cast<const std::byte *>(args.codes) + (isGroupStorage(args.storage) ? index / 2 : index);
}

/// Returns whether words of so many bytes may be read wherever as many codes begin.
GPU_FUNCTION bool readsWords(const CodesArgs &args, int64_t bytes) {
  int64_t stride = isGroupStorage(args.storage) ? args.codeStride / 2 : args.codeStride;
  return reinterpret_cast<uint64_t>(args.codes) % uint64_t(bytes) == 0 && stride % bytes == 0;
}

/// Four elements of a row of codes from `column`, a multiple of four, on. Those of a group storage, and with `scaled`
/// all, are times their scale. From `end` on codes count as 0: x has zeros there, or nobody asks for the result.
GPU_FUNCTION void fourCodes(const CodesArgs &args, int64_t row, int64_t column, int64_t end, bool scaled, bool atOnce,
                            float (&four)[4]) {
  bool isGroup = isGroupStorage(args.storage);
  const std::byte *at = codesAt(args, row, column);
  int64_t count = end - column;
  uint32_t word = 0;
  if (count > 0 && atOnce && count >= 4)
    word = isGroup ? *reinterpret_cast<const uint16_t *>(at) : *reinterpret_cast<const uint32_t *>(at);
  else
    for (int i = 0; i < 4 && i < count; i += isGroup ? 2 : 1)
      word |= uint32_t(at[isGroup ? i / 2 : i]) << (isGroup ? 4 * i : 8 * i);
  float scale = count > 0 && (scaled || isGroup) ? scaleAt(args, row, column) : 1.0f;
  float zeroPoint = count > 0 ? zeroPointAt(args, row) : 0.0f;
  GPU_UNROLL
  for (int i = 0; i < 4; ++i) {
    float value = isGroup ? gpu::halfByteValue(word >> (4 * i))
                          : gpu::codeValue(uint8_t(word >> (8 * i)), args.storage) - zeroPoint;
    four[i] = scaled || isGroup ? value * scale : value;
  }
}

/// Columns of the result that are rows of codes, [in] deep.
struct CodesAlongDepth {
  static constexpr bool alongDepth = true;
  const CodesArgs &args;
  int64_t row;
  bool atOnce;

  GPU_MEMBER void fetch(int64_t l, float (&four)[4]) const {
    fourCodes(args, row, l, row < args.out ? args.in : 0, /*scaled=*/false, atOnce, four);
  }
};

/// Columns of the result that are columns of codes, [out] deep.
struct CodesAcrossDepth {
  static constexpr bool alongDepth = false;
  const CodesArgs &args;
  int64_t column;
  bool atOnce;

  GPU_MEMBER void fetch(int64_t l, float (&four)[4]) const {
    fourCodes(args, l, column, l < args.out ? args.in : 0, /*scaled=*/true, atOnce, four);
  }
};

/// Writes a sum, which becomes a number of the result by the scale of its column, if that comes last, and the bias.
GPU_FUNCTION void storeSum(const CodesArgs &args, bool scalesLast, int64_t row, int64_t column, float sum) {
  if (scalesLast)
    sum *= static_cast<const float *>(args.scales)[column];
  if (args.bias)
    sum += gpu::element(args.bias, args.biasElement, column);
  gpu::setElement(args.y, args.yElement, row * args.yStride + column, sum);
}
} // namespace

GPU_KERNEL(multiplyCodes, CodesArgs) {
  GPU_SHARED gpu::ProductTiles tiles;
  constexpr int64_t extent = gpu::tileExtent;
  int64_t depth = args.transposed ? args.out : args.in, columns = args.transposed ? args.in : args.out;
  int64_t rowTiles = (args.rows + extent - 1) / extent, columnTiles = (columns + extent - 1) / extent;
  bool atOnce = readsWords(args, isGroupStorage(args.storage) ? 2 : 4);
  bool scalesLast = !args.transposed && isRowStorage(args.storage);
  // Rows first: the tiles that read the same codes are neighbours in time.
  for (int64_t tile = gpu::block(); tile < rowTiles * columnTiles; tile += gpu::blocks()) {
    int64_t row = tile % rowTiles * extent, column = tile / rowTiles * extent;
    auto x = gpu::AlongDepth::make(args.x, args.xElement, args.xStride, depth, row, args.rows);
    gpu::TileSums sums;
    if (args.transposed)
      gpu::multiplyTile(tiles, 0, depth, x, CodesAcrossDepth{args, column + gpu::tileOffset<false>(), atOnce}, sums);
    else
      gpu::multiplyTile(tiles, 0, depth, x, CodesAlongDepth{args, column + gpu::tileOffset<true>(), atOnce}, sums);
    gpu::storeTile(sums, [&](int i, int j, float sum) {
      if (row + i < args.rows && column + j < columns)
        storeSum(args, scalesLast, row + i, column + j, sum);
    });
  }
}

//===----------------------------------------------------------------------===//
// Few rows
//===----------------------------------------------------------------------===//

/// Sixteen codes of a row, from a multiple of sixteen on: 16 bytes, or 8 of a group storage. From `end` on they
/// count as 0, but for the rest of a group: x has zeros there.
GPU_FUNCTION WordsOfCodes sixteenCodes(const CodesArgs &args, int64_t row, int64_t column, int64_t end, bool atOnce) {
  bool isGroup = isGroupStorage(args.storage);
  int64_t count = end - column;
  WordsOfCodes words = {0, 0, 0, 0};
  if (count <= 0)
    return words;
  const std::byte *at = codesAt(args, row, column);
  if (atOnce && isGroup) {
    uint64_t both = *reinterpret_cast<const uint64_t *>(at);
    words[0] = uint32_t(both);
    words[1] = uint32_t(both >> 32);
    return words;
  }
  if (atOnce && count >= codesOfThread)
    return *reinterpret_cast<const WordsOfCodes *>(at);
  int64_t bytes = isGroup ? (count + 1) / 2 : count;
  GPU_UNROLL
  for (int i = 0; i < 16; ++i)
    if (i < bytes && (!isGroup || i < 8))
      words[i / 4] |= uint32_t(at[i]) << (i % 4 * 8);
  return words;
}

/// Writes a slice of x to shared memory: zeros beyond it, and the fours that a warp reads at once side by side.
GPU_FUNCTION void loadSlice(const CodesArgs &args, int64_t first, float (&slice)[CodesArgs::fewRows][sliceCodes]) {
  GPU_KEEP_LOOP
  for (int i = int(gpu::thread()); i < int(args.rows) * sliceCodes; i += int(gpu::blockThreads)) {
    int row = i / sliceCodes, column = i % sliceCodes;
    int lane = column / codesOfThread, quarter = column % codesOfThread / 4;
    slice[row][(quarter * int(gpu::warpThreads) + lane) * 4 + column % 4] =
        first + column < args.in ? gpu::element(args.x, args.xElement, row * args.xStride + first + column) : 0.0f;
  }
}

GPU_KERNEL(multiplyFewRows, CodesArgs) {
  constexpr int mostRows = CodesArgs::fewRows, warps = int(gpu::blockThreads / gpu::warpThreads);
  GPU_SHARED struct {
    alignas(16) float x[mostRows][sliceCodes];
  } shared;
  bool isGroup = isGroupStorage(args.storage);
  bool atOnce = readsWords(args, isGroup ? 8 : 16);
  int lane = int(gpu::thread() % gpu::warpThreads);
  int64_t step = int64_t(gpu::blocks()) * warps;
  for (int64_t firstRow = int64_t(gpu::block()) * warps; firstRow < args.out; firstRow += step) {
    int64_t row = firstRow + gpu::thread() / gpu::warpThreads, end = row < args.out ? args.in : 0;
    float sums[mostRows] = {};
    float zeroPoint = end ? zeroPointAt(args, row) : 0.0f;
    // The next codes are on their way while these are multiplied.
    WordsOfCodes next = sixteenCodes(args, row, lane * codesOfThread, end, atOnce);
    GPU_KEEP_LOOP
    for (int64_t slice = 0; slice < args.in; slice += sliceCodes) {
      gpu::waitForBlock(); // others may still read the last slice
      loadSlice(args, slice, shared.x);
      WordsOfCodes words = next;
      int64_t first = slice + lane * codesOfThread;
      next = sixteenCodes(args, row, first + sliceCodes, end, atOnce);
      gpu::waitForBlock();
      if (first >= end)
        continue;
      // Sixteen codes lie in one group.
      float scale = isGroup ? scaleAt(args, row, first) : 1.0f;
      GPU_UNROLL
      for (int quarter = 0; quarter < codesOfThread / 4; ++quarter) {
        float weights[4];
        GPU_UNROLL
        for (int k = 0; k < 4; ++k) {
          weights[k] = isGroup ? gpu::halfByteValue(words[quarter / 2] >> (quarter % 2 * 16 + 4 * k)) * scale
                               : gpu::codeValue(uint8_t(words[quarter] >> (8 * k)), args.storage) - zeroPoint;
        }
        GPU_UNROLL
        for (int i = 0; i < mostRows; ++i)
          if (i < args.rows) {
            gpu::FourFloats x = gpu::fourFloats(&shared.x[i][(quarter * int(gpu::warpThreads) + lane) * 4]);
            GPU_UNROLL
            for (int k = 0; k < 4; ++k)
              sums[i] = gpu::multiplyAdd(x[k], weights[k], sums[i]);
          }
      }
    }
    GPU_UNROLL
    for (int i = 0; i < mostRows; ++i) {
      for (int distance = 16; distance; distance /= 2)
        sums[i] += gpu::floatOf(gpu::shuffle(gpu::bitsOf(sums[i]), distance));
      if (lane == i && i < args.rows && row < args.out)
        storeSum(args, !isGroup, i, row, sums[i]);
    }
  }
}

//===----------------------------------------------------------------------===//
// Panels
//===----------------------------------------------------------------------===//

GPU_KERNEL(widenCodes, WidenArgs) {
  const CodesArgs &codes = args.codes;
  bool isGroup = isGroupStorage(codes.storage);
  bool atOnce = readsWords(codes, isGroup ? 2 : 4);
  int64_t quarters = (args.columns + 3) / 4;
  for (int64_t i = gpu::firstIndex(); i < args.rows * quarters; i += gpu::indexStep()) {
    int64_t row = i / quarters, column = i % quarters * 4;
    float four[4];
    fourCodes(codes, args.firstRow + row, args.firstColumn + column, args.firstColumn + args.columns, args.scaled,
              atOnce, four);
    GPU_UNROLL
    for (int k = 0; k < 4; ++k)
      if (column + k < args.columns)
        gpu::setElement(args.codes.y, codes.yElement, row * codes.yStride + column + k, four[k]);
  }
}

GPU_KERNEL(finishColumns, CodesArgs) {
  auto *sums = static_cast<const float *>(args.x);
  for (int64_t i = gpu::firstIndex(); i < args.rows * args.out; i += gpu::indexStep()) {
    int64_t row = i / args.out, column = i % args.out;
    storeSum(args, /*scalesLast=*/true, row, column, sums[row * args.xStride + column]);
  }
}
