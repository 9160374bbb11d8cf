//===- RetargetOutput.cpp - an output laid as its readers want it ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An output lists layouts that its one command can write at no cost. Readers
// count, per output, how often they took it as it lay and how often they had to
// convert it; before the next run the program looks, and where more is gained
// than lost the command is planned anew. The numbers stay the same: the command
// computes each element as before and puts it elsewhere.
//
//===----------------------------------------------------------------------===//

#include "PreparedProgram.h"
#include "RetargetView.h"
#include "segue/runtime/Transfer/CopyPlan.h"
#include <algorithm>
#include <cassert>
#include <utility>

namespace segue::inline runtime {

/// The conversions by readers after which an output changes its layout: one may be of a schedule
/// that does not come back.
static constexpr uint64_t repeats = 2;

void PreparedProgram::answerDemand() {
  // A submit inside of a submit: the outer run goes on with its operations.
  if (std::ranges::any_of(runs_, [](const Run &run) { return run.underWay; }))
    return;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    OutputPlan &plan = outputs_[i];
    OutputDemand &demand = plan.origin->demand;
    if (!demand.open)
      continue;
    if (demand.converted < repeats) {
      if (!demand.converted)
        demand.elided = 0;
      continue;
    }
    OutputDemand seen = std::exchange(demand, OutputDemand{.open = true});
    if (seen.elided >= seen.converted)
      continue; // others would have to convert it then
    const Value &value = info_.outputs[i];
    auto serves = [&](const std::shared_ptr<const TensorDesc> &desc) {
      return device_.hasSpace(desc->layout.space) &&
             satisfies(desc->shape, desc->layout, seen.wanted->layout, device_.hasUnifiedMemory()) &&
             keepsNumbers(i, *desc);
    };
    auto chosen = std::ranges::find_if(value.alternatives, serves);
    // Each layout is left once: readers that disagree do not make it go round.
    bool mayChange = plan.retargets <= value.alternatives.size();
    if (mayChange && chosen != value.alternatives.end())
      retarget(i, *chosen);
    else if (mayChange && serves(value.sharedDesc))
      retarget(i, value.sharedDesc);
    else
      demand = OutputDemand();
  }
}

/// Returns true if the command has to be planned anew, which it need not for another space alone.
bool PreparedProgram::isRewritten(size_t output, const TensorDesc &desc) const {
  TensorDesc moved = *outputs_[output].desc;
  moved.layout.space = desc.layout.space;
  moved.layout.alignment = desc.layout.alignment;
  return canonicalize(moved.shape, moved.layout) != canonicalize(desc.shape, desc.layout);
}

/// Returns true if another layout does not change the numbers of an output. Our own kernels
/// sum in an order that does not depend on where the result lies. The library that
/// multiplies narrow elements promises no such thing, and a run that was resumed must not
/// differ from one that was not.
bool PreparedProgram::keepsNumbers(size_t output, const TensorDesc &desc) {
  if (!isRewritten(output, desc))
    return true;
  const schema::Matmul *matmul = writerOf(output)->op->command->body_as_Matmul();
  return !matmul || matmul->a()->element() == schema::ElementType::f32;
}

void PreparedProgram::retarget(size_t index, const std::shared_ptr<const TensorDesc> &desc) {
  OutputPlan &plan = outputs_[index];
  if (isRewritten(index, *desc)) {
    Step *step = writerOf(index);
    std::lock_guard lock(timesMutex_);
    Op op = *step->op;
    op.seconds = 0;
    op.calls = 0;
    op.number = nextNumber();
    rewrite(op, index, *desc);
    ops_.push_back(std::move(op));
    step->op = &ops_.back();
  }
  plan.desc = desc;
  plan.descHash = desc->hash();
  plan.bytes = desc->spanBytes();
  plan.kept = Tensor();
  ++plan.retargets;
}

/// The one operation that writes an output, as verification has seen to.
PreparedProgram::Step *PreparedProgram::writerOf(size_t output) {
  for (Step &step : steps_)
    for (uint32_t k = step.op ? step.op->firstWritten : 0; step.op && k < step.op->operandCount; ++k) {
      const Operand &operand = operands_[step.op->firstOperand + k];
      if (!operand.absent && operand.slot == outputSlot(output))
        return &step;
    }
  assert(false && "nothing writes the output");
  return nullptr;
}

/// Plans the command of `op` for an output that lies as `desc`.
void PreparedProgram::rewrite(Op &op, size_t output, const TensorDesc &desc) {
  const TensorDesc &declared = info_.outputs[output].desc();
  auto stridesOf = [&](const schema::View &view) {
    auto strides = retargetStrides(declared.shape, declared.strides(), desc.strides(), numbers(view.shape()),
                                   numbers(view.strides()));
    assert(strides && "verified to be there");
    return *strides;
  };
  auto setStrides = [&](auto &target, const schema::View &view) { std::ranges::copy(stridesOf(view), target.begin()); };
  const schema::Matmul *matmul = op.command->body_as_Matmul();
  if (matmul && std::holds_alternative<FusedMatmulOp>(op.body)) {
    QuantizedMatmulSpec spec = fusedSpec(*matmul);
    spec.yStride = stridesOf(*matmul->c())[1];
    op.body = planFused(spec);
  } else if (matmul) {
    MatmulSpec spec = matmulSpec(*matmul);
    setStrides(spec.c.strides, *matmul->c());
    op.firstOperand = uint32_t(operands_.size());
    op.operandCount = 0;
    bool turned = spec.n > 1 && spec.c.strides[2] != 1; // c' = b' a'
    if (turned) {
      std::swap(spec.a, spec.b);
      std::swap(spec.m, spec.n);
      for (MatrixView *matrix : {&spec.a, &spec.b, &spec.c})
        std::swap(matrix->strides[1], matrix->strides[2]);
    }
    addOperand(op, turned ? matmul->b() : matmul->a());
    addOperand(op, turned ? matmul->a() : matmul->b());
    addOperand(op, matmul->bias());
    op.firstWritten = op.operandCount;
    addOperand(op, matmul->c());
    op.body = MatmulOp{device_.engine().planMatmul(spec)};
  } else if (const schema::Attention *attention = op.command->body_as_Attention()) {
    AttentionSpec spec = attentionSpec(*attention);
    setStrides(spec.out, *attention->out());
    op.body = AttentionOp{device_.engine().planAttention(spec)};
  } else if (const schema::AttentionGrad *grad = op.command->body_as_AttentionGrad()) {
    AttentionGradSpec spec = attentionGradSpec(*grad);
    for (size_t i = 0; i < outputs_.size(); ++i) {
      // Another output of the command may lie otherwise already.
      const TensorDesc &now = i == output ? desc : *outputs_[i].desc;
      auto place = [&](auto &target, const schema::View *view) {
        if (operandOf(view->buffer()).slot != outputSlot(i))
          return;
        const TensorDesc &first = info_.outputs[i].desc();
        if (auto strides = retargetStrides(first.shape, first.strides(), now.strides(), numbers(view->shape()),
                                           numbers(view->strides())))
          std::ranges::copy(*strides, target.begin());
      };
      place(spec.gradQ, grad->grad_q());
      place(spec.gradK, grad->grad_k());
      place(spec.gradV, grad->grad_v());
    }
    op.body = AttentionGradOp{device_.engine().planAttentionGrad(spec)};
  } else {
    const schema::ToLayout &copy = *op.command->body_as_ToLayout();
    if (TransferOp *transfer = std::get_if<TransferOp>(&op.body)) {
      bool isPlain = desc.layout.tile.empty() && !isQuantized(desc.layout.storage);
      TensorDesc target = *transfer->target;
      target.layout = isPlain ? Layout{.strides = stridesOf(*copy.target())} : desc.layout;
      target.layout.alignment = uint32_t(byteSize(target.element));
      transfer->target = std::make_shared<const TensorDesc>(std::move(target));
      return;
    }
    auto strides = numbers(copy.source()->strides());
    CopyPlan::Side source(ElementType(copy.source()->element()), std::vector<int64_t>(strides.begin(), strides.end()));
    bool isPlain = desc.layout.tile.empty() && !isQuantized(desc.layout.storage);
    CopyPlan::Side target =
        isPlain ? CopyPlan::Side(desc.element, stridesOf(*copy.target())) : CopyPlan::Side(desc.element, desc.layout);
    target.layout.offset = 0;
    op.body = CopyOp{std::make_shared<const CopyPlan>(numbers(copy.source()->shape()), source, target)};
  }
}

} // namespace segue::inline runtime
