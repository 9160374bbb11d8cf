//===- CopyBoxes.cpp - a copy cut into strided boxes ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CopyBoxes.h"
#include <algorithm>

namespace segue::inline runtime {

/// The most boxes of a copy: more cost more than they gain.
static constexpr size_t maxBoxes = 243;
/// The bytes of a band of straight runs, and of the pieces that a single long run is cut
/// into for threads to share.
static constexpr int64_t bandBytes = 64 << 10;
/// The numbers of columns of a transpose that are taken together. The more there are, the
/// longer a row of the source is read on; each is a page of the target to be kept at hand.
/// A transpose has as many bands as `transposeShares` for threads where it can, but of
/// bytes a run is no shorter than `leastByteBand`: 64 rows are read beside each other
/// there, and what the processor has fetched beyond their ends is lost.
static constexpr int64_t leastTransposeBand = 64, mostTransposeBand = 1024, leastByteBand = 2048, transposeShares = 8;
/// The extent of a square of a strided copy that goes against the source.
static constexpr int64_t stridedBlock = 32;
/// Runs of up to so many bytes are read with those that lie beside them in the source: memory likes longer ones.
static constexpr int64_t shortRunBytes = 256;

uint64_t CopyBox::elements() const {
  uint64_t count = uint64_t(across.extent) * uint64_t(along.extent) * uint64_t(inner.extent);
  for (const BoxDim &dim : outer)
    count *= uint64_t(dim.extent);
  return count;
}

//===----------------------------------------------------------------------===//
// Pieces of one dimension
//===----------------------------------------------------------------------===//

namespace {
/// A range of a dimension that is a strided view on both sides, in elements.
struct Piece {
  int64_t source = 0, target = 0, row = 0;
  std::vector<BoxDim> dims;
};
} // namespace

/// The step of `placement` over `count` indices that lie in one tile or cover
/// whole tiles.
static int64_t stepOf(const DimPlacement &placement, int64_t count) {
  return count < placement.tile ? count * placement.inTile : count / placement.tile * placement.stride;
}

static std::optional<std::vector<Piece>> cutDim(const PairedDim &dim) {
  int64_t extent = dim.source.extent;
  int64_t small = std::min(dim.source.tile, dim.target.tile), big = std::max(dim.source.tile, dim.target.tile);
  if (big % small != 0)
    return std::nullopt;
  auto view = [&](int64_t count, int64_t unit) {
    return BoxDim{count, stepOf(dim.source, unit), stepOf(dim.target, unit), unit * dim.row};
  };
  std::vector<Piece> pieces;
  auto add = [&](int64_t begin, std::vector<BoxDim> dims) {
    pieces.push_back({dim.source.at(begin), dim.target.at(begin), begin * dim.row, std::move(dims)});
  };
  int64_t whole = extent / big, rest = extent % big;
  if (whole)
    add(0, {view(whole, big), view(big / small, small), view(small, 1)});
  if (rest / small)
    add(whole * big, {view(rest / small, small), view(small, 1)});
  if (rest % small)
    add(extent - rest % small, {view(rest % small, 1)});
  return pieces;
}

//===----------------------------------------------------------------------===//
// Order of a box
//===----------------------------------------------------------------------===//

/// Sorts dimensions by falling step of the target, then of the source; those that step
/// alike on both sides become one.
static std::vector<BoxDim> orderAndMerge(std::vector<BoxDim> dims) {
  std::erase_if(dims, [](const BoxDim &dim) { return dim.extent == 1; });
  std::ranges::stable_sort(dims, [](const BoxDim &a, const BoxDim &b) {
    return a.target != b.target ? a.target > b.target : a.source > b.source;
  });
  std::vector<BoxDim> merged;
  for (const BoxDim &dim : dims) {
    bool merges = !merged.empty() && merged.back().source == dim.extent * dim.source &&
                  merged.back().target == dim.extent * dim.target && merged.back().row == dim.extent * dim.row;
    if (merges)
      merged.back() = {merged.back().extent * dim.extent, dim.source, dim.target, dim.row};
    else
      merged.push_back(dim);
  }
  return merged;
}

/// Takes the dimension of `dims` with the smallest step of the source that is
/// more than 0 and less than `below`, if there is one.
static std::optional<BoxDim> takeStraightest(std::vector<BoxDim> &dims, int64_t below) {
  auto best = dims.end();
  for (auto it = dims.begin(); it != dims.end(); ++it)
    if (it->source > 0 && it->source < below && (best == dims.end() || it->source < best->source))
      best = it;
  if (best == dims.end())
    return std::nullopt;
  BoxDim taken = *best;
  dims.erase(best);
  return taken;
}

static BoxDim takeLast(std::vector<BoxDim> &dims) {
  if (dims.empty())
    return {};
  BoxDim last = dims.back();
  dims.pop_back();
  return last;
}

static int64_t transposeBand(int64_t columns, int64_t sourceBytes) {
  if (sourceBytes == 1)
    return leastByteBand;
  int64_t share = columns / transposeShares / leastTransposeBand * leastTransposeBand;
  return std::clamp(share, leastTransposeBand, mostTransposeBand);
}

/// Decides what is innermost. `dims` are ordered and merged.
static void arrange(CopyBox &box, std::vector<BoxDim> dims, int64_t sourceBytes, int64_t targetBytes) {
  box.inner = dims.empty() ? BoxDim{1, sourceBytes, targetBytes, 0} : takeLast(dims);
  bool straightTarget = box.inner.target == targetBytes;
  int64_t runBytes = std::max<int64_t>(box.inner.extent * std::max(sourceBytes, targetBytes), 1);
  int64_t bandOfRuns = std::max<int64_t>(bandBytes / runBytes, 1);
  box.innerBlock = box.inner.extent;

  if (straightTarget && box.inner.source == sourceBytes) {
    box.leaf = Leaf::Straight;
    box.along = takeLast(dims);
    box.band = bandOfRuns;
    if (runBytes <= shortRunBytes)
      if (auto across = takeStraightest(dims, box.along.source)) {
        box.across = *across;
        box.band = stridedBlock;
      }
  } else if (straightTarget && box.inner.source == 0 && box.inner.row == 0) {
    box.leaf = Leaf::Fill;
    box.along = takeLast(dims);
    box.band = bandOfRuns;
  } else if (auto straight = takeStraightest(dims, box.inner.source)) {
    // Against the source: squares use each of its lines while it is there.
    bool transposed = straightTarget && straight->source == sourceBytes;
    box.leaf = transposed ? Leaf::Transposed : Leaf::Strided;
    box.along = *straight;
    box.band = transposed ? transposeBand(straight->extent, sourceBytes) : stridedBlock;
    box.innerBlock = transposed ? box.inner.extent : stridedBlock;
  } else {
    box.leaf = Leaf::Strided;
    box.along = takeLast(dims);
    box.band = bandOfRuns;
  }

  box.band = std::min(box.band, box.along.extent);
  box.outer = std::move(dims);
  box.items = box.bands();
  for (const BoxDim &dim : box.outer)
    box.items *= dim.extent;
}

/// Adds the box of `dims`, in bytes. A single long dimension is cut into pieces
/// for threads to share.
static void addBox(std::vector<CopyBox> &boxes, CopyBox box, std::vector<BoxDim> dims, int64_t sourceBytes,
                   int64_t targetBytes) {
  dims = orderAndMerge(std::move(dims));
  int64_t piece = bandBytes / std::max(sourceBytes, targetBytes);
  if (dims.size() == 1 && dims[0].extent >= 2 * piece) {
    BoxDim run = dims[0];
    int64_t pieces = run.extent / piece, rest = run.extent % piece;
    CopyBox last = box;
    last.source += pieces * piece * run.source;
    last.target += pieces * piece * run.target;
    last.row += pieces * piece * run.row;
    dims = {{pieces, piece * run.source, piece * run.target, piece * run.row},
            {piece, run.source, run.target, run.row}};
    if (rest) {
      arrange(last, {{rest, run.source, run.target, run.row}}, sourceBytes, targetBytes);
      boxes.push_back(std::move(last));
    }
  }
  arrange(box, std::move(dims), sourceBytes, targetBytes);
  boxes.push_back(std::move(box));
}

/// The boxes of all combinations of pieces.
static std::optional<std::vector<CopyBox>> combine(const std::vector<std::vector<Piece>> &pieces, int64_t sourceBytes,
                                                   int64_t targetBytes) {
  size_t count = 1;
  for (const std::vector<Piece> &dim : pieces)
    if ((count *= dim.size()) > maxBoxes)
      return std::nullopt;
  std::vector<CopyBox> boxes;
  for (size_t number = 0; number < count; ++number) {
    CopyBox box;
    std::vector<BoxDim> dims;
    size_t rest = number;
    for (const std::vector<Piece> &choices : pieces) {
      const Piece &piece = choices[rest % choices.size()];
      rest /= choices.size();
      box.source += piece.source * sourceBytes;
      box.target += piece.target * targetBytes;
      box.row += piece.row;
      for (const BoxDim &dim : piece.dims)
        dims.push_back({dim.extent, dim.source * sourceBytes, dim.target * targetBytes, dim.row});
    }
    addBox(boxes, std::move(box), std::move(dims), sourceBytes, targetBytes);
  }
  return boxes;
}

std::optional<std::vector<CopyBox>> cutIntoBoxes(std::span<const PairedDim> dims, int64_t sourceBytes,
                                                 int64_t targetBytes) {
  std::vector<std::vector<Piece>> pieces;
  for (const PairedDim &dim : dims) {
    auto cut = cutDim(dim);
    if (!cut)
      return std::nullopt;
    pieces.push_back(std::move(*cut));
  }
  return combine(pieces, sourceBytes, targetBytes);
}

std::optional<std::vector<CopyBox>> cutForScan(std::span<const PairedDim> dims, int64_t sourceBytes) {
  std::vector<PairedDim> once;
  for (PairedDim dim : dims) {
    dim.target = dim.source;
    bool repeats = dim.source.stride == 0 && dim.source.tile == 1 && dim.row == 0;
    if (!repeats)
      once.push_back(dim);
  }
  return cutIntoBoxes(once, sourceBytes, sourceBytes);
}

std::vector<CopyBox> cutPadding(std::span<const PairedDim> dims, int64_t targetBytes) {
  std::vector<CopyBox> boxes;
  // Dimension by dimension: the padding of this one, over the indices of those
  // before and the padded extents of those behind.
  for (size_t padded = 0; padded < dims.size(); ++padded) {
    const DimPlacement &place = dims[padded].target;
    int64_t inside = place.extent % place.tile;
    if (inside == 0)
      continue;
    std::vector<std::vector<Piece>> pieces;
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      PairedDim pair{.target = dims[dim].target};
      if (dim == padded) {
        pieces.push_back({{0, place.at(place.extent), 0, {{place.tile - inside, 0, place.inTile, 0}}}});
        continue;
      }
      if (dim > padded)
        pair.target.extent = pair.target.paddedExtent();
      pair.source = {.extent = pair.target.extent};
      pieces.push_back(*cutDim(pair));
    }
    // There are at most two pieces per dimension; a list that would be too long is cut by
    // taking the pieces of the first dimension one by one.
    auto add = [&](auto &&self, size_t first) -> void {
      if (auto some = combine(pieces, targetBytes, targetBytes)) {
        boxes.insert(boxes.end(), some->begin(), some->end());
        return;
      }
      std::vector<Piece> choices = pieces[first];
      for (const Piece &piece : choices) {
        pieces[first] = {piece};
        self(self, first + 1);
      }
      pieces[first] = choices;
    };
    add(add, 0);
  }
  return boxes;
}

} // namespace segue::inline runtime
