//===- Convolution.cu - convolutions and their gradients ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// segue.conv2d, segue.conv3d and their gradients (SegueLibraryOps.td), as the products per
// group that Engine/Library/Convolution.cpp makes of them, by tiles:
//
//   convolve            [outputs, images x places] = weight * unfolded image
//   convolveImageGrad   [channels, images x places] = weight' * unfolded gradient
//   convolveWeightGrad  [outputs, channels x taps] = gradient * unfolded image'
//
// An unfolded image is never in memory: a thread finds each element that it brings to a
// tile by the indices of its place and of its tap. Where few tiles have a long sum each, it
// is cut into parts, which addParts adds in their order.
//
//===----------------------------------------------------------------------===//

#include "Tiles.h"

#include "BuiltinArgs.h"

using namespace segue;
using namespace segue::cuda;

namespace {
constexpr int extent = gpu::tileExtent;

/// An image, a channel or an output, and a place or a tap in it.
struct Index {
  int outer, d, h, w;
};

/// What counts the places or taps of one: the extents behind the first.
struct Extents {
  int d, h, w;

  GPU_MEMBER int count() const { return d * h * w; }
  GPU_MEMBER Index at(int index) const {
    auto rest = uint32_t(index);
    uint32_t inW = rest % uint32_t(w);
    rest /= uint32_t(w);
    uint32_t inH = rest % uint32_t(h);
    rest /= uint32_t(h);
    return {int(rest / uint32_t(d)), int(rest % uint32_t(d)), int(inH), int(inW)};
  }
  GPU_MEMBER void advance(Index &index) const {
    if (++index.w < w)
      return;
    index.w = 0;
    if (++index.h < h)
      return;
    index.h = 0;
    if (++index.d < d)
      return;
    index.d = 0;
    ++index.outer;
  }
};

GPU_FUNCTION Extents imageExtents(const ConvolutionArgs &args) {
  return {args.axes[0].image, args.axes[1].image, args.axes[2].image};
}
GPU_FUNCTION Extents outputExtents(const ConvolutionArgs &args) {
  return {args.axes[0].output, args.axes[1].output, args.axes[2].output};
}
GPU_FUNCTION Extents tapExtents(const ConvolutionArgs &args) {
  return {args.axes[0].taps, args.axes[1].taps, args.axes[2].taps};
}

/// Where tap and place of the output lie in the image along an axis; outside of it the answer is negative.
GPU_FUNCTION int imagePlace(const ConvolutionArgs::Axis &axis, int place, int tap) {
  int at = place * axis.stride + tap * axis.dilation - axis.low;
  return at < axis.image ? at : -1;
}

/// Where the place of the output lies whose tap is at a place of the image; negative where there is none.
GPU_FUNCTION int outputPlace(const ConvolutionArgs::Axis &axis, int place, int tap) {
  int at = place + axis.low - tap * axis.dilation;
  if (axis.stride == 1 || at < 0)
    return at < axis.output ? at : -1;
  int whole = int(uint32_t(at) / uint32_t(axis.stride));
  return whole * axis.stride == at && whole < axis.output ? whole : -1;
}

/// An element of the images: channel `channel` of a group, at what `tap` multiplies for `place` of the output.
GPU_FUNCTION float imageAt(const ConvolutionArgs &args, int group, int channel, const Index &place, const Index &tap) {
  int d = imagePlace(args.axes[0], place.d, tap.d), h = imagePlace(args.axes[1], place.h, tap.h);
  int w = imagePlace(args.axes[2], place.w, tap.w);
  if ((d | h | w) < 0)
    return 0;
  Extents image = imageExtents(args);
  int64_t plane = (int64_t(place.outer) * args.groups + group) * args.channels + channel;
  return gpu::element(args.image, args.element, ((plane * image.d + d) * image.h + h) * image.w + w);
}

/// The same of the gradients of the output, for a place of the image.
GPU_FUNCTION float outputAt(const ConvolutionArgs &args, int group, int output, const Index &place, const Index &tap) {
  int d = outputPlace(args.axes[0], place.d, tap.d), h = outputPlace(args.axes[1], place.h, tap.h);
  int w = outputPlace(args.axes[2], place.w, tap.w);
  if ((d | h | w) < 0)
    return 0;
  Extents places = outputExtents(args);
  int64_t plane = (int64_t(place.outer) * args.groups + group) * args.outputs + output;
  return gpu::element(args.output, args.element, ((plane * places.d + d) * places.h + h) * places.w + w);
}

/// Columns are places of all images, the depth is channels and taps: those of the output with the image as the source,
/// or those of the image with the gradient of the output as it.
template <bool isGrad> struct UnfoldedPlaces {
  static constexpr bool alongDepth = false;
  const ConvolutionArgs &args;
  int group, depth, count;
  Index first;

  GPU_FUNCTION UnfoldedPlaces make(const ConvolutionArgs &args, int group, int depth, int column) {
    Extents places = isGrad ? imageExtents(args) : outputExtents(args);
    int at = column + gpu::tileOffset<false>(), all = args.images * places.count();
    return {args, group, depth, all - at, at < all ? places.at(at) : Index{}};
  }
  GPU_MEMBER void fetch(int64_t l, float (&four)[4]) const {
    Index tap = l < depth ? tapExtents(args).at(int(l)) : Index{}, place = first;
    int there = l < depth ? count : 0;
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      four[i] = i >= there ? 0.0f
                : isGrad   ? outputAt(args, group, tap.outer, place, tap)
                           : imageAt(args, group, tap.outer, place, tap);
      (isGrad ? imageExtents(args) : outputExtents(args)).advance(place);
    }
  }
};

/// Columns are channels and taps, the depth is places of the output of all images.
struct UnfoldedTaps {
  static constexpr bool alongDepth = true;
  const ConvolutionArgs &args;
  int group, depth;
  bool isThere;
  Index tap;

  GPU_FUNCTION UnfoldedTaps make(const ConvolutionArgs &args, int group, int depth, int column) {
    int at = column + gpu::tileOffset<true>();
    bool isThere = at < args.channels * tapExtents(args).count();
    return {args, group, depth, isThere, isThere ? tapExtents(args).at(at) : Index{}};
  }
  GPU_MEMBER void fetch(int64_t l, float (&four)[4]) const {
    Index place = isThere && l < depth ? outputExtents(args).at(int(l)) : Index{};
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      four[i] = isThere && l + i < depth ? imageAt(args, group, tap.outer, place, tap) : 0.0f;
      outputExtents(args).advance(place);
    }
  }
};

/// Rows are outputs, the depth is places of the output of all images: the gradient as it lies.
struct OutputRows {
  static constexpr bool alongDepth = true;
  const ConvolutionArgs &args;
  int group, depth, row;

  GPU_MEMBER void fetch(int64_t l, float (&four)[4]) const {
    int places = outputExtents(args).count(), count = row < args.outputs ? depth : 0;
    int image = l < count ? int(uint32_t(l) / uint32_t(places)) : 0, place = int(l) - image * places;
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      int64_t plane = (int64_t(image) * args.groups + group) * args.outputs + row;
      four[i] = l + i < count ? gpu::element(args.output, args.element, plane * places + place) : 0.0f;
      if (++place == places)
        place = 0, ++image;
    }
  }
};

/// Rows are channels, the depth is outputs and taps.
struct TurnedWeight {
  static constexpr bool alongDepth = true;
  const ConvolutionArgs &args;
  int group, depth, row;

  GPU_MEMBER void fetch(int64_t l, float (&four)[4]) const {
    int taps = tapExtents(args).count(), count = row < args.channels ? depth : 0;
    int output = l < count ? int(uint32_t(l) / uint32_t(taps)) : 0, tap = int(l) - output * taps;
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      int64_t matrix = (int64_t(group) * args.outputs + output) * args.channels + row;
      four[i] = l + i < count ? gpu::element(args.weight, args.element, matrix * taps + tap) : 0.0f;
      if (++tap == taps)
        tap = 0, ++output;
    }
  }
};

/// A tile of the product of a group, and the part of its sums.
struct Item {
  int group, row, column;
  int64_t part, begin, end;
};

GPU_FUNCTION Item itemAt(const ConvolutionArgs &args, int64_t index) {
  int64_t rowTiles = (args.rows + extent - 1) / extent, columnTiles = (args.columns + extent - 1) / extent;
  // Rows first: tiles that unfold the same places are neighbours in time.
  auto row = int(index % rowTiles * extent);
  index /= rowTiles;
  auto column = int(index % columnTiles * extent);
  index /= columnTiles;
  int64_t part = index / args.groups, begin = part * args.partDepth, end = begin + args.partDepth;
  return {int(index % args.groups), row, column, part, begin, end < args.depth ? end : args.depth};
}

GPU_FUNCTION int64_t itemCount(const ConvolutionArgs &args) {
  int64_t rowTiles = (args.rows + extent - 1) / extent, columnTiles = (args.columns + extent - 1) / extent;
  return rowTiles * columnTiles * args.groups * args.parts;
}

/// Writes a sum of the result, or of a part, where addParts does the rest.
GPU_FUNCTION void storeSum(const ConvolutionArgs &args, void *result, int64_t part, int64_t index, int channel,
                           float sum) {
  if (args.parts > 1) {
    args.sums[part * args.results + index] = sum;
    return;
  }
  gpu::setElement(result, args.element, index, args.bias ? sum + gpu::element(args.bias, args.element, channel) : sum);
}

/// Writes sums whose columns are places of all images, and whose rows are channels of the result.
GPU_FUNCTION void storePlaces(const ConvolutionArgs &args, void *result, const Item &item, int places,
                              const gpu::TileSums &sums) {
  gpu::storeTile(sums, [&](int i, int j, float sum) {
    int row = item.row + i, column = item.column + j;
    if (row >= args.rows || column >= args.columns)
      return;
    int image = int(uint32_t(column) / uint32_t(places)), channel = item.group * args.rows + row;
    int64_t plane = int64_t(image) * args.groups * args.rows + channel;
    storeSum(args, result, item.part, plane * places + (column - image * places), channel, sum);
  });
}
} // namespace

GPU_KERNEL(convolve, ConvolutionArgs) {
  GPU_SHARED gpu::ProductTiles tiles;
  for (int64_t index = gpu::block(); index < itemCount(args); index += gpu::blocks()) {
    Item item = itemAt(args, index);
    int64_t depth = args.depth, first = int64_t(item.group) * args.rows * depth;
    auto *weight = static_cast<const std::byte *>(args.weight) + first * (args.element == ElementType::f32 ? 4 : 2);
    gpu::TileSums sums;
    gpu::multiplyTile(tiles, item.begin, item.end,
                      gpu::AlongDepth::make(weight, args.element, depth, depth, item.row, args.rows),
                      UnfoldedPlaces<false>::make(args, item.group, int(depth), item.column), sums);
    storePlaces(args, args.output, item, outputExtents(args).count(), sums);
  }
}

GPU_KERNEL(convolveImageGrad, ConvolutionArgs) {
  GPU_SHARED gpu::ProductTiles tiles;
  for (int64_t index = gpu::block(); index < itemCount(args); index += gpu::blocks()) {
    Item item = itemAt(args, index);
    gpu::TileSums sums;
    gpu::multiplyTile(tiles, item.begin, item.end,
                      TurnedWeight{args, item.group, int(args.depth), item.row + gpu::tileOffset<true>()},
                      UnfoldedPlaces<true>::make(args, item.group, int(args.depth), item.column), sums);
    storePlaces(args, args.image, item, imageExtents(args).count(), sums);
  }
}

GPU_KERNEL(convolveWeightGrad, ConvolutionArgs) {
  GPU_SHARED gpu::ProductTiles tiles;
  for (int64_t index = gpu::block(); index < itemCount(args); index += gpu::blocks()) {
    Item item = itemAt(args, index);
    gpu::TileSums sums;
    gpu::multiplyTile(tiles, item.begin, item.end,
                      OutputRows{args, item.group, int(args.depth), item.row + gpu::tileOffset<true>()},
                      UnfoldedTaps::make(args, item.group, int(args.depth), item.column), sums);
    gpu::storeTile(sums, [&](int i, int j, float sum) {
      int row = item.row + i, column = item.column + j;
      if (row < args.rows && column < args.columns)
        storeSum(args, args.weight, item.part, (int64_t(item.group) * args.rows + row) * args.columns + column, 0, sum);
    });
  }
}

GPU_KERNEL(addParts, PartsArgs) {
  for (int64_t i = gpu::firstIndex(); i < args.results; i += gpu::indexStep()) {
    float sum = 0;
    for (int64_t part = 0; part < args.parts; ++part)
      sum += args.sums[part * args.results + i];
    if (args.bias)
      sum += gpu::element(args.bias, args.element, i / args.perChannel % args.channels);
    gpu::setElement(args.result, args.element, i, sum);
  }
}
