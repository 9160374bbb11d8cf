//===- Mebibytes.h - the unit of keys that end in _mb -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Keys of configs, records and logs that end in `_mb` are MiB, as numbers that
// need not be whole. Everything else counts bytes. Pure functions: any thread
// may call.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_MEBIBYTES_H
#define SEGUE_RUNTIME_MEBIBYTES_H

#include <cmath>
#include <cstdint>

namespace segue::inline runtime {

inline constexpr double bytesPerMiB = 1048576;

/// The greatest size that a config may give: an exbibyte, so that its products
/// with counts and sums of it stay within 63 bits.
inline constexpr double greatestMiB = 1099511627776;

inline double toMiB(int64_t bytes) { return double(bytes) / bytesPerMiB; }

/// Returns the nearest whole number of bytes.
inline int64_t toBytes(double mib) { return std::llround(mib * bytesPerMiB); }

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_MEBIBYTES_H
