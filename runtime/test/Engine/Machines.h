//===- Machines.h - what the tests of the engine run on ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Numbers of threads and instruction sets; the kernels of a lesser processor
// run on a better one.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_ENGINE_MACHINES_H
#define SEGUE_RUNTIME_TEST_ENGINE_MACHINES_H

#include "segue/runtime/Engine/CpuEngine.h"
#include <gtest/gtest.h>
#include <string>

namespace segue::test {

/// Threads and the best instruction set used; beyond this machine's, its best.
struct Machine {
  int threads;
  InstructionSet set;
};
inline std::string describe(const testing::TestParamInfo<Machine> &info) {
  const char *sets[] = {"x86_64", "v3", "v4"};
  return std::string(sets[int(info.param.set)]) + "x" + std::to_string(info.param.threads);
}
inline const auto kMachines = testing::Values(
    Machine{1, InstructionSet::x86_64_v4}, Machine{2, InstructionSet::x86_64_v4}, Machine{3, InstructionSet::x86_64_v4},
    Machine{2, InstructionSet::x86_64_v3}, Machine{2, InstructionSet::x86_64});

} // namespace segue::test

#endif // SEGUE_RUNTIME_TEST_ENGINE_MACHINES_H
