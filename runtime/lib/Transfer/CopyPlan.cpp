//===- CopyPlan.cpp - any layout to any layout in one address space -------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A plan is a list of boxes (CopyBoxes.h), or, where tiles do not divide each
// other, a walk over runs: pieces of the last dimension inside one tile of both
// sides. Elements are moved by BlockKernels and converted by RunConverter.
//
// Quantising needs the scale of a row before its first code, so it goes block
// by block of rows: scan the block for its largest magnitudes, which are kept
// where the scales will lie, turn them into scales, convert the block while it
// is in the cache. Where there are too few blocks for the threads, the whole
// tensor is one block whose scan and conversion the threads share.
//
// Group storages go another way, group by group: GroupCopy.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Transfer/CopyPlan.h"
#include "BlockKernels.h"
#include "CopyBoxes.h"
#include "GroupCopy.h"
#include "RunConverter.h"
#include "segue/runtime/Engine/CpuEngine.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Layout/RowStorage.h"
#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace segue::inline runtime {

/// The most dimensions of a box: each has an extent of at least 2, and their product is
/// below 2^63.
static constexpr size_t maxDims = 64;
/// The bytes below which one thread is faster.
static constexpr uint64_t parallelBytes = 256 << 10;
/// Copies of so many bytes or more write around the caches.
static constexpr uint64_t streamBytes = 4 << 20;
/// The bytes of f32 of a block of rows that is quantised at a time: the second-level cache
/// keeps them from the scan to the conversion.
static constexpr int64_t quantizeBlockBytes = 128 << 10;
/// The number of elements that are gathered or scattered at a time.
static constexpr int64_t gatherElements = 512;
/// Runs of fewer elements are laid side by side before they are converted, up to so many bytes of either side.
static constexpr int64_t shortRun = 64, shortRunsBytes = 8 << 10;
/// A transpose that converts does so in blocks of so many rows of the source, whose elements become runs of the target,
/// and of so many bytes of the target in all.
static constexpr int64_t blockRows = 256, blockBytes = 64 << 10, rowsAhead = 4;
/// Rows that are quantised at a time of a source that is straight along the rows.
static constexpr int64_t quantizeBlockRows = 64;

namespace {
/// Computes with denormals while it lives, whatever the thread is set to: a copy
/// gives the same bits on every thread.
class KeepDenormals {
#if defined(__SSE2__)
public:
  KeepDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ & ~modes); }
  ~KeepDenormals() { _mm_setcsr(_mm_getcsr() | (saved_ & modes)); }

private:
  static constexpr unsigned modes = 0x8040; // flush to zero, denormals are zero
  unsigned saved_;
#endif
};
} // namespace

/// Orders streamed stores before whatever tells others that they are there.
static void fenceStreams() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

static int log2Bytes(int64_t bytes) { return bytes == 8 ? 3 : int(bytes / 2); }

static int64_t scaleBytes(const LayoutParts &parts, StorageType storage) {
  return isQuantized(storage) ? int64_t(parts.bytes - parts.scales) : 0;
}

namespace {
/// The memory that a run of a plan reads and writes: the first element of both sides, the
/// row that it belongs to, and the parameters of all rows.
struct Memory {
  const std::byte *source;
  std::byte *target;
  RowParameters rows;
  int64_t firstRow = 0;
};

/// The part of a tensor that is quantised at a time.
struct RowBlock {
  int64_t rows = 0;
  /// The boxes of the scan; empty if it goes by runs.
  std::vector<CopyBox> scan;
  std::vector<CopyBox> write;
};
} // namespace

struct CopyPlan::Impl {
  Impl(const TensorDesc &source, const TensorDesc &target, InstructionSet most);

  int64_t run(const void *source, void *target, int threads) const;

  const TensorDesc source, target;
  uint64_t bytesRead = 0, bytesWritten = 0;
  bool contiguous = false;

private:
  // Planning.
  void planBlocks();
  RowBlock planBlock(int64_t rows) const;
  bool isStraightCopy() const;

  // One run, leaf, box. The steps of `dim` are of elements of the run.
  void copyRun(const RunConverter &converter, int64_t count, BoxDim dim, const std::byte *source, std::byte *target,
               const RowParameters &rows, int64_t row) const;
  void convert(const RunConverter &converter, int64_t count, const std::byte *source, std::byte *target,
               const RowParameters &rows, RowIndex row) const;
  void copyStraight(const CopyBox &box, const RunConverter &converter, const Memory &memory, int64_t count) const;
  void convertShortRuns(const CopyBox &box, const RunConverter &converter, const Memory &memory, int64_t count) const;
  void fill(const CopyBox &box, const RunConverter &converter, const Memory &memory, int64_t count) const;
  void transpose(const CopyBox &box, const RunConverter &converter, const Memory &memory, int64_t count) const;
  void copyStrided(const CopyBox &box, const RunConverter &converter, const Memory &memory, int64_t count) const;
  void copyBox(const CopyBox &box, const RunConverter &converter, const Memory &memory, int64_t begin,
               int64_t end) const;
  void zeroBox(const CopyBox &box, std::byte *target, int64_t begin, int64_t end) const;
  void scanRun(int64_t count, BoxDim dim, const std::byte *source, const RowParameters &rows, int64_t row, bool finite,
               bool shared) const;
  void scanBox(const CopyBox &box, const Memory &memory, int64_t begin, int64_t end, bool finite, bool shared) const;
  template <typename Fn> void walkRuns(const Memory &memory, int64_t begin, int64_t end, const Fn &fn) const;

  // Whole tensors.
  template <typename Fn> void share(int64_t items, uint64_t bytes, int threads, const Fn &fn) const;
  void zeroPadding(std::byte *target, int threads) const;
  void copyAll(const RunConverter &converter, const Memory &memory, int threads) const;
  void moveRowParameters(const Memory &memory) const;
  int64_t quantizeAll(const Memory &memory, int threads) const;
  int64_t quantizeWhole(const Memory &memory, int threads) const;
  int64_t quantizeBlocks(const Memory &memory, int threads) const;
  void scanBlock(const Memory &memory, const RowBlock &block, bool finite, int threads) const;
  int64_t findScales(const Memory &memory, const RowBlock &block) const;
  int64_t copyGroups(const Memory &memory, int threads) const;

  LayoutParts sourceParts_, targetParts_;
  const BlockKernels *kernels_;
  RunConverter converter_;
  /// Moves codes as they are; takes the place of converter_ where all zero points are 0.
  RunConverter mover_;
  StorageType sourceStorage_, targetStorage_;
  bool sourceZeroPoints_, targetZeroPoints_, stream_ = false;
  int64_t sourceBytes_, targetBytes_;
  uint64_t elements_ = 0;
  /// The dimensions that have more than one index or padding.
  std::vector<PairedDim> dims_;

  /// The boxes; if tiles do not divide each other there are none, and `byRuns_` is true.
  std::vector<CopyBox> boxes_, padding_;
  /// The copy by groups, if a side is in group storage, in place of boxes and runs.
  std::unique_ptr<const GroupCopy> groups_;
  bool byRuns_ = false;
  int64_t runItems_ = 1;
  /// The rows that are quantised: whole_ has all of them; or there are blocks of body_.rows
  /// rows and then one of tail_.rows, unless body_.rows is 0.
  RowBlock whole_, body_, tail_;
};

//===----------------------------------------------------------------------===//
// Planning
//===----------------------------------------------------------------------===//

static void checkSides(const TensorDesc &source, const TensorDesc &target) {
  source.validate();
  target.validate();
  if (source.shape != target.shape)
    throw Error(ErrorCode::LayoutMismatch,
                "copy: " + source.str() + " given, " + target.str() + " wanted; a layout never changes the shape");
  if (!isInjective(target.shape, target.layout))
    throw Error(ErrorCode::InvalidArgument,
                "copy: " + target.str() + " puts two elements in one place; give each its own");
}

static RunConverter makeConverter(const TensorDesc &source, const TensorDesc &target, bool drops, InstructionSet most) {
  return {source.element, source.layout.storage, target.element, target.layout.storage, drops, elementKernels(most)};
}

CopyPlan::Impl::Impl(const TensorDesc &source, const TensorDesc &target, InstructionSet most)
    : source(source), target(target), sourceParts_(source.parts()), targetParts_(target.parts()),
      kernels_(&blockKernels(most)),
      converter_(makeConverter(source, target, source.layout.zeroPoints && !target.layout.zeroPoints, most)),
      mover_(makeConverter(source, target, false, most)), sourceStorage_(source.layout.storage),
      targetStorage_(target.layout.storage), sourceZeroPoints_(source.layout.zeroPoints),
      targetZeroPoints_(target.layout.zeroPoints),
      sourceBytes_(int64_t(storedByteSize(source.element, source.layout.storage))),
      targetBytes_(int64_t(storedByteSize(target.element, target.layout.storage))), elements_(source.elementCount()) {
  if (elements_ == 0)
    return;
  std::vector<DimPlacement> from = placeDims(source.shape, source.layout), to = placeDims(target.shape, target.layout);
  uint64_t distinct = 1, padded = 1;
  for (size_t dim = 0; dim < from.size(); ++dim) {
    bool repeats = from[dim].tile == 1 && from[dim].stride == 0;
    distinct *= repeats ? 1 : uint64_t(from[dim].extent);
    padded *= uint64_t(to[dim].paddedExtent());
    bool isRows = dim == 0 && from.size() >= 2 && converter_.usesRows();
    if (to[dim].paddedExtent() > 1)
      dims_.push_back({from[dim], to[dim], isRows ? 1 : 0});
  }
  bool fromGroups = isGroupStorage(sourceStorage_), toGroups = isGroupStorage(targetStorage_);
  bytesRead = (fromGroups ? sourceParts_.elements : distinct * uint64_t(sourceBytes_)) +
              uint64_t(scaleBytes(sourceParts_, sourceStorage_));
  bytesWritten = (toGroups ? targetParts_.elements : padded * uint64_t(targetBytes_)) +
                 uint64_t(scaleBytes(targetParts_, targetStorage_));
  stream_ = bytesWritten >= streamBytes && !fromGroups && !toGroups;
  if (!toGroups)
    padding_ = cutPadding(dims_, targetBytes_);
  if (fromGroups || toGroups) {
    groups_ = std::make_unique<const GroupCopy>(source, target, elementKernels(most), *kernels_);
    return;
  }
  auto boxes = cutIntoBoxes(dims_, sourceBytes_, targetBytes_);
  byRuns_ = !boxes;
  if (boxes)
    boxes_ = std::move(*boxes);
  for (size_t dim = 0; dim + 1 < dims_.size(); ++dim)
    runItems_ *= dims_[dim].source.extent;
  if (converter_.quantizes())
    planBlocks();
  contiguous = distinct * uint64_t(sourceBytes_) == sourceParts_.elements && bytesWritten == targetParts_.elements &&
               isStraightCopy();
}

/// Returns true if every box is a run of bytes; with all of them spanning no more than the
/// elements, they make one run.
bool CopyPlan::Impl::isStraightCopy() const {
  return converter_.kind() == RunConverter::Kind::Move && !isRowStorage(targetStorage_) && !byRuns_ &&
         padding_.empty() && std::ranges::all_of(boxes_, [&](const CopyBox &box) {
           return box.leaf == Leaf::Straight && box.outer.empty() && box.across.extent == 1 &&
                  (box.along.extent == 1 ||
                   (box.along.target == box.inner.extent * targetBytes_ && box.along.source == box.along.target));
         });
}

RowBlock CopyPlan::Impl::planBlock(int64_t rows) const {
  std::vector<PairedDim> dims = dims_;
  dims[0].source.extent = dims[0].target.extent = rows;
  auto scan = cutForScan(dims, sourceBytes_), write = cutIntoBoxes(dims, sourceBytes_, targetBytes_);
  return {rows, scan ? std::move(*scan) : std::vector<CopyBox>(), write ? std::move(*write) : std::vector<CopyBox>()};
}

void CopyPlan::Impl::planBlocks() {
  int64_t rows = targetParts_.rows;
  auto scan = cutForScan(dims_, sourceBytes_);
  whole_ = {rows, scan ? std::move(*scan) : std::vector<CopyBox>(), {}};
  if (byRuns_ || whole_.scan.empty() || rows == 1)
    return;
  int64_t rowBytes = int64_t(elements_) / rows * int64_t(sizeof(float));
  int64_t block = std::max<int64_t>(quantizeBlockBytes / rowBytes, 1);
  // A source that is straight along the rows is read by whole cache lines.
  const DimPlacement &sourceRows = dims_[0].source;
  bool alongRows = sourceRows.tile == 1 && std::ranges::all_of(dims_, [&](const PairedDim &dim) {
                     return dim.source.extent == 1 || dim.source.stride >= sourceRows.stride;
                   });
  if (alongRows)
    block = std::max(block, quantizeBlockRows);
  int64_t unit = std::lcm(sourceRows.tile, dims_[0].target.tile);
  block = (block + unit - 1) / unit * unit;
  if (block >= rows)
    return;
  body_ = planBlock(block);
  if (rows % block)
    tail_ = planBlock(rows % block);
  if (body_.scan.empty() || body_.write.empty() || (tail_.rows && (tail_.scan.empty() || tail_.write.empty())))
    body_ = tail_ = {};
}

//===----------------------------------------------------------------------===//
// Runs
//===----------------------------------------------------------------------===//

/// Converts a run of which both sides lie side by side.
void CopyPlan::Impl::convert(const RunConverter &converter, int64_t count, const std::byte *source, std::byte *target,
                             const RowParameters &rows, RowIndex row) const {
  constexpr int64_t line = 64;
  if (!stream_ || count * targetBytes_ < 4 * line) {
    converter.run(count, source, target, rows, row);
    return;
  }
  alignas(64) std::byte buffer[gatherElements * 8];
  // The first block ends with a line of the target, so that all others are
  // lines.
  int64_t toLine = int64_t(-reinterpret_cast<uintptr_t>(target) & uintptr_t(line - 1));
  int64_t block = toLine && toLine % targetBytes_ == 0 ? toLine / targetBytes_ : gatherElements;
  for (int64_t done = 0; done < count; done += block, block = gatherElements) {
    block = std::min(block, count - done);
    converter.run(block, source + done * sourceBytes_, buffer, rows, {row.first + done * row.step, row.step});
    kernels_->stream(block * targetBytes_, buffer, target + done * targetBytes_);
  }
}

void CopyPlan::Impl::copyRun(const RunConverter &converter, int64_t count, BoxDim dim, const std::byte *source,
                             std::byte *target, const RowParameters &rows, int64_t row) const {
  if (converter.kind() == RunConverter::Kind::Move) {
    kernels_->move[log2Bytes(targetBytes_)](count, source, dim.source, target, dim.target);
    return;
  }
  alignas(64) std::byte gathered[gatherElements * 8], converted[gatherElements * 8];
  for (int64_t done = 0; done < count; done += gatherElements) {
    int64_t block = std::min(gatherElements, count - done);
    const std::byte *from = source + done * dim.source;
    std::byte *to = target + done * dim.target;
    bool straight = dim.target == targetBytes_;
    if (dim.source != sourceBytes_)
      kernels_->move[log2Bytes(sourceBytes_)](block, from, dim.source, gathered, sourceBytes_);
    converter.run(block, dim.source == sourceBytes_ ? from : gathered, straight ? to : converted, rows,
                  {row + done * dim.row, dim.row});
    if (!straight)
      kernels_->move[log2Bytes(targetBytes_)](block, converted, targetBytes_, to, dim.target);
  }
}

void CopyPlan::Impl::scanRun(int64_t count, BoxDim dim, const std::byte *source, const RowParameters &rows, int64_t row,
                             bool finite, bool shared) const {
  if (dim.source == sourceBytes_) {
    converter_.scan(count, source, rows, {row, dim.row}, finite, shared);
    return;
  }
  alignas(64) std::byte gathered[gatherElements * 8];
  for (int64_t done = 0; done < count; done += gatherElements) {
    int64_t block = std::min(gatherElements, count - done);
    kernels_->move[log2Bytes(sourceBytes_)](block, source + done * dim.source, dim.source, gathered, sourceBytes_);
    converter_.scan(block, gathered, rows, {row + done * dim.row, dim.row}, finite, shared);
  }
}

/// Calls fn(source, target, row, dim, count) for runs of the last dimension
/// that lie inside one tile of both sides, over the items [begin, end) of all
/// other dimensions.
template <typename Fn>
void CopyPlan::Impl::walkRuns(const Memory &memory, int64_t begin, int64_t end, const Fn &fn) const {
  const PairedDim &last = dims_.back();
  for (int64_t item = begin; item < end; ++item) {
    int64_t source = 0, target = 0, row = memory.firstRow, rest = item;
    for (size_t dim = dims_.size() - 1; dim-- > 0;) {
      int64_t index = rest % dims_[dim].source.extent;
      rest /= dims_[dim].source.extent;
      source += dims_[dim].source.at(index);
      target += dims_[dim].target.at(index);
      row += index * dims_[dim].row;
    }
    auto step = [](const DimPlacement &place) { return place.tile == 1 ? place.stride : place.inTile; };
    BoxDim run{0, step(last.source) * sourceBytes_, step(last.target) * targetBytes_, last.row};
    auto inTile = [&](const DimPlacement &place, int64_t index) {
      return place.tile == 1 ? place.extent : place.tile - index % place.tile;
    };
    for (int64_t index = 0; index < last.source.extent; index += run.extent) {
      run.extent = std::min({inTile(last.source, index), inTile(last.target, index), last.source.extent - index});
      fn(memory.source + (source + last.source.at(index)) * sourceBytes_,
         memory.target + (target + last.target.at(index)) * targetBytes_, row + index * last.row, run);
    }
  }
}

//===----------------------------------------------------------------------===//
// Boxes
//===----------------------------------------------------------------------===//

/// Calls fn(source, target, row, count) with the offset of the first element and
/// the count of indices of `along`, for the items [begin, end) of a box.
template <typename Fn> static void walk(const CopyBox &box, int64_t begin, int64_t end, const Fn &fn) {
  auto leaf = [&](int64_t source, int64_t target, int64_t row, int64_t first, int64_t count) {
    fn(source + first * box.along.source, target + first * box.along.target, row + first * box.along.row, count);
  };
  bool runs = box.leaf == Leaf::Straight || box.leaf == Leaf::Fill;
  if (runs && box.outer.empty() && box.across.extent == 1) { // all bands as one
    int64_t first = begin * box.band;
    leaf(box.source, box.target, box.row, first, std::min(end * box.band, box.along.extent) - first);
    return;
  }
  int64_t index[maxDims] = {};
  int64_t source = box.source, target = box.target, row = box.row;
  int64_t bands = box.bands(), band = begin % bands, rest = begin / bands;
  for (size_t dim = box.outer.size(); dim-- > 0;) {
    index[dim] = rest % box.outer[dim].extent;
    rest /= box.outer[dim].extent;
    source += index[dim] * box.outer[dim].source;
    target += index[dim] * box.outer[dim].target;
    row += index[dim] * box.outer[dim].row;
  }
  for (int64_t item = begin; item < end; ++item) {
    int64_t first = band * box.band, count = std::min(box.band, box.along.extent - first);
    for (int64_t across = 0; across < box.across.extent; ++across)
      leaf(source + across * box.across.source, target + across * box.across.target, row + across * box.across.row,
           first, count);
    if (++band < bands)
      continue;
    band = 0;
    for (size_t dim = box.outer.size(); dim-- > 0;) {
      const BoxDim &outer = box.outer[dim];
      source += outer.source;
      target += outer.target;
      row += outer.row;
      if (++index[dim] < outer.extent)
        break;
      source -= index[dim] * outer.source;
      target -= index[dim] * outer.target;
      row -= index[dim] * outer.row;
      index[dim] = 0;
    }
  }
}

/// Runs too short for a call each: several are laid side by side, converted at
/// once and laid out. They share no rows.
void CopyPlan::Impl::convertShortRuns(const CopyBox &box, const RunConverter &converter, const Memory &memory,
                                      int64_t count) const {
  alignas(64) std::byte gathered[shortRunsBytes], converted[shortRunsBytes];
  int64_t sourceRun = box.inner.extent * sourceBytes_, targetRun = box.inner.extent * targetBytes_;
  int64_t perBlock = shortRunsBytes / std::max(sourceRun, targetRun);
  for (int64_t first = 0; first < count; first += perBlock) {
    int64_t rows = std::min(perBlock, count - first);
    const std::byte *from = memory.source + first * box.along.source;
    std::byte *to = memory.target + first * box.along.target;
    bool straightSource = box.along.source == sourceRun, straightTarget = box.along.target == targetRun;
    if (!straightSource)
      kernels_->copyRows(rows, sourceRun, from, box.along.source, gathered, sourceRun, false);
    bool direct = straightTarget && !stream_;
    converter.run(rows * box.inner.extent, straightSource ? from : gathered, direct ? to : converted, memory.rows, {});
    if (straightTarget && stream_)
      kernels_->stream(rows * targetRun, converted, to);
    else if (!straightTarget)
      kernels_->copyRows(rows, targetRun, converted, targetRun, to, box.along.target, stream_);
  }
}

void CopyPlan::Impl::copyStraight(const CopyBox &box, const RunConverter &converter, const Memory &memory,
                                  int64_t count) const {
  int64_t sourceRun = box.inner.extent * sourceBytes_, targetRun = box.inner.extent * targetBytes_;
  bool oneRun = (box.along.source == sourceRun && box.along.target == targetRun) || count == 1;
  if (converter.kind() == RunConverter::Kind::Move) {
    if (oneRun)
      std::memcpy(memory.target, memory.source, size_t(count * targetRun));
    else
      kernels_->copyRows(count, targetRun, memory.source, box.along.source, memory.target, box.along.target, stream_);
    return;
  }
  if (oneRun && !converter.usesRows()) {
    convert(converter, count * box.inner.extent, memory.source, memory.target, memory.rows, {});
    return;
  }
  if (box.inner.extent < shortRun && !converter.usesRows()) {
    convertShortRuns(box, converter, memory, count);
    return;
  }
  for (int64_t i = 0; i < count; ++i)
    convert(converter, box.inner.extent, memory.source + i * box.along.source, memory.target + i * box.along.target,
            memory.rows, {memory.firstRow + i * box.along.row, box.inner.row});
}

void CopyPlan::Impl::fill(const CopyBox &box, const RunConverter &converter, const Memory &memory,
                          int64_t count) const {
  alignas(8) std::byte value[8];
  for (int64_t i = 0; i < count; ++i) {
    converter.run(1, memory.source + i * box.along.source, value, memory.rows,
                  {memory.firstRow + i * box.along.row, 0});
    kernels_->fill[log2Bytes(targetBytes_)](box.inner.extent, value, memory.target + i * box.along.target);
  }
}

void CopyPlan::Impl::transpose(const CopyBox &box, const RunConverter &converter, const Memory &memory,
                               int64_t count) const {
  auto *kernel = kernels_->transpose[log2Bytes(targetBytes_)];
  if (converter.kind() == RunConverter::Kind::Move) {
    kernel(box.inner.extent, count, memory.source, box.inner.source, memory.target, box.along.target, stream_, {});
    return;
  }
  // Converted as they lie, then transposed.
  alignas(64) std::byte converted[blockBytes];
  int64_t pitch = blockBytes / blockRows, blockColumns = pitch / targetBytes_;
  auto blockAt = [&](int64_t first, int64_t column) {
    return ReadSoon{memory.source + first * box.inner.source + column * sourceBytes_, box.inner.source,
                    std::min(blockRows, box.inner.extent - first), std::min(blockColumns, count - column) * sourceBytes_};
  };
  for (int64_t first = 0; first < box.inner.extent; first += blockRows)
    for (int64_t column = 0; column < count; column += blockColumns) {
      // The next block is read while the kernel writes this one.
      ReadSoon block = blockAt(first, column), next;
      if (column + blockColumns < count)
        next = blockAt(first, column + blockColumns);
      else if (first + blockRows < box.inner.extent)
        next = blockAt(first + blockRows, 0);
      int64_t columns = block.bytes / sourceBytes_;
      for (int64_t i = 0; i < block.rows; ++i) {
        const std::byte *from = block.source + i * block.step;
        // The processor follows no runs of different rows by itself.
        if (i + rowsAhead < block.rows)
          for (int64_t at = 0; at < block.bytes; at += 64)
            __builtin_prefetch(from + rowsAhead * block.step + at, 0, 2);
        converter.run(columns, from, converted + i * pitch, memory.rows,
                      {memory.firstRow + (first + i) * box.inner.row + column * box.along.row, box.along.row});
      }
      kernel(block.rows, columns, converted, pitch, memory.target + first * targetBytes_ + column * box.along.target,
             box.along.target, stream_, next);
    }
}

void CopyPlan::Impl::copyStrided(const CopyBox &box, const RunConverter &converter, const Memory &memory,
                                 int64_t count) const {
  for (int64_t first = 0; first < box.inner.extent; first += box.innerBlock) {
    int64_t elements = std::min(box.innerBlock, box.inner.extent - first);
    for (int64_t i = 0; i < count; ++i)
      copyRun(converter, elements, box.inner, memory.source + i * box.along.source + first * box.inner.source,
              memory.target + i * box.along.target + first * box.inner.target, memory.rows,
              memory.firstRow + i * box.along.row + first * box.inner.row);
  }
}

void CopyPlan::Impl::copyBox(const CopyBox &box, const RunConverter &converter, const Memory &memory, int64_t begin,
                             int64_t end) const {
  walk(box, begin, end, [&](int64_t source, int64_t target, int64_t row, int64_t count) {
    Memory at{memory.source + source, memory.target + target, memory.rows, memory.firstRow + row};
    switch (box.leaf) {
    case Leaf::Straight:
      return copyStraight(box, converter, at, count);
    case Leaf::Fill:
      return fill(box, converter, at, count);
    case Leaf::Transposed:
      return transpose(box, converter, at, count);
    case Leaf::Strided:
      return copyStrided(box, converter, at, count);
    }
  });
}

void CopyPlan::Impl::zeroBox(const CopyBox &box, std::byte *target, int64_t begin, int64_t end) const {
  static constexpr std::byte zero[8] = {};
  walk(box, begin, end, [&](int64_t, int64_t offset, int64_t, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      if (std::byte *at = target + offset + i * box.along.target; box.inner.target == targetBytes_)
        std::memset(at, 0, size_t(box.inner.extent * targetBytes_));
      else
        kernels_->move[log2Bytes(targetBytes_)](box.inner.extent, zero, 0, at, box.inner.target);
  });
}

void CopyPlan::Impl::scanBox(const CopyBox &box, const Memory &memory, int64_t begin, int64_t end, bool finite,
                             bool shared) const {
  walk(box, begin, end, [&](int64_t source, int64_t, int64_t row, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      scanRun(box.inner.extent, box.inner, memory.source + source + i * box.along.source, memory.rows,
              memory.firstRow + row + i * box.along.row, finite, shared);
  });
}

//===----------------------------------------------------------------------===//
// Whole tensors
//===----------------------------------------------------------------------===//

/// Calls fn(begin, end) for pieces of [0, items), on several threads where
/// `bytes` pay for them.
template <typename Fn> void CopyPlan::Impl::share(int64_t items, uint64_t bytes, int threads, const Fn &fn) const {
  auto piece = [&](int64_t begin, int64_t end) {
    KeepDenormals keep;
    fn(begin, end);
    if (stream_)
      fenceStreams();
  };
  if (threads > 1 && bytes >= parallelBytes)
    Threads(threads).parallelFor(items, 1, piece);
  else
    piece(0, items);
}

void CopyPlan::Impl::zeroPadding(std::byte *target, int threads) const {
  for (const CopyBox &box : padding_)
    share(box.items, box.elements() * uint64_t(targetBytes_), threads,
          [&](int64_t begin, int64_t end) { zeroBox(box, target, begin, end); });
  if (isQuantized(targetStorage_))
    std::memset(target + targetParts_.elements, 0, targetParts_.scales - targetParts_.elements);
}

void CopyPlan::Impl::copyAll(const RunConverter &converter, const Memory &memory, int threads) const {
  for (const CopyBox &box : boxes_)
    share(box.items, box.elements() * uint64_t(std::max(sourceBytes_, targetBytes_)), threads,
          [&](int64_t begin, int64_t end) { copyBox(box, converter, memory, begin, end); });
  if (byRuns_)
    share(runItems_, bytesWritten, threads, [&](int64_t begin, int64_t end) {
      walkRuns(memory, begin, end, [&](const std::byte *source, std::byte *target, int64_t row, const BoxDim &run) {
        copyRun(converter, run.extent, run, source, target, memory.rows, row);
      });
    });
}

void CopyPlan::Impl::moveRowParameters(const Memory &memory) const {
  size_t bytes = size_t(targetParts_.rows) * sizeof(float);
  std::memcpy(memory.rows.targetScales, memory.rows.sourceScales, bytes);
  if (targetZeroPoints_ && sourceZeroPoints_)
    std::memcpy(memory.rows.targetScales + targetParts_.rows, memory.rows.sourceZeroPoints, bytes);
  else if (targetZeroPoints_)
    std::memset(memory.rows.targetScales + targetParts_.rows, 0, bytes);
}

/// Raises the bits of the largest magnitudes of the rows of `block`.
void CopyPlan::Impl::scanBlock(const Memory &memory, const RowBlock &block, bool finite, int threads) const {
  std::memset(memory.rows.targetScales + memory.firstRow, 0, size_t(block.rows) * sizeof(float));
  for (const CopyBox &box : block.scan)
    share(box.items, box.elements() * uint64_t(sourceBytes_), threads,
          [&](int64_t begin, int64_t end) { scanBox(box, memory, begin, end, finite, threads > 1); });
  if (block.scan.empty())
    share(runItems_, bytesRead, threads, [&](int64_t begin, int64_t end) {
      walkRuns(memory, begin, end, [&](const std::byte *source, std::byte *, int64_t row, BoxDim run) {
        scanRun(run.extent, run, source, memory.rows, row, finite, threads > 1);
      });
    });
}

/// Turns the bits that a scan has left into scales. Returns the first row with
/// an element that is not finite, or -1.
int64_t CopyPlan::Impl::findScales(const Memory &memory, const RowBlock &block) const {
  float *scales = memory.rows.targetScales;
  auto keeps = [&](int64_t row) { return converter_.keepsRows() && memory.rows.sourceZeroPoints[row] == 0.0f; };
  int64_t end = memory.firstRow + block.rows, nonFinite = -1;
  for (int64_t row = end; row-- > memory.firstRow;)
    if (!keeps(row) && (std::bit_cast<uint32_t>(scales[row]) & 0x7fffffffu) >= 0x7f800000u)
      nonFinite = row;
  if (nonFinite >= 0)
    scanBlock(memory, block, /*finite=*/true, 1);
  for (int64_t row = memory.firstRow; row < end; ++row)
    scales[row] = keeps(row) ? memory.rows.sourceScales[row] : rowScale(scales[row], targetStorage_);
  return nonFinite;
}

int64_t CopyPlan::Impl::quantizeWhole(const Memory &memory, int threads) const {
  scanBlock(memory, whole_, /*finite=*/false, threads);
  KeepDenormals keep;
  int64_t nonFinite = findScales(memory, whole_);
  copyAll(converter_, memory, threads);
  return nonFinite;
}

/// Keeps the lowest of the rows that several threads found; -1 is none.
static void lower(std::atomic<int64_t> &lowest, int64_t row) {
  int64_t seen = lowest.load(std::memory_order_relaxed);
  while (row >= 0 && row < seen && !lowest.compare_exchange_weak(seen, row))
    ;
}

int64_t CopyPlan::Impl::quantizeBlocks(const Memory &memory, int threads) const {
  std::atomic<int64_t> firstNonFinite{INT64_MAX};
  int64_t blocks = targetParts_.rows / body_.rows + (tail_.rows ? 1 : 0);
  share(blocks, bytesRead, threads, [&](int64_t begin, int64_t end) {
    for (int64_t number = begin; number < end; ++number) {
      int64_t first = number * body_.rows;
      const RowBlock &block = first + body_.rows <= targetParts_.rows ? body_ : tail_;
      Memory at{memory.source + dims_[0].source.at(first) * sourceBytes_,
                memory.target + dims_[0].target.at(first) * targetBytes_, memory.rows, first};
      scanBlock(at, block, /*finite=*/false, 1);
      lower(firstNonFinite, findScales(at, block));
      for (const CopyBox &box : block.write)
        copyBox(box, converter_, at, 0, box.items);
    }
  });
  int64_t first = firstNonFinite.load();
  return first == INT64_MAX ? -1 : first;
}

int64_t CopyPlan::Impl::quantizeAll(const Memory &memory, int threads) const {
  if (targetZeroPoints_)
    std::memset(memory.rows.targetScales + targetParts_.rows, 0, size_t(targetParts_.rows) * sizeof(float));
  if (body_.rows == 0)
    return quantizeWhole(memory, threads);
  bool tooFew = targetParts_.rows / body_.rows < threads && bytesRead >= parallelBytes;
  return tooFew ? quantizeWhole(memory, threads) : quantizeBlocks(memory, threads);
}

int64_t CopyPlan::Impl::copyGroups(const Memory &memory, int threads) const {
  zeroPadding(memory.target, threads);
  std::atomic<int64_t> nonFinite{INT64_MAX};
  share(groups_->items(), std::max(bytesRead, bytesWritten), threads,
        [&](int64_t begin, int64_t end) { lower(nonFinite, groups_->run(memory.source, memory.target, begin, end)); });
  int64_t first = nonFinite.load();
  return first == INT64_MAX ? -1 : first;
}

int64_t CopyPlan::Impl::run(const void *source, void *target, int threads) const {
  if (elements_ == 0)
    return -1;
  Memory memory{static_cast<const std::byte *>(source), static_cast<std::byte *>(target), {}};
  if (groups_)
    return copyGroups(memory, threads);
  if (isRowStorage(sourceStorage_))
    memory.rows.sourceScales = reinterpret_cast<const float *>(memory.source + sourceParts_.scales);
  if (sourceZeroPoints_)
    memory.rows.sourceZeroPoints = reinterpret_cast<const float *>(memory.source + sourceParts_.zeroPoints);
  if (isRowStorage(targetStorage_))
    memory.rows.targetScales = reinterpret_cast<float *>(memory.target + targetParts_.scales);
  zeroPadding(memory.target, threads);

  // Zero points that are all 0 need no place in the target.
  auto isZero = [](float value) { return value == 0.0f; };
  bool movable = converter_.keepsRows() &&
                 (converter_.kind() == RunConverter::Kind::Move ||
                  std::ranges::all_of(std::span(memory.rows.sourceZeroPoints, size_t(sourceParts_.rows)), isZero));
  if (movable) {
    copyAll(mover_, memory, threads);
    moveRowParameters(memory);
    return -1;
  }
  if (converter_.quantizes())
    return quantizeAll(memory, threads);
  copyAll(converter_, memory, threads);
  return -1;
}

//===----------------------------------------------------------------------===//
// CopyPlan
//===----------------------------------------------------------------------===//

CopyPlan::CopyPlan(const TensorDesc &source, const TensorDesc &target, InstructionSet most) {
  checkSides(source, target);
  impl_ = std::make_shared<const Impl>(source, target, most);
}

CopyPlan::CopyPlan(const TensorDesc &source, const TensorDesc &target)
    : CopyPlan(source, target, InstructionSet::x86_64_v4) {}

CopyPlan::CopyPlan(std::span<const int64_t> shape, const Side &source, const Side &target)
    : CopyPlan(TensorDesc(Shape(shape.begin(), shape.end()), source.element, source.layout),
               TensorDesc(Shape(shape.begin(), shape.end()), target.element, target.layout)) {}

int64_t CopyPlan::run(const void *source, void *target, int threads) const {
  return impl_->run(source, target, threads);
}

uint64_t CopyPlan::bytesRead() const { return impl_->bytesRead; }
uint64_t CopyPlan::bytesWritten() const { return impl_->bytesWritten; }
bool CopyPlan::isContiguous() const { return impl_->contiguous; }
const TensorDesc &CopyPlan::source() const { return impl_->source; }
const TensorDesc &CopyPlan::target() const { return impl_->target; }

} // namespace segue::inline runtime
