//===- EnumNames.h - enumerations as they are spelled -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An enumeration that stands in configs, records or logs specialises `namesOf`.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_ENUMNAMES_H
#define SEGUE_RUNTIME_ENUMNAMES_H

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace segue::inline runtime {

/// Returns all names of an enumeration in its order: "IDLE", "STEP_BEGIN", ...
template <typename E> std::span<const std::string_view> namesOf();

template <typename E> std::string_view nameOf(E value) { return namesOf<E>()[size_t(value)]; }
/// Returns the value of that name, or nothing.
template <typename E> std::optional<E> fromName(std::string_view name) {
  std::span<const std::string_view> names = namesOf<E>();
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name)
      return E(i);
  return std::nullopt;
}

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_ENUMNAMES_H
