//===- VectorKernels.cpp - inner loops of the engine ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Compiled once per instruction set, which SEGUE_ISA names; see CMakeLists.txt.
// Everything here is static, and no header with inline code is included but that
// of the instructions, whose functions are never outlined: so no function compiled
// for one processor can be linked into another.
//
//===----------------------------------------------------------------------===//

#include "VectorKernels.h"
#include <immintrin.h>
#include <utility>

#define SEGUE_CONCAT2(a, b) a##b
#define SEGUE_CONCAT(a, b) SEGUE_CONCAT2(a, b)
#define SEGUE_STRING2(a) #a
#define SEGUE_STRING(a) SEGUE_STRING2(a)

namespace segue::inline runtime {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16, kTileRows = 12, kTileVectors = 2;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kTileRows = 6, kTileVectors = 2;
#else
constexpr int kLanes = 4, kTileRows = 4, kTileVectors = 2;
#endif
constexpr int kPanel = kLanes * kTileVectors;

typedef float Vector __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntVector __attribute__((vector_size(kLanes * 4)));
typedef Vector UnalignedVector __attribute__((aligned(4), may_alias));

inline __attribute__((always_inline)) Vector load(const float *p) { return *(const UnalignedVector *)p; }
inline __attribute__((always_inline)) void store(float *p, Vector v) { *(UnalignedVector *)p = v; }
inline __attribute__((always_inline)) Vector splat(float x) { return x - Vector{}; }

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

/// The steps of the depth between asking for a line of b and using it. Measured on an
/// AVX-512 Xeon: 8 gives 4 to 14 % over none, 4 and 16 a little less.
constexpr int64_t kPrefetchAhead = 8;

/// One tile in registers: R rows of a panel. kBlock: a is [rows][panel].
template <int R, bool kBlock>
inline __attribute__((always_inline)) void tile(int64_t depth, const float *a, int64_t aStep, const float *b,
                                                int64_t bStep, Vector (&sum)[R][kTileVectors]) {
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kTileVectors; ++j)
      sum[i][j] = Vector{};
  for (int64_t l = 0; l < depth; ++l) {
    Vector right[kTileVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kTileVectors; ++j)
      __builtin_prefetch(b + kPrefetchAhead * bStep + j * kLanes);
#pragma GCC unroll 4
    for (int j = 0; j < kTileVectors; ++j)
      right[j] = load(b + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      Vector left = splat(kBlock ? a[i * kPanel] : a[i]);
#pragma GCC unroll 4
      for (int j = 0; j < kTileVectors; ++j)
        sum[i][j] += left * right[j];
    }
    a += kBlock ? 1 : aStep;
    b += bStep;
  }
}

template <int R, bool kBlock>
void tileToMemory(int64_t depth, const float *a, int64_t aStep, const float *b, int64_t bStep, float *c, int64_t cStep,
                  bool accumulate) {
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kTileVectors; ++j)
      __builtin_prefetch(c + i * cStep + j * kLanes, /*write=*/1);
  Vector sum[R][kTileVectors];
  tile<R, kBlock>(depth, a, aStep, b, bStep, sum);
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kTileVectors; ++j) {
      float *at = c + i * cStep + j * kLanes;
      store(at, accumulate ? load(at) + sum[i][j] : sum[i][j]);
    }
}

using TileFunction = void (*)(int64_t, const float *, int64_t, const float *, int64_t, float *, int64_t, bool);

/// Fills the table of tile functions for 1 to kTileRows rows, at index rows - 1.
template <bool kBlock, int R> constexpr void fillTable(TileFunction *table) {
  table[R - 1] = tileToMemory<R, kBlock>;
  if constexpr (R > 1)
    fillTable<kBlock, R - 1>(table);
}
struct TileTables {
  TileFunction adjacent[kTileRows] = {}, block[kTileRows] = {};
  constexpr TileTables() {
    fillTable<false, kTileRows>(adjacent);
    fillTable<true, kTileRows>(block);
  }
};
constexpr TileTables tiles;

void multiplyBlockRows(int64_t rows, int64_t depth, const float *a, const float *b, int64_t bStep, float *c,
                       int64_t cStep, bool accumulate) {
  for (int64_t i = 0; i < rows; i += kTileRows) {
    int64_t count = rows - i < kTileRows ? rows - i : kTileRows;
    tiles.block[count - 1](depth, a + i * kPanel, 0, b, bStep, c + i * cStep, cStep, accumulate);
  }
}

void multiplyPacked(const PackedProduct &p) {
  // The rows of a stay in the first-level cache while the panels of b pass by.
  const float *left = p.a;
  for (int64_t i = 0; i < p.rows; i += kTileRows, left += p.aPanelStep) {
    int64_t count = p.rows - i < kTileRows ? p.rows - i : kTileRows;
    TileFunction function = tiles.adjacent[count - 1];
    const float *right = p.b;
    for (int64_t j = 0; j < p.columns; j += kPanel, right += p.bPanelStep) {
      int64_t width = p.columns - j < kPanel ? p.columns - j : kPanel;
      float *at = p.c + i * p.cStep + j;
      if (width == kPanel) {
        function(p.depth, left, kTileRows, right, p.bStep, at, p.cStep, p.accumulate);
        if (p.bias)
          for (int64_t row = 0; row < count; ++row)
            for (int v = 0; v < kPanel; v += kLanes)
              store(at + row * p.cStep + v, load(at + row * p.cStep + v) + load(p.bias + j + v));
        continue;
      }
      float edge[kTileRows * kPanel];
      function(p.depth, left, kTileRows, right, p.bStep, edge, kPanel, false);
      for (int64_t row = 0; row < count; ++row)
        for (int64_t column = 0; column < width; ++column) {
          float sum = edge[row * kPanel + column];
          sum += p.bias ? p.bias[j + column] : 0;
          at[row * p.cStep + column] = p.accumulate ? at[row * p.cStep + column] + sum : sum;
        }
    }
  }
}

//===----------------------------------------------------------------------===//
// Transposition
//===----------------------------------------------------------------------===//

/// Exchanges halves of two vectors: each keeps those of its blocks of `kStep` that are in
/// place, and takes the others from its partner.
template <int kStep, bool kIsSecond, int... kLane>
inline __attribute__((always_inline)) Vector exchange(Vector first, Vector second,
                                                      std::integer_sequence<int, kLane...>) {
  if constexpr (kIsSecond)
    return __builtin_shufflevector(first, second, (kLane & kStep ? kLanes + kLane : kLane + kStep)...);
  else
    return __builtin_shufflevector(first, second, (kLane & kStep ? kLanes + kLane - kStep : kLane)...);
}

/// Transposes a square of kLanes vectors: log2(kLanes) rounds, each of which
/// exchanges the halves of blocks of `kStep` between two vectors.
template <int kStep> inline __attribute__((always_inline)) void transposeSquare(Vector (&v)[kLanes]) {
  if constexpr (kStep >= 1) {
    constexpr std::make_integer_sequence<int, kLanes> lanes;
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i)
      if (!(i & kStep)) {
        Vector first = v[i], second = v[i + kStep];
        v[i] = exchange<kStep, false>(first, second, lanes);
        v[i + kStep] = exchange<kStep, true>(first, second, lanes);
      }
    transposeSquare<kStep / 2>(v);
  }
}

/// The floats of a column between asking for a line of it and using it.
constexpr int64_t kRowPrefetch = 64;

/// Sums of V vectors of columns that lie along the depth: squares of them are turned in registers, so that each lane
/// adds up one column in the order of the depth, as a tile does.
template <int V>
inline __attribute__((always_inline)) void rowTile(int64_t depth, const float *a, const float *const *columns,
                                                   float *sums) {
  Vector sum[V];
#pragma GCC unroll 4
  for (int j = 0; j < V; ++j)
    sum[j] = Vector{};
  int64_t l = 0;
  for (; l + kLanes <= depth; l += kLanes) {
    Vector right[V][kLanes];
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        __builtin_prefetch(columns[j * kLanes + i] + l + kRowPrefetch);
        right[j][i] = load(columns[j * kLanes + i] + l);
      }
      transposeSquare<kLanes / 2>(right[j]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      Vector left = splat(a[l + i]);
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j)
        sum[j] += left * right[j][i];
    }
  }
  for (; l < depth; ++l) {
    Vector left = splat(a[l]);
    for (int j = 0; j < V; ++j) {
      Vector column;
      for (int i = 0; i < kLanes; ++i)
        column[i] = columns[j * kLanes + i][l];
      sum[j] += left * column;
    }
  }
  for (int j = 0; j < V; ++j)
    store(sums + j * kLanes, sum[j]);
}

void multiplyRow(int64_t columns, int64_t depth, const float *a, const float *b, int64_t bStep, float *c,
                 bool accumulate, const float *bias) {
  constexpr int kVectors = 2;
  float sums[kVectors * kLanes];
  const float *at[kVectors * kLanes];
  for (int64_t j = 0; j < columns; j += kVectors * kLanes) {
    int64_t count = columns - j < kVectors * kLanes ? columns - j : kVectors * kLanes;
    for (int64_t i = 0; i < kVectors * kLanes; ++i) // the last column stands for those that are not there
      at[i] = b + (j + (i < count ? i : count - 1)) * bStep;
    rowTile<kVectors>(depth, a, at, sums);
    for (int64_t i = 0; i < count; ++i) {
      float sum = sums[i];
      sum += bias ? bias[j + i] : 0;
      c[j + i] = accumulate ? c[j + i] + sum : sum;
    }
  }
}

void transpose(int64_t rows, int64_t columns, const float *source, int64_t sourceStep, float *target,
               int64_t targetStep) {
  int64_t r = 0;
  for (; r + kLanes <= rows; r += kLanes) {
    int64_t c = 0;
    for (; c + kLanes <= columns; c += kLanes) {
      Vector v[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i)
        v[i] = load(source + (r + i) * sourceStep + c);
      transposeSquare<kLanes / 2>(v);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i)
        store(target + (c + i) * targetStep + r, v[i]);
    }
    for (; c < columns; ++c)
      for (int i = 0; i < kLanes; ++i)
        target[c * targetStep + r + i] = source[(r + i) * sourceStep + c];
  }
  for (; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      target[c * targetStep + r] = source[r * sourceStep + c];
}

constexpr int64_t kFloatsPerLine = 16;

template <int kWidth>
void packWidth(int64_t count, int64_t depth, const float *source, int64_t step, int64_t depthStep, float *target) {
  if (step == 1) {
    // A few lines of the source at a time, each from end to end: whole cache
    // lines and few pages are read, whatever the width.
    constexpr int64_t kLines = 16;
    for (int64_t first = 0; first < depth; first += kLines) {
      int64_t last = depth - first < kLines ? depth : first + kLines;
      for (int64_t l = last; l < depth && l < last + kLines; ++l)
        for (int64_t w = 0; w < count; w += kFloatsPerLine)
          __builtin_prefetch(source + w + l * depthStep);
      for (int64_t p = 0; p < count; p += kWidth)
        for (int64_t l = first; l < last; ++l) {
          const float *from = source + p + l * depthStep;
          float *to = target + p * depth + l * kWidth;
          if (count - p >= kWidth)
            for (int w = 0; w < kWidth; ++w)
              to[w] = from[w];
          else
            for (int64_t w = 0; w < kWidth; ++w)
              to[w] = w < count - p ? from[w] : 0;
        }
    }
    return;
  }
  for (int64_t p = 0; p < count; p += kWidth, target += depth * kWidth) {
    const float *from = source + p * step;
    int64_t width = count - p < kWidth ? count - p : kWidth;
    // The rows of the next panel.
    for (int64_t w = p + kWidth; w < count && w < p + 2 * kWidth && depthStep == 1; ++w)
      for (int64_t l = 0; l < depth; l += kFloatsPerLine)
        __builtin_prefetch(source + w * step + l);
    int64_t l = 0;
    if (width == kWidth && depthStep == 1) {
      constexpr int kVectors = (kWidth + kLanes - 1) / kLanes;
      for (; l + kLanes <= depth; l += kLanes)
#pragma GCC unroll 4
        for (int part = 0; part < kVectors; ++part) {
          Vector v[kLanes];
#pragma GCC unroll 16
          for (int i = 0; i < kLanes; ++i) {
            int w = part * kLanes + i;
            v[i] = w < kWidth ? load(from + w * step + l) : Vector{};
          }
          transposeSquare<kLanes / 2>(v);
        // If the width is no whole vector, the next store overwrites the rest.
#pragma GCC unroll 16
          for (int i = 0; i < kLanes; ++i)
            store(target + (l + i) * kWidth + part * kLanes, v[i]);
        }
    }
    for (; l < depth; ++l)
      for (int64_t w = 0; w < kWidth; ++w)
        target[l * kWidth + w] = w < width ? from[w * step + l * depthStep] : 0;
  }
}

void pack(int64_t count, int64_t depth, const float *source, int64_t step, int64_t depthStep, float *target,
          int64_t width) {
  if (width == kPanel)
    packWidth<kPanel>(count, depth, source, step, depthStep, target);
  else
    packWidth<kTileRows>(count, depth, source, step, depthStep, target);
}

//===----------------------------------------------------------------------===//
// Small loops: the compiler vectorises them
//===----------------------------------------------------------------------===//

void scale(int64_t count, float factor, float *data) {
  for (int64_t i = 0; i < count; ++i)
    data[i] *= factor;
}

void scaleColumns(int64_t rows, const float *factors, float *data) {
  for (int64_t r = 0; r < rows; ++r)
    for (int i = 0; i < kPanel; i += kLanes)
      store(data + r * kPanel + i, load(data + r * kPanel + i) * load(factors + i));
}

float dot(int64_t count, const float *a, const float *b) {
  Vector sum{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    sum += load(a + i) * load(b + i);
  float total = 0;
  for (int lane = 0; lane < kLanes; ++lane)
    total += sum[lane];
  for (; i < count; ++i)
    total += a[i] * b[i];
  return total;
}

void multiply(int64_t count, const float *factors, float *data) {
  for (int64_t i = 0; i < count; ++i)
    data[i] *= factors[i];
}

typedef double DoubleVector __attribute__((vector_size(kLanes * 4)));
typedef DoubleVector UnalignedDoubles __attribute__((aligned(8), may_alias));
constexpr int kDoubleLanes = kLanes / 2, kDoubleVectors = 16 / kDoubleLanes;

/// R rows of a panel of 16 columns; the sums stay in registers.
template <int R>
void doubleRows(int64_t depth, const double *a, int64_t rowStep, int64_t depthStep, const double *b, double *sums) {
  DoubleVector sum[R][kDoubleVectors];
#pragma GCC unroll 4
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < kDoubleVectors; ++j)
      sum[i][j] = *(const UnalignedDoubles *)(sums + i * 16 + j * kDoubleLanes);
  for (int64_t l = 0; l < depth; ++l, b += 16)
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
      double left = a[i * rowStep + l * depthStep];
#pragma GCC unroll 8
      for (int j = 0; j < kDoubleVectors; ++j)
        sum[i][j] += left * *(const UnalignedDoubles *)(b + j * kDoubleLanes);
    }
#pragma GCC unroll 4
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < kDoubleVectors; ++j)
      *(UnalignedDoubles *)(sums + i * 16 + j * kDoubleLanes) = sum[i][j];
}

void multiplyDoubles(int64_t rows, int64_t depth, const double *a, int64_t rowStep, int64_t depthStep, const double *b,
                     double *sums) {
  switch (rows) {
  case 1:
    return doubleRows<1>(depth, a, rowStep, depthStep, b, sums);
  case 2:
    return doubleRows<2>(depth, a, rowStep, depthStep, b, sums);
  case 3:
    return doubleRows<3>(depth, a, rowStep, depthStep, b, sums);
  default:
    return doubleRows<4>(depth, a, rowStep, depthStep, b, sums);
  }
}

void widenI8(int64_t count, const int8_t *source, float zero, float factor, float *target) {
  for (int64_t i = 0; i < count; ++i)
    target[i] = ((float)source[i] - zero) * factor;
}

void widenBf16(int64_t count, const uint16_t *source, float *target) {
  for (int64_t i = 0; i < count; ++i)
    target[i] = __builtin_bit_cast(float, (uint32_t)source[i] << 16);
}

void narrowBf16(int64_t count, const float *source, uint16_t *target) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = __builtin_bit_cast(uint32_t, source[i]);
    // The bits are rounded to nearest, ties to even; a NaN must not round up to infinity.
    uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    target[i] = (uint16_t)((bits & 0x7FFFFFFF) > 0x7F800000 ? (bits >> 16) | 0x40 : rounded);
  }
}

void widenF16(int64_t count, const uint16_t *source, float *target) {
  for (int64_t i = 0; i < count; ++i)
    target[i] = (float)__builtin_bit_cast(_Float16, source[i]);
}

void narrowF16(int64_t count, const float *source, uint16_t *target) {
  for (int64_t i = 0; i < count; ++i)
    target[i] = __builtin_bit_cast(uint16_t, (_Float16)source[i]);
}

//===----------------------------------------------------------------------===//
// Dropout
//===----------------------------------------------------------------------===//

typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef uint64_t WideWords __attribute__((vector_size(kLanes * 4)));

/// Returns the products of the low words of two vectors of 64-bit lanes.
inline __attribute__((always_inline)) WideWords multiplyLow(WideWords x, WideWords y) {
#if defined(__AVX512F__)
  return (WideWords)_mm512_maskz_mul_epu32(0xff, (__m512i)x, (__m512i)y); // without a mask, GCC 12 warns of its own header
#elif defined(__AVX2__)
  return (WideWords)_mm256_mul_epu32((__m256i)x, (__m256i)y);
#else
  return (WideWords)_mm_mul_epu32((__m128i)x, (__m128i)y);
#endif
}

/// Makes the high and the low words of the products of the lanes with a constant.
inline __attribute__((always_inline)) void multiplyWide(Words x, uint32_t constant, Words &high, Words &low) {
  WideWords factor = WideWords{} + constant, lowHalves = WideWords{} + 0xffffffffu;
  WideWords even = multiplyLow((WideWords)x, factor), odd = multiplyLow((WideWords)x >> 32, factor);
  high = (Words)(even >> 32 | (odd & ~lowHalves));
  low = (Words)((even & lowHalves) | odd << 32);
}

/// Makes the words of block `begin` + `number` of each lane by Philox4x32-10 (Salmon et al., SC 2011).
inline __attribute__((always_inline)) void drawWords(const DropoutBlock &block, const uint64_t (&begin)[kLanes],
                                                     int64_t number, Words (&words)[4]) {
  uint32_t lowWords[kLanes], highWords[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    lowWords[i] = uint32_t(begin[i] + uint64_t(number));
    highWords[i] = uint32_t((begin[i] + uint64_t(number)) >> 32) ^ block.id;
  }
  Words counter[4] = {{}, {}, Words{} + uint32_t(block.step), Words{} + uint32_t(block.step >> 32)};
  __builtin_memcpy(&counter[0], lowWords, sizeof lowWords);
  __builtin_memcpy(&counter[1], highWords, sizeof highWords);
  auto low = uint32_t(block.seed), high = uint32_t(block.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    Words firstHigh, firstLow, secondHigh, secondLow;
    multiplyWide(counter[0], 0xD2511F53, firstHigh, firstLow);
    multiplyWide(counter[2], 0xCD9E8D57, secondHigh, secondLow);
    counter[0] = secondHigh ^ counter[1] ^ low;
    counter[1] = secondLow;
    counter[2] = firstHigh ^ counter[3] ^ high;
    counter[3] = firstLow;
    low += 0x9E3779B9;
    high += 0xBB67AE85;
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    words[i] = counter[i];
}

/// A block of Philox has the words of four neighbouring weights, and rows begin at any of them: a lane takes four
/// weights from two blocks, of which the second is the first of the next four.
void drawFactors(const DropoutBlock &block, float *factors) {
  for (int j = 0; j < kTileVectors; ++j) {
    uint64_t begin[kLanes];
    Words phase = {};
    for (int i = 0; i < kLanes; ++i) {
      uint64_t at = uint64_t(block.first + (j * kLanes + i) * block.rowStep);
      begin[i] = at / 4;
      phase[i] = uint32_t(at % 4);
    }
    bool isWhole = true; // all rows begin with the first word of a block
    for (int i = 0; i < kLanes; ++i)
      isWhole &= phase[i] == 0;
    Words now[4] = {}, next[4] = {};
    drawWords(block, begin, 0, now);
    for (int64_t key = 0; key < block.keys; key += 4) {
      if (!isWhole || key + 4 < block.keys)
        drawWords(block, begin, key / 4 + 1, next);
      for (int k = 0; k < 4 && key + k < block.keys; ++k) {
        Words word = now[k];
        if (!isWhole)
#pragma GCC unroll 4
          for (int shift = 1; shift < 4; ++shift)
            word = phase == (uint32_t)shift ? (k + shift < 4 ? now[(k + shift) % 4] : next[(k + shift) % 4]) : word;
        store(factors + (key + k) * kPanel + j * kLanes, word >= block.leastKept ? splat(block.factor) : Vector{});
      }
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k)
        now[k] = next[k];
    }
  }
}

//===----------------------------------------------------------------------===//
// Softmax
//===----------------------------------------------------------------------===//

constexpr float kInfinity = __builtin_inff();

/// Returns e^x for x up to 88, within 2 units in the last place; 0 below -87.3, where the
/// result would be denormal. NaN stays NaN. The reduction to |r| <= ln 2 / 2 and the
/// polynomial are those of Cephes' expf (Moshier).
inline __attribute__((always_inline)) Vector exponential(Vector x) {
  Vector low = splat(-87.3f);
  Vector bounded = x < low ? low : x;
  Vector shifted = bounded * 1.44269504088896341f + 12582912.0f; // 1.5 * 2^23: rounds to an integer
  Vector whole = shifted - 12582912.0f;
  Vector r = bounded - whole * 0.693359375f;
  r = r - whole * -2.12194440e-4f;
  Vector p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  IntVector power = ((IntVector)shifted + 127) << 23;
  return x < low ? Vector{} : p * (Vector)power;
}

/// Returns the natural logarithm of positive, normal x, after Cephes' logf.
inline float logarithm(float x) { return __builtin_logf(x); }

/// Returns the lanes of vector j of a panel that see `key` when the first row is `firstRow`.
inline __attribute__((always_inline)) IntVector seen(int64_t key, int64_t firstRow, int j) {
  IntVector lane;
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    lane[i] = j * kLanes + i;
  return lane >= (int32_t)(key - firstRow);
}

/// Adds the mask to the scores and hides what causal hides.
void maskScores(float *scores, int64_t keys, const float *mask, bool causal, int64_t firstRow) {
  if (mask)
    for (int64_t i = 0; i < keys * kPanel; i += kLanes)
      store(scores + i, load(scores + i) + load(mask + i));
  if (causal)
    for (int64_t key = firstRow + 1; key < keys; ++key)
      for (int j = 0; j < kTileVectors; ++j) {
        float *at = scores + key * kPanel + j * kLanes;
        store(at, seen(key, firstRow, j) ? load(at) : splat(-kInfinity));
      }
}

void widenKept(int64_t count, const uint8_t *kept, float *target) {
  for (int64_t i = 0; i < count; ++i)
    target[i] = kept[i] ? 0.0f : -kInfinity;
}

void spread(int64_t count, const float *source, float *target) {
  for (int64_t i = 0; i < count; ++i)
    for (int j = 0; j < kTileVectors; ++j)
      store(target + i * kPanel + j * kLanes, splat(source[i]));
}

/// Returns x times the factor, and 0 where that is 0, whatever x is.
inline __attribute__((always_inline)) Vector dropped(Vector x, Vector factor) {
  return factor == 0.0f ? Vector{} : x * factor;
}

void softmax(const SoftmaxBlock &block) {
  maskScores(block.scores, block.keys, block.mask, block.causal, block.firstRow);
  Vector most[kTileVectors], sum[kTileVectors];
  for (int j = 0; j < kTileVectors; ++j) {
    most[j] = splat(-kInfinity);
    sum[j] = Vector{};
  }
  for (int64_t key = 0; key < block.keys; ++key)
    for (int j = 0; j < kTileVectors; ++j) {
      Vector score = load(block.scores + key * kPanel + j * kLanes);
      most[j] = score > most[j] ? score : most[j];
    }
  // A row that sees nothing: subtract 0, so that all its terms are 0, not NaN.
  for (int j = 0; j < kTileVectors; ++j)
    most[j] = most[j] == -kInfinity ? Vector{} : most[j];
  for (int64_t key = 0; key < block.keys; ++key)
    for (int j = 0; j < kTileVectors; ++j) {
      float *at = block.scores + key * kPanel + j * kLanes;
      Vector term = exponential(load(at) - most[j]);
      sum[j] += term;
      store(at, block.dropout ? dropped(term, load(block.dropout + (at - block.scores))) : term);
    }
  for (int j = 0; j < kTileVectors; ++j)
    for (int i = 0; i < kLanes; ++i) {
      bool nothing = sum[j][i] == 0;
      block.inverseSum[j * kLanes + i] = nothing ? 0 : 1 / sum[j][i];
      block.logSum[j * kLanes + i] = nothing ? -kInfinity : most[j][i] + logarithm(sum[j][i]);
    }
}

void softmaxGrad(const SoftmaxGradBlock &block) {
  maskScores(block.scores, block.keys, block.mask, block.causal, block.firstRow);
  Vector logSum[kTileVectors], delta[kTileVectors];
  for (int j = 0; j < kTileVectors; ++j) {
    // A row that sees nothing has -inf here, and all its probabilities are 0.
    logSum[j] = load(block.logSum + j * kLanes);
    logSum[j] = logSum[j] == -kInfinity ? splat(kInfinity) : logSum[j];
    delta[j] = load(block.delta + j * kLanes);
  }
  for (int64_t key = 0; key < block.keys; ++key)
    for (int j = 0; j < kTileVectors; ++j) {
      int64_t at = key * kPanel + j * kLanes;
      Vector p = exponential(load(block.scores + at) - logSum[j]), grad = load(block.grads + at), weight = p;
      if (block.dropout) {
        Vector factor = load(block.dropout + at);
        weight = dropped(p, factor);
        grad = dropped(grad, factor);
      }
      store(block.scores + at, weight);
      store(block.grads + at, p * (grad - delta[j]) * block.scale);
    }
}

//===----------------------------------------------------------------------===//
// Gelu
//===----------------------------------------------------------------------===//

/// Factors of x and x^3 in 2 u, where gelu tanh of x is x (1 + tanh(u)) / 2 = x / (1 + e^(-2 u)).
constexpr float kTwice = 1.5957691216f, kCubic = kTwice * 0.044715f;

/// The power is infinite where it is beyond the largest that `exponential` takes.
inline __attribute__((always_inline)) Vector geluOf(Vector x) {
  Vector power = -(x * (x * x * kCubic + kTwice)), most = splat(88.0f);
  return x / (1.0f + (power > most ? splat(kInfinity) : exponential(power)));
}

void gelu(int64_t count, float *data) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    store(data + i, geluOf(load(data + i)));
  Vector rest{};
  for (int64_t k = i; k < count; ++k)
    rest[k - i] = data[k];
  rest = geluOf(rest);
  for (int64_t k = i; k < count; ++k)
    data[k] = rest[k - i];
}

} // namespace

const VectorKernels SEGUE_CONCAT(vectorKernels, SEGUE_ISA) = {SEGUE_STRING(SEGUE_ISA),
                                                              kLanes,
                                                              kTileRows,
                                                              kPanel,
                                                              multiplyPacked,
                                                              multiplyBlockRows,
                                                              pack,
                                                              transpose,
                                                              scale,
                                                              multiply,
                                                              scaleColumns,
                                                              dot,
                                                              multiplyRow,
                                                              widenKept,
                                                              spread,
                                                              drawFactors,
                                                              softmax,
                                                              softmaxGrad,
                                                              gelu,
                                                              multiplyDoubles,
                                                              widenI8,
                                                              widenBf16,
                                                              widenF16,
                                                              narrowBf16,
                                                              narrowF16};

} // namespace segue::inline runtime
