//===- Convolution.h - calls of convolutions --------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_ENGINE_LIBRARY_CONVOLUTION_H
#define SEGUE_RUNTIME_LIB_ENGINE_LIBRARY_CONVOLUTION_H

#include "segue/runtime/Engine/LibraryCall.h"
#include <array>
#include <span>

namespace segue::inline runtime {

/// A convolution over three dimensions, the first of which may be 1, or one of its gradients.
struct Convolution {
  enum class Kind : int8_t { Forward, InputGrad, WeightGrad };

  /// One dimension of the images. Tap t of output place p lies at
  /// p * stride + t * dilation - low of the image.
  struct Axis {
    int64_t image, output, taps, stride, dilation, low;

    int64_t offsetOf(int64_t tap) const { return tap * dilation - low; }
  };

  Kind kind;
  ElementType element;
  bool hasBias;
  int64_t images, channels, outputs, groups;
  /// Dimensions of the tensors' places, 2 or 3, and the axes, of which the first is 1 for 2.
  size_t dims;
  std::array<Axis, 3> axes;

  int64_t channelsPerGroup() const { return channels / groups; }
  int64_t outputsPerGroup() const { return outputs / groups; }
  int64_t taps() const { return productOf(&Axis::taps); }
  int64_t imagePlaces() const { return productOf(&Axis::image); }
  int64_t outputPlaces() const { return productOf(&Axis::output); }
  /// The axes that the tensors have.
  std::span<const Axis> ownAxes() const { return std::span(axes).last(dims); }

private:
  int64_t productOf(int64_t Axis::*extent) const {
    return axes[0].*extent * (axes[1].*extent) * (axes[2].*extent);
  }
};

/// Reads a call of a convolution or of one of its gradients without problem.
Convolution readConvolution(const LibraryCallSpec &spec);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_ENGINE_LIBRARY_CONVOLUTION_H
