//===- ProgOps.cpp - ops of the prog dialect ------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The verifiers, in the order of ProgOps.td. C1, C2, ... are its constraints.
//
//===----------------------------------------------------------------------===//

#include "CubinHeader.h"
#include "PhaseOrder.h"
#include "mlir/IR/AsmState.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "segue/Dialect/Prog/IR/ProgDialect.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/CheckedArithmetic.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace segue::prog;
using segue::LayoutAttr;
using segue::Role;

#include "segue/Dialect/Prog/IR/ProgInterfaces.cpp.inc"

#define GET_OP_CLASSES
#include "segue/Dialect/Prog/IR/ProgOps.cpp.inc"

/// Returns true where a command may stand.
static bool isBufferOp(Operation *op) { return isa<AllocOp, ConstantOp>(op); }

//===----------------------------------------------------------------------===//
// prog.program, prog.phase, prog.block
//===----------------------------------------------------------------------===//

void ProgramOp::getAsmBlockArgumentNames(Region &region, OpAsmSetValueNameFn setName) {
  unsigned inputs = getNumInputs();
  for (BlockArgument arg : region.getArguments())
    setName(arg, arg.getArgNumber() < inputs ? "in" : "out");
}

static LogicalResult verifyNames(ProgramOp op, ArrayAttr values, StringRef what) {
  llvm::StringSet<> names;
  for (auto value : values.getAsRange<ValueAttr>())
    if (!names.insert(value.getName().getValue()).second)
      return op.emitOpError() << "has two " << what << "s called " << value.getName();
  return success();
}

/// Returns true if a tensor of `type` in `layout` lies as it does now, in another space or
/// more aligned.
static bool differsInPlaceAlone(RankedTensorType type, LayoutAttr layout) {
  auto declared = dyn_cast_if_present<LayoutAttr>(type.getEncoding());
  auto placed = [&](LayoutAttr of) {
    return LayoutAttr::get(type.getContext(), layout.getSpace(), of ? of.getStrides() : ArrayRef<int64_t>(),
                           of ? of.getTile() : ArrayRef<int64_t>(), of ? of.getStorage() : segue::Storage::Element,
                           of && of.getZeroPoints(), layout.getAlignment())
        .getCanonical(type.getShape());
  };
  return placed(declared) == placed(layout);
}

LogicalResult ProgramOp::verify() {
  // C1
  if (failed(verifyNames(*this, getInputs(), "input")) || failed(verifyNames(*this, getOutputs(), "output")))
    return failure();

  // C2
  unsigned values = getNumInputs() + getNumOutputs();
  Block &block = getBlock();
  if (block.getNumArguments() != values)
    return emitOpError() << "has " << block.getNumArguments() << " block arguments for " << getNumInputs()
                         << " inputs and " << getNumOutputs() << " outputs";
  for (unsigned i = 0; i < values; ++i) {
    bool isInput = i < getNumInputs();
    ValueAttr value = isInput ? getInput(i) : getOutput(i - getNumInputs());
    MemRefType expected = bufferType(value.getType());
    if (block.getArgument(i).getType() != expected)
      return emitOpError() << (isInput ? "input " : "output ") << value.getName() << " is " << value.getType()
                           << " and needs a buffer of type " << expected << ", but block argument " << i << " is "
                           << block.getArgument(i).getType();
  }

  // C3
  llvm::SmallDenseSet<uint32_t> aliased;
  for (auto alias : getAliases().value_or(ArrayAttr::get(getContext(), {})).getAsRange<AliasAttr>()) {
    if (alias.getInput() >= getNumInputs() || alias.getOutput() >= getNumOutputs())
      return emitOpError() << "alias " << alias << " is outside of " << getNumInputs() << " inputs and "
                           << getNumOutputs() << " outputs";
    if (!aliased.insert(alias.getOutput()).second)
      return emitOpError() << "output " << alias.getOutput() << " has two aliases";
    if (getInputBuffer(alias.getInput()).getType() != getOutputBuffer(alias.getOutput()).getType())
      return emitOpError() << "alias " << alias << " joins " << getInputBuffer(alias.getInput()).getType() << " and "
                           << getOutputBuffer(alias.getOutput()).getType();
  }
  for (auto save : getSavePoints().value_or(ArrayAttr::get(getContext(), {})).getAsRange<SavePointAttr>()) {
    unsigned count = save.getAliasesInput() ? getNumInputs() : getNumOutputs();
    StringRef what = save.getAliasesInput() ? "input" : "output";
    if (save.getValue() >= count)
      return emitOpError() << "save point names " << what << " " << save.getValue() << " of " << count;
    if (!save.getAliasesInput() && getOutput(save.getValue()).getRole() != Role::Saved)
      return emitOpError() << "save point names output " << getOutput(save.getValue()).getName()
                           << ", whose role is not saved";
  }

  // C7
  for (unsigned i = 0; i < getNumInputs(); ++i) {
    RankedTensorType type = getInput(i).getType();
    for (LayoutAttr layout : getInput(i).getAlternatives())
      if (!differsInPlaceAlone(type, layout))
        return emitOpError() << "input " << getInput(i).getName() << " is " << type << " and has alternative " << layout
                             << ", but may differ in space and alignment alone";
  }
  for (unsigned i = 0; i < values; ++i) {
    ValueAttr value = i < getNumInputs() ? getInput(i) : getOutput(i - getNumInputs());
    bool onDevice = isOnDevice(cast<MemRefType>(block.getArgument(i).getType()));
    for (LayoutAttr layout : value.getAlternatives())
      if (isOnDevice(layout.getSpace()) != onDevice)
        return emitOpError() << "value " << value.getName() << " is " << value.getType() << " and has alternative "
                             << layout << ", but stays " << (onDevice ? "on the device" : "on the host");
  }
  for (auto alias : getAliases().value_or(ArrayAttr::get(getContext(), {})).getAsRange<AliasAttr>())
    if (alias.getRequired() && !getOutput(alias.getOutput()).getAlternatives().empty())
      return emitOpError() << "output " << getOutput(alias.getOutput()).getName()
                           << " must lie in an input and has alternatives";
    else if (alias.getRequired() && !getInput(alias.getInput()).getAlternatives().empty())
      return emitOpError() << "input " << getInput(alias.getInput()).getName()
                           << " is written in place and has alternatives";

  // C8
  for (unsigned i = 0; i < getNumOutputs(); ++i) {
    RankedTensorType type = getOutput(i).getType();
    auto layout = dyn_cast_if_present<LayoutAttr>(type.getEncoding());
    if (layout && !layout.isInjective(type.getShape()))
      return emitOpError() << "output " << getOutput(i).getName() << " is " << type
                           << ", which holds two elements in one place";
    for (LayoutAttr layout : getOutput(i).getAlternatives())
      if (!layout.isInjective(type.getShape()))
        return emitOpError() << "output " << getOutput(i).getName() << " has alternative " << layout
                             << ", which holds two elements in one place";
  }

  // C6
  llvm::SmallDenseSet<uint32_t> spaces;
  for (auto arena : getArenas().value_or(ArrayAttr::get(getContext(), {})).getAsRange<ArenaAttr>())
    if (!spaces.insert(static_cast<uint32_t>(arena.getSpace())).second)
      return emitOpError() << "has two arenas in " << stringifySpace(arena.getSpace());
  return success();
}

/// Verifies C2 of prog.save: nothing uses a saved value after it was given away.
static LogicalResult verifySaves(ProgramOp program) {
  llvm::SmallDenseMap<Value, SaveOp> saved;
  WalkResult result = program.walk<WalkOrder::PreOrder>([&](Operation *op) {
    if (isa<ViewOp>(op))
      return WalkResult::advance();
    for (Value operand : op->getOperands()) {
      if (auto view = operand.getDefiningOp<ViewOp>())
        operand = view.getSource();
      auto save = saved.find(operand);
      if (save == saved.end())
        continue;
      InFlightDiagnostic diag = op->emitOpError() << "uses a saved value after its `prog.save`";
      diag.attachNote(save->second.getLoc()) << "saved here";
      return WalkResult::interrupt();
    }
    if (auto save = dyn_cast<SaveOp>(op))
      saved[save.getBuffer()] = save;
    return WalkResult::advance();
  });
  return failure(result.wasInterrupted());
}

static ValueAttr findValue(ArrayAttr values, StringRef name) {
  for (auto value : values.getAsRange<ValueAttr>())
    if (value.getName().getValue() == name)
      return value;
  return {};
}

LogicalResult ProgramOp::verifySymbolUses(SymbolTableCollection &symbols) {
  for (auto save : getSavePoints().value_or(ArrayAttr::get(getContext(), {})).getAsRange<SavePointAttr>()) {
    FlatSymbolRefAttr symbol = save.getRecompute();
    if (!symbol) // C9
      continue;
    auto other = symbols.lookupNearestSymbolFrom<ProgramOp>(*this, symbol);
    if (!other)
      return emitOpError() << "recomputes a saved value by " << symbol << ", which is not a `prog.program`";
    ValueAttr saved = save.getAliasesInput() ? getInput(save.getValue()) : getOutput(save.getValue());
    if (save.getRecomputeOutput() >= other.getNumOutputs() ||
        other.getOutput(save.getRecomputeOutput()).getType() != saved.getType())
      return emitOpError() << "recomputes " << saved.getName() << " by output " << save.getRecomputeOutput() << " of "
                           << symbol << ", which is not " << saved.getType();
    for (auto input : other.getInputs().getAsRange<ValueAttr>()) {
      bool isSaved = input.getRole() == Role::Saved;
      ValueAttr source = findValue(isSaved ? getOutputs() : getInputs(), input.getName().getValue());
      if (!source || source.getRole() != input.getRole() || source.getType() != input.getType())
        return emitOpError() << "recomputes " << saved.getName() << " by " << symbol << ", whose input "
                             << input.getName() << " is not " << (isSaved ? "a saved output" : "an input")
                             << " of this program of " << input.getType();
    }
  }
  return success();
}

LogicalResult ProgramOp::verifyRegions() {
  bool commands = false;
  PhaseOp last;
  for (Operation &op : getBlock()) {
    if (isBufferOp(&op)) {
      if (commands) // C5
        return op.emitOpError() << "comes after the first command, but buffers come first";
      continue;
    }
    commands = true;
    if (auto phase = dyn_cast<PhaseOp>(op)) {
      auto part = [](PhaseOp op) { return static_cast<segue::schema::StepPart>(op.getPhase()); };
      if (last && part(last) != part(phase) && !segue::schema::canFollow(part(last), part(phase))) { // C10
        InFlightDiagnostic error = phase.emitOpError()
                                   << "enters `" << stringifyPhase(phase.getPhase()) << "`, which cannot follow `"
                                   << stringifyPhase(last.getPhase()) << "`";
        error.attachNote(last.getLoc()) << "entered here";
        return error;
      }
      last = phase;
    } else if (last) // C4
      return op.emitOpError() << "comes after a `prog.phase`, but then every command must lie in one";
  }
  return verifySaves(*this);
}

LogicalResult PhaseOp::verify() {
  if (!isa<ProgramOp>((*this)->getParentOp())) // C1
    return emitOpError() << "must lie directly in a `prog.program`";
  if (!segue::schema::isProgramPhase(static_cast<segue::schema::StepPart>(getPhase()))) // C2
    return emitOpError() << "enters `" << stringifyPhase(getPhase())
                         << "`, but steps begin and end outside of programs";
  return success();
}

LogicalResult BlockOp::verify() {
  if (getName().empty()) // C1
    return emitOpError() << "has an empty name";
  return success();
}

//===----------------------------------------------------------------------===//
// prog.kernel, prog.segment
//===----------------------------------------------------------------------===//

LogicalResult KernelOp::verify() {
  if (getOutputs() > getArguments()) // C1
    return emitOpError() << "writes " << getOutputs() << " of " << getArguments() << " arguments";
  auto check = [&](StringRef key, ArrayRef<int64_t> bytes) -> LogicalResult { // C2
    if (bytes.size() != getArguments())
      return emitOpError() << "has " << bytes.size() << " entries in `" << key << "` for " << getArguments()
                           << " arguments";
    for (int64_t n : bytes)
      if (n < 0)
        return emitOpError() << "has negative entry " << n << " in `" << key << "`";
    return success();
  };
  return failure(failed(check("fixed_bytes", getFixedBytes())) || failed(check("bytes_per_unit", getBytesPerUnit())));
}

/// Returns what a segment with code of `isa` holds.
static SegmentKind kindOf(Isa isa) {
  switch (isa) {
  case Isa::X86_64_v3:
  case Isa::X86_64_v4:
    return SegmentKind::Elf;
  case Isa::Ptx:
    return SegmentKind::Ptx;
  case Isa::Cubin:
    return SegmentKind::Cubin;
  }
  llvm_unreachable("unknown instruction set");
}

LogicalResult KernelOp::verifySymbolUses(SymbolTableCollection &symbols) {
  for (auto variant : getVariants().value_or(ArrayAttr::get(getContext(), {})).getAsRange<VariantAttr>()) {
    auto segment = symbols.lookupNearestSymbolFrom<SegmentOp>(*this, variant.getSegment());
    if (!segment || segment.getKind() == SegmentKind::Constants) // C3
      return emitOpError() << "has variant " << variant.getSymbol() << " in " << variant.getSegment()
                           << ", which is not a `prog.segment` of code";
    if (segment.getKind() != kindOf(variant.getIsa()))
      return emitOpError() << "has variant " << variant.getSymbol() << " for `" << stringifyIsa(variant.getIsa())
                           << "` in " << variant.getSegment() << ", which is a `prog.segment` of `"
                           << stringifySegmentKind(segment.getKind()) << "`";
  }
  return success();
}

static LogicalResult verifyCubin(SegmentOp op) {
  if (op.getKind() != SegmentKind::Cubin) {
    if (op.getCapability())
      return op.emitOpError() << "of `" << stringifySegmentKind(op.getKind()) << "` names compute capability "
                              << op.getCapability() << ", which a cubin alone has";
    return success();
  }
  if (!op.hasBytes())
    return success();
  // One byte may be written for any number of them.
  if (auto elements = dyn_cast<DenseElementsAttr>(op.getData()); elements && elements.isSplat())
    return op.emitOpError("is no cubin: it does not begin with the header of an ELF file");
  SmallVector<char> storage;
  ArrayRef<char> bytes = op.getBytes(storage);
  segue::schema::CubinHeader header;
  if (std::string wrong = segue::schema::readCubinHeader(bytes.data(), bytes.size(), header); !wrong.empty())
    return op.emitOpError() << "is no cubin: " << wrong;
  if (header.capability != op.getCapability())
    return op.emitOpError() << "names compute capability " << op.getCapability() << ", but its cubin is for "
                            << header.capability;
  return success();
}

LogicalResult SegmentOp::verify() {
  auto type = dyn_cast<RankedTensorType>(getData().getShapedType());
  if (!type || type.getRank() != 1 || !type.getElementType().isInteger(8)) // C1
    return emitOpError() << "holds " << getData().getShapedType() << ", but must hold a 1-D tensor of i8";
  if (!llvm::isPowerOf2_32(getAlignment()) || getAlignment() > 4096) // C2
    return emitOpError() << "has alignment " << getAlignment() << ", but must have a power of two up to 4096";
  unsigned number = 0;
  for (Operation *op = (*this)->getPrevNode(); op; op = op->getPrevNode())
    number += isa<SegmentOp>(op);
  std::string expected = "segment" + std::to_string(number);
  if (getSymName() != expected) // C3
    return emitOpError() << "is called @" << getSymName() << ", but segment number " << number << " must be called @"
                         << expected;
  if (auto resource = dyn_cast<DenseResourceElementsAttr>(getData()); // C5
      resource && hasBytes() && static_cast<int64_t>(resource.getData().size()) != type.getNumElements())
    return emitOpError() << "has a resource of " << resource.getData().size() << " bytes, but holds " << type;
  return verifyCubin(*this); // C4
}

bool SegmentOp::hasBytes() {
  auto resource = dyn_cast<DenseResourceElementsAttr>(getData());
  return !resource || resource.getRawHandle().getBlob();
}

ArrayRef<char> SegmentOp::getBytes(SmallVectorImpl<char> &storage) {
  if (auto resource = dyn_cast<DenseResourceElementsAttr>(getData()))
    return resource.getData();
  for (int8_t byte : getData().getValues<int8_t>())
    storage.push_back(byte);
  return storage;
}

//===----------------------------------------------------------------------===//
// prog.alloc, prog.constant, prog.view
//===----------------------------------------------------------------------===//

LogicalResult AllocOp::verify() {
  if (getElement()) { // C2
    std::optional<uint64_t> bytes = elementBytes(*getElement());
    if (!bytes || getType().getNumElements() % *bytes)
      return emitOpError() << "of " << getType().getNumElements() << " bytes cannot hold elements of " << *getElement();
  }
  if (!getOffset())
    return success();
  auto program = (*this)->getParentOfType<ProgramOp>();
  ArrayAttr arenas = program && program.getArenas() ? *program.getArenas() : ArrayAttr::get(getContext(), {});
  for (ArenaAttr arena : arenas.getAsRange<ArenaAttr>()) {
    if (arena.getSpace() != spaceOf(getType()))
      continue;
    std::optional<uint64_t> end = llvm::checkedAddUnsigned<uint64_t>(*getOffset(), getType().getNumElements());
    if (!end || *end > arena.getBytes())
      return emitOpError() << "of " << getType().getNumElements() << " bytes at offset " << *getOffset()
                           << " ends outside of an arena of " << arena.getBytes() << " bytes";
    return success();
  }
  return emitOpError() << "has an offset, but its program has no arena in " << stringifySpace(spaceOf(getType()));
}

LogicalResult ConstantOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto segment = symbols.lookupNearestSymbolFrom<SegmentOp>(*this, getSegmentAttr());
  if (!segment || segment.getKind() != SegmentKind::Constants) // C1
    return emitOpError() << "names " << getSegmentAttr() << ", which is not a `prog.segment` of constants";
  std::optional<uint64_t> end = llvm::checkedAddUnsigned<uint64_t>(getOffset(), getType().getNumElements());
  if (!end || *end > segment.getNumBytes()) // C2
    return emitOpError() << "of " << getType().getNumElements() << " bytes at offset " << getOffset()
                         << " ends outside of " << getSegmentAttr() << " of " << segment.getNumBytes() << " bytes";
  return success();
}

LogicalResult ViewOp::verify() {
  if (getSource().getDefiningOp<ViewOp>()) // C1
    return emitOpError() << "has a view as its source, but needs a buffer";
  if (!stridesOf(getType())) // C2
    return emitOpError() << "has type " << getType() << ", but static strides that are not negative, and no offset, "
                         << "are needed";
  std::optional<uint64_t> bytes = viewBytes(getType()), limit = viewBytes(getSource().getType());
  if (!bytes || !limit)
    return emitOpError() << "has type " << getType() << ", whose size is not a number of bytes";
  std::optional<uint64_t> end = llvm::checkedAddUnsigned<uint64_t>(getOffset(), *bytes);
  if (!end || *end > *limit) // C3
    return emitOpError() << "of " << *bytes << " bytes at offset " << getOffset() << " ends outside of a buffer of "
                         << *limit << " bytes";
  if (spaceOf(getType()) != spaceOf(getSource().getType())) // C4
    return emitOpError() << "is in " << stringifySpace(spaceOf(getType())) << ", but its buffer in "
                         << stringifySpace(spaceOf(getSource().getType()));
  if (getOffset() == 0 && getType() == getSource().getType()) // C5
    return emitOpError() << "is the buffer itself: use that";
  return success();
}

//===----------------------------------------------------------------------===//
// Commands
//===----------------------------------------------------------------------===//

void LaunchOp::getEffects(SmallVectorImpl<SideEffects::EffectInstance<MemoryEffects::Effect>> &effects) {
  // The kernel alone knows which arguments are written.
  effects.emplace_back(MemoryEffects::Read::get());
  effects.emplace_back(MemoryEffects::Write::get());
}

LogicalResult LaunchOp::verify() {
  if (static_cast<int64_t>(getRange()) <= 0 || static_cast<int64_t>(getGrain()) <= 0) // C4
    return emitOpError() << "has range " << static_cast<int64_t>(getRange()) << " and grain "
                         << static_cast<int64_t>(getGrain()) << ", but both must be positive";
  if (std::optional<ArrayRef<int64_t>> offsets = getOffsets()) { // C3
    if (offsets->size() != getArgs().size())
      return emitOpError() << "has " << offsets->size() << " offsets for " << getArgs().size() << " buffers";
    for (int64_t offset : *offsets)
      if (offset < 0)
        return emitOpError() << "has negative offset " << offset;
    if (llvm::all_of(*offsets, [](int64_t offset) { return offset == 0; }))
      return emitOpError() << "has offsets that are all 0: leave them out";
  }
  if (std::optional<ArrayRef<int64_t>> pairs = getInPlace()) {
    if (pairs->size() % 2)
      return emitOpError() << "has " << pairs->size() << " numbers in `in_place`, but needs pairs";
    for (int64_t position : *pairs)
      if (position < 0 || position >= static_cast<int64_t>(getArgs().size()))
        return emitOpError() << "has position " << position << " in `in_place`, but only " << getArgs().size()
                             << " buffers";
  }
  return success();
}

LogicalResult LaunchOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto kernel = symbols.lookupNearestSymbolFrom<KernelOp>(*this, getKernelAttr());
  if (!kernel) // C1
    return emitOpError() << "names " << getKernelAttr() << ", which is not a `prog.kernel`";
  if (kernel.getArguments() != getArgs().size()) { // C1
    InFlightDiagnostic diag = emitOpError() << "has " << getArgs().size() << " buffers, but " << getKernelAttr()
                                            << " takes " << kernel.getArguments();
    diag.attachNote(kernel.getLoc()) << "kernel declared here";
    return diag;
  }
  for (auto [i, arg] : llvm::enumerate(getArgs())) { // C2
    std::optional<uint64_t> has = viewBytes(cast<MemRefType>(arg.getType()));
    std::optional<int64_t> needs =
        llvm::checkedMulAdd<int64_t>(kernel.getBytesPerUnit()[i], getRange(), kernel.getFixedBytes()[i]);
    uint64_t offset = getOffsets() ? (*getOffsets())[i] : 0;
    std::optional<uint64_t> end = needs ? llvm::checkedAddUnsigned<uint64_t>(offset, *needs) : std::nullopt;
    if (!has || !end || *end > *has) {
      InFlightDiagnostic diag = emitOpError() << "gives buffer " << i << " of type " << arg.getType();
      if (offset)
        diag << " at offset " << offset;
      diag << ", but " << getKernelAttr() << " needs " << kernel.getFixedBytes()[i] << " + " << getRange() << " * "
           << kernel.getBytesPerUnit()[i] << " bytes";
      return diag;
    }
  }
  return success();
}

/// Verifies that `what` has `shape`, and its last dimension is contiguous if wanted.
static LogicalResult verifyShape(Operation *op, StringRef what, Value value, ArrayRef<int64_t> shape,
                                 bool contiguous = false) {
  auto type = cast<MemRefType>(value.getType());
  if (type.getShape() != shape) {
    InFlightDiagnostic diag = op->emitOpError() << "has `" << what << "` of type " << type << ", but the shape [";
    llvm::interleaveComma(shape, diag);
    return diag << "] is needed";
  }
  std::optional<SmallVector<int64_t>> strides = stridesOf(type);
  if (!strides)
    return op->emitOpError() << "has `" << what << "` of type " << type << ", whose strides are not static";
  if (contiguous && !shape.empty() && shape.back() > 1 && strides->back() != 1)
    return op->emitOpError() << "has `" << what << "` of type " << type
                             << ", but its last dimension must be contiguous";
  return success();
}

/// Verifies that `value` has rank `rank`.
static LogicalResult verifyRank(Operation *op, StringRef what, Value value, int64_t rank) {
  auto type = cast<MemRefType>(value.getType());
  if (type.getRank() != rank)
    return op->emitOpError() << "has `" << what << "` of type " << type << ", but rank " << rank << " is needed";
  return success();
}

/// Computed in f32 by the library.
static bool isLibraryFloat(Type type) { return type.isF32() || type.isBF16() || type.isF16(); }

static Type elementOf(Value value) { return cast<MemRefType>(value.getType()).getElementType(); }

static LogicalResult verifyLaid(Operation *op, StringRef what, Value buffer, RankedTensorType type);

/// Verifies C4, and C1 to C3 of a product with a weight of codes.
static LogicalResult verifyCodes(MatmulOp op) {
  auto type = cast<RankedTensorType>(*op.getBType());
  auto layout = dyn_cast_if_present<LayoutAttr>(type.getEncoding());
  if (!layout || !layout.isQuantized() || !layout.getTile().empty() || type.getRank() != 2)
    return op.emitOpError() << "has `b` as " << type
                            << ", but only a matrix with a row or group storage and no tile is named";
  if (failed(verifyLaid(op, "b", op.getB(), type)) || failed(verifyRank(op, "a", op.getA(), 3)))
    return failure();
  ArrayRef<int64_t> a = op.getA().getType().getShape(), b = type.getShape();
  int64_t k = op.getBTransposed() ? b[1] : b[0], n = op.getBTransposed() ? b[0] : b[1];
  if (failed(verifyShape(op, "a", op.getA(), {1, a[1], k}, /*contiguous=*/true)) ||
      failed(verifyShape(op, "c", op.getC(), {1, a[1], n}, /*contiguous=*/true)) ||
      (op.getBias() && failed(verifyShape(op, "bias", op.getBias(), {n}))))
    return failure();
  SmallVector<int64_t> codes = layout.getStridesFor(b), rows = *stridesOf(op.getA().getType());
  if ((b[1] > 1 && codes[1] != 1) || (b[0] > 1 && codes[0] < b[1]))
    return op.emitOpError() << "has `b` as " << type << ", whose rows are not contiguous or overlap";
  if (a[1] > 1 && rows[1] < k)
    return op.emitOpError() << "has `a` of type " << op.getA().getType() << ", whose rows of " << k
                            << " elements overlap";
  if (op.getAccumulate())
    return op.emitOpError() << "accumulates a product with codes, which only overwrites";
  Type element = elementOf(op.getA()), result = elementOf(op.getC());
  if (!isLibraryFloat(element) || (result != element && !result.isF32()))
    return op.emitOpError() << "multiplies " << element << " by codes into " << result
                            << ", but needs a float type, and that or f32 for the result";
  return success();
}

/// Returns true for a unit stride; extents of 1 have any stride.
static bool isUnitStride(ArrayRef<int64_t> shape, ArrayRef<int64_t> strides, size_t dim) {
  return shape[dim] == 1 || strides[dim] == 1;
}

/// The other way round, c^T = b^T a^T, knows no bias along rows and no codes on the left.
bool MatmulOp::canWriteIn(ArrayRef<int64_t> shape, ArrayRef<int64_t> strides) {
  return isUnitStride(shape, strides, 2) || (isUnitStride(shape, strides, 1) && !getBias() && !getBType());
}
bool MatmulOp::writesAllOf(Value operand) { return getC() == operand && !getAccumulate(); }

/// Returns true if attention can write rows: the innermost dimension is dense.
static bool canWriteRows(ArrayRef<int64_t> shape, ArrayRef<int64_t> strides) {
  return shape.size() == 4 && isUnitStride(shape, strides, 3);
}
bool AttentionOp::canWriteIn(ArrayRef<int64_t> shape, ArrayRef<int64_t> strides) { return canWriteRows(shape, strides); }
bool AttentionOp::writesAllOf(Value operand) { return getOut() == operand; }
bool AttentionGradOp::canWriteIn(ArrayRef<int64_t> shape, ArrayRef<int64_t> strides) {
  return canWriteRows(shape, strides);
}
bool AttentionGradOp::writesAllOf(Value operand) {
  return getGradQ() == operand || getGradK() == operand || getGradV() == operand;
}

bool ToLayoutOp::writesAllOf(Value operand) { return getTarget() == operand && !getTargetType(); }

LogicalResult MatmulOp::verify() {
  if (getBType())
    return verifyCodes(*this);
  if (getBTransposed())
    return emitOpError() << "reads the transpose of `b`, which is for a weight of codes alone";
  // C1
  if (failed(verifyRank(*this, "a", getA(), 3)) || failed(verifyRank(*this, "b", getB(), 3)))
    return failure();
  ArrayRef<int64_t> a = getA().getType().getShape(), b = getB().getType().getShape();
  if (failed(verifyShape(*this, "a", getA(), a)) || failed(verifyShape(*this, "b", getB(), {a[0], a[2], b[2]})) ||
      failed(verifyShape(*this, "c", getC(), {a[0], a[1], b[2]}, /*contiguous=*/true)) || // C2
      (getBias() && failed(verifyShape(*this, "bias", getBias(), {b[2]}))))
    return failure();
  // C3
  Type element = elementOf(getA()), result = elementOf(getC());
  if (!isa<FloatType>(element) || element != elementOf(getB()) || (result != element && result != computeType(element)))
    return emitOpError() << "multiplies " << element << " by " << elementOf(getB()) << " into " << result
                         << ", but needs one float type, and that or f32 for the result (f64 for f64)";
  return success();
}

/// The shapes that attention and its derivative share.
template <typename Op> static LogicalResult verifyAttention(Op op) {
  if (failed(verifyRank(op, "q", op.getQ(), 4)) || failed(verifyRank(op, "k", op.getK(), 4)))
    return failure();
  ArrayRef<int64_t> q = op.getQ().getType().getShape(), k = op.getK().getType().getShape();
  if (failed(verifyShape(op, "q", op.getQ(), q, true)) ||
      failed(verifyShape(op, "k", op.getK(), {q[0], q[1], k[2], q[3]}, true)) ||
      failed(verifyShape(op, "v", op.getV(), k, true)) || failed(verifyShape(op, "out", op.getOut(), q, true)) ||
      failed(verifyShape(op, "lse", op.getLse(), q.drop_back())) ||
      (op.getMask() && failed(verifyShape(op, "mask", op.getMask(), {q[0], q[1], q[2], k[2]}))))
    return failure();
  if (!elementOf(op.getLse()).isF32())
    return op.emitOpError() << "has `lse` of " << elementOf(op.getLse()) << ", but needs f32";
  Type element = elementOf(op.getQ());
  if (!isLibraryFloat(element) || element != elementOf(op.getK()) || element != elementOf(op.getV()) ||
      element != elementOf(op.getOut()))
    return op.emitOpError() << "needs one float element type for `q`, `k`, `v` and `out`";
  bool drops = op.getDropout().has_value(); // C3
  if (drops != bool(op.getSeed()) || drops != bool(op.getStep()) || drops != op.getId().has_value())
    return op.emitOpError("has only some of `dropout`, `seed`, `step` and `id`; they come together");
  if (!drops)
    return success();
  float dropout = op.getDropout()->convertToFloat();
  if (!(dropout >= 0 && dropout < 1))
    return op.emitOpError() << "has `dropout` " << dropout << ", which must be at least 0 and less than 1";
  for (Value number : {op.getSeed(), op.getStep()}) {
    StringRef name = number == op.getSeed() ? "seed" : "step";
    if (failed(verifyShape(op, name, number, {})))
      return failure();
    if (!elementOf(number).isInteger(64))
      return op.emitOpError() << "has `" << name << "` of " << elementOf(number) << ", but needs i64";
  }
  return success();
}

LogicalResult AttentionOp::verify() { return verifyAttention(*this); }

LogicalResult AttentionGradOp::verify() {
  if (failed(verifyAttention(*this)))
    return failure();
  ArrayRef<int64_t> q = getQ().getType().getShape(), k = getK().getType().getShape();
  return failure(failed(verifyShape(*this, "grad_out", getGradOut(), q, true)) ||
                 failed(verifyShape(*this, "grad_q", getGradQ(), q, true)) ||
                 failed(verifyShape(*this, "grad_k", getGradK(), k, true)) ||
                 failed(verifyShape(*this, "grad_v", getGradV(), k, true)));
}

LogicalResult LibraryCallOp::verify() {
  if (getCallee().empty()) // C1
    return emitOpError() << "names no operation";
  for (Value value : getOperands()) { // C2
    auto type = cast<MemRefType>(value.getType());
    std::optional<SmallVector<int64_t>> strides = stridesOf(type);
    int64_t dense = 1;
    for (int64_t dim = type.getRank() - 1; dim >= 0; --dim) {
      if (!strides || (type.getDimSize(dim) > 1 && (*strides)[dim] != dense))
        return emitOpError() << "has a tensor of type " << type << ", which is not dense in row-major order";
      dense *= type.getDimSize(dim);
    }
  }
  if (getWrites().empty()) // C3
    return emitOpError() << "writes nothing";
  return success();
}

/// The tensor that `buffer` holds: what `as` says, or what the buffer shows.
static RankedTensorType tensorIn(Value buffer, std::optional<Type> as) {
  if (as)
    return cast<RankedTensorType>(*as);
  auto type = cast<MemRefType>(buffer.getType());
  SmallVector<int64_t> strides = stridesOf(type).value_or(SmallVector<int64_t>());
  auto layout = LayoutAttr::get(type.getContext(), spaceOf(type), strides, {}, segue::Storage::Element,
                                /*zeroPoints=*/false, segue::kDefaultAlignment);
  return RankedTensorType::get(type.getShape(), type.getElementType(), layout.getCanonical(type.getShape()));
}

RankedTensorType ToLayoutOp::getSourceTensor() { return tensorIn(getSource(), getSourceType()); }
RankedTensorType ToLayoutOp::getTargetTensor() { return tensorIn(getTarget(), getTargetType()); }

/// A tensor with tiles or codes in bytes that hold it.
static LogicalResult verifyLaid(Operation *op, StringRef what, Value buffer, RankedTensorType type) {
  auto layout = dyn_cast_if_present<LayoutAttr>(type.getEncoding());
  if (!layout || layout.isStrided())
    return op->emitOpError() << "has `" << what << "` as " << type
                             << ", but only a tensor whose layout has a tile or a row storage is named";
  auto bytes = cast<MemRefType>(buffer.getType()), needed = bufferType(type);
  if (!needed || bytes.getRank() != 1 || !bytes.getElementType().isInteger(8) ||
      bytes.getNumElements() < needed.getNumElements() || spaceOf(bytes) != layout.getSpace())
    return op->emitOpError() << "has `" << what << "` as " << type << ", which needs a buffer of type " << needed
                             << " or more, not " << bytes;
  return success();
}

LogicalResult ToLayoutOp::verify() {
  auto verifySide = [&](StringRef what, Value buffer, std::optional<Type> as) { // C2
    if (as)
      return verifyLaid(*this, what, buffer, cast<RankedTensorType>(*as));
    return verifyShape(*this, what, buffer, cast<MemRefType>(buffer.getType()).getShape());
  };
  if (failed(verifySide("source", getSource(), getSourceType())) ||
      failed(verifySide("target", getTarget(), getTargetType())))
    return failure();
  RankedTensorType source = getSourceTensor(), target = getTargetTensor();
  if (source.getShape() != target.getShape()) { // C1
    InFlightDiagnostic diag = emitOpError() << "copies the shape [";
    llvm::interleaveComma(source.getShape(), diag);
    diag << "] to [";
    llvm::interleaveComma(target.getShape(), diag);
    return diag << "]";
  }
  if (!cast<LayoutAttr>(target.getEncoding()).isInjective(target.getShape())) // C3
    return emitOpError() << "writes `target` of type " << getTarget().getType()
                         << ", which holds two elements in one place";
  return success();
}

LogicalResult FillOp::verify() {
  size_t size = getPattern().size();
  std::optional<uint64_t> bytes = viewBytes(getBuffer().getType());
  if (!llvm::is_contained({1, 2, 4, 8}, size) || !bytes || *bytes % size) // C1
    return emitOpError() << "has a pattern of " << size << " bytes for a buffer of type " << getBuffer().getType();
  if (getBuffer().getDefiningOp<ViewOp>()) // C2
    return emitOpError() << "fills a view, but must fill a buffer";
  return success();
}

/// The position of `buffer` among the inputs (outputs with `output`) of the
/// program around `op`, or an error.
static FailureOr<ValueAttr> signatureValue(Operation *op, Value buffer, bool output) {
  auto program = op->getParentOfType<ProgramOp>();
  auto arg = dyn_cast<BlockArgument>(buffer);
  bool isOutput = arg && program && arg.getArgNumber() >= program.getNumInputs();
  if (!arg || !program || isOutput != output)
    return op->emitOpError() << "names a buffer that is not an " << (output ? "output" : "input") << " of the program";
  return output ? program.getOutput(arg.getArgNumber() - program.getNumInputs()) : program.getInput(arg.getArgNumber());
}

LogicalResult SaveOp::verify() {
  FailureOr<ValueAttr> value = signatureValue(*this, getBuffer(), /*output=*/true);
  if (failed(value))
    return failure();
  if (value->getRole() != Role::Saved)
    return emitOpError() << "names output " << value->getName() << ", whose role is not saved";
  return success();
}

LogicalResult RestoreOp::verify() {
  FailureOr<ValueAttr> value = signatureValue(*this, getBuffer(), /*output=*/false);
  if (failed(value))
    return failure();
  if (value->getRole() != Role::Saved)
    return emitOpError() << "names input " << value->getName() << ", whose role is not saved";
  return success();
}

LogicalResult FreeOp::verify() { return failure(failed(signatureValue(*this, getBuffer(), /*output=*/false))); }
