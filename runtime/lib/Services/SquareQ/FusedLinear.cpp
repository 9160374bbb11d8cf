//===- FusedLinear.cpp - a linear layer over a stored weight --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Everything is decided here and given to the compute queue as one piece of
// work, which calls plans of the engine.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SquareQ/FusedLinear.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <array>

namespace segue::inline runtime {

namespace {
/// The two small products of an adapter: t = x first; y += t second * factor.
struct AdapterPlans {
  std::shared_ptr<const MatmulPlan> down, up;
  Tensor x, between, first, second;
  float factor = 1;
};
} // namespace

static void require(bool fits, const char *what, const Tensor &tensor, const std::string &wanted) {
  if (!fits)
    throw Error(ErrorCode::LayoutMismatch,
                std::string("fusedLinear: ") + what + " is " + tensor.desc().str() + ", it must be " + wanted);
}

static bool isDenseIn(const Tensor &tensor, const DeviceRef &device) {
  const Layout &layout = tensor.desc().layout;
  return tensor.device() == device && layout.storage == StorageType::Element && layout.tile.empty() &&
         (layout.space == Space::DeviceDram || device->hasUnifiedMemory()) &&
         isDense(tensor.shape(), effectiveStrides(tensor.shape(), layout));
}

/// data[i] *= factor; the factor comes as the bits of a pointer's target.
static int64_t scaleKernel(void *const *args, int64_t begin, int64_t end) {
  auto *data = static_cast<float *>(args[0]);
  float factor = *static_cast<const float *>(args[1]);
  for (int64_t i = begin; i < end; ++i)
    data[i] *= factor;
  return 0;
}

/// Elements that pay for waking another thread.
static constexpr int64_t scaleGrain = 1 << 16;

/// c [m, n] of f32 = a [m, k] b [k, n]; strides of b as given.
static MatmulSpec product(int64_t m, int64_t n, int64_t k, std::array<int64_t, 3> b, bool accumulate) {
  MatmulSpec spec{.m = m, .n = n, .k = k, .accumulate = accumulate};
  spec.a.strides = {0, k, 1};
  spec.b.strides = b;
  spec.c.strides = {0, n, 1};
  return spec;
}

static Tensor run(const DeviceRef &device, const Tensor &x, const Tensor &weight, const FusedLinearOptions &options,
                  bool transposed) {
  const char *operand = transposed ? "dy" : "x";
  const Layout &layout = weight.desc().layout;
  bool isServed = weight.shape().size() == 2 && layout.storage == StorageType::Int8Row && layout.tile.empty() &&
                  weight.device() == device && (layout.space == Space::DeviceDram || device->hasUnifiedMemory());
  std::vector<int64_t> strides = effectiveStrides(weight.shape(), layout);
  require(isServed && strides[1] == 1, "weight", weight, "[out, in] in int8_row storage on the device");
  int64_t out = weight.shape()[0], in = weight.shape()[1];
  int64_t depth = transposed ? out : in, columns = transposed ? in : out;
  require(!x.shape().empty() && x.shape().back() == depth && isFloat(x.element()) && isDenseIn(x, device), operand, x,
          "floats [..., " + std::to_string(depth) + "], dense, on the device");

  Shape shape = x.shape();
  int64_t rows = depth ? int64_t(x.elementCount()) / depth : 0;
  shape.back() = columns;
  const LoraAdapter *adapter = options.adapter;
  ElementType summed = adapter ? ElementType::f32 : x.element();
  Tensor y = Tensor::empty(device, TensorDesc(shape, summed));

  QuantizedMatmulSpec spec{.rows = rows, .out = out, .in = in, .codeStride = strides[0]};
  spec.hasZeroPoints = layout.zeroPoints;
  spec.transposed = transposed;
  spec.x = x.element();
  spec.y = summed;
  spec.xStride = depth;
  spec.yStride = columns;
  std::shared_ptr<const QuantizedMatmulPlan> plan = device->engine().planQuantizedMatmul(spec);

  AdapterPlans low;
  if (adapter) {
    auto isFactor = [&](const Tensor &factor, int64_t first, int64_t second) {
      return factor && factor.shape() == Shape{first, second} && factor.element() == ElementType::f32 &&
             isDenseIn(factor, device);
    };
    int64_t rank = adapter->a && adapter->a.shape().size() == 2 ? adapter->rank() : 0;
    require(rank > 0 && isFactor(adapter->a, in, rank), "adapter's A", adapter->a ? adapter->a : weight,
            "f32[" + std::to_string(in) + ", rank], dense, on the device");
    require(isFactor(adapter->b, rank, out), "adapter's B", adapter->b ? adapter->b : weight,
            "f32[" + std::to_string(rank) + ", " + std::to_string(out) + "], dense, on the device");
    low.factor = adapter->alpha / float(rank);
    low.first = transposed ? adapter->b : adapter->a;
    low.second = transposed ? adapter->a : adapter->b;
    low.x = x.element() == ElementType::f32 ? x : toLayout(device, x, TensorDesc(x.shape(), ElementType::f32));
    low.between = Tensor::empty(device, TensorDesc({rows, rank}, ElementType::f32));
    // Forward reads A [in, rank] and B [rank, out] as they lie; backward both
    // as their transposes: Bᵀ [out, rank], Aᵀ [rank, in].
    using Strides = std::array<int64_t, 3>;
    low.down = device->engine().planMatmul(
        product(rows, rank, depth, transposed ? Strides{0, 1, out} : Strides{0, rank, 1}, /*accumulate=*/false));
    low.up = device->engine().planMatmul(
        product(rows, columns, rank, transposed ? Strides{0, 1, rank} : Strides{0, out, 1}, /*accumulate=*/true));
  }

  // Operands by address: queued work keeps no storage.
  struct Job {
    std::shared_ptr<const QuantizedMatmulPlan> plan;
    std::shared_ptr<const MatmulPlan> down, up;
    const void *x, *codes;
    const float *scale, *zeroPoint;
    void *y;
    const void *wide = nullptr, *first = nullptr, *second = nullptr;
    void *between = nullptr;
    int64_t betweenCount = 0;
    float factor = 1;
    std::vector<std::shared_ptr<Outcome>> sources;
    std::shared_ptr<Outcome> target;
  };
  auto job = std::make_shared<Job>();
  LayoutParts parts = weight.desc().parts();
  job->plan = plan;
  job->x = x.bytes();
  job->codes = weight.bytes();
  job->scale = reinterpret_cast<const float *>(weight.bytes() + parts.scales);
  job->zeroPoint = layout.zeroPoints ? reinterpret_cast<const float *>(weight.bytes() + parts.zeroPoints) : nullptr;
  job->y = y.bytes();
  std::vector<Tensor> read{x, weight}, written{y};
  if (adapter) {
    job->down = low.down;
    job->up = low.up;
    job->wide = low.x.bytes();
    job->first = low.first.bytes();
    job->second = low.second.bytes();
    job->between = low.between.bytes();
    job->betweenCount = int64_t(low.between.elementCount());
    job->factor = low.factor;
    read.insert(read.end(), {low.x, low.first, low.second});
    written.push_back(low.between);
  }
  Fence after;
  for (const Tensor &tensor : read) {
    tensor.storage()->requireUsable(tensor.desc().str());
    after.join(tensor.storage()->writes());
    if (const auto &outcome = tensor.storage()->outcomeIfAny())
      job->sources.push_back(outcome);
  }
  for (const Tensor &tensor : written)
    after.join(tensor.storage()->uses());
  job->target = y.storage()->outcome();

  Work work;
  work.label = transposed ? "fused linear gradient" : "fused linear";
  work.cost.flops = uint64_t(spec.flops());
  work.cost.memoryBytes = weight.desc().spanBytes() + x.desc().spanBytes() + y.desc().spanBytes();
  work.run = [job, &device = *device] {
    for (const auto &source : job->sources)
      if (const Error *error = source->error())
        return job->target->fail(error->within("fusedLinear: an operand was never written"));
    job->plan->run(job->x, job->codes, job->scale, job->zeroPoint, job->y);
    if (!job->down)
      return;
    job->down->run(job->wide, job->first, job->between, nullptr);
    void *args[] = {job->between, &job->factor};
    device.launch(scaleKernel, args, job->betweenCount, scaleGrain, device.threads());
    job->up->run(job->between, job->second, job->y, nullptr);
  };
  Fence fence(Queue::Compute, device->enqueue(Queue::Compute, after, std::move(work)));
  for (const Tensor &tensor : read)
    tensor.storage()->addRead(fence);
  for (const Tensor &tensor : written)
    tensor.storage()->addWrite(fence);
  return summed == x.element() ? y : toLayout(device, y, TensorDesc(shape, x.element()));
}

Tensor fusedLinear(const DeviceRef &device, const Tensor &x, const Tensor &weight, const FusedLinearOptions &options) {
  return run(device, x, weight, options, /*transposed=*/false);
}

Tensor fusedLinearGrad(const DeviceRef &device, const Tensor &dy, const Tensor &weight,
                       const FusedLinearOptions &options) {
  return run(device, dy, weight, options, /*transposed=*/true);
}

} // namespace segue::inline runtime
