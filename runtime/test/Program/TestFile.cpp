//===- TestFile.cpp - .segue files for tests ------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "TestFile.h"
#include "SignatureHash.h"
#include "segue/runtime/Program/Binary.h"
#include <cstring>
#include <fstream>
#include <iterator>

namespace segue::test {

static constexpr size_t trailerBytes = 32;

Bytes testKernels() {
  std::ifstream file(SEGUE_TEST_KERNELS, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

TestFile::TestFile() {
  root.version_major = segue::Binary::versionMajor;
  root.version_minor = segue::Binary::versionMinor;
  root.layout_vocabulary = segue::Binary::layoutVocabulary;
  root.producer = "TestFile";
}

uint32_t TestFile::addSegment(schema::SegmentKind kind, Bytes bytes) {
  auto segment = std::make_unique<schema::SegmentT>();
  segment->kind = kind;
  segment->alignment = 64;
  segment->length = bytes.size();
  segment->hash = XXH3_64bits(bytes.data(), bytes.size());
  root.segments.push_back(std::move(segment));
  segments.push_back(std::move(bytes));
  return uint32_t(segments.size() - 1);
}

uint32_t TestFile::addKernel(const std::string &symbol, uint32_t outputs, std::vector<uint64_t> fixedBytes,
                             std::vector<uint64_t> bytesPerUnit) {
  if (elf_ == UINT32_MAX)
    elf_ = addSegment(schema::SegmentKind::elf, testKernels());
  auto kernel = std::make_unique<schema::KernelT>();
  kernel->name = symbol;
  kernel->arguments = uint32_t(fixedBytes.size());
  kernel->outputs = outputs;
  kernel->fixed_bytes = std::move(fixedBytes);
  kernel->bytes_per_unit = std::move(bytesPerUnit);
  auto variant = std::make_unique<schema::KernelVariantT>();
  variant->segment = elf_;
  variant->symbol = symbol;
  kernel->variants.push_back(std::move(variant));
  root.kernels.push_back(std::move(kernel));
  return uint32_t(root.kernels.size() - 1);
}

schema::ProgramT &TestFile::addProgram(const std::string &name) {
  root.programs.push_back(std::make_unique<schema::ProgramT>());
  root.programs.back()->name = name;
  return *root.programs.back();
}

static void appendTrailer(Bytes &file, uint64_t flatBufferBytes) {
  uint64_t numbers[] = {XXH3_64bits(file.data(), file.size()), file.size() + trailerBytes, flatBufferBytes};
  size_t end = file.size();
  file.resize(end + trailerBytes);
  std::memcpy(file.data() + end, numbers, sizeof(numbers));
  std::memcpy(file.data() + end + sizeof(numbers), "SEGUEEND", 8);
}

/// Does what the exporter does for each program.
static void hashSignature(schema::ProgramT &program) {
  flatbuffers::FlatBufferBuilder builder;
  builder.ForceDefaults(true);
  builder.Finish(schema::Program::Pack(builder, &program));
  const auto &table = *flatbuffers::GetRoot<schema::Program>(builder.GetBufferPointer());
  program.signature_hash = schema::signatureHash(table);
  program.interface_hash = schema::interfaceHash(table);
}

Bytes TestFile::serialize() {
  if (hashSignatures)
    for (auto &program : root.programs)
      hashSignature(*program);
  // Defaults are written out, so that the second pass, which knows where the
  // segments lie, has the size of the first.
  Bytes file;
  for (int pass = 0; pass < 2; ++pass) {
    flatbuffers::FlatBufferBuilder builder;
    builder.ForceDefaults(true);
    builder.FinishSizePrefixed(schema::Binary::Pack(builder, &root), schema::BinaryIdentifier());
    auto *data = reinterpret_cast<const std::byte *>(builder.GetBufferPointer());
    file.assign(data, data + builder.GetSize());
    uint64_t end = file.size();
    for (size_t i = 0; i < segments.size(); ++i) {
      end = (end + 63) / 64 * 64;
      if (pass == 0)
        root.segments[i]->offset = end;
      end += segments[i].size();
    }
  }
  uint64_t flatBufferBytes = file.size();
  for (const Bytes &segment : segments) {
    file.resize((file.size() + 63) / 64 * 64);
    file.insert(file.end(), segment.begin(), segment.end());
  }
  appendTrailer(file, flatBufferBytes);
  return file;
}

void reseal(Bytes &file) {
  uint64_t flatBufferBytes;
  std::memcpy(&flatBufferBytes, file.data() + file.size() - trailerBytes + 16, sizeof(uint64_t));
  file.erase(file.end() - trailerBytes, file.end());
  appendTrailer(file, flatBufferBytes);
}

static std::unique_ptr<schema::ValueT> makeValue(const std::string &name, std::vector<int64_t> shape,
                                                 schema::ElementType element, schema::Role role) {
  auto value = std::make_unique<schema::ValueT>();
  value->name = name;
  value->role = role;
  value->desc = std::make_unique<schema::TensorDescT>();
  value->desc->shape = std::move(shape);
  value->desc->element = element;
  value->desc->layout = std::make_unique<schema::LayoutT>();
  return value;
}

uint32_t addInput(schema::ProgramT &program, const std::string &name, std::vector<int64_t> shape,
                  schema::ElementType element, schema::Role role) {
  program.inputs.push_back(makeValue(name, std::move(shape), element, role));
  return uint32_t(program.inputs.size() - 1);
}

uint32_t addOutput(schema::ProgramT &program, const std::string &name, std::vector<int64_t> shape,
                   schema::ElementType element, schema::Role role) {
  program.outputs.push_back(makeValue(name, std::move(shape), element, role));
  return uint32_t(program.outputs.size() - 1);
}

uint32_t addBuffer(schema::ProgramT &program, schema::BufferKind kind, uint32_t index, uint64_t offset,
                   uint64_t bytes) {
  auto buffer = std::make_unique<schema::BufferT>();
  buffer->kind = kind;
  buffer->index = index;
  buffer->offset = offset;
  buffer->bytes = bytes;
  program.buffers.push_back(std::move(buffer));
  return uint32_t(program.buffers.size() - 1);
}

schema::LaunchT &addLaunch(schema::ProgramT &program, uint32_t kernel, std::vector<uint32_t> args, uint64_t range,
                           uint64_t grain) {
  schema::LaunchT launch;
  launch.kernel = kernel;
  launch.args = std::move(args);
  launch.range = range;
  launch.grain = grain;
  return addCommand(program, std::move(launch));
}

std::unique_ptr<schema::ViewT> view(uint32_t buffer, std::vector<int64_t> shape, std::vector<int64_t> strides,
                                    uint64_t offset, schema::ElementType element) {
  auto view = std::make_unique<schema::ViewT>();
  view->buffer = buffer;
  view->offset = offset;
  view->element = element;
  view->shape = std::move(shape);
  view->strides = std::move(strides);
  return view;
}

void addPhase(schema::ProgramT &program, schema::Phase phase) {
  schema::SetPhaseT set;
  set.phase = phase;
  addCommand(program, std::move(set));
}

TestFile makeAddFile(int64_t n) {
  TestFile file;
  uint64_t bytes = uint64_t(n) * 4;
  uint32_t add = file.addKernel("add_f32", 1, {0, 0, 0}, {4, 4, 4});
  uint32_t twice = file.addKernel("double_f32", 1, {0, 0}, {4, 4});
  schema::ProgramT &program = file.addProgram("forward");
  uint32_t x = addBuffer(program, schema::BufferKind::input, addInput(program, "x", {n}), 0, bytes);
  uint32_t y = addBuffer(program, schema::BufferKind::input, addInput(program, "y", {n}), 0, bytes);
  uint32_t sum = addBuffer(program, schema::BufferKind::arena, 0, 0, bytes);
  uint32_t doubled = addBuffer(program, schema::BufferKind::output, addOutput(program, "doubled", {n}), 0, bytes);
  program.arenas.push_back(std::make_unique<schema::ArenaT>());
  program.arenas[0]->bytes = bytes;
  program.arenas[0]->lower_bound = bytes;
  addLaunch(program, add, {x, y, sum}, uint64_t(n), 16);
  addLaunch(program, twice, {sum, doubled}, uint64_t(n), 16);
  return file;
}

TestFile makeGatherFile(int64_t n) {
  TestFile file;
  uint32_t kernel = file.addKernel("gather_f32", 1, {16, 0, 0}, {0, 8, 4});
  schema::ProgramT &program = file.addProgram("forward");
  uint32_t table = addBuffer(program, schema::BufferKind::input, addInput(program, "table", {4}), 0, 16);
  uint32_t indices = addBuffer(program, schema::BufferKind::input,
                               addInput(program, "tokens", {n}, schema::ElementType::i64), 0, uint64_t(n) * 8);
  uint32_t out = addBuffer(program, schema::BufferKind::output, addOutput(program, "out", {n}), 0, uint64_t(n) * 4);
  addLaunch(program, kernel, {table, indices, out}, uint64_t(n), 8);
  auto location = std::make_unique<schema::LocationT>();
  location->file = "model.py";
  location->line = 12;
  location->name = "wte";
  file.root.locations.push_back(std::move(location));
  program.commands[0]->location = 0;
  return file;
}

} // namespace segue::test
