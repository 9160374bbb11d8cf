//===- FunctionAttributes.cpp - verifies the training signature -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The attributes that the dialect puts on functions and ops of others; the
// table in SegueDialect.td says what they mean.
//
//===----------------------------------------------------------------------===//

#include "mlir/Interfaces/FunctionInterfaces.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"

using namespace mlir;
using namespace segue;

namespace {
/// An argument or a result of a function.
struct Place {
  mutable FunctionOpInterface function; // its accessors are not const
  unsigned index;
  bool isResult;

  Attribute get(StringRef name) const { return getOf(index, name); }
  Attribute getOf(unsigned i, StringRef name) const {
    return isResult ? function.getResultAttr(i, name) : function.getArgAttr(i, name);
  }
  unsigned count() const { return isResult ? function.getNumResults() : function.getNumArguments(); }
  Type type() const { return isResult ? function.getResultTypes()[index] : function.getArgumentTypes()[index]; }
  InFlightDiagnostic error() const {
    return function.emitOpError() << (isResult ? "result " : "argument ") << index << " ";
  }
};
} // namespace

static LogicalResult verifyName(const Place &place, Attribute value) {
  auto name = dyn_cast<StringAttr>(value);
  if (!name || name.getValue().empty())
    return place.error() << "has `segue.name` = " << value << ", which must be a string that is not empty";
  // The first place that has a name looks at all others: thousands of values may be saved.
  for (unsigned before = 0; before < place.index; ++before)
    if (place.getOf(before, SegueDialect::kNameAttr))
      return success();
  llvm::DenseMap<Attribute, unsigned> named;
  for (unsigned index = place.index, count = place.count(); index < count; ++index)
    if (Attribute other = place.getOf(index, SegueDialect::kNameAttr))
      if (auto [known, isNew] = named.try_emplace(other, index); !isNew)
        return Place{place.function, index, place.isResult}.error()
               << "has the name " << other << ", as " << (place.isResult ? "result " : "argument ") << known->second
               << " has; names are unique";
  return success();
}

static LogicalResult verifyRole(const Place &place, Attribute value) {
  if (!isa<RoleAttr>(value))
    return place.error() << "has `segue.role` = " << value
                         << ", which must be `#segue.role<...>` with input, parameter, frozen, output, saved, "
                            "gradient, state, hyper or statistics";
  if (!place.get(SegueDialect::kNameAttr))
    return place.error() << "has `segue.role` but no `segue.name`";
  auto tensor = dyn_cast<RankedTensorType>(place.type());
  if (!tensor || !tensor.hasStaticShape())
    return place.error() << "has `segue.role` and type " << place.type()
                         << "; only tensors of a static shape take part in a step";
  return success();
}

static LogicalResult verifyOf(const Place &place, Attribute value) {
  if (!isa<StringAttr>(value))
    return place.error() << "has `segue.of` = " << value << ", which must be a string";
  auto role = dyn_cast_or_null<RoleAttr>(place.get(SegueDialect::kRoleAttr));
  if (!role || !llvm::is_contained({Role::Gradient, Role::State, Role::Statistics}, role.getValue()))
    return place.error() << "has `segue.of`, which belongs to the roles `gradient`, `state` and `statistics`";
  return success();
}

static LogicalResult verifyLayout(const Place &place, Attribute value) {
  auto layout = dyn_cast<LayoutAttr>(value);
  auto tensor = dyn_cast<RankedTensorType>(place.type());
  if (!layout || !tensor || !tensor.hasStaticShape())
    return place.error() << "has `segue.layout` = " << value
                         << ", which must be `#segue.layout<...>` on a tensor of a static shape";
  if (tensor.getEncoding())
    return place.error() << "has `segue.layout`, but its type " << tensor << " has a layout too; give one of them";
  return layout.verifyEncoding(tensor.getShape(), tensor.getElementType(), [&] { return place.error(); });
}

static LogicalResult verifyAlias(const Place &place, Attribute value) {
  auto alias = dyn_cast<IntegerAttr>(value);
  if (!alias || alias.getInt() < 0 || alias.getInt() >= place.function.getNumArguments())
    return place.error() << "has `segue.alias` = " << value << ", which must be one of the "
                         << place.function.getNumArguments() << " arguments";
  Type argument = place.function.getArgumentTypes()[alias.getInt()];
  if (argument != place.type())
    return place.error() << "is " << place.type() << ", but the argument in `segue.alias` is " << argument;
  return success();
}

/// Verifies one attribute of `place`.
static LogicalResult verifyAt(const Place &place, NamedAttribute attr) {
  StringRef name = attr.getName();
  Attribute value = attr.getValue();
  auto mustBe = [&](bool holds, StringRef what) -> LogicalResult {
    if (holds)
      return success();
    return place.error() << "has `" << name << "` = " << value << ", which must be " << what;
  };
  if (name == SegueDialect::kNameAttr)
    return verifyName(place, value);
  if (name == SegueDialect::kRoleAttr)
    return verifyRole(place, value);
  if (name == SegueDialect::kOfAttr)
    return verifyOf(place, value);
  if (name == SegueDialect::kLayoutAttr)
    return verifyLayout(place, value);
  if (name == SegueDialect::kBlockAttr)
    return mustBe(isa<StringAttr>(value), "a string");
  if (!place.isResult && name == "segue.requires_grad")
    return mustBe(isa<BoolAttr>(value), "`true` or `false`");
  if (!place.isResult && name == "segue.weight_decay")
    return mustBe(isa<FloatAttr>(value), "a float");
  if (!place.isResult && name == "segue.optimizer")
    return mustBe(isa<StringAttr>(value), "a string");
  if (!place.isResult && name == "segue.rate_group") {
    auto group = dyn_cast<IntegerAttr>(value);
    return mustBe(group && group.getInt() >= 0 && group.getInt() < 1024, "an integer from 0 to 1023");
  }
  if (place.isResult && name == "segue.alias")
    return verifyAlias(place, value);
  if (place.isResult && (name == "segue.recompute_flops" || name == "segue.recompute_bytes")) {
    auto cost = dyn_cast<IntegerAttr>(value);
    return mustBe(cost && cost.getInt() >= 0, "an integer that is not negative");
  }
  return place.error() << "has `" << name << "`, which the dialect does not know here; known are `segue.name`, "
                       << "`segue.role`, `segue.of`, `segue.layout`, `segue.block` and "
                       << (place.isResult ? "`segue.alias`, `segue.recompute_flops`, `segue.recompute_bytes`"
                                          : "`segue.requires_grad`, `segue.weight_decay`, `segue.rate_group`, "
                                            "`segue.optimizer`");
}

LogicalResult SegueDialect::verifyRegionArgAttribute(Operation *op, unsigned region, unsigned arg,
                                                     NamedAttribute attr) {
  auto function = dyn_cast<FunctionOpInterface>(op);
  if (!function)
    return op->emitOpError() << "has `" << attr.getName().strref() << "` on an argument, which belongs on functions";
  return verifyAt({function, arg, /*isResult=*/false}, attr);
}

LogicalResult SegueDialect::verifyRegionResultAttribute(Operation *op, unsigned region, unsigned result,
                                                        NamedAttribute attr) {
  auto function = dyn_cast<FunctionOpInterface>(op);
  if (!function)
    return op->emitOpError() << "has `" << attr.getName().strref() << "` on a result, which belongs on functions";
  return verifyAt({function, result, /*isResult=*/true}, attr);
}

LogicalResult SegueDialect::verifyOperationAttribute(Operation *op, NamedAttribute attr) {
  if ((attr.getName() == kBlockAttr || attr.getName() == kUpdateAttr) && !isa<StringAttr>(attr.getValue()))
    return op->emitOpError() << "has `" << attr.getName().strref() << "` = " << attr.getValue()
                             << ", which must be a string";
  if (attr.getName() == kBlocksAttr) {
    auto names = dyn_cast<ArrayAttr>(attr.getValue());
    if (!names || names.empty() || !llvm::all_of(names, llvm::IsaPred<StringAttr>))
      return op->emitOpError() << "has `" << kBlocksAttr << "` = " << attr.getValue()
                               << ", which must be a list of strings that is not empty";
  }
  if (attr.getName() == kNameAttr || attr.getName() == kRoleAttr || attr.getName() == kOfAttr)
    return op->emitOpError() << "has `" << attr.getName().strref()
                             << "`, which belongs on arguments and results of functions";
  return success();
}
