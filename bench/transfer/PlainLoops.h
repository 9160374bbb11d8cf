//===- PlainLoops.h - what anybody would write ------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The loops that toLayout is measured against, compiled for this processor with
// all the compiler has. They check nothing: NaN, infinity and rows of zeros are
// not their business.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_BENCH_TRANSFER_PLAINLOOPS_H
#define SEGUE_BENCH_TRANSFER_PLAINLOOPS_H

#include <cstddef>
#include <cstdint>

namespace segue::bench {

void plainCopy(const std::byte *source, std::byte *target, size_t bytes, int threads);
void plainQuantize(const float *source, int8_t *codes, float *scales, int64_t rows, int64_t columns, int threads);
void plainDequantize(const int8_t *codes, const float *scales, float *target, int64_t rows, int64_t columns,
                     int threads);

} // namespace segue::bench

#endif // SEGUE_BENCH_TRANSFER_PLAINLOOPS_H
