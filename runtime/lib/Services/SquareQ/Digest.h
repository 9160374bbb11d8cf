//===- Digest.h - SHA-256 and CRC-32 of bytes -------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// SHA-256 says that bytes are those that were built; CRC-32 (IEEE 802.3, as in
// zip and PNG) is what one can afford on each first read. Both may be fed in
// pieces.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_DIGEST_H
#define SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_DIGEST_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace segue::inline runtime {

class Sha256 {
public:
  Sha256();
  ~Sha256();
  void add(std::span<const std::byte> bytes);
  /// Returns 64 lower-case hex digits, and ends the digest.
  std::string hex();

private:
  struct Context;
  std::unique_ptr<Context> context_;
};

class Crc32 {
public:
  void add(std::span<const std::byte> bytes);
  uint32_t value() const { return value_; }
  /// Returns 8 lower-case hex digits.
  std::string hex() const;

private:
  uint32_t value_ = 0;
};

std::string sha256Hex(std::span<const std::byte> bytes);
std::string crc32Hex(std::span<const std::byte> bytes);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_DIGEST_H
