//===- Tiles.h - a tile of a product of two matrices ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Products whose operands no library reads: codes, groups of rows, places of images. A
// block computes 64 x 64 sums, a thread 4 x 4 of them, over slices of both operands in
// shared memory; the next slice is fetched while this one is multiplied. Each sum is one
// accumulator in f32 that adds its terms in their order: the same bits at each run, on
// each grid, and wherever the sum lies in its tile.
//
// An operand is a struct of one thread and one tile. It knows which four neighbours the
// thread brings, along the depth or across it:
//
//   static constexpr bool alongDepth;
//   void fetch(int64_t depth, float (&four)[4]) const;   // zeros beyond the matrix
//
// where `depth` is the first (or only) index of what is summed over, and the first (or
// only) row or column of the four is that of the tile plus tileOffset<alongDepth>().
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_BUILTIN_TILES_H
#define SEGUE_LIB_CUDA_BUILTIN_TILES_H

#include "Numbers.h"

namespace gpu {
inline constexpr int tileExtent = 64, tileDepth = 16, threadExtent = 4;

/// What one access reads.
using FourFloats [[gnu::vector_size(16), gnu::may_alias]] = float;
using FourHalves [[gnu::vector_size(8), gnu::may_alias]] = uint16_t;

GPU_FUNCTION FourFloats fourFloats(const float *at) { return *reinterpret_cast<const FourFloats *>(at); }

/// Slices of the operands, by depth. The pitch keeps rows at multiples of 16 bytes.
struct ProductTiles {
  alignas(16) float a[tileDepth][tileExtent + 4], b[tileDepth][tileExtent + 4];
};

/// The sums of a thread: rows and columns of the tile from firstRow() and firstColumn() on.
struct TileSums {
  float at[threadExtent][threadExtent] = {};
};
GPU_FUNCTION int firstRow() { return int(thread()) / (tileExtent / threadExtent) * threadExtent; }
GPU_FUNCTION int firstColumn() { return int(thread()) % (tileExtent / threadExtent) * threadExtent; }

/// The first row or column, and the first depth of a slice, that the thread brings.
template <bool alongDepth> GPU_FUNCTION int tileOffset() {
  return alongDepth ? int(thread()) / (tileDepth / 4) : int(thread()) % (tileExtent / 4) * 4;
}
template <bool alongDepth> GPU_FUNCTION int depthOffset() {
  return alongDepth ? int(thread()) % (tileDepth / 4) * 4 : int(thread()) / (tileExtent / 4);
}

template <bool alongDepth>
GPU_FUNCTION void placeFour(float (&slice)[tileDepth][tileExtent + 4], const float (&four)[4]) {
  int at = tileOffset<alongDepth>(), depth = depthOffset<alongDepth>();
  GPU_UNROLL
  for (int i = 0; i < 4; ++i)
    slice[alongDepth ? depth + i : depth][alongDepth ? at : at + i] = four[i];
}

GPU_FUNCTION void multiplySlices(const ProductTiles &tiles, TileSums &sums) {
  int row = firstRow(), column = firstColumn();
  GPU_UNROLL
  for (int d = 0; d < tileDepth; ++d) {
    FourFloats left = fourFloats(&tiles.a[d][row]), right = fourFloats(&tiles.b[d][column]);
    GPU_UNROLL
    for (int i = 0; i < threadExtent; ++i)
      GPU_UNROLL
      for (int j = 0; j < threadExtent; ++j)
        sums.at[i][j] = multiplyAdd(left[i], right[j], sums.at[i][j]);
  }
}

/// Adds to the sums the products over [begin, end) of the depth: multiples of tileDepth, or the whole depth's end, from
/// which on the operands give zeros. Called by all threads of the block.
template <typename A, typename B>
GPU_FUNCTION void multiplyTile(ProductTiles &tiles, int64_t begin, int64_t end, const A &a, const B &b,
                               TileSums &sums) {
  float nextA[4] = {}, nextB[4] = {};
  GPU_KEEP_LOOP
  for (int64_t next = begin;; next += tileDepth) {
    bool isMore = next < end;
    if (isMore) {
      a.fetch(next + depthOffset<A::alongDepth>(), nextA);
      b.fetch(next + depthOffset<B::alongDepth>(), nextB);
    }
    if (next > begin)
      multiplySlices(tiles, sums);
    if (!isMore)
      break;
    waitForBlock(); // others may still read the last slices
    placeFour<A::alongDepth>(tiles.a, nextA);
    placeFour<B::alongDepth>(tiles.b, nextB);
    waitForBlock();
  }
}

/// Calls `store(row, column, sum)` for the sums of the thread: rows and columns of the tile.
template <typename Store> GPU_FUNCTION void storeTile(const TileSums &sums, Store store) {
  GPU_UNROLL
  for (int i = 0; i < threadExtent; ++i)
    GPU_UNROLL
    for (int j = 0; j < threadExtent; ++j)
      store(firstRow() + i, firstColumn() + j, sums.at[i][j]);
}

//===----------------------------------------------------------------------===//
// Four elements
//===----------------------------------------------------------------------===//

/// Returns whether four elements may be read at once wherever an index is a multiple of four.
GPU_FUNCTION bool readsFour(const void *data, segue::ElementType type, int64_t stride) {
  uint64_t bytes = type == segue::ElementType::f32 ? 4 : 2;
  return reinterpret_cast<uint64_t>(data) % (4 * bytes) == 0 && stride % 4 == 0;
}

/// Reads f32, bf16 or f16 elements [index, index + 4) at once.
GPU_FUNCTION void fourElements(const void *data, segue::ElementType type, int64_t index, float (&four)[4]) {
  using namespace segue::elements;
  if (type == segue::ElementType::f32) {
    FourFloats word = fourFloats(static_cast<const float *>(data) + index);
    GPU_UNROLL
    for (int i = 0; i < 4; ++i)
      four[i] = word[i];
    return;
  }
  FourHalves word = *reinterpret_cast<const FourHalves *>(static_cast<const uint16_t *>(data) + index);
  GPU_UNROLL
  for (int i = 0; i < 4; ++i)
    four[i] = type == segue::ElementType::bf16 ? toFloat(Bf16{uint16_t(word[i])}) : toFloat(F16{uint16_t(word[i])});
}

/// Reads `count` elements from `index` on, at most four; zeros are the rest.
GPU_FUNCTION void someElements(const void *data, segue::ElementType type, int64_t index, int64_t count, bool atOnce,
                               float (&four)[4]) {
  if (atOnce && count >= 4)
    return fourElements(data, type, index, four);
  GPU_UNROLL
  for (int i = 0; i < 4; ++i)
    four[i] = i < count ? element(data, type, index + i) : 0.0f;
}

/// An operand whose elements are adjacent along the depth: rows of the left one, or columns of the right one, from
/// `first` on of `count`, `stride` elements apart.
struct AlongDepth {
  static constexpr bool alongDepth = true;
  const void *data;
  segue::ElementType type;
  int64_t stride, depth, at;
  bool isThere, atOnce;

  GPU_FUNCTION AlongDepth make(const void *data, segue::ElementType type, int64_t stride, int64_t depth, int64_t first,
                               int64_t count) {
    int64_t at = first + tileOffset<true>();
    return {data, type, stride, depth, at * stride, at < count, readsFour(data, type, stride)};
  }
  GPU_MEMBER void fetch(int64_t l, float (&four)[4]) const {
    someElements(data, type, at + l, isThere ? depth - l : 0, atOnce, four);
  }
};

/// The same where they are adjacent across the depth: `stride` is from one element of the depth to the next.
struct AcrossDepth {
  static constexpr bool alongDepth = false;
  const void *data;
  segue::ElementType type;
  int64_t stride, depth, at, count;
  bool atOnce;

  GPU_FUNCTION AcrossDepth make(const void *data, segue::ElementType type, int64_t stride, int64_t depth, int64_t first,
                                int64_t count) {
    int64_t at = first + tileOffset<false>();
    return {data, type, stride, depth, at, count - at, readsFour(data, type, stride)};
  }
  GPU_MEMBER void fetch(int64_t l, float (&four)[4]) const {
    someElements(data, type, l * stride + at, l < depth ? count : 0, atOnce, four);
  }
};
} // namespace gpu

#endif // SEGUE_LIB_CUDA_BUILTIN_TILES_H
