//===- ListAlternatives.cpp - prog-list-alternatives ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Candidates are few and fixed; each is tried on the one command that writes
// the output. What is declared in device_l1 may lie in device_dram as well: that
// is the variant for a device without L1, or with a full one (rule R9). Commands
// read either space, so that an input may be given in L1 wherever it is declared.
// What is listed here is verified again when the file is loaded.
//
//===----------------------------------------------------------------------===//

#include "RetargetStrides.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "segue/Dialect/Prog/Transforms/Passes.h"
#include "llvm/Support/MathExtras.h"

namespace segue::prog {
#define GEN_PASS_DEF_PROGLISTALTERNATIVES
#include "segue/Dialect/Prog/Transforms/Passes.h.inc"
} // namespace segue::prog

using namespace mlir;
using namespace segue::prog;
using segue::LayoutAttr;
using segue::Role;
using segue::Space;

/// The most dimensions of an output whose orders are listed.
static constexpr int64_t kMostDimensions = 4;

namespace {
/// The only command that names an output's buffer, and the view it writes.
struct Writer {
  WritesStridedOpInterface command;
  Value view;
};
} // namespace

/// The single command that writes `buffer`; nothing if others name it.
static std::optional<Writer> findWriter(Value buffer) {
  Writer writer;
  SmallVector<std::pair<Operation *, Value>> uses;
  for (OpOperand &use : buffer.getUses()) {
    if (auto view = dyn_cast<ViewOp>(use.getOwner())) {
      for (OpOperand &inner : view.getResult().getUses())
        uses.push_back({inner.getOwner(), view.getResult()});
      continue;
    }
    uses.push_back({use.getOwner(), buffer});
  }
  for (auto &[command, view] : uses) {
    if (isa<SaveOp>(command))
      continue;
    auto strided = dyn_cast<WritesStridedOpInterface>(command);
    if (writer.command || !strided || !strided.writesAllOf(view))
      return std::nullopt;
    writer = {strided, view};
  }
  if (!writer.command)
    return std::nullopt;
  auto view = writer.view.getDefiningOp<ViewOp>();
  return view && view.getOffset() != 0 ? std::nullopt : std::optional<Writer>(writer);
}

/// Returns true if `writer` can write a tensor of `shape` laid by `to` where it now writes
/// one laid by `from`: what the runtime verifies.
static bool canWrite(const Writer &writer, Type element, ArrayRef<int64_t> shape, ArrayRef<int64_t> from,
                     ArrayRef<int64_t> to) {
  auto view = cast<MemRefType>(writer.view.getType());
  std::optional<SmallVector<int64_t>> viewStrides = stridesOf(view);
  if (!viewStrides || view.getElementType() != element || view.getNumElements() == 0 ||
      view.getNumElements() != ShapedType::getNumElements(shape))
    return false;
  auto strides = segue::schema::retargetStrides(shape, from, to, view.getShape(), ArrayRef<int64_t>(*viewStrides));
  return strides && WritesStridedOpInterface(writer.command).canWriteIn(view.getShape(), *strides);
}

/// Returns the strides of a tensor whose dimensions lie in `order`, outermost first, its
/// innermost rows padded to `rowElements`.
static SmallVector<int64_t> stridesInOrder(ArrayRef<int64_t> shape, ArrayRef<unsigned> order, int64_t rowElements) {
  SmallVector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (auto [i, dim] : llvm::enumerate(llvm::reverse(order))) {
    strides[dim] = stride;
    stride = i == 0 ? rowElements : stride * shape[dim];
  }
  return strides;
}

/// Returns strides for a tensor of `shape`, the likeliest first: dense rows, padded rows,
/// then all other orders of the dimensions that are more than 1.
static std::vector<SmallVector<int64_t>> candidates(ArrayRef<int64_t> shape, uint64_t elementBytes) {
  std::vector<SmallVector<int64_t>> result;
  if (shape.empty())
    return result;
  SmallVector<unsigned> order = llvm::to_vector(llvm::seq<unsigned>(0, shape.size()));
  result.push_back(stridesInOrder(shape, order, shape.back()));
  int64_t padded = llvm::alignTo(shape.back() * elementBytes, kAlignment) / elementBytes;
  if (padded != shape.back() && shape.size() > 1)
    result.push_back(stridesInOrder(shape, order, padded));
  while (std::next_permutation(order.begin(), order.end()))
    result.push_back(stridesInOrder(shape, order, shape[order.back()]));
  return result;
}

/// Returns true if both strides put every element in one place: a dimension of extent 1 has
/// any.
static bool isSamePlacement(ArrayRef<int64_t> shape, ArrayRef<int64_t> a, ArrayRef<int64_t> b) {
  for (auto [extent, left, right] : llvm::zip_equal(shape, a, b))
    if (extent > 1 && left != right)
      return false;
  return true;
}

namespace {
struct ListAlternatives : segue::prog::impl::ProgListAlternativesBase<ListAlternatives> {
  using ProgListAlternativesBase::ProgListAlternativesBase;

  void runOnOperation() override {
    ProgramOp program = getOperation();
    llvm::SmallDenseSet<uint32_t> aliased, aliasedInputs;
    if (program.getAliases())
      for (auto alias : program.getAliases()->getAsRange<AliasAttr>()) {
        aliased.insert(alias.getOutput());
        aliasedInputs.insert(alias.getInput());
      }
    SmallVector<Attribute> inputs(program.getInputs().getValue());
    for (auto [i, input] : llvm::enumerate(inputs)) {
      auto value = cast<ValueAttr>(input);
      if (aliasedInputs.contains(i) || !value.getAlternatives().empty())
        continue;
      if (LayoutAttr elsewhere = placeOfInput(value, program.getInputBuffer(i))) {
        ++alternatives;
        input = ValueAttr::get(&getContext(), value.getName(), value.getRole(), value.getType(), value.getOf(),
                               elsewhere);
      }
    }
    program.setInputsAttr(ArrayAttr::get(&getContext(), inputs));
    SmallVector<Attribute> outputs(program.getOutputs().getValue());
    for (auto [i, output] : llvm::enumerate(outputs)) {
      auto value = cast<ValueAttr>(output);
      // The others go to programs of the same compilation, which agree.
      bool isForOthers = value.getRole() == Role::Output || value.getRole() == Role::Gradient;
      if (!isForOthers || aliased.contains(i) || !value.getAlternatives().empty())
        continue;
      SmallVector<LayoutAttr> layouts = alternativesOf(value, program.getOutputBuffer(i));
      alternatives += layouts.size();
      output = ValueAttr::get(&getContext(), value.getName(), value.getRole(), value.getType(), value.getOf(), layouts);
    }
    program.setOutputsAttr(ArrayAttr::get(&getContext(), outputs));
  }

  /// Returns the other place in which an input may be given: in DRAM if it is declared in
  /// L1, in L1 if it is declared in DRAM and small enough. The runtime, which follows the
  /// declaration, places saved values and states.
  LayoutAttr placeOfInput(ValueAttr value, Value buffer) {
    RankedTensorType type = value.getType();
    if (LayoutAttr elsewhere = inDram(type))
      return elsewhere;
    bool isGiven = llvm::is_contained({Role::Input, Role::Gradient, Role::Parameter, Role::Frozen}, value.getRole());
    std::optional<uint64_t> bytes = viewBytes(cast<MemRefType>(buffer.getType()));
    if (!isGiven || !bytes || *bytes == 0 || *bytes > l1Bytes)
      return {};
    auto declared = dyn_cast_if_present<LayoutAttr>(type.getEncoding());
    if (!declared)
      return LayoutAttr::get(&getContext(), Space::DeviceL1, {}, {}, segue::Storage::Element, /*zeroPoints=*/false,
                             segue::kDefaultAlignment);
    return declared.getSpace() == Space::DeviceDram ? moved(type, declared, Space::DeviceL1) : LayoutAttr();
  }

  /// The layout of a tensor that is declared in device_l1, in device_dram; null for
  /// others.
  LayoutAttr inDram(RankedTensorType type) {
    auto declared = dyn_cast_if_present<LayoutAttr>(type.getEncoding());
    if (!declared || declared.getSpace() != Space::DeviceL1)
      return {};
    return moved(type, declared, Space::DeviceDram);
  }

  LayoutAttr moved(RankedTensorType type, LayoutAttr declared, Space space) {
    return LayoutAttr::get(&getContext(), space, declared.getStrides(), declared.getTile(), declared.getStorage(),
                           declared.getZeroPoints(), declared.getAlignment())
        .getCanonical(type.getShape());
  }

  SmallVector<LayoutAttr> alternativesOf(ValueAttr value, Value buffer) {
    RankedTensorType type = value.getType();
    if (LayoutAttr elsewhere = inDram(type))
      return {elsewhere};
    ArrayRef<int64_t> shape = type.getShape();
    auto declared = dyn_cast_if_present<LayoutAttr>(type.getEncoding());
    SmallVector<LayoutAttr> layouts;
    if (type.getNumElements() == 0 || (declared && (declared.getSpace() != Space::DeviceDram || !declared.isStrided())))
      return layouts;
    SmallVector<int64_t> from = declared ? declared.getStridesFor(shape) : denseStrides(shape);
    uint32_t alignment = declared ? declared.getAlignment() : segue::kDefaultAlignment;
    auto layout = [&](Space space, ArrayRef<int64_t> strides) {
      return LayoutAttr::get(&getContext(), space, strides, {}, segue::Storage::Element, /*zeroPoints=*/false,
                             alignment)
          .getCanonical(shape);
    };
    std::optional<Writer> writer = findWriter(buffer);
    if (writer && type.getRank() <= kMostDimensions) {
      SmallVector<SmallVector<int64_t>> listed{from};
      for (ArrayRef<int64_t> to : candidates(shape, *segue::elementBytes(type.getElementType()))) {
        bool known = llvm::any_of(listed, [&](ArrayRef<int64_t> other) { return isSamePlacement(shape, other, to); });
        if (known || !canWrite(*writer, type.getElementType(), shape, from, to))
          continue;
        listed.emplace_back(to);
        layouts.push_back(layout(Space::DeviceDram, to));
      }
    }
    std::optional<uint64_t> bytes = viewBytes(cast<MemRefType>(buffer.getType()));
    if (bytes && *bytes <= l1Bytes)
      layouts.push_back(layout(Space::DeviceL1, declared ? declared.getStrides() : ArrayRef<int64_t>()));
    return layouts;
  }
};
} // namespace
