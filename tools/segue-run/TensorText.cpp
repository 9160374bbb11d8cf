//===- TensorText.cpp - tensors on the command line -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "TensorText.h"
#include "NpyFile.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <charconv>
#include <cstring>

namespace segue::tool {

/// Returns `2x3xf32` as a description; nothing if the text is something else.
static std::optional<TensorDesc> parseType(std::string_view text) {
  TensorDesc desc;
  while (!text.empty() && text.front() >= '0' && text.front() <= '9') {
    int64_t extent = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), extent);
    text.remove_prefix(size_t(end - text.data()));
    if (error != std::errc() || !text.starts_with('x'))
      return std::nullopt;
    text.remove_prefix(1);
    desc.shape.push_back(extent);
  }
  std::optional<ElementType> element = parseElementType(text);
  if (!element)
    return std::nullopt;
  desc.element = *element;
  return desc;
}

NamedText splitName(std::string_view argument) {
  size_t equals = argument.find('=');
  if (argument.starts_with('@') || equals == argument.npos || parseType(argument.substr(0, equals)))
    return {"", std::string(argument)};
  return {std::string(argument.substr(0, equals)), std::string(argument.substr(equals + 1))};
}

static Error wrong(std::string_view text, const std::string &what) {
  std::string shown(text.substr(0, 60));
  return Error(ErrorCode::InvalidArgument, "tensor \"" + shown + (text.size() > 60 ? "..." : "") + "\": " + what +
                                               "; write 2x3xf32=1,2,3,4,5,6 or @file.npy");
}

/// Writes one element from its text; false if it is no such number.
static bool storeElement(ElementType element, std::string_view text, std::byte *target) {
  const char *end = text.data() + text.size();
  if (element == ElementType::f64) {
    double value = 0;
    auto [at, error] = std::from_chars(text.data(), end, value);
    std::memcpy(target, &value, sizeof value);
    return error == std::errc() && at == end;
  }
  if (isFloat(element)) {
    float value = 0;
    auto [at, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || at != end)
      return false;
    uint16_t half = element == ElementType::bf16 ? floatToBf16(value) : floatToF16(value);
    if (element == ElementType::f32)
      std::memcpy(target, &value, sizeof value);
    else
      std::memcpy(target, &half, sizeof half);
    return true;
  }
  if (element == ElementType::i1 && (text == "true" || text == "false"))
    text = text == "true" ? "1" : "0", end = text.data() + 1;
  int64_t value = 0;
  auto [at, error] = std::from_chars(text.data(), end, value);
  uint64_t bits = byteSize(element) * 8;
  bool fits = element == ElementType::i1 ? value == 0 || value == 1
                                         : bits == 64 || (value >= -(1LL << (bits - 1)) && value < 1LL << (bits - 1));
  if (error != std::errc() || at != end || !fits)
    return false;
  std::memcpy(target, &value, byteSize(element)); // little endian
  return true;
}

Tensor parseTensor(const DeviceRef &device, std::string_view text) {
  if (text.starts_with('@'))
    return readNpy(device, std::filesystem::path(text.substr(1)));
  size_t equals = text.find('=');
  std::optional<TensorDesc> desc = parseType(text.substr(0, equals));
  if (!desc)
    throw wrong(text, "this is neither a type nor a file");
  Tensor tensor = Tensor::onHost(device, desc->shape, desc->element);
  std::memset(tensor.bytes(), 0, tensor.desc().spanBytes());
  if (equals == text.npos)
    return tensor;
  std::string_view values = text.substr(equals + 1);
  uint64_t count = tensor.elementCount(), bytes = byteSize(desc->element), index = 0;
  if (values.empty() && count == 0)
    return tensor;
  while (true) {
    size_t comma = values.find(',');
    std::string_view value = values.substr(0, comma);
    while (value.starts_with(' '))
      value.remove_prefix(1);
    if (index == count)
      throw wrong(text, "there are more values than the " + std::to_string(count) + " elements");
    if (!storeElement(desc->element, value, tensor.bytes() + index * bytes))
      throw wrong(text, "value " + std::to_string(index) + ", \"" + std::string(value) + "\", is not an " +
                            std::string(name(desc->element)));
    ++index;
    if (comma == values.npos)
      break;
    values.remove_prefix(comma + 1);
  }
  if (index == 1) // one value stands for all
    for (; index < count; ++index)
      std::memcpy(tensor.bytes() + index * bytes, tensor.bytes(), bytes);
  if (index != count)
    throw wrong(text, "there are " + std::to_string(index) + " values for " + std::to_string(count) + " elements");
  return tensor;
}

double elementAt(const Tensor &dense, uint64_t index) {
  switch (dense.element()) {
  case ElementType::f32:
    return dense.data<float>()[index];
  case ElementType::f64:
    return dense.data<double>()[index];
  case ElementType::bf16:
    return bf16ToFloat(dense.data<uint16_t>()[index]);
  case ElementType::f16:
    return f16ToFloat(dense.data<uint16_t>()[index]);
  case ElementType::i64:
    return double(dense.data<int64_t>()[index]);
  case ElementType::i32:
    return dense.data<int32_t>()[index];
  case ElementType::i8:
    return dense.data<int8_t>()[index];
  case ElementType::i1:
    return dense.data<uint8_t>()[index] != 0;
  }
  return 0;
}

std::string formatTensor(const Tensor &tensor, uint64_t limit) {
  Tensor dense = toHost(tensor);
  std::string text;
  for (int64_t extent : dense.shape())
    text += std::to_string(extent) + "x";
  text += std::string(name(dense.element())) + "=";
  char buffer[32];
  for (uint64_t i = 0; i < dense.elementCount(); ++i) {
    if (i == limit)
      return text + ",...";
    char *end = dense.element() == ElementType::f64
                    ? std::to_chars(buffer, buffer + sizeof buffer, dense.data<double>()[i]).ptr
                : isFloat(dense.element()) ? std::to_chars(buffer, buffer + sizeof buffer, float(elementAt(dense, i))).ptr
                : dense.element() == ElementType::i64
                    ? std::to_chars(buffer, buffer + sizeof buffer, dense.data<int64_t>()[i]).ptr
                    : std::to_chars(buffer, buffer + sizeof buffer, int64_t(elementAt(dense, i))).ptr;
    text += (i ? "," : "") + std::string(buffer, end);
  }
  return text;
}

} // namespace segue::tool
