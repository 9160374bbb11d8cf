//===- WorkingMemory.cpp - what a program computes in ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/WorkingMemory.h"
#include "CommandBuffers.h"
#include "CostOfCommand.h"
#include <algorithm>
#include <map>
#include <tuple>

namespace segue::inline runtime {

namespace {
constexpr uint32_t none = UINT32_MAX;

/// The commands between which a buffer of an arena is needed, and where it is made.
struct Life {
  uint32_t first = none, last = 0;
  /// The first command that writes it, and the number of the innermost block around that; `none` while not known.
  uint32_t maker = none, block = none;
};

/// The buffers of one arena at some command. Several may lie at one offset: what is made in the place of its operand.
class LiveBuffers {
public:
  void begin(const schema::Buffer &buffer) {
    if (count_[buffer.offset()]++ == 0)
      bytes_ += buffer.bytes();
  }
  void end(const schema::Buffer &buffer) {
    if (--count_[buffer.offset()] == 0)
      bytes_ -= buffer.bytes();
  }
  uint64_t bytes() const { return bytes_; }

private:
  std::map<uint64_t, uint32_t> count_;
  /// The sum of what may overlap in a file that no compiler has written: it may wrap, and decides no access.
  uint64_t bytes_ = 0;
};
} // namespace

/// Returns the lives of all buffers, and the names of the blocks that `Life::block` counts.
static std::vector<Life> livesOf(const schema::Binary &root, const schema::Program &table, std::vector<std::string> &blocks) {
  std::vector<Life> lives(countOf(table.buffers()));
  std::vector<uint32_t> open;
  for (uint32_t i = 0; i < countOf(table.commands()); ++i) {
    const schema::Command &command = *table.commands()->Get(i);
    if (const schema::BlockBegin *begin = command.body_as_BlockBegin()) {
      open.push_back(uint32_t(blocks.size()));
      blocks.push_back(begin->name()->str());
    } else if (command.body_type() == schema::CommandBody::BlockEnd) {
      open.pop_back();
    }
    forEachBuffer(root, command, [&](uint32_t buffer, bool isWrite) {
      Life &life = lives[buffer];
      life.first = std::min(life.first, i);
      life.last = i;
      if (isWrite && life.maker == none) {
        life.maker = i;
        life.block = open.empty() ? none : open.back();
      }
    });
  }
  return lives;
}

static Temporary describe(const BinaryImage &image, const schema::Program &table, const Life &life, uint64_t bytes,
                          const std::vector<std::string> &blocks) {
  Temporary value{.bytes = bytes, .maker = {}, .block = {}, .location = {}};
  if (life.maker == none)
    return value;
  const schema::Command &command = *table.commands()->Get(life.maker);
  const schema::Launch *launch = command.body_as_Launch();
  value.maker = launch ? image.root().kernels()->Get(launch->kernel())->name()->str() : kindOf(command);
  if (life.block != none)
    value.block = blocks[life.block];
  value.location = image.location(command.location());
  return value;
}

std::vector<WorkingMemory> workingMemory(const Program &program) {
  const BinaryImage &image = *program.image();
  const schema::Program &table = *image.root().programs()->Get(uint32_t(program.index()));
  std::vector<std::string> blocks;
  std::vector<Life> lives = livesOf(image.root(), table, blocks);

  uint32_t commands = countOf(table.commands());
  std::vector<WorkingMemory> arenas(countOf(table.arenas()));
  for (uint32_t a = 0; a < arenas.size(); ++a) {
    arenas[a].space = Space(table.arenas()->Get(a)->space());
    arenas[a].bytes = table.arenas()->Get(a)->bytes();
    std::vector<std::vector<uint32_t>> begins(commands), ends(commands);
    for (uint32_t i = 0; i < lives.size(); ++i) {
      const schema::Buffer &buffer = *table.buffers()->Get(i);
      if (buffer.kind() != schema::BufferKind::arena || buffer.index() != a || lives[i].first == none)
        continue;
      begins[lives[i].first].push_back(i);
      ends[lives[i].last].push_back(i);
    }
    LiveBuffers live;
    uint64_t most = 0;
    uint32_t at = none;
    for (uint32_t c = 0; c < commands; ++c) {
      for (uint32_t i : begins[c])
        live.begin(*table.buffers()->Get(i));
      if (live.bytes() > most)
        most = live.bytes(), at = c;
      for (uint32_t i : ends[c])
        live.end(*table.buffers()->Get(i));
    }
    // The value at an offset is the one that was made last of those that lie there.
    std::map<uint64_t, uint32_t> byOffset;
    for (uint32_t i = 0; at != none && i < lives.size(); ++i) {
      const schema::Buffer &buffer = *table.buffers()->Get(i);
      if (buffer.kind() != schema::BufferKind::arena || buffer.index() != a || lives[i].first > at || lives[i].last < at)
        continue;
      auto [found, isNew] = byOffset.try_emplace(buffer.offset(), i);
      if (!isNew && lives[i].first > lives[found->second].first)
        found->second = i;
    }
    std::vector<uint32_t> chosen;
    for (const auto &[offset, buffer] : byOffset)
      chosen.push_back(buffer);
    std::ranges::sort(chosen, [&](uint32_t x, uint32_t y) {
      uint64_t xBytes = table.buffers()->Get(x)->bytes(), yBytes = table.buffers()->Get(y)->bytes();
      return std::tuple(yBytes, lives[x].first, x) < std::tuple(xBytes, lives[y].first, y);
    });
    for (uint32_t i : chosen)
      arenas[a].values.push_back(describe(image, table, lives[i], table.buffers()->Get(i)->bytes(), blocks));
  }
  return arenas;
}

} // namespace segue::inline runtime
