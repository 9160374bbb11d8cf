//===- SegueAttrs.cpp - attributes of the segue dialect -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "mlir/IR/DialectImplementation.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace segue;

#define GET_ATTRDEF_CLASSES
#include "segue/Dialect/Segue/IR/SegueAttrs.cpp.inc"

void SegueDialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "segue/Dialect/Segue/IR/SegueAttrs.cpp.inc"
      >();
}

LogicalResult LayoutAttr::verify(function_ref<InFlightDiagnostic()> emitError, Space space, ArrayRef<int64_t> strides,
                                 ArrayRef<int64_t> tile, Storage storage) {
  for (int64_t stride : strides)
    if (stride < 0)
      return emitError() << "layout stride " << stride << " is negative";
  for (int64_t extent : tile)
    if (extent <= 0)
      return emitError() << "layout tile extent " << extent << " is not positive";
  return success();
}

LogicalResult LayoutAttr::verifyEncoding(ArrayRef<int64_t> shape, Type elementType,
                                         function_ref<InFlightDiagnostic()> emitError) const {
  if (!getStrides().empty() && getStrides().size() != shape.size()) // C1
    return emitError() << "layout has " << getStrides().size() << " strides, but the tensor has " << shape.size()
                       << " dimensions";
  if (getTile().size() > shape.size()) // C2
    return emitError() << "layout has " << getTile().size() << " tile extents, but the tensor has " << shape.size()
                       << " dimensions";
  if (getStorage() == Storage::Element)
    return success();
  if (shape.empty()) // C3
    return emitError() << "layout stores rows as " << stringifyStorage(getStorage())
                       << ", but the tensor is a scalar and has no rows";
  if (!isa<FloatType>(elementType))
    return emitError() << "layout stores rows as " << stringifyStorage(getStorage()) << ", which needs a float, not "
                       << elementType;
  return success();
}

/// `<` (key `=` value) separated by commas `>`; a key that has its default is
/// not printed.
void LayoutAttr::print(AsmPrinter &printer) const {
  printer << "<";
  llvm::ListSeparator comma;
  auto list = [&](StringRef key, ArrayRef<int64_t> values) {
    if (values.empty())
      return;
    printer << StringRef(comma) << key << " = [";
    llvm::interleaveComma(values, printer);
    printer << "]";
  };
  printer << StringRef(comma) << "space = " << stringifySpace(getSpace());
  list("strides", getStrides());
  list("tile", getTile());
  if (getStorage() != Storage::Element)
    printer << StringRef(comma) << "storage = " << stringifyStorage(getStorage());
  printer << ">";
}

Attribute LayoutAttr::parse(AsmParser &parser, Type) {
  SMLoc loc = parser.getCurrentLocation();
  Space space = Space::DeviceDram;
  Storage storage = Storage::Element;
  SmallVector<int64_t> strides, tile;
  auto list = [&](SmallVector<int64_t> &values) {
    return parser.parseCommaSeparatedList(AsmParser::Delimiter::Square,
                                          [&] { return parser.parseInteger(values.emplace_back()); });
  };
  auto entry = [&]() -> ParseResult {
    StringRef key, word;
    SMLoc keyLoc = parser.getCurrentLocation();
    if (parser.parseKeyword(&key) || parser.parseEqual())
      return failure();
    if (key == "strides")
      return list(strides);
    if (key == "tile")
      return list(tile);
    SMLoc wordLoc = parser.getCurrentLocation();
    if (key != "space" && key != "storage")
      return parser.emitError(keyLoc) << "unknown key `" << key
                                      << "` in layout; known are `space`, `strides`, `tile` and `storage`";
    if (parser.parseKeyword(&word))
      return failure();
    if (key == "space") {
      if (auto value = symbolizeSpace(word))
        return space = *value, success();
      return parser.emitError(wordLoc) << "unknown space `" << word
                                       << "`; known are `host`, `host_pinned`, `device_dram` and `device_l1`";
    }
    if (auto value = symbolizeStorage(word))
      return storage = *value, success();
    return parser.emitError(wordLoc) << "unknown storage `" << word
                                     << "`; known are `element`, `int8_row`, `fp8_e4m3_row` and `fp8_e5m2_row`";
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::LessGreater, entry))
    return {};
  return LayoutAttr::getChecked([&] { return parser.emitError(loc); }, parser.getContext(), space, strides, tile,
                                storage);
}
