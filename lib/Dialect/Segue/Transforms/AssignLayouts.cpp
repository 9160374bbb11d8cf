//===- AssignLayouts.cpp - segue-assign-layouts ---------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Places, the arguments and results of all functions, are put together in
// values: what is one tensor to a training step. Source, hints and types speak
// of places; a layout is decided per value and written to all its places.
//
//===----------------------------------------------------------------------===//

#include "SignatureHash.h"
#include "StitchHints.h"
#include "TrainingSignature.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include "llvm/ADT/EquivalenceClasses.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/Support/DebugLog.h"

namespace segue {
#define GEN_PASS_DEF_SEGUEASSIGNLAYOUTS
#include "segue/Dialect/Segue/Transforms/Passes.h.inc"
} // namespace segue

#define DEBUG_TYPE "segue-assign-layouts"

using namespace mlir;
using namespace segue;

//===----------------------------------------------------------------------===//
// Types without layouts
//===----------------------------------------------------------------------===//

/// Returns `type` without its layout.
static Type strip(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (!tensor || !isa_and_present<LayoutAttr>(tensor.getEncoding()))
    return type;
  return RankedTensorType::get(tensor.getShape(), tensor.getElementType());
}

static SmallVector<Type> strip(TypeRange types) {
  return llvm::map_to_vector(types, [](Type type) { return strip(type); });
}

static void stripConstant(ConstantOp op) {
  auto type = cast<ShapedType>(strip(op.getType()));
  if (type == op.getType())
    return;
  if (auto dense = dyn_cast<DenseElementsAttr>(op.getValue()))
    op.setValueAttr(dense.reshape(type));
  else if (auto resource = dyn_cast<DenseResourceElementsAttr>(op.getValue()))
    op.setValueAttr(DenseResourceElementsAttr::get(type, resource.getRawHandle()));
  else if (auto sparse = dyn_cast<SparseElementsAttr>(op.getValue()))
    op.setValueAttr(SparseElementsAttr::get(type, sparse.getIndices(), sparse.getValues()));
}

/// Takes the layouts out of the types of a function. A `to_layout` is then a
/// copy of nothing, and goes.
static void stripFunction(func::FuncOp function) {
  function.setType(
      FunctionType::get(function.getContext(), strip(function.getArgumentTypes()), strip(function.getResultTypes())));
  function.walk([](Operation *op) {
    if (auto constant = dyn_cast<ConstantOp>(op))
      stripConstant(constant);
    for (Region &region : op->getRegions())
      for (Block &block : region)
        for (BlockArgument argument : block.getArguments())
          argument.setType(strip(argument.getType()));
    for (Value result : op->getResults())
      result.setType(strip(result.getType()));
  });
  function.walk([](ToLayoutOp op) {
    op.replaceAllUsesWith(op.getInput());
    op.erase();
  });
}

/// Checks that the source does not place temporaries: a `to_layout` to a layout that no
/// argument or result of the function has would be lost. One to a layout that some have is
/// how values of one type are made, and nothing is lost with it, except with a storage that
/// rounds: then its result must be returned.
static LogicalResult checkTemporaries(func::FuncOp function) {
  llvm::SmallPtrSet<Type, 8> declared;
  for (Type type : llvm::concat<const Type>(function.getArgumentTypes(), function.getResultTypes()))
    declared.insert(type);
  WalkResult result = function.walk([&](ToLayoutOp op) {
    RankedTensorType type = op.getType();
    auto layout = dyn_cast_if_present<LayoutAttr>(type.getEncoding());
    auto usual = LayoutAttr::get(type.getContext(), Space::DeviceDram, {}, {}, Storage::Element, /*zeroPoints=*/false,
                                 kDefaultAlignment);
    if (!layout || layout.getCanonical(type.getShape()) == usual.getCanonical(type.getShape()))
      return WalkResult::advance();
    bool isStored = llvm::all_of(op->getUsers(), [](Operation *user) { return isa<func::ReturnOp>(user); });
    if (declared.contains(type) && (!layout.isQuantized() || isStored))
      return WalkResult::advance();
    if (declared.contains(type)) {
      op.emitOpError() << "rounds a temporary to " << layout << "; only arguments and results are stored so: return it, "
                       << "or drop the op";
      return WalkResult::interrupt();
    }
    op.emitOpError() << "lays a temporary in " << layout << ", which no argument or result of @" << function.getName()
                     << " has; inside of a function layouts are the compiler's to choose: give it to an argument or "
                        "result, or drop the op";
    return WalkResult::interrupt();
  });
  return failure(result.wasInterrupted());
}

//===----------------------------------------------------------------------===//
// Places
//===----------------------------------------------------------------------===//

namespace {
/// An argument or a result.
struct Place {
  func::FuncOp function;
  unsigned index = 0;
  bool isResult = false;
  RankedTensorType type;
  std::string name;
  Role role = Role::Input;
  /// The source gives this, by attribute or type.
  LayoutAttr given;
  /// True if `given` follows from another value's type.
  bool isDerived = false;

  Attribute get(StringRef attr) const {
    func::FuncOp f = function;
    return isResult ? f.getResultAttr(index, attr) : f.getArgAttr(index, attr);
  }
  void set(StringRef attr, Attribute value) {
    isResult ? function.setResultAttr(index, attr, value) : function.setArgAttr(index, attr, value);
  }
  std::string text() const {
    func::FuncOp f = function;
    return (isResult ? "result \"" : "argument \"") + name + "\" of @" + f.getName().str();
  }
};

/// All places of a module, and which of them are one tensor.
class Places {
public:
  LogicalResult collect(ModuleOp module) {
    for (auto function : module.getOps<func::FuncOp>())
      for (bool isResult : {false, true})
        for (auto [i, type] : llvm::enumerate(isResult ? function.getResultTypes() : function.getArgumentTypes()))
          if (auto tensor = dyn_cast<RankedTensorType>(type); tensor && tensor.hasStaticShape())
            add({function, static_cast<unsigned>(i), isResult, tensor});
    joinValues();
    return checkGiven();
  }

  llvm::MapVector<unsigned, SmallVector<unsigned>> values() {
    llvm::MapVector<unsigned, SmallVector<unsigned>> members;
    for (unsigned i = 0; i < places.size(); ++i)
      members[classes.getLeaderValue(i)].push_back(i);
    return members;
  }

  std::vector<Place> places;

private:
  void add(Place place) {
    if (auto name = dyn_cast_if_present<StringAttr>(place.get(SegueDialect::kNameAttr)))
      place.name = name.str();
    else
      place.name = (place.isResult ? "result" : "arg") + std::to_string(place.index);
    auto role = dyn_cast_if_present<RoleAttr>(place.get(SegueDialect::kRoleAttr));
    place.role = role ? role.getValue() : place.isResult ? Role::Output : Role::Input;
    auto byType = dyn_cast_if_present<LayoutAttr>(place.type.getEncoding());
    auto byAttr = dyn_cast_if_present<LayoutAttr>(place.get(SegueDialect::kLayoutAttr));
    place.given = byAttr ? byAttr : byType;
    place.isDerived = byType && llvm::is_contained({Role::Gradient, Role::Saved, Role::State}, place.role);
    classes.insert(places.size());
    places.push_back(std::move(place));
  }

  /// Names the tensor that a place is to a training step; empty for one that is
  /// its own.
  static std::string tensorOf(const Place &place) {
    func::FuncOp function = place.function;
    switch (place.role) {
    case Role::Input:
    case Role::Parameter:
    case Role::Frozen:
    case Role::State:
    case Role::Saved:
      return stringifyRole(place.role).str() + " " + place.name;
    case Role::Gradient:
      // A gradient that comes in and one that goes out may have one name.
      return (function.getName() == SegueDialect::kBackward && !place.isResult ? "seed " : "gradient ") + place.name;
    default:
      return "";
    }
  }

  void joinValues() {
    llvm::StringMap<unsigned> first;
    for (unsigned i = 0; i < places.size(); ++i) {
      Place &place = places[i];
      bool inStep = place.get(SegueDialect::kRoleAttr) != nullptr;
      if (std::string tensor = tensorOf(place); inStep && !tensor.empty()) {
        auto [known, isNew] = first.try_emplace(tensor, i);
        if (!isNew && strip(places[known->second].type) == strip(place.type))
          classes.unionSets(known->second, i);
      }
      if (auto alias = dyn_cast_if_present<IntegerAttr>(place.isResult ? place.get(kAliasAttr) : Attribute()))
        for (unsigned k = 0; k < i; ++k)
          if (places[k].function == place.function && !places[k].isResult &&
              places[k].index == static_cast<unsigned>(alias.getInt()))
            classes.unionSets(k, i);
    }
  }

  /// Places of one tensor do not contradict each other.
  LogicalResult checkGiven() {
    for (auto &[leader, members] : values()) {
      const Place *first = nullptr;
      for (unsigned i : members) {
        Place &place = places[i];
        if (!place.given || place.isDerived)
          continue;
        LayoutAttr layout = place.given.getCanonical(place.type.getShape());
        if (first && first->given.getCanonical(first->type.getShape()) != layout)
          return place.function.emitError() << place.text() << " has layout " << place.given << ", but "
                                            << first->text() << ", which is the same tensor, has " << first->given;
        first = first ? first : &place;
      }
    }
    return success();
  }

  llvm::EquivalenceClasses<unsigned> classes;
};
} // namespace

//===----------------------------------------------------------------------===//
// Hints
//===----------------------------------------------------------------------===//

/// Returns what Program.interface_hash of the program of `function` will be; nothing if
/// no program can have its signature.
static std::optional<uint64_t> interfaceHash(func::FuncOp function, ArrayRef<Place> places) {
  std::string text;
  for (bool isResult : {false, true})
    for (const Place &place : places) {
      if (place.function != function || place.isResult != isResult)
        continue;
      std::optional<int> element = elementNumber(place.type.getElementType());
      if (!element)
        return std::nullopt;
      ArrayRef<int64_t> shape = place.type.getShape();
      schema::appendInterface(text, !isResult, place.name, static_cast<int>(place.role), *element, shape.begin(),
                              shape.end());
      text += "\n";
    }
  return schema::hashText(text);
}

namespace {
/// The hints by place, the best of each.
class HintedPlaces {
public:
  HintedPlaces(ModuleOp module, ArrayRef<Place> places) : module(module), places(places) {}

  LogicalResult read(StringRef path) {
    FailureOr<std::vector<StitchHint>> hints = readStitchHints(path, module.getLoc());
    if (failed(hints))
      return failure();
    llvm::DenseMap<Operation *, std::optional<uint64_t>> hashes;
    for (auto function : module.getOps<func::FuncOp>())
      hashes[function] = interfaceHash(function, places);
    unsigned elsewhere = 0;
    for (StitchHint &hint : *hints) {
      auto function = module.lookupSymbol<func::FuncOp>(hint.program);
      if (!function || hashes.lookup(function) != hint.signature) {
        ++elsewhere;
        continue;
      }
      if (failed(take(path, function, std::move(hint))))
        return failure();
    }
    if (elsewhere)
      emitRemark(module.getLoc()) << elsewhere << " of " << hints->size() << " stitch hints in " << path
                                  << " are for programs of other modules, and are left alone";
    return success();
  }

  const StitchHint *find(unsigned place) const {
    auto found = byPlace.find(place);
    return found == byPlace.end() ? nullptr : &found->second;
  }

private:
  LogicalResult take(StringRef path, func::FuncOp function, StitchHint hint) {
    auto place = llvm::find_if(places, [&](const Place &p) {
      return p.function == function && p.isResult != hint.isInput && p.name == hint.value;
    });
    if (place == places.end())
      return emitError(module.getLoc()) << "stitch hints " << path << ": \"" << hint.where << "\" names "
                                        << (hint.isInput ? "input \"" : "output \"") << hint.value << "\" of @"
                                        << hint.program << ", which has none of that name";
    RankedTensorType type = cast<RankedTensorType>(strip(place->type));
    if (failed(hint.layout.verifyEncoding(type.getShape(), type.getElementType(), [&] {
          return emitError(module.getLoc()) << "stitch hints " << path << ": \"" << hint.where << "\" for "
                                            << place->text() << " of type " << type << ": ";
        })))
      return failure();
    // The host's memory is not where commands work, and what is written may not
    // put two elements in one place.
    bool onHost = hint.layout.getSpace() == Space::Host || hint.layout.getSpace() == Space::HostPinned;
    if (onHost || !hint.layout.isInjective(type.getShape())) {
      emitRemark(function.getLoc()) << "the stitch hint for " << place->text() << " is not followed: "
                                    << (onHost ? "programs compute in the memory of the device, not in "
                                               : "elements share their place in ")
                                    << hint.layout;
      return success();
    }
    hint.layout = hint.layout.getCanonical(type.getShape());
    unsigned index = place - places.begin();
    auto [known, isNew] = byPlace.try_emplace(index, hint);
    if (!isNew && known->second.bytesPerStep < hint.bytesPerStep)
      known->second = hint;
    return success();
  }

  ModuleOp module;
  ArrayRef<Place> places;
  llvm::DenseMap<unsigned, StitchHint> byPlace;
};

/// Returns true if `value`, or a transpose of it, is only ever the right operand of
/// products without batch, and is one.
static bool isReadByProducts(Value value) {
  return !value.use_empty() && llvm::all_of(value.getUses(), [&](OpOperand &use) {
    if (auto transpose = dyn_cast<TransposeOp>(use.getOwner()))
      return isReadByProducts(transpose.getResult());
    auto dot = dyn_cast<DotGeneralOp>(use.getOwner());
    return dot && use.get() == dot.getRhs() && use.get() != dot.getLhs() && dot.getRhsBatch().empty() &&
           dot.getRhsContract().size() == 1;
  });
}

struct AssignLayouts : segue::impl::SegueAssignLayoutsBase<AssignLayouts> {
  using SegueAssignLayoutsBase::SegueAssignLayoutsBase;

  void runOnOperation() override {
    if (failed(assign(getOperation())))
      signalPassFailure();
  }

  LogicalResult assign(ModuleOp module) {
    Places all;
    if (failed(all.collect(module)))
      return failure();
    HintedPlaces hinted(module, all.places);
    if (!hints.empty() && failed(hinted.read(hints)))
      return failure();
    std::optional<Storage> frozen = symbolizeStorage(frozenStorage);
    if (!frozenStorage.empty() && (!frozen || *frozen == Storage::Element))
      return module.emitError() << "`frozen-storage` is `" << frozenStorage
                                << "`, but must be `int8_row`, `fp8_e4m3_row`, `fp8_e5m2_row`, `int4_group32` or "
                                << "`int4_group64`";
    for (auto function : module.getOps<func::FuncOp>())
      if (failed(checkTemporaries(function)))
        return failure();
    for (auto &[leader, members] : all.values()) {
      LayoutAttr layout = decide(all.places, members, hinted, frozen);
      if (!layout)
        continue;
      for (unsigned i : members)
        all.places[i].set(SegueDialect::kLayoutAttr, layout.getCanonical(all.places[i].type.getShape()));
    }
    for (auto function : module.getOps<func::FuncOp>())
      stripFunction(function);
    return success();
  }

  /// A frozen matrix that only products read, or nobody in this function.
  static bool isFrozenWeight(const Place &place) {
    if (place.isResult || place.role != Role::Frozen || place.type.getRank() != 2 ||
        !isa<FloatType>(place.type.getElementType()) || place.type.getElementType().isF64())
      return false;
    func::FuncOp function = place.function;
    BlockArgument argument = function.getArgument(place.index);
    return argument.use_empty() || isReadByProducts(argument);
  }

  /// The layout of one tensor, which lies in the places `members`; null where
  /// nobody asks for one.
  LayoutAttr decide(ArrayRef<Place> places, ArrayRef<unsigned> members, const HintedPlaces &hintedPlaces,
                    std::optional<Storage> frozen) {
    const StitchHint *hint = nullptr;
    const Place *source = nullptr, *derived = nullptr;
    for (unsigned i : members) {
      const StitchHint *other = hintedPlaces.find(i);
      if (other && (!hint || hint->bytesPerStep < other->bytesPerStep))
        hint = other;
      if (!places[i].given)
        continue;
      const Place *&slot = places[i].isDerived ? derived : source;
      slot = slot ? slot : &places[i];
    }
    if (source) {
      given += members.size();
      if (hint && hint->layout != source->given.getCanonical(source->type.getShape()))
        emitRemark(source->function->getLoc())
            << "the stitch hint for " << source->text() << " is not followed: the source gives it " << source->given;
      return source->given;
    }
    if (hint) {
      hinted += members.size();
      LDBG() << places[members.front()].text() << " gets " << hint->layout << " by " << hint->where;
      return hint->layout;
    }
    if (frozen && llvm::all_of(members, [&](unsigned i) { return isFrozenWeight(places[i]); })) {
      stored += members.size();
      return LayoutAttr::get(&getContext(), Space::DeviceDram, {}, {}, *frozen, /*zeroPoints=*/false,
                             kDefaultAlignment);
    }
    return derived ? derived->given : LayoutAttr();
  }
};
} // namespace
