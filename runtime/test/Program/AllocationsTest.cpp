//===- AllocationsTest.cpp - what a submit takes from the heap ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Counts by operators of its own, in place of which sanitizers have theirs:
// built without them alone.
//
//===----------------------------------------------------------------------===//

#include "TestFile.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <cstdlib>
#include <gtest/gtest.h>
#include <new>

using namespace segue;
using namespace segue::test;

static thread_local uint64_t allocations = 0, descriptions = 0;

/// std::make_shared<TensorDesc> asks for so much: two counts and a table before it.
static constexpr std::size_t descriptionBytes = sizeof(TensorDesc) + 16;

__attribute__((noinline)) void *operator new(std::size_t bytes) {
  ++allocations;
  descriptions += bytes == descriptionBytes;
  if (void *data = std::malloc(bytes ? bytes : 1))
    return data;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void *data) noexcept { std::free(data); }
__attribute__((noinline)) void operator delete(void *data, std::size_t) noexcept { std::free(data); }

// A plan that was made is only followed.
TEST(SubmitTest, ThirdSubmitDoesNotAllocate) {
  DeviceRef device = Device::open("cpu:threads=1");
  Binary binary = Binary::fromMemory(makeAddFile(64).serialize());
  Executor executor(device, binary.program("forward"));
  std::vector<Tensor> inputs, outputs(1);
  for (int i = 0; i < 2; ++i)
    inputs.push_back(Tensor::zeros(device, TensorDesc({64}, ElementType::f32)));
  executor.run(inputs, outputs);
  executor.run(inputs, outputs);
  uint64_t before = allocations;
  for (int i = 0; i < 100; ++i)
    executor.run(inputs, outputs);
  EXPECT_EQ(allocations, before);
  outputs[0] = Tensor::zeros(device, TensorDesc({64}, ElementType::f32));
  EXPECT_GT(allocations, before) << "the count counts";
}

// A copy between host and device is a transfer of two views. They are described
// when the program is prepared, and again only where they lie elsewhere.
TEST(SubmitTest, ABoundaryCopyDescribesItsEndsOnce) {
  TestFile file;
  schema::ProgramT &p = file.addProgram("move");
  uint32_t x = addBuffer(p, schema::BufferKind::input, addInput(p, "x", {64}), 0, 256);
  uint32_t y = addBuffer(p, schema::BufferKind::output, addOutput(p, "y", {64}), 0, 256);
  for (auto *value : {p.inputs[0].get(), p.outputs[0].get()}) {
    value->desc->layout = std::make_unique<schema::LayoutT>();
    value->desc->layout->space = schema::Space::host;
  }
  p.arenas.push_back(std::make_unique<schema::ArenaT>());
  p.arenas[0]->bytes = p.arenas[0]->lower_bound = 256;
  uint32_t arena = addBuffer(p, schema::BufferKind::arena, 0, 0, 256);
  for (auto [from, to] : {std::pair(x, arena), std::pair(arena, y)}) {
    schema::ToLayoutT copy;
    copy.source = view(from, {64}, {1});
    copy.target = view(to, {64}, {1});
    addCommand(p, std::move(copy));
  }
  DeviceRef device = Device::open("sim:threads=1,latency=0s");
  Binary binary = Binary::fromMemory(file.serialize());
  Executor executor(device, binary.program("move"));
  std::vector<Tensor> inputs{Tensor::onHost(device, {64}, ElementType::f32)}, outputs(1);
  for (int i = 0; i < 64; ++i)
    inputs[0].data<float>()[i] = float(i);
  auto run = [&] {
    executor.run(inputs, outputs);
    wait(outputs[0]);
    EXPECT_EQ(outputs[0].data<float>()[5], 5);
  };
  run();
  run();
  uint64_t before = descriptions;
  for (int i = 0; i < 10; ++i)
    run();
  EXPECT_EQ(descriptions, before);
  auto made = std::make_shared<const TensorDesc>(inputs[0].desc());
  EXPECT_EQ(descriptions, before + 1) << "the count counts";
}
