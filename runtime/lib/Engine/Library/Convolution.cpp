//===- Convolution.cpp - convolutions and their gradients -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The operations of segue.conv2d, segue.conv2d_input_grad, segue.conv2d_weight_grad
// and of the same over three dimensions (SegueOps.td), whose numbers are strides,
// low, high, dilations, one for each dimension of places, and groups. Inside of this
// file there are always three dimensions, the first of which may be 1.
//
// oneDNN runs what it has a kernel of its own for on this processor: pieces of the
// images, or of the outputs, in serial primitives, one piece per thread. It brings
// bf16 units, and kernels for few channels. All else runs here:
//
// Each operation is a product of two matrices per group. One of them, the unfolded image (or,
// for the gradient of the input, the unfolded gradient), is never whole in memory: a
// block of it is gathered line by line, straight into the panels that the inner loops
// of matmul read. A line is what one element of the weight multiplies for a run of
// places; places without a source are zero.
//
//   forward      result [outputs, places of the output] = weight * unfolded input
//   input_grad   result [channels, places of the image] = weight' * unfolded gradient
//   weight_grad  result [outputs, channels and taps]    = gradient * unfolded input'
//
// Sums are f32; 16-bit elements are widened when they are packed, and results are
// rounded once. The order of a sum depends on the shapes alone.
//
//===----------------------------------------------------------------------===//

#include "Convolution.h"
#include "FloatRows.h"
#include "LibraryPlans.h"
#include "OneThreadScope.h"
#include <algorithm>
#include <array>
#include <limits>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace segue::inline runtime {
namespace {

using Kind = Convolution::Kind;
using Axis = Convolution::Axis;

/// The places of a line that have a source: `count` of them, `placeStep` apart, whose
/// sources are `sourceStep` apart.
struct Run {
  int64_t place, placeStep, source, sourceStep, count;
};

/// A part of the result that one thread computes.
struct Item {
  int64_t image, group, row, rows, column, columns;
};

/// The areas of one thread.
struct Buffers {
  float *a, *b, *line, *raw, *wide, *c;
};

constexpr int64_t kDepth = 256, kColumns = 512, kTiles = 20;
/// The flops below which a convolution runs on one thread.
constexpr double kSerialFlops = 2e6;
/// Bytes of scratch per thread that oneDNN's pieces are cut for, and beyond which one
/// piece is left to the loops below, which need little.
constexpr uint64_t kScratchBytes = 32 << 20, kMostScratchBytes = 512 << 20;

int64_t ceilDiv(int64_t a, int64_t b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }
int64_t roundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

} // namespace

//===----------------------------------------------------------------------===//
// The call
//===----------------------------------------------------------------------===//

static Kind kindOf(const LibraryCallSpec &spec) {
  std::string_view name = spec.operation;
  return name.ends_with("_input_grad")    ? Kind::InputGrad
         : name.ends_with("_weight_grad") ? Kind::WeightGrad
                                          : Kind::Forward;
}

/// Dimensions of places: "conv3d..." has three.
static size_t dimsOf(const LibraryCallSpec &spec) { return spec.operation.starts_with("conv3d") ? 3 : 2; }

/// The tensors of the call as image, weight and output of the forward operation.
static std::array<const LibraryTensor *, 3> tensorsOf(const LibraryCallSpec &spec) {
  const LibraryTensor *first = &spec.reads[0], *second = &spec.reads[1], *result = &spec.writes[0];
  switch (kindOf(spec)) {
  case Kind::Forward:
    return {first, second, result};
  case Kind::InputGrad:
    return {result, second, first};
  case Kind::WeightGrad:
    break;
  }
  return {second, result, first};
}

static std::string findConvolutionProblem(const LibraryCallSpec &spec) {
  size_t dims = dimsOf(spec);
  bool hasBias = kindOf(spec) == Kind::Forward && spec.reads.size() == 3;
  if (spec.writes.size() != 1 || (spec.reads.size() != 2 && !hasBias))
    return std::to_string(spec.reads.size()) + " operands and " + std::to_string(spec.writes.size()) +
           " results; it takes two, the forward one a bias besides, and gives one";
  if (spec.numbers.size() != 4 * dims + 1)
    return std::to_string(spec.numbers.size()) + " numbers; it takes " + std::to_string(4 * dims + 1);
  for (size_t i = 0; i < spec.numbers.size(); ++i) {
    bool isPadding = i >= dims && i < 3 * dims;
    if (spec.numbers[i] < (isPadding ? 0 : 1) || spec.numbers[i] > std::numeric_limits<int32_t>::max())
      return "number " + std::to_string(i) + " is " + std::to_string(spec.numbers[i]);
  }
  auto [image, weight, output] = tensorsOf(spec);
  for (const LibraryTensor *tensor : {image, weight, output}) {
    if (tensor->shape.size() != 2 + dims)
      return "a tensor of " + std::to_string(tensor->shape.size()) + " dimensions; images and weights have " +
             std::to_string(2 + dims);
    if (std::string problem = findElementsProblem(*tensor, *image); !problem.empty())
      return problem;
  }
  const auto &x = image->shape, &w = weight->shape, &y = output->shape;
  std::string shapes = "image " + listed(x) + ", weight " + listed(w) + " and output " + listed(y);
  int64_t groups = spec.numbers.back();
  if (x[1] % groups || w[0] % groups || w[1] != x[1] / groups || y[0] != x[0] || y[1] != w[0] || weight->elements() == 0)
    return shapes + " do not fit together in " + std::to_string(groups) + " groups";
  for (size_t dim = 0; dim < dims; ++dim) {
    int64_t padded = x[2 + dim] + spec.numbers[dims + dim] + spec.numbers[2 * dims + dim];
    int64_t dilation = spec.numbers[3 * dims + dim];
    // Compared as doubles first: the product may overflow.
    if (double(w[2 + dim] - 1) * double(dilation) + 1 > double(padded) ||
        (padded - (w[2 + dim] - 1) * dilation - 1) / spec.numbers[dim] + 1 != y[2 + dim])
      return shapes + " do not fit together in dimension " + std::to_string(2 + dim);
  }
  if (hasBias && (spec.reads[2].shape != std::vector<int64_t>{w[0]} || spec.reads[2].element != image->element))
    return "a bias of " + listed(spec.reads[2].shape) + " for " + std::to_string(w[0]) + " outputs, or of another type";
  return {};
}

static uint64_t flopsOfConvolution(const LibraryCallSpec &spec) {
  auto [image, weight, output] = tensorsOf(spec);
  return countedFlops(2.0 * double(output->elements()) * (double(weight->elements()) / double(weight->shape[0])));
}

Convolution readConvolution(const LibraryCallSpec &spec) {
  auto [image, weight, output] = tensorsOf(spec);
  const auto &x = image->shape, &w = weight->shape, &y = output->shape;
  size_t dims = dimsOf(spec);
  std::array<Axis, 3> axes{Axis{1, 1, 1, 1, 1, 0}};
  for (size_t dim = 0; dim < dims; ++dim)
    axes[3 - dims + dim] = {x[2 + dim], y[2 + dim], w[2 + dim], spec.numbers[dim], spec.numbers[3 * dims + dim],
                            spec.numbers[dims + dim]};
  return {kindOf(spec), image->element, spec.reads.size() == 3, x[0], x[1], w[0], spec.numbers.back(), dims, axes};
}

//===----------------------------------------------------------------------===//
// The plan
//===----------------------------------------------------------------------===//

namespace {
class UnfoldedProduct final : public LibraryPlan {
public:
  UnfoldedProduct(const Convolution &spec, const LibraryTools &tools)
      : spec_(spec), threads_(tools.threads), scratch_(tools.scratch), kernels_(tools.kernels) {
    bool isWeight = spec.kind == Kind::WeightGrad;
    rows_ = spec.kind == Kind::InputGrad ? spec.channelsPerGroup() : spec.outputsPerGroup();
    columns_ = isWeight                        ? spec.channelsPerGroup() * spec.taps()
               : spec.kind == Kind::InputGrad ? spec.imagePlaces()
                                               : spec.outputPlaces();
    depth_ = isWeight ? spec.outputPlaces()
                      : (spec.kind == Kind::InputGrad ? spec.outputsPerGroup() : spec.channelsPerGroup()) * spec.taps();
    outer_ = isWeight ? 1 : spec.images;
    blockRows_ = std::min(roundUp(rows_, kernels_.tileRows), kTiles * kernels_.tileRows);
    blockColumns_ = std::min(roundUp(std::max<int64_t>(columns_, 1), kernels_.panel), roundUp(kColumns, kernels_.panel));
    double flops = 2.0 * double(spec.images) * double(spec.outputs) * double(spec.outputPlaces()) *
                   double(spec.channelsPerGroup() * spec.taps());
    serial_ = threads_.count() == 1 || flops < kSerialFlops;
    // Smaller pieces where they keep all threads busy.
    while (!serial_ && items() < 3 * threads_.count() && blockColumns_ > 2 * kernels_.panel)
      blockColumns_ = roundUp(blockColumns_ / 2, kernels_.panel);
    ScratchCutter cutter;
    cut(cutter);
    scratch_->reserve(cutter.bytes());
  }

  void run(std::span<void *const> tensors) const override {
    auto lock = scratch_->lock();
    auto runOne = [&](int64_t index, int64_t thread) {
      if (spec_.element == ElementType::f32)
        runItem<float>(item(index), tensors, thread);
      else
        runItem<uint16_t>(item(index), tensors, thread);
    };
    if (!serial_)
      return threads_.forEachItem(items(), runOne);
    FlushDenormals flush;
    for (int64_t index = 0; index < items(); ++index)
      runOne(index, 0);
  }

private:
  int64_t rowBlocks() const { return ceilDiv(rows_, blockRows_); }
  int64_t columnBlocks() const { return ceilDiv(columns_, blockColumns_); }
  int64_t items() const { return outer_ * spec_.groups * rowBlocks() * columnBlocks(); }

  Item item(int64_t index) const {
    int64_t column = index % columnBlocks() * blockColumns_;
    index /= columnBlocks();
    int64_t row = index % rowBlocks() * blockRows_;
    index /= rowBlocks();
    return {index / spec_.groups, index % spec_.groups, row, std::min(blockRows_, rows_ - row), column,
            std::min(blockColumns_, columns_ - column)};
  }

  Buffers cut(ScratchCutter &cutter) const {
    bool widens = spec_.element != ElementType::f32;
    int64_t depth = std::min(depth_, kDepth);
    int64_t lines = std::max(spec_.kind == Kind::WeightGrad ? kernels_.panel * depth : blockColumns_,
                             spec_.kind == Kind::InputGrad ? blockRows_ * depth : 0);
    Buffers buffers{};
    buffers.a = cutter.floats(depth * blockRows_);
    buffers.b = cutter.floats(depth * blockColumns_);
    buffers.line = cutter.floats(lines);
    if (widens) {
      buffers.raw = cutter.floats(lines);
      buffers.wide = cutter.floats(depth * blockRows_);
      buffers.c = cutter.floats(blockRows_ * blockColumns_);
    }
    return buffers;
  }

  Run runOf(const Axis &axis, int64_t tap, int64_t begin, int64_t end) const;
  template <typename Raw>
  void gather(const Raw *plane, int64_t tap, int64_t first, int64_t count, Raw *target) const;
  template <typename Raw>
  const float *line(const Raw *plane, int64_t tap, int64_t first, int64_t count, Raw *raw, float *target) const;
  template <typename Raw>
  void packLines(const Item &item, const Raw *source, int64_t first, int64_t depth, const Buffers &buffers) const;
  template <typename Raw>
  void packTurned(const Item &item, const Raw *source, int64_t first, int64_t depth, const Buffers &buffers) const;
  void packRows(const void *source, int64_t rowStep, int64_t rows, int64_t depth, const Buffers &buffers) const;
  template <typename Raw>
  void packTurnedWeight(const Item &item, const Raw *weight, int64_t first, int64_t depth,
                        const Buffers &buffers) const;
  template <typename Raw> void runItem(const Item &item, std::span<void *const> tensors, int64_t thread) const;

  Convolution spec_;
  Threads threads_;
  std::shared_ptr<Scratch> scratch_;
  const VectorKernels &kernels_;
  bool serial_ = false;
  /// The product of one group, and of one image unless its images are summed.
  int64_t rows_, columns_, depth_, outer_;
  int64_t blockRows_, blockColumns_;
};
} // namespace

/// The places [begin, end) of a line that have a source for `tap`. Places are those of
/// the output and sources lie in the image; for the gradient of the input, the reverse.
Run UnfoldedProduct::runOf(const Axis &axis, int64_t tap, int64_t begin, int64_t end) const {
  int64_t offset = axis.offsetOf(tap);
  if (spec_.kind == Kind::InputGrad) {
    int64_t first = std::max<int64_t>(0, ceilDiv(begin - offset, axis.stride));
    int64_t last = std::min(axis.output, ceilDiv(end - offset, axis.stride));
    return {first * axis.stride + offset, axis.stride, first, 1, last - first};
  }
  int64_t first = std::max(begin, ceilDiv(-offset, axis.stride));
  int64_t last = std::min(end, ceilDiv(axis.image - offset, axis.stride));
  return {first, 1, first * axis.stride + offset, axis.stride, last - first};
}

/// Writes what `tap` multiplies at the places from `first` on.
template <typename Raw>
void UnfoldedProduct::gather(const Raw *plane, int64_t tap, int64_t first, int64_t count, Raw *target) const {
  const auto &[depths, rows, columns] = spec_.axes;
  bool spreads = spec_.kind == Kind::InputGrad;
  int64_t tapColumn = tap % columns.taps, tapRow = tap / columns.taps % rows.taps;
  int64_t tapDepth = tap / columns.taps / rows.taps;
  int64_t height = spreads ? rows.image : rows.output, width = spreads ? columns.image : columns.output;
  int64_t sourceHeight = spreads ? rows.output : rows.image, sourceWidth = spreads ? columns.output : columns.image;
  std::memset(target, 0, size_t(count) * sizeof(Raw));
  int64_t row = first / width, begin = first % width;
  for (int64_t done = 0; done < count; ++row, begin = 0) {
    int64_t end = std::min(width, begin + count - done), depth = row / height, rowInPlane = row % height;
    Run in = runOf(depths, tapDepth, depth, depth + 1), down = runOf(rows, tapRow, rowInPlane, rowInPlane + 1);
    Run run = runOf(columns, tapColumn, begin, end);
    if (in.count > 0 && down.count > 0 && run.count > 0) {
      const Raw *from = plane + (in.source * sourceHeight + down.source) * sourceWidth + run.source;
      Raw *to = target + done + run.place - begin;
      if (run.placeStep == 1 && run.sourceStep == 1)
        std::memcpy(to, from, size_t(run.count) * sizeof(Raw));
      else
        for (int64_t i = 0; i < run.count; ++i)
          to[i * run.placeStep] = from[i * run.sourceStep];
    }
    done += end - begin;
  }
}

/// Returns the line in f32, in `target`.
template <typename Raw>
const float *UnfoldedProduct::line(const Raw *plane, int64_t tap, int64_t first, int64_t count, Raw *raw,
                                   float *target) const {
  if constexpr (std::is_same_v<Raw, float>) {
    gather(plane, tap, first, count, target);
  } else {
    gather(plane, tap, first, count, raw);
    widen(kernels_, spec_.element, count, raw, target);
  }
  return target;
}

/// Packs the unfolded planes from `source` on, [depth][columns] of it, where a line is
/// one element of the depth.
template <typename Raw>
void UnfoldedProduct::packLines(const Item &item, const Raw *source, int64_t first, int64_t depth,
                                const Buffers &buffers) const {
  int64_t plane = spec_.kind == Kind::InputGrad ? spec_.outputPlaces() : spec_.imagePlaces();
  int64_t panel = kernels_.panel;
  for (int64_t l = 0; l < depth; ++l) {
    int64_t channel = (first + l) / spec_.taps(), tap = (first + l) % spec_.taps();
    const float *from = line(source + channel * plane, tap, item.column, item.columns,
                             reinterpret_cast<Raw *>(buffers.raw), buffers.line);
    for (int64_t j = 0; j < item.columns; j += panel) {
      int64_t width = std::min(panel, item.columns - j);
      float *to = buffers.b + j * depth + l * panel;
      std::copy_n(from + j, width, to);
      std::fill(to + width, to + panel, 0.0f);
    }
  }
}

/// Packs [depth][columns] of the turned unfolded image, where a line is one column.
template <typename Raw>
void UnfoldedProduct::packTurned(const Item &item, const Raw *source, int64_t first, int64_t depth,
                                 const Buffers &buffers) const {
  int64_t panel = kernels_.panel;
  for (int64_t j = 0; j < item.columns; j += panel) {
    int64_t width = std::min(panel, item.columns - j);
    for (int64_t i = 0; i < width; ++i) {
      int64_t channel = (item.column + j + i) / spec_.taps(), tap = (item.column + j + i) % spec_.taps();
      line(source + channel * spec_.imagePlaces(), tap, first, depth, reinterpret_cast<Raw *>(buffers.raw),
           buffers.line + i * depth);
    }
    kernels_.pack(width, depth, buffers.line, depth, 1, buffers.b + j * depth, panel);
  }
}

/// Packs rows of the left matrix as they lie.
void UnfoldedProduct::packRows(const void *source, int64_t rowStep, int64_t rows, int64_t depth,
                               const Buffers &buffers) const {
  auto *from = static_cast<const float *>(source);
  if (spec_.element != ElementType::f32) {
    widenRows(kernels_, spec_.element, rows, depth, source, rowStep, buffers.wide, depth);
    from = buffers.wide;
    rowStep = depth;
  }
  kernels_.pack(rows, depth, from, rowStep, 1, buffers.a, kernels_.tileRows);
}

/// Packs the weight of a group with channels as rows, and outputs and taps as depth.
template <typename Raw>
void UnfoldedProduct::packTurnedWeight(const Item &item, const Raw *weight, int64_t first, int64_t depth,
                                       const Buffers &buffers) const {
  auto *turned = reinterpret_cast<Raw *>(std::is_same_v<Raw, float> ? buffers.line : buffers.raw);
  int64_t taps = spec_.taps(), channels = spec_.channelsPerGroup();
  for (int64_t l = 0; l < depth; ++l) {
    const Raw *from = weight + (first + l) / taps * channels * taps + item.row * taps + (first + l) % taps;
    for (int64_t i = 0; i < item.rows; ++i)
      turned[l * item.rows + i] = from[i * taps];
  }
  if constexpr (!std::is_same_v<Raw, float>)
    widen(kernels_, spec_.element, depth * item.rows, turned, buffers.line);
  kernels_.pack(item.rows, depth, buffers.line, 1, item.rows, buffers.a, kernels_.tileRows);
}

template <typename Raw>
void UnfoldedProduct::runItem(const Item &item, std::span<void *const> tensors, int64_t thread) const {
  ScratchCutter cutter(scratch_->area(thread));
  Buffers buffers = cut(cutter);
  auto *first = static_cast<const Raw *>(tensors[0]), *second = static_cast<const Raw *>(tensors[1]);
  auto *result = static_cast<Raw *>(tensors.back());
  int64_t channels = spec_.channelsPerGroup(), outputs = spec_.outputsPerGroup(), taps = spec_.taps();
  int64_t firstChannel = item.image * spec_.channels + item.group * channels;
  int64_t firstOutput = item.image * spec_.outputs + item.group * outputs;
  // The place where the rows of the item begin, and the elements from one to the next.
  int64_t at = spec_.kind == Kind::InputGrad ? firstChannel : firstOutput, step = columns_;
  result += (at + item.row) * step + item.column;

  float *sums;
  int64_t sumStep;
  if constexpr (std::is_same_v<Raw, float>) {
    sums = result;
    sumStep = step;
  } else {
    sums = buffers.c;
    sumStep = item.columns;
  }
  for (int64_t i = 0; i < item.rows; ++i) {
    float start = 0;
    if (spec_.hasBias)
      widen(kernels_, spec_.element, 1, static_cast<const Raw *>(tensors[2]) + item.group * outputs + item.row + i,
            &start);
    std::fill_n(sums + i * sumStep, item.columns, start);
  }

  auto multiply = [&](int64_t depth) {
    kernels_.multiplyPacked({.rows = item.rows,
                             .columns = item.columns,
                             .depth = depth,
                             .a = buffers.a,
                             .aPanelStep = depth * kernels_.tileRows,
                             .b = buffers.b,
                             .bPanelStep = depth * kernels_.panel,
                             .bStep = kernels_.panel,
                             .c = sums,
                             .cStep = sumStep,
                             .accumulate = true});
  };
  int64_t summed = spec_.kind == Kind::WeightGrad ? spec_.images : 1;
  for (int64_t image = 0; image < summed; ++image)
    for (int64_t l = 0; l < depth_; l += kDepth) {
      int64_t depth = std::min(kDepth, depth_ - l);
      switch (spec_.kind) {
      case Kind::Forward:
        packRows(second + (item.group * outputs + item.row) * channels * taps + l, channels * taps, item.rows, depth,
                 buffers);
        packLines(item, first + firstChannel * spec_.imagePlaces(), l, depth, buffers);
        break;
      case Kind::InputGrad:
        packTurnedWeight(item, second + item.group * outputs * channels * taps, l, depth, buffers);
        packLines(item, first + firstOutput * spec_.outputPlaces(), l, depth, buffers);
        break;
      case Kind::WeightGrad:
        packRows(first + ((image * spec_.groups + item.group) * outputs + item.row) * depth_ + l, depth_, item.rows,
                 depth, buffers);
        packTurned(item, second + (image * spec_.groups + item.group) * channels * spec_.imagePlaces(), l, depth,
                   buffers);
        break;
      }
      multiply(depth);
    }
  if constexpr (!std::is_same_v<Raw, float>)
    narrowRows(kernels_, spec_.element, item.rows, item.columns, sums, sumStep, result, step);
}

//===----------------------------------------------------------------------===//
// oneDNN
//===----------------------------------------------------------------------===//

namespace {
/// An operand of a primitive: as it lies, and as the primitive wants it.
struct DnnlOperand {
  int argument;
  dnnl::memory::desc lies, wanted;
  /// Brings a tensor from the one to the other, if they differ: an operand before the
  /// primitive, the result after it. Memory for what is wanted is `offset` bytes into the area of the thread.
  dnnl::reorder reorder;
  uint64_t offset = 0;

  bool moves() const { return lies != wanted; }
};

/// A primitive for pieces of some extent.
struct DnnlPiece {
  dnnl::primitive primitive;
  /// The operands that are read, in the order of the call, then the result.
  std::vector<DnnlOperand> operands;
  dnnl::memory::desc scratch;
  uint64_t scratchOffset = 0;
};

class DnnlConvolution final : public LibraryPlan {
public:
  DnnlConvolution(const Convolution &spec, const LibraryTools &tools)
      : spec_(spec), threads_(tools.threads), scratch_(tools.scratch), engine_(dnnl::engine::kind::cpu, 0) {}

  /// Makes the primitives; false if oneDNN has no kernel of its own for one.
  bool build();
  void run(std::span<void *const> tensors) const override;

private:
  /// The bytes of scratch that the piece needs; nothing where oneDNN has no kernel.
  std::optional<uint64_t> makePiece(int64_t count, DnnlPiece &piece) const;
  uint64_t offsetIn(int argument, int64_t first) const;

  Convolution spec_;
  Threads threads_;
  std::shared_ptr<Scratch> scratch_;
  dnnl::engine engine_;
  /// Pieces are images or, where these are summed, groups or else outputs: `extent` of
  /// them, `step` a piece. The last piece may have another extent.
  int64_t extent_ = 0, step_ = 0;
  DnnlPiece full_, last_;
};
} // namespace

/// Bytes from the start of a tensor to its part for the pieces' `first` image, group or
/// output.
uint64_t DnnlConvolution::offsetIn(int argument, int64_t first) const {
  bool isImage = argument == DNNL_ARG_SRC || argument == DNNL_ARG_DIFF_SRC;
  bool isWeight = argument == DNNL_ARG_WEIGHTS || argument == DNNL_ARG_DIFF_WEIGHTS;
  int64_t elements;
  if (spec_.kind != Kind::WeightGrad) {
    bool isWhole = isWeight || argument == DNNL_ARG_BIAS;
    int64_t image = isImage ? spec_.channels * spec_.imagePlaces() : spec_.outputs * spec_.outputPlaces();
    elements = isWhole ? 0 : first * image;
  } else if (isImage) {
    elements = spec_.groups == 1 ? 0 : first * spec_.channelsPerGroup() * spec_.imagePlaces();
  } else {
    int64_t output = spec_.groups == 1 ? first : first * spec_.outputsPerGroup();
    elements = output * (isWeight ? spec_.channelsPerGroup() * spec_.taps() : spec_.outputPlaces());
  }
  return uint64_t(elements) * byteSize(spec_.element);
}

std::optional<uint64_t> DnnlConvolution::makePiece(int64_t count, DnnlPiece &piece) const {
  using dnnl::memory;
  bool isWeightGrad = spec_.kind == Kind::WeightGrad, split = isWeightGrad;
  int64_t images = split ? spec_.images : count, groups = split && spec_.groups > 1 ? count : spec_.groups;
  int64_t channels = groups * spec_.channelsPerGroup();
  int64_t outputs = split && spec_.groups == 1 ? count : groups * spec_.outputsPerGroup();
  auto type = spec_.element == ElementType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  // Planes that lie in a tensor with `all` of them per image.
  auto lies = [&](int64_t planes, int64_t all, int64_t Axis::*extent) {
    memory::dims shape{images, planes}, strides(2 + spec_.dims, 1);
    for (const Axis &axis : spec_.ownAxes())
      shape.push_back(axis.*extent);
    for (size_t dim = 1 + spec_.dims; dim > 0; --dim)
      strides[dim - 1] = strides[dim] * (dim == 1 ? all : shape[dim]);
    return memory::desc(shape, type, strides);
  };
  memory::desc image = lies(channels, spec_.channels, &Axis::image);
  memory::desc output = lies(outputs, spec_.outputs, &Axis::output);
  memory::dims kernel{outputs, spec_.channelsPerGroup()};
  if (groups > 1)
    kernel = {groups, spec_.outputsPerGroup(), spec_.channelsPerGroup()};
  memory::dims strides, dilations, low, high;
  for (const Axis &axis : spec_.ownAxes()) {
    kernel.push_back(axis.taps);
    strides.push_back(axis.stride);
    dilations.push_back(axis.dilation - 1);
    low.push_back(axis.low);
    high.push_back((axis.output - 1) * axis.stride + (axis.taps - 1) * axis.dilation + 1 - axis.image - axis.low);
  }
  constexpr memory::format_tag plain[] = {memory::format_tag::abcd, memory::format_tag::abcde,
                                          memory::format_tag::abcdef};
  memory::desc weight(kernel, type, plain[kernel.size() - 4]), bias({outputs}, type, memory::format_tag::a);
  auto any = [&](const memory::desc &desc) { return memory::desc(desc.dims(), type, memory::format_tag::any); };

  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  constexpr auto direct = dnnl::algorithm::convolution_direct;
  auto prop = spec_.kind == Kind::Forward ? dnnl::prop_kind::forward_inference : dnnl::prop_kind::forward_training;
  OneThreadScope oneThread;
  auto describe = [&] {
    using Desc = dnnl::convolution_forward::desc;
    Desc desc = spec_.hasBias
                    ? Desc(prop, direct, any(image), any(weight), bias, any(output), strides, dilations, low, high)
                    : Desc(prop, direct, any(image), any(weight), any(output), strides, dilations, low, high);
    return dnnl::convolution_forward::primitive_desc(desc, attributes, engine_, /*allow_empty=*/true);
  };
  // oneDNN's generic products of unfolded images are what this file does itself.
  auto take = [&](const auto &description, auto primitive, std::vector<DnnlOperand> operands) {
    std::string_view name = description.impl_info_str();
    if (name.starts_with("ref") || name.starts_with("gemm"))
      return false;
    piece.primitive = primitive(description);
    piece.operands = std::move(operands);
    piece.scratch = description.scratchpad_desc();
    return true;
  };
  auto forward = describe();
  if (!forward)
    return std::nullopt;
  bool made = false;
  if (spec_.kind == Kind::Forward) {
    std::vector<DnnlOperand> operands{{DNNL_ARG_SRC, image, forward.src_desc(), {}},
                                      {DNNL_ARG_WEIGHTS, weight, forward.weights_desc(), {}}};
    if (spec_.hasBias)
      operands.push_back({DNNL_ARG_BIAS, bias, bias, {}});
    operands.push_back({DNNL_ARG_DST, output, forward.dst_desc(), {}});
    made = take(forward, [](const auto &pd) { return dnnl::convolution_forward(pd); }, std::move(operands));
  } else if (spec_.kind == Kind::InputGrad) {
    using Backward = dnnl::convolution_backward_data;
    Backward::primitive_desc description(
        Backward::desc(direct, any(image), any(weight), any(output), strides, dilations, low, high), attributes,
        engine_, forward, /*allow_empty=*/true);
    made = description && take(description, [](const auto &pd) { return Backward(pd); },
                               {{DNNL_ARG_DIFF_DST, output, description.diff_dst_desc(), {}},
                                {DNNL_ARG_WEIGHTS, weight, description.weights_desc(), {}},
                                {DNNL_ARG_DIFF_SRC, image, description.diff_src_desc(), {}}});
  } else {
    using Backward = dnnl::convolution_backward_weights;
    Backward::primitive_desc description(
        Backward::desc(direct, any(image), any(weight), any(output), strides, dilations, low, high), attributes,
        engine_, forward, /*allow_empty=*/true);
    made = description && take(description, [](const auto &pd) { return Backward(pd); },
                               {{DNNL_ARG_DIFF_DST, output, description.diff_dst_desc(), {}},
                                {DNNL_ARG_SRC, image, description.src_desc(), {}},
                                {DNNL_ARG_DIFF_WEIGHTS, weight, description.diff_weights_desc(), {}}});
  }
  if (!made)
    return std::nullopt;
  uint64_t bytes = 0;
  auto place = [&](const memory::desc &desc) {
    uint64_t at = bytes;
    bytes += (desc.get_size() + 63) / 64 * 64;
    return at;
  };
  for (DnnlOperand &operand : piece.operands)
    if (operand.moves()) {
      bool isResult = &operand == &piece.operands.back();
      const memory::desc &from = isResult ? operand.wanted : operand.lies, &to = isResult ? operand.lies : operand.wanted;
      operand.reorder = dnnl::reorder(dnnl::reorder::primitive_desc(engine_, from, engine_, to));
      operand.offset = place(operand.wanted);
    }
  piece.scratchOffset = place(piece.scratch);
  return bytes;
}

bool DnnlConvolution::build() {
  extent_ = spec_.kind != Kind::WeightGrad ? spec_.images : spec_.groups > 1 ? spec_.groups : spec_.outputs;
  if (extent_ == 0 || spec_.images == 0 || spec_.imagePlaces() == 0 || spec_.element == ElementType::f16)
    return false;
  // oneDNN counts elements and offsets of a window in 32 bits, here and there.
  constexpr int64_t kMostElements = 1ll << 31, kMostOffset = 1 << 15;
  for (int64_t elements : {spec_.images * spec_.channels * spec_.imagePlaces(),
                           spec_.images * spec_.outputs * spec_.outputPlaces(),
                           spec_.outputs * spec_.channelsPerGroup() * spec_.taps()})
    if (elements >= kMostElements)
      return false;
  for (const Axis &axis : spec_.axes)
    if (std::max({axis.stride, axis.dilation, axis.low}) >= kMostOffset)
      return false;
  double flops = 2.0 * double(spec_.images) * double(spec_.outputs) * double(spec_.outputPlaces()) *
                 double(spec_.channelsPerGroup() * spec_.taps());
  // Outputs and groups in whole vectors.
  int64_t unit = spec_.kind == Kind::WeightGrad ? 16 : 1;
  int64_t pieces = flops < kSerialFlops ? 1 : threads_.count();
  step_ = std::min(extent_, roundUp(ceilDiv(extent_, pieces), unit));
  try {
    std::optional<uint64_t> bytes = makePiece(step_, full_);
    // Scratch is in no book of the device: fewer images at once need less. Pieces of
    // outputs read all images anyway.
    for (; spec_.kind != Kind::WeightGrad && bytes && *bytes > kScratchBytes && step_ > 1;
         bytes = makePiece(step_, full_))
      step_ = ceilDiv(step_, 2);
    if (!bytes || *bytes > kMostScratchBytes)
      return false;
    if (int64_t rest = extent_ % step_) {
      std::optional<uint64_t> last = makePiece(rest, last_);
      if (!last)
        return false;
      bytes = std::max(bytes, last);
    }
    scratch_->reserve(*bytes);
    return true;
  } catch (const dnnl::error &) {
    return false; // a shape that oneDNN refuses
  }
}

void DnnlConvolution::run(std::span<void *const> tensors) const {
  auto lock = scratch_->lock();
  threads_.forEachItem(ceilDiv(extent_, step_), [&](int64_t index, int64_t thread) {
    OneThreadScope oneThread;
    int64_t first = index * step_;
    const DnnlPiece &piece = first + step_ > extent_ ? last_ : full_;
    std::byte *area = scratch_->area(thread);
    dnnl::stream stream(engine_);
    std::unordered_map<int, dnnl::memory> arguments;
    auto at = [&](size_t i) {
      const DnnlOperand &operand = piece.operands[i];
      return dnnl::memory(operand.lies, engine_,
                          static_cast<std::byte *>(tensors[i]) + offsetIn(operand.argument, first));
    };
    auto moved = [&](const DnnlOperand &operand) { return dnnl::memory(operand.wanted, engine_, area + operand.offset); };
    for (size_t i = 0; i < piece.operands.size(); ++i) {
      const DnnlOperand &operand = piece.operands[i];
      bool isResult = i + 1 == piece.operands.size();
      dnnl::memory given = operand.moves() ? moved(operand) : at(i);
      if (operand.moves() && !isResult) {
        dnnl::memory source = at(i);
        operand.reorder.execute(stream, source, given);
      }
      arguments.emplace(operand.argument, given);
    }
    arguments.emplace(DNNL_ARG_SCRATCHPAD, dnnl::memory(piece.scratch, engine_, area + piece.scratchOffset));
    piece.primitive.execute(stream, arguments);
    if (const DnnlOperand &result = piece.operands.back(); result.moves()) {
      dnnl::memory source = moved(result), target = at(piece.operands.size() - 1);
      result.reorder.execute(stream, source, target);
    }
    stream.wait();
  });
}

static std::shared_ptr<const LibraryPlan> planConvolution(const LibraryCallSpec &call, const LibraryTools &tools) {
  Convolution spec = readConvolution(call);
  if (auto plan = std::make_shared<DnnlConvolution>(spec, tools); plan->build())
    return plan;
  return std::make_shared<UnfoldedProduct>(spec, tools);
}

std::span<const LibraryOperation> operationsOfConvolution() {
  static constexpr LibraryOperation operations[] = {
      {"conv2d", findConvolutionProblem, flopsOfConvolution, planConvolution},
      {"conv2d_input_grad", findConvolutionProblem, flopsOfConvolution, planConvolution},
      {"conv2d_weight_grad", findConvolutionProblem, flopsOfConvolution, planConvolution},
      {"conv3d", findConvolutionProblem, flopsOfConvolution, planConvolution},
      {"conv3d_input_grad", findConvolutionProblem, flopsOfConvolution, planConvolution},
      {"conv3d_weight_grad", findConvolutionProblem, flopsOfConvolution, planConvolution},
  };
  return operations;
}

} // namespace segue::inline runtime
