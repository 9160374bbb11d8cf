//===- LibraryCalls.cpp - library calls on a GPU --------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "LibraryCalls.h"
#include "../Engine/Library/Argsort.h"
#include "../Engine/Library/Convolution.h"
#include "../Engine/Library/GeluProducts.h"
#include "../Engine/Library/GroupedProducts.h"
#include <algorithm>
#include <limits>

namespace segue::inline runtime::cuda {

/// The rows and columns of a tile, and the depth of its slices (Builtin/Tiles.h).
static constexpr int64_t tileExtent = 64, tileDepth = 16;

static int64_t piecesOf(int64_t count, int64_t piece) { return (count + piece - 1) / piece; }

void LibraryCalls::refuse(const std::string &why) const {
  throw Error(ErrorCode::Unsupported, "device \"" + device_ + "\": " + why);
}

//===----------------------------------------------------------------------===//
// Products of groups
//===----------------------------------------------------------------------===//

class LibraryCalls::GroupProduct final : public LibraryPlan {
public:
  GroupProduct(BuiltinKernels &kernels, const GroupedSpec &spec) : kernels_(kernels), spec_(spec) {}

  void run(std::span<void *const> tensors) const override {
    GroupsArgs args{.a = tensors[0], .b = tensors[1], .ends = tensors[2], .c = tensors[3], .rows = spec_.rows,
                    .groups = spec_.groups, .height = spec_.height, .width = spec_.width, .depth = spec_.depth,
                    .element = spec_.element, .index = spec_.index, .transposed = spec_.transposed};
    int64_t columnTiles = piecesOf(spec_.width, tileExtent);
    if (spec_.isOuter)
      kernels_.launch(Builtin::multiplyGroupsOuter, args,
                      spec_.groups * piecesOf(spec_.height, tileExtent) * columnTiles, 1);
    else // as many tiles of rows as any ends may need
      kernels_.launch(Builtin::multiplyGroups, args, (spec_.rows / tileExtent + spec_.groups + 1) * columnTiles, 1);
  }

private:
  BuiltinKernels &kernels_;
  GroupedSpec spec_;
};

//===----------------------------------------------------------------------===//
// Products with gelu
//===----------------------------------------------------------------------===//

/// A plan that takes gelu in the library's epilogue, or, where that has none and where operands begin at no multiple of
/// 16 bytes, in a kernel behind the product.
class LibraryCalls::GeluByEpilogue final : public LibraryPlan {
public:
  GeluByEpilogue(BuiltinKernels &kernels, Products &products, const GeluProduct &call)
      : kernels_(kernels), call_(call), product_(products.plan(call.product)),
        fused_(products.planEpilogue(call.product, call.hasSums ? Epilogue::GeluAndSums : Epilogue::Gelu)) {}

  void run(std::span<void *const> tensors) const override {
    GeluProductArgs args(call_, tensors);
    uintptr_t addresses = 0;
    for (void *tensor : tensors)
      addresses |= uintptr_t(tensor);
    if (fused_ && addresses % 16 == 0)
      return fused_->run(args.lhs, args.rhs, args.result, args.bias, args.sums);
    void *product = args.sums ? args.sums : args.result;
    product_->run(args.lhs, args.rhs, product, args.bias);
    kernels_.launch(Builtin::applyGelu,
                    GeluArgs{.x = product, .y = args.result, .count = call_.elements(),
                             .element = call_.product.a.element},
                    call_.elements());
  }

private:
  BuiltinKernels &kernels_;
  GeluProduct call_;
  std::shared_ptr<const MatmulPlan> product_;
  std::shared_ptr<const EpiloguePlan> fused_;
};

//===----------------------------------------------------------------------===//
// Convolutions
//===----------------------------------------------------------------------===//

class LibraryCalls::ConvolutionByTiles final : public LibraryPlan {
public:
  ConvolutionByTiles(LibraryCalls &calls, const Convolution &spec);

  void run(std::span<void *const> tensors) const override;

private:
  /// Sums are cut where a convolution has fewer tiles than this, which keep a GPU busy, into parts of that depth or more.
  static constexpr int64_t wantedTiles = 256, leastDepth = 512;
  /// What no sums in parts are larger than. It is taken at once, so that what is foreseen is what will be taken.
  static constexpr uint64_t partsBytes = wantedTiles * tileExtent * tileExtent * sizeof(float);

  LibraryCalls &calls_;
  Convolution spec_;
  Builtin kernel_;
  ConvolutionArgs args_ = {};
  PartsArgs add_ = {};
  int64_t items_;
};

LibraryCalls::ConvolutionByTiles::ConvolutionByTiles(LibraryCalls &calls, const Convolution &spec)
    : calls_(calls), spec_(spec) {
  using Kind = Convolution::Kind;
  int64_t channels = spec.channelsPerGroup(), outputs = spec.outputsPerGroup(), taps = spec.taps();
  int64_t outputPlaces = spec.outputPlaces(), imagePlaces = spec.imagePlaces();
  ConvolutionArgs &args = args_;
  switch (spec.kind) {
  case Kind::Forward:
    kernel_ = Builtin::convolve;
    args.rows = outputs, args.columns = spec.images * outputPlaces, args.depth = channels * taps;
    break;
  case Kind::InputGrad:
    kernel_ = Builtin::convolveImageGrad;
    args.rows = channels, args.columns = spec.images * imagePlaces, args.depth = outputs * taps;
    break;
  case Kind::WeightGrad:
    kernel_ = Builtin::convolveWeightGrad;
    args.rows = outputs, args.columns = channels * taps, args.depth = spec.images * outputPlaces;
    break;
  }
  // Kernels count places and taps in 32 bits, a tile beyond the last one too.
  constexpr int64_t most = std::numeric_limits<int32_t>::max() - tileExtent;
  int64_t largest = std::max({args.rows, args.columns, args.depth, spec.images, spec.groups, imagePlaces});
  for (size_t i = 0; i < 3; ++i) {
    const Convolution::Axis &axis = spec.axes[i];
    int64_t reached = (axis.output - 1) * axis.stride + (axis.taps - 1) * axis.dilation;
    largest = std::max({largest, reached, axis.image + axis.low});
    args.axes[i] = {int32_t(axis.image), int32_t(axis.output), int32_t(axis.taps),
                    int32_t(axis.stride), int32_t(axis.dilation), int32_t(axis.low)};
  }
  if (largest > most)
    calls.refuse("a convolution over more than 2^31 places or taps");
  args.channels = int32_t(channels);
  args.outputs = int32_t(outputs);
  args.images = int32_t(spec.images);
  args.groups = int32_t(spec.groups);
  args.element = spec.element;
  args.results = spec.kind == Kind::WeightGrad ? spec.outputs * channels * taps
                                               : args.columns * args.rows * spec.groups;

  int64_t tiles = piecesOf(args.rows, tileExtent) * piecesOf(args.columns, tileExtent) * spec.groups;
  int64_t parts = tiles ? std::max(std::min(wantedTiles / tiles, args.depth / leastDepth), int64_t(1)) : 1;
  args.partDepth = std::max(piecesOf(piecesOf(args.depth, parts), tileDepth), int64_t(1)) * tileDepth;
  args.parts = std::max(piecesOf(args.depth, args.partDepth), int64_t(1)); // without depth, sums that are zero
  items_ = tiles * args.parts;
  add_ = {.parts = args.parts, .results = args.results, .channels = spec.outputs, .perChannel = outputPlaces,
          .element = spec.element};
  if (args.parts > 1)
    calls.parts_.takeForPlans(partsBytes);
}

void LibraryCalls::ConvolutionByTiles::run(std::span<void *const> tensors) const {
  using Kind = Convolution::Kind;
  ConvolutionArgs args = args_;
  void *result = tensors.back();
  args.image = spec_.kind == Kind::InputGrad ? result : tensors[spec_.kind == Kind::Forward ? 0 : 1];
  args.weight = spec_.kind == Kind::WeightGrad ? result : tensors[1];
  args.output = spec_.kind == Kind::Forward ? result : tensors[0];
  const void *bias = spec_.hasBias ? tensors[2] : nullptr;
  if (args.parts == 1) {
    args.bias = bias;
    return calls_.kernels_.launch(kernel_, args, items_, 1);
  }
  calls_.parts_.use(partsBytes, "sums of a convolution", [&](std::byte *memory) {
    args.sums = reinterpret_cast<float *>(memory);
    calls_.kernels_.launch(kernel_, args, items_, 1);
    PartsArgs add = add_;
    add.sums = args.sums;
    add.bias = bias;
    add.result = result;
    calls_.kernels_.launch(Builtin::addParts, add, add.results);
  });
}

//===----------------------------------------------------------------------===//
// Sorted rows
//===----------------------------------------------------------------------===//

/// A plan that sorts short runs in one launch and merges them in pairs, one launch for all pairs of a length. Places go to
/// and fro between the halves of the workspace.
class LibraryCalls::ArgsortByMerging final : public LibraryPlan {
public:
  ArgsortByMerging(BuiltinKernels &kernels, const ArgsortSpec &spec) : kernels_(kernels), spec_(spec) {}

  void run(std::span<void *const> tensors) const override {
    if (spec_.count == 0)
      return;
    for (int64_t row = 0; row < spec_.rows; row += spec_.slots)
      sortRows(static_cast<const std::byte *>(tensors[0]) + uint64_t(row * spec_.length) * byteSize(spec_.element),
               static_cast<int64_t *>(tensors[1]) + row * spec_.count, static_cast<int32_t *>(tensors[2]),
               std::min(spec_.slots, spec_.rows - row));
  }

private:
  /// Rows of at most `wholeRow` elements are sorted at once: to compare each with each takes less than launches.
  static constexpr int64_t wholeRow = 1024, shortRun = 64;

  void sortRows(const void *x, int64_t *result, int32_t *space, int64_t rows) const {
    int64_t length = spec_.length;
    int32_t *halves[] = {space, space + rows * length};
    SortArgs args{.x = x, .from = nullptr, .to = nullptr, .rows = rows, .length = length,
                  .run = length <= wholeRow ? length : shortRun, .first = spec_.first, .count = spec_.count,
                  .element = spec_.element, .descending = spec_.descending, .isLast = length <= wholeRow};
    args.to = args.isLast ? static_cast<void *>(result) : halves[0];
    kernels_.launch(Builtin::sortRuns, args, rows * length);
    for (size_t step = 0; !args.isLast; ++step, args.run *= 2) {
      args.isLast = 2 * args.run >= length;
      args.from = halves[step % 2];
      args.to = args.isLast ? static_cast<void *>(result) : halves[(step + 1) % 2];
      kernels_.launch(Builtin::mergeRuns, args, rows * length);
    }
  }

  BuiltinKernels &kernels_;
  ArgsortSpec spec_;
};

//===----------------------------------------------------------------------===//
// All of them
//===----------------------------------------------------------------------===//

std::shared_ptr<const LibraryPlan> LibraryCalls::make(const LibraryCallSpec &spec) {
  if (spec.operation.starts_with("grouped_"))
    return std::make_shared<const GroupProduct>(kernels_, readGrouped(spec));
  if (spec.operation == "argsort")
    return std::make_shared<const ArgsortByMerging>(kernels_, readArgsort(spec));
  if (spec.operation == "dot_gelu")
    return std::make_shared<const GeluByEpilogue>(kernels_, products_, readGeluProduct(spec));
  if (spec.operation.starts_with("conv2d") || spec.operation.starts_with("conv3d"))
    return std::make_shared<const ConvolutionByTiles>(*this, readConvolution(spec));
  refuse("no kernel for " + spec.operation);
}

std::shared_ptr<const LibraryPlan> LibraryCalls::plan(const LibraryCallSpec &spec) {
  std::lock_guard lock(mutex_);
  return plans_.findOrMake(spec, [&] { return make(spec); });
}

} // namespace segue::inline runtime::cuda
