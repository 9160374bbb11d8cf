//===- DeviceTest.cpp - specs, and memory of others ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Tensor/Tensor.h"
#include <gtest/gtest.h>

using namespace segue;

TEST(Device, BadSpecsAreNamed) {
  auto message = [](const char *spec) -> std::string {
    try {
      Device::open(spec);
    } catch (const Error &error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      return error.what();
    }
    return "";
  };
  auto expect = [&](const char *spec, const char *words) {
    EXPECT_NE(message(spec).find(words), std::string::npos) << message(spec);
  };
  expect("abacus", "no driver \"abacus\"; known are \"cpu\", \"sim\"");
  expect("cpu:speed=9", "there is no option \"speed\"; known are disk, dram, pinned, profile, threads");
  expect("cpu:pinned=1MiB", "option \"pinned\" needs disk=");
  expect("cpu:disk=.", "disk= needs dram=");
  expect("cpu:dram=1MiB,disk=.?speed=9",
         "there is no option \"speed\"; known are capacity, read, write, direct, engine");
  expect("cpu:dram=1MiB,disk=.?engine=steam", "is ring or threads, not \"steam\"");
  expect("sim:disk=.?speed=9",
         "device \"sim:disk\": there is no option \"speed\"; known are capacity, read, write, direct, engine");
  expect("sim:diskread=1GB/s", "\"diskread\" needs virtual: elsewhere a disk has its speeds behind its folder");
  expect("sim:virtual,diskread=1GB/s", "diskread= and diskwrite= need disk=");
  expect("sim:host=8MiB,pinned=8MiB,disk=.", "with a disk, host= is page-locked memory; leave pinned= out");
  expect("sim:host=255KiB,disk=.", "host=261120 is too little memory of the host above a disk: buffers to and from "
                                   "the disk need 262144 bytes at least");
  expect("cpu:threads=0", "threads=0 is not a number between 1 and 1024");
  expect("cpu:threads=2x", "between 1 and 1024");
  expect("cpu:threads", "option \"threads\" needs a value, as in threads=value");
  expect("cpu:=2", "\"=2\" is not of the form key=value");
  expect("cpu:threads=2,threads=3", "\"threads\" is given twice");
  expect("sim:ram=1GiB", "there is no option \"ram\"; known are adversarial, d2h, disk, diskread, diskwrite, dram");
  expect("sim:dram=1GBit", "dram=1GBit is not a quantity such as 512MiB (units B, KB, MB, GB, TB of 1000, KiB, MiB");
  expect("sim:dram=-1MiB", "dram=-1MiB is not a quantity");
  expect("sim:dram=0.3B", "dram=0.3B is not a quantity");
  expect("sim:link=16GiB/s", "link=16GiB/s is not a quantity such as 16GB/s (units B/s, KB/s, MB/s, GB/s, TB/s)");
  expect("sim:h2d=0GB/s", "h2d=0GB/s must be above 0");
  expect("sim:latency=fast", "latency=fast is not a quantity such as 10us (units s, ms, us, ns)");
  expect("sim:virtual=2", "option \"virtual\" takes no value");
  expect("sim:virtual,adversarial=1", "either adversarial or virtual");
  expect("sim:fail-copy=0.5", "\"fail-copy\" needs adversarial=SEED");
  expect("sim:adversarial=1,fail-copy=2", "fail-copy=2 is not a number from 0 to 1");
  expect("sim:stall=0.5", "\"stall\" needs adversarial=SEED");
  for (std::string place : {"d2h=0", "d2h=x2", "d2h=7x0", "d2h=7x", "d2h=7y2", "d2h=7+1", "d2h=-1", "dram=0"})
    expect(("sim:fail-" + place).c_str(),
           "names none: 7 is the seventh, 7x2 two from it on, 7+ all");
  expect("sim:virtual,fail-h2d=1", "\"fail-h2d\" does not go with virtual, where nothing is copied");
  expect("sim:flops=1TFLOP/s", "\"flops\" needs virtual");
  expect("sim:virtual,flops=0TFLOP/s", "flops=0TFLOP/s must be above 0");
  expect("sim:virtual,flops=1", "(units GFLOP/s, TFLOP/s, PFLOP/s)");
}

// Wrapped memory is not copied, and its owner is told once, at the end.
TEST(Device, WrapKeepsTheOwnerAlive) {
  DeviceRef device = Device::open("cpu");
  alignas(64) float data[8] = {1, 2, 3};
  int released = 0;
  {
    Tensor tensor = Tensor::wrap(device, TensorDesc({2, 2}, ElementType::f32), data + 2, [&] { ++released; });
    Tensor second = tensor;
    EXPECT_EQ(tensor.bytes(), reinterpret_cast<std::byte *>(data + 2));
    EXPECT_EQ(tensor.desc().layout.alignment, 8u);
    EXPECT_FALSE(tensor.isSoleOwner());
    tensor = Tensor();
    EXPECT_FALSE(second.isSoleOwner()) << "external memory is never a donation";
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
}
