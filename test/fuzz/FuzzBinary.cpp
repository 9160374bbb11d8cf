//===- FuzzBinary.cpp - hostile .segue files ------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Loads bytes as a file from elsewhere, shows all that is in it and runs what is
// small enough on the cpu, without native kernels. A segue::Error is an answer;
// anything else that is thrown, and whatever AddressSanitizer sees, is a bug.
//
// Hashes keep accidents out, not attackers: whoever changes a file can make them
// right again. So does this target, else no mutation would get past them.
//
//===----------------------------------------------------------------------===//

#include "SignatureHash.h"
#include "binary_generated.h"
#include "segue/runtime/Runtime.h"
#include <cstring>

using namespace segue;

/// As VerifyBinary.cpp reads it.
struct Trailer {
  uint64_t hash, fileBytes, flatBufferBytes;
  char magic[8];
};

template <typename Table> static void setHash(const Table *table, flatbuffers::voffset_t field, uint64_t hash) {
  auto *base = const_cast<flatbuffers::Table *>(reinterpret_cast<const flatbuffers::Table *>(table));
  base->SetField<uint64_t>(field, hash, 0); // leaves absent fields absent
}

/// Makes the hashes of signatures and segments right, if the tables can be read.
static void mendTables(std::vector<std::byte> &file, size_t bodyBytes, uint64_t flatBufferBytes) {
  auto *data = reinterpret_cast<uint8_t *>(file.data());
  if (flatBufferBytes > bodyBytes || flatBufferBytes < 8 ||
      uint64_t(flatbuffers::GetPrefixedSize(data)) + 4 > flatBufferBytes)
    return;
  flatbuffers::Verifier verifier(data, size_t(flatBufferBytes), 64, flatbuffers::uoffset_t(flatBufferBytes / 4));
  if (!schema::VerifySizePrefixedBinaryBuffer(verifier))
    return;
  const schema::Binary *root = schema::GetSizePrefixedBinary(data);
  if (root->programs())
    for (const schema::Program *program : *root->programs()) {
      if (!program->inputs() || !program->outputs())
        continue;
      setHash(program, schema::Program::VT_SIGNATURE_HASH, schema::signatureHash(*program));
      setHash(program, schema::Program::VT_INTERFACE_HASH, schema::interfaceHash(*program));
    }
  if (root->segments())
    for (const schema::Segment *segment : *root->segments())
      if (segment->offset() <= bodyBytes && segment->length() <= bodyBytes - segment->offset())
        setHash(segment, schema::Segment::VT_HASH, XXH3_64bits(file.data() + segment->offset(), segment->length()));
}

static std::vector<std::byte> mended(const uint8_t *data, size_t size) {
  // Aligned as a mapped file is.
  std::vector<std::byte> file(size);
  std::memcpy(file.data(), data, size);
  Trailer trailer;
  if (size < sizeof trailer)
    return file;
  size_t bodyBytes = size - sizeof trailer;
  std::memcpy(&trailer, file.data() + bodyBytes, sizeof trailer);
  mendTables(file, bodyBytes, trailer.flatBufferBytes);
  trailer.hash = XXH3_64bits(file.data(), bodyBytes);
  trailer.fileBytes = size;
  std::memcpy(trailer.magic, "SEGUEEND", 8);
  std::memcpy(file.data() + bodyBytes, &trailer, sizeof trailer);
  return file;
}

static void show(const Binary &binary) {
  std::string seen = binary.producer();
  for (const auto &[key, value] : binary.options())
    seen += key + value;
  for (const KernelInfo &kernel : binary.kernels())
    seen += kernel.name;
  for (const SegmentInfo &segment : binary.segments())
    seen += segment.kind;
  for (const Program &program : binary.programs()) {
    seen += program.name();
    for (const std::vector<Value> *values : {&program.inputs(), &program.outputs()})
      for (const Value &value : *values)
        seen += value.name + value.of + value.location + value.desc().str();
    for (const SavePoint &save : program.savePoints())
      seen += save.block;
    for (const CommandCount &count : program.commandCounts())
      seen += count.kind;
  }
}

/// True if a run takes milliseconds: what a caller checks before he runs a
/// program from elsewhere.
static bool isSmall(const Program &program) {
  constexpr uint64_t mostBytes = 64 << 10, mostFlops = 10'000'000, mostCommands = 200;
  uint64_t bytes = program.arenaBytes(), commands = 0;
  for (const std::vector<Value> *values : {&program.inputs(), &program.outputs()})
    for (const Value &value : *values)
      bytes = std::max({bytes, value.desc().spanBytes(), value.desc().elementCount()});
  for (const CommandCount &count : program.commandCounts())
    commands += count.count;
  return bytes <= mostBytes && commands <= mostCommands && program.matmulFlops() <= mostFlops;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const DeviceRef device = Device::open("cpu:threads=1,dram=64MiB");
  std::vector<std::byte> file = mended(data, size);
  try {
    Binary binary = Binary::fromMemory(file, {.nativeCode = NativeCode::Refuse}, "fuzz");
    show(binary);
    for (const Program &program : binary.programs()) {
      if (!isSmall(program))
        continue;
      try {
        std::vector<Tensor> inputs;
        for (const Value &input : program.inputs())
          inputs.push_back(Tensor::zeros(device, input.desc()));
        for (const Tensor &output : submit(device, program, std::move(inputs)))
          wait(output);
      } catch (const Error &) {
      }
    }
  } catch (const Error &) {
  }
  return 0;
}
