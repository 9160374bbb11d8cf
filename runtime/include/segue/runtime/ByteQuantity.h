//===- ByteQuantity.h - "512MiB" --------------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// How people write a number of bytes: in specs of devices, on the command line and in
// Python.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_BYTEQUANTITY_H
#define SEGUE_RUNTIME_BYTEQUANTITY_H

#include <cstdint>
#include <optional>
#include <string_view>

namespace segue::inline runtime {

/// The most bytes that a quantity may say: as many as a double counts exactly.
inline constexpr uint64_t mostBytesOfQuantity = uint64_t(1) << 53;

/// Describes the texts that `parseByteQuantity` takes, for messages and help.
inline constexpr std::string_view byteQuantityForm =
    "a quantity such as 512MiB (units B, KB, MB, GB, TB of 1000, KiB, MiB, GiB, TiB of 1024; up to 8192TiB)";

/// Returns the bytes that `text` says, or nothing if it is no quantity: digits, with a decimal point or without, and a
/// unit of `byteQuantityForm`, in letters of either case, with or without spaces before it. Without a unit the number is
/// bytes. A fraction of a byte is dropped; a quantity that is not 0 and has no whole byte is none.
std::optional<uint64_t> parseByteQuantity(std::string_view text);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_BYTEQUANTITY_H
