//===- PrepareCommands.cpp - from commands to operations ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One function per kind of command: finds its kernel or plans its call, and
// lists its operands, those that are written last.
//
//===----------------------------------------------------------------------===//

#include "CostOfCommand.h"
#include "PreparedProgram.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/CopyPlan.h"
#include <algorithm>
#include <cstring>

namespace segue::inline runtime {

/// A launch that touches fewer bytes runs on the calling thread: waking the
/// pool would take longer.
static constexpr uint64_t parallelLaunchBytes = 32 << 10;

PreparedProgram::Operand PreparedProgram::operandOf(uint32_t index, uint64_t offset) const {
  const schema::Buffer &buffer = *info_.table->buffers()->Get(index);
  switch (buffer.kind()) {
  case schema::BufferKind::input:
    return {inputSlot(buffer.index()), offset};
  case schema::BufferKind::output:
    return {outputSlot(buffer.index()), offset};
  case schema::BufferKind::arena:
    return {arenaSlot(buffer.index()), buffer.offset() + offset};
  case schema::BufferKind::constant:
    break;
  }
  return {constantSlot(constantOfSegment_.at(buffer.index())), buffer.offset() + offset};
}

/// A null view is an operand that the command does without.
void PreparedProgram::addOperand(Op &op, const schema::View *view) {
  operands_.push_back(view ? operandOf(view->buffer(), view->offset()) : Operand{.absent = true});
  ++op.operandCount;
}

void PreparedProgram::prepareLaunch(const schema::Launch &launch, Op &op) {
  const schema::Kernel &kernel = *image_.root().kernels()->Get(launch.kernel());
  LaunchOp body;
  // A device without bytes computes nothing: a file that is only planned with
  // never has its machine code mapped, whose constructors would run.
  body.kernel = device_.hasBytes() ? device_.makeKernel(image_.kernelSource(launch.kernel())) : nullptr;
  body.range = int64_t(launch.range());
  body.grain = int64_t(launch.grain());
  auto args = numbers(launch.args());
  auto offsets = numbers(launch.offsets());
  for (uint32_t i = 0; i < args.size(); ++i)
    operands_.push_back(operandOf(args[i], offsets.empty() ? 0 : offsets[i]));
  op.operandCount = uint32_t(args.size());
  op.firstWritten = op.operandCount - kernel.outputs();
  int64_t pieces = body.range / body.grain + (body.range % body.grain != 0);
  body.threads = op.cost.memoryBytes < parallelLaunchBytes ? 1 : int(std::min<int64_t>(pieces, device_.threads()));
  op.label = lane_.intern(kernel.name()->str());
  op.body = body;
}

template <size_t rank> static std::array<int64_t, rank> stridesOf(const schema::View &view) {
  std::array<int64_t, rank> strides;
  std::ranges::copy(numbers(view.strides()), strides.begin());
  return strides;
}

MatmulSpec PreparedProgram::matmulSpec(const schema::Matmul &matmul) {
  auto operand = [](const schema::View &view) {
    return MatrixView{.element = ElementType(view.element()), .strides = stridesOf<3>(view)};
  };
  auto a = numbers(matmul.a()->shape()), c = numbers(matmul.c()->shape());
  MatmulSpec spec;
  spec.batch = c[0];
  spec.m = c[1];
  spec.n = c[2];
  spec.k = a[2];
  spec.a = operand(*matmul.a());
  spec.b = operand(*matmul.b());
  spec.c = operand(*matmul.c());
  spec.hasBias = matmul.bias() != nullptr;
  if (matmul.bias())
    spec.bias = ElementType(matmul.bias()->element());
  spec.accumulate = matmul.accumulate();
  return spec;
}

/// Returns the spec of a product with codes. Extents and strides are those of the product; `c` may lie otherwise.
QuantizedMatmulSpec PreparedProgram::fusedSpec(const schema::Matmul &matmul) {
  auto a = numbers(matmul.a()->shape()), b = numbers(matmul.b()->shape());
  QuantizedMatmulSpec spec{.rows = a[1], .out = b[0], .in = b[1]};
  spec.codeStride = numbers(matmul.b()->strides())[0];
  spec.storage = StorageType(matmul.b()->storage());
  spec.hasZeroPoints = matmul.b()->zero_points();
  spec.transposed = !matmul.b_transposed();
  spec.x = ElementType(matmul.a()->element());
  spec.y = ElementType(matmul.c()->element());
  spec.xStride = numbers(matmul.a()->strides())[1];
  spec.yStride = numbers(matmul.c()->strides())[1];
  spec.hasBias = matmul.bias() != nullptr;
  if (matmul.bias())
    spec.bias = ElementType(matmul.bias()->element());
  return spec;
}

PreparedProgram::FusedMatmulOp PreparedProgram::planFused(const QuantizedMatmulSpec &spec) {
  if (std::string problem = spec.findProblem(); !problem.empty())
    throw Error(ErrorCode::Unsupported, "matmul: " + problem);
  Layout layout{.strides = {spec.codeStride, 1}, .storage = spec.storage, .zeroPoints = spec.hasZeroPoints};
  LayoutParts parts = TensorDesc({spec.out, spec.in}, spec.x, layout).parts();
  return {device_.engine().planQuantizedMatmul(spec), parts.scales, spec.hasZeroPoints ? parts.zeroPoints : 0};
}

void PreparedProgram::prepareMatmul(const schema::Matmul &matmul, Op &op) {
  if (matmul.b()->storage() != schema::Storage::element) {
    op.body = planFused(fusedSpec(matmul));
  } else {
    MatmulSpec spec = matmulSpec(matmul);
    if (std::string problem = spec.findProblem(); !problem.empty())
      throw Error(ErrorCode::Unsupported, "matmul: " + problem);
    op.body = MatmulOp{device_.engine().planMatmul(spec)};
  }
  op.label = "matmul";
  addOperand(op, matmul.a());
  addOperand(op, matmul.b());
  addOperand(op, matmul.bias());
  op.firstWritten = op.operandCount;
  addOperand(op, matmul.c());
}

template <typename Table> AttentionSpec PreparedProgram::attentionSpec(const Table &attention) {
  auto q = numbers(attention.q()->shape()), k = numbers(attention.k()->shape());
  AttentionSpec spec;
  spec.batch = q[0];
  spec.heads = q[1];
  spec.rows = q[2];
  spec.keys = k[2];
  spec.dim = q[3];
  spec.element = ElementType(attention.q()->element());
  for (const schema::View *view : {attention.k(), attention.v(), attention.out()})
    if (view->element() != attention.q()->element())
      throw Error(ErrorCode::Unsupported, "attention: q, k, v and out have different element types");
  spec.q = stridesOf<4>(*attention.q());
  spec.k = stridesOf<4>(*attention.k());
  spec.v = stridesOf<4>(*attention.v());
  spec.out = stridesOf<4>(*attention.out());
  if (const schema::View *mask = attention.mask()) {
    spec.maskElement = ElementType(mask->element());
    spec.mask = spec.maskElement == ElementType::i1 ? MaskKind::keep : MaskKind::add;
    spec.maskStrides = stridesOf<4>(*mask);
    for (size_t dim = 0; dim < 4; ++dim)
      if (numbers(mask->shape())[dim] == 1)
        spec.maskStrides[dim] = 0;
  }
  spec.causal = attention.causal();
  spec.scale = attention.scale();
  spec.dropout = attention.dropout();
  spec.dropoutId = attention.dropout_id();
  return spec;
}

template AttentionSpec PreparedProgram::attentionSpec(const schema::Attention &attention);

void PreparedProgram::prepareAttention(const schema::Attention &attention, Op &op) {
  AttentionSpec spec = attentionSpec(attention);
  if (std::string problem = spec.findProblem(); !problem.empty())
    throw Error(ErrorCode::Unsupported, "attention: " + problem);
  op.body = AttentionOp{device_.engine().planAttention(spec)};
  op.label = "attention";
  for (const schema::View *view : {attention.q(), attention.k(), attention.v(), attention.mask(), attention.seed(),
                                   attention.step()})
    addOperand(op, view);
  op.firstWritten = op.operandCount;
  addOperand(op, attention.out());
  addOperand(op, attention.lse());
}

AttentionGradSpec PreparedProgram::attentionGradSpec(const schema::AttentionGrad &attention) {
  AttentionGradSpec spec;
  spec.forward = attentionSpec(attention);
  for (const schema::View *view : {attention.grad_out(), attention.grad_q(), attention.grad_k(), attention.grad_v()})
    if (view->element() != attention.q()->element())
      throw Error(ErrorCode::Unsupported, "attention: the gradients have another element type than q");
  spec.gradOut = stridesOf<4>(*attention.grad_out());
  spec.gradQ = stridesOf<4>(*attention.grad_q());
  spec.gradK = stridesOf<4>(*attention.grad_k());
  spec.gradV = stridesOf<4>(*attention.grad_v());
  return spec;
}

void PreparedProgram::prepareAttentionGrad(const schema::AttentionGrad &attention, Op &op) {
  AttentionGradSpec spec = attentionGradSpec(attention);
  if (std::string problem = spec.findProblem(); !problem.empty())
    throw Error(ErrorCode::Unsupported, "attention: " + problem);
  op.body = AttentionGradOp{device_.engine().planAttentionGrad(spec)};
  op.label = "attention_grad";
  for (const schema::View *view : {attention.q(), attention.k(), attention.v(), attention.mask(), attention.seed(),
                                   attention.step(), attention.out(), attention.lse(), attention.grad_out()})
    addOperand(op, view);
  op.firstWritten = op.operandCount;
  for (const schema::View *view : {attention.grad_q(), attention.grad_k(), attention.grad_v()})
    addOperand(op, view);
}

void PreparedProgram::prepareLibraryCall(const schema::LibraryCall &call, Op &op) {
  op.body = LibraryOp{device_.engine().planLibraryCall(librarySpec(call))};
  op.label = call.operation()->string_view();
  for (const schema::View *view : *call.reads())
    addOperand(op, view);
  op.firstWritten = op.operandCount;
  for (const schema::View *view : *call.writes())
    addOperand(op, view);
}

void PreparedProgram::prepareCopy(const schema::ToLayout &copy, Op &op) {
  auto side = [](const schema::View &view) {
    auto strides = numbers(view.strides());
    auto tile = numbers(view.tile());
    Layout layout{.strides = {strides.begin(), strides.end()},
                  .tile = {tile.begin(), tile.end()},
                  .storage = StorageType(view.storage()),
                  .zeroPoints = view.zero_points()};
    return CopyPlan::Side{ElementType(view.element()), std::move(layout)};
  };
  op.label = "to_layout";
  if (const schema::Buffer &target = *info_.table->buffers()->Get(copy.target()->buffer());
      target.kind() == schema::BufferKind::output)
    outputs_[target.index()].origin->isPacked |=
        countOf(copy.target()->tile()) || copy.target()->storage() != schema::Storage::element;
  Space from = spaceOf(copy.source()->buffer()), to = spaceOf(copy.target()->buffer());
  if (!device_.hasUnifiedMemory() && (isHostSpace(from) || isHostSpace(to))) {
    auto shape = numbers(copy.source()->shape());
    auto view = [&](const schema::View &of, Space space) {
      CopyPlan::Side laid = side(of);
      TensorDesc desc({shape.begin(), shape.end()}, laid.element, laid.layout);
      desc.layout.space = space;
      desc.layout.alignment = uint32_t(byteSize(laid.element));
      return std::make_shared<const TensorDesc>(std::move(desc));
    };
    op.body = TransferOp{view(*copy.source(), from), view(*copy.target(), to),
                         std::make_shared<const TransferConsumer>(info_.name, "a copy between host and device",
                                                                  image_.location(op.location))};
    op.cost = {}; // the link's, which the engine counts
    hasTransfers_ = true;
  } else {
    op.body = CopyOp{
        std::make_shared<const CopyPlan>(numbers(copy.source()->shape()), side(*copy.source()), side(*copy.target()))};
  }
  addOperand(op, copy.source());
  op.firstWritten = op.operandCount;
  addOperand(op, copy.target());
}

/// Returns the space in which a buffer lies as declared: an alternative of an input or
/// output is on the same side of the link.
Space PreparedProgram::spaceOf(uint32_t index) const {
  const schema::Buffer &buffer = *info_.table->buffers()->Get(index);
  switch (buffer.kind()) {
  case schema::BufferKind::input:
    return info_.inputs[buffer.index()].desc().layout.space;
  case schema::BufferKind::output:
    return info_.outputs[buffer.index()].desc().layout.space;
  case schema::BufferKind::arena:
    return arenas_[buffer.index()].space;
  case schema::BufferKind::constant:
    break;
  }
  return Space::DeviceDram;
}

void PreparedProgram::prepareFill(const schema::Fill &fill, Op &op) {
  FillOp body{info_.table->buffers()->Get(fill.buffer())->bytes(), 0, uint32_t(numbers(fill.pattern()).size())};
  std::memcpy(&body.pattern, fill.pattern()->data(), body.patternBytes);
  op.label = "fill";
  if (device_.hasUnifiedMemory()) {
    op.body = body;
  } else {
    // Only copies reach the device's memory: one element is repeated.
    static constexpr ElementType types[] = {ElementType::i8, ElementType::f16, ElementType::i32, ElementType::i64};
    ElementType element = types[std::countr_zero(body.patternBytes)];
    int64_t count = int64_t(body.bytes / body.patternBytes);
    op.body = CopyOp{std::make_shared<const CopyPlan>(std::span<const int64_t>(&count, 1), CopyPlan::Side{element, {0}},
                                                      CopyPlan::Side{element, {1}})};
    operands_.push_back({constantSlot(constantOfSegment_.at(patternSegment)), 8 * patterns_.size()});
    patterns_.push_back(body.pattern);
    ++op.operandCount;
  }
  op.firstWritten = op.operandCount;
  operands_.push_back(operandOf(fill.buffer()));
  ++op.operandCount;
}

void PreparedProgram::addEvent(schema::CommandBody kind, uint32_t index, std::string_view block) {
  Step step;
  step.event = uint32_t(events_.size());
  events_.push_back({kind, index, block});
  steps_.push_back(step);
}

uint64_t PreparedProgram::nextNumber() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

void PreparedProgram::prepare(const schema::Command &command) {
  switch (command.body_type()) {
  case schema::CommandBody::Free:
    return addEvent(command.body_type(), command.body_as_Free()->input());
  case schema::CommandBody::BlockBegin:
    openBlocks_.push_back(blocksBegun_++);
    return addEvent(command.body_type(), openBlocks_.back(), command.body_as_BlockBegin()->name()->string_view());
  case schema::CommandBody::BlockEnd: {
    uint32_t block = openBlocks_.back();
    openBlocks_.pop_back();
    return addEvent(command.body_type(), block);
  }
  case schema::CommandBody::Save:
    return addEvent(command.body_type(), command.body_as_Save()->output());
  case schema::CommandBody::Restore:
    inputs_[command.body_as_Restore()->input()].restored = true;
    return addEvent(command.body_type(), command.body_as_Restore()->input());
  case schema::CommandBody::SetPhase:
    // The phase that a program begins with is entered before its inputs are looked at.
    if (!(info_.beginsWithPhase && &command == info_.table->commands()->Get(0)))
      addEvent(command.body_type(), uint32_t(command.body_as_SetPhase()->phase()));
    return;
  case schema::CommandBody::NONE:
    return;
  default:
    break;
  }
  Op op;
  op.command = &command;
  op.firstOperand = uint32_t(operands_.size());
  op.location = command.location();
  op.cost = costOfCommand(image_.root(), *info_.table, command);
  try {
    switch (command.body_type()) {
    case schema::CommandBody::Launch:
      prepareLaunch(*command.body_as_Launch(), op);
      break;
    case schema::CommandBody::Matmul:
      prepareMatmul(*command.body_as_Matmul(), op);
      break;
    case schema::CommandBody::Attention:
      prepareAttention(*command.body_as_Attention(), op);
      break;
    case schema::CommandBody::AttentionGrad:
      prepareAttentionGrad(*command.body_as_AttentionGrad(), op);
      break;
    case schema::CommandBody::LibraryCall:
      prepareLibraryCall(*command.body_as_LibraryCall(), op);
      break;
    case schema::CommandBody::ToLayout:
      prepareCopy(*command.body_as_ToLayout(), op);
      break;
    default:
      prepareFill(*command.body_as_Fill(), op);
      break;
    }
  } catch (const Error &error) {
    std::string where = image_.location(command.location());
    throw error.within(image_.name() + ": program \"" + info_.name + "\"" + (where.empty() ? "" : ", at " + where));
  }
  op.number = nextNumber();
  ops_.push_back(std::move(op));
  Step step;
  step.op = &ops_.back();
  steps_.push_back(step);
}

} // namespace segue::inline runtime
