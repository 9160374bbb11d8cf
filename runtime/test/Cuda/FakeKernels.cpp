//===- FakeKernels.cpp - kernels of the fake driver -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What an entry of PTX does, a block at a time.
//
//===----------------------------------------------------------------------===//

#include "FakeGpu.h"
#include "../../lib/Cuda/Builtin/BuiltinArgs.h"
#include "../Device/DeviceKernels.h"
#include "CubinHeader.h"
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <iterator>
#include <map>
#include <string_view>
#include <vector>
#include <xmmintrin.h>
#include <xxhash.h>

using namespace fakecuda;

#define SEGUE_BUILTIN_TWIN(file, name, args, addresses) extern "C" void name##_twin(void *const *parameters);
SEGUE_BUILTIN_KERNELS(SEGUE_BUILTIN_TWIN)
#undef SEGUE_BUILTIN_TWIN

namespace {
/// Flushes denormals, or computes with them, while it lives.
class Denormals {
public:
  explicit Denormals(bool flushes) : saved_(_mm_getcsr()) { _mm_setcsr(flushes ? saved_ | modes : saved_ & ~modes); }
  ~Denormals() { _mm_setcsr(saved_); }

private:
  static constexpr unsigned modes = 0x8040; // flush to zero, denormals are zero
  unsigned saved_;
};
} // namespace

/// Runs a kernel of the host's convention on the piece of a block.
template <KernelFunctionOfTests function> static void runPiece(const Launch &launch, unsigned block) {
  std::span<const uint64_t> given = launch.parameters;
  size_t count = given.size() - 3;
  uint64_t range = given[count], piece = given[count + 1], fault = given[count + 2];
  uint64_t begin = block * piece, end = std::min(range, begin + piece);
  void *args[8];
  for (size_t i = 0; i < count; ++i)
    args[i] = at(given[i], 8);
  if (int64_t code = function(args, int64_t(begin), int64_t(end))) {
    auto *word = static_cast<uint64_t *>(at(fault, 8));
    *word = std::min(*word, uint64_t(block) << 16 | uint64_t(code));
  }
}

static void storeAtNull(const Launch &, unsigned) { std::memset(at(0, 8), 0, 8); }
static void nothing(const Launch &, unsigned) {}

/// The path of what the compiler left in the folder FAKE_CUDA_TWINS for an image; empty without one.
static std::string leftFor(std::string_view image, const char *ending) {
  const char *folder = std::getenv("FAKE_CUDA_TWINS");
  if (!folder)
    return "";
  char file[24];
  std::snprintf(file, sizeof(file), "/%016" PRIx64 ".%s", uint64_t(XXH3_64bits(image.data(), image.size())), ending);
  return folder + std::string(file);
}

/// Returns the PTX that a cubin was made of.
static std::string findPtx(std::string_view cubin) {
  std::ifstream file(leftFor(cubin, "ptx"), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

CUresult fakecuda::readCubin(const void *image, std::string &ptx) {
  // The driver has to believe the headers, as nobody tells it the size.
  segue::schema::CubinHeader header;
  if (!segue::schema::readCubinHeader(image, UINT64_MAX, header).empty())
    return invalidImage;
  if (header.abi >= segue::schema::kCubinAbiOfCuda13 && numberOf("FAKE_CUDA_VERSION", 13000) < 13000)
    return invalidImage;
  int code = int(header.capability), gpu = capability();
  if (code / 10 != gpu / 10 || code > gpu)
    return noBinaryForGpu;
  ptx = findPtx({static_cast<const char *>(image), header.bytes});
  return success;
}

segue::TwinEntry fakecuda::findTwin(const std::string &image, const std::string &name) {
  std::string path = leftFor(image, "so");
  // It stays for the life of the process.
  void *object = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!object)
    return nullptr;
  *static_cast<const segue::TwinCalls **>(dlsym(object, segue::kTwinCallsSymbol)) = &segue::twinCalls();
  return reinterpret_cast<segue::TwinEntry>(dlsym(object, (name + segue::kTwinSuffix).c_str()));
}

void fakecuda::runBlocks(segue::TwinEntry twin, const Launch &launch, uint64_t seed) {
  size_t buffers = launch.parameters.size() - 3;
  std::vector<uint64_t> values(launch.parameters.begin(), launch.parameters.end());
  std::vector<void *> parameters;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i < buffers || i + 1 == values.size())
      values[i] = reinterpret_cast<uint64_t>(at(values[i], 1));
    parameters.push_back(&values[i]);
  }
  Denormals flushed(true);
  if (!segue::runTwin(twin, launch.threads, launch.blocks, parameters.data(), segue::TwinOrder::Shuffled, seed).empty())
    throw IllegalAddress();
}

const BuiltinTwin *fakecuda::findBuiltin(const std::string &name) {
  static const std::map<std::string_view, bool> flushing = {
#define SEGUE_BUILTIN_FLUSHES(file, flushes) {#file, flushes},
      SEGUE_BUILTIN_FILES(SEGUE_BUILTIN_FLUSHES)
#undef SEGUE_BUILTIN_FLUSHES
  };
  static const BuiltinTwin twins[] = {
#define SEGUE_BUILTIN_ENTRY(file, name, args, addresses)                                                               \
  {#name, name##_twin, sizeof(segue::cuda::args), addresses, flushing.at(#file)},
      SEGUE_BUILTIN_KERNELS(SEGUE_BUILTIN_ENTRY)
#undef SEGUE_BUILTIN_ENTRY
  };
  auto found = std::ranges::find(twins, name, &BuiltinTwin::name);
  return found == std::end(twins) ? nullptr : found;
}

void fakecuda::runBuiltin(const BuiltinTwin &twin, std::vector<std::byte> args, unsigned blocks, unsigned threads,
                          uint64_t seed) {
  for (size_t i = 0; i < twin.addresses; ++i) {
    uint64_t address;
    std::memcpy(&address, args.data() + 8 * i, 8);
    void *there = address ? at(address, 1) : nullptr;
    std::memcpy(args.data() + 8 * i, &there, 8);
  }
  void *parameters[] = {args.data()};
  Denormals mode(twin.flushesDenormals);
  if (!segue::runTwin(twin.entry, threads, blocks, parameters, segue::TwinOrder::Shuffled, seed).empty())
    throw IllegalAddress();
}

fakecuda::Kernel fakecuda::findKernel(const std::string &name) {
  static constexpr struct {
    const char *name;
    Kernel kernel;
  } kernels[] = {
      {"mix", runPiece<mixKernel>},     {"mark", runPiece<markKernel>}, {"failBehind", runPiece<failBehindKernel>},
      {"storeAtNull", storeAtNull}, {"stack4096", nothing},         {"empty", nothing},
  };
  for (const auto &each : kernels)
    if (name == each.name)
      return each.kernel;
  return nullptr;
}
