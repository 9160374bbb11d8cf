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
#include "segue/runtime/Engine/LowBitForms.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <array>

namespace segue::inline runtime {

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

/// Returns the spec of c [m, n] of f32 = a [m, k] b [k, n]; the strides of b are as given.
static MatmulSpec product(int64_t m, int64_t n, int64_t k, std::array<int64_t, 3> b, bool accumulate) {
  MatmulSpec spec{.m = m, .n = n, .k = k, .accumulate = accumulate};
  spec.a.strides = {0, k, 1};
  spec.b.strides = b;
  spec.c.strides = {0, n, 1};
  return spec;
}

namespace {
/// The two small products of an adapter: t = x first; y += t second * factor.
/// Operands by address: queued work keeps no storage.
struct AdapterJob {
  std::shared_ptr<const MatmulPlan> down, up;
  const void *x, *first, *second;
  float *between;
  int64_t betweenCount;
  float factor;
};

struct Job {
  std::shared_ptr<const QuantizedMatmulPlan> plan;
  QuantizedMatmulArgs args;
  /// The rows that are rotated before and after the product; null for none.
  float *before = nullptr, *after = nullptr;
  int64_t rows = 0, columns = 0;
  std::vector<AdapterJob> adapters;
  std::vector<std::shared_ptr<Outcome>> sources;
  std::shared_ptr<Outcome> target;

  bool mayBegin() {
    for (const auto &source : sources)
      if (const Error *error = source->error()) {
        target->fail(error->within("fusedLinear: an operand was never written"));
        return false;
      }
    return true;
  }

  void run(Device &device) {
    Engine &engine = device.engine();
    if (before)
      engine.rotate(before, rows, columns);
    plan->run(args);
    if (after)
      engine.rotate(after, rows, columns);
    for (AdapterJob &low : adapters) {
      low.down->run(low.x, low.first, low.between, nullptr);
      engine.scale(low.between, low.betweenCount, low.factor);
      low.up->run(low.between, low.second, args.y, nullptr);
    }
  }
};

/// Makes a job and knows its tensors.
class JobMaker {
public:
  JobMaker(const DeviceRef &device, const FusedWeight &weight, bool transposed)
      : device_(device), weight_(weight), transposed_(transposed) {}

  Tensor make(const Tensor &x, const LoraAdapter *adapter);

private:
  Tensor floatsOf(const Tensor &x) const { return toLayout(device_, x, TensorDesc(x.shape(), ElementType::f32)); }
  void addAdapter(const LoraAdapter &adapter, const Tensor &wide);
  void enqueue(const QuantizedMatmulSpec &spec, const Tensor &x, const Tensor &y);

  const DeviceRef &device_;
  const FusedWeight &weight_;
  bool transposed_;
  int64_t rows_ = 0, out_ = 0, in_ = 0;
  std::shared_ptr<Job> job_ = std::make_shared<Job>();
  std::vector<Tensor> read_, written_;
};
} // namespace

void JobMaker::addAdapter(const LoraAdapter &adapter, const Tensor &wide) {
  auto isFactor = [&](const Tensor &factor, int64_t first, int64_t second) {
    return factor && factor.shape() == Shape{first, second} && factor.element() == ElementType::f32 &&
           isDenseIn(factor, device_);
  };
  int64_t rank = adapter.a && adapter.a.shape().size() == 2 ? adapter.rank() : 0;
  require(rank > 0 && isFactor(adapter.a, in_, rank), "adapter's A", adapter.a ? adapter.a : weight_.codes,
          "f32[" + std::to_string(in_) + ", rank], dense, on the device");
  require(isFactor(adapter.b, rank, out_), "adapter's B", adapter.b ? adapter.b : weight_.codes,
          "f32[" + std::to_string(rank) + ", " + std::to_string(out_) + "], dense, on the device");
  const Tensor &first = transposed_ ? adapter.b : adapter.a, &second = transposed_ ? adapter.a : adapter.b;
  Tensor between = Tensor::empty(device_, TensorDesc({rows_, rank}, ElementType::f32));
  int64_t depth = transposed_ ? out_ : in_, columns = transposed_ ? in_ : out_;
  // Forward reads A [in, rank] and B [rank, out] as they lie; backward both
  // as their transposes: Bᵀ [out, rank], Aᵀ [rank, in].
  using Strides = std::array<int64_t, 3>;
  AdapterJob low{.x = wide.bytes(), .first = first.bytes(), .second = second.bytes(), .between = reinterpret_cast<float *>(between.bytes())};
  low.down = device_->engine().planMatmul(
      product(rows_, rank, depth, transposed_ ? Strides{0, 1, out_} : Strides{0, rank, 1}, /*accumulate=*/false));
  low.up = device_->engine().planMatmul(
      product(rows_, columns, rank, transposed_ ? Strides{0, 1, rank} : Strides{0, out_, 1}, /*accumulate=*/true));
  low.betweenCount = int64_t(between.elementCount());
  low.factor = adapter.alpha / float(rank);
  job_->adapters.push_back(std::move(low));
  read_.insert(read_.end(), {wide, first, second});
  written_.push_back(between);
}

Tensor JobMaker::make(const Tensor &x, const LoraAdapter *adapter) {
  const char *operand = transposed_ ? "dy" : "x";
  const Tensor &weight = weight_.codes;
  const Layout &layout = weight.desc().layout;
  bool isServed = weight.shape().size() == 2 && isQuantized(layout.storage) && layout.tile.empty() &&
                  weight.device() == device_ && (layout.space == Space::DeviceDram || device_->hasUnifiedMemory());
  std::vector<int64_t> strides = effectiveStrides(weight.shape(), layout);
  require(isServed && strides[1] == 1, "weight", weight, "[out, in] in row or group storage on the device");
  out_ = weight.shape()[0];
  in_ = weight.shape()[1];
  require(!weight_.rotated || canRotate(in_), "rotated weight", weight, "of a multiple of 256 columns");
  int64_t depth = transposed_ ? out_ : in_, columns = transposed_ ? in_ : out_;
  require(!x.shape().empty() && x.shape().back() == depth && isComputedInF32(x.element()) && isDenseIn(x, device_), operand, x,
          "floats [..., " + std::to_string(depth) + "], dense, on the device");

  Shape shape = x.shape();
  rows_ = depth ? int64_t(x.elementCount()) / depth : 0;
  shape.back() = columns;
  bool isMore = adapter || weight_.residual || weight_.rotated;
  ElementType summed = isMore ? ElementType::f32 : x.element();
  Tensor y = Tensor::empty(device_, TensorDesc(shape, summed)), given = x;
  job_->rows = rows_;
  job_->columns = in_;
  if (weight_.rotated && transposed_) {
    job_->after = reinterpret_cast<float *>(y.bytes());
  } else if (weight_.rotated) {
    // A copy of x, which is then rotated.
    auto wanted = std::make_shared<const TensorDesc>(TensorDesc(x.shape(), ElementType::f32));
    given = device_->transfer().copyTo(device_, x, wanted, {});
    job_->before = reinterpret_cast<float *>(given.bytes());
    written_.push_back(given);
  }

  QuantizedMatmulSpec spec{.rows = rows_, .out = out_, .in = in_, .codeStride = strides[0], .storage = layout.storage};
  spec.hasZeroPoints = layout.zeroPoints;
  spec.transposed = transposed_;
  spec.x = given.element();
  spec.y = summed;
  spec.xStride = depth;
  spec.yStride = columns;
  Tensor wide = weight_.residual || adapter ? floatsOf(x) : Tensor();
  if (weight_.residual)
    addAdapter(*weight_.residual, wide);
  if (adapter)
    addAdapter(*adapter, wide);
  enqueue(spec, given, y);
  return summed == x.element() ? y : toLayout(device_, y, TensorDesc(shape, x.element()));
}

void JobMaker::enqueue(const QuantizedMatmulSpec &spec, const Tensor &x, const Tensor &y) {
  const Tensor &weight = weight_.codes;
  LayoutParts parts = weight.desc().parts();
  job_->plan = device_->engine().planQuantizedMatmul(spec);
  job_->args = {.x = x.bytes(),
                .codes = weight.bytes(),
                .scales = weight.bytes() + parts.scales,
                .zeroPoints = spec.hasZeroPoints ? weight.bytes() + parts.zeroPoints : nullptr,
                .y = y.bytes()};
  read_.insert(read_.end(), {x, weight});
  written_.push_back(y);
  Fence after;
  for (const Tensor &tensor : read_) {
    tensor.storage()->requireUsable(tensor.desc().str());
    after.join(tensor.storage()->writes());
    if (const auto &outcome = tensor.storage()->outcomeIfAny())
      job_->sources.push_back(outcome);
  }
  for (const Tensor &tensor : written_)
    after.join(tensor.storage()->uses());
  job_->target = y.storage()->outcome();
  Work work;
  work.label = transposed_ ? "fused linear gradient" : "fused linear";
  work.cost.flops = uint64_t(spec.flops());
  work.cost.memoryBytes = weight.desc().spanBytes() + x.desc().spanBytes() + y.desc().spanBytes();
  work.run = [job = job_, &device = *device_] { job->run(device); };
  work.mayBegin = [job = job_] { return job->mayBegin(); };
  Fence fence(Queue::Compute, device_->enqueue(Queue::Compute, after, std::move(work)));
  for (const Tensor &tensor : read_)
    tensor.storage()->addRead(fence);
  for (const Tensor &tensor : written_)
    tensor.storage()->addWrite(fence);
}

Tensor fusedLinear(const DeviceRef &device, const Tensor &x, const FusedWeight &weight,
                   const FusedLinearOptions &options) {
  return JobMaker(device, weight, /*transposed=*/false).make(x, options.adapter);
}

Tensor fusedLinearGrad(const DeviceRef &device, const Tensor &dy, const FusedWeight &weight,
                       const FusedLinearOptions &options) {
  return JobMaker(device, weight, /*transposed=*/true).make(dy, options.adapter);
}

} // namespace segue::inline runtime
