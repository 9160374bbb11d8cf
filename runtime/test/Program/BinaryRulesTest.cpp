//===- BinaryRulesTest.cpp - each rule of the format, broken ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One file per check of VerifyBinary.cpp: it breaks that rule alone. The source
// itself says which checks there are, so that a new one without a file here, or
// one that other checks keep from ever being reached, is found.
//
//===----------------------------------------------------------------------===//

#include "../../lib/Program/BinaryImage.h"
#include "../Device/TestCubin.h"
#include "TestFile.h"
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <regex>
#include <set>

using namespace segue;
using namespace segue::test;

namespace {
/// One rule of the format: a change that breaks it, and what the message says.
struct Rule {
  const char *name;
  std::function<void(TestFile &, schema::ProgramT &)> breakIt;
  const char *message;
  ErrorCode code = ErrorCode::FileCorrupt;
};

/// A Rule of the bytes around and below the tables.
struct ByteRule {
  const char *name;
  std::function<void(Bytes &)> breakIt;
  const char *message;
  ErrorCode code = ErrorCode::FileCorrupt;
};
} // namespace

static schema::LaunchT &launchOf(schema::ProgramT &program, size_t i) { return *program.commands[i]->body.AsLaunch(); }

static schema::AliasT &addAlias(schema::ProgramT &program, uint32_t input, uint32_t output, bool required = false) {
  schema::AliasT &alias = *program.aliases.emplace_back(std::make_unique<schema::AliasT>());
  alias.input = input;
  alias.output = output;
  alias.required = required;
  return alias;
}

static schema::LayoutT &addAlternative(schema::ValueT &value) {
  return *value.alternatives.emplace_back(std::make_unique<schema::LayoutT>());
}

/// A cubin beside the code of the first kernel.
static void addCubin(TestFile &file, uint32_t capability) {
  uint32_t segment = file.addSegment(schema::SegmentKind::cubin, testCubin(capability));
  file.root.segments[segment]->capability = capability;
  auto variant = std::make_unique<schema::KernelVariantT>(*file.root.kernels[0]->variants[0]);
  variant->isa = schema::Isa::cubin;
  variant->segment = segment;
  variant->blocks = 32;
  file.root.kernels[0]->variants.push_back(std::move(variant));
}

/// A constant segment; returns its index.
static uint32_t addConstants(TestFile &file, size_t bytes) {
  return file.addSegment(schema::SegmentKind::constants, Bytes(bytes));
}

/// A matmul of [2,8] with [8,4], whose right side is four rows of codes.
static schema::MatmulT &addCodedMatmul(schema::ProgramT &program) {
  schema::MatmulT matmul;
  matmul.a = view(0, {1, 2, 8}, {16, 8, 1});
  matmul.b = view(1, {4, 8}, {8, 1});
  matmul.b->storage = schema::Storage::int8_row;
  matmul.b_transposed = true;
  matmul.c = view(2, {1, 2, 4}, {8, 4, 1});
  return addCommand(program, std::move(matmul));
}

static schema::MatmulT &addMatmul(schema::ProgramT &program) {
  schema::MatmulT matmul;
  matmul.a = view(0, {1, 2, 8}, {16, 8, 1});
  matmul.b = view(1, {1, 8, 4}, {32, 4, 1});
  matmul.c = view(2, {1, 2, 4}, {8, 4, 1});
  matmul.bias = view(0, {4}, {1});
  return addCommand(program, std::move(matmul));
}

/// A convolution of one image of two channels of 2 x 2 with four weights of 1 x 1.
static schema::LibraryCallT &addLibraryCall(schema::ProgramT &program) {
  schema::LibraryCallT call;
  call.operation = "conv2d";
  call.reads.push_back(view(0, {1, 2, 2, 2}, {8, 4, 2, 1}));
  call.reads.push_back(view(1, {4, 2, 1, 1}, {2, 1, 1, 1}));
  call.writes.push_back(view(2, {1, 4, 2, 2}, {16, 4, 2, 1}));
  call.numbers = {1, 1, 0, 0, 0, 0, 1, 1, 1};
  return addCommand(program, std::move(call));
}

/// One head of two rows of four.
static std::unique_ptr<schema::ViewT> headView(uint32_t buffer, uint64_t offset) {
  return view(buffer, {1, 1, 2, 4}, {8, 8, 4, 1}, offset);
}
template <typename Attention> static Attention headAttention(uint32_t results) {
  Attention attention;
  attention.q = headView(0, 0);
  attention.k = headView(0, 32);
  attention.v = headView(0, 64);
  attention.mask = view(0, {1, 1, 2, 2}, {4, 4, 2, 1});
  attention.out = headView(results, 0);
  attention.lse = view(results, {1, 1, 2}, {2, 2, 1}, 32);
  return attention;
}
static schema::AttentionT &addAttention(schema::ProgramT &program) {
  return addCommand(program, headAttention<schema::AttentionT>(2));
}
static schema::AttentionT &addAttentionWithDropout(schema::ProgramT &program) {
  auto attention = headAttention<schema::AttentionT>(2);
  attention.dropout = 0.25f;
  for (auto *number : {&attention.seed, &attention.step}) {
    *number = view(0, {}, {});
    (*number)->element = schema::ElementType::i64;
  }
  return addCommand(program, std::move(attention));
}
static schema::AttentionGradT &addAttentionGrad(schema::ProgramT &program) {
  auto grad = headAttention<schema::AttentionGradT>(1);
  grad.grad_out = headView(1, 64);
  grad.grad_q = headView(2, 0);
  grad.grad_k = headView(2, 32);
  grad.grad_v = headView(2, 64);
  return addCommand(program, std::move(grad));
}

static schema::ToLayoutT &addCopy(schema::ProgramT &program) {
  schema::ToLayoutT copy;
  copy.source = view(0, {4, 8}, {8, 1});
  copy.target = view(2, {4, 8}, {8, 1});
  return addCommand(program, std::move(copy));
}

/// "backward", which takes the saved output, and "again", which makes it anew
/// from the first program's inputs.
static schema::ProgramT &addRecomputation(TestFile &file, schema::ProgramT &program) {
  program.outputs[0]->role = schema::Role::saved;
  addInput(file.addProgram("backward"), "doubled", {32}, schema::ElementType::f32, schema::Role::saved);
  schema::ProgramT &again = file.addProgram("again");
  addInput(again, "x", {32});
  addOutput(again, "doubled", {32});
  schema::SavePointT &point = *program.save_points.emplace_back(std::make_unique<schema::SavePointT>());
  point.recompute_program = 2;
  return again;
}

static schema::LocationT &addLocation(TestFile &file) {
  return *file.root.locations.emplace_back(std::make_unique<schema::LocationT>());
}

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
    {"range of a kernel whose arguments do not grow",
     [](TestFile &f, schema::ProgramT &p) {
       f.root.kernels[0]->bytes_per_unit = {0, 0, 0};
       launchOf(p, 0).range = uint64_t(1) << 40;
     },
     "range 1099511627776 of a kernel that writes 128 bytes at most"},
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
    {"arena element", [](TestFile &, schema::ProgramT &p) { p.buffers[2]->element = schema::ElementType(8); },
     "buffer 2: 128 bytes cannot hold elements of type 8"},
    {"arena elements",
     [](TestFile &, schema::ProgramT &p) {
       p.buffers[2]->element = schema::ElementType::f32;
       p.buffers[2]->bytes = 62;
     },
     "buffer 2: 62 bytes cannot hold elements of type 0"},
    {"arena elements apart",
     [](TestFile &, schema::ProgramT &p) {
       p.buffers[2]->element = schema::ElementType::f32;
       p.buffers[2]->bytes = 64;
       p.buffers[2]->offset = 2;
     },
     "buffer 2: elements are not aligned"},
    {"constant of code",
     [](TestFile &, schema::ProgramT &p) {
       p.buffers[0]->kind = schema::BufferKind::constant;
       p.buffers[0]->index = 0;
     },
     "its segment holds no constants"},
    {"two arenas", [](TestFile &, schema::ProgramT &p) { p.arenas.push_back(std::make_unique<schema::ArenaT>()); },
     "two arenas in device_dram"},
    {"arena index", [](TestFile &, schema::ProgramT &p) { p.buffers[2]->index = 1; }, "buffer 2: arena 1 of 1"},
    {"signature hash",
     [](TestFile &f, schema::ProgramT &p) {
       f.serialize();
       f.hashSignatures = false;
       p.outputs[0]->name = "tripled";
     },
     "its signature_hash does not match its signature"},
    {"interface hash",
     [](TestFile &f, schema::ProgramT &p) {
       f.serialize();
       f.hashSignatures = false;
       ++p.interface_hash;
     },
     "its interface_hash does not match its signature"},
    {"input alternative",
     [](TestFile &, schema::ProgramT &p) {
       p.inputs[0]->alternatives.push_back(std::make_unique<schema::LayoutT>());
       p.inputs[0]->alternatives[0]->strides = {2};
     },
     "input 0 (\"x\"), alternative 0: differs from f32[32] in more than space and alignment"},
    {"invalid alternative",
     [](TestFile &, schema::ProgramT &p) {
       p.outputs[0]->alternatives.push_back(std::make_unique<schema::LayoutT>());
       p.outputs[0]->alternatives[0]->strides = {2, 3};
     },
     "output 0 (\"doubled\"), alternative 0: INVALID_ARGUMENT: f32[32] strides [2,3]: strides [2,3] do not match"},
    {"unaligned alternative",
     [](TestFile &, schema::ProgramT &p) {
       p.outputs[0]->alternatives.push_back(std::make_unique<schema::LayoutT>());
       p.outputs[0]->alternatives[0]->alignment = 2;
     },
     "alternative 0: aligned to less than an element"},
    {"alternative of a launch",
     [](TestFile &, schema::ProgramT &p) {
       p.outputs[0]->alternatives.push_back(std::make_unique<schema::LayoutT>());
       p.outputs[0]->alternatives[0]->strides = {2};
     },
     "no single command writes f32[32] that could write f32[32] strides [2]"},
    {"overlapping alternative",
     [](TestFile &, schema::ProgramT &p) {
       p.outputs[0]->alternatives.push_back(std::make_unique<schema::LayoutT>());
       p.outputs[0]->alternatives[0]->strides = {0};
     },
     "alternative 0: two elements in one place"},
    {"tiles in a matmul",
     [](TestFile &, schema::ProgramT &p) {
       schema::MatmulT matmul;
       matmul.a = view(0, {1, 4, 8}, {32, 8, 1});
       matmul.a->tile = {2, 2};
       matmul.b = view(1, {1, 8, 4}, {32, 4, 1});
       matmul.c = view(2, {1, 4, 4}, {16, 4, 1});
       addCommand(p, std::move(matmul));
     },
     "a: has tiles or rows, which only to_layout and the b of a matmul may have"},
    {"tiled view outside",
     [](TestFile &, schema::ProgramT &p) {
       schema::ToLayoutT copy;
       copy.source = view(0, {5, 6}, {24, 12});
       copy.source->tile = {4, 3};
       copy.target = view(2, {5, 6}, {6, 1});
       addCommand(p, std::move(copy));
     },
     "source: 192 bytes at 0 of a buffer of 128"},
    {"rows outside",
     [](TestFile &, schema::ProgramT &p) {
       schema::ToLayoutT copy;
       copy.source = view(0, {16, 2}, {2, 1});
       copy.target = view(2, {16, 2}, {2, 1});
       copy.target->storage = schema::Storage::int8_row;
       copy.target->zero_points = true;
       addCommand(p, std::move(copy));
     },
     "target: 192 bytes at 0 of a buffer of 128"},
    {"rows off their alignment",
     [](TestFile &, schema::ProgramT &p) {
       schema::ToLayoutT copy;
       copy.source = view(0, {2, 4}, {4, 1});
       copy.target = view(2, {2, 4}, {4, 1}, 32);
       copy.target->storage = schema::Storage::int8_row;
       addCommand(p, std::move(copy));
     },
     "target: elements or scales are not aligned"},
    {"zero points without rows",
     [](TestFile &, schema::ProgramT &p) {
       schema::ToLayoutT copy;
       copy.source = view(0, {4, 8}, {8, 1});
       copy.source->zero_points = true;
       copy.target = view(2, {4, 8}, {8, 1});
       addCommand(p, std::move(copy));
     },
     "source: INVALID_ARGUMENT: f32[4,8] with zero points: zero points belong to row storages"},
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
    {"save of an output", [](TestFile &, schema::ProgramT &p) { addCommand(p, schema::SaveT{}); }, "is not a saved value"},
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
    {"capability of what has none", [](TestFile &f, schema::ProgramT &) { f.root.segments[0]->capability = 80; },
     "segment 0: compute capability 80 of what is no cubin"},
    {"no cubin",
     [](TestFile &f, schema::ProgramT &) { f.addSegment(schema::SegmentKind::cubin, Bytes(300, std::byte(1))); },
     "segment 1: is no cubin: it does not begin with the header of an ELF file"},
    {"cubin of another capability",
     [](TestFile &f, schema::ProgramT &) {
       addCubin(f, 90);
       f.root.segments[1]->capability = 80;
     },
     "segment 1: a cubin for compute capability 90 where 80 is said"},
    {"cubin as a segment of PTX",
     [](TestFile &f, schema::ProgramT &) {
       addCubin(f, 90);
       f.root.kernels[0]->variants[1]->isa = schema::Isa::ptx;
     },
     "segment 1 holds another kind of code"},
    {"variant grid", [](TestFile &f, schema::ProgramT &) { f.root.kernels[0]->variants[0]->blocks = 1; },
     "a grid of 1 blocks"},
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
    {"version", [](TestFile &f, schema::ProgramT &) { f.root.version_major = 9; }, "version 9.",
     ErrorCode::VersionUnsupported},
    {"minor version", [](TestFile &f, schema::ProgramT &) { f.root.version_minor = 77; }, "version 0.77",
     ErrorCode::VersionUnsupported},
    {"vocabulary", [](TestFile &f, schema::ProgramT &) { f.root.layout_vocabulary = 55; }, "layout vocabulary 55",
     ErrorCode::VersionUnsupported},
    {"role", [](TestFile &, schema::ProgramT &p) { p.inputs[0]->role = schema::Role(9); }, "input 0 (\"x\"): role 9"},
    {"location below", [](TestFile &, schema::ProgramT &p) { p.outputs[0]->location = -2; }, "location -2 of 0"},
    {"location parent", [](TestFile &f, schema::ProgramT &) { addLocation(f).parent = 1; },
     "location 0 has parent 1 of 1"},
    {"location parent below", [](TestFile &f, schema::ProgramT &) { addLocation(f).parent = -2; },
     "location 0 has parent -2 of 1"},
    {"input alignment", [](TestFile &, schema::ProgramT &p) { p.inputs[0]->desc->layout->alignment = 2; },
     "input 0 (\"x\"): aligned to less than an element"},
    {"overlapping output", [](TestFile &, schema::ProgramT &p) { p.outputs[0]->desc->layout->strides = {0}; },
     "output 0 (\"doubled\"): two elements in one place"},
    {"arena bytes", [](TestFile &, schema::ProgramT &p) { p.arenas[0]->bytes = UINT64_MAX; },
     "an arena of 18446744073709551615 bytes"},
    {"arena space", [](TestFile &, schema::ProgramT &p) { p.arenas[0]->space = schema::Space(4); }, ": space 4"},
    {"arena alignment", [](TestFile &, schema::ProgramT &p) { p.arenas[0]->alignment = 48; }, "arena alignment 48"},
    {"alias of no input", [](TestFile &, schema::ProgramT &p) { addAlias(p, 2, 0); }, "alias 0: input 2 of 2"},
    {"alias of one output twice",
     [](TestFile &, schema::ProgramT &p) {
       addAlias(p, 0, 0);
       addAlias(p, 1, 0);
     },
     "alias 1: an input or output with two aliases"},
    {"alias of one input twice",
     [](TestFile &, schema::ProgramT &p) {
       addOutput(p, "other", {32});
       addAlias(p, 0, 0);
       addAlias(p, 0, 1);
     },
     "alias 1: an input or output with two aliases"},
    {"input offset",
     [](TestFile &, schema::ProgramT &p) {
       p.buffers[0]->offset = 4;
       p.buffers[0]->bytes = 4;
     },
     "buffer 0: 4 bytes of an input of 128"},
    {"output index", [](TestFile &, schema::ProgramT &p) { p.buffers[3]->index = 1; }, "buffer 3: output 1 of 1"},
    {"output bytes", [](TestFile &, schema::ProgramT &p) { p.buffers[3]->bytes = 129; },
     "buffer 3: 129 bytes of an output of 128"},
    {"constant index",
     [](TestFile &, schema::ProgramT &p) {
       p.buffers[0]->kind = schema::BufferKind::constant;
       p.buffers[0]->index = 9;
     },
     "buffer 0: segment 9 of 1"},
    {"constant bytes",
     [](TestFile &f, schema::ProgramT &p) {
       p.buffers[0]->kind = schema::BufferKind::constant;
       p.buffers[0]->index = addConstants(f, 64);
       p.buffers[0]->offset = 60;
       p.buffers[0]->bytes = 8;
     },
     "buffer 0: 8 bytes at 60 of a segment of 64"},
    {"buffer kind", [](TestFile &, schema::ProgramT &p) { p.buffers[0]->kind = schema::BufferKind(4); },
     "buffer 0: kind 4"},
    {"writes a constant",
     [](TestFile &f, schema::ProgramT &p) {
       p.buffers[2]->kind = schema::BufferKind::constant;
       p.buffers[2]->index = addConstants(f, 128);
     },
     "writes constant buffer 2"},
    {"use after save",
     [](TestFile &, schema::ProgramT &p) {
       p.outputs[0]->role = schema::Role::saved;
       addCommand(p, schema::SaveT{});
       schema::FillT fill;
       auto isOutput = [](const auto &buffer) { return buffer->kind == schema::BufferKind::output; };
       fill.buffer = uint32_t(std::ranges::find_if(p.buffers, isOutput) - p.buffers.begin());
       fill.pattern = {0};
       addCommand(p, std::move(fill));
     },
     "uses output 0 after it was saved"},
    {"save of nothing",
     [](TestFile &, schema::ProgramT &p) {
       p.outputs[0]->role = schema::Role::saved;
       addCommand(p, schema::SaveT{});
       std::rotate(p.commands.begin(), p.commands.end() - 1, p.commands.end());
     },
     "saves output 0 before a command has written it"},
    {"tiles that overlap",
     [](TestFile &, schema::ProgramT &p) {
       schema::ToLayoutT &copy = addCopy(p);
       copy.target->tile = {2, 2};
       copy.target->strides = {0, 4};
     },
     "target: is written and has two elements in one place"},
    {"view element", [](TestFile &, schema::ProgramT &p) { addCopy(p).source->element = schema::ElementType(9); },
     "source: element type 9"},
    {"view strides", [](TestFile &, schema::ProgramT &p) { addCopy(p).source->strides = {8, 1, 1}; },
     "source: strides do not match the number of dimensions"},
    {"negative stride", [](TestFile &, schema::ProgramT &p) { addCopy(p).source->strides = {-8, 1}; },
     "source: extents or strides are negative or overflow"},
    {"copy of another shape",
     [](TestFile &, schema::ProgramT &p) { addCopy(p).target = view(2, {8, 4}, {4, 1}); },
     "source and target differ in shape"},
    {"huge range", [](TestFile &, schema::ProgramT &p) { launchOf(p, 0).range = UINT64_MAX; },
     "range 18446744073709551615"},
    {"huge grain", [](TestFile &, schema::ProgramT &p) { launchOf(p, 0).grain = UINT64_MAX; },
     "grain 18446744073709551615"},
    {"columns of codes", [](TestFile &, schema::ProgramT &p) { addCodedMatmul(p).b->strides = {1, 4}; },
     "the rows of codes of b are not contiguous"},
    {"rows before codes", [](TestFile &, schema::ProgramT &p) { addCodedMatmul(p).a->strides = {16, 1, 2}; },
     "the rows of a are not contiguous"},
    {"adds to a product with codes", [](TestFile &, schema::ProgramT &p) { addCodedMatmul(p).accumulate = true; },
     "accumulates a product with codes"},
    {"activation", [](TestFile &, schema::ProgramT &p) { addMatmul(p).activation = schema::Activation(1); },
     "activation 1"},
    {"bias shape", [](TestFile &, schema::ProgramT &p) { addMatmul(p).bias = view(0, {3}, {1}); },
     "the bias does not fit c"},
    {"bias stride", [](TestFile &, schema::ProgramT &p) { addMatmul(p).bias = view(0, {4}, {2}); },
     "the bias is not dense"},
    {"attention shapes",
     [](TestFile &, schema::ProgramT &p) { addAttention(p).v = view(0, {1, 1, 1, 4}, {4, 4, 4, 1}); },
     "the shapes of q, k, v, out and lse do not fit together"},
    {"lse element",
     [](TestFile &, schema::ProgramT &p) { addAttention(p).lse->element = schema::ElementType::f16; },
     "lse is not f32"},
    {"lse density", [](TestFile &, schema::ProgramT &p) { addAttention(p).lse->strides = {4, 4, 2}; },
     "lse is not dense"},
    {"mask shape",
     [](TestFile &, schema::ProgramT &p) { addAttention(p).mask = view(0, {1, 1, 2, 3}, {6, 6, 3, 1}); },
     "the mask does not broadcast to the scores"},
    {"all is dropped", [](TestFile &, schema::ProgramT &p) { addAttentionWithDropout(p).dropout = 1; },
     "dropout is not in [0, 1)"},
    {"NaN is dropped", [](TestFile &, schema::ProgramT &p) { addAttentionWithDropout(p).dropout = NAN; },
     "dropout is not in [0, 1)"},
    {"dropout without a seed", [](TestFile &, schema::ProgramT &p) { addAttentionWithDropout(p).seed.reset(); },
     "seed and step belong to dropout"},
    {"a step without dropout", [](TestFile &, schema::ProgramT &p) { addAttentionWithDropout(p).dropout = 0; },
     "seed and step belong to dropout"},
    {"a seed of floats",
     [](TestFile &, schema::ProgramT &p) { addAttentionWithDropout(p).seed->element = schema::ElementType::f64; },
     "seed and step must be i64"},
    {"several seeds", [](TestFile &, schema::ProgramT &p) { addAttentionWithDropout(p).seed = view(0, {2}, {1}); },
     "seed"},
    {"gradient shapes",
     [](TestFile &, schema::ProgramT &p) { addAttentionGrad(p).grad_k = view(2, {1, 1, 1, 4}, {4, 4, 4, 1}, 32); },
     "the shapes of the gradients do not fit q, k and v"},
    {"unknown operation", [](TestFile &, schema::ProgramT &p) { addLibraryCall(p).operation = "conv4d"; },
     "operation \"conv4d\" is not known to this runtime; update it", ErrorCode::VersionUnsupported},
    {"operand of a call that is not dense",
     [](TestFile &, schema::ProgramT &p) { addLibraryCall(p).reads[0]->strides = {8, 4, 1, 2}; },
     "operand 0 is not dense"},
    {"call with a problem", [](TestFile &, schema::ProgramT &p) { addLibraryCall(p).numbers[8] = 2; },
     "conv2d: image 1x2x2x2, weight 4x2x1x1 and output 1x4x2x2 do not fit together in 2 groups"},
    {"fill of a part",
     [](TestFile &, schema::ProgramT &p) {
       schema::FillT fill;
       fill.buffer = addBuffer(p, schema::BufferKind::arena, 0, 0, 12);
       fill.pattern = {0, 0, 0, 0, 0, 0, 0, 0};
       addCommand(p, std::move(fill));
     },
     "the pattern does not divide the buffer"},
    {"phase", [](TestFile &, schema::ProgramT &p) { addPhase(p, schema::Phase(5)); }, "there is no phase 5"},
    {"phase of a session", [](TestFile &, schema::ProgramT &p) { addPhase(p, schema::Phase::step_end); },
     "enters step_end, but steps begin and end outside of programs"},
    {"phase in a block",
     [](TestFile &, schema::ProgramT &p) {
       schema::BlockBeginT block;
       block.name = "h.0";
       addCommand(p, std::move(block));
       addPhase(p, schema::Phase::forward);
     },
     "enters forward inside of a block"},
    {"order of phases",
     [](TestFile &, schema::ProgramT &p) {
       addPhase(p, schema::Phase::forward);
       addPhase(p, schema::Phase::optimizer);
     },
     "optimizer cannot follow forward"},
    {"operand on the host",
     [](TestFile &, schema::ProgramT &p) { p.inputs[0]->desc->layout->space = schema::Space::host; },
     "computes on buffer 0 in host; only to_layout reaches the memory of the host"},
    {"alternative across the link",
     [](TestFile &, schema::ProgramT &p) { addAlternative(*p.inputs[0]).space = schema::Space::host_pinned; },
     "input 0 (\"x\"), alternative 0: is on the other side of the link than f32[32]"},
    {"restore of an input", [](TestFile &, schema::ProgramT &p) { addCommand(p, schema::RestoreT{}); },
     "input 0 is not a saved value"},
    {"restore after free",
     [](TestFile &, schema::ProgramT &p) {
       p.inputs[0]->role = schema::Role::saved;
       addCommand(p, schema::FreeT{});
       addCommand(p, schema::RestoreT{});
     },
     "restores input 0 after it was freed"},
    {"free twice",
     [](TestFile &, schema::ProgramT &p) {
       addCommand(p, schema::FreeT{});
       addCommand(p, schema::FreeT{});
     },
     "input 0 is not there to be freed"},
    {"free of no input", [](TestFile &, schema::ProgramT &p) { addCommand(p, schema::FreeT{}).input = 2; },
     "input 2 is not there to be freed"},
    {"free of an aliased input",
     [](TestFile &, schema::ProgramT &p) {
       addAlias(p, 0, 0, true);
       addCommand(p, schema::FreeT{});
     },
     "frees input 0, which an output aliases"},
    {"save point of no output",
     [](TestFile &f, schema::ProgramT &p) {
       addRecomputation(f, p);
       p.save_points[0]->value = 5;
     },
     "save point 0: value 5"},
    {"recomputation by no program",
     [](TestFile &f, schema::ProgramT &p) {
       addRecomputation(f, p);
       p.save_points[0]->recompute_program = 7;
     },
     "save point 0: recompute_program 7 of 3"},
    {"recomputation of nonsense",
     [](TestFile &f, schema::ProgramT &p) { addRecomputation(f, p).outputs[0]->desc->shape = {-1}; },
     "program \"again\", \"doubled\": INVALID_ARGUMENT: f32[-1]"},
    {"recomputation of another value",
     [](TestFile &f, schema::ProgramT &p) { addRecomputation(f, p).outputs[0]->desc->shape = {16}; },
     "program \"again\": output 0 is not the saved value"},
    {"recomputation in place", [](TestFile &f, schema::ProgramT &p) { addAlias(addRecomputation(f, p), 0, 0); },
     "program \"again\": it writes what it is given"},
    {"recomputation from elsewhere",
     [](TestFile &f, schema::ProgramT &p) { addRecomputation(f, p).inputs[0]->name = "z"; },
     "program \"again\": input \"z\" is not an input of this program"},
    {"alternative of an aliased output",
     [](TestFile &, schema::ProgramT &p) {
       addAlias(p, 0, 0, true);
       addAlternative(*p.outputs[0]).space = schema::Space::device_l1;
     },
     "alternative 0: the output lies in the storage of an input"},
    {"alternative of an input written in place",
     [](TestFile &, schema::ProgramT &p) {
       addAlias(p, 0, 0, true);
       addAlternative(*p.inputs[0]).space = schema::Space::device_l1;
     },
     "alternative 0: an output lies in the storage of this input"},
    {"segment kind", [](TestFile &f, schema::ProgramT &) { f.root.segments[0]->kind = schema::SegmentKind(4); },
     "segment 0: kind 4"},
    {"segment alignment", [](TestFile &f, schema::ProgramT &) { f.root.segments[0]->alignment = 48; },
     "is not aligned to 48"},
    {"kernel name", [](TestFile &f, schema::ProgramT &) { f.root.kernels[1]->name = "add_f32"; },
     "kernel \"add_f32\": its name is taken"},
    {"instruction set",
     [](TestFile &f, schema::ProgramT &) { f.root.kernels[0]->variants[0]->isa = schema::Isa(4); },
     "kernel \"add_f32\": instruction set 4"},
};

/// The trailer is hash, bytes of the file, bytes of the FlatBuffer, magic.
static void setTrailer(Bytes &file, size_t word, uint64_t number) {
  std::memcpy(file.data() + file.size() - 32 + 8 * word, &number, sizeof(number));
}
static void setWord(Bytes &file, size_t at, uint32_t number) {
  std::memcpy(file.data() + at, &number, sizeof(number));
  reseal(file);
}
/// The kind of the first command, which the schema's own types cannot have wrong.
static void setCommandKind(Bytes &file, uint8_t kind) {
  const schema::Command &command =
      *schema::GetSizePrefixedBinary(file.data())->programs()->Get(0)->commands()->Get(0);
  auto *at = reinterpret_cast<const flatbuffers::Table &>(command).GetAddressOf(schema::Command::VT_BODY_TYPE);
  *const_cast<uint8_t *>(at) = kind;
  reseal(file);
}

static const ByteRule byteRules[] = {
    {"no trailer", [](Bytes &file) { file.resize(20); }, "only 20 bytes long"},
    {"magic", [](Bytes &file) { file.back() ^= std::byte(1); }, "does not end with the trailer of a .segue file"},
    {"length", [](Bytes &file) { setTrailer(file, 1, file.size() + 1); }, "its trailer says"},
    {"hash", [](Bytes &file) { setTrailer(file, 0, 0); }, "its hash does not match its trailer"},
    {"FlatBuffer's length", [](Bytes &file) { setTrailer(file, 2, file.size()); }, "its trailer names a FlatBuffer of"},
    {"prefix", [](Bytes &file) { setWord(file, 0, INT32_MAX); }, "its FlatBuffer is longer than its trailer says"},
    {"FlatBuffer", [](Bytes &file) { setWord(file, 4, INT32_MAX); }, "its FlatBuffer breaks the rules"},
    {"unknown command", [](Bytes &file) { setCommandKind(file, 200); },
     "command 0: kind 200 is not known to this runtime", ErrorCode::VersionUnsupported},
    {"empty command", [](Bytes &file) { setCommandKind(file, 0); }, "command 0: it has no body"},
};

/// Tells what loading says; returns the line of the check that said it, 0 if it loads.
static int brokenRule(const Bytes &file, std::string &message, ErrorCode &code) {
  try {
    Binary::fromMemory(file);
  } catch (const BrokenRule &rule) {
    message = rule.what();
    code = rule.code();
    return rule.line;
  }
  return 0;
}

/// The lines of VerifyBinary.cpp that check something, with their text.
static std::map<int, std::string> checksOfTheSource() {
  static const std::regex call(R"(\b(check|fail|corrupt|BrokenRule)\()"), definition(R"(\bvoid \w+\(|, line\)|^ *//)");
  std::map<int, std::string> checks;
  std::ifstream source(SEGUE_VERIFIER_SOURCE);
  std::string text;
  for (int line = 1; std::getline(source, text); ++line)
    if (std::regex_search(text, call) && !std::regex_search(text, definition))
      checks[line] = text;
  return checks;
}

// Each rule alone is broken; the message names the place and the numbers.
TEST(BinaryRules, EachIsChecked) {
  std::string message;
  ErrorCode code{};
  ASSERT_EQ(brokenRule(makeAddFile(32).serialize(), message, code), 0) << message;
  std::set<int> reached;
  auto expect = [&](const char *name, const Bytes &file, const char *part, ErrorCode expected) {
    message = "it was loaded";
    reached.insert(brokenRule(file, message, code = {}));
    EXPECT_NE(message.find(part), std::string::npos) << name << ": " << message;
    EXPECT_EQ(code, expected) << name;
  };
  for (const Rule &rule : rules) {
    TestFile file = makeAddFile(32);
    rule.breakIt(file, *file.root.programs[0]);
    expect(rule.name, file.serialize(), rule.message, rule.code);
  }
  for (const ByteRule &rule : byteRules) {
    Bytes file = makeAddFile(32).serialize();
    rule.breakIt(file);
    expect(rule.name, file, rule.message, rule.code);
  }

  std::map<int, std::string> checks = checksOfTheSource();
  EXPECT_GT(checks.size(), 100u);
  for (int line : reached)
    if (auto next = checks.upper_bound(line); line && next != checks.begin())
      std::prev(next)->second.clear();
  for (const auto &[line, text] : checks)
    EXPECT_EQ(text, "") << "VerifyBinary.cpp:" << line << ": no entry of rules[] breaks this check";
}

// What the entries above change is good without the change.
TEST(BinaryRules, WhatTheyBreakIsGood) {
  auto load = [](auto change) {
    TestFile file = makeAddFile(32);
    change(file, *file.root.programs[0]);
    std::string message;
    ErrorCode code{};
    EXPECT_EQ(brokenRule(file.serialize(), message, code), 0) << message;
  };
  load([](TestFile &, schema::ProgramT &p) { addMatmul(p); });
  load([](TestFile &, schema::ProgramT &p) { addCodedMatmul(p); });
  load([](TestFile &, schema::ProgramT &p) { addAttention(p); });
  load([](TestFile &, schema::ProgramT &p) { addAttentionWithDropout(p); });
  load([](TestFile &, schema::ProgramT &p) { addAttentionGrad(p); });
  load([](TestFile &, schema::ProgramT &p) { addLibraryCall(p); });
  load([](TestFile &, schema::ProgramT &p) { addCopy(p); });
  load([](TestFile &f, schema::ProgramT &p) { addRecomputation(f, p); });
  load([](TestFile &, schema::ProgramT &p) { addAlias(p, 0, 0, true); });
  load([](TestFile &f, schema::ProgramT &) { addLocation(f); });
  load([](TestFile &f, schema::ProgramT &) { addCubin(f, 90); });
}
