//===- WorkingMemoryTest.cpp - what makes an arena as large as it is ------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/WorkingMemory.h"
#include "TestFile.h"
#include "segue/runtime/Program/Binary.h"
#include <gtest/gtest.h>

using namespace segue;
using namespace segue::test;

namespace {
/// A program over f32[n] tensors, of launches that each make one temporary or the output.
struct Chain {
  TestFile file;
  uint32_t add = file.addKernel("add_f32", 1, {0, 0, 0}, {4, 4, 4}), twice = file.addKernel("double_f32", 1, {0, 0}, {4, 4});
  schema::ProgramT &program = file.addProgram("forward");
  uint32_t x = addBuffer(program, schema::BufferKind::input, addInput(program, "x", {16}), 0, 64);
  uint32_t y = addBuffer(program, schema::BufferKind::output, addOutput(program, "y", {16}), 0, 64);

  explicit Chain(uint64_t arenaBytes, schema::Space space = schema::Space::device_dram) { addArena(arenaBytes, space); }

  void addArena(uint64_t bytes, schema::Space space) {
    program.arenas.push_back(std::make_unique<schema::ArenaT>());
    program.arenas.back()->space = space;
    program.arenas.back()->bytes = program.arenas.back()->lower_bound = bytes;
  }
  uint32_t temporary(uint64_t offset, uint64_t bytes = 64, uint32_t arena = 0) {
    return addBuffer(program, schema::BufferKind::arena, arena, offset, bytes);
  }
  /// Adds a launch at `line` of model.py, in the module "net".
  void launch(uint32_t kernel, std::vector<uint32_t> args, uint32_t line, uint64_t range = 16) {
    addLaunch(program, kernel, std::move(args), range);
    auto location = std::make_unique<schema::LocationT>();
    location->file = "model.py";
    location->line = line;
    location->name = "net";
    program.commands.back()->location = int32_t(file.root.locations.size());
    file.root.locations.push_back(std::move(location));
  }
  std::vector<WorkingMemory> workingMemory() {
    return segue::workingMemory(Binary::fromMemory(file.serialize()).program("forward"));
  }
};
} // namespace

// a = 2x, b = 2a, c = a + b, y = 2c: three at once where c is made.
TEST(WorkingMemory, HasWhatIsThereWhereTheMostIs) {
  Chain chain(192);
  uint32_t a = chain.temporary(0), b = chain.temporary(64), c = chain.temporary(128);
  schema::BlockBeginT begin;
  begin.name = "h.0";
  chain.launch(chain.twice, {chain.x, a}, 10);
  addCommand(chain.program, std::move(begin));
  chain.launch(chain.twice, {a, b}, 11);
  schema::BlockEndT end;
  end.name = "h.0";
  addCommand(chain.program, std::move(end));
  chain.launch(chain.add, {a, b, c}, 12);
  chain.launch(chain.twice, {c, chain.y}, 13);
  std::vector<WorkingMemory> found = chain.workingMemory();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].bytes, 192u);
  EXPECT_EQ(found[0].space, Space::DeviceDram);
  ASSERT_EQ(found[0].values.size(), 3u);
  const char *locations[] = {"model.py:10 (net)", "model.py:11 (net)", "model.py:12 (net)"};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(found[0].values[i].bytes, 64u);
    EXPECT_EQ(found[0].values[i].maker, i == 2 ? "add_f32" : "double_f32");
    EXPECT_EQ(found[0].values[i].block, i == 1 ? "h.0" : "");
    EXPECT_EQ(found[0].values[i].location, locations[i]);
  }
}

// The greatest comes first, and what is over before the most is needed, or comes after it, is left out.
TEST(WorkingMemory, LeavesOutWhatIsNotThereThen) {
  Chain chain(256);
  uint32_t early = chain.temporary(0), small = chain.temporary(0), great = chain.temporary(64, 192), late = chain.temporary(0);
  chain.launch(chain.twice, {chain.x, early}, 1);
  chain.launch(chain.twice, {early, chain.y}, 2);
  chain.launch(chain.twice, {chain.x, small}, 3);
  chain.launch(chain.twice, {small, great}, 4);
  chain.launch(chain.twice, {great, late}, 5);
  chain.launch(chain.twice, {late, chain.y}, 6);
  std::vector<Temporary> values = chain.workingMemory()[0].values;
  ASSERT_EQ(values.size(), 2u);
  EXPECT_EQ(values[0].bytes, 192u);
  EXPECT_EQ(values[0].location, "model.py:4 (net)");
  EXPECT_EQ(values[1].location, "model.py:3 (net)");
}

// A value that is made in the place of its operand counts in place of it.
TEST(WorkingMemory, CountsWhatIsMadeInPlaceOnce) {
  Chain chain(128);
  uint32_t a = chain.temporary(0), b = chain.temporary(64), inPlace = chain.temporary(0);
  chain.launch(chain.twice, {chain.x, a}, 1);
  chain.launch(chain.twice, {a, inPlace}, 2);
  chain.launch(chain.twice, {chain.x, b}, 3);
  chain.launch(chain.add, {inPlace, b, chain.y}, 4);
  std::vector<Temporary> values = chain.workingMemory()[0].values;
  ASSERT_EQ(values.size(), 2u);
  EXPECT_EQ(values[0].location, "model.py:2 (net)");
  EXPECT_EQ(values[1].location, "model.py:3 (net)");
}

TEST(WorkingMemory, OfEachSpaceByItself) {
  Chain chain(64);
  chain.addArena(128, schema::Space::device_l1);
  uint32_t a = chain.temporary(0), b = chain.temporary(64, 64, 1);
  chain.launch(chain.twice, {chain.x, a}, 1);
  chain.launch(chain.twice, {a, b}, 2);
  chain.launch(chain.twice, {b, chain.y}, 3);
  std::vector<WorkingMemory> found = chain.workingMemory();
  ASSERT_EQ(found.size(), 2u);
  ASSERT_EQ(found[0].values.size(), 1u);
  ASSERT_EQ(found[1].values.size(), 1u);
  EXPECT_EQ(found[0].values[0].location, "model.py:1 (net)");
  EXPECT_EQ(found[1].values[0].location, "model.py:2 (net)");
  EXPECT_EQ(found[1].space, Space::DeviceL1);
}

// A buffer that nobody uses is not there at any time.
TEST(WorkingMemory, OfNothing) {
  Chain chain(64);
  chain.temporary(0);
  std::vector<WorkingMemory> found = chain.workingMemory();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(found[0].values.empty());
}
