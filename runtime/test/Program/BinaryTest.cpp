//===- BinaryTest.cpp - good files load, others say why not ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/Binary.h"
#include "Sample.h"
#include "TestFile.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <numeric>
#include <random>

using namespace segue;
using namespace segue::test;

/// What() of the error that loading gives, or "".
static std::string loadError(std::span<const std::byte> file, ErrorCode *code = nullptr) {
  try {
    Binary::fromMemory(file);
  } catch (const Error &error) {
    if (code)
      *code = error.code();
    return error.what();
  }
  return "";
}

TEST(Binary, ShowsWhatIsInIt) {
  TestFile file = makeAddFile(32);
  Binary binary = Binary::fromMemory(file.serialize());
  ASSERT_EQ(binary.programs().size(), 1u);
  const Program &program = binary.program("forward");
  EXPECT_EQ(program.input(1).name, "y");
  EXPECT_EQ(program.output(0).desc().str(), "f32[32]");
  EXPECT_EQ(program.findInput("y"), 1);
  EXPECT_EQ(program.findInput("z"), -1);
  EXPECT_EQ(program.arenaBytes(), 128u);
  EXPECT_EQ(binary.kernels().size(), 2u);
  EXPECT_EQ(binary.kernels()[0].isas, std::vector<std::string>{"x86-64-v3"});
  EXPECT_EQ(binary.segments()[0].kind, "elf");
  EXPECT_EQ(program.commandCounts()[0].count, 2u);
  try {
    binary.program("backward");
    FAIL();
  } catch (const Error &error) {
    EXPECT_STREQ(error.what(), "NAME_UNKNOWN: memory has no program \"backward\"; it has \"forward\"");
  }
}

TEST(Binary, FilesAreMapped) {
  Bytes bytes = makeAddFile(32).serialize();
  auto path = std::filesystem::path(testing::TempDir()) / "mapped.segue";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char *>(bytes.data()), std::streamsize(bytes.size()));
  Binary binary = Binary::load(path);
  EXPECT_EQ(binary.name(), path.string());
  EXPECT_EQ(binary.bytes(), bytes.size());
  std::filesystem::remove(path);
  EXPECT_EQ(binary.program("forward").inputs().size(), 2u) << "the mapping outlives the name";
}

TEST(Binary, MissingFileIsNamed) {
  try {
    Binary::load("/no/such/file.segue");
    FAIL();
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::IoFailed);
    EXPECT_STREQ(error.what(), "IO_FAILED: /no/such/file.segue: cannot open: No such file or directory");
  }
  EXPECT_THROW(Binary::load("/tmp"), Error);
}

// A small file without native code, for the tests that read it thousands of
// times.
static Bytes smallFile() {
  TestFile file;
  schema::ProgramT &program = file.addProgram("forward");
  uint32_t x = addBuffer(program, schema::BufferKind::input, addInput(program, "x", {4, 6}), 0, 96);
  uint32_t y = addBuffer(program, schema::BufferKind::output, addOutput(program, "y", {6, 4}), 0, 96);
  schema::ToLayoutT copy;
  copy.source = view(x, {6, 4}, {1, 6});
  copy.target = view(y, {6, 4}, {4, 1});
  addCommand(program, std::move(copy));
  auto location = std::make_unique<schema::LocationT>();
  location->file = "model.py";
  location->line = 3;
  file.root.locations.push_back(std::move(location));
  program.commands[0]->location = 0;
  file.addSegment(schema::SegmentKind::constants, Bytes(100, std::byte(7)));
  return file.serialize();
}

/// How the byte at `at` is changed: to each other value, or to a sample of them, or with SEGUE_SAMPLE, for builds that
/// take many times as long, in one bit, which `turn` and the place choose.
static std::vector<int> byteChanges(size_t at, size_t turn = 0) {
  if (std::getenv("SEGUE_SAMPLE"))
    return {1 << (at + turn) % 8};
  std::vector<int> changes(255);
  std::iota(changes.begin(), changes.end(), 1);
  std::erase_if(changes, [at](int change) { return !isDrawn(at + uint64_t(change), 3); });
  return changes;
}

TEST(Binary, CutAtEveryLength) {
  Bytes file = smallFile();
  ASSERT_EQ(loadError(file), "");
  for (size_t length = 0; length < file.size(); ++length) {
    ErrorCode code{};
    ASSERT_NE(loadError(std::span(file).first(length), &code), "") << length;
    ASSERT_EQ(code, ErrorCode::FileCorrupt) << length;
  }
}

// All 255 others at every place.
TEST(Binary, EveryOneByteChangeIsFound) {
  Bytes file = smallFile();
  for (size_t at = 0; at < file.size(); ++at)
    for (int change : byteChanges(at)) {
      file[at] ^= std::byte(change);
      ErrorCode code{};
      ASSERT_NE(loadError(file, &code), "") << "byte " << at << " changed by " << change;
      ASSERT_EQ(code, ErrorCode::FileCorrupt);
      file[at] ^= std::byte(change);
    }
}

// FlatBuffers verifies where the count of a vector lies. Four bytes on, the first
// extent is taken for the count, and the numbers are no longer aligned.
TEST(Binary, NumbersThatAreNotAligned) {
  Bytes file = smallFile();
  const schema::Binary *root = schema::GetSizePrefixedBinary(file.data());
  const schema::TensorDesc *desc = root->programs()->Get(0)->inputs()->Get(0)->desc();
  auto *table = reinterpret_cast<flatbuffers::Table *>(const_cast<schema::TensorDesc *>(desc));
  uint8_t *field = table->GetAddressOf(schema::TensorDesc::VT_SHAPE);
  flatbuffers::WriteScalar(field, flatbuffers::ReadScalar<uint32_t>(field) + 4);
  reseal(file);
  ErrorCode code{};
  EXPECT_NE(loadError(file, &code).find("numbers that are not aligned"), std::string::npos) << loadError(file);
  EXPECT_EQ(code, ErrorCode::FileCorrupt);
}

/// Reads everything that a loaded binary shows.
static void inspectAll(const Binary &binary) {
  size_t seen = binary.producer().size() + binary.options().size() + binary.kernels().size() + binary.segments().size();
  for (const Program &program : binary.programs()) {
    for (const Value &value : program.inputs())
      seen += value.desc().str().size() + value.desc().hash() % 2 + value.location.size();
    for (const Value &value : program.outputs())
      seen += value.desc().str().size();
    seen += program.matmulFlops() % 2 + program.commandCounts().size() + program.savePoints().size();
  }
  volatile size_t sink = seen;
  (void)sink;
}

/// Runs the first program on zeros, as far as they are small.
static void runFirst(const DeviceRef &device, const Binary &binary) {
  const Program &program = binary.programs().at(0);
  std::vector<Tensor> inputs;
  for (const Value &input : program.inputs())
    if (input.desc().spanBytes() < (1 << 20))
      inputs.push_back(Tensor::zeros(device, input.desc()));
  for (const Tensor &output : submit(device, program, inputs))
    wait(output);
}

// An attacker can make the hashes right. Whatever he changes, a file either
// is refused with a typed error or can be inspected and run within its
// buffers (the address sanitizer watches). All 255 others at every place.
static const char *const hostileDevices[] = {
    "cpu:threads=1",
    "sim:latency=0s,link=100GB/s,threads=1",
    "sim:latency=0s,link=100GB/s,threads=1,adversarial=3",
    "sim:streams,latency=0s,link=100GB/s,threads=1",
    "sim:streams,latency=0s,link=100GB/s,threads=1,adversarial=3",
};
TEST(HostileFile, EveryByteChangedAndResealed) {
  Bytes file = smallFile();
  std::vector<DeviceRef> devices;
  for (const char *spec : hostileDevices)
    devices.push_back(Device::open(spec));
  size_t loaded = 0;
  std::vector<size_t> ran(devices.size());
  auto attempt = [](auto part) {
    try {
      part();
      return true;
    } catch (const Error &) {
    } catch (const std::out_of_range &) { // no program is left
    }
    return false;
  };
  /// Loads the file with one byte changed, once, and runs it on devices begin to end.
  auto play = [&](size_t at, int change, size_t begin, size_t end) {
    Bytes changed = file;
    changed[at] ^= std::byte(change);
    reseal(changed);
    attempt([&] {
      Binary binary = Binary::fromMemory(changed);
      inspectAll(binary);
      ++loaded;
      for (size_t device = begin; device < end; ++device)
        ran[device] += attempt([&] { runFirst(devices[device], binary); });
    });
  };
  for (size_t at = 0; at + 32 < file.size(); ++at)
    if (std::getenv("SEGUE_SAMPLE")) {
      for (size_t device = 0; device < devices.size(); ++device)
        for (int change : byteChanges(at, device))
          play(at, change, device, device + 1);
    } else {
      for (int change : byteChanges(at))
        play(at, change, 0, devices.size());
    }
  for (size_t device = 0; device < devices.size(); ++device) {
    devices[device]->drain();
    EXPECT_GT(ran[device], 0u) << hostileDevices[device];
  }
  EXPECT_GT(loaded, 0u) << "padding and defaults may change";
}

// Nothing that is written into a file makes its code run where the caller has
// not allowed native kernels: every value of every byte around the code.
TEST(Binary, EveryOneByteChangeWithCodeThatIsNotAllowed) {
  Bytes file = makeAddFile(8).serialize();
  DeviceRef device = Device::open("cpu:threads=1");
  SegmentInfo code = Binary::fromMemory(file).segments().at(0);
  ASSERT_EQ(code.kind, "elf");
  size_t refused = 0;
  for (size_t at = 0; at + 32 < file.size(); ++at) {
    bool inCode = at >= code.offset && at < code.offset + code.bytes;
    for (int change : inCode ? std::vector<int>() : byteChanges(at)) {
      Bytes changed = file;
      changed[at] ^= std::byte(change);
      reseal(changed);
      try {
        Binary binary = Binary::fromMemory(changed, {.nativeCode = NativeCode::Refuse});
        inspectAll(binary);
        runFirst(device, binary);
        for (const CommandCount &command : binary.programs()[0].commandCounts())
          ASSERT_NE(command.kind, "launch") << "byte " << at << " changed by " << change;
      } catch (const Error &error) {
        refused += error.code() == ErrorCode::NativeCodeRefused;
      } catch (const std::out_of_range &) { // no program is left
      }
    }
  }
  EXPECT_GT(refused, 0u);
}

// The major number must match, an older minor loads, a newer one is refused;
// so it is with the vocabulary of layouts.
TEST(Binary, OtherVersionsAreRefusedByName) {
  TestFile file = makeAddFile(4);
  file.root.version_major = 9;
  ErrorCode code{};
  EXPECT_EQ(loadError(file.serialize(), &code), "VERSION_UNSUPPORTED: memory: version 9.3; this runtime reads 0.x; "
                                                "compile it again with this release");
  EXPECT_EQ(code, ErrorCode::VersionUnsupported);
  file.root.version_major = 0;
  file.root.version_minor = 77;
  EXPECT_EQ(loadError(file.serialize(), &code),
            "VERSION_UNSUPPORTED: memory: version 0.77; this runtime reads up to 0.3; "
            "update the runtime, or compile the file with the older release");
  EXPECT_EQ(code, ErrorCode::VersionUnsupported);
  file.root.version_minor = 2;
  file.root.layout_vocabulary = 5;
  EXPECT_EQ(loadError(file.serialize(), &code),
            "VERSION_UNSUPPORTED: memory: layout vocabulary 5; this runtime knows up to 3; update the runtime");
  EXPECT_EQ(code, ErrorCode::VersionUnsupported);
  file.root.layout_vocabulary = 0;
  file.root.version_minor = 1;
  EXPECT_EQ(loadError(file.serialize()), "");
}

// Files of 0.1 have no interface hash: it is made at load.
TEST(Binary, HashesOfTheSignature) {
  TestFile file = makeAddFile(4);
  Binary binary = Binary::fromMemory(file.serialize());
  const Program &program = binary.program("forward");
  EXPECT_NE(program.signatureHash(), 0u);
  EXPECT_NE(program.interfaceHash(), program.signatureHash());
  file.root.version_minor = 1;
  file.hashSignatures = false;
  file.root.programs[0]->interface_hash = 0;
  EXPECT_EQ(Binary::fromMemory(file.serialize()).program("forward").interfaceHash(), program.interfaceHash());

  // A layout belongs to the signature and not to the interface.
  file.hashSignatures = true;
  file.root.version_minor = 2;
  file.root.programs[0]->inputs[0]->desc->layout->space = schema::Space::device_l1;
  Binary moved = Binary::fromMemory(file.serialize());
  EXPECT_EQ(moved.program("forward").interfaceHash(), program.interfaceHash());
  EXPECT_NE(moved.program("forward").signatureHash(), program.signatureHash());
}

TEST(Binary, AnotherKindOfFileIsSaidSo) {
  Bytes text(1000, std::byte('x'));
  EXPECT_NE(loadError(text).find("another kind of file"), std::string::npos);
}

/// y = a b, [2,3,4] as [1,6,4], with the alternatives of y's layout.
static TestFile makeMatmulFile(std::vector<std::vector<int64_t>> alternatives, bool bias = false) {
  TestFile file;
  schema::ProgramT &program = file.addProgram("forward");
  uint32_t a = addBuffer(program, schema::BufferKind::input, addInput(program, "a", {6, 5}), 0, 120);
  uint32_t b = addBuffer(program, schema::BufferKind::input, addInput(program, "b", {5, 4}), 0, 80);
  uint32_t y = addBuffer(program, schema::BufferKind::output, addOutput(program, "y", {2, 3, 4}), 0, 96);
  for (std::vector<int64_t> &strides : alternatives) {
    program.outputs[0]->alternatives.push_back(std::make_unique<schema::LayoutT>());
    program.outputs[0]->alternatives.back()->strides = strides;
  }
  schema::MatmulT matmul;
  matmul.a = view(a, {1, 6, 5}, {30, 5, 1});
  matmul.b = view(b, {1, 5, 4}, {20, 4, 1});
  matmul.c = view(y, {1, 6, 4}, {24, 4, 1});
  if (bias)
    matmul.bias = view(b, {4}, {1});
  addCommand(program, std::move(matmul));
  return file;
}

// Rows may be padded, and rows and columns may change places; what one stride
// of the view cannot step through may not.
TEST(Binary, AlternativesOfAMatmul) {
  EXPECT_EQ(loadError(makeMatmulFile({{12, 4, 1}, {24, 8, 1}, {3, 1, 6}, {3, 1, 8}}).serialize()), "");
  EXPECT_NE(loadError(makeMatmulFile({{16, 4, 1}}).serialize()), "") << "two strides for m";
  EXPECT_NE(loadError(makeMatmulFile({{4, 8, 1}}).serialize()), "") << "m in the other order";
  EXPECT_NE(loadError(makeMatmulFile({{24, 8, 2}}).serialize()), "") << "neither m nor n is contiguous";
  EXPECT_EQ(loadError(makeMatmulFile({{24, 8, 1}}, true).serialize()), "");
  EXPECT_NE(loadError(makeMatmulFile({{3, 1, 6}}, true).serialize()), "") << "the bias lies along n";

  TestFile accumulates = makeMatmulFile({{24, 8, 1}});
  accumulates.root.programs[0]->commands[0]->body.AsMatmul()->accumulate = true;
  EXPECT_NE(loadError(accumulates.serialize()), "") << "reads what it writes";
  TestFile read = makeMatmulFile({{24, 8, 1}});
  schema::MatmulT matmul(*read.root.programs[0]->commands[0]->body.AsMatmul());
  std::swap(matmul.a->buffer, matmul.c->buffer);
  addCommand(*read.root.programs[0], std::move(matmul));
  EXPECT_NE(loadError(read.serialize()), "") << "another command reads it";
  TestFile aliased = makeMatmulFile({{24, 8, 1}});
  auto &program = *aliased.root.programs[0];
  program.aliases.push_back(std::make_unique<schema::AliasT>());
  program.aliases[0]->input = addInput(program, "old", {2, 3, 4});
  program.aliases[0]->required = true;
  EXPECT_NE(loadError(aliased.serialize()).find("alternative 0: the output lies in the storage of an input"),
            std::string::npos);

  Binary binary = Binary::fromMemory(makeMatmulFile({{24, 8, 1}, {3, 1, 6}}).serialize());
  const Value &y = binary.program("forward").output(0);
  ASSERT_EQ(y.alternatives.size(), 2u);
  EXPECT_EQ(y.alternatives[1]->str(), "f32[2,3,4] strides [3,1,6]");
}

// A copy of the whole ends in any layout; a space may always be another.
TEST(Binary, AlternativesOfACopy) {
  TestFile file;
  schema::ProgramT &program = file.addProgram("forward");
  uint32_t x = addBuffer(program, schema::BufferKind::input, addInput(program, "x", {4, 6}), 0, 96);
  uint32_t y = addBuffer(program, schema::BufferKind::output, addOutput(program, "y", {4, 6}), 0, 96);
  auto offer = [&](schema::ValueT &value) -> schema::LayoutT & {
    return *value.alternatives.emplace_back(std::make_unique<schema::LayoutT>());
  };
  offer(*program.inputs[0]).space = schema::Space::device_l1;
  offer(*program.outputs[0]).space = schema::Space::device_l1;
  offer(*program.outputs[0]).tile = {2, 2};
  offer(*program.outputs[0]).storage = schema::Storage::int8_row;
  offer(*program.outputs[0]).strides = {1, 4};
  schema::ToLayoutT copy;
  copy.source = view(x, {4, 6}, {6, 1});
  copy.target = view(y, {4, 6}, {6, 1});
  addCommand(program, std::move(copy));
  EXPECT_EQ(loadError(file.serialize()), "");

  // Through a view of other dimensions only strides can change.
  auto &target = program.commands[0]->body.AsToLayout()->target;
  auto &source = program.commands[0]->body.AsToLayout()->source;
  target->shape = source->shape = {2, 2, 6};
  target->strides = source->strides = {12, 6, 1};
  EXPECT_NE(loadError(file.serialize()).find("alternative 1"), std::string::npos);
  program.outputs[0]->alternatives.erase(program.outputs[0]->alternatives.begin() + 1,
                                         program.outputs[0]->alternatives.begin() + 3);
  EXPECT_EQ(loadError(file.serialize()), "");
}

// A service may give up the memory of a saved value: since 0.2 nothing uses it
// afterwards. Older files said only that the value was final.
TEST(Binary, NothingUsesASavedValue) {
  TestFile file = makeAddFile(4);
  schema::ProgramT &program = *file.root.programs[0];
  program.outputs[0]->role = schema::Role::saved;
  addCommand(program, schema::SaveT{});
  EXPECT_EQ(loadError(file.serialize()), "");
  auto isOutput = [](const auto &buffer) { return buffer->kind == schema::BufferKind::output; };
  schema::FillT fill;
  fill.buffer = uint32_t(std::ranges::find_if(program.buffers, isOutput) - program.buffers.begin());
  fill.pattern = {0};
  addCommand(program, std::move(fill));
  std::rotate(program.commands.begin(), program.commands.end() - 2, program.commands.end());
  std::swap(program.commands[0], program.commands[1]); // filled, saved, and written once more
  EXPECT_NE(loadError(file.serialize()).find("command 3 (Launch): uses output 0 after it was saved"),
            std::string::npos);
  file.root.version_minor = 1;
  EXPECT_EQ(loadError(file.serialize()), "");
}

// The file loads and can be looked at; its code is not run.
TEST(Binary, NativeKernelsOnlyIfAllowed) {
  Binary binary = Binary::fromMemory(makeAddFile(8).serialize(), LoadOptions{.nativeCode = NativeCode::Refuse});
  EXPECT_EQ(binary.kernels().size(), 2u);
  try {
    Executor(Device::open("cpu"), binary.program("forward"));
    FAIL();
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::NativeCodeRefused);
  }
}

TEST(Binary, KernelMistakesAreNamed) {
  auto message = [](TestFile file) -> std::string {
    Binary binary = Binary::fromMemory(file.serialize());
    try {
      Executor(Device::open("cpu"), binary.program("forward"));
    } catch (const Error &error) {
      return error.what();
    }
    return "";
  };
  TestFile noSymbol = makeAddFile(8);
  noSymbol.root.kernels[0]->variants[0]->symbol = "nothing";
  EXPECT_NE(message(std::move(noSymbol)).find("kernel \"add_f32\": its segment has no symbol \"nothing\""),
            std::string::npos);
  TestFile noVariant = makeAddFile(8);
  noVariant.root.kernels[0]->variants.clear();
  EXPECT_NE(message(std::move(noVariant))
                .find("UNSUPPORTED: memory: program \"forward\": memory: kernel \"add_f32\" has no code"),
            std::string::npos);
  TestFile noElf = makeAddFile(8);
  noElf.segments[0].assign(100, std::byte(1));
  noElf.root.segments.clear();
  Bytes bytes = noElf.segments[0];
  noElf.segments.clear();
  noElf.addSegment(schema::SegmentKind::elf, bytes);
  EXPECT_NE(message(std::move(noElf)).find("segment 0: cannot be mapped"), std::string::npos);
}
