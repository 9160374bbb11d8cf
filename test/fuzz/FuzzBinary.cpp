//===- FuzzBinary.cpp - hostile .segue files ------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Loads bytes as a file from elsewhere and shows all that is in it. If it is let
// in, and small, each program is submitted on the cpu, a session trains with it on
// a simulated device, with no services, by watermarks or by a plan, and a step of
// it is forecast. A segue::Error is an answer; anything else that is thrown, and
// whatever a sanitizer sees, is a bug.
//
// Hashes keep accidents out, not attackers: whoever changes a file can make them
// right again. So does this target, else no mutation would get past them. Native
// code is not fuzzed: kernels that do nothing stand in the place of the file's.
//
//===----------------------------------------------------------------------===//

#include "BinaryMutator.h"
#include "SignatureHash.h"
#include "binary_generated.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Reports/MemoryForecast.h"
#include "segue/runtime/Reports/ServiceForecast.h"
#include "segue/runtime/Runtime.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

using namespace segue;
using segue::test::areNumbersAligned;
using segue::test::Bytes;
using segue::test::TestFile;

/// The trailer that VerifyBinary.cpp reads.
struct Trailer {
  uint64_t hash, fileBytes, flatBufferBytes;
  char magic[8];
};

/// Makes the hashes of signatures and segments right, if the tables can be read.
static void mendTables(Bytes &file, size_t bodyBytes, uint64_t flatBufferBytes) {
  auto *data = reinterpret_cast<uint8_t *>(file.data());
  if (flatBufferBytes > bodyBytes || flatBufferBytes < 8 ||
      uint64_t(flatbuffers::GetPrefixedSize(data)) + 4 > flatBufferBytes)
    return;
  flatbuffers::Verifier verifier(data, size_t(flatBufferBytes), 64, flatbuffers::uoffset_t(flatBufferBytes / 4));
  if (!schema::VerifySizePrefixedBinaryBuffer(verifier))
    return;
  const schema::Binary *root = schema::GetSizePrefixedBinary(data);
  if (!areNumbersAligned(*root))
    return; // who loads the file refuses it before a hash is looked at
  // Edits lay tables over each other: what is written for one may be an offset of
  // another. So all is read before anything is written.
  std::vector<std::pair<uint8_t *, uint64_t>> hashes;
  auto add = [&](const auto *table, flatbuffers::voffset_t field, uint64_t hash) {
    const auto *base = reinterpret_cast<const flatbuffers::Table *>(table);
    if (uint8_t *at = const_cast<flatbuffers::Table *>(base)->GetAddressOf(field)) // absent fields stay absent
      hashes.emplace_back(at, hash);
  };
  if (root->programs())
    for (const schema::Program *program : *root->programs()) {
      if (!program->inputs() || !program->outputs())
        continue;
      add(program, schema::Program::VT_SIGNATURE_HASH, schema::signatureHash(*program));
      add(program, schema::Program::VT_INTERFACE_HASH, schema::interfaceHash(*program));
    }
  if (root->segments())
    for (const schema::Segment *segment : *root->segments())
      if (segment->offset() <= bodyBytes && segment->length() <= bodyBytes - segment->offset())
        add(segment, schema::Segment::VT_HASH, XXH3_64bits(file.data() + segment->offset(), segment->length()));
  for (const auto &[at, hash] : hashes)
    std::memcpy(at, &hash, sizeof hash);
}

static Bytes mended(const uint8_t *data, size_t size) {
  // Aligned as a mapped file is.
  Bytes file(size);
  Trailer trailer;
  if (size < sizeof trailer)
    return file; // nothing of it is read
  std::memcpy(file.data(), data, size);
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

/// How many files got so far, told at the end: a target that stops reaching what
/// it is for has to be seen.
struct Reached {
  uint64_t loads = 0, submits = 0, sessions = 0, steps = 0, plans = 0;
  ~Reached() {
    std::fprintf(stderr, "reached: %llu loads, %llu submits, %llu sessions, %llu steps, %llu plans\n",
                 (unsigned long long)loads, (unsigned long long)submits, (unsigned long long)sessions,
                 (unsigned long long)steps, (unsigned long long)plans);
  }
};
static Reached reached;

/// Only an answer may be thrown; SEGUE_FUZZ_SAY=1 prints it.
template <typename Part> static void answered(Part part) {
  static const bool says = std::getenv("SEGUE_FUZZ_SAY");
  try {
    part();
  } catch (const Error &error) {
    if (says)
      std::fprintf(stderr, "%s\n", error.what());
  }
}

static void submitAll(const Binary &binary) {
  static const DeviceRef device = Device::open("cpu:threads=1,dram=64MiB");
  for (const Program &program : binary.programs())
    answered([&] {
      std::vector<Tensor> inputs;
      for (const Value &input : program.inputs())
        inputs.push_back(Tensor::zeros(device, input.desc()));
      for (const Tensor &output : submit(device, program, std::move(inputs)))
        wait(output);
      ++reached.submits;
    });
}

static Config byWatermarks() {
  return Config::parse(R"({"memory": {"stagehand": {
    "prefetch_window_blocks": 1, "vram_high_watermark_mb": 0.2, "vram_low_watermark_mb": 0.1, "telemetry_enabled": false,
    "conductor_config": {"enabled": true, "vram_hard_cap_mb": 4, "vram_soft_cap_mb": 4, "telemetry_enabled": false},
    "activation_stagehand": {"enabled": true, "vram_high_watermark_mb": 0.0001, "vram_low_watermark_mb": 0,
      "min_spill_bytes": 0, "pinned_pool_classes_mb": [1], "slabs_per_class": 2, "telemetry_enabled": false}}}})",
                       "watermarks");
}

static Config byPlan() {
  return Config::parse(R"({"memory": {"stagehand": {
    "conductor_config": {"enabled": true, "vram_hard_cap_mb": 1, "vram_soft_cap_mb": 1, "telemetry_enabled": false},
    "activation_stagehand": {"enabled": true, "mode": "planned", "telemetry_enabled": false}}}})",
                       "planned");
}

/// Three steps, an evaluation, a checkpoint and back.
static void train(const DeviceRef &device, const Binary &binary, const std::optional<Config> &config) {
  SessionOptions options;
  options.config = config;
  options.warn = [](const std::string &) {};
  Session session(device, {{"m", binary}}, std::move(options));
  for (const ParameterInfo &info : session.parameters())
    session.setParameter(info.key, Tensor::zeros(device, TensorDesc(info.desc.shape, info.desc.element)));
  ++reached.sessions;
  TensorMap batch = batchWithoutValues(device, session.modules(), {});
  for (const auto &[name, tensor] : batch)
    std::memset(tensor.bytes(), 0, tensor.desc().spanBytes());
  Checkpoint start = session.checkpoint();
  for (int step = 0; step < 3; ++step)
    answered([&] {
      session.step(batch, 1e-3);
      ++reached.steps;
    });
  answered([&] { session.evaluate(batch); });
  answered([&] { session.restore(start); });
  answered([&] { session.step(batch, 1e-3); });
}

static void forecast(const DeviceRef &device, const Binary &binary) {
  answered([&] {
    MemoryForecast forecast(device->name(), {{"m", binary}}, {});
    forecast.ask((forecast.unconstrained().played.peakBytes + forecast.smallest().played.peakBytes) / 2);
    forecast.json();
    forecast.text();
    ++reached.plans;
  });
  answered([&] { forecastServices(device->name(), {{"m", binary}}, {}, 1, byWatermarks()); });
}

static void use(const Binary &binary) {
  static const DeviceRef device = Device::open("sim:dram=16MiB,pinned=16MiB,host=256MiB,threads=1");
  static const std::optional<Config> configs[] = {std::nullopt, byWatermarks(), byPlan()};
  submitAll(binary);
  for (const std::optional<Config> &config : configs)
    answered([&] { train(device, binary, config); });
  forecast(device, binary);
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t mostBytes, unsigned int seed) {
  std::mt19937_64 random(seed);
  if (size > 0 && random() % 8 == 0) { // below the tables, blindly
    for (uint64_t changes = 1 + random() % 4; changes--;)
      data[random() % size] ^= uint8_t(1 << random() % 8);
    return size;
  }
  if (size == 0)
    return 0;
  Bytes aligned(size);
  std::memcpy(aligned.data(), data, size);
  std::optional<TestFile> file = test::readTables(aligned);
  if (!file)
    return size;
  Bytes changed = test::mutate(std::move(*file), random);
  if (changed.size() > mostBytes)
    return size;
  std::memcpy(data, changed.data(), changed.size());
  return changed.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const Bytes code = test::testKernels();
  Bytes file = mended(data, size);
  answered([&] {
    Binary binary = Binary::fromMemory(file, {.nativeCode = NativeCode::Refuse}, "fuzz");
    show(binary);
    ++reached.loads;
    if (!std::ranges::all_of(binary.programs(), isSmall))
      return;
    std::optional<TestFile> tables = test::readTables(file);
    if (!tables)
      return;
    Bytes harmless = test::replaceKernels(std::move(*tables), code);
    use(Binary::fromMemory(harmless, {.nativeCode = NativeCode::Allow}, "fuzz"));
  });
  return 0;
}
