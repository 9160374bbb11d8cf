//===- ElementType.h - element types of tensors -----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The element types of schemas/types.fbs and their sizes in bytes.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TENSOR_ELEMENTTYPE_H
#define SEGUE_RUNTIME_TENSOR_ELEMENTTYPE_H

#include <cstdint>
#include <string_view>

namespace segue {

/// Element type of a logical tensor; the values are those of
/// segue.schema.ElementType. i1 is stored as one byte, 0 or 1.
enum class ElementType : int8_t { f32 = 0, bf16 = 1, f16 = 2, i64 = 3, i32 = 4, i8 = 5, i1 = 6 };

/// Bytes of one element.
constexpr uint64_t byteSize(ElementType type) {
  switch (type) {
  case ElementType::i64:
    return 8;
  case ElementType::f32:
  case ElementType::i32:
    return 4;
  case ElementType::bf16:
  case ElementType::f16:
    return 2;
  case ElementType::i8:
  case ElementType::i1:
    return 1;
  }
  return 0;
}

/// f32, bf16 or f16.
constexpr bool isFloat(ElementType type) {
  return type == ElementType::f32 || type == ElementType::bf16 || type == ElementType::f16;
}

/// The name as written in IR, schema and messages.
constexpr std::string_view name(ElementType type) {
  constexpr std::string_view names[] = {"f32", "bf16", "f16", "i64", "i32", "i8", "i1"};
  auto index = static_cast<uint8_t>(type);
  return index < 7 ? names[index] : std::string_view("?");
}

} // namespace segue

#endif // SEGUE_RUNTIME_TENSOR_ELEMENTTYPE_H
