//===- Safetensors.cpp - values for the interpreter from a file -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The length of a header in eight bytes, the header in JSON, and the elements.
// The runtime has a reader of its own, which maps files that do not fit in
// memory; the compiler is linked without the runtime.
//
//===----------------------------------------------------------------------===//

#include "mlir/IR/Builders.h"
#include "segue/Compiler/VerifyValues.h"
#include "segue/Dialect/Segue/Interpreter/HostBytes.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/CheckedArithmetic.h"
#include "llvm/Support/Endian.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/JSON.h"

using namespace mlir;
using namespace segue;

static Type elementType(StringRef name, MLIRContext *context) {
  Builder b(context);
  return llvm::StringSwitch<Type>(name)
      .Case("F64", b.getF64Type())
      .Case("F32", b.getF32Type())
      .Case("F16", b.getF16Type())
      .Case("BF16", b.getBF16Type())
      .Case("I64", b.getI64Type())
      .Case("I32", b.getI32Type())
      .Case("I8", b.getI8Type())
      .Case("BOOL", b.getI1Type())
      .Default({});
}

static llvm::Expected<HostTensor> readTensor(StringRef name, const llvm::json::Object &entry, StringRef data,
                                             MLIRContext *context) {
  auto refuse = [&](const Twine &what) { return llvm::createStringError("tensor \"" + name + "\" " + what); };
  std::optional<StringRef> dtype = entry.getString("dtype");
  const llvm::json::Array *shape = entry.getArray("shape"), *range = entry.getArray("data_offsets");
  if (!dtype || !shape || !range || range->size() != 2)
    return refuse("has no `dtype`, `shape` or `data_offsets`");
  Type element = elementType(*dtype, context);
  if (!element)
    return refuse("has the element type " + *dtype + ", which no argument has");
  SmallVector<int64_t> extents;
  int64_t bytes = static_cast<int64_t>(bytesOfElement(element));
  for (const llvm::json::Value &extent : *shape) {
    std::optional<int64_t> number = extent.getAsInteger();
    std::optional<int64_t> product = number && *number >= 0 ? llvm::checkedMul(bytes, *number) : std::nullopt;
    if (!product)
      return refuse("has a shape that is none");
    extents.push_back(*number);
    bytes = *product;
  }
  std::optional<int64_t> begin = (*range)[0].getAsInteger(), end = (*range)[1].getAsInteger();
  if (!begin || !end || *begin < 0 || *end < *begin || *end - *begin != bytes ||
      static_cast<uint64_t>(*end) > data.size())
    return refuse("lies outside of the file, or has not as many bytes as its shape");
  return fromBytes(RankedTensorType::get(extents, element), data.data() + *begin);
}

llvm::Expected<NamedTensors> segue::readSafetensors(StringRef bytes, MLIRContext *context) {
  uint64_t length = bytes.size() < 8 ? 0 : llvm::support::endian::read64le(bytes.data());
  if (bytes.size() < 8 || length > bytes.size() - 8)
    return llvm::createStringError("no safetensors file: the header does not fit in " + Twine(bytes.size()) + " bytes");
  llvm::Expected<llvm::json::Value> header = llvm::json::parse(bytes.substr(8, length));
  if (!header)
    return header.takeError();
  const llvm::json::Object *entries = header->getAsObject();
  if (!entries)
    return llvm::createStringError("no safetensors file: the header is not a JSON object");
  NamedTensors tensors;
  for (const auto &[name, entry] : *entries) {
    if (StringRef(name) == "__metadata__")
      continue;
    const llvm::json::Object *object = entry.getAsObject();
    if (!object)
      return llvm::createStringError("tensor \"" + StringRef(name) + "\" is not a JSON object");
    llvm::Expected<HostTensor> tensor = readTensor(name, *object, bytes.drop_front(8 + length), context);
    if (!tensor)
      return tensor.takeError();
    tensors.try_emplace(StringRef(name), std::move(*tensor));
  }
  return tensors;
}
