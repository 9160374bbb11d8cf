//===- GroupProducts.cu - products of groups of rows ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// segue.grouped_dot and segue.grouped_outer (SegueOps.td), by tiles, in f32. Where the
// groups end stands in the device's memory, and the host never sees it: a grid has as many
// tiles as any ends would need, and each block finds out which group its tile is in.
//
//===----------------------------------------------------------------------===//

#include "Tiles.h"

#include "BuiltinArgs.h"

using namespace segue;
using namespace segue::cuda;

namespace {
constexpr int64_t extent = gpu::tileExtent;

GPU_FUNCTION int64_t tilesOf(int64_t count) { return (count + extent - 1) / extent; }

/// A group by its number, and its rows [begin, end).
struct Group {
  int64_t number = 0, begin = 0, end = 0;
};

/// Goes on to a group. Ends that go back are those of groups without rows, and none passes the last row.
GPU_FUNCTION Group groupAt(const GroupsArgs &args, int64_t number, int64_t begin) {
  int64_t end = args.index == ElementType::i32 ? static_cast<const int32_t *>(args.ends)[number]
                                               : static_cast<const int64_t *>(args.ends)[number];
  end = end < args.rows ? end : args.rows;
  return {number, begin, end > begin ? end : begin};
}

GPU_FUNCTION const std::byte *matrixOf(const GroupsArgs &args, const void *data, int64_t elements) {
  return static_cast<const std::byte *>(data) + elements * (args.element == ElementType::f32 ? 4 : 2);
}
} // namespace

// Row tiles of all groups come one after another, then those of the rows that are in none, which become zeros.
GPU_KERNEL(multiplyGroups, GroupsArgs) {
  GPU_SHARED gpu::ProductTiles tiles;
  int64_t columnTiles = tilesOf(args.width), rowTiles = args.rows / extent + args.groups + 1;
  for (int64_t item = gpu::block(); item < rowTiles * columnTiles; item += gpu::blocks()) {
    int64_t tile = item / columnTiles, column = item % columnTiles * extent;
    Group group;
    for (int64_t number = 0, end = 0;; ++number) {
      bool isRest = number == args.groups;
      group = isRest ? Group{number, end, args.rows} : groupAt(args, number, end);
      end = group.end;
      int64_t count = tilesOf(group.end - group.begin);
      if (isRest || tile < count)
        break;
      tile -= count;
    }
    int64_t row = group.begin + tile * extent;
    if (row >= group.end)
      continue; // other ends would have needed the tile
    gpu::TileSums sums;
    if (group.number < args.groups) {
      auto a = gpu::AlongDepth::make(args.a, args.element, args.depth, args.depth, row, group.end);
      const std::byte *b = matrixOf(args, args.b, group.number * args.depth * args.width);
      if (args.transposed)
        gpu::multiplyTile(tiles, 0, args.depth, a,
                          gpu::AlongDepth::make(b, args.element, args.depth, args.depth, column, args.width), sums);
      else
        gpu::multiplyTile(tiles, 0, args.depth, a,
                          gpu::AcrossDepth::make(b, args.element, args.width, args.depth, column, args.width), sums);
    }
    gpu::storeTile(sums, [&](int i, int j, float sum) {
      if (row + i < group.end && column + j < args.width)
        gpu::setElement(args.c, args.element, (row + i) * args.width + column + j, sum);
    });
  }
}

// c[group] = the rows of a, transposed, times those of b: zeros for a group without rows.
GPU_KERNEL(multiplyGroupsOuter, GroupsArgs) {
  GPU_SHARED gpu::ProductTiles tiles;
  int64_t columnTiles = tilesOf(args.width), perGroup = tilesOf(args.height) * columnTiles;
  for (int64_t item = gpu::block(); item < args.groups * perGroup; item += gpu::blocks()) {
    Group group;
    for (int64_t number = 0, end = 0; number <= item / perGroup; ++number, end = group.end)
      group = groupAt(args, number, end);
    int64_t row = item % perGroup / columnTiles * extent, column = item % columnTiles * extent;
    int64_t depth = group.end - group.begin;
    const std::byte *a = matrixOf(args, args.a, group.begin * args.height);
    const std::byte *b = matrixOf(args, args.b, group.begin * args.width);
    gpu::TileSums sums;
    gpu::multiplyTile(tiles, 0, depth, gpu::AcrossDepth::make(a, args.element, args.height, depth, row, args.height),
                      gpu::AcrossDepth::make(b, args.element, args.width, depth, column, args.width), sums);
    int64_t first = group.number * args.height;
    gpu::storeTile(sums, [&](int i, int j, float sum) {
      if (row + i < args.height && column + j < args.width)
        gpu::setElement(args.c, args.element, (first + row + i) * args.width + column + j, sum);
    });
  }
}
