//===- Digest.cpp - SHA-256 and CRC-32 of bytes ---------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Digest.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <cstdio>
#include <openssl/evp.h>
#include <zlib.h>

namespace segue::inline runtime {

struct Sha256::Context {
  EVP_MD_CTX *digest = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(digest); }
};

/// Throws if libcrypto failed, which happens here only if it was built without SHA-256 or
/// is out of memory: no file can then be trusted.
static void demand(int succeeded) {
  if (succeeded != 1)
    throw Error(ErrorCode::Unsupported, "the cryptographic library of this system has no SHA-256");
}

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  demand(context_->digest ? EVP_DigestInit_ex(context_->digest, EVP_sha256(), nullptr) : 0);
}

Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) {
  demand(EVP_DigestUpdate(context_->digest, bytes.data(), bytes.size()));
}

std::string Sha256::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  demand(EVP_DigestFinal_ex(context_->digest, digest, &size));
  std::string text;
  for (unsigned i = 0; i < size; ++i) {
    constexpr char digits[] = "0123456789abcdef";
    text += digits[digest[i] >> 4];
    text += digits[digest[i] & 15];
  }
  return text;
}

void Crc32::add(std::span<const std::byte> bytes) {
  // zlib counts in uInt.
  constexpr size_t most = size_t(1) << 30;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(most, bytes.size())))
    value_ =
        uint32_t(::crc32(value_, reinterpret_cast<const Bytef *>(bytes.data()), uInt(std::min(most, bytes.size()))));
}

std::string Crc32::hex() const {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", value_);
  return text;
}

std::string sha256Hex(std::span<const std::byte> bytes) {
  Sha256 digest;
  digest.add(bytes);
  return digest.hex();
}

std::string crc32Hex(std::span<const std::byte> bytes) {
  Crc32 digest;
  digest.add(bytes);
  return digest.hex();
}

} // namespace segue::inline runtime
