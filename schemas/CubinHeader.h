//===- CubinHeader.h - what a cubin says of itself --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A cubin is an ELF executable for GPUs of one compute capability. The compiler, which puts
// cubins into files, and the runtime, which verifies them at load, read their headers by
// this one function. The driver is given an address and no size: it finds all parts by the
// headers, so whatever these name has to lie within the bytes.
//
// The numbers are those of llvm/BinaryFormat/ELF.h. `ptxas` of CUDA 13 writes version 8 of
// the ABI, which has the capability elsewhere, and which drivers of CUDA 12 do not know.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_SCHEMAS_CUBINHEADER_H
#define SEGUE_SCHEMAS_CUBINHEADER_H

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

namespace segue::schema {

struct CubinHeader {
  /// The compute capability that the code is for, times ten.
  uint32_t capability = 0;
  /// The version of the ABI: 7 of CUDA 12, 8 of CUDA 13.
  uint32_t abi = 0;
  /// How far from the first byte the parts reach that the headers name.
  uint64_t bytes = 0;
};

/// The version of the ABI that came with CUDA 13.
inline constexpr uint32_t kCubinAbiOfCuda13 = 8;

/// True for bytes that begin as an ELF file does; PTX, which is text, never does.
inline bool beginsAsElf(const void *data, uint64_t size) { return size >= 4 && std::memcmp(data, "\177ELF", 4) == 0; }

/// Reads the headers of a cubin from `size` bytes that may be anything. Returns what is wrong
/// with them, as the rest of a sentence, or nothing.
inline std::string readCubinHeader(const void *data, uint64_t size, CubinHeader &header) {
  constexpr uint64_t kFileHeader = 64, kSectionHeader = 64, kProgramHeader = 56;
  constexpr uint16_t kMachineOfCuda = 190;
  constexpr uint32_t kNothing = 0, kNoBits = 8;
  const char *bytes = static_cast<const char *>(data);
  auto number = [&](uint64_t offset, auto value) {
    std::memcpy(&value, bytes + offset, sizeof(value));
    return value;
  };
  auto has = [&](uint64_t offset, uint64_t count) {
    if (offset > size || count > size - offset)
      return false;
    header.bytes = std::max(header.bytes, offset + count);
    return true;
  };
  header = {};
  if (!has(0, kFileHeader) || !beginsAsElf(data, size))
    return "it does not begin with the header of an ELF file";
  if (bytes[4] != 2 || bytes[5] != 1) // of 64 bits, little-endian
    return "it is no ELF file of 64 bits in little-endian order";
  if (uint16_t machine = number(18, uint16_t()); machine != kMachineOfCuda)
    return "its ELF file is for machine " + std::to_string(machine) + ", and a GPU of NVIDIA's is 190";
  header.abi = uint8_t(bytes[8]);
  uint32_t flags = number(48, uint32_t());
  if (header.abi != kCubinAbiOfCuda13 - 1 && header.abi != kCubinAbiOfCuda13)
    return "it has version " + std::to_string(header.abi) + " of the ABI; 7 and 8 are known";
  header.capability = header.abi == kCubinAbiOfCuda13 ? flags >> 8 & 0xff : flags & 0xff;

  uint64_t programs = number(32, uint64_t()), sections = number(40, uint64_t());
  uint16_t programBytes = number(54, uint16_t()), programCount = number(56, uint16_t());
  uint16_t sectionBytes = number(58, uint16_t()), sectionCount = number(60, uint16_t());
  if (programCount && (programBytes != kProgramHeader || !has(programs, programCount * kProgramHeader)))
    return "its " + std::to_string(programCount) + " program headers are not within its bytes";
  if (!sectionCount || sectionBytes != kSectionHeader || !has(sections, sectionCount * kSectionHeader))
    return "its " + std::to_string(sectionCount) + " section headers are not within its bytes";
  if (uint16_t names = number(62, uint16_t()); names >= sectionCount)
    return "section " + std::to_string(names) + " of " + std::to_string(sectionCount) + " has the names of sections";
  for (uint64_t i = 0, at = programs; i < programCount; ++i, at += kProgramHeader)
    if (!has(number(at + 8, uint64_t()), number(at + 32, uint64_t())))
      return "its program header " + std::to_string(i) + " reaches behind its bytes";
  for (uint64_t i = 0, at = sections; i < sectionCount; ++i, at += kSectionHeader)
    if (uint32_t type = number(at + 4, uint32_t()); type != kNothing && type != kNoBits)
      if (!has(number(at + 24, uint64_t()), number(at + 32, uint64_t())))
        return "its section " + std::to_string(i) + " reaches behind its bytes";
  return "";
}

} // namespace segue::schema

#endif // SEGUE_SCHEMAS_CUBINHEADER_H
