//===- CpuEngine.h - library commands on this processor -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Plans of matmul and attention that run on the processors of the host.
//
//   CpuEngine engine(Threads(2));
//   auto plan = engine.planMatmul(spec);      // at load
//   plan->run(a, b, c, bias);                 // at each submit
//
// The engine owns the scratch memory of its plans: one area per thread, as
// large as the neediest plan, shared by all. Hence plans of one engine run one
// at a time: any thread may plan and run, and waits for the one before. Plans
// keep what they use alive and may outlive the engine.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_ENGINE_CPUENGINE_H
#define SEGUE_RUNTIME_ENGINE_CPUENGINE_H

#include "segue/runtime/Engine/Attention.h"
#include "segue/runtime/Engine/LibraryCall.h"
#include "segue/runtime/Engine/Matmul.h"
#include "segue/runtime/Engine/QuantizedMatmul.h"
#include "segue/runtime/Engine/Threads.h"
#include <cstdint>
#include <memory>

namespace segue::inline runtime {

/// Instruction sets that the engine has kernels for, by what they need.
enum class InstructionSet : int8_t { x86_64, x86_64_v3, x86_64_v4 };

class CpuEngine {
public:
  /// Uses the best instruction set that the processor has, up to `most`: a
  /// lower one gives the results of a lesser machine, bf16 products apart.
  explicit CpuEngine(Threads threads = Threads(), InstructionSet most = InstructionSet::x86_64_v4);
  ~CpuEngine();
  CpuEngine(const CpuEngine &) = delete;
  CpuEngine &operator=(const CpuEngine &) = delete;

  /// Makes a plan for a spec without problem (findProblem() is empty; checked by assert).
  /// Equal specs give the same plan. May allocate and compile code, which takes
  /// microseconds to milliseconds.
  std::shared_ptr<const MatmulPlan> planMatmul(const MatmulSpec &spec);
  std::shared_ptr<const QuantizedMatmulPlan> planQuantizedMatmul(const QuantizedMatmulSpec &spec);
  std::shared_ptr<const AttentionPlan> planAttention(const AttentionSpec &spec);
  std::shared_ptr<const AttentionGradPlan> planAttentionGrad(const AttentionGradSpec &spec);
  std::shared_ptr<const LibraryPlan> planLibraryCall(const LibraryCallSpec &spec);

  const Threads &threads() const;

  /// Returns how many plans of planQuantizedMatmul have run so far: products that read codes.
  uint64_t fusedCalls() const;

  /// Returns the bytes held as scratch for the plans made so far.
  uint64_t scratchBytes() const;

private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_ENGINE_CPUENGINE_H
