//===- TensorAttention.h - attention on tensor cores ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What Attention.h says for bf16 and f16, any extents and strides, and heads of at most 256
// dims, and for f32 as TF32, of at most 128, as the files Attention<type>x<width>.cu make
// kernels of it: a head is as wide as zeros make it. Scores, their softmax and all sums are
// f32. The weights of the second product, and the gradients of scores, are rounded to the
// type of the operands, as tensor cores take no other; operands of f32 are rounded to TF32.
// The derivative is two kernels without atomics, as in Attention.cu.
//
// A block has 128 rows (or, for dk and dv, keys), 16 to a warp, which holds them in
// registers as A of its products (TensorCores.h). The other operands, keys and values (or
// rows and gradients), come as tiles of 8 KiB, two of them at a time and the next two on
// their way; so a step has one barrier. What a product leaves in a thread is rounded and is
// A of the next.
//
// Sums of more columns than registers hold are made in passes, by blocks of their own. Kernels of one width alone have the
// registers to draw which weights are dropped (tensorDrops).
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_BUILTIN_TENSORATTENTION_H
#define SEGUE_LIB_CUDA_BUILTIN_TENSORATTENTION_H

#include "TensorCores.h"

#include "AttentionParts.h"

namespace segue::inline runtime::cuda::tensor {

inline constexpr int blockRows = int(TensorAttention::blockRows), warpRows = 16;
inline constexpr int tileBytes = 8192;
inline constexpr float log2OfE = 1.44269504f;

template <ElementType type> using Stored = typename gpu::Form<type>::Stored;
/// The elements of a tile, of a word, and of 16 bytes; the columns of A in a product.
template <ElementType type> inline constexpr int tileElements = tileBytes / int(sizeof(Stored<type>));
template <ElementType type> inline constexpr int wordElements = gpu::Form<type>::perWord;
template <ElementType type> inline constexpr int pieceElements = gpu::Form<type>::perPiece;
template <ElementType type> inline constexpr int depthOf = gpu::Form<type>::depth;

/// An operand of a head. Its rows begin at multiples of 16 bytes, and have whole pieces of as many.
template <ElementType type> struct Lines {
  Stored<type> *data;
  int64_t step;
  int count, dims;
};

template <ElementType type> GPU_FUNCTION bool isWithin(const Lines<type> &lines, int row, int dim) {
  return row < lines.count && dim < lines.dims;
}
template <ElementType type> GPU_FUNCTION Stored<type> *addressOf(const Lines<type> &lines, int row, int dim) {
  return lines.data + row * lines.step + dim;
}

template <ElementType type> GPU_FUNCTION Lines<type> linesOf(const Rows &rows, int64_t dims) {
  return {reinterpret_cast<Stored<type> *>(rows.data), rows.step, rows.count, int(dims)};
}

/// The word of a row that begins with element `dim`, zeros beyond its ends.
template <ElementType type> GPU_FUNCTION uint32_t wordAt(const Lines<type> &lines, int row, int dim) {
  return isWithin(lines, row, dim) ? *reinterpret_cast<const gpu::Word *>(addressOf(lines, row, dim)) : 0;
}

/// Writes elements `dim` and the next of a row.
template <ElementType type>
GPU_FUNCTION void setPairAt(const Lines<type> &lines, int row, int dim, float lower, float upper) {
  if (!isWithin(lines, row, dim))
    return;
  auto *words = reinterpret_cast<gpu::Word *>(addressOf(lines, row, dim));
  if constexpr (wordElements<type> == 2) {
    *words = gpu::wordOf<type>(lower, upper);
  } else {
    words[0] = gpu::bitsOf(lower);
    words[1] = gpu::bitsOf(upper);
  }
}

/// The lane's row of a matrix in registers, or 8 rows before its other; and the first of its two columns of C.
GPU_FUNCTION int laneRow() { return int(gpu::lane()) / 4; }
GPU_FUNCTION int laneColumn() { return int(gpu::lane()) % 4 * 2; }
/// The first column of the lane's words of A.
template <ElementType type> GPU_FUNCTION int laneWordColumn() { return int(gpu::lane()) % 4 * wordElements<type>; }

/// 16 rows of a matrix as A of products over all dims, 4 words of a lane for each product.
template <ElementType type, int width> using RowsOfWarp = uint32_t[width / depthOf<type>][4];

/// 16 rows from `first` on, as A of products over all dims.
template <ElementType type, int width>
GPU_FUNCTION void loadRows(RowsOfWarp<type, width> &to, const Lines<type> &lines, int first) {
  constexpr int depth = depthOf<type>;
  GPU_UNROLL
  for (int k = 0; k < width / depth; ++k)
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      int row = first + laneRow() + i % 2 * 8, dim = depth * k + laneWordColumn<type>() + i / 2 * (depth / 2);
      to[k][i] = gpu::rounded<type>(wordAt(lines, row, dim));
    }
}

/// Two stages of two tiles, of tileElements / width rows each. Between rows lie 16 bytes, so
/// that eight rows of a matrix are in different banks.
template <ElementType type, int width> struct alignas(16) Tiles {
  static constexpr int rows = tileElements<type> / width, pitch = width + pieceElements<type>;
  Stored<type> at[2][2][rows * pitch];
};

template <ElementType type, int width>
GPU_FUNCTION void fetchTile(Stored<type> *tile, const Lines<type> &lines, int firstRow) {
  constexpr int pieces = width / pieceElements<type>, all = tileElements<type> / pieceElements<type>;
  GPU_UNROLL
  for (int i = 0; i < all / int(gpu::blockThreads); ++i) {
    int number = gpu::kept(int(gpu::thread())) + i * int(gpu::blockThreads);
    int row = number / pieces, dim = number % pieces * pieceElements<type>;
    bool isThere = isWithin(lines, firstRow + row, dim);
    gpu::copyAsync(tile + row * Tiles<type, width>::pitch + dim,
                   isThere ? addressOf(lines, firstRow + row, dim) : lines.data, isThere);
  }
}

/// Makes the products of the warp's rows with `columns` rows of a tile, from `first` on.
template <ElementType type, int width, int columns>
GPU_FUNCTION void multiplyRows(float (&products)[columns / 8][4], const RowsOfWarp<type, width> &rows,
                               const Stored<type> *tile, int first) {
  constexpr int pitch = Tiles<type, width>::pitch, depth = depthOf<type>;
  const Stored<type> *named =
      tile + (first + int(gpu::lane()) % 8) * pitch + int(gpu::lane()) / 8 * pieceElements<type>;
  GPU_UNROLL
  for (int n = 0; n < columns / 8; ++n)
    GPU_UNROLL
    for (int i = 0; i < 4; ++i)
      products[n][i] = 0;
  GPU_UNROLL
  for (int k = 0; k < width / (2 * depth); ++k)
    GPU_UNROLL
    for (int n = 0; n < columns / 8; ++n) {
      uint32_t b[4];
      gpu::loadMatrices(b, named + 8 * n * pitch + 2 * depth * k);
      GPU_UNROLL
      for (uint32_t &word : b)
        word = gpu::rounded<type>(word);
      gpu::multiply<type>(products[n], rows[2 * k], b[0], b[1]);
      gpu::multiply<type>(products[n], rows[2 * k + 1], b[2], b[3]);
    }
}

/// Adds to `sums` the weights times rows of a tile from `first` on, for columns from `firstColumn` on.
template <ElementType type, int width, int columns, int passWidth>
GPU_FUNCTION void addProduct(float (&sums)[passWidth / 8][4], const float (&weights)[columns / 8][4],
                             const Stored<type> *tile, int first, int firstColumn) {
  constexpr int pitch = Tiles<type, width>::pitch;
  if constexpr (type == ElementType::f32) {
    const Stored<type> *named = tile + (first + laneColumn()) * pitch + firstColumn + laneRow();
    GPU_UNROLL
    for (int k = 0; k < columns / 8; ++k) {
      uint32_t a[4];
      GPU_UNROLL
      for (int i = 0; i < 4; ++i) // columns 2 t and 2 t + 1 of both rows
        a[i] = gpu::rounded<type>(gpu::bitsOf(weights[k][i % 2 * 2 + i / 2]));
      GPU_UNROLL
      for (int n = 0; n < passWidth / 8; ++n) {
        const Stored<type> *at = named + 8 * k * pitch + 8 * n;
        gpu::multiply<type>(sums[n], a, gpu::rounded<type>(at[0]), gpu::rounded<type>(at[pitch]));
      }
    }
  } else {
    const Stored<type> *named =
        tile + (first + int(gpu::lane()) % 16) * pitch + firstColumn + int(gpu::lane()) / 16 * 8;
    GPU_UNROLL
    for (int k = 0; k < columns / 16; ++k) {
      const float(&left)[4] = weights[2 * k], (&right)[4] = weights[2 * k + 1];
      uint32_t a[4] = {gpu::wordOf<type>(left[0], left[1]), gpu::wordOf<type>(left[2], left[3]),
                       gpu::wordOf<type>(right[0], right[1]), gpu::wordOf<type>(right[2], right[3])};
      GPU_UNROLL
      for (int n = 0; n < passWidth / 16; ++n) {
        uint32_t b[4];
        gpu::loadMatricesTransposed(b, named + 16 * k * pitch + 16 * n);
        gpu::multiply<type>(sums[2 * n], a, b[0], b[1]);
        gpu::multiply<type>(sums[2 * n + 1], a, b[2], b[3]);
      }
    }
  }
}

/// Makes scores of products of 16 rows with `columns` keys, or, turned, of 16 keys with `columns` rows.
template <bool isTurned, int columns>
GPU_FUNCTION void makeScores(float (&products)[columns / 8][4], const Head &head, int firstRow, int firstKey) {
  const AttentionSpec &spec = head.args.spec.forward;
  constexpr int rows = isTurned ? columns : warpRows, keys = isTurned ? warpRows : columns;
  if (spec.mask == MaskKind::none && firstRow + rows <= spec.rows && firstKey + keys <= spec.keys &&
      !(spec.causal && firstKey + keys - 1 > firstRow)) {
    GPU_UNROLL
    for (int n = 0; n < columns / 8; ++n)
      GPU_UNROLL
      for (int i = 0; i < 4; ++i)
        products[n][i] *= spec.scale;
    return;
  }
  int down = laneRow() + (isTurned ? firstKey : firstRow);
  int across = gpu::kept(laneColumn() + (isTurned ? firstRow : firstKey));
  GPU_UNROLL
  for (int n = 0; n < columns / 8; ++n)
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      int there = gpu::kept(down) + i / 2 * 8, here = across + 8 * n + i % 2;
      products[n][i] = scoreOf(head, products[n][i], isTurned ? here : there, isTurned ? there : here);
    }
  gpu::waitForWarp();
}

/// The bits say for each thread which of its weights it keeps; registers have no room for them.
using KeptBits = uint32_t[gpu::blockThreads];

/// Draws which of 16 rows of weights of `columns` keys are kept, or, turned, of 16 keys of `columns` rows: a bit for each of the
/// thread's, in their order. It comes where few numbers are in registers.
template <bool drops, bool isTurned, int columns>
GPU_FUNCTION void drawKept(KeptBits &kept, const Head &head, int firstRow, int firstKey) {
  if (!drops || head.args.spec.forward.dropout == 0.0f)
    return;
  KeptWeights weights(head);
  uint32_t bits = 0;
  GPU_KEEP_LOOP
  for (int pair = 0; pair < columns / 4; ++pair) {
    int there = gpu::kept(isTurned ? firstKey : firstRow) + laneRow() + pair % 2 * 8;
    int here = gpu::kept(isTurned ? firstRow : firstKey) + laneColumn() + pair / 2 * 8;
    uint32_t both = isTurned ? uint32_t(weights.isKept(here, there)) | uint32_t(weights.isKept(here + 1, there)) << 1
                             : weights.pairKept(there, here);
    bits |= both << 2 * pair;
  }
  kept[gpu::thread()] = bits;
}

/// With dropout, sets the numbers to 0 that are not kept, and scales the others.
template <bool drops, int columns>
GPU_FUNCTION void drop(float (&numbers)[columns / 8][4], const Head &head, const KeptBits &kept) {
  if (!drops || head.args.spec.forward.dropout == 0.0f)
    return;
  float factor = keptFactor(head.args.spec.forward);
  uint32_t bits = kept[gpu::kept(int(gpu::thread()))];
  GPU_UNROLL
  for (int n = 0; n < columns / 8; ++n)
    GPU_UNROLL
    for (int i = 0; i < 4; ++i)
      numbers[n][i] = bits >> (4 * n + i) & 1 ? numbers[n][i] * factor : 0.0f;
}

/// Of a row, the exponent that its scores are taken from: 0 where it sees nothing, as no other gives numbers.
GPU_FUNCTION float baseOf(float exponent) { return exponent == -gpu::infinity ? 0.0f : exponent; }

GPU_FUNCTION float weightOf(float score, float base) { return gpu::powerOfTwo((score - base) * log2OfE); }

/// Sums and maxima over the four lanes of a row.
GPU_FUNCTION float shuffled(float value, int distance) {
  return gpu::floatOf(gpu::shuffle(gpu::bitsOf(value), distance));
}
GPU_FUNCTION float sumOfRow(float value) {
  value += shuffled(value, 1);
  return value + shuffled(value, 2);
}
GPU_FUNCTION float largestOfRow(float value) {
  value = gpu::larger(value, shuffled(value, 1));
  return gpu::larger(value, shuffled(value, 2));
}

template <ElementType type> GPU_FUNCTION float dot(uint32_t a, uint32_t b, float sum) {
  if constexpr (wordElements<type> == 1)
    return gpu::multiplyAdd(gpu::floatOf(a), gpu::floatOf(b), sum);
  else
    return gpu::multiplyAdd(gpu::numberOf<type>(a, true), gpu::numberOf<type>(b, true),
                            gpu::multiplyAdd(gpu::numberOf<type>(a, false), gpu::numberOf<type>(b, false), sum));
}

/// Writes 16 rows of sums times a factor for each of the lane's rows.
template <ElementType type, int passWidth>
GPU_FUNCTION void store(const Lines<type> &to, const float (&sums)[passWidth / 8][4], int firstRow, int firstColumn,
                        float factor, float lowerFactor) {
  GPU_UNROLL
  for (int n = 0; n < passWidth / 8; ++n) {
    int row = firstRow + laneRow(), dim = firstColumn + 8 * n + laneColumn();
    setPairAt(to, row, dim, sums[n][0] * factor, sums[n][1] * factor);
    setPairAt(to, row + 8, dim, sums[n][2] * lowerFactor, sums[n][3] * lowerFactor);
  }
}

/// What a block does: 128 rows, or keys, of a head in a pass, and those from `firstOfWarp` on are the warp's.
struct Item {
  Head head;
  int number, first, firstOfWarp, firstColumn;
};

GPU_FUNCTION int blocksOf(int64_t extent) { return int((extent + blockRows - 1) / blockRows); }

/// Items in order, or those of a head from its end on: with causal its last rows see most keys, and come first.
GPU_FUNCTION Item itemOf(const AttentionKernelArgs &args, int64_t item, int64_t extent, int passes, int passWidth,
                         bool isReversed) {
  int blocks = blocksOf(extent), heads = int(args.spec.forward.heads);
  int pass = int(item % passes), at = int(item / passes % blocks), number = int(item / passes / blocks);
  int first = (isReversed ? blocks - 1 - at : at) * blockRows;
  return {{args, number / heads, number % heads}, number, first, first + int(gpu::warp()) * warpRows, pass * passWidth};
}

GPU_FUNCTION int64_t itemsOf(const AttentionSpec &spec, int64_t extent, int passes) {
  return spec.batch * spec.heads * blocksOf(extent) * passes;
}

/// The keys that rows of a block see.
GPU_FUNCTION int keysSeen(const AttentionSpec &spec, const Item &item) {
  return spec.causal && item.first + blockRows < spec.keys ? item.first + blockRows : int(spec.keys);
}

/// Brings the tiles of keys and values from `firstKey` on to a stage. Where they lie is found anew, which takes fewer
/// registers than to know it.
template <ElementType type, int width>
GPU_FUNCTION void fetchKeys(Tiles<type, width> &tiles, int stage, const Head &head, int firstKey) {
  auto operands = operandsOf({head.args, gpu::kept(head.batch), gpu::kept(head.head)});
  fetchTile<type, width>(tiles.at[stage][0], linesOf<type>(operands.k, head.args.spec.forward.dim), firstKey);
  fetchTile<type, width>(tiles.at[stage][1], linesOf<type>(operands.v, head.args.spec.forward.dim), firstKey);
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

template <ElementType type, int width, int columns> GPU_FUNCTION void attendRows(const AttentionKernelArgs &args) {
  GPU_SHARED Tiles<type, width> tiles;
  constexpr bool drops = tensorDrops(type, width);
  GPU_SHARED KeptBits kept;
  constexpr int passes = int(tensorPasses(type, width).rows), passWidth = width / passes;
  constexpr int tileRows = Tiles<type, width>::rows;
  const AttentionSpec &spec = args.spec.forward;
  int64_t items = itemsOf(spec, spec.rows, passes);
  for (int64_t number = gpu::block(); number < items; number += gpu::blocks()) {
    Item item = itemOf(args, number, spec.rows, passes, passWidth, spec.causal);
    const Head &head = item.head;
    int firstRow = item.firstOfWarp, seen = keysSeen(spec, item);
    int rows = int(spec.rows);
    auto operands = operandsOf(head);
    RowsOfWarp<type, width> q;
    loadRows<type, width>(q, linesOf<type>(operands.q, spec.dim), firstRow);
    float most[2] = {-gpu::infinity, -gpu::infinity}, total[2] = {};
    float sums[passWidth / 8][4] = {};

    gpu::waitForBlock(); // others may still read the last tiles of the last item
    fetchKeys<type, width>(tiles, 0, head, 0);
    for (int firstKey = 0, stage = 0; firstKey < seen; firstKey += tileRows, stage ^= 1) {
      gpu::waitForCopies();
      gpu::waitForBlock(); // all have copied these tiles, and read those before
      if (firstKey + tileRows < seen)
        fetchKeys<type, width>(tiles, stage ^ 1, head, firstKey + tileRows);
      GPU_KEEP_LOOP
      for (int at = 0; at < tileRows; at += columns) {
        if (firstRow >= rows || (spec.causal && firstKey + at > firstRow + warpRows - 1))
          break; // no row of the warp sees these keys, nor those behind them
        drawKept<drops, false, columns>(kept, head, firstRow, firstKey + at);
        float scores[columns / 8][4];
        multiplyRows<type, width, columns>(scores, q, tiles.at[stage][0], at);
        makeScores<false, columns>(scores, head, firstRow, firstKey + at);
        GPU_UNROLL
        for (int half = 0; half < 2; ++half) {
          float now = most[half];
          GPU_UNROLL
          for (int n = 0; n < columns / 8; ++n)
            now = gpu::larger(gpu::larger(now, scores[n][2 * half]), scores[n][2 * half + 1]);
          now = largestOfRow(now);
          float base = baseOf(now), factor = weightOf(most[half], base), sum = 0;
          GPU_UNROLL
          for (int n = 0; n < columns / 8; ++n)
            GPU_UNROLL
            for (int i = 2 * half; i < 2 * half + 2; ++i) {
              scores[n][i] = weightOf(scores[n][i], base);
              sum += scores[n][i];
            }
          total[half] = total[half] * factor + sum;
          most[half] = now;
          GPU_UNROLL
          for (int n = 0; n < passWidth / 8; ++n) {
            sums[n][2 * half] *= factor;
            sums[n][2 * half + 1] *= factor;
          }
        }
        drop<drops, columns>(scores, head, kept);
        addProduct<type, width, columns, passWidth>(sums, scores, tiles.at[stage][1], at, item.firstColumn);
      }
    }
    int lseRow = gpu::kept(firstRow) + laneRow();
    float *lse = args.lse + item.number * spec.rows + lseRow;
    float factors[2];
    GPU_UNROLL
    for (int half = 0; half < 2; ++half) {
      float sum = sumOfRow(total[half]);
      factors[half] = sum == 0.0f ? 0.0f : 1.0f / sum;
      if (item.firstColumn == 0 && laneColumn() == 0 && lseRow + 8 * half < spec.rows)
        lse[8 * half] = sum == 0.0f ? -gpu::infinity : most[half] + gpu::logarithm(sum);
    }
    Rows out = operandsOf({args, gpu::kept(head.batch), gpu::kept(head.head)}).out;
    store<type, passWidth>(linesOf<type>(out, spec.dim), sums, firstRow, item.firstColumn, factors[0], factors[1]);
  }
}

template <ElementType type, int width, int columns> GPU_FUNCTION void attendRowsGrad(const AttentionKernelArgs &args) {
  GPU_SHARED Tiles<type, width> tiles;
  constexpr bool drops = tensorDrops(type, width);
  GPU_SHARED KeptBits kept;
  constexpr int depth = depthOf<type>;
  constexpr int passes = int(tensorPasses(type, width).rows), passWidth = width / passes;
  constexpr int tileRows = Tiles<type, width>::rows;
  const AttentionSpec &spec = args.spec.forward;
  int64_t items = itemsOf(spec, spec.rows, passes);
  for (int64_t number = gpu::block(); number < items; number += gpu::blocks()) {
    Item item = itemOf(args, number, spec.rows, passes, passWidth, spec.causal);
    const Head &head = item.head;
    int firstRow = item.firstOfWarp, seen = keysSeen(spec, item);
    auto operands = operandsOf(head);
    RowsOfWarp<type, width> q, gradOut;
    loadRows<type, width>(q, linesOf<type>(operands.q, spec.dim), firstRow);
    loadRows<type, width>(gradOut, linesOf<type>(operands.gradOut, spec.dim), firstRow);
    float base[2], delta[2] = {};
    Lines<type> out = linesOf<type>(operands.out, spec.dim);
    GPU_UNROLL
    for (int k = 0; k < width / depth; ++k)
      GPU_UNROLL
      for (int i = 0; i < 4; ++i) {
        int row = firstRow + laneRow() + i % 2 * 8, dim = depth * k + laneWordColumn<type>() + i / 2 * (depth / 2);
        delta[i % 2] = dot<type>(wordAt(out, row, dim), gradOut[k][i], delta[i % 2]);
      }
    GPU_UNROLL
    for (int half = 0; half < 2; ++half) {
      int row = firstRow + laneRow() + 8 * half;
      delta[half] = sumOfRow(delta[half]);
      base[half] = row < spec.rows ? baseOf(args.lse[item.number * spec.rows + row]) : 0.0f;
    }
    float sums[passWidth / 8][4] = {};

    gpu::waitForBlock(); // others may still read the last tiles of the last item
    fetchKeys<type, width>(tiles, 0, head, 0);
    for (int firstKey = 0, stage = 0; firstKey < seen; firstKey += tileRows, stage ^= 1) {
      gpu::waitForCopies();
      gpu::waitForBlock(); // all have copied these tiles, and read those before
      if (firstKey + tileRows < seen)
        fetchKeys<type, width>(tiles, stage ^ 1, head, firstKey + tileRows);
      GPU_KEEP_LOOP
      for (int at = 0; at < tileRows; at += columns) {
        if (firstRow >= spec.rows || (spec.causal && firstKey + at > firstRow + warpRows - 1))
          break; // no row of the warp sees these keys, nor those behind them
        drawKept<drops, false, columns>(kept, head, firstRow, firstKey + at);
        float scores[columns / 8][4], grads[columns / 8][4];
        multiplyRows<type, width, columns>(scores, q, tiles.at[stage][0], at);
        makeScores<false, columns>(scores, head, firstRow, firstKey + at);
        multiplyRows<type, width, columns>(grads, gradOut, tiles.at[stage][1], at);
        drop<drops, columns>(grads, head, kept);
        GPU_UNROLL
        for (int n = 0; n < columns / 8; ++n)
          GPU_UNROLL
          for (int i = 0; i < 4; ++i)
            grads[n][i] = weightOf(scores[n][i], base[i / 2]) * (grads[n][i] - delta[i / 2]);
        addProduct<type, width, columns, passWidth>(sums, grads, tiles.at[stage][0], at, item.firstColumn);
      }
    }
    Rows gradQ = rowsOf(head, args.gradQ, args.spec.gradQ, spec.rows);
    store<type, passWidth>(linesOf<type>(gradQ, spec.dim), sums, firstRow, item.firstColumn, spec.scale, spec.scale);
  }
}

/// By row of a tile, what its scores are taken from, and the sum of its products of `out` and its gradient.
template <int tileRows> struct RowNumbers {
  float base[2][tileRows], delta[2][tileRows];
};

/// Makes the numbers of the rows of a tile: a thread sums over its part of a row, and neighbours over the row. Sums for
/// dv alone need no `delta`.
template <ElementType type, int width, bool makesDelta>
GPU_FUNCTION void makeRowNumbers(RowNumbers<Tiles<type, width>::rows> &numbers, int stage, const Lines<type> &out,
                                 const Lines<type> &gradOut, const float *lse, int firstRow) {
  constexpr int part = tileElements<type> / int(gpu::blockThreads), together = width / part;
  static_assert(part % pieceElements<type> == 0 && together <= int(gpu::warpThreads));
  int thread = gpu::kept(int(gpu::thread()));
  int local = thread / together, row = firstRow + local, number = thread % together, dim = part * number;
  float sum = 0;
  GPU_KEEP_LOOP
  for (int end = dim + part; makesDelta && isWithin(out, row, dim) && dim < end; dim += pieceElements<type>) {
    auto a = *reinterpret_cast<const gpu::Piece *>(addressOf(out, row, dim));
    auto b = *reinterpret_cast<const gpu::Piece *>(addressOf(gradOut, row, dim));
    GPU_UNROLL
    for (int i = 0; i < 4; ++i)
      sum = dot<type>(a.words[i], b.words[i], sum);
  }
  GPU_UNROLL
  for (int distance = together / 2; distance; distance /= 2)
    sum += shuffled(sum, distance);
  if (number == 0) {
    numbers.delta[stage][local] = sum;
    numbers.base[stage][local] = row < out.count ? baseOf(lse[row]) : 0.0f;
  }
  gpu::waitForWarp();
}

/// Which sums a kernel over keys makes: those for dv need no gradients of scores.
enum class KeySums { Both, Values, Keys };

template <ElementType type, int width, int columns, KeySums made>
GPU_FUNCTION void attendKeysGrad(const AttentionKernelArgs &args) {
  constexpr bool makesValues = made != KeySums::Keys, makesKeys = made != KeySums::Values;
  constexpr TensorPasses all = tensorPasses(type, width);
  constexpr int passes = int(made == KeySums::Values ? all.values : all.keys);
  constexpr int passWidth = width / passes, tileRows = Tiles<type, width>::rows;
  GPU_SHARED Tiles<type, width> tiles;
  constexpr bool drops = tensorDrops(type, width);
  GPU_SHARED KeptBits kept;
  GPU_SHARED RowNumbers<tileRows> numbers;
  const AttentionSpec &spec = args.spec.forward;
  int64_t items = itemsOf(spec, spec.keys, passes);
  for (int64_t number = gpu::block(); number < items; number += gpu::blocks()) {
    Item item = itemOf(args, number, spec.keys, passes, passWidth, false);
    const Head &head = item.head;
    int firstKey = item.firstOfWarp;
    auto operands = operandsOf(head);
    Lines<type> q = linesOf<type>(operands.q, spec.dim), gradOut = linesOf<type>(operands.gradOut, spec.dim),
          out = linesOf<type>(operands.out, spec.dim);
    const float *lse = args.lse + item.number * spec.rows;
    RowsOfWarp<type, width> k, v;
    loadRows<type, width>(k, linesOf<type>(operands.k, spec.dim), firstKey);
    if constexpr (makesKeys)
      loadRows<type, width>(v, linesOf<type>(operands.v, spec.dim), firstKey);
    float keySums[passWidth / 8][4] = {}, valueSums[passWidth / 8][4] = {};

    int begin = spec.causal ? item.first : 0;
    gpu::waitForBlock(); // others may still read the last tiles of the last item
    fetchTile<type, width>(tiles.at[0][0], q, begin);
    fetchTile<type, width>(tiles.at[0][1], gradOut, begin);
    makeRowNumbers<type, width, makesKeys>(numbers, 0, out, gradOut, lse, begin);
    for (int firstRow = begin, stage = 0; firstRow < spec.rows; firstRow += tileRows, stage ^= 1) {
      gpu::waitForCopies();
      gpu::waitForBlock(); // all have copied these tiles, and read those before
      if (firstRow + tileRows < spec.rows) {
        fetchTile<type, width>(tiles.at[stage ^ 1][0], q, firstRow + tileRows);
        fetchTile<type, width>(tiles.at[stage ^ 1][1], gradOut, firstRow + tileRows);
        makeRowNumbers<type, width, makesKeys>(numbers, stage ^ 1, out, gradOut, lse, firstRow + tileRows);
      }
      GPU_KEEP_LOOP
      for (int at = 0; at < tileRows; at += columns) {
        if (firstKey >= spec.keys)
          break;
        if (firstRow + at >= spec.rows || (spec.causal && firstKey > firstRow + at + columns - 1))
          continue; // none of these rows sees a key of the warp
        drawKept<drops, true, columns>(kept, head, firstRow + at, firstKey);
        float weights[columns / 8][4];
        multiplyRows<type, width, columns>(weights, k, tiles.at[stage][0], at);
        makeScores<true, columns>(weights, head, firstRow + at, firstKey);
        GPU_UNROLL
        for (int n = 0; n < columns / 8; ++n)
          GPU_UNROLL
          for (int i = 0; i < 4; ++i)
            weights[n][i] = weightOf(weights[n][i], numbers.base[stage][at + 8 * n + laneColumn() + i % 2]);
        if constexpr (makesValues) {
          float dropped[columns / 8][4];
          GPU_UNROLL
          for (int n = 0; n < columns / 8; ++n)
            GPU_UNROLL
            for (int i = 0; i < 4; ++i)
              dropped[n][i] = weights[n][i];
          drop<drops, columns>(dropped, head, kept);
          addProduct<type, width, columns, passWidth>(valueSums, dropped, tiles.at[stage][1], at, item.firstColumn);
        }
        if constexpr (makesKeys) {
          float grads[columns / 8][4];
          multiplyRows<type, width, columns>(grads, v, tiles.at[stage][1], at);
          drop<drops, columns>(grads, head, kept);
          GPU_UNROLL
          for (int n = 0; n < columns / 8; ++n)
            GPU_UNROLL
            for (int i = 0; i < 4; ++i)
              grads[n][i] = weights[n][i] * (grads[n][i] - numbers.delta[stage][at + 8 * n + laneColumn() + i % 2]);
          addProduct<type, width, columns, passWidth>(keySums, grads, tiles.at[stage][0], at, item.firstColumn);
        }
      }
    }
    Lines<type> gradK = linesOf<type>(rowsOf(head, args.gradK, args.spec.gradK, spec.keys), spec.dim),
          gradV = linesOf<type>(rowsOf(head, args.gradV, args.spec.gradV, spec.keys), spec.dim);
    if constexpr (makesKeys)
      store<type, passWidth>(gradK, keySums, firstKey, item.firstColumn, spec.scale, spec.scale);
    if constexpr (makesValues)
      store<type, passWidth>(gradV, valueSums, firstKey, item.firstColumn, 1.0f, 1.0f);
  }
}

} // namespace segue::inline runtime::cuda::tensor

#endif // SEGUE_LIB_CUDA_BUILTIN_TENSORATTENTION_H
