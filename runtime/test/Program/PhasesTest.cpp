//===- PhasesTest.cpp - phases that programs enter ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// SetPhase is obeyed: its order inside of a program is verified at load, and
// from program to program while they run.
//
//===----------------------------------------------------------------------===//

#include "TestFile.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <gtest/gtest.h>

using namespace segue;
using namespace segue::test;
using schema::BufferKind;

namespace {
/// Writes down what a sink is told, as text.
struct EventLog : EventSink {
  std::vector<std::string> events;
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::PhaseBegin &begin) { events.push_back(std::string(name(begin.phase))); }
  void on(const event::Submit &submit) {
    events.push_back("(" + submit.program.name() + ")");
  }
  void on(const event::BlockBegin &begin) { events.push_back(std::string(begin.block)); }
};
} // namespace

static constexpr int64_t count = 16;

/// A program `name` that goes through `phases`, each with a block in which the
/// value is doubled.
static void addDoubling(TestFile &file, const std::string &name, const std::vector<schema::Phase> &phases) {
  uint32_t add = file.root.kernels.empty() ? file.addKernel("add_f32", 1, {0, 0, 0}, {4, 4, 4}) : 0;
  schema::ProgramT &p = file.addProgram(name);
  uint32_t before = addBuffer(p, BufferKind::input, addInput(p, "x", {count}), 0, 4 * count);
  for (size_t i = 0; i < phases.size(); ++i) {
    addPhase(p, phases[i]);
    std::string block = "b." + std::to_string(i);
    schema::BlockBeginT begin;
    begin.name = block;
    addCommand(p, std::move(begin));
    uint32_t after = addBuffer(p, BufferKind::output, addOutput(p, "y." + std::to_string(i), {count}), 0, 4 * count);
    addLaunch(p, add, {before, before, after}, count);
    schema::BlockEndT end;
    end.name = block;
    addCommand(p, std::move(end));
    before = after;
  }
}

static Binary load(TestFile &file) { return Binary::fromMemory(file.serialize(), {}, "phases.segue"); }

static std::string errorOf(const std::function<void()> &call, ErrorCode *code = nullptr) {
  try {
    call();
    return "";
  } catch (const Error &error) {
    if (code)
      *code = error.code();
    return error.what();
  }
}

namespace {
class PhasesTest : public testing::TestWithParam<const char *> {
protected:
  Tensor ones() {
    std::vector<float> values(count, 1);
    Tensor host = Tensor::wrap(device, TensorDesc({count}, ElementType::f32), values.data(), {});
    Tensor placed = copyTo(device, host, TensorDesc({count}, ElementType::f32));
    wait(placed);
    return placed;
  }
  float run(const Binary &binary, const char *name, EventSink *events) {
    std::vector<Tensor> outputs = submit(device, binary.program(name), {ones()}, events);
    return toHost(outputs.back()).data<float>()[count - 1];
  }

  DeviceRef device = Device::open(GetParam());
};
} // namespace
INSTANTIATE_TEST_SUITE_P(All, PhasesTest, testing::Values("cpu:threads=1", "sim:threads=1"));

// Whoever runs steps begins and ends them; the rest is in the programs. The phase
// comes before the program is asked for anything, and goes on in the next (R8).
TEST_P(PhasesTest, ComeFromPrograms) {
  using enum schema::Phase;
  TestFile file;
  addDoubling(file, "forward", {forward});
  addDoubling(file, "again", {forward});
  addDoubling(file, "backward", {backward});
  addDoubling(file, "update", {optimizer});
  Binary binary = load(file);
  EXPECT_EQ(binary.program("backward").phases(), std::vector{Phase::Backward});
  EventLog log;
  log.enter(Phase::StepBegin);
  for (const char *name : {"forward", "again", "backward", "update"})
    run(binary, name, &log);
  log.enter(Phase::StepEnd);
  EXPECT_EQ(log.events,
            (std::vector<std::string>{"step_begin", "forward", "(forward)", "b.0", "(again)", "b.0", "backward",
                                      "(backward)", "b.0", "optimizer", "(update)", "b.0", "step_end"}));
}

// Forward and backward in one program, twice over: gradient accumulation.
TEST_P(PhasesTest, SeveralInOneProgram) {
  using enum schema::Phase;
  TestFile file;
  addDoubling(file, "step", {forward, backward, forward, backward, optimizer});
  Binary binary = load(file);
  EventLog log;
  log.enter(Phase::StepBegin);
  EXPECT_EQ(run(binary, "step", &log), 32);
  log.enter(Phase::StepEnd);
  EXPECT_EQ(log.events,
            (std::vector<std::string>{"step_begin", "forward", "(step)", "b.0", "backward", "b.1", "forward", "b.2",
                                      "backward", "b.3", "optimizer", "b.4", "step_end"}));
  EXPECT_EQ(run(binary, "step", nullptr), 32) << "nobody is told";
}

// A program whose phase cannot come now is refused by its name before anything is
// queued; the step goes on with one that may come.
TEST_P(PhasesTest, OrderAcrossPrograms) {
  using enum schema::Phase;
  TestFile file;
  addDoubling(file, "forward", {forward});
  addDoubling(file, "update", {optimizer});
  addDoubling(file, "backward", {backward});
  Binary binary = load(file);
  EventLog log;
  log.enter(Phase::StepBegin);
  run(binary, "forward", &log);
  log.events.clear();
  ErrorCode code{};
  EXPECT_EQ(errorOf([&] { run(binary, "update", &log); }, &code),
            "PHASE_ORDER: program \"update\": optimizer cannot follow forward; backward or step_end can");
  EXPECT_EQ(code, ErrorCode::PhaseOrder);
  EXPECT_TRUE(log.events.empty()) << "nothing has changed";
  run(binary, "backward", &log);
  run(binary, "update", &log);
  EXPECT_EQ(errorOf([&] { log.enter(Phase::Forward); }),
            "PHASE_ORDER: forward cannot follow optimizer; step_end can");
  // A step that nobody ended is given up by the next.
  log.enter(Phase::StepBegin);
  EXPECT_EQ(errorOf([&] { log.enter(Phase::StepEnd); }), "PHASE_ORDER: step_end cannot follow step_begin; forward can");
  EXPECT_EQ(errorOf([&] { run(binary, "backward", &log); }),
            "PHASE_ORDER: program \"backward\": backward cannot follow step_begin; forward can");
}

// Outside of steps programs run in any order, and what is submitted for other ends
// than the step enters nothing.
TEST_P(PhasesTest, ApartFromSteps) {
  using enum schema::Phase;
  TestFile file;
  addDoubling(file, "forward", {forward});
  addDoubling(file, "update", {optimizer});
  Binary binary = load(file);
  EventLog log;
  run(binary, "update", &log);
  run(binary, "forward", &log);
  log.enter(Phase::StepBegin);
  run(binary, "forward", &log);
  log.events.clear();
  {
    EventSink::PhasesApart apart(&log);
    run(binary, "update", &log);
  }
  EXPECT_EQ(log.events, (std::vector<std::string>{"(update)", "b.0"}));
  EXPECT_NE(errorOf([&] { run(binary, "update", &log); }), "");
}

// What breaks the order inside of a program, or begins and ends steps there, does
// not load.
TEST(PhasesInFiles, OrderIsVerified) {
  using enum schema::Phase;
  auto loading = [](const std::function<void(schema::ProgramT &)> &change) {
    TestFile file;
    addDoubling(file, "forward", {forward, backward});
    change(*file.root.programs[0]);
    return errorOf([&] { load(file); });
  };
  auto phase = [](schema::ProgramT &p, size_t command) -> schema::Phase & {
    return p.commands[command]->body.AsSetPhase()->phase;
  };
  EXPECT_EQ(loading([](schema::ProgramT &) {}), "");
  const std::string where = "FILE_CORRUPT: phases.segue: program \"forward\", command ";
  EXPECT_EQ(loading([&](schema::ProgramT &p) { phase(p, 0) = step_end; }),
            where + "0 (SetPhase): enters step_end, but steps begin and end outside of programs");
  EXPECT_EQ(loading([&](schema::ProgramT &p) { phase(p, 0) = step_begin; }),
            where + "0 (SetPhase): enters step_begin, but steps begin and end outside of programs");
  EXPECT_EQ(loading([&](schema::ProgramT &p) { phase(p, 4) = optimizer; }),
            where + "4 (SetPhase): optimizer cannot follow forward");
  EXPECT_EQ(loading([&](schema::ProgramT &p) { phase(p, 0) = optimizer; }),
            where + "4 (SetPhase): backward cannot follow optimizer");
  EXPECT_EQ(loading([&](schema::ProgramT &p) { phase(p, 4) = schema::Phase(5); }),
            where + "4 (SetPhase): there is no phase 5");
  EXPECT_EQ(loading([](schema::ProgramT &p) { std::swap(p.commands[4], p.commands[5]); }),
            where + "5 (SetPhase): enters backward inside of a block");
}
