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
#include "llvm/Support/CheckedArithmetic.h"
#include "llvm/Support/MathExtras.h"

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

std::optional<uint64_t> segue::elementBytes(Type type) {
  if (type.isInteger(1) || type.isInteger(8))
    return 1;
  if (type.isBF16() || type.isF16())
    return 2;
  if (type.isF32() || type.isInteger(32))
    return 4;
  if (type.isF64() || type.isInteger(64))
    return 8;
  return std::nullopt;
}

Type segue::computeType(Type element) {
  return isa<FloatType>(element) && !element.isF64() ? Float32Type::get(element.getContext()) : element;
}

std::optional<int> segue::elementNumber(Type type) {
  if (type.isF32())
    return 0;
  if (type.isBF16())
    return 1;
  if (type.isF16())
    return 2;
  if (type.isInteger(64))
    return 3;
  if (type.isInteger(32))
    return 4;
  if (type.isInteger(8))
    return 5;
  if (type.isInteger(1))
    return 6;
  if (type.isF64())
    return 7;
  return std::nullopt;
}

/// Tiles of each dimension: the extents that strides step through.
static SmallVector<int64_t> gridOf(ArrayRef<int64_t> shape, ArrayRef<int64_t> tile) {
  SmallVector<int64_t> grid(shape);
  for (size_t i = 0, first = shape.size() - tile.size(); i < tile.size(); ++i)
    grid[first + i] = llvm::divideCeil(shape[first + i], tile[i]);
  return grid;
}

static std::optional<int64_t> checkedProduct(ArrayRef<int64_t> factors) {
  std::optional<int64_t> product = 1;
  for (int64_t factor : factors)
    product = product ? llvm::checkedMul(*product, factor) : std::nullopt;
  return product;
}

SmallVector<int64_t> LayoutAttr::getDenseStrides(ArrayRef<int64_t> shape, ArrayRef<int64_t> tile) {
  SmallVector<int64_t> strides(shape.size()), grid = gridOf(shape, tile);
  // May wrap where there is no element, or too many; then it is not used.
  uint64_t stride = 1;
  for (int64_t extent : tile)
    stride *= static_cast<uint64_t>(extent);
  for (size_t dim = shape.size(); dim-- > 0;) {
    strides[dim] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(std::max<int64_t>(grid[dim], 1));
  }
  return strides;
}

/// Returns the strides that a layout without any stands for: in group storage rows are whole
/// groups.
static SmallVector<int64_t> defaultStrides(LayoutAttr layout, ArrayRef<int64_t> shape) {
  SmallVector<int64_t> strides = LayoutAttr::getDenseStrides(shape, layout.getTile());
  if (auto group = static_cast<uint64_t>(layout.getGroup()); group && shape.size() >= 2)
    strides[0] = static_cast<int64_t>((static_cast<uint64_t>(strides[0]) + group - 1) / group * group);
  return strides;
}

SmallVector<int64_t> LayoutAttr::getStridesFor(ArrayRef<int64_t> shape) const {
  return getStrides().empty() ? defaultStrides(*this, shape) : SmallVector<int64_t>(getStrides());
}

/// Codes of whole rows, then from the next multiple of 64 on the scales of
/// groups. Sizes that pass 2^62 are not a number here either.
static std::optional<uint64_t> groupBytes(LayoutAttr layout, ArrayRef<int64_t> shape) {
  std::optional<int64_t> elements = checkedProduct(shape);
  constexpr int64_t limit = int64_t(1) << 60;
  if (!elements || *elements >= limit)
    return std::nullopt;
  int64_t group = layout.getGroup(), rows = shape.size() < 2 ? 1 : shape[0];
  int64_t row = shape.size() < 2 ? *elements : layout.getStridesFor(shape)[0];
  std::optional<int64_t> groups = llvm::checkedMul<int64_t>(llvm::divideCeil(row, group), rows);
  if (!groups || *groups >= limit / group)
    return std::nullopt;
  return llvm::alignTo(static_cast<uint64_t>(*groups * group / 2), 64) + static_cast<uint64_t>(*groups * 2);
}

std::optional<uint64_t> LayoutAttr::getBytes(ArrayRef<int64_t> shape, Type element) const {
  std::optional<uint64_t> size = isQuantized() ? 1 : elementBytes(element);
  if (!size)
    return std::nullopt;
  if (llvm::is_contained(shape, 0))
    return 0;
  if (getGroup())
    return groupBytes(*this, shape);
  std::optional<int64_t> tileElements = checkedProduct(getTile());
  SmallVector<int64_t> grid = gridOf(shape, getTile()), strides = getStridesFor(shape);
  grid.push_back(tileElements.value_or(0));
  if (!tileElements || !checkedProduct(grid)) // so that dense strides have not wrapped
    return std::nullopt;
  std::optional<int64_t> span = tileElements;
  for (auto [extent, stride] : llvm::zip(grid, strides))
    span = span ? llvm::checkedMulAdd(extent - 1, stride, *span) : std::nullopt;
  std::optional<int64_t> bytes = span ? llvm::checkedMul(*span, static_cast<int64_t>(*size)) : std::nullopt;
  constexpr int64_t limit = int64_t(1) << 62;
  if (bytes && *bytes < limit && isQuantized()) {
    int64_t rows = shape.size() < 2 ? 1 : shape[0];
    std::optional<int64_t> scales = llvm::checkedMul<int64_t>(rows, getZeroPoints() ? 8 : 4);
    bytes = scales ? llvm::checkedAdd<int64_t>(llvm::alignTo(*bytes, 64), *scales) : std::nullopt;
  }
  if (!bytes || *bytes >= limit)
    return std::nullopt;
  return static_cast<uint64_t>(*bytes);
}

bool LayoutAttr::isInjective(ArrayRef<int64_t> shape) const {
  if (llvm::is_contained(shape, 0))
    return true;
  SmallVector<std::pair<int64_t, int64_t>> steps; // stride, tiles
  for (auto [stride, extent] : llvm::zip_equal(getStridesFor(shape), gridOf(shape, getTile())))
    if (extent > 1)
      steps.push_back({stride, extent});
  llvm::sort(steps);
  int64_t reach = checkedProduct(getTile()).value_or(1) - 1;
  for (auto [stride, extent] : steps) {
    if (stride <= reach)
      return false;
    reach += stride * (extent - 1);
  }
  return true;
}

LayoutAttr LayoutAttr::getCanonical(ArrayRef<int64_t> shape) const {
  if (getStrides().empty() || getStrides() != ArrayRef<int64_t>(defaultStrides(*this, shape)))
    return *this;
  return get(getContext(), getSpace(), {}, getTile(), getStorage(), getZeroPoints(), getAlignment());
}

LogicalResult LayoutAttr::verify(function_ref<InFlightDiagnostic()> emitError, Space space, ArrayRef<int64_t> strides,
                                 ArrayRef<int64_t> tile, Storage storage, bool zeroPoints, uint32_t alignment) {
  for (int64_t stride : strides) // C1
    if (stride < 0)
      return emitError() << "layout stride " << stride << " is negative";
  for (int64_t extent : tile) { // C2
    if (extent <= 0)
      return emitError() << "layout tile extent " << extent << " is not positive";
    if (extent > std::numeric_limits<uint32_t>::max())
      return emitError() << "layout tile extent " << extent << " is 2^32 or more";
  }
  bool hasRows = storage == Storage::Int8Row || storage == Storage::Fp8E4M3Row || storage == Storage::Fp8E5M2Row;
  if (zeroPoints && !hasRows) // C3
    return emitError() << "layout has zero points, but no row storage that they belong to";
  if (!llvm::isPowerOf2_32(alignment)) // C4
    return emitError() << "layout alignment " << alignment << " is not a power of two";
  if (storage != Storage::Element && alignment < 4)
    return emitError() << "layout alignment " << alignment << " is too small for the f32 scales of rows; at least 4";
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
  if (isQuantized()) {
    if (shape.empty()) // C3
      return emitError() << "layout stores rows as " << stringifyStorage(getStorage())
                         << ", but the tensor is a scalar and has no rows";
    if (!isa<FloatType>(elementType))
      return emitError() << "layout stores rows as " << stringifyStorage(getStorage()) << ", which needs a float, not "
                         << elementType;
  }
  if (int64_t group = getGroup()) { // C6
    if (!getTile().empty())
      return emitError() << "layout stores groups of rows, which have no tile";
    SmallVector<int64_t> strides = getStridesFor(shape), dense = getDenseStrides(shape, {});
    for (size_t dim = shape.size() < 2 ? 0 : 1; dim < shape.size(); ++dim)
      if (shape[dim] != 1 && strides[dim] != dense[dim])
        return emitError() << "layout stores groups of rows, which are dense, but stride " << dim << " is "
                           << strides[dim];
    if (shape.size() >= 2 && (strides[0] < dense[0] || strides[0] % group != 0))
      return emitError() << "layout stores rows of whole groups of " << group << ", but stride 0 is " << strides[0]
                         << " for rows of " << dense[0];
  }
  std::optional<uint64_t> element = elementBytes(elementType);
  if (!element || llvm::any_of(shape, ShapedType::isDynamic))
    return success();            // not to be stored yet
  if (getAlignment() < *element) // C4
    return emitError() << "layout alignment " << getAlignment() << " is less than the " << *element
                       << " bytes of an element";
  if (!getBytes(shape, elementType)) // C5
    return emitError() << "layout spans a size that is not a number of 62 bits";
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
  if (isQuantized())
    printer << StringRef(comma) << "storage = " << stringifyStorage(getStorage());
  if (getZeroPoints())
    printer << StringRef(comma) << "zero_points = true";
  if (getAlignment() != kDefaultAlignment)
    printer << StringRef(comma) << "alignment = " << getAlignment();
  printer << ">";
}

Attribute LayoutAttr::parse(AsmParser &parser, Type) {
  SMLoc loc = parser.getCurrentLocation();
  Space space = Space::DeviceDram;
  Storage storage = Storage::Element;
  SmallVector<int64_t> strides, tile;
  bool zeroPoints = false;
  uint32_t alignment = kDefaultAlignment;
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
    if (key == "alignment")
      return parser.parseInteger(alignment);
    SMLoc wordLoc = parser.getCurrentLocation();
    if (key != "space" && key != "storage" && key != "zero_points")
      return parser.emitError(keyLoc) << "unknown key `" << key << "` in layout; known are `space`, `strides`, `tile`, "
                                      << "`storage`, `zero_points` and `alignment`";
    if (parser.parseKeyword(&word))
      return failure();
    if (key == "zero_points") {
      zeroPoints = word == "true";
      if (zeroPoints || word == "false")
        return success();
      return parser.emitError(wordLoc) << "`zero_points` is `" << word << "`, but must be `true` or `false`";
    }
    if (key == "space") {
      if (auto value = symbolizeSpace(word))
        return space = *value, success();
      return parser.emitError(wordLoc) << "unknown space `" << word
                                       << "`; known are `host`, `host_pinned`, `device_dram` and `device_l1`";
    }
    if (auto value = symbolizeStorage(word))
      return storage = *value, success();
    return parser.emitError(wordLoc) << "unknown storage `" << word
                                     << "`; known are `element`, `int8_row`, `fp8_e4m3_row`, `fp8_e5m2_row`, "
                                     << "`int4_group32` and `int4_group64`";
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::LessGreater, entry))
    return {};
  return LayoutAttr::getChecked([&] { return parser.emitError(loc); }, parser.getContext(), space, strides, tile,
                                storage, zeroPoints, alignment);
}
