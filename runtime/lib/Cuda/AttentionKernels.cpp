//===- AttentionKernels.cpp - attention by kernels of the runtime ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "AttentionKernels.h"
#include <algorithm>
#include <span>

namespace segue::inline runtime::cuda {

static void requireSmall(const std::string &device, const AttentionSpec &spec) {
  constexpr int64_t most = (int64_t(1) << 31) - 1 - TensorAttention::blockRows;
  if (std::max({spec.rows, spec.keys, spec.dim, spec.batch, spec.heads}) > most || spec.batch * spec.heads > most)
    throw Error(ErrorCode::Unsupported, "device \"" + device + "\": attention over more than 2^31 rows, keys or heads");
}

namespace {
/// Kernels for heads of some dims, and how they share the work.
struct AttentionKernels {
  int64_t width, blockRows;
  TensorPasses passes;
  Builtin rows, rowsGrad, keysGrad, valuesGrad;
};

/// For all that an attention may be (Builtin/Attention.cu).
constexpr AttentionKernels anyKernels = {
    0, 32, {1, 1, 0}, Builtin::attendRows, Builtin::attendRowsGrad, Builtin::attendKeysGrad, {}};

/// On tensor cores, by rising width.
constexpr AttentionKernels tensorKernels(ElementType type, int64_t width, Builtin rows, Builtin rowsGrad,
                                         Builtin keysGrad, Builtin valuesGrad = {}) {
  return {width, TensorAttention::blockRows, tensorPasses(type, width), rows, rowsGrad, keysGrad, valuesGrad};
}
constexpr AttentionKernels bf16Kernels[] = {
    tensorKernels(ElementType::bf16, 64, Builtin::attendRowsBf16x64, Builtin::attendRowsGradBf16x64,
                  Builtin::attendKeysGradBf16x64),
    tensorKernels(ElementType::bf16, 128, Builtin::attendRowsBf16x128, Builtin::attendRowsGradBf16x128,
                  Builtin::attendKeysGradBf16x128, Builtin::attendValuesGradBf16x128),
    tensorKernels(ElementType::bf16, 256, Builtin::attendRowsBf16x256, Builtin::attendRowsGradBf16x256,
                  Builtin::attendKeysGradBf16x256, Builtin::attendValuesGradBf16x256)};
constexpr AttentionKernels f16Kernels[] = {
    tensorKernels(ElementType::f16, 64, Builtin::attendRowsF16x64, Builtin::attendRowsGradF16x64,
                  Builtin::attendKeysGradF16x64),
    tensorKernels(ElementType::f16, 128, Builtin::attendRowsF16x128, Builtin::attendRowsGradF16x128,
                  Builtin::attendKeysGradF16x128, Builtin::attendValuesGradF16x128),
    tensorKernels(ElementType::f16, 256, Builtin::attendRowsF16x256, Builtin::attendRowsGradF16x256,
                  Builtin::attendKeysGradF16x256, Builtin::attendValuesGradF16x256)};
constexpr AttentionKernels tf32Kernels[] = {
    tensorKernels(ElementType::f32, 64, Builtin::attendRowsTf32x64, Builtin::attendRowsGradTf32x64,
                  Builtin::attendKeysGradTf32x64, Builtin::attendValuesGradTf32x64),
    tensorKernels(ElementType::f32, 128, Builtin::attendRowsTf32x128, Builtin::attendRowsGradTf32x128,
                  Builtin::attendKeysGradTf32x128, Builtin::attendValuesGradTf32x128)};

/// Whether rows begin at multiples of what the kernels on tensor cores read at once.
bool isAligned(const AttentionStrides &strides, int64_t elementBytes) {
  return std::all_of(strides.begin(), strides.begin() + 3, [&](int64_t stride) {
    return stride * elementBytes % TensorAttention::alignmentBytes == 0;
  });
}
bool isAligned(std::initializer_list<const void *> addresses) {
  return std::ranges::all_of(addresses, [](const void *address) {
    return reinterpret_cast<uintptr_t>(address) % TensorAttention::alignmentBytes == 0;
  });
}

/// Returns the kernels on tensor cores for elements of a type.
std::span<const AttentionKernels> tensorKernelsFor(ElementType type, bool tf32) {
  switch (type) {
  case ElementType::bf16:
    return bf16Kernels;
  case ElementType::f16:
    return f16Kernels;
  case ElementType::f32:
    return tf32 ? tf32Kernels : std::span<const AttentionKernels>();
  default:
    return {};
  }
}

/// Returns the kernels for a spec whose operands begin at multiples of 16 bytes.
const AttentionKernels &kernelsFor(const AttentionSpec &spec, std::initializer_list<AttentionStrides> gradStrides,
                                   bool tf32) {
  int64_t bytes = int64_t(byteSize(spec.element));
  bool isWhole = spec.dim * bytes % TensorAttention::alignmentBytes == 0;
  for (const AttentionStrides &strides : {spec.q, spec.k, spec.v, spec.out})
    isWhole &= isAligned(strides, bytes);
  for (const AttentionStrides &strides : gradStrides)
    isWhole &= isAligned(strides, bytes);
  for (const AttentionKernels &each : tensorKernelsFor(spec.element, tf32))
    if (isWhole && spec.dim <= each.width && (spec.dropout == 0 || tensorDrops(spec.element, each.width)))
      return each;
  return anyKernels;
}

int64_t blocksOf(const AttentionSpec &spec, const AttentionKernels &kernels, int64_t extent, int64_t passes) {
  return spec.batch * spec.heads * ((extent - 1) / kernels.blockRows + 1) * passes * (extent > 0);
}

class KernelAttention final : public AttentionPlan {
public:
  KernelAttention(BuiltinKernels &kernels, const AttentionSpec &spec, bool tf32)
      : kernels_(kernels), spec_(spec), chosen_(kernelsFor(spec, {}, tf32)) {}

  void run(const AttentionArgs &args) const override {
    const AttentionKernels &chosen = isAligned({args.q, args.k, args.v, args.out}) ? chosen_ : anyKernels;
    AttentionKernelArgs given{.q = args.q, .k = args.k, .v = args.v, .mask = args.mask,
                              .seed = args.seed, .step = args.step, .out = args.out, .lse = args.lse,
                              .spec = {.forward = spec_}};
    kernels_.launch(chosen.rows, given, blocksOf(spec_, chosen, spec_.rows, chosen.passes.rows), 1);
  }

private:
  BuiltinKernels &kernels_;
  AttentionSpec spec_;
  const AttentionKernels &chosen_;
};

class KernelAttentionGrad final : public AttentionGradPlan {
public:
  KernelAttentionGrad(BuiltinKernels &kernels, const AttentionGradSpec &spec, bool tf32)
      : kernels_(kernels), spec_(spec),
        chosen_(kernelsFor(spec.forward, {spec.gradOut, spec.gradQ, spec.gradK, spec.gradV}, tf32)) {}

  void run(const AttentionGradArgs &args) const override {
    bool isWide = isAligned({args.q, args.k, args.v, args.out, args.gradOut, args.gradQ, args.gradK, args.gradV});
    const AttentionKernels &chosen = isWide ? chosen_ : anyKernels;
    const AttentionSpec &spec = spec_.forward;
    AttentionKernelArgs given{.q = args.q, .k = args.k, .v = args.v, .mask = args.mask,
                              .seed = args.seed, .step = args.step, .out = const_cast<void *>(args.out), .lse = const_cast<float *>(args.lse),
                              .gradOut = args.gradOut, .gradQ = args.gradQ, .gradK = args.gradK,
                              .gradV = args.gradV, .spec = spec_};
    kernels_.launch(chosen.rowsGrad, given, blocksOf(spec, chosen, spec.rows, chosen.passes.rows), 1);
    kernels_.launch(chosen.keysGrad, given, blocksOf(spec, chosen, spec.keys, chosen.passes.keys), 1);
    if (chosen.passes.values)
      kernels_.launch(chosen.valuesGrad, given, blocksOf(spec, chosen, spec.keys, chosen.passes.values), 1);
  }

private:
  BuiltinKernels &kernels_;
  AttentionGradSpec spec_;
  const AttentionKernels &chosen_;
};
} // namespace

std::shared_ptr<const AttentionPlan> planAttention(const std::string &device, BuiltinKernels &kernels,
                                                   const AttentionSpec &spec, bool tf32) {
  requireSmall(device, spec);
  return std::make_shared<KernelAttention>(kernels, spec, tf32);
}

std::shared_ptr<const AttentionGradPlan> planAttentionGrad(const std::string &device, BuiltinKernels &kernels,
                                                           const AttentionGradSpec &spec, bool tf32) {
  requireSmall(device, spec.forward);
  return std::make_shared<KernelAttentionGrad>(kernels, spec, tf32);
}

} // namespace segue::inline runtime::cuda
