//===- HostTensor.cpp - tensors of the reference interpreter --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Evaluators.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "segue/Dialect/Segue/IR/StorableTypes.h"
#include "segue/Dialect/Segue/Interpreter/HostBytes.h"

#include "llvm/Support/Format.h"
#include "llvm/Support/InterleavedRange.h"
#include "llvm/Support/raw_ostream.h"
#include <cmath>

using namespace mlir;
using namespace segue;
using namespace segue::interpreter;

/// Returns `value` modulo 2^width, read as two's complement; i1 is 0 or 1.
static int64_t wrap(Type type, int64_t value) {
  unsigned width = type.getIntOrFloatBitWidth();
  if (width == 1)
    return value & 1;
  return llvm::SignExtend64(static_cast<uint64_t>(value), width);
}

FailureOr<HostTensor> interpreter::constantOf(Operation *op, ElementsAttr attr) {
  auto type = cast<RankedTensorType>(attr.getType());
  if (auto resource = dyn_cast<DenseResourceElementsAttr>(attr))
    if (resource.getData().size() != type.getNumElements() * bytesOfElement(type.getElementType()))
      return op->emitOpError() << "has a resource of " << resource.getData().size() << " bytes for " << type;
  return HostTensor::fromAttr(attr);
}

LogicalResult interpreter::verifySize(Operation *op, Type type) {
  // Elements are kept in 8 bytes each, and an allocation that fails ends the process.
  constexpr int64_t mostElements = int64_t(1) << 28;
  auto tensor = cast<RankedTensorType>(type);
  if (isStorable(type) && tensor.getNumElements() <= mostElements)
    return success();
  return op->emitError() << "cannot be interpreted: " << type << " has more elements than " << mostElements
                         << ", the most of a value";
}

double segue::roundTo(Type type, double value) {
  if (auto floatType = dyn_cast<FloatType>(type)) {
    APFloat rounded(value);
    bool lost;
    rounded.convert(floatType.getFloatSemantics(), APFloat::rmNearestTiesToEven, &lost);
    rounded.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven, &lost);
    return rounded.convertToDouble();
  }
  return static_cast<double>(wrap(type, static_cast<int64_t>(value)));
}

static HostTensor zeros(RankedTensorType type) {
  HostTensor tensor;
  tensor.type = type;
  if (tensor.isFloat())
    tensor.floats.assign(tensor.size(), 0.0);
  else
    tensor.ints.assign(tensor.size(), 0);
  return tensor;
}

HostTensor HostTensor::filled(RankedTensorType type, double value) {
  HostTensor tensor = zeros(type);
  for (int64_t i = 0; i < tensor.size(); ++i)
    tensor.set(i, value);
  return tensor;
}

HostTensor HostTensor::fromAttr(ElementsAttr attr) {
  if (auto resource = dyn_cast<DenseResourceElementsAttr>(attr))
    return fromBytes(cast<RankedTensorType>(attr.getType()), resource.getData().data());
  HostTensor tensor = zeros(cast<RankedTensorType>(attr.getType()));
  if (tensor.isFloat()) {
    for (auto [i, value] : llvm::enumerate(attr.getValues<APFloat>())) {
      APFloat wide = value;
      bool lost;
      wide.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven, &lost);
      tensor.floats[i] = wide.convertToDouble();
    }
    return tensor;
  }
  bool isBool = tensor.type.getElementType().isInteger(1);
  for (auto [i, value] : llvm::enumerate(attr.getValues<APInt>()))
    tensor.ints[i] = isBool ? value.getZExtValue() : value.getSExtValue();
  return tensor;
}

HostTensor HostTensor::random(RankedTensorType type, uint64_t seed) {
  // Steele, Lea and Flood, "Fast splittable pseudorandom number generators".
  auto next = [state = seed]() mutable {
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  };
  HostTensor tensor = zeros(type);
  for (int64_t i = 0; i < tensor.size(); ++i)
    if (tensor.isFloat())
      tensor.set(i, static_cast<double>(next() >> 11) * 0x1p-52 - 1.0);
    else
      tensor.ints[i] = next() % (type.getElementType().isInteger(1) ? 2 : 4);
  return tensor;
}

void HostTensor::set(int64_t i, double value) {
  double rounded = roundTo(type.getElementType(), value);
  if (isFloat())
    floats[i] = rounded;
  else
    ints[i] = static_cast<int64_t>(rounded);
}

DenseElementsAttr HostTensor::toAttr() const {
  SmallVector<Attribute> elements;
  Type element = type.getElementType();
  for (double value : floats)
    elements.push_back(FloatAttr::get(element, roundTo(element, value)));
  for (int64_t value : ints)
    elements.push_back(IntegerAttr::get(element, APInt(element.getIntOrFloatBitWidth(), value, true, true)));
  return DenseElementsAttr::get(type, elements);
}

static void printElement(raw_ostream &os, const HostTensor &tensor, int64_t i) {
  if (tensor.isFloat())
    os << llvm::format("%.9g", tensor.floats[i]);
  else
    os << tensor.ints[i];
}

std::string HostTensor::str(int64_t limit) const {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << type.getElementType() << "[" << llvm::interleaved(type.getShape(), ",") << "]";
  for (int64_t i = 0; i < std::min(size(), limit); ++i) {
    os << " ";
    printElement(os, *this, i);
  }
  if (size() > limit)
    os << " ... (" << size() << " elements)";
  return text;
}

std::string segue::findDifference(const HostTensor &a, const HostTensor &b, double atol, double rtol) {
  std::string text;
  if (a.type.getShape() != b.type.getShape())
    return "shapes differ: " + a.str(0) + " and " + b.str(0);
  auto differs = [&](int64_t i) {
    if (!a.isFloat() && !b.isFloat() && atol == 0 && rtol == 0)
      return a.ints[i] != b.ints[i]; // exact above 2^53 too
    double x = a.at(i), y = b.at(i);
    if (std::isnan(x) || std::isnan(y))
      return std::isnan(x) != std::isnan(y);
    return x != y && !(std::abs(x - y) <= atol + rtol * std::abs(y) && std::isfinite(x) && std::isfinite(y));
  };
  forEachIndex(a.type.getShape(), [&](ArrayRef<int64_t> index, int64_t i) {
    if (!text.empty() || !differs(i))
      return;
    llvm::raw_string_ostream os(text);
    os << "at [" << llvm::interleaved(index) << "]: ";
    printElement(os, a, i);
    os << " and ";
    printElement(os, b, i);
    os << ", difference " << llvm::format("%.3g", a.at(i) - b.at(i));
  });
  return text;
}

void interpreter::forEachIndex(ArrayRef<int64_t> shape, function_ref<void(ArrayRef<int64_t>, int64_t)> visit) {
  int64_t count = 1;
  for (int64_t extent : shape)
    count *= extent;
  SmallVector<int64_t> index(shape.size());
  for (int64_t position = 0; position < count; ++position) {
    visit(index, position);
    for (size_t dim = shape.size(); dim-- > 0 && ++index[dim] == shape[dim];)
      index[dim] = 0;
  }
}

int64_t interpreter::positionOf(ArrayRef<int64_t> shape, ArrayRef<int64_t> index) {
  int64_t position = 0;
  for (auto [extent, i] : llvm::zip_equal(shape, index))
    position = position * extent + i;
  return position;
}

void interpreter::copyElement(HostTensor &target, int64_t to, const HostTensor &source, int64_t from) {
  if (target.isFloat())
    target.floats[to] = source.floats[from];
  else
    target.ints[to] = source.ints[from];
}
