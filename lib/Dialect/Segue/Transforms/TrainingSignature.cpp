//===- TrainingSignature.cpp - names and roles of functions ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "TrainingSignature.h"

#include "llvm/ADT/StringSet.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace segue;

Role segue::argumentRole(func::FuncOp function, unsigned index) {
  auto role = function.getArgAttrOfType<RoleAttr>(index, SegueDialect::kRoleAttr);
  return role ? role.getValue() : Role::Input;
}

Role segue::resultRole(func::FuncOp function, unsigned index) {
  auto role = function.getResultAttrOfType<RoleAttr>(index, SegueDialect::kRoleAttr);
  return role ? role.getValue() : Role::Output;
}

StringRef segue::argumentName(func::FuncOp function, unsigned index) {
  auto name = function.getArgAttrOfType<StringAttr>(index, SegueDialect::kNameAttr);
  return name ? name.getValue() : StringRef();
}

StringRef segue::resultName(func::FuncOp function, unsigned index) {
  auto name = function.getResultAttrOfType<StringAttr>(index, SegueDialect::kNameAttr);
  return name ? name.getValue() : StringRef();
}

DictionaryAttr segue::signatureAttrs(MLIRContext *context, StringRef name, Role role, StringRef of) {
  Builder b(context);
  SmallVector<NamedAttribute> attrs{b.getNamedAttr(SegueDialect::kNameAttr, b.getStringAttr(name)),
                                    b.getNamedAttr(SegueDialect::kRoleAttr, RoleAttr::get(context, role))};
  if (!of.empty())
    attrs.push_back(b.getNamedAttr(SegueDialect::kOfAttr, b.getStringAttr(of)));
  return b.getDictionaryAttr(attrs);
}

FailureOr<func::FuncOp> segue::requireFunction(ModuleOp module, StringRef name, StringRef pass) {
  auto function = module.lookupSymbol<func::FuncOp>(name);
  if (!function)
    return module.emitError() << "`" << pass << "` needs a function `@" << name << "`, but the module has none";
  if (!function.getBody().hasOneBlock())
    return function.emitError() << "`" << pass << "` needs a body of one block, but `@" << name << "` has "
                                << function.getBody().getBlocks().size();
  // Readers of a value are looked for in the block of the function alone.
  for (Operation &op : function.getBody().front())
    if (op.getNumRegions() && !op.hasTrait<OpTrait::IsIsolatedFromAbove>())
      return op.emitOpError() << "has regions, which `" << pass << "` does not look into; write the body of `@" << name
                              << "` without them";
  return function;
}

static LogicalResult requireNames(func::FuncOp function, unsigned count, StringRef kind,
                                  function_ref<StringRef(unsigned)> nameOf) {
  llvm::StringSet<> seen;
  for (unsigned index = 0; index < count; ++index) {
    StringRef name = nameOf(index);
    if (name.empty())
      return function.emitError() << kind << " " << index << " of `@" << function.getName()
                                  << "` has no `segue.name`, by which gradients are called";
    if (!seen.insert(name).second)
      return function.emitError() << kind << " " << index << " of `@" << function.getName() << "` has the name \""
                                  << name << "\" of another " << kind;
  }
  return success();
}

LogicalResult segue::requireNames(func::FuncOp function) {
  if (failed(::requireNames(function, function.getNumArguments(), "argument",
                            [&](unsigned index) { return argumentName(function, index); })))
    return failure();
  return ::requireNames(function, function.getNumResults(), "result",
                        [&](unsigned index) { return resultName(function, index); });
}

LogicalResult segue::requireDistinctNames(func::FuncOp made, StringRef pass) {
  auto check = [&](unsigned count, StringRef kind, function_ref<StringRef(unsigned)> nameOf) -> LogicalResult {
    llvm::StringSet<> seen;
    for (unsigned index = 0; index < count; ++index)
      if (StringRef name = nameOf(index); !name.empty() && !seen.insert(name).second)
        return made.emitError() << "`" << pass << "` would call two " << kind << "s of `@" << made.getName() << "` \""
                                << name << "\"; call the value of `@forward` that has this name otherwise";
    return success();
  };
  return failure(failed(check(made.getNumArguments(), "argument", [&](unsigned i) { return argumentName(made, i); })) ||
                 failed(check(made.getNumResults(), "result", [&](unsigned i) { return resultName(made, i); })));
}

Attribute segue::blockOfFirstUser(BlockArgument argument) {
  Operation *first = nullptr;
  for (Operation *user : argument.getUsers())
    if (!first || user->isBeforeInBlock(first))
      first = user;
  return first ? first->getAttr(SegueDialect::kBlockAttr) : Attribute();
}

int64_t segue::tensorBytes(Type type) {
  auto tensor = cast<RankedTensorType>(type);
  return tensor.getNumElements() * llvm::divideCeil(tensor.getElementTypeBitWidth(), 8);
}

bool segue::isFloatTensor(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  return tensor && isa<FloatType>(tensor.getElementType());
}
