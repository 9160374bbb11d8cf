//===- CudaEngine.cpp - what a GPU computes besides kernels ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CudaEngine.h"

namespace segue::inline runtime::cuda {

void CudaEngine::fill(void *target, uint64_t bytes, uint64_t pattern, uint32_t patternBytes) {
  if (!bytes)
    return;
  const Context &context = kernels_.context();
  const Api &api = context.api();
  auto at = reinterpret_cast<CUdeviceptr>(target);
  auto low = uint32_t(pattern), high = uint32_t(pattern >> 32);
  kernels_.streams().give([&](CUstream stream) {
    switch (patternBytes) {
    case 1:
      return context.check(api.fill8(at, uint8_t(low), bytes, stream), "cuMemsetD8Async");
    case 2:
      return context.check(api.fill16(at, uint16_t(low), bytes / 2, stream), "cuMemsetD16Async");
    case 4:
      return context.check(api.fill32(at, low, bytes / 4, stream), "cuMemsetD32Async");
    default:
      if (low == high)
        return context.check(api.fill32(at, low, bytes / 4, stream), "cuMemsetD32Async");
      // Each half as a column of a matrix with rows of eight bytes.
      context.check(api.fillRows32(at, 8, low, 1, bytes / 8, stream), "cuMemsetD2D32Async");
      context.check(api.fillRows32(at + 4, 8, high, 1, bytes / 8, stream), "cuMemsetD2D32Async");
    }
  });
}

void CudaEngine::add(float *sum, const float *addend, int64_t count) {
  kernels_.launch(Builtin::addFloats, AddArgs{sum, addend, count}, count);
}

void CudaEngine::scale(float *data, int64_t count, float factor) {
  kernels_.launch(Builtin::scaleFloats, ScaleArgs{data, count, factor}, count);
}

void CudaEngine::countNonFinite(const NonFiniteRows &rows, const void *data, NonFiniteCount &count) {
  if (!isFloat(rows.element) || rows.units <= 0 || rows.perUnit <= 0)
    return;
  CountArgs args{.data = data, .units = rows.units, .perUnit = rows.perUnit, .elements = rows.elements,
                 .innerStride = rows.innerStride, .element = rows.element};
  for (size_t dim = 0; dim < rows.extents.size(); ++dim) {
    if (rows.extents[dim] == 1 && dim + 1 < rows.extents.size())
      continue;
    if (args.dims == CountArgs::mostDims)
      throw Error(ErrorCode::InvalidArgument, "a count of NaN over more than " + std::to_string(CountArgs::mostDims) +
                                                  " dimensions with two indices or more");
    args.extents[args.dims] = rows.extents[dim];
    args.strides[args.dims++] = rows.strides[dim];
  }
  auto launched = std::make_unique<WordsOfLaunch>(kernels_.words(), [&count](const volatile uint64_t *words) {
    count.nans.fetch_add(int64_t(words[0]), std::memory_order_relaxed);
    count.infs.fetch_add(int64_t(words[1]), std::memory_order_relaxed);
  });
  args.counts = launched->words;
  args.counts[0] = args.counts[1] = 0;
  kernels_.launch(Builtin::countNonFinite, args, rows.units * rows.perUnit);
  WordsOfLaunch::finish(kernels_.streams(), std::move(launched));
}

void CudaEngine::rotate(float *rows, int64_t count, int64_t columns) {
  int64_t blocks = count * columns / rotationBlock;
  kernels_.launch(Builtin::rotateRows, RotateArgs{rows, blocks}, blocks, 1);
}

void CudaEngine::restore(const LowBitRows &rows) {
  if (rows.rotated)
    rotate(rows.rows, rows.count, rows.columns);
  if (rows.rank)
    kernels_.launch(Builtin::addLowRank, LowRankArgs{rows.rows, rows.a, rows.b, rows.count, rows.columns, rows.rank},
                    rows.count * rows.columns);
}

} // namespace segue::inline runtime::cuda
