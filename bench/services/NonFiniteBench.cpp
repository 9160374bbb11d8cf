//===- NonFiniteBench.cpp - counting NaN and Inf beside memcpy ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What nan_inf_check costs per value that leaves a block: one pass over bytes that
// have just been written. In turns with memcpy, the least time of each.
//
//   build/bin/segue-bench-nonfinite [rounds]
//
//===----------------------------------------------------------------------===//

#include "../../runtime/lib/Tensor/CountNonFinite.h"
#include "segue/runtime/Device/Device.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using namespace segue;

template <typename Call> static double secondsOf(Call &&call) {
  auto from = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
}

int main(int argc, char **argv) {
  int rounds = argc > 1 ? std::atoi(argv[1]) : 30;
  for (const char *spec : {"cpu:threads=1", "cpu:threads=2"}) {
    DeviceRef device = Device::open(spec);
    for (ElementType element : {ElementType::f32, ElementType::bf16, ElementType::f16})
      for (int64_t kiB : {256, 4096, 65536}) {
        int64_t bytes = kiB << 10;
        Tensor tensor = Tensor::onHost(device, {bytes / int64_t(byteSize(element))}, element);
        std::memset(tensor.bytes(), 0x3f, size_t(bytes));
        std::vector<std::byte> copied(static_cast<size_t>(bytes));
        double counted = INFINITY, copy = INFINITY;
        for (int i = 0; i < rounds; ++i) {
          Fence done;
          counted = std::min(counted, secondsOf([&] { countNonFinite(tensor, done); }));
          copy = std::min(copy, secondsOf([&] { std::memcpy(copied.data(), tensor.bytes(), size_t(bytes)); }));
        }
        std::printf("%-14s %-5s %6lld KiB  %8.1f us  %6.1f GB/s  memcpy %8.1f us\n", spec,
                    std::string(name(element)).c_str(), (long long)kiB, counted * 1e6, double(bytes) / counted / 1e9,
                    copy * 1e6);
      }
  }
}
