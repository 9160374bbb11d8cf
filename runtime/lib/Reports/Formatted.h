//===- Formatted.h - figures in text ----------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_REPORTS_FORMATTED_H
#define SEGUE_LIB_REPORTS_FORMATTED_H

#include <cstdint>
#include <cstdio>
#include <string>

namespace segue::inline runtime {

inline double mib(uint64_t bytes) { return double(bytes) / (1 << 20); }

/// Formats the values as printf does, in 512 characters at most.
template <typename... Values> std::string formatted(const char *format, Values... values) {
  char buffer[512];
  std::snprintf(buffer, sizeof buffer, format, values...);
  return buffer;
}

} // namespace segue::inline runtime

#endif // SEGUE_LIB_REPORTS_FORMATTED_H
