//===- Gradients.cu - sums, factors and counts of numbers -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Gpu.h"

#include "BuiltinArgs.h"

using namespace segue::cuda;

GPU_KERNEL(addFloats, AddArgs) {
  for (int64_t i = gpu::firstIndex(); i < args.count; i += gpu::indexStep())
    args.sum[i] += args.addend[i];
}

GPU_KERNEL(scaleFloats, ScaleArgs) {
  for (int64_t i = gpu::firstIndex(); i < args.count; i += gpu::indexStep())
    args.data[i] *= args.factor;
}

/// Returns 1 for an infinity, 2 for a NaN and 0 for a number. `infinity` has the bits of one.
template <typename Bits> GPU_FUNCTION int kindOf(const void *data, int64_t index, Bits infinity) {
  Bits magnitude = static_cast<const Bits *>(data)[index] & (Bits(~Bits(0)) >> 1);
  return magnitude > infinity ? 2 : magnitude == infinity ? 1 : 0;
}

GPU_FUNCTION int kindOf(const CountArgs &args, int64_t index) {
  switch (args.element) {
  case segue::ElementType::f32:
    return kindOf<uint32_t>(args.data, index, 0x7f800000u);
  case segue::ElementType::bf16:
    return kindOf<uint16_t>(args.data, index, 0x7f80);
  case segue::ElementType::f16:
    return kindOf<uint16_t>(args.data, index, 0x7c00);
  case segue::ElementType::f64:
    return kindOf<uint64_t>(args.data, index, 0x7ff0000000000000u);
  default:
    return 0;
  }
}

GPU_KERNEL(countNonFinite, CountArgs) {
  uint64_t nans = 0, infs = 0;
  int64_t total = args.units * args.perUnit;
  for (int64_t i = gpu::firstIndex(); i < total; i += gpu::indexStep()) {
    int64_t unit = i / args.perUnit, inUnit = i % args.perUnit, place = i;
    if (args.dims) {
      place = inUnit * args.innerStride;
      for (int dim = args.dims; dim-- > 0; unit /= args.extents[dim])
        place += unit % args.extents[dim] * args.strides[dim];
    } else if (i >= args.elements) {
      break;
    }
    int kind = kindOf(args, place);
    nans += kind == 2;
    infs += kind == 1;
  }
  // What is not finite is rare.
  if (nans)
    gpu::add(&args.counts[0], nans);
  if (infs)
    gpu::add(&args.counts[1], infs);
}
