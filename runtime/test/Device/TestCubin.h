//===- TestCubin.h - cubins for tests ---------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// ptxas is not there to make tests: these have the headers of a cubin, and some bytes where
// code would be. The fake driver runs what it finds for their hash.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_DEVICE_TESTCUBIN_H
#define SEGUE_TEST_DEVICE_TESTCUBIN_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace segue::test {

/// Where the numbers of the header are that tests change.
enum CubinPlace : size_t {
  cubinMachine = 18,
  cubinProgramsAt = 32,
  cubinSectionsAt = 40,
  cubinProgramCount = 56,
  cubinSectionCount = 60,
  cubinNameSection = 62,
  cubinCode = 64,
};

/// Returns a cubin for GPUs of `capability` (times ten) whose code is `code`. The ABI is that of CUDA 13, or 7 for that
/// of 12.
inline std::vector<std::byte> testCubin(uint32_t capability, std::string_view code = "code", uint8_t abi = 8) {
  constexpr size_t headerBytes = 64, programBytes = 56;
  size_t sections = cubinCode + code.size(), programs = sections + 2 * headerBytes;
  std::vector<std::byte> cubin(programs + programBytes);
  auto put = [&](size_t at, auto value) { std::memcpy(cubin.data() + at, &value, sizeof(value)); };
  std::memcpy(cubin.data(), "\177ELF\2\1\1", 7);
  put(7, uint8_t(abi == 8 ? 65 : 51));
  put(8, abi);
  put(16, uint16_t(2)); // executable
  put(cubinMachine, uint16_t(190));
  put(20, uint32_t(1));
  put(cubinProgramsAt, uint64_t(programs));
  put(cubinSectionsAt, uint64_t(sections));
  put(48, abi == 8 ? capability << 8 | 4 : capability | capability << 16);
  put(52, uint16_t(headerBytes));
  put(54, uint16_t(programBytes));
  put(cubinProgramCount, uint16_t(1));
  put(58, uint16_t(headerBytes));
  put(cubinSectionCount, uint16_t(2));
  put(cubinNameSection, uint16_t(1));
  std::memcpy(cubin.data() + cubinCode, code.data(), code.size());
  size_t second = sections + headerBytes; // the first section is none
  put(second + 4, uint32_t(1));
  put(second + 24, uint64_t(cubinCode));
  put(second + 32, uint64_t(code.size()));
  put(programs, uint32_t(1));
  put(programs + 8, uint64_t(cubinCode));
  put(programs + 32, uint64_t(code.size()));
  return cubin;
}

} // namespace segue::test

#endif // SEGUE_TEST_DEVICE_TESTCUBIN_H
