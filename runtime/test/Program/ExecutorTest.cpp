//===- ExecutorTest.cpp - submit: check, align, run, place ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/Executor.h"
#include "ErrorOf.h"
#include "TestFile.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/BlockUses.h"
#include "segue/runtime/Program/Module.h"
#include "segue/runtime/Session/Stitcher.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <future>
#include <gtest/gtest.h>
#include <numeric>
#include <thread>

using namespace segue;
using namespace segue::test;

class ExecutorTest : public testing::TestWithParam<const char *> {
protected:
  DeviceRef device = Device::open(GetParam());

  Tensor ramp(Shape shape, float start = 0, Layout layout = {}) {
    Tensor dense = Tensor::empty(device, TensorDesc(shape, ElementType::f32));
    std::iota(dense.data<float>(), dense.data<float>() + dense.elementCount(), start);
    return copyTo(device, dense, TensorDesc(shape, ElementType::f32, layout));
  }
};
INSTANTIATE_TEST_SUITE_P(All, ExecutorTest, testing::Values("cpu:threads=1", "cpu:threads=2", "cpu:threads=5"));

TEST_P(ExecutorTest, RunsKernelsOverTheArena) {
  for (int64_t n : {1, 15, 16, 1000, 100003}) {
    Binary binary = Binary::fromMemory(makeAddFile(n).serialize());
    Tensor x = ramp({n}), y = ramp({n}, 5);
    for (int run = 0; run < 3; ++run) {
      auto outputs = submit(device, binary.program("forward"), {x, y});
      ASSERT_EQ(outputs.size(), 1u);
      for (int64_t i = 0; i < n; ++i)
        ASSERT_EQ(outputs[0].data<float>()[i], 2 * (float(i) + (float(i) + 5)));
    }
    SubmitCounters counters = Executor(device, binary.program("forward")).counters();
    EXPECT_EQ(counters.submits, 3u);
    EXPECT_EQ(counters.inputsElided, 6u);
    EXPECT_EQ(counters.inputsConverted, 0u);
  }
}

// A default Tensor and a default DeviceRef hold nothing: whoever is given one says so.
TEST(NullHandles, AreRefused) {
  DeviceRef device = Device::open("cpu:threads=1"), noDevice;
  Binary binary = Binary::fromMemory(makeAddFile(4).serialize());
  TensorDesc desc({4}, ElementType::f32);
  Tensor x = Tensor::zeros(device, desc), none;
  float element = 0;
  auto expectRefused = [](const std::string &who, auto &&call) {
    auto [code, what] = errorOf(call);
    EXPECT_EQ(code, ErrorCode::InvalidArgument) << who << ": " << what;
    EXPECT_NE(what.find(who + ": "), what.npos) << what;
  };
  expectRefused("Executor", [&] { Executor executor(noDevice, binary.program("forward")); });
  expectRefused("Executor", [&] { submit(noDevice, binary.program("forward"), std::vector{x, x}); });
  expectRefused("releasePrograms", [&] { releasePrograms(noDevice); });
  expectRefused("Stitcher", [&] { Stitcher stitcher(noDevice); });
  expectRefused("Stitcher::gradient", [&] { (void)Stitcher(device).gradient(none); });
  expectRefused("Module", [&] { Module module(noDevice, binary); });
  expectRefused("Tensor", [&] { (void)Tensor::zeros(noDevice, desc); });
  expectRefused("Tensor", [&] { (void)Tensor::onHost(noDevice, {4}, ElementType::f32); });
  expectRefused("Tensor", [&] { (void)Tensor::scalar(noDevice, 1.0f); });
  expectRefused("Tensor", [&] { (void)Tensor::empty(device, std::shared_ptr<const TensorDesc>()); });
  expectRefused("Tensor::wrap",
                [&] { (void)Tensor::wrap(noDevice, TensorDesc({}, ElementType::f32), &element, [] {}); });
  expectRefused("Tensor::in", [&] { (void)Tensor::in(nullptr, x.sharedDesc()); });
  expectRefused("Tensor::in", [&] { (void)Tensor::in(x.storage(), nullptr); });
  expectRefused("Tensor::item", [&] { (void)none.item(); });
  expectRefused("toHost", [&] { (void)toHost(none); });
  expectRefused("wait", [&] { wait(none); });
  expectRefused("toLayout", [&] { (void)toLayout(device, none, desc); });
  expectRefused("toLayout", [&] { (void)toLayout(noDevice, x, desc); });
  expectRefused("copyTo", [&] { (void)copyTo(device, none, desc); });
  expectRefused("copyInto", [&] { copyInto(none, x); });
  expectRefused("copyInto", [&] { copyInto(x, none); });
  Module module(device, binary, "adds");
  expectRefused("module \"adds\"", [&] { (void)module.infer(Module::Lookup()); });
  expectRefused("module \"adds\"", [&] { (void)module.forward(Module::Lookup()); });
  expectRefused("Binary::slice", [&] { (void)binary.slice("forward", {}); });
  expectRefused("forEachPiece", [&] { forEachPiece(x, {}); });
  Tensor given = std::move(x); // a tensor that was moved from is null
  for (const Tensor &null : {none, x}) {
    auto [code, what] = errorOf([&] { (void)null.desc(); });
    EXPECT_EQ(code, ErrorCode::InvalidArgument);
    EXPECT_NE(what.find("null tensor"), what.npos) << what;
    EXPECT_EQ(errorOf([&] { (void)null.shape(); }).first, ErrorCode::InvalidArgument);
    EXPECT_EQ(errorOf([&] { (void)null.element(); }).first, ErrorCode::InvalidArgument);
    EXPECT_EQ(errorOf([&] { (void)null.elementCount(); }).first, ErrorCode::InvalidArgument);
    EXPECT_EQ(errorOf([&] { (void)null.device(); }).first, ErrorCode::InvalidArgument);
    EXPECT_EQ(errorOf([&] { (void)null.data<float>(); }).first, ErrorCode::InvalidArgument);
    EXPECT_FALSE(null.isSoleOwner());
  }
}

// Handles over a file stay what they were when they are moved from; a module says that it has no device.
TEST(MovedFrom, HandlesOverAFileAreWhole) {
  DeviceRef device = Device::open("cpu:threads=1");
  Binary binary = Binary::fromMemory(makeAddFile(4).serialize(), {}, "adds"), other = std::move(binary);
  EXPECT_EQ(binary.name(), "adds");
  ASSERT_EQ(binary.programs().size(), 1u);
  Program program = binary.program("forward"), otherProgram = std::move(program);
  EXPECT_EQ(program.name(), "forward");
  Executor executor(device, program), otherExecutor = std::move(executor);
  Tensor x = Tensor::zeros(device, TensorDesc({4}, ElementType::f32));
  EXPECT_EQ(executor.run(std::vector{x, x}).size(), 1u);
  Module module(device, binary), otherModule = std::move(module);
  auto [code, what] = errorOf([&] { (void)module.infer(TensorMap{{"x", x}, {"y", x}}); });
  EXPECT_EQ(code, ErrorCode::InvalidArgument);
  EXPECT_NE(what.find("device is null"), what.npos) << what;
}

TEST(Program, HasNoSiblingOutsideOfItsFile) {
  Program program = Binary::fromMemory(makeAddFile(4).serialize(), {}, "adds").program("forward");
  EXPECT_EQ(program.sibling(0).name(), "forward");
  auto [code, what] = errorOf([&] { (void)program.sibling(99); });
  EXPECT_EQ(code, ErrorCode::InvalidArgument);
  EXPECT_EQ(what, "INVALID_ARGUMENT: adds has 1 programs; there is no program 99");
}

// A temporary handle is gone before the first turn of a range-based loop over what it has, so it gives what it has away.
TEST(Temporaries, GiveAwayWhatALoopGoesOver) {
  std::vector<std::byte> file = makeAddFile(4).serialize();
  DeviceRef device = Device::open("cpu:threads=1");
  size_t programs = 0;
  for (const Program &program : Binary::fromMemory(file).programs())
    programs += program.name() == "forward";
  EXPECT_EQ(programs, 1u);
  std::string names;
  for (const Value &value : Binary::fromMemory(file).program("forward").inputs())
    names += value.name;
  for (const Value &value : Module(device, Binary::fromMemory(file)).inputs())
    names += value.name;
  EXPECT_EQ(names, "xyxy");
  const Value &output = Binary::fromMemory(file).program("forward").output(0);
  EXPECT_EQ(output.desc().shape, Shape{4});
  int64_t elements = 1;
  for (int64_t extent : Tensor::zeros(device, TensorDesc({2, 3}, ElementType::f32)).shape())
    elements *= extent;
  EXPECT_EQ(elements, 6);
}

// The outputs of one program feed the next without a copy.
TEST_P(ExecutorTest, ChainOfProgramsCopiesNothing) {
  Binary a = Binary::fromMemory(makeAddFile(64).serialize()), b = Binary::fromMemory(makeAddFile(64).serialize());
  Tensor x = ramp({64});
  auto y = submit(device, a.program("forward"), {x, x});
  auto z = submit(device, b.program("forward"), {y[0], x});
  EXPECT_EQ(z[0].data<float>()[3], 2 * (4 * 3 + 3));
  EXPECT_EQ(Executor(device, b.program("forward")).counters().inputsConverted, 0u);
}

// An input that lies otherwise is brought to the declared layout; the caller's
// tensor stays as it was.
TEST_P(ExecutorTest, AlignsInputsItself) {
  Binary binary = Binary::fromMemory(makeAddFile(64).serialize());
  Tensor strided = ramp({64}, 0, Layout{.strides = {3}});
  auto outputs = submit(device, binary.program("forward"), {strided, ramp({64})});
  EXPECT_EQ(outputs[0].data<float>()[10], 40);
  EXPECT_EQ(strided.data<float>()[30], 10);
  SubmitCounters counters = Executor(device, binary.program("forward")).counters();
  EXPECT_EQ(counters.inputsConverted, 1u);
  EXPECT_EQ(counters.convertedBytes, 256u);

  // Memory from elsewhere that is aligned to less than declared is converted.
  alignas(64) float values[65] = {};
  Tensor wrapped = Tensor::wrap(device, TensorDesc({64}, ElementType::f32), values + 1, {});
  submit(device, binary.program("forward"), {wrapped, wrapped});
  EXPECT_EQ(Executor(device, binary.program("forward")).counters().inputsConverted, 3u);

  // So is memory of the device.
  auto storage = Storage::allocate(device, Space::DeviceDram, 65 * 4, 64);
  Tensor shifted = Tensor::in(storage, std::make_shared<const TensorDesc>(
                                           Shape{64}, ElementType::f32, Layout{.offset = 4, .alignment = 4}));
  copyInto(ramp({64}), shifted);
  outputs = submit(device, binary.program("forward"), {shifted, ramp({64})});
  EXPECT_EQ(outputs[0].data<float>()[10], 40);
  EXPECT_EQ(Executor(device, binary.program("forward")).counters().inputsConverted, 4u);
}

// All inputs are checked, in order, before anything happens.
TEST_P(ExecutorTest, WrongInputsAreNamed) {
  Binary binary = Binary::fromMemory(makeAddFile(64).serialize());
  const Program &program = binary.program("forward");
  Tensor x = ramp({64});
  auto wrongShape = errorOf([&] { submit(device, program, {x, ramp({8, 8})}); });
  EXPECT_EQ(wrongShape.first, ErrorCode::LayoutMismatch);
  EXPECT_EQ(wrongShape.second,
            "LAYOUT_MISMATCH: program \"forward\", input 1 (\"y\"): f32[8,8] given, f32[64] declared; "
            "compile for this shape");
  auto wrongType =
      errorOf([&] { submit(device, program, {Tensor::zeros(device, TensorDesc({64}, ElementType::bf16)), x}); });
  EXPECT_EQ(wrongType.first, ErrorCode::LayoutMismatch);
  EXPECT_NE(wrongType.second.find("bf16[64] given, f32[64] declared"), std::string::npos);
  EXPECT_EQ(errorOf([&] { submit(device, program, {x, Tensor()}); }).first, ErrorCode::MissingInput);
  EXPECT_EQ(errorOf([&] { submit(device, program, {x}); }).first, ErrorCode::InvalidArgument);
  DeviceRef other = Device::open("cpu");
  auto elsewhere = errorOf([&] { submit(device, program, {x, Tensor::zeros(other, x.desc())}); });
  EXPECT_EQ(elsewhere.first, ErrorCode::LayoutMismatch);
  EXPECT_NE(elsewhere.second.find("move it with toLayout"), std::string::npos);
  // The strided first input was not converted before the second was refused.
  EXPECT_EQ(errorOf([&] { submit(device, program, {ramp({64}, 0, Layout{.strides = {2}}), ramp({8, 8})}); }).first,
            ErrorCode::LayoutMismatch);
  EXPECT_EQ(Executor(device, program).counters().inputs, 0u);
}

TEST_P(ExecutorTest, IndexOutsideIsAnErrorWithItsPlace) {
  Binary binary = Binary::fromMemory(makeGatherFile(10000).serialize());
  Tensor table = ramp({4});
  Tensor tokens = Tensor::zeros(device, TensorDesc({10000}, ElementType::i64));
  tokens.data<int64_t>()[9999] = 3;
  EXPECT_EQ(submit(device, binary.program("forward"), {table, tokens})[0].data<float>()[9999], 3);
  tokens.data<int64_t>()[7777] = 4;
  auto [code, message] = errorOf([&] { submit(device, binary.program("forward"), {table, tokens}); });
  EXPECT_EQ(code, ErrorCode::IndexOutOfRange);
  EXPECT_EQ(message, "INDEX_OUT_OF_RANGE: program \"forward\", kernel \"gather_f32\" at model.py:12 (wte): argument 1 "
                     "(input \"tokens\") holds an index outside of its table, or a 0 by which whole numbers "
                     "are divided");
}

/// The add file with output "doubled" on input "x".
static TestFile makeAliasFile(int64_t n, bool required) {
  TestFile file = makeAddFile(n);
  auto alias = std::make_unique<schema::AliasT>();
  alias->required = required;
  file.root.programs[0]->aliases.push_back(std::move(alias));
  return file;
}

// An optimizer writes its parameter in place, whoever holds it.
TEST_P(ExecutorTest, RequiredAliasIsWrittenInPlace) {
  Binary binary = Binary::fromMemory(makeAliasFile(64, true).serialize());
  Tensor x = ramp({64}), y = ramp({64});
  uint64_t version = x.storage()->version();
  auto outputs = submit(device, binary.program("forward"), {x, y});
  EXPECT_EQ(outputs[0].storage()->id(), x.storage()->id());
  EXPECT_EQ(x.data<float>()[5], 20);
  EXPECT_EQ(x.storage()->version(), version + 1);

  float values[64] = {};
  Tensor constant = Tensor::wrap(device, TensorDesc({64}, ElementType::f32, Layout{}), values, {}, /*writable=*/false);
  EXPECT_EQ(errorOf([&] { submit(device, binary.program("forward"), {constant, y}); }).first,
            ErrorCode::InvalidArgument);
  // A converted copy would be written and lost.
  auto strided =
      errorOf([&] { submit(device, binary.program("forward"), {ramp({64}, 0, Layout{.strides = {2}}), y}); });
  EXPECT_EQ(strided.first, ErrorCode::LayoutMismatch);
  EXPECT_NE(strided.second.find("written in place"), std::string::npos);
}

// Where it is only allowed, the storage is reused if the caller gave it away.
TEST_P(ExecutorTest, DonatedInputIsReused) {
  Binary binary = Binary::fromMemory(makeAliasFile(64, false).serialize());
  const Program &program = binary.program("forward");
  Tensor x = ramp({64}), y = ramp({64});
  auto kept = submit(device, program, {x, y});
  EXPECT_NE(kept[0].storage()->id(), x.storage()->id());
  EXPECT_EQ(x.data<float>()[5], 5);
  uint64_t id = x.storage()->id();
  std::vector<Tensor> inputs{std::move(x), y};
  auto outputs = submit(device, program, std::move(inputs));
  EXPECT_EQ(outputs[0].storage()->id(), id);
  EXPECT_EQ(outputs[0].data<float>()[5], 20);
  EXPECT_EQ(Executor(device, program).counters().donations, 1u);
}

/// All commands that are not kernels: matmul with bias, fill, strided copy,
/// events, and a free.
static TestFile makeCommandsFile() {
  TestFile file;
  schema::ProgramT &program = file.addProgram("forward");
  uint32_t a = addBuffer(program, schema::BufferKind::input, addInput(program, "a", {2, 3}), 0, 24);
  uint32_t b = addBuffer(program, schema::BufferKind::input, addInput(program, "b", {4, 3}), 0, 48);
  uint32_t c = addBuffer(program, schema::BufferKind::output, addOutput(program, "c", {2, 4}), 0, 32);
  uint32_t t = addBuffer(program, schema::BufferKind::output,
                         addOutput(program, "t", {3, 2}, schema::ElementType::bf16, schema::Role::saved), 0, 12);
  uint32_t f =
      addBuffer(program, schema::BufferKind::output, addOutput(program, "f", {5}, schema::ElementType::i64), 0, 40);
  Bytes biasBytes(16);
  float bias[] = {10, 20, 30, 40};
  std::memcpy(biasBytes.data(), bias, 16);
  uint32_t constant = addBuffer(program, schema::BufferKind::constant,
                                file.addSegment(schema::SegmentKind::constants, biasBytes), 0, 16);
  schema::BlockBeginT block;
  block.name = "h.0";
  addCommand(program, std::move(block));
  schema::MatmulT matmul; // c = a b^T + bias
  matmul.a = view(a, {1, 2, 3}, {6, 3, 1});
  matmul.b = view(b, {1, 3, 4}, {12, 1, 3});
  matmul.c = view(c, {1, 2, 4}, {8, 4, 1});
  matmul.bias = view(constant, {4}, {1});
  addCommand(program, std::move(matmul));
  schema::ToLayoutT copy; // t = bf16(a^T)
  copy.source = view(a, {3, 2}, {1, 3});
  copy.target = view(t, {3, 2}, {2, 1}, 0, schema::ElementType::bf16);
  addCommand(program, std::move(copy));
  schema::SaveT save;
  save.output = 1;
  addCommand(program, std::move(save));
  addCommand(program, schema::FreeT{});
  schema::FillT fill;
  fill.buffer = f;
  fill.pattern = {42, 0, 0, 0, 0, 0, 0, 0};
  addCommand(program, std::move(fill));
  addCommand(program, schema::BlockEndT{});
  return file;
}

namespace {
struct Recorder : EventSink {
  std::vector<std::string> events;
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::BlockBegin &begin) {
    events.push_back("begin " + std::string(begin.block));
  }
  void on(const event::BlockEnd &) { events.push_back("end"); }
  void on(const event::Save &save) {
    events.push_back("save " + save.program.output(save.output).name);
  }
};
} // namespace

TEST_P(ExecutorTest, RunsLibraryCallsCopiesAndFills) {
  Binary binary = Binary::fromMemory(makeCommandsFile().serialize());
  Tensor a = ramp({2, 3}), b = ramp({4, 3}, 1);
  Recorder recorder;
  auto outputs = submit(device, binary.program("forward"), {a, b}, &recorder);
  const float bias[] = {10, 20, 30, 40};
  for (int m = 0; m < 2; ++m)
    for (int n = 0; n < 4; ++n) {
      float expected = bias[n];
      for (int k = 0; k < 3; ++k)
        expected += a.data<float>()[m * 3 + k] * b.data<float>()[n * 3 + k];
      EXPECT_EQ(outputs[0].data<float>()[m * 4 + n], expected);
    }
  for (int i = 0; i < 6; ++i)
    EXPECT_EQ(bf16ToFloat(outputs[1].data<uint16_t>()[i]), a.data<float>()[i % 2 * 3 + i / 2]);
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(outputs[2].data<int64_t>()[i], 42);
  EXPECT_EQ(recorder.events, (std::vector<std::string>{"begin h.0", "save t", "end"}));
}

/// y = a b'^T in block "h.0" and z = y c'^T in block "h.1", where b and c are
/// parameters; then c += y in "h.1", in place.
static TestFile makeBlocksFile() {
  TestFile file;
  schema::ProgramT &program = file.addProgram("forward");
  auto square = [&](const char *name, schema::Role role) {
    uint32_t input = addInput(program, name, {2, 2}, schema::ElementType::f32, role);
    return addBuffer(program, schema::BufferKind::input, input, 0, 16);
  };
  uint32_t a = square("a", schema::Role::input);
  uint32_t b = square("b", schema::Role::frozen), c = square("c", schema::Role::parameter);
  uint32_t y = addBuffer(program, schema::BufferKind::output, addOutput(program, "y", {2, 2}), 0, 16);
  uint32_t z = addBuffer(program, schema::BufferKind::output, addOutput(program, "z", {2, 2}), 0, 16);
  uint32_t cNew = addBuffer(program, schema::BufferKind::output,
                            addOutput(program, "c", {2, 2}, schema::ElementType::f32, schema::Role::parameter), 0, 16);
  schema::AliasT alias;
  alias.input = 2;
  alias.output = 2;
  alias.required = true;
  program.aliases.push_back(std::make_unique<schema::AliasT>(alias));
  auto block = [&](const char *name) {
    schema::BlockBeginT begin;
    begin.name = name;
    addCommand(program, std::move(begin));
  };
  auto matmul = [&](uint32_t left, uint32_t right, uint32_t result, bool accumulate = false) {
    schema::MatmulT matmul;
    matmul.a = view(left, {1, 2, 2}, {4, 2, 1});
    matmul.b = view(right, {1, 2, 2}, {4, 1, 2});
    matmul.c = view(result, {1, 2, 2}, {4, 2, 1});
    matmul.accumulate = accumulate;
    addCommand(program, std::move(matmul));
  };
  schema::BlockEndT end;
  block("h.0");
  matmul(a, b, y);
  end.name = "h.0";
  addCommand(program, schema::BlockEndT(end));
  block("h.1");
  matmul(y, c, z);
  matmul(a, a, cNew, /*accumulate=*/true); // c += a a^T
  end.name = "h.1";
  addCommand(program, schema::BlockEndT(end));
  return file;
}

// A parameter that a sink defers comes when its block begins and is gone when
// the block ends; the result is that of a plain submit, and what is updated in
// place is the tensor that the sink brought.
TEST_P(ExecutorTest, DeferredParametersComeWithTheirBlocks) {
  struct Streamer : EventSink {
    DeviceRef device;
    std::vector<std::string> events;
    std::map<std::string, Tensor> brought;
    void receive(const Event &event) override { deliver(*this, event); }
    void on(const event::OfferInput &offer) {
      events.push_back("defer " + offer.program.input(offer.input).name);
      offer.isDeferred = true;
    }
    void on(const event::BlockBegin &begin) {
      events.push_back("begin " + std::string(begin.block));
    }
    void on(const event::BlockInput &need) {
      const auto &[program, input, value] = need;
      const Value &declared = program.input(input);
      events.push_back("bring " + declared.name);
      value = brought[declared.name] = copyTo(device, value, declared.desc());
    }
    void on(const event::BlockEnd &) {
      for (const auto &[name, tensor] : brought)
        if (tensor.isSoleOwner())
          events.push_back("free " + name);
      events.push_back("end");
    }
  } streamer;
  streamer.device = device;
  Binary binary = Binary::fromMemory(makeBlocksFile().serialize());
  Tensor a = ramp({2, 2}, 1), b = ramp({2, 2}, 3), c = ramp({2, 2}, 5), plainC = ramp({2, 2}, 5);
  for (int run = 0; run < 3; ++run) {
    auto plain = submit(device, binary.program("forward"), {a, b, plainC});
    streamer.events.clear();
    streamer.brought.clear();
    auto outputs = submit(device, binary.program("forward"), {a, b, c}, &streamer);
    EXPECT_EQ(streamer.events, (std::vector<std::string>{"defer b", "defer c", "begin h.0", "bring b", "free b", "end",
                                                         "begin h.1", "bring c", "free b", "free c", "end"}));
    EXPECT_EQ(outputs[2].storage(), c.storage()); // the caller's handle
    EXPECT_EQ(outputs[2].sharedDesc(), c.sharedDesc());
    Tensor updated = toHost(streamer.brought["c"]);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(toHost(outputs[0]).data<float>()[i], toHost(plain[0]).data<float>()[i]);
      EXPECT_EQ(toHost(outputs[1]).data<float>()[i], toHost(plain[1]).data<float>()[i]);
      EXPECT_EQ(updated.data<float>()[i], toHost(plain[2]).data<float>()[i]);
    }
    copyInto(streamer.brought["c"], c); // what a sink does with it
    wait(c);
  }
}

TEST_P(ExecutorTest, DeferredParametersMustComeAsDeclared) {
  struct Streamer : EventSink {
    Tensor given;
    void receive(const Event &event) override { deliver(*this, event); }
    void on(const event::OfferInput &offer) {
      offer.isDeferred = offer.program.input(offer.input).name == "b";
    }
    void on(const event::BlockInput &need) { need.value = given; }
  } streamer;
  Binary binary = Binary::fromMemory(makeBlocksFile().serialize());
  std::vector<Tensor> inputs{ramp({2, 2}), ramp({2, 2}), ramp({2, 2})};
  auto message = [&]() -> std::string {
    try {
      submit(device, binary.program("forward"), inputs, &streamer);
    } catch (const Error &error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(), "MISSING_INPUT: program \"forward\", input 1 (\"b\"): the event sink deferred the tensor and "
                       "brought none; f32[2,2] is needed by block \"h.0\"");
  streamer.given = ramp({2, 3});
  EXPECT_NE(message().find("LAYOUT_MISMATCH: program \"forward\", input 1 (\"b\")"), std::string::npos);
}

TEST(BlockUses, SayWhereParametersAreTouched) {
  BlockUses uses = blockUses(Binary::fromMemory(makeBlocksFile().serialize()).program("forward"));
  ASSERT_EQ(uses.blocks.size(), 2u);
  EXPECT_EQ(uses.blocks[0].name, "h.0");
  EXPECT_EQ(uses.blocks[0].firstTouched, std::vector<uint32_t>{1});
  EXPECT_EQ(uses.blocks[0].lastTouched, std::vector<uint32_t>{1});
  EXPECT_EQ(uses.blocks[1].firstTouched, std::vector<uint32_t>{2});
  EXPECT_EQ(uses.streamable, (std::vector<bool>{false, true, true})); // an input is no parameter
  EXPECT_EQ(uses.written, (std::vector<bool>{false, false, true}));
  // A parameter that is touched outside of blocks too cannot come and go with them.
  TestFile file = makeBlocksFile();
  schema::MatmulT late;
  late.a = view(1, {1, 2, 2}, {4, 2, 1});
  late.b = view(0, {1, 2, 2}, {4, 1, 2});
  late.c = view(4, {1, 2, 2}, {4, 2, 1});
  addCommand(*file.root.programs[0], std::move(late));
  EXPECT_FALSE(blockUses(Binary::fromMemory(file.serialize()).program("forward")).streamable[1]);
}

/// A file of makeBlocksFile whose h.0 gives a temporary `t` = a b^T to h.1, where y = t b^T
/// is made of it in two commands, beside `inner` of h.1 alone.
static TestFile makeResultsFile(std::optional<schema::ElementType> element) {
  TestFile file;
  schema::ProgramT &program = file.addProgram("forward");
  auto square = [&](const char *name, schema::Role role) {
    uint32_t input = addInput(program, name, {2, 2}, schema::ElementType::f32, role);
    return addBuffer(program, schema::BufferKind::input, input, 0, 16);
  };
  uint32_t a = square("a", schema::Role::input), b = square("b", schema::Role::frozen);
  auto arena = std::make_unique<schema::ArenaT>();
  arena->bytes = 192;
  program.arenas.push_back(std::move(arena));
  uint32_t t = addBuffer(program, schema::BufferKind::arena, 0, 64, 16);
  uint32_t inner = addBuffer(program, schema::BufferKind::arena, 0, 128, 16);
  for (uint32_t each : {t, inner})
    if (element)
      program.buffers[each]->element = *element;
  uint32_t s = addOutput(program, "s", {2, 2}, schema::ElementType::f32, schema::Role::saved);
  uint32_t saved = addBuffer(program, schema::BufferKind::output, s, 0, 16);
  uint32_t y = addBuffer(program, schema::BufferKind::output, addOutput(program, "y", {2, 2}), 0, 16);
  auto matmul = [&](uint32_t left, uint32_t result, bool accumulate = false) {
    schema::MatmulT matmul;
    matmul.a = view(left, {1, 2, 2}, {4, 2, 1});
    matmul.b = view(b, {1, 2, 2}, {4, 1, 2});
    matmul.c = view(result, {1, 2, 2}, {4, 2, 1});
    matmul.accumulate = accumulate;
    addCommand(program, std::move(matmul));
  };
  auto block = [&](const char *name, auto &&commands) {
    schema::BlockBeginT begin;
    begin.name = name;
    addCommand(program, std::move(begin));
    commands();
    schema::BlockEndT end;
    end.name = name;
    addCommand(program, std::move(end));
  };
  block("h.0", [&] {
    matmul(a, t);
    matmul(a, saved);
    addCommand(program, schema::SaveT{{}, s});
  });
  block("h.1", [&] {
    matmul(t, inner);
    matmul(inner, y);
    matmul(t, y, /*accumulate=*/true);
  });
  return file;
}

TEST(BlockUses, SayWhatBlocksGive) {
  Program program = Binary::fromMemory(makeResultsFile(schema::ElementType::f32).serialize()).program("forward");
  BlockUses uses = blockUses(program);
  ASSERT_EQ(uses.results.size(), 3u) << "what a block alone reads is none";
  const BlockResult &t = uses.results[0], &saved = uses.results[1], &y = uses.results[2];
  EXPECT_EQ(describe(program, t), "temporary of Matmul");
  EXPECT_EQ(describe(program, saved), "\"s\"");
  EXPECT_EQ(describe(program, y), "\"y\"");
  EXPECT_EQ(std::tuple(t.block, t.output, t.offset, t.bytes, t.isRead), std::tuple(0u, -1, 64u, 16u, true));
  EXPECT_EQ(std::tuple(saved.block, saved.output, saved.isRead), std::tuple(0u, 0, false));
  EXPECT_EQ(std::tuple(y.block, y.output, y.isRead), std::tuple(1u, 1, false));
  EXPECT_EQ(y.command, 8u) << "the last command that writes it";
  EXPECT_EQ(uses.blocks[0].inputsRead, std::vector<uint32_t>{0}) << "parameters are not given to blocks";
  EXPECT_EQ(uses.blocks[1].resultsRead, std::vector<uint32_t>{0});
  EXPECT_TRUE(uses.blocks[1].inputsRead.empty());
  // Integers have no NaN; files before version 0.3 do not tell what temporaries hold.
  for (auto element : {std::optional(schema::ElementType::i32), std::optional<schema::ElementType>()})
    EXPECT_EQ(blockUses(Binary::fromMemory(makeResultsFile(element).serialize()).program("forward")).results.size(),
              2u);
  // What is written in place belongs to who gave it.
  uses = blockUses(Binary::fromMemory(makeBlocksFile().serialize()).program("forward"));
  ASSERT_EQ(uses.results.size(), 2u);
  EXPECT_EQ(uses.results[1].output, 1);
}

// Values that leave a block are told once they are final, before they are handed
// over, and to a sink that wants them alone.
TEST_P(ExecutorTest, ResultsOfBlocksAreTold) {
  struct Watch : EventSink {
    bool wants = true;
    std::vector<std::string> events;
    std::map<uint32_t, std::vector<float>> values;
    void receive(const Event &event) override { deliver(*this, event); }
    void on(const event::OfferResults &offer) { offer.areWatched = wants; }
    void on(const event::BlockResult &written) {
      const auto &[program, result, value] = written;
      events.push_back(describe(program, blockUses(program).results[result]));
      values[result] = {value.data<float>(), value.data<float>() + value.elementCount()};
    }
    void on(const event::BlockEnd &) { events.push_back("end"); }
    void on(const event::Save &save) {
      events.push_back("save");
      save.saved = copyTo(save.saved.device(), save.saved, save.saved.desc()); // as one that spills
    }
  } watch;
  Binary binary = Binary::fromMemory(makeResultsFile(schema::ElementType::f32).serialize());
  Tensor a = ramp({2, 2}, 1), b = ramp({2, 2}, 3);
  for (int run = 0; run < 3; ++run) {
    watch.wants = run != 1;
    watch.events.clear();
    auto outputs = submit(device, binary.program("forward"), {a, b}, &watch);
    std::vector<std::string> expected{"save", "end", "end"};
    if (watch.wants)
      expected = {"temporary of Matmul", "\"s\"", "save", "end", "\"y\"", "end"};
    EXPECT_EQ(watch.events, expected);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(watch.values[0][size_t(i)], outputs[0].data<float>()[i]) << "t and s are the same";
      EXPECT_EQ(watch.values[1][size_t(i)], outputs[0].data<float>()[i]);
      EXPECT_EQ(watch.values[2][size_t(i)], outputs[1].data<float>()[i]);
    }
  }
}

// A given-away input is gone when the program says so, not later.
TEST_P(ExecutorTest, FreeReleasesTheInput) {
  struct Watch : EventSink {
    bool released = false, releasedBeforeEnd = false;
    void receive(const Event &event) override { deliver(*this, event); }
    void on(const event::BlockEnd &) { releasedBeforeEnd = released; }
  } watch;
  Binary binary = Binary::fromMemory(makeCommandsFile().serialize());
  alignas(64) float values[6] = {};
  std::vector<Tensor> inputs;
  inputs.push_back(Tensor::wrap(device, TensorDesc({2, 3}, ElementType::f32), values, [&] { watch.released = true; }));
  inputs.push_back(ramp({4, 3}));
  submit(device, binary.program("forward"), std::move(inputs), &watch);
  EXPECT_TRUE(watch.releasedBeforeEnd);
}

// Executors are handles: they outlive the binary's handle, and two threads
// may run one program.
TEST_P(ExecutorTest, HandlesAndThreads) {
  auto executor = [&] {
    Binary binary = Binary::fromMemory(makeAddFile(1000).serialize());
    return Executor(device, binary.program("forward"));
  }();
  Tensor x = ramp({1000});
  auto work = [&] {
    for (int i = 0; i < 50; ++i)
      ASSERT_EQ(executor.run({x, x})[0].data<float>()[999], 4 * 999);
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(executor.counters().submits, 100u);
}

// Two binaries with kernels of the same symbols keep their own code.
TEST_P(ExecutorTest, BinariesDoNotMix) {
  Binary first = Binary::fromMemory(makeAddFile(16).serialize());
  TestFile swapped = makeAddFile(16);
  swapped.root.kernels[1]->variants[0]->symbol = "double_f32";
  std::optional<Binary> second = Binary::fromMemory(swapped.serialize());
  Tensor x = ramp({16});
  submit(device, first.program("forward"), {x, x});
  submit(device, second->program("forward"), {x, x});
  second.reset();
  EXPECT_EQ(submit(device, first.program("forward"), {x, x})[0].data<float>()[2], 8);
}

// A file keeps what it has made ready for a device, and the device with it, until it is
// told or has run on enough others.
TEST(ExecutorDevices, FilesLetGoOfDevices) {
  Binary binary = Binary::fromMemory(makeAddFile(64).serialize());
  auto runOn = [&](const DeviceRef &device) {
    Tensor x = Tensor::zeros(device, TensorDesc({64}, ElementType::f32));
    wait(submit(device, binary.program("forward"), {x, x})[0]); // what is at work is kept
    return std::weak_ptr<Device>(device);
  };
  DeviceRef first = Device::open("sim:dram=1MiB");
  std::weak_ptr<Device> released = runOn(first);
  releasePrograms(first);
  first.reset();
  EXPECT_TRUE(released.expired());

  DeviceRef used = Device::open("sim:dram=1MiB");
  std::vector<std::weak_ptr<Device>> others;
  for (size_t i = 0; i < 3 * mostPreparedDevices; ++i) {
    others.push_back(runOn(Device::open("sim:dram=1MiB")));
    runOn(used);
  }
  EXPECT_EQ(std::ranges::count_if(others, [](const auto &device) { return !device.expired(); }),
            int64_t(mostPreparedDevices) - 1);
  EXPECT_TRUE(others.front().expired());
  EXPECT_EQ(Executor(used, binary.program("forward")).counters().submits, 3 * mostPreparedDevices);
}

// Nor does it wait for what a device is at, which may wait for what the caller does next.
TEST(ExecutorDevices, WhoRunsOnManyDevicesWaitsForNone) {
  Binary binary = Binary::fromMemory(makeAddFile(64).serialize());
  auto runOn = [&](const DeviceRef &device) {
    Tensor x = Tensor::zeros(device, TensorDesc({64}, ElementType::f32));
    return submit(device, binary.program("forward"), {x, x})[0];
  };
  for (const char *name : {"sim:dram=1MiB", "sim:streams,dram=1MiB", "sim:dram=1MiB,adversarial=2"}) {
    DeviceRef busy = Device::open(name);
    std::promise<void> end;
    std::atomic<bool> isFree = false;
    Tensor result;
    std::thread worker([&] {
      busy->enqueue(Queue::Compute, {}, {[&] {
                      busy->call([&] {
                        isFree = end.get_future().wait_for(std::chrono::seconds(10)) == std::future_status::ready;
                      });
                    }});
      wait(result = runOn(busy));
    });
    // Until it has the program, and holds the device's lane or has left its run in the queue.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    for (size_t i = 0; i < 2 * mostPreparedDevices; ++i)
      wait(runOn(Device::open("sim:dram=1MiB")));
    end.set_value();
    worker.join();
    EXPECT_TRUE(isFree) << name;
  }
}
