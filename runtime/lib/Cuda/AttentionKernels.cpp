//===- AttentionKernels.cpp - attention by kernels of the runtime ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "AttentionKernels.h"
#include <algorithm>

namespace segue::inline runtime::cuda {

/// The rows, or keys, that a block does at a time (Builtin/Attention.cu).
static constexpr int64_t square = 32;

static int64_t blocksOf(const AttentionSpec &spec, int64_t extent) {
  return spec.batch * spec.heads * ((extent + square - 1) / square);
}

static void requireSmall(const std::string &device, const AttentionSpec &spec) {
  constexpr int64_t most = (int64_t(1) << 31) - 1 - square;
  if (std::max({spec.rows, spec.keys, spec.dim, spec.batch, spec.heads}) > most || spec.batch * spec.heads > most)
    throw Error(ErrorCode::Unsupported, "device \"" + device + "\": attention over more than 2^31 rows, keys or heads");
}

namespace {
class KernelAttention final : public AttentionPlan {
public:
  KernelAttention(BuiltinKernels &kernels, const AttentionSpec &spec) : kernels_(kernels), spec_(spec) {}

  void run(const AttentionArgs &args) const override {
    AttentionKernelArgs given{.q = args.q, .k = args.k, .v = args.v, .mask = args.mask, .out = args.out,
                              .lse = args.lse, .spec = {.forward = spec_}};
    kernels_.launch(Builtin::attendRows, given, blocksOf(spec_, spec_.rows), 1);
  }

private:
  BuiltinKernels &kernels_;
  AttentionSpec spec_;
};

class KernelAttentionGrad final : public AttentionGradPlan {
public:
  KernelAttentionGrad(BuiltinKernels &kernels, const AttentionGradSpec &spec) : kernels_(kernels), spec_(spec) {}

  void run(const AttentionGradArgs &args) const override {
    AttentionKernelArgs given{.q = args.q, .k = args.k, .v = args.v, .mask = args.mask,
                              .out = const_cast<void *>(args.out), .lse = const_cast<float *>(args.lse),
                              .gradOut = args.gradOut, .gradQ = args.gradQ, .gradK = args.gradK,
                              .gradV = args.gradV, .spec = spec_};
    kernels_.launch(Builtin::attendRowsGrad, given, blocksOf(spec_.forward, spec_.forward.rows), 1);
    kernels_.launch(Builtin::attendKeysGrad, given, blocksOf(spec_.forward, spec_.forward.keys), 1);
  }

private:
  BuiltinKernels &kernels_;
  AttentionGradSpec spec_;
};
} // namespace

std::shared_ptr<const AttentionPlan> planAttention(const std::string &device, BuiltinKernels &kernels,
                                                   const AttentionSpec &spec) {
  requireSmall(device, spec);
  return std::make_shared<KernelAttention>(kernels, spec);
}

std::shared_ptr<const AttentionGradPlan> planAttentionGrad(const std::string &device, BuiltinKernels &kernels,
                                                           const AttentionGradSpec &spec) {
  requireSmall(device, spec.forward);
  return std::make_shared<KernelAttentionGrad>(kernels, spec);
}

} // namespace segue::inline runtime::cuda
