//===- CudaProductsTest.cpp - what is particular to cuBLASLt --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What is refused, what fails and where workspaces come from, on the fake library.
//
//===----------------------------------------------------------------------===//

#include "../Engine/MatmulCases.h"
#include "CudaTestParts.h"
#include "FakeCuda.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Error.h"
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <thread>

using namespace segue;
using namespace segue::test;

static constexpr int allocFailed = 3, executionFailed = 13, notSupported = 15, notInitialized = 1;

static MatmulSpec square(int64_t n, ElementType type = ElementType::f32) {
  MatmulSpec spec{1, n, n, n};
  spec.a = spec.b = spec.c = place(type, n, n, Lie::Plain);
  return spec;
}

/// Returns what planning a spec fails with.
static std::string refusal(Device &device, const MatmulSpec &spec, ErrorCode code = ErrorCode::Unsupported) {
  EXPECT_EQ(spec.findProblem(), "");
  try {
    device.engine().planMatmul(spec);
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "it was planned";
}

namespace {
class CudaProductsTest : public testing::Test {
protected:
  /// Runs a product of zeros on the device, in a body; what it failed with, or nothing.
  std::string run(const MatmulPlan &plan, Queue queue = Queue::Compute) {
    std::string message;
    Work work{[&] { plan.run(a.data, b.data, c.data, nullptr); }};
    work.ended = [&](const Error *error) { message = error ? error->what() : ""; };
    device->wait(Fence(queue, device->enqueue(queue, {}, std::move(work))));
    return message;
  }
  MemoryBlock take(uint64_t bytes) { return device->memory().allocate(dram, bytes, 512); }

  DeviceRef device = Device::open("cuda:9,dram=16MiB,pinned=4MiB,workspace=4MiB");
  static constexpr uint64_t bytes = 64 * 64 * 4;
  MemoryBlock a = take(bytes), b = take(bytes), c = take(bytes);
};
} // namespace

TEST(CudaProducts, AMachineWithoutTheLibrarySaysWhatToInstall) {
  std::string before = getenv("SEGUE_CUBLASLT_LIBRARY");
  auto with = [&](const char *library) {
    setenv("SEGUE_CUBLASLT_LIBRARY", library, 1);
    DeviceRef device = Device::open("cuda:9,dram=4MiB,pinned=4MiB");
    return refusal(*device, square(8));
  };
  std::string message = with("/nowhere/libcublasLt.so.13");
  expectWords(message, "products need cuBLASLt, and there is no cuBLASLt: /nowhere/libcublasLt.so.13: cannot open");
  expectWords(message, "pip install nvidia-cublas==13.1.0.3");
  expectWords(message, "LD_LIBRARY_PATH");
  expectWords(with("libm.so.6"), "has no cublasLtGetVersion; it is too old, cuBLAS 12 is the least");
  setenv("FAKE_CUBLASLT_VERSION", "111103", 1);
  std::string other = before;
  other.insert(other.rfind('/'), "/."); // the same file, looked at anew
  expectWords(with(other.c_str()), "is of version 111103; cuBLAS 12 (120000) is the least");
  unsetenv("FAKE_CUBLASLT_VERSION");
  setenv("SEGUE_CUBLASLT_LIBRARY", "/nowhere/libcublasLt.so.13", 1);
  DeviceRef device = Device::open("cuda:9,dram=4MiB,pinned=4MiB");
  MatmulSpec empty = square(8);
  empty.k = 0;
  EXPECT_NO_THROW(device->engine().planMatmul(empty)) << "nothing to sum up, nothing to open";
  setenv("SEGUE_CUBLASLT_LIBRARY", before.c_str(), 1);
  fakecuda::failCalls("cublasLtCreate", notInitialized, 0, 1);
  expectWords(refusal(*device, square(8)), "cublasLtCreate gives CUBLAS_STATUS_NOT_INITIALIZED (1)");
  EXPECT_NO_THROW(device->engine().planMatmul(square(8)));
}

// The wheels of a virtual environment are found without LD_LIBRARY_PATH.
TEST(CudaProducts, FindsTheWheelsOfAnEnvironment) {
  for (const char *name : {"libcublasLt.so.13", "libcublasLt.so.12"})
    if (void *handle = dlopen(name, RTLD_LAZY)) {
      dlclose(handle);
      GTEST_SKIP() << "the system has one, which comes first";
    }
  std::string before = getenv("SEGUE_CUBLASLT_LIBRARY"), folder = testing::TempDir() + "segue-wheels";
  std::string wheel = folder + "/lib/python3.11/site-packages/nvidia/cu13/lib";
  ASSERT_EQ(std::system(("rm -rf " + folder + " && mkdir -p " + wheel + " && ln -s " + before + " " + wheel +
                         "/libcublasLt.so.13")
                            .c_str()),
            0);
  unsetenv("SEGUE_CUBLASLT_LIBRARY");
  setenv("VIRTUAL_ENV", folder.c_str(), 1);
  DeviceRef device = Device::open("cuda:9,dram=4MiB,pinned=4MiB");
  EXPECT_NO_THROW(device->engine().planMatmul(square(8)));
  unsetenv("VIRTUAL_ENV");
  setenv("SEGUE_CUBLASLT_LIBRARY", before.c_str(), 1);
}

TEST_F(CudaProductsTest, SaysWhatItRefuses) {
  auto refused = [&](auto change) {
    MatmulSpec spec = square(40);
    change(spec);
    return refusal(*device, spec);
  };
  expectWords(refused([](MatmulSpec &s) {
                s.a.element = s.b.element = s.c.element = s.bias = ElementType::f64;
                s.hasBias = s.accumulate = true;
              }),
              "f64 with a bias that is added to what the result holds");
  expectWords(refused([](MatmulSpec &s) {
                s.k = 0;
                s.hasBias = s.accumulate = true;
              }),
              "a product without depth with a bias that is added to what the result holds");
  expectWords(refused([](MatmulSpec &s) {
                s.m = s.n = s.k = 1;
                s.batch = int64_t(1) << 31;
                s.a.strides = s.b.strides = s.c.strides = {2, 1, 1};
              }),
              "cuBLASLt takes at most 2147483647 matrices, not 2147483648");
  fakecuda::failCalls("cublasLtMatmulAlgoGetHeuristic", notSupported, 0, 1);
  MatmulSpec spec = square(40, ElementType::bf16);
  expectWords(refusal(*device, spec), "cuBLASLt has no algorithm for bf16 [1, 40, 40] times [40, 40] in bf16");
}

// What the library cannot read is copied, in memory that is in the books.
TEST_F(CudaProductsTest, CopiesAreInTheBooks) {
  MatmulSpec spec = square(40);
  spec.a.strides = {0, 0, 1};
  uint64_t before = device->memory().liveBytes(dram);
  expectWords(device->engine().planMatmul(spec)->describe(), "copies 6400 a");
  EXPECT_EQ(device->memory().liveBytes(dram) - before, 4 * mib + (64 << 10)) << "a workspace and copies";
  expectWords(device->memory().holdersTable(dram), "(operands of products)");
  spec.b.strides = {0, 80, 2};
  device->memory().setBudget(dram, device->memory().liveBytes(dram) + 100);
  EXPECT_NO_THROW(device->engine().planMatmul(spec)) << "the same memory";
  spec = square(200);
  spec.a.strides = {0, 0, 1};
  expectWords(refusal(*device, spec, ErrorCode::DeviceOom), "(operands of products)");
}

// Where the library adds no bias to such a product, the bias is there before the product.
TEST_F(CudaProductsTest, ABiasMayBeCopiedInstead) {
  MatmulSpec spec = square(64);
  spec.hasBias = true;
  fakecuda::failCalls("cublasLtMatmulAlgoGetHeuristic", notSupported, 0, 1);
  auto plan = device->engine().planMatmul(spec);
  expectWords(plan->describe(), "bias copied");
  std::vector<float> ones(64 * 64, 1), found(64 * 64);
  for (const MemoryBlock &block : {a, b, c})
    device->copy(block.data, ones.data(), bytes);
  MemoryBlock bias = take(256);
  device->copy(bias.data, ones.data(), 256);
  plan->run(a.data, b.data, c.data, bias.data);
  device->copy(found.data(), c.data, bytes);
  EXPECT_EQ(std::ranges::count(found, 65.0f), 64 * 64);
}

TEST_F(CudaProductsTest, FailedCallsAreErrorsOfTheirEntry) {
  auto plan = device->engine().planMatmul(square(64));
  fakecuda::failCalls("cublasLtMatmul", executionFailed, 0, 1);
  expectWords(run(*plan), "UNSUPPORTED: device \"cuda:9,dram=16777216,pinned=4194304,workspace=4194304\": cublasLtMatmul gives "
                          "CUBLAS_STATUS_EXECUTION_FAILED (13): a status of the fake library");
  fakecuda::failCalls("cublasLtMatmul", allocFailed, 0, 1);
  expectWords(run(*plan), "DEVICE_OOM: device");
  EXPECT_EQ(run(*plan), "") << "the device goes on";
  for (const char *call : {"cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute", "cublasLtMatrixLayoutCreate",
                           "cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceSetAttribute",
                           "cublasLtMatmulAlgoGetHeuristic"}) {
    fakecuda::failCalls(call, allocFailed, 0, 1);
    expectWords(refusal(*device, square(48), ErrorCode::DeviceOom), call);
    fakecuda::reset();
  }
  EXPECT_NO_THROW(device->engine().planMatmul(square(48)));
}

// Memory beyond what is mapped ends the GPU, and the library's status becomes the driver's word.
TEST(CudaProducts, ALostDeviceIsTheDriversWord) {
  DeviceRef device = Device::open("cuda:6,dram=4MiB,pinned=4MiB");
  auto plan = device->engine().planMatmul(square(8));
  MemoryBlock block = device->memory().allocate(dram, 4096, 512);
  auto *wild = static_cast<std::byte *>(block.data) + 64 * mib;
  std::vector<std::string> messages;
  for (int i = 0; i < 2; ++i) {
    Work work{[&] { plan->run(wild, block.data, static_cast<std::byte *>(block.data) + 1024, nullptr); }};
    work.ended = [&](const Error *error) { messages.push_back(error ? error->what() : ""); };
    device->wait(Fence(Queue::Compute, device->enqueue(Queue::Compute, {}, std::move(work))));
  }
  ASSERT_EQ(messages.size(), 2u);
  for (const std::string &message : messages)
    expectWords(message, "DEVICE_LOST: device \"cuda:6\" has failed");
  EXPECT_THROW(device->engine().planMatmul(square(16)), Error);
}

//===----------------------------------------------------------------------===//
// Workspaces
//===----------------------------------------------------------------------===//

// The fake wants twice the sums of a product for its best algorithm.
TEST_F(CudaProductsTest, WorkspacesAreInTheBooks) {
  uint64_t before = device->memory().liveBytes(dram);
  auto taken = [&] { return device->memory().liveBytes(dram) - before; };
  EXPECT_EQ(device->bytesForPrograms(), 4 * mib);
  auto plan = device->engine().planMatmul(square(64));
  EXPECT_EQ(taken(), 4 * mib) << "all that products of a queue will have, with the first";
  EXPECT_EQ(device->bytesForPrograms(), 0u);
  expectWords(plan->describe(), "workspace 32768");
  expectWords(device->memory().holdersTable(dram), "(workspace of products)");
  MatmulSpec wide = square(64);
  wide.m = 512;
  device->engine().planMatmul(wide);
  EXPECT_EQ(taken(), 4 * mib) << "one for all";
  EXPECT_EQ(run(*plan), "");
  EXPECT_EQ(taken(), 4 * mib);
  EXPECT_EQ(run(*plan, Queue::HostToDevice), "");
  EXPECT_EQ(taken(), 8 * mib) << "another queue, which runs beside this one";
  plan->run(a.data, b.data, c.data, nullptr);
  EXPECT_EQ(taken(), 12 * mib) << "and what is asked for outside of a body";
}

// What is to be taken is said to the byte, and taken as it was said.
TEST(CudaProducts, AWorkspaceOfAnySizeIsForeseen) {
  for (const char *size : {"3MiB", "1KiB"}) {
    DeviceRef device = Device::open(std::string("cuda:9,dram=16MiB,pinned=4MiB,workspace=") + size);
    uint64_t foreseen = device->bytesForPrograms().value_or(0);
    auto plan = device->engine().planMatmul(square(64));
    EXPECT_EQ(device->memory().liveBytes(dram), foreseen) << size;
    EXPECT_EQ(device->bytesForPrograms(), 0u);
  }
}

// An algorithm with less workspace would sum in another order: a budget must not change a bit.
TEST_F(CudaProductsTest, WhereThereIsNoRoomForAWorkspaceThereIsNoProduct) {
  device->memory().setBudget(dram, device->memory().liveBytes(dram) + 100);
  EXPECT_THROW(device->engine().planMatmul(square(64)), OutOfMemory);
  device->memory().setBudget(dram, 16 * mib);
  auto plan = device->engine().planMatmul(square(64));
  expectWords(plan->describe(), "workspace 32768");
  device->memory().setBudget(dram, device->memory().liveBytes(dram) + 100);
  EXPECT_EQ(run(*plan), "");
  expectWords(run(*plan, Queue::HostToDevice), "there is no memory for the workspace of a product");
  device->memory().setBudget(dram, 16 * mib);
  DeviceRef none = Device::open("cuda:9,dram=4MiB,pinned=4MiB");
  expectWords(none->engine().planMatmul(square(64))->describe(), "workspace 0");
  EXPECT_EQ(none->name(), "cuda:9,dram=4194304,pinned=4194304");
  EXPECT_NE(device->name().find(",workspace=4194304"), std::string::npos);
}

TEST(CudaProducts, AWorkspaceWaitsForThoseWhoHadItsMemory) {
  DeviceRef device = Device::open("cuda:9,dram=2MiB,pinned=4MiB,workspace=64KiB");
  MemoryBlock all = device->memory().allocate(dram, 2 * mib, 512);
  std::atomic<bool> mayEnd{false};
  uint64_t held = device->enqueueCall(Queue::DeviceToHost, {}, [&] {
    while (!mayEnd)
      std::this_thread::yield();
  });
  Fence use(Queue::HostToDevice, device->enqueue(Queue::HostToDevice, Fence(Queue::DeviceToHost, held),
                                                 {[&] { device->engine().fill(all.data, 2 * mib, 1, 1); }}));
  device->memory().free(dram, all.data, 2 * mib, 512, all.account, use);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    mayEnd = true;
  });
  auto plan = device->engine().planMatmul(square(64));
  EXPECT_TRUE(device->isDone(use)) << "no run waits for more than its queue";
  other.join();
  expectWords(plan->describe(), "workspace 32768");
}

//===----------------------------------------------------------------------===//
// TF32, and what the fake finds
//===----------------------------------------------------------------------===//

TEST(CudaProducts, Tf32IsByChoice) {
  EXPECT_THROW(Device::open("cuda:9,dram=4MiB,pinned=4MiB,tf32=yes"), Error);
  float errors[2];
  for (bool isOn : {false, true}) {
    DeviceRef device = Device::open(std::string("cuda:9,dram=4MiB,pinned=4MiB") + (isOn ? ",tf32=on" : ""));
    EXPECT_EQ(device->name().find("tf32=on") != std::string::npos, isOn);
    MemoryBlock block = device->memory().allocate(dram, 3 * 1024, 512);
    float values[3][256] = {};
    for (int i = 0; i < 16; ++i)
      values[0][i * 17] = values[1][i * 17] = 1 + 0x1p-12f; // a multiple of the unit matrix, which TF32 cannot hold
    device->copy(block.data, values, sizeof(values));
    auto *at = static_cast<std::byte *>(block.data);
    device->engine().planMatmul(square(16))->run(at, at + 1024, at + 2048, nullptr);
    device->copy(values, block.data, sizeof(values));
    errors[isOn] = std::abs(values[2][0] - (1 + 0x1p-12f) * (1 + 0x1p-12f));
  }
  EXPECT_EQ(errors[0], 0);
  EXPECT_GT(errors[1], 0x1p-12f);
  EXPECT_LT(errors[1], 0x1p-10f);
}

// A GPU before sm_89 multiplies INT8 and no FP8: such a weight is widened there, as without the choice.
TEST(CudaProducts, CodesAreThoseOfTheGpu) {
  QuantizedMatmulSpec spec{.rows = 150, .out = 432, .in = 144, .codeStride = 144, .xStride = 144, .yStride = 432};
  for (const char *capability : {"86", "89"}) {
    setenv("FAKE_CUDA_CAPABILITY", capability, 1);
    DeviceRef device = Device::open("cuda:9,dram=4MiB,pinned=4MiB,panels=256KiB,codes=on");
    unsetenv("FAKE_CUDA_CAPABILITY");
    EXPECT_NE(device->name().find(",codes=on"), std::string::npos) << device->name();
    auto describe = [&](StorageType storage) {
      spec.storage = storage;
      setenv("FAKE_CUDA_CAPABILITY", capability, 1);
      std::string text = device->engine().planQuantizedMatmul(spec)->describe();
      unsetenv("FAKE_CUDA_CAPABILITY");
      return text;
    };
    EXPECT_EQ(describe(StorageType::Int8Row), "codes by codes, 128 x 432, cublaslt int8, workspace 0");
    for (StorageType storage : {StorageType::Fp8E4M3Row, StorageType::Fp8E5M2Row})
      EXPECT_EQ(describe(storage), std::string(capability) == "89"
                                       ? "codes by codes, 128 x 432, cublaslt fp8, workspace 0"
                                       : "codes by panels of 320, cublaslt f32, workspace 0");
  }
}

// The tests above rest on what the fake looks at.
TEST_F(CudaProductsTest, TheFakeFindsMisuse) {
  auto misuse = [&](auto use) {
    use();
    std::string found = fakecuda::misuse();
    fakecuda::reset();
    return found;
  };
  auto plan = device->engine().planMatmul(square(64));
  // Its A is our b.
  EXPECT_EQ(misuse([&] { EXPECT_THROW(plan->run(a.data, b.data, a.data, nullptr), Error); }), "B and D overlap\n");
  auto *inside = static_cast<std::byte *>(b.data) + bytes - 256;
  EXPECT_EQ(misuse([&] { EXPECT_THROW(plan->run(a.data, b.data, inside, nullptr), Error); }), "A and D overlap\n");
  // Unaligned operands are answered for, as such.
  EXPECT_EQ(misuse([&] { plan->run(static_cast<std::byte *>(a.data) + 4, b.data, c.data, nullptr); }), "");
}
