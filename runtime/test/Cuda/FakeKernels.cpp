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

#include "FakeCuda.h"
#include "../Device/DeviceKernels.h"
#include <algorithm>
#include <cstring>

using namespace fakecuda;

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
