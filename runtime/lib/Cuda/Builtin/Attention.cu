//===- Attention.cu - attention without a library -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The kernels do what Attention.h says, in f32, for all extents, strides and types; operands of
// bf16 and f16 have faster kernels (TensorAttention.h) if a head has 256 dims or less. Scores
// are never whole: a block takes a square of them at a time and carries the largest score and
// the sum of each row on (Dao et al., arXiv:2205.14135). The derivative has no atomics: one
// kernel sums over keys for dq, the other over rows for dk and dv, and both compute the
// scores again.
//
// A thread has four scores of a square, in rows t / 16 and t / 16 + 16 and columns t % 16
// and t % 16 + 16, and of a product with a square its two rows and every 16th column.
// Products are made of chunks of both operands in shared memory. A head of more than 128
// dims is done in passes, each with scores of its own.
//
//===----------------------------------------------------------------------===//

#include "AttentionParts.h"

using namespace segue;
using namespace segue::cuda;

namespace {
constexpr int square = 32, chunk = 64, passColumns = 128;
constexpr int columnThreads = 16, chunkColumns = chunk / columnThreads;

/// Chunks of the operands of a product, and a square of weights. The odd pitch keeps
/// threads that walk down a column on different banks.
struct Tiles {
  float a[square][chunk + 1], b[square][chunk + 1], weights[square][square + 1];
};

/// Sums of a thread over its two rows and the columns of a pass.
struct Sums {
  float low[2][chunkColumns] = {}, high[2][chunkColumns] = {};
};

GPU_FUNCTION int rowOf() { return int(gpu::thread()) / columnThreads; }
GPU_FUNCTION int columnOf() { return int(gpu::thread()) % columnThreads; }

GPU_FUNCTION float elementOf(const AttentionSpec &spec, const Rows &rows, int row, int dim) {
  return gpu::element(rows.data, spec.element, row * rows.step + dim);
}

GPU_FUNCTION void loadChunk(float (&to)[square][chunk + 1], const AttentionSpec &spec, const Rows &rows, int firstRow,
                            int firstDim) {
  GPU_KEEP_LOOP
  for (int i = int(gpu::thread()); i < square * chunk; i += int(gpu::blockThreads)) {
    int row = firstRow + i / chunk, dim = firstDim + i % chunk;
    to[i / chunk][i % chunk] = row < rows.count && dim < spec.dim ? elementOf(spec, rows, row, dim) : 0.0f;
  }
}

/// Four products of rows of two operands, those of the thread.
struct Products {
  float at[2][2] = {};
};

GPU_FUNCTION Products multiplyRows(const AttentionSpec &spec, Tiles &tiles, const Rows &a, int firstA, const Rows &b,
                                  int firstB) {
  Products sum;
  for (int dim = 0; dim < spec.dim; dim += chunk) {
    gpu::waitForBlock(); // others may still read the last chunk
    loadChunk(tiles.a, spec, a, firstA, dim);
    loadChunk(tiles.b, spec, b, firstB, dim);
    gpu::waitForBlock();
    GPU_UNROLL_4
    for (int i = 0; i < chunk; ++i) {
      float a0 = tiles.a[rowOf()][i], a1 = tiles.a[rowOf() + 16][i];
      float b0 = tiles.b[columnOf()][i], b1 = tiles.b[columnOf() + 16][i];
      sum.at[0][0] = gpu::multiplyAdd(a0, b0, sum.at[0][0]);
      sum.at[0][1] = gpu::multiplyAdd(a0, b1, sum.at[0][1]);
      sum.at[1][0] = gpu::multiplyAdd(a1, b0, sum.at[1][0]);
      sum.at[1][1] = gpu::multiplyAdd(a1, b1, sum.at[1][1]);
    }
  }
  return sum;
}

GPU_FUNCTION void addChunk(float (&sums)[2][chunkColumns], const AttentionSpec &spec, Tiles &tiles, const Rows &b,
                           int firstB, int firstDim) {
  gpu::waitForBlock(); // the weights are there, and nobody reads the last chunk
  loadChunk(tiles.b, spec, b, firstB, firstDim);
  gpu::waitForBlock();
  GPU_UNROLL_4
  for (int i = 0; i < square; ++i) {
    float w0 = tiles.weights[rowOf()][i], w1 = tiles.weights[rowOf() + 16][i];
    GPU_UNROLL
    for (int n = 0; n < chunkColumns; ++n) {
      float value = tiles.b[i][columnOf() + columnThreads * n];
      sums[0][n] = gpu::multiplyAdd(w0, value, sums[0][n]);
      sums[1][n] = gpu::multiplyAdd(w1, value, sums[1][n]);
    }
  }
}

/// Adds to `sums` the weights times rows of `b`, for the columns of the pass.
GPU_FUNCTION void addProduct(Sums &sums, const AttentionSpec &spec, Tiles &tiles, const Rows &b, int firstB,
                             int firstDim) {
  addChunk(sums.low, spec, tiles, b, firstB, firstDim);
  if (firstDim + chunk < spec.dim)
    addChunk(sums.high, spec, tiles, b, firstB, firstDim + chunk);
}

GPU_FUNCTION void setWeights(Tiles &tiles, const Products &weights) {
  GPU_UNROLL
  for (int i = 0; i < 2; ++i)
    GPU_UNROLL
    for (int j = 0; j < 2; ++j)
      tiles.weights[rowOf() + 16 * i][columnOf() + 16 * j] = weights.at[i][j];
}

/// Writes sums times a factor per row, through shared memory, so that threads write neighbours.
GPU_FUNCTION void storeChunk(const float (&sums)[2][chunkColumns], const float (&factors)[2],
                             const AttentionSpec &spec, Tiles &tiles, const Rows &to, int firstRow, int firstDim) {
  gpu::waitForBlock(); // others may still read the last chunk
  GPU_UNROLL
  for (int i = 0; i < 2; ++i)
    GPU_UNROLL
    for (int n = 0; n < chunkColumns; ++n)
      tiles.b[rowOf() + 16 * i][columnOf() + columnThreads * n] = sums[i][n] * factors[i];
  gpu::waitForBlock();
  GPU_KEEP_LOOP
  for (int i = int(gpu::thread()); i < square * chunk; i += int(gpu::blockThreads)) {
    int row = firstRow + i / chunk, dim = firstDim + i % chunk;
    if (row < to.count && dim < spec.dim)
      gpu::setElement(to.data, spec.element, row * to.step + dim, tiles.b[i / chunk][i % chunk]);
  }
}

GPU_FUNCTION void store(const Sums &sums, const float (&factors)[2], const AttentionSpec &spec, Tiles &tiles,
                        const Rows &to, int firstRow, int firstDim) {
  storeChunk(sums.low, factors, spec, tiles, to, firstRow, firstDim);
  if (firstDim + chunk < spec.dim)
    storeChunk(sums.high, factors, spec, tiles, to, firstRow, firstDim + chunk);
}

GPU_FUNCTION float sumOfRow(float value) {
  for (int distance = columnThreads / 2; distance; distance /= 2)
    value += gpu::floatOf(gpu::shuffle(gpu::bitsOf(value), distance));
  return value;
}
GPU_FUNCTION float largestOfRow(float value) {
  for (int distance = columnThreads / 2; distance; distance /= 2)
    value = gpu::larger(value, gpu::floatOf(gpu::shuffle(gpu::bitsOf(value), distance)));
  return value;
}

/// exp(score - base), and 0 for what a row does not see, also where it sees nothing.
GPU_FUNCTION float weightOf(float score, float base) {
  return score == -gpu::infinity ? 0.0f : gpu::exponential(base == -gpu::infinity ? score : score - base);
}

/// With dropout, sets those of a thread's weights, or of their gradients, to 0 that it drops, and scales the others. A
/// product has keys as columns, or as rows if it is turned.
template <bool isTurned> GPU_FUNCTION void drop(Products &products, const Head &head, int firstRow, int firstKey) {
  if (head.args.spec.forward.dropout == 0.0f)
    return;
  KeptWeights weights(head);
  float factor = keptFactor(head.args.spec.forward);
  GPU_UNROLL
  for (int i = 0; i < 2; ++i)
    GPU_UNROLL
    for (int j = 0; j < 2; ++j) {
      int down = rowOf() + 16 * i, across = columnOf() + 16 * j;
      bool isKept = isTurned ? weights.isKept(firstRow + across, firstKey + down)
                             : weights.isKept(firstRow + down, firstKey + across);
      products.at[i][j] = isKept ? products.at[i][j] * factor : 0.0f;
    }
}

GPU_FUNCTION int squaresOf(int64_t extent) { return int((extent + square - 1) / square); }
} // namespace

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

GPU_KERNEL(attendRows, AttentionKernelArgs) {
  GPU_SHARED Tiles tiles;
  const AttentionSpec &spec = args.spec.forward;
  int squares = squaresOf(spec.rows), heads = int(spec.heads);
  int64_t items = spec.batch * heads * squares;
  for (int64_t item = gpu::block(); item < items; item += gpu::blocks()) {
    int number = int(item / squares);
    Head head{args, number / heads, number % heads};
    int firstRow = int(item % squares) * square;
    int seen = spec.causal && firstRow + square < spec.keys ? firstRow + square : int(spec.keys);
    auto [q, k, v, out, gradOut] = operandsOf(head); // the last is of derivatives
    for (int pass = 0; pass < spec.dim; pass += passColumns) {
      float most[2] = {-gpu::infinity, -gpu::infinity}, total[2] = {};
      Sums sums;
      for (int key = 0; key < seen; key += square) {
        Products scores = multiplyRows(spec, tiles, q, firstRow, k, key);
        GPU_UNROLL
        for (int i = 0; i < 2; ++i) {
          GPU_UNROLL
          for (int j = 0; j < 2; ++j)
            scores.at[i][j] =
                scoreOf(head, scores.at[i][j], firstRow + rowOf() + 16 * i, key + columnOf() + 16 * j);
          float now = gpu::larger(most[i], largestOfRow(gpu::larger(scores.at[i][0], scores.at[i][1])));
          float factor = now == most[i] ? 1.0f : weightOf(most[i], now);
          GPU_UNROLL
          for (int j = 0; j < 2; ++j)
            scores.at[i][j] = weightOf(scores.at[i][j], now);
          total[i] = total[i] * factor + sumOfRow(scores.at[i][0] + scores.at[i][1]);
          most[i] = now;
          GPU_UNROLL
          for (int n = 0; n < chunkColumns; ++n) {
            sums.low[i][n] *= factor;
            sums.high[i][n] *= factor;
          }
        }
        drop<false>(scores, head, firstRow, key);
        setWeights(tiles, scores);
        addProduct(sums, spec, tiles, v, key, pass);
      }
      float factors[2];
      GPU_UNROLL
      for (int i = 0; i < 2; ++i) {
        int row = firstRow + rowOf() + 16 * i;
        factors[i] = total[i] == 0.0f ? 0.0f : 1.0f / total[i];
        if (pass == 0 && columnOf() == 0 && row < spec.rows)
          args.lse[number * spec.rows + row] =
              total[i] == 0.0f ? -gpu::infinity : most[i] + gpu::logarithm(total[i]);
      }
      store(sums, factors, spec, tiles, out, firstRow, pass);
    }
  }
}

GPU_KERNEL(attendRowsGrad, AttentionKernelArgs) {
  GPU_SHARED Tiles tiles;
  const AttentionSpec &spec = args.spec.forward;
  int squares = squaresOf(spec.rows), heads = int(spec.heads);
  int64_t items = spec.batch * heads * squares;
  for (int64_t item = gpu::block(); item < items; item += gpu::blocks()) {
    int number = int(item / squares);
    Head head{args, number / heads, number % heads};
    int firstRow = int(item % squares) * square;
    int seen = spec.causal && firstRow + square < spec.keys ? firstRow + square : int(spec.keys);
    auto [q, k, v, out, gradOut] = operandsOf(head);
    Rows gradQ = rowsOf(head, args.gradQ, args.spec.gradQ, spec.rows);
    float lse[2], delta[2];
    GPU_UNROLL
    for (int i = 0; i < 2; ++i) {
      int row = firstRow + rowOf() + 16 * i;
      float sum = 0;
      GPU_KEEP_LOOP
      for (int dim = columnOf(); row < spec.rows && dim < spec.dim; dim += columnThreads)
        sum = gpu::multiplyAdd(elementOf(spec, out, row, dim), elementOf(spec, gradOut, row, dim), sum);
      delta[i] = sumOfRow(sum);
      lse[i] = row < spec.rows ? args.lse[number * spec.rows + row] : -gpu::infinity;
    }
    for (int pass = 0; pass < spec.dim; pass += passColumns) {
      Sums sums;
      for (int key = 0; key < seen; key += square) {
        Products scores = multiplyRows(spec, tiles, q, firstRow, k, key);
        Products grads = multiplyRows(spec, tiles, gradOut, firstRow, v, key);
        drop<false>(grads, head, firstRow, key);
        GPU_UNROLL
        for (int i = 0; i < 2; ++i)
          GPU_UNROLL
          for (int j = 0; j < 2; ++j) {
            float score = scoreOf(head, scores.at[i][j], firstRow + rowOf() + 16 * i, key + columnOf() + 16 * j);
            grads.at[i][j] = spec.scale * weightOf(score, lse[i]) * (grads.at[i][j] - delta[i]);
          }
        setWeights(tiles, grads);
        addProduct(sums, spec, tiles, k, key, pass);
      }
      store(sums, {1.0f, 1.0f}, spec, tiles, gradQ, firstRow, pass);
    }
  }
}

GPU_KERNEL(attendKeysGrad, AttentionKernelArgs) {
  GPU_SHARED Tiles tiles;
  GPU_SHARED float deltas[square];
  const AttentionSpec &spec = args.spec.forward;
  int squares = squaresOf(spec.keys), heads = int(spec.heads);
  int64_t items = spec.batch * heads * squares;
  for (int64_t item = gpu::block(); item < items; item += gpu::blocks()) {
    int number = int(item / squares);
    Head head{args, number / heads, number % heads};
    int firstKey = int(item % squares) * square;
    auto [q, k, v, out, gradOut] = operandsOf(head);
    Rows gradK = rowsOf(head, args.gradK, args.spec.gradK, spec.keys);
    Rows gradV = rowsOf(head, args.gradV, args.spec.gradV, spec.keys);
    for (int pass = 0; pass < spec.dim; pass += passColumns) {
      Sums keySums, valueSums;
      for (int firstRow = spec.causal ? firstKey : 0; firstRow < spec.rows; firstRow += square) {
        // Eight threads sum for a row.
        constexpr int together = int(gpu::blockThreads) / square;
        int local = int(gpu::thread()) / together;
        int row = firstRow + local;
        float sum = 0;
        GPU_KEEP_LOOP
        for (int dim = int(gpu::thread()) % together; row < spec.rows && dim < spec.dim; dim += together)
          sum = gpu::multiplyAdd(elementOf(spec, out, row, dim), elementOf(spec, gradOut, row, dim), sum);
        for (int distance = together / 2; distance; distance /= 2)
          sum += gpu::floatOf(gpu::shuffle(gpu::bitsOf(sum), distance));
        // All have read those of the last rows: they met behind that.
        if (int(gpu::thread()) % together == 0)
          deltas[local] = sum;

        Products scores = multiplyRows(spec, tiles, k, firstKey, q, firstRow);
        Products grads = multiplyRows(spec, tiles, v, firstKey, gradOut, firstRow);
        drop<true>(grads, head, firstRow, firstKey);
        GPU_UNROLL
        for (int j = 0; j < 2; ++j) {
          int column = firstRow + columnOf() + 16 * j;
          float lse = column < spec.rows ? args.lse[number * spec.rows + column] : -gpu::infinity;
          GPU_UNROLL
          for (int i = 0; i < 2; ++i) {
            float score = scoreOf(head, scores.at[i][j], column, firstKey + rowOf() + 16 * i);
            scores.at[i][j] = weightOf(score, lse);
            grads.at[i][j] = spec.scale * scores.at[i][j] * (grads.at[i][j] - deltas[columnOf() + 16 * j]);
          }
        }
        drop<true>(scores, head, firstRow, firstKey);
        setWeights(tiles, scores);
        addProduct(valueSums, spec, tiles, gradOut, firstRow, pass);
        gpu::waitForBlock(); // others may still read the weights
        setWeights(tiles, grads);
        addProduct(keySums, spec, tiles, q, firstRow, pass);
      }
      store(keySums, {1.0f, 1.0f}, spec, tiles, gradK, firstKey, pass);
      store(valueSums, {1.0f, 1.0f}, spec, tiles, gradV, firstKey, pass);
    }
  }
}
