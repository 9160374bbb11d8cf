//===- CubinHeaderTest.cpp - headers of cubins, good and bad ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CubinHeader.h"
#include "../Device/TestCubin.h"
#include <gtest/gtest.h>
#include <memory>

using namespace segue;
using namespace segue::test;

/// Reads from a block of just that size, so that a sanitizer sees each byte beyond.
static std::string read(const std::vector<std::byte> &cubin, schema::CubinHeader &header) {
  std::unique_ptr<std::byte[]> exact(new std::byte[cubin.size()]);
  std::copy(cubin.begin(), cubin.end(), exact.get());
  return schema::readCubinHeader(exact.get(), cubin.size(), header);
}

TEST(CubinHeader, BothVersionsOfTheAbiAreRead) {
  for (uint8_t abi : {7, 8})
    for (uint32_t capability : {80u, 89u, 90u, 100u, 121u}) {
      std::vector<std::byte> cubin = testCubin(capability, "some code", abi);
      schema::CubinHeader header;
      EXPECT_EQ(read(cubin, header), "");
      EXPECT_EQ(header.capability, capability);
      EXPECT_EQ(header.abi, abi);
      EXPECT_EQ(header.bytes, cubin.size()) << "the driver finds the end by the headers alone";
    }
}

TEST(CubinHeader, EachWrongNumberIsNamed) {
  auto expect = [](const char *message, size_t place, auto value) {
    std::vector<std::byte> cubin = testCubin(90);
    std::memcpy(cubin.data() + place, &value, sizeof(value));
    schema::CubinHeader header;
    EXPECT_NE(read(cubin, header).find(message), std::string::npos) << message << " / " << read(cubin, header);
  };
  size_t sections = cubinCode + 4, programs = sections + 128;
  expect("does not begin with the header of an ELF file", 0, uint32_t(0));
  expect("no ELF file of 64 bits", 4, uint8_t(1));
  expect("no ELF file of 64 bits", 5, uint8_t(2));
  expect("for machine 62, and a GPU of NVIDIA's is 190", cubinMachine, uint16_t(62));
  expect("version 9 of the ABI", 8, uint8_t(9));
  expect("program headers are not within", cubinProgramsAt, uint64_t(programs + 1));
  expect("program headers are not within", cubinProgramsAt, UINT64_MAX);
  expect("program headers are not within", cubinProgramCount, uint16_t(UINT16_MAX));
  expect("program headers are not within", 54, uint16_t(55));
  expect("section headers are not within", cubinSectionsAt, UINT64_MAX - 10);
  expect("section headers are not within", cubinSectionCount, uint16_t(UINT16_MAX));
  expect("section headers are not within", cubinSectionCount, uint16_t(0));
  expect("section headers are not within", 58, uint16_t(63));
  expect("section 2 of 2 has the names", cubinNameSection, uint16_t(2));
  expect("program header 0 reaches behind", programs + 8, UINT64_MAX);
  expect("program header 0 reaches behind", programs + 32, UINT64_MAX);
  expect("section 1 reaches behind", sections + 64 + 24, uint64_t(1 << 20));
  expect("section 1 reaches behind", sections + 64 + 32, UINT64_MAX);
}

// A section without bytes, as shared memory is one, may say any size.
TEST(CubinHeader, SectionsWithoutBytesMayHaveAnySize) {
  std::vector<std::byte> cubin = testCubin(90);
  size_t section = cubinCode + 4 + 64;
  uint32_t noBits = 8;
  uint64_t size = 1 << 20;
  std::memcpy(cubin.data() + section + 4, &noBits, 4);
  std::memcpy(cubin.data() + section + 32, &size, 8);
  schema::CubinHeader header;
  EXPECT_EQ(read(cubin, header), "");
}

TEST(CubinHeader, NothingBehindTheBytesIsRead) {
  const std::vector<std::byte> cubin = testCubin(90);
  schema::CubinHeader header;
  for (size_t size = 0; size < cubin.size(); ++size)
    EXPECT_NE(read({cubin.begin(), cubin.begin() + ptrdiff_t(size)}, header), "") << size;
  for (size_t at = 0; at < cubin.size(); ++at)
    for (unsigned bit = 0; bit < 8; ++bit) {
      std::vector<std::byte> changed = cubin;
      changed[at] ^= std::byte(1u << bit);
      if (read(changed, header).empty()) {
        EXPECT_LE(header.bytes, changed.size()) << at << ", bit " << bit;
      }
    }
}
