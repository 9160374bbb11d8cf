//===- CommandTimerTest.cpp - the time of each command --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/CommandTimer.h"
#include "ErrorOf.h"
#include "TestFile.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Program/ProgramCosts.h"
#include <gtest/gtest.h>

using namespace segue;
using namespace segue::test;

class CommandTimerTest : public testing::TestWithParam<const char *> {
protected:
  DeviceRef device = Device::open(GetParam());
  Binary gather = Binary::fromMemory(makeGatherFile(64).serialize());
  Tensor table = Tensor::zeros(device, TensorDesc({4}, ElementType::f32));
  Tensor tokens = Tensor::zeros(device, TensorDesc({64}, ElementType::i64));

  void run(const Binary &binary) { submit(device, binary.program("forward"), {table, tokens}); }
};
INSTANTIATE_TEST_SUITE_P(All, CommandTimerTest,
                         testing::Values("cpu:threads=2", "sim:dram=8MiB", "sim:streams,dram=8MiB", "sim:dram=8MiB,adversarial=2"));

TEST_P(CommandTimerTest, NamesCommandsWithTheirCosts) {
  run(gather); // before
  CommandTimer timer(device);
  run(gather);
  run(gather);
  timer.stop();
  run(gather); // and after, which counts for nothing
  ASSERT_EQ(timer.times().size(), 1u);
  const ProgramTimes &program = timer.times().front();
  EXPECT_EQ(program.program, "forward");
  EXPECT_EQ(program.file, gather.name());
  ASSERT_EQ(program.commands.size(), 1u);
  const CommandTime &command = program.commands.front();
  EXPECT_EQ(command.label, "launch gather_f32");
  EXPECT_EQ(command.kind, "Launch");
  EXPECT_EQ(command.location, "model.py:12 (wte)");
  EXPECT_EQ(command.calls, 2u);
  EXPECT_GE(command.seconds, 0);
  CommandCost cost = commandCosts(gather.program("forward")).front();
  EXPECT_EQ(command.flops, cost.flops);
  EXPECT_EQ(command.bytes, cost.bytes);
}

// Each timer begins anew, and sees programs that are made ready while it runs; there is one at a time.
TEST_P(CommandTimerTest, BeginsAnewAndIsAlone) {
  {
    CommandTimer first(device);
    run(gather);
    auto [code, sentence] = errorOf([&] { CommandTimer second(device); });
    EXPECT_EQ(code, ErrorCode::InvalidArgument);
    EXPECT_NE(sentence.find("are being timed already"), std::string::npos) << sentence;
  }
  CommandTimer timer(device);
  Binary later = Binary::fromMemory(makeGatherFile(64).serialize(), {}, "later");
  run(later);
  timer.stop();
  timer.stop();
  ASSERT_EQ(timer.times().size(), 1u);
  EXPECT_EQ(timer.times()[0].file, "later");
  EXPECT_EQ(timer.times()[0].commands[0].calls, 1u);
}

// Each call by itself, while a timer adds the same calls up, and none where nobody asks.
TEST_P(CommandTimerTest, NotesEachCall) {
  CommandSpans spans(device);
  run(gather); // not on yet
  spans.setOn(true);
  run(gather);
  {
    CommandTimer timer(device);
    run(gather);
    timer.stop();
    EXPECT_EQ(timer.times().at(0).commands.at(0).calls, 1u);
  }
  spans.setOn(false);
  run(gather);
  std::vector<CommandSpan> found = spans.take();
  ASSERT_EQ(found.size(), 2u);
  CommandCost cost = commandCosts(gather.program("forward")).front();
  for (const CommandSpan &span : found) {
    EXPECT_EQ(span.program, "forward");
    EXPECT_EQ(span.label, "launch gather_f32");
    EXPECT_EQ(span.kind, "Launch");
    EXPECT_EQ(span.location, "model.py:12 (wte)");
    EXPECT_EQ(span.bytes, cost.bytes);
    EXPECT_GE(span.seconds, 0);
  }
  EXPECT_LE(found[0].begin + found[0].seconds, found[1].begin);
  EXPECT_TRUE(spans.take().empty());
}

TEST(CommandTimer, NothingIsTimedInVirtualTime) {
  DeviceRef device = Device::open("sim:virtual,dram=8MiB");
  EXPECT_EQ(errorOf([&] { CommandTimer timer(device); }).first, ErrorCode::Unsupported);
}
