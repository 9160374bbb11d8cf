//===- PreparedProgram.cpp - from commands to operations ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The half of PreparedProgram that happens once. RunProgram.cpp is the other.
//
//===----------------------------------------------------------------------===//

#include "PreparedProgram.h"
#include "KernelLibrary.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <cstring>

namespace segue::inline runtime {

/// A launch that touches fewer bytes runs on the calling thread: waking the
/// pool would take longer.
static constexpr uint64_t parallelLaunchBytes = 32 << 10;

PreparedProgram::PreparedProgram(Device &device, const BinaryImage &image, size_t program)
    : device_(device), image_(image), info_(image.programs()[program]) {
  const schema::Program &table = *info_.table;
  auto checkPlace = [&](const TensorDesc &desc, const std::string &which) {
    if (!device.hasSpace(desc.layout.space) || !desc.layout.tile.empty() || desc.layout.storage != StorageType::Element)
      throw Error(ErrorCode::Unsupported, image.name() + ": program \"" + info_.name + "\", " + which + ": device \"" +
                                              device.name() + "\" cannot hold " + desc.str());
  };
  for (const Value &value : info_.inputs)
    checkPlace(value.desc(), "input \"" + value.name + "\"");
  for (const Value &value : info_.outputs)
    checkPlace(value.desc(), "output \"" + value.name + "\"");
  if (countOf(table.arenas()) > 1)
    throw Error(ErrorCode::Unsupported, image.name() + ": program \"" + info_.name + "\": arenas in " +
                                            std::to_string(countOf(table.arenas())) + " spaces; one can be run");
  if (countOf(table.arenas())) {
    const schema::Arena &arena = *table.arenas()->Get(0);
    arenaBytes_ = arena.bytes();
    arenaAlignment_ = arena.alignment();
    arenaSpace_ = Space(arena.space());
  }
  for (uint32_t i = 0; i < countOf(table.buffers()); ++i) {
    const schema::Buffer &buffer = *table.buffers()->Get(i);
    buffers_.push_back({buffer.kind(), buffer.index(), buffer.offset()});
  }
  bases_.resize(buffers_.size());
  for (uint32_t i = 0; i < countOf(table.commands()); ++i)
    prepare(*table.commands()->Get(i));
}

PreparedProgram::LaunchOp PreparedProgram::prepareLaunch(const schema::Launch &launch) {
  const schema::Kernel &kernel = *image_.root().kernels()->Get(launch.kernel());
  LaunchOp op;
  op.kernel = image_.kernels().find(launch.kernel());
  op.kernelIndex = launch.kernel();
  op.range = int64_t(launch.range());
  op.grain = int64_t(launch.grain());
  auto args = numbers(launch.args());
  auto offsets = numbers(launch.offsets());
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < args.size(); ++i) {
    op.args.push_back({args[i], offsets.empty() ? 0 : offsets[i]});
    // Verified not to overflow; the sum may saturate, which decides the same.
    bytes += kernel.fixed_bytes()->Get(i) + launch.range() * kernel.bytes_per_unit()->Get(i);
  }
  int64_t pieces = op.range / op.grain + (op.range % op.grain != 0);
  op.threads = bytes < parallelLaunchBytes ? 1 : int(std::min<int64_t>(pieces, device_.threads()));
  launchArgs_.resize(std::max(launchArgs_.size(), op.args.size()));
  return op;
}

template <size_t rank> static std::array<int64_t, rank> stridesOf(const schema::View &view) {
  std::array<int64_t, rank> strides;
  std::ranges::copy(numbers(view.strides()), strides.begin());
  return strides;
}

PreparedProgram::MatmulOp PreparedProgram::prepareMatmul(const schema::Matmul &matmul) {
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
  std::string problem = spec.findProblem();
  if (!problem.empty())
    throw Error(ErrorCode::Unsupported, "matmul: " + problem);
  MatmulOp op;
  op.plan = device_.engine().planMatmul(spec);
  op.a = {matmul.a()->buffer(), matmul.a()->offset()};
  op.b = {matmul.b()->buffer(), matmul.b()->offset()};
  op.c = {matmul.c()->buffer(), matmul.c()->offset()};
  op.hasBias = spec.hasBias;
  if (matmul.bias())
    op.bias = {matmul.bias()->buffer(), matmul.bias()->offset()};
  return op;
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
  return spec;
}

void PreparedProgram::prepare(const schema::Command &command) {
  auto place = [](const schema::View *view) { return view ? Operand{view->buffer(), view->offset()} : Operand{}; };
  auto side = [](const schema::View &view) {
    auto strides = numbers(view.strides());
    return CopyPlan::Side{ElementType(view.element()), {strides.begin(), strides.end()}};
  };
  auto add = [&](auto body) { ops_.push_back({std::move(body), command.location()}); };
  try {
    switch (command.body_type()) {
    case schema::CommandBody::Launch:
      return add(prepareLaunch(*command.body_as_Launch()));
    case schema::CommandBody::Matmul:
      return add(prepareMatmul(*command.body_as_Matmul()));
    case schema::CommandBody::Attention: {
      const schema::Attention &table = *command.body_as_Attention();
      AttentionSpec spec = attentionSpec(table);
      if (std::string problem = spec.findProblem(); !problem.empty())
        throw Error(ErrorCode::Unsupported, "attention: " + problem);
      return add(AttentionOp{device_.engine().planAttention(spec), place(table.q()), place(table.k()), place(table.v()),
                             place(table.mask()), place(table.out()), place(table.lse()), table.mask() != nullptr});
    }
    case schema::CommandBody::AttentionGrad: {
      const schema::AttentionGrad &table = *command.body_as_AttentionGrad();
      AttentionGradSpec spec;
      spec.forward = attentionSpec(table);
      for (const schema::View *view : {table.grad_out(), table.grad_q(), table.grad_k(), table.grad_v()})
        if (view->element() != table.q()->element())
          throw Error(ErrorCode::Unsupported, "attention: the gradients have another element type than q");
      spec.gradOut = stridesOf<4>(*table.grad_out());
      spec.gradQ = stridesOf<4>(*table.grad_q());
      spec.gradK = stridesOf<4>(*table.grad_k());
      spec.gradV = stridesOf<4>(*table.grad_v());
      if (std::string problem = spec.findProblem(); !problem.empty())
        throw Error(ErrorCode::Unsupported, "attention: " + problem);
      return add(AttentionGradOp{device_.engine().planAttentionGrad(spec), place(table.q()), place(table.k()),
                                 place(table.v()), place(table.mask()), place(table.out()), place(table.lse()),
                                 place(table.grad_out()), place(table.grad_q()), place(table.grad_k()),
                                 place(table.grad_v()), table.mask() != nullptr});
    }
    case schema::CommandBody::ToLayout: {
      const schema::ToLayout &table = *command.body_as_ToLayout();
      for (const schema::View *view : {table.source(), table.target()})
        if (countOf(view->tile()) || view->storage() != schema::Storage::element)
          throw Error(ErrorCode::Unsupported, "to_layout: tiles and rows cannot be run inside of a program");
      return add(CopyOp{CopyPlan(numbers(table.source()->shape()), side(*table.source()), side(*table.target())),
                        place(table.source()), place(table.target())});
    }
    case schema::CommandBody::Fill: {
      const schema::Fill &table = *command.body_as_Fill();
      FillOp op{{table.buffer(), 0}, info_.table->buffers()->Get(table.buffer())->bytes(), 0, 0};
      op.patternBytes = numbers(table.pattern()).size();
      std::memcpy(&op.pattern, table.pattern()->data(), op.patternBytes);
      return add(op);
    }
    case schema::CommandBody::Free:
      return add(FreeOp{command.body_as_Free()->input()});
    case schema::CommandBody::SetPhase:
      return; // the session enters phases
    case schema::CommandBody::BlockBegin:
      return add(EventOp{command.body_type(), 0, command.body_as_BlockBegin()->name()->string_view()});
    case schema::CommandBody::BlockEnd:
      return add(EventOp{command.body_type(), 0, {}});
    case schema::CommandBody::Save:
      return add(EventOp{command.body_type(), command.body_as_Save()->output(), {}});
    case schema::CommandBody::Restore:
      return add(EventOp{command.body_type(), command.body_as_Restore()->input(), {}});
    case schema::CommandBody::NONE:
      return;
    }
  } catch (const Error &error) {
    std::string where = image_.location(command.location());
    throw error.within(image_.name() + ": program \"" + info_.name + "\"" + (where.empty() ? "" : ", at " + where));
  }
}

} // namespace segue::inline runtime
