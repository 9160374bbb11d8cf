//===- CpuEngine.cpp - library commands on this processor -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Chooses who runs a spec and remembers the plans. The choice is a fixed rule,
// taken from measurements (bench/RESULTS.md), so that a machine always gives
// the same results:
//
// - f32 matmul: the engine's own panels. On the products of a GPT step they
//   take 0.88 to 1.03 of the time of oneDNN 2.6.3's primitive and 0.81 to 1.07
//   of that of its sgemm (the gain is in weight gradients), and unlike sgemm
//   they add a bias and take any strides.
// - bf16 matmul: oneDNN, which has AMX; panels where it has no kernel.
// - weights of codes: panels, widened on the way: oneDNN 2.6.3 multiplies
//   integers with integers only.
// - f16 matmul: panels, in f32: oneDNN 2.6.3 has no f16 on CPUs.
// - f64 matmul: the engine's own tiles; oneDNN has no f64 on CPUs.
// - attention: the engine's own.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Engine/CpuEngine.h"
#include "AttentionPlans.h"
#include "DoubleMatmul.h"
#include "Library/LibraryPlans.h"
#include "OneDnnMatmul.h"
#include "PanelMatmul.h"
#include "PlanCache.h"
#include "QuantizedPanels.h"
#include "RowMatmul.h"
#include "Scratch.h"
#include <atomic>
#include <cassert>
#include <mutex>

using namespace segue;

struct CpuEngine::State {
  State(Threads threads, InstructionSet most)
      : threads(threads), kernels(vectorKernels(most)), scratch(std::make_shared<Scratch>(threads.count())),
        fusedCalls(std::make_shared<std::atomic<uint64_t>>(0)) {}

  /// Plans a product; `planning` is locked.
  std::shared_ptr<const MatmulPlan> planMatmul(const MatmulSpec &spec);

  Threads threads;
  const VectorKernels &kernels;
  std::shared_ptr<Scratch> scratch;
  std::shared_ptr<std::atomic<uint64_t>> fusedCalls;
  std::mutex planning; // guards the caches
  PlanCache<MatmulSpec, MatmulPlan> matmuls;
  PlanCache<QuantizedMatmulSpec, QuantizedMatmulPlan> quantizedMatmuls;
  PlanCache<AttentionSpec, AttentionPlan> attentions;
  PlanCache<AttentionGradSpec, AttentionGradPlan> attentionGrads;
  PlanCache<LibraryCallSpec, LibraryPlan> libraryCalls;
};

CpuEngine::CpuEngine(Threads threads, InstructionSet most) : state_(std::make_unique<State>(threads, most)) {}
CpuEngine::~CpuEngine() = default;

std::shared_ptr<const MatmulPlan> CpuEngine::State::planMatmul(const MatmulSpec &given) {
  MatmulSpec spec = given.batchAsRows();
  return matmuls.findOrMake(spec, [&]() -> std::shared_ptr<const MatmulPlan> {
    if (spec.a.element == ElementType::f64)
      return makeDoubleMatmul(spec, threads, scratch, kernels);
    if (spec.a.element != ElementType::f32)
      if (auto plan = makeOneDnnMatmul(spec, threads, scratch))
        return plan;
    if (auto plan = makeRowMatmul(spec, threads, kernels))
      return plan;
    return makePanelMatmul(spec, threads, scratch, kernels);
  });
}

std::shared_ptr<const MatmulPlan> CpuEngine::planMatmul(const MatmulSpec &spec) {
  assert(spec.findProblem().empty() && "check findProblem() before planning");
  std::lock_guard guard(state_->planning);
  return state_->planMatmul(spec);
}

std::shared_ptr<const QuantizedMatmulPlan> CpuEngine::planQuantizedMatmul(const QuantizedMatmulSpec &spec) {
  assert(spec.findProblem().empty() && "check findProblem() before planning");
  std::lock_guard guard(state_->planning);
  return state_->quantizedMatmuls.findOrMake(spec, [&] {
    return makeQuantizedPanels(spec, state_->threads, state_->scratch, state_->kernels, state_->fusedCalls);
  });
}

std::shared_ptr<const AttentionPlan> CpuEngine::planAttention(const AttentionSpec &spec) {
  assert(spec.findProblem().empty() && "check findProblem() before planning");
  std::lock_guard guard(state_->planning);
  return state_->attentions.findOrMake(
      spec, [&] { return makeAttentionPlan(spec, state_->threads, state_->scratch, state_->kernels); });
}

std::shared_ptr<const AttentionGradPlan> CpuEngine::planAttentionGrad(const AttentionGradSpec &spec) {
  assert(spec.findProblem().empty() && "check findProblem() before planning");
  std::lock_guard guard(state_->planning);
  return state_->attentionGrads.findOrMake(
      spec, [&] { return makeAttentionGradPlan(spec, state_->threads, state_->scratch, state_->kernels); });
}

std::shared_ptr<const LibraryPlan> CpuEngine::planLibraryCall(const LibraryCallSpec &spec) {
  const LibraryOperation *operation = findLibraryOperation(spec.operation);
  assert(operation && operation->findProblem(spec).empty() && "check findProblem() before planning");
  std::lock_guard guard(state_->planning);
  return state_->libraryCalls.findOrMake(spec, [&] {
    auto planMatmul = [this](const MatmulSpec &product) { return state_->planMatmul(product); };
    return operation->plan(spec, {state_->threads, state_->scratch, state_->kernels, planMatmul});
  });
}

const Threads &CpuEngine::threads() const { return state_->threads; }

uint64_t CpuEngine::fusedCalls() const { return state_->fusedCalls->load(std::memory_order_relaxed); }

uint64_t CpuEngine::scratchBytes() const { return state_->scratch->totalBytes(); }
