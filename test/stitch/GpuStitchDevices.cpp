//===- GpuStitchDevices.cpp - random stitchings on a fake GPU -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// On GPUs of the fake driver, whose kernels are twins that the compiler made of PTX, against
// the joined program on another of them.
//
//===----------------------------------------------------------------------===//

#include "../../runtime/test/Cuda/OnFakeCuda.h"
#include "CompilePieces.h"
#include "StitchDevices.h"
#include <cstdlib>
#include <filesystem>
#include <unistd.h>

using namespace segue::test;

const uint64_t segue::test::usualStitchings = 100, segue::test::usualOrders = 1;

namespace {
/// The folder of the twins: that of FAKE_CUDA_TWINS, where they stay for who plays stored pieces, or one of this process.
class Twins {
public:
  Twins() {
    const char *given = std::getenv("FAKE_CUDA_TWINS");
    isOwn_ = !given;
    folder_ = given ? std::filesystem::path(given)
                    : std::filesystem::temp_directory_path() / ("segue-stitch-twins-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    setenv("FAKE_CUDA_TWINS", folder_.c_str(), 1);
    compileForGpus(folder_);
  }
  ~Twins() {
    if (isOwn_)
      std::filesystem::remove_all(folder_);
  }

private:
  std::filesystem::path folder_;
  bool isOwn_ = true;
};
} // namespace
static const Twins twins;

/// Calls that are made to fail, and what a driver says then.
static constexpr struct {
  const char *name;
  int result;
} failing[] = {{"cuMemcpyHtoDAsync_v2", 1}, {"cuMemcpyDtoHAsync_v2", 1}, {"cuMemCreate", 2}};

StitchDevices segue::test::drawDevices(std::mt19937_64 &random, uint64_t seed) {
  for (const auto &call : failing)
    fakecuda::failCalls(call.name, call.result, 0, 0);
  std::string options = ",dram=64MiB,pinned=16MiB";
  return {"cuda:" + std::to_string(seed % 8) + options, "cuda:15" + options, seed, random() % 5 == 0};
}

void segue::test::beginOrder(const StitchDevices &devices, uint64_t pass) {
  fakecuda::reseed(devices.seed << 20 | pass);
  std::mt19937_64 random(devices.seed << 20 | pass);
  if (devices.isFaulty)
    for (const auto &call : failing)
      fakecuda::failCalls(call.name, call.result, unsigned(random() % 12), unsigned(random() % 4));
}
