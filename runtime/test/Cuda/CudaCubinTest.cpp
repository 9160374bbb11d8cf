//===- CudaCubinTest.cpp - which code of a kernel a GPU is given -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../Device/DeviceKernels.h"
#include "../Device/TestCubin.h"
#include "CudaTestParts.h"
#include "FakeCuda.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include <cinttypes>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <unistd.h>
#include <xxhash.h>

using namespace segue;
using namespace segue::test;

namespace {
class CudaCubin : public testing::Test {
protected:
  CudaCubin() : folder(std::filesystem::temp_directory_path() / ("segue-cubins-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder);
    set("FAKE_CUDA_TWINS", folder.string());
  }
  ~CudaCubin() override {
    for (const auto &[variable, before] : saved)
      before.empty() ? unsetenv(variable.c_str()) : setenv(variable.c_str(), before.c_str(), 1);
    std::filesystem::remove_all(folder);
  }

  void set(const std::string &variable, const std::string &value) {
    const char *before = getenv(variable.c_str());
    saved.try_emplace(variable, before ? before : "");
    setenv(variable.c_str(), value.c_str(), 1);
  }

  /// Adds a cubin of the kernels of tests to the source. The fake driver has no use for one that is broken.
  void addCubin(uint32_t capability, bool isBroken = false) {
    addCubin(capability, testCubin(capability, "code " + std::to_string(objects.size())), isBroken);
  }
  void addCubin(uint32_t capability, std::vector<std::byte> cubin, bool isBroken = false) {
    const std::vector<std::byte> &object = objects.emplace_back(std::move(cubin));
    char name[24];
    std::snprintf(name, sizeof(name), "%016" PRIx64 ".ptx", uint64_t(XXH3_64bits(object.data(), object.size())));
    if (!isBroken)
      std::ofstream(folder / name) << deviceKernelsPtx;
    source.variants.push_back(
        {KernelIsa::Cubin, uint32_t(objects.size()), object, "failBehind", /*blocks=*/1, capability});
  }
  void addPtx(std::string_view text = deviceKernelsPtx) {
    source.variants.push_back({KernelIsa::Ptx, 0, std::as_bytes(std::span(text)), "failBehind"});
  }

  /// Returns what is loaded to make the kernel, "cubin", "PTX", or "two" of them, one after the other; or the error.
  std::string loaded() {
    DeviceRef gpu = Device::open("cuda:10,dram=4MiB,pinned=1MiB");
    uint64_t all = fakecuda::callCount("cuModuleLoadData"), cubins = fakecuda::callCount(ofCubin);
    try {
      gpu->makeKernel(source);
    } catch (const Error &error) {
      return error.what();
    }
    all = fakecuda::callCount("cuModuleLoadData") - all;
    cubins = fakecuda::callCount(ofCubin) - cubins;
    return all == 2 ? "two" : all != 1 ? "nothing" : cubins ? "cubin" : "PTX";
  }

  static constexpr const char *ofCubin = "cuModuleLoadData of a cubin";
  std::filesystem::path folder;
  std::map<std::string, std::string> saved;
  std::deque<std::vector<std::byte>> objects;
  KernelSource source{"model.segue", "k0", {}};
};
} // namespace

// The PTX is none: nothing but the cubin can have been loaded. It says the grid, one block of all units.
TEST_F(CudaCubin, ACubinIsTakenBeforePtxAndRuns) {
  addPtx("no PTX at all");
  addCubin(90);
  EXPECT_EQ(loaded(), "cubin");
  DeviceRef gpu = Device::open("cuda:10,dram=4MiB,pinned=1MiB");
  MemoryBlock limit = gpu->memory().allocate(dram, 512, 512);
  int64_t units = 20;
  gpu->copy(limit.data, &units, sizeof(units));
  KernelRef kernel = gpu->makeKernel(source), other = gpu->makeKernel(source);
  void *args[] = {limit.data};
  EXPECT_NO_THROW(gpu->launch(*kernel, args, 2 * units, units, 1)) << "one block, not two";
  EXPECT_EQ(fakecuda::callCount(ofCubin), 2u) << "once per device, whatever the number of kernels in it";
  gpu->memory().free(dram, limit.data, 512, 512, limit.account, {});
}

TEST_F(CudaCubin, TheNewestThatTheGpuRunsIsTaken) {
  set("FAKE_CUDA_CAPABILITY", "89");
  addPtx("no PTX at all");
  for (uint32_t capability : {80u, 86u, 90u, 75u})
    addCubin(capability, /*isBroken=*/capability != 86);
  EXPECT_EQ(loaded(), "cubin");
}

TEST_F(CudaCubin, CodeOfAnotherGenerationIsLeftAlone) {
  for (uint32_t capability : {80u, 100u, 91u})
    addCubin(capability);
  expectWords(loaded(), "UNSUPPORTED: model.segue: kernel \"k0\" has no PTX, and its cubins (sm_80, sm_100, sm_91) are not "
                        "for a GPU of compute capability 9.0 with this driver; compile it with a --target that is no later");
  addPtx();
  EXPECT_EQ(loaded(), "PTX");
}

// What a file says of a cubin is compared with its header at load. A driver may refuse it all the same.
TEST_F(CudaCubin, PtxStandsInWhereTheDriverRefuses) {
  addCubin(90, testCubin(80));
  expectWords(loaded(),
              "UNSUPPORTED: model.segue: segment 1: cuModuleLoadData gives CUDA_ERROR_NO_BINARY_FOR_GPU (209)");
  addPtx();
  EXPECT_EQ(loaded(), "two");
  source.variants.clear();
  addCubin(90);
  addPtx();
  fakecuda::failCalls("cuModuleLoadData", 222, 0, 1); // PTX of a version, or code of a toolkit, that is too new
  EXPECT_EQ(loaded(), "two");
  EXPECT_EQ(loaded(), "cubin");
}

// Drivers of CUDA 12 call the headers that ptxas of CUDA 13 writes damaged, and those of their own time not.
TEST_F(CudaCubin, ADriverIsGivenNoAbiThatItDoesNotKnow) {
  set("FAKE_CUDA_VERSION", "12080");
  addCubin(90);
  addPtx();
  EXPECT_EQ(loaded(), "PTX");
  addCubin(90, testCubin(90, "of CUDA 12", 7));
  EXPECT_EQ(loaded(), "cubin");
}

TEST_F(CudaCubin, DamageIsSaidThoughThereIsPtx) {
  addPtx();
  addCubin(90, /*isBroken=*/true);
  expectWords(loaded(), "FILE_CORRUPT: model.segue: segment 1: cuModuleLoadData gives CUDA_ERROR_INVALID_IMAGE (200)");
  source.variants.pop_back();
  std::vector<std::byte> cut = testCubin(90);
  cut.resize(cut.size() - 1);
  addCubin(90, cut);
  expectWords(loaded(),
              "FILE_CORRUPT: model.segue: segment 2: is no cubin: its 1 program headers are not within its bytes");
  fakecuda::failCalls("cuModuleLoadData", 2, 0, 1);
  source.variants.pop_back();
  addCubin(90);
  expectWords(loaded(), "DEVICE_OOM: model.segue: segment 3: cuModuleLoadData gives CUDA_ERROR_OUT_OF_MEMORY (2)");
}
