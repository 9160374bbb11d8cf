//===- BinaryTest.cpp - good files load, others say why not ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/Binary.h"
#include "TestFile.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Executor.h"
#include <cstring>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
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

TEST(Binary, CutAtEveryLength) {
  Bytes file = smallFile();
  ASSERT_EQ(loadError(file), "");
  for (size_t length = 0; length < file.size(); ++length) {
    ErrorCode code{};
    ASSERT_NE(loadError(std::span(file).first(length), &code), "") << length;
    ASSERT_EQ(code, ErrorCode::FileCorrupt) << length;
  }
}

TEST(Binary, EveryBitFlippedIsFound) {
  Bytes file = smallFile();
  for (size_t at = 0; at < file.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      file[at] ^= std::byte(1 << bit);
      ErrorCode code{};
      ASSERT_NE(loadError(file, &code), "") << "byte " << at << " bit " << bit;
      ASSERT_EQ(code, ErrorCode::FileCorrupt);
      file[at] ^= std::byte(1 << bit);
    }
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

// An attacker can make the hashes right. Whatever he changes, a file either
// is refused with a typed error or can be inspected and run within its
// buffers (the address sanitizer watches).
TEST(Binary, EveryByteChangedAndResealed) {
  Bytes file = smallFile();
  DeviceRef device = Device::open("cpu:threads=1");
  size_t loaded = 0;
  std::mt19937 random(3);
  for (size_t at = 0; at + 32 < file.size(); ++at)
    for (int value : {0, 1, 0x7f, 0x80, 0xff, int(random() % 256)}) {
      Bytes changed = file;
      changed[at] = std::byte(value);
      reseal(changed);
      try {
        Binary binary = Binary::fromMemory(changed);
        inspectAll(binary);
        ++loaded;
        const Program &program = binary.programs().at(0);
        std::vector<Tensor> inputs;
        for (const Value &input : program.inputs())
          if (input.desc().spanBytes() < (1 << 20))
            inputs.push_back(Tensor::zeros(device, input.desc()));
        submit(device, program, inputs);
      } catch (const Error &) {
      } catch (const std::out_of_range &) { // no program is left
      }
    }
  EXPECT_GT(loaded, 0u) << "padding and defaults may change";
}

TEST(Binary, OtherVersionsAreRefusedByName) {
  TestFile file = makeAddFile(4);
  file.root.version_major = 9;
  ErrorCode code{};
  EXPECT_EQ(loadError(file.serialize(), &code), "VERSION_UNSUPPORTED: memory: version 9.1; this runtime reads 0.x; "
                                                "compile it again with this release");
  EXPECT_EQ(code, ErrorCode::VersionUnsupported);
  file.root.version_major = 0;
  file.root.layout_vocabulary = 5;
  loadError(file.serialize(), &code);
  EXPECT_EQ(code, ErrorCode::VersionUnsupported);
  // A later minor version that uses nothing new is read.
  file.root.layout_vocabulary = 0;
  file.root.version_minor = 77;
  EXPECT_EQ(loadError(file.serialize()), "");
}

TEST(Binary, AnotherKindOfFileIsSaidSo) {
  Bytes text(1000, std::byte('x'));
  EXPECT_NE(loadError(text).find("another kind of file"), std::string::npos);
}

namespace {
/// One rule of the format: a change that breaks it, and what the message says.
struct Rule {
  const char *name;
  std::function<void(TestFile &, schema::ProgramT &)> breakIt;
  const char *message;
};
} // namespace

static schema::LaunchT &launchOf(schema::ProgramT &program, size_t i) { return *program.commands[i]->body.AsLaunch(); }

static const Rule rules[] = {
    {"kernel index", [](TestFile &, schema::ProgramT &p) { launchOf(p, 0).kernel = 7; },
     "command 0 (Launch): kernel 7 of 2"},
    {"argument count", [](TestFile &, schema::ProgramT &p) { launchOf(p, 0).args.pop_back(); },
     "2 arguments for kernel \"add_f32\" of 3"},
    {"buffer index", [](TestFile &, schema::ProgramT &p) { launchOf(p, 1).args[0] = 4; }, "buffer 4 of 4"},
    {"range", [](TestFile &, schema::ProgramT &p) { launchOf(p, 0).range = 33; },
     "argument 0 needs 132 bytes of a buffer of 128"},
    {"range overflow", [](TestFile &, schema::ProgramT &p) { launchOf(p, 0).range = uint64_t(INT64_MAX); },
     "of a buffer of 128"},
    {"grain", [](TestFile &, schema::ProgramT &p) { launchOf(p, 0).grain = 0; }, "grain 0"},
    {"launch offset", [](TestFile &, schema::ProgramT &p) { launchOf(p, 0).offsets = {0, 4, 0}; },
     "argument 1 needs 128 bytes of a buffer of 128"},
    {"offset count", [](TestFile &, schema::ProgramT &p) { launchOf(p, 0).offsets = {0}; }, "1 offsets"},
    {"writes an input",
     [](TestFile &, schema::ProgramT &p) { std::swap(launchOf(p, 0).args[0], launchOf(p, 0).args[2]); },
     "writes input 0, which no output is required to alias"},
    {"use after free",
     [](TestFile &, schema::ProgramT &p) {
       addCommand(p, schema::FreeT{});
       std::rotate(p.commands.begin(), p.commands.end() - 1, p.commands.end());
     },
     "uses input 0 after it was freed"},
    {"input bytes", [](TestFile &, schema::ProgramT &p) { p.buffers[0]->bytes = 129; }, "129 bytes of an input of 128"},
    {"input index", [](TestFile &, schema::ProgramT &p) { p.buffers[0]->index = 2; }, "buffer 0: input 2 of 2"},
    {"arena", [](TestFile &, schema::ProgramT &p) { p.buffers[2]->offset = 1; }, "at 1 of an arena of 128"},
    {"arena overflow", [](TestFile &, schema::ProgramT &p) { p.buffers[2]->offset = UINT64_MAX; },
     "of an arena of 128"},
    {"constant of code",
     [](TestFile &, schema::ProgramT &p) {
       p.buffers[0]->kind = schema::BufferKind::constant;
       p.buffers[0]->index = 0;
     },
     "its segment holds no constants"},
    {"two arenas", [](TestFile &, schema::ProgramT &p) { p.arenas.push_back(std::make_unique<schema::ArenaT>()); },
     "2 arenas"},
    {"negative extent", [](TestFile &, schema::ProgramT &p) { p.inputs[0]->desc->shape = {-32}; },
     "input 0 (\"x\"): INVALID_ARGUMENT: f32[-32]"},
    {"huge shape",
     [](TestFile &, schema::ProgramT &p) { p.inputs[0]->desc->shape = {int64_t(1) << 40, int64_t(1) << 40}; },
     "below 2^63"},
    {"same name", [](TestFile &, schema::ProgramT &p) { p.inputs[1]->name = "x"; }, "its name is taken"},
    {"location", [](TestFile &, schema::ProgramT &p) { p.commands[0]->location = 3; }, "location 3 of 0"},
    {"alias shape",
     [](TestFile &, schema::ProgramT &p) {
       p.aliases.push_back(std::make_unique<schema::AliasT>());
       p.inputs[0]->desc->shape = {16, 2};
     },
     "alias 0: joins f32[16,2] and f32[32]"},
    {"alias index",
     [](TestFile &, schema::ProgramT &p) {
       p.aliases.push_back(std::make_unique<schema::AliasT>());
       p.aliases[0]->output = 1;
     },
     "alias 0: output 1 of 1"},
    {"open block",
     [](TestFile &, schema::ProgramT &p) {
       schema::BlockBeginT block;
       block.name = "h.0";
       addCommand(p, std::move(block));
     },
     "1 blocks are not closed"},
    {"closed block", [](TestFile &, schema::ProgramT &p) { addCommand(p, schema::BlockEndT{}); }, "was not opened"},
    {"save of an output", [](TestFile &, schema::ProgramT &p) { addCommand(p, schema::SaveT{}); }, "is no saved value"},
    {"save point",
     [](TestFile &, schema::ProgramT &p) { p.save_points.push_back(std::make_unique<schema::SavePointT>()); },
     "backward has no input 0"},
    {"kernel sizes", [](TestFile &f, schema::ProgramT &) { f.root.kernels[0]->bytes_per_unit.pop_back(); },
     "kernel \"add_f32\": the sizes"},
    {"kernel outputs", [](TestFile &f, schema::ProgramT &) { f.root.kernels[0]->outputs = 4; }, "4 outputs of 3"},
    {"variant segment", [](TestFile &f, schema::ProgramT &) { f.root.kernels[0]->variants[0]->segment = 1; },
     "segment 1 of 1"},
    {"variant kind", [](TestFile &f, schema::ProgramT &) { f.root.kernels[0]->variants[0]->isa = schema::Isa::ptx; },
     "another kind of code"},
    {"segment hash", [](TestFile &f, schema::ProgramT &) { f.root.segments[0]->hash ^= 1; },
     "segment 0: its hash does not match"},
    {"segment length", [](TestFile &f, schema::ProgramT &) { f.root.segments[0]->length = UINT64_MAX; },
     "segment 0: 18446744073709551615 bytes"},
    {"two programs", [](TestFile &f, schema::ProgramT &) { f.addProgram("forward"); },
     "two programs are called \"forward\""},
    {"fill pattern",
     [](TestFile &, schema::ProgramT &p) {
       schema::FillT fill;
       fill.buffer = 2;
       fill.pattern = {1, 2, 3};
       addCommand(p, std::move(fill));
     },
     "a pattern of 3 bytes"},
    {"view outside",
     [](TestFile &, schema::ProgramT &p) {
       schema::ToLayoutT copy;
       copy.source = view(0, {4, 8}, {9, 1});
       copy.target = view(2, {4, 8}, {8, 1});
       addCommand(p, std::move(copy));
     },
     "source: 140 bytes at 0 of a buffer of 128"},
    {"view meets itself",
     [](TestFile &, schema::ProgramT &p) {
       schema::ToLayoutT copy;
       copy.source = view(0, {4, 8}, {8, 1});
       copy.target = view(2, {4, 8}, {0, 1});
       addCommand(p, std::move(copy));
     },
     "target: is written and has two elements in one place"},
    {"view misaligned",
     [](TestFile &, schema::ProgramT &p) {
       schema::ToLayoutT copy;
       copy.source = view(0, {4}, {1}, 2);
       copy.target = view(2, {4}, {1});
       addCommand(p, std::move(copy));
     },
     "source: elements are not aligned"},
    {"matmul shapes",
     [](TestFile &, schema::ProgramT &p) {
       schema::MatmulT matmul;
       matmul.a = view(0, {1, 4, 8}, {32, 8, 1});
       matmul.b = view(1, {1, 4, 8}, {32, 8, 1});
       matmul.c = view(2, {1, 4, 8}, {32, 8, 1});
       addCommand(p, std::move(matmul));
     },
     "the shapes of a, b and c do not fit together"},
    {"matmul rank",
     [](TestFile &, schema::ProgramT &p) {
       schema::MatmulT matmul;
       matmul.a = view(0, {4, 8}, {8, 1});
       matmul.b = view(1, {1, 8, 4}, {32, 4, 1});
       matmul.c = view(2, {1, 4, 4}, {16, 4, 1});
       addCommand(p, std::move(matmul));
     },
     "a: 2 dimensions, 3 needed"},
};

// Each rule alone is broken; the message names the place and the numbers.
TEST(Binary, EachRuleIsChecked) {
  for (const Rule &rule : rules) {
    TestFile file = makeAddFile(32);
    rule.breakIt(file, *file.root.programs[0]);
    ErrorCode code{};
    std::string message = loadError(file.serialize(), &code);
    EXPECT_NE(message.find(rule.message), std::string::npos) << rule.name << ": " << message;
    EXPECT_EQ(code, ErrorCode::FileCorrupt) << rule.name;
  }
}

// The file loads and can be looked at; its code is not run.
TEST(Binary, NativeKernelsOnlyIfAllowed) {
  Binary binary = Binary::fromMemory(makeAddFile(8).serialize(), LoadOptions{.allowNativeKernels = false});
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
