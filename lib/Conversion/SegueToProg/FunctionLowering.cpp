//===- FunctionLowering.cpp - one function to one program -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The signature, the windows of values, and the emission of commands. What
// each op becomes is in Commands.cpp, Products.cpp and LowerOps.cpp, where values
// are written in Placement.cpp.
//
//===----------------------------------------------------------------------===//

#include "FunctionLowering.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"

using namespace mlir;
using namespace segue;

FailureOr<prog::ProgramOp> FunctionLowering::run(Operation *insertAfter) {
  if (func.isExternal() || !func.getBody().hasOneBlock())
    return func.emitError() << "function @" << func.getName() << " must have a body of one block to become a program";
  if (failed(buildSignature(insertAfter)))
    return failure();
  placeValues();
  for (Operation &op : func.getBody().front().without_terminator()) {
    loc = op.getLoc();
    wantedBlock = op.getAttrOfType<StringAttr>(SegueDialect::kBlockAttr);
    if (failed(lower(&op)))
      return failure();
  }
  loc = func.getBody().front().getTerminator()->getLoc();
  wantedBlock = {};
  writeResults();
  markSaved();
  for (auto alloc : llvm::make_early_inc_range(program.getBlock().getOps<prog::AllocOp>()))
    if (alloc->use_empty())
      alloc->erase();
  return program;
}

//===----------------------------------------------------------------------===//
// Signature
//===----------------------------------------------------------------------===//

static prog::Phase phaseOf(StringRef name) {
  if (name == SegueDialect::kBackward || name.starts_with(SegueDialect::kRecomputePrefix))
    return prog::Phase::Backward;
  if (name == SegueDialect::kOptimizer || name == SegueDialect::kGradNorm)
    return prog::Phase::Optimizer;
  return prog::Phase::Forward;
}

/// Returns `type` in `layout`; nothing is written if tensors lie so anyway.
static RankedTensorType withLayout(RankedTensorType type, LayoutAttr layout) {
  auto usual = LayoutAttr::get(type.getContext(), Space::DeviceDram, {}, {}, Storage::Element, /*zeroPoints=*/false,
                               kDefaultAlignment);
  layout = layout.getCanonical(type.getShape());
  return RankedTensorType::get(type.getShape(), type.getElementType(), layout == usual ? LayoutAttr() : layout);
}

static bool isStrided(RankedTensorType type) {
  auto layout = dyn_cast_if_present<LayoutAttr>(type.getEncoding());
  return !layout || layout.isStrided();
}

FailureOr<prog::ValueAttr> FunctionLowering::describe(Type type, bool isInput, unsigned index) {
  auto attribute = [&](StringRef name) {
    return isInput ? func.getArgAttr(index, name) : func.getResultAttr(index, name);
  };
  auto tensor = dyn_cast<RankedTensorType>(type);
  MemRefType buffer = tensor ? prog::bufferType(tensor) : MemRefType();
  std::string what = (isInput ? "argument " : "result ") + std::to_string(index);
  if (!buffer || !prog::viewBytes(buffer))
    return func.emitError() << what << " of @" << func.getName() << " has type " << type
                            << ", which no program can hold";
  if (auto layout = dyn_cast_if_present<LayoutAttr>(attribute(SegueDialect::kLayoutAttr)))
    tensor = withLayout(tensor, layout);
  auto name = dyn_cast_if_present<StringAttr>(attribute(SegueDialect::kNameAttr));
  auto role = dyn_cast_if_present<RoleAttr>(attribute(SegueDialect::kRoleAttr));
  if (!name)
    name = builder.getStringAttr((isInput ? "arg" : "result") + std::to_string(index));
  return prog::ValueAttr::get(func.getContext(), name,
                              role      ? role.getValue()
                              : isInput ? Role::Input
                                        : Role::Output,
                              tensor, dyn_cast_if_present<StringAttr>(attribute(SegueDialect::kOfAttr)));
}

LogicalResult FunctionLowering::buildSignature(Operation *insertAfter) {
  SmallVector<Attribute> inputs, outputs, aliases;
  SmallVector<Type> types;
  SmallVector<Location> locations;
  for (auto [i, arg] : llvm::enumerate(func.getArguments())) {
    FailureOr<prog::ValueAttr> value = describe(arg.getType(), /*isInput=*/true, i);
    if (failed(value))
      return failure();
    inputs.push_back(*value);
    types.push_back(prog::bufferType(value->getType()));
    locations.push_back(arg.getLoc());
  }
  Operation *terminator = func.getBody().front().getTerminator();
  for (auto [i, type] : llvm::enumerate(func.getResultTypes())) {
    FailureOr<prog::ValueAttr> value = describe(type, /*isInput=*/false, i);
    if (failed(value))
      return failure();
    outputs.push_back(*value);
    types.push_back(prog::bufferType(value->getType()));
    Operation *producer = terminator->getOperand(i).getDefiningOp();
    locations.push_back(producer ? producer->getLoc() : terminator->getLoc());
    aliasOf.push_back(-1);
    if (auto alias = func.getResultAttrOfType<IntegerAttr>(i, "segue.alias")) {
      // The dialect verifies that it names an argument of the same type.
      int64_t input = alias.getInt();
      aliasOf.back() = input;
      aliases.push_back(prog::AliasAttr::get(func.getContext(), i, input, /*required=*/true));
    }
  }

  builder.setInsertionPointAfter(insertAfter);
  program = prog::ProgramOp::create(
      builder, func.getLoc(), func.getNameAttr(), builder.getArrayAttr(inputs), builder.getArrayAttr(outputs),
      aliases.empty() ? ArrayAttr() : builder.getArrayAttr(aliases), ArrayAttr(), ArrayAttr());
  Block &body = program.getBody().emplaceBlock();
  body.addArguments(types, locations);
  builder.setInsertionPointToStart(&body);
  phase = prog::PhaseOp::create(builder, func.getLoc(), phaseOf(func.getName()));
  phase.getBody().emplaceBlock();
  for (auto [i, arg] : llvm::enumerate(func.getArguments())) {
    if (!isComputedOn(program.getInput(i).getType()))
      continue; // brought when it is first read
    Value buffer = program.getInputBuffer(i);
    windows[arg] = {buffer, 0, typeOf(arg).getElementType(), SmallVector<int64_t>(typeOf(arg).getShape()),
                    *prog::stridesOf(cast<MemRefType>(buffer.getType()))};
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Windows
//===----------------------------------------------------------------------===//

Window FunctionLowering::temporary(ArrayRef<int64_t> shape, Type element) {
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPoint(phase);
  Window window = Window::dense({}, shape, element);
  // Buffers have no location in the file.
  window.buffer =
      prog::AllocOp::create(builder, builder.getUnknownLoc(), prog::bytesType(func.getContext(), window.bytes()),
                            IntegerAttr(), TypeAttr::get(element));
  return window;
}

Value FunctionLowering::constantBuffer(StringRef bytes) {
  uint64_t offset = constants.add(bytes);
  Value &buffer = constantBuffers[offset];
  if (buffer)
    return buffer;
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPoint(phase);
  buffer = prog::ConstantOp::create(builder, builder.getUnknownLoc(), prog::bytesType(func.getContext(), bytes.size()),
                                    "segment0", offset);
  return buffer;
}

Window FunctionLowering::splatWindow(Attribute element, ArrayRef<int64_t> shape) {
  return {constantBuffer(elementToBytes(element)), 0, cast<TypedAttr>(element).getType(), SmallVector<int64_t>(shape),
          SmallVector<int64_t>(shape.size(), 0)};
}

/// A splat is one element that all strides repeat.
Window FunctionLowering::constantWindow(segue::ConstantOp op) {
  RankedTensorType type = op.getType();
  if (Attribute element = op.getSplat(); element && type.getNumElements() > 1)
    return splatWindow(element, type.getShape());
  return Window::dense(constantBuffer(*elementsToBytes(op.getValue(), /*splat=*/false)), type.getShape(),
                       type.getElementType());
}

Window FunctionLowering::windowOf(Value value) {
  if (auto known = windows.find(value); known != windows.end())
    return known->second;
  Operation *producer = value.getDefiningOp();
  Window window;
  if (!producer) {
    window = unpack(cast<BlockArgument>(value));
  } else if (auto constant = dyn_cast<segue::ConstantOp>(producer)) {
    window = constantWindow(constant);
  } else {
    Window operand = windowOf(producer->getOperand(0));
    if (std::optional<Window> seen = applyShapeOp(producer, operand)) {
      window = *seen;
    } else {
      window = temporary(typeOf(value).getShape(), typeOf(value).getElementType());
      copyReshaped(operand, window);
    }
  }
  return windows[value] = window;
}

std::optional<Window> FunctionLowering::windowOfCodes(Value value) {
  SmallVector<Operation *> views;
  while (Operation *producer = value.getDefiningOp()) {
    if (!isView(producer) || owned.contains(value))
      return std::nullopt;
    views.push_back(producer);
    value = producer->getOperand(0);
  }
  unsigned index = cast<BlockArgument>(value).getArgNumber();
  RankedTensorType type = program.getInput(index).getType();
  auto layout = dyn_cast_if_present<LayoutAttr>(type.getEncoding());
  if (!layout || !layout.isQuantized() || !layout.getTile().empty() || !prog::isOnDevice(layout.getSpace()) ||
      type.getRank() != 2 || windows.contains(value))
    return std::nullopt;
  SmallVector<int64_t> strides = layout.getStridesFor(type.getShape());
  if ((type.getDimSize(1) > 1 && strides[1] != 1) || (type.getDimSize(0) > 1 && strides[0] < type.getDimSize(1)))
    return std::nullopt;
  std::optional<Window> seen = Window::dense(program.getInputBuffer(index), type.getShape(), type.getElementType());
  for (Operation *view : llvm::reverse(views))
    seen = seen ? applyShapeOp(view, *seen) : std::nullopt;
  return seen;
}

Window FunctionLowering::targetOf(Value value) {
  if (auto known = windows.find(value); known != windows.end())
    return known->second;
  return windows[value] = temporary(typeOf(value).getShape(), typeOf(value).getElementType());
}

Window FunctionLowering::copyToTemporary(const Window &source) {
  Window target = temporary(source.shape, source.element);
  copy(source, target);
  return target;
}

/// A dense copy of an input that lies in tiles or rows, or on the host: no other
/// command can read it.
Window FunctionLowering::unpack(BlockArgument arg) {
  Value buffer = program.getInputBuffer(arg.getArgNumber());
  RankedTensorType type = program.getInput(arg.getArgNumber()).getType();
  Window target = temporary(typeOf(arg).getShape(), typeOf(arg).getElementType());
  prepare(Window{buffer, 0, {}, {}, {}}, target);
  emitted(prog::ToLayoutOp::create(builder, loc, buffer, isStrided(type) ? TypeAttr() : TypeAttr::get(type),
                                   view(target), TypeAttr()));
  ++counts.copies;
  counts.copiedBytes += target.bytes();
  return target;
}

/// Writes an output that lies in tiles or rows from `source`.
void FunctionLowering::pack(const Window &source, unsigned output) {
  BlockArgument buffer = program.getOutputBuffer(output);
  RankedTensorType type = program.getOutput(output).getType();
  prepare(source, Window{buffer, 0, {}, {}, {}});
  emitted(prog::ToLayoutOp::create(builder, loc, view(source), TypeAttr(), buffer, TypeAttr::get(type)));
  ++counts.copies;
  counts.copiedBytes += *prog::viewBytes(cast<MemRefType>(buffer.getType()));
}

Window FunctionLowering::denseWindowOf(Value value) {
  Window window = windowOf(value);
  if (window.isDense())
    return window;
  auto [known, isNew] = denseCopies.try_emplace(value);
  if (!isNew)
    return known->second;
  Window dense;
  auto constant = value.getDefiningOp<segue::ConstantOp>();
  if (Attribute element = constant ? constant.getSplat() : Attribute()) {
    dense = temporary(window.shape, window.element);
    fill(dense.buffer, element);
  } else {
    dense = copyToTemporary(window);
  }
  return denseCopies[value] = dense;
}

Window FunctionLowering::rowWindowOf(Value value) {
  Window window = windowOf(value);
  return window.hasUnitLastStride() ? window : denseWindowOf(value);
}

/// Copies between windows of different shapes with the same elements in
/// row-major order.
void FunctionLowering::copyReshaped(const Window &source, const Window &target) {
  if (std::optional<Window> seen = source.reshape(target.shape))
    return copy(*seen, target);
  if (std::optional<Window> seen = target.reshape(source.shape))
    return copy(source, *seen);
  copy(*copyToTemporary(source).reshape(target.shape), target);
}

//===----------------------------------------------------------------------===//
// Emission
//===----------------------------------------------------------------------===//

/// Opens the block that the next command belongs to, and emits what must come
/// before it. Called before its views are made.
void FunctionLowering::prepare(ArrayRef<Window> reading, ArrayRef<Window> writing) {
  if ((block ? block.getNameAttr() : StringAttr()) != wantedBlock) {
    builder.setInsertionPointToEnd(&phase.getBlock());
    block = {};
    if (wantedBlock) {
      block = prog::BlockOp::create(builder, builder.getUnknownLoc(), wantedBlock);
      block.getBody().emplaceBlock();
    }
  }
  builder.setInsertionPointToEnd(block ? &block.getBlock() : &phase.getBlock());

  for (const Window &window : writing) {
    auto pending = pendingFills.find(window.buffer);
    if (pending == pendingFills.end())
      continue;
    Attribute element = pending->second;
    pendingFills.erase(pending);
    fill(window.buffer, element);
  }
  for (const Window &window : reading) {
    auto arg = dyn_cast<BlockArgument>(window.buffer);
    // A program that computes a saved value again gets its inputs as they are.
    if (!arg || arg.getArgNumber() >= program.getNumInputs() ||
        program.getInput(arg.getArgNumber()).getRole() != Role::Saved ||
        func.getName().starts_with(SegueDialect::kRecomputePrefix) || !restoredBuffers.insert(arg).second)
      continue;
    prog::RestoreOp::create(builder, loc, arg);
    restored.push_back(arg.getArgNumber());
  }
  reads.clear();
  writes.clear();
  for (const Window &window : reading)
    reads.push_back(window.buffer);
  for (const Window &window : writing)
    writes.push_back(window.buffer);
}

void FunctionLowering::emitted(Operation *command) {
  for (Value buffer : reads)
    lastRead[buffer] = lastCommand[buffer] = command;
  for (Value buffer : writes)
    lastCommand[buffer] = command;
}

Value FunctionLowering::view(const Window &window) {
  auto buffer = cast<MemRefType>(window.buffer.getType());
  MemRefType type = prog::viewType(window.shape, window.element, window.strides, buffer.getMemorySpace());
  if (type == buffer && window.offset == 0)
    return window.buffer;
  return prog::ViewOp::create(builder, loc, type, window.buffer, window.byteOffset());
}

void FunctionLowering::copy(const Window &source, const Window &target) {
  prepare(source, target);
  Value from = view(source), to = view(target);
  emitted(prog::ToLayoutOp::create(builder, loc, from, to));
  ++counts.copies;
  counts.copiedBytes += target.bytes();
}

void FunctionLowering::fill(Value buffer, Attribute element) {
  pendingFills.erase(buffer);
  prepare({}, Window{buffer, 0, {}, {}, {}});
  std::string bytes = elementToBytes(element);
  SmallVector<int8_t> pattern(bytes.begin(), bytes.end());
  emitted(prog::FillOp::create(builder, loc, buffer, pattern));
}

/// Writes the results that no command wrote where they belong.
void FunctionLowering::writeResults() {
  Operation *terminator = func.getBody().front().getTerminator();
  for (unsigned i : lateResults) {
    Value value = terminator->getOperand(i);
    if (isEmptyTensor(value.getType()))
      continue; // nothing to write
    if (!isStrided(program.getOutput(i).getType())) {
      pack(windowOf(value), i);
      continue;
    }
    BlockArgument buffer = program.getOutputBuffer(i);
    Window target{buffer, 0, typeOf(value).getElementType(), SmallVector<int64_t>(typeOf(value).getShape()),
                  *prog::stridesOf(cast<MemRefType>(buffer.getType()))};
    copy(windowOf(value), target);
  }
}

/// Tells when forward is done with what it saves, and backward with what it
/// was given.
void FunctionLowering::markSaved() {
  OpBuilder::InsertionGuard guard(builder);
  for (unsigned i = 0; i < program.getNumOutputs(); ++i) {
    BlockArgument buffer = program.getOutputBuffer(i);
    if (program.getOutput(i).getRole() != Role::Saved || !lastCommand.contains(buffer))
      continue;
    Operation *command = lastCommand[buffer];
    builder.setInsertionPointAfter(command);
    prog::SaveOp::create(builder, command->getLoc(), buffer);
  }
  for (unsigned i : restored) {
    BlockArgument buffer = program.getInputBuffer(i);
    Operation *command = lastRead[buffer];
    builder.setInsertionPointAfter(command);
    prog::FreeOp::create(builder, command->getLoc(), buffer);
  }
}
