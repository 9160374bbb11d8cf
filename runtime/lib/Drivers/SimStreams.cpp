//===- SimStreams.cpp - what bodies give to a device, for later -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SimStreams.h"
#include <exception>

namespace segue::inline runtime {

std::vector<StreamOperation> *&openStream() {
  static thread_local std::vector<StreamOperation> *stream = nullptr;
  return stream;
}

namespace {
/// This thread's operations go to `stream` while it lives.
class Opened {
public:
  explicit Opened(std::vector<StreamOperation> *stream) : before_(openStream()) { openStream() = stream; }
  Opened(const Opened &) = delete;
  Opened &operator=(const Opened &) = delete;
  ~Opened() { openStream() = before_; }

private:
  std::vector<StreamOperation> *before_;
};

struct Recorded {
  /// The entry, with its body, which keeps what the operations touch.
  Work work;
  std::vector<StreamOperation> operations;
};
} // namespace

Work recordBody(Work work) {
  if (!work.run)
    return work;
  auto recorded = std::make_shared<Recorded>();
  recorded->work = std::move(work);
  {
    Opened opened(&recorded->operations);
    try {
      recorded->work.run();
    } catch (...) {
      recorded->operations.push_back([error = std::current_exception()] { std::rethrow_exception(error); });
    }
  }
  Work later;
  later.cost = recorded->work.cost;
  later.label = recorded->work.label;
  later.run = [recorded] {
    Opened none(nullptr); // whoever waits in a body may run the operations of others
    bool mayBegin = !recorded->work.mayBegin || recorded->work.mayBegin();
    try {
      for (const StreamOperation &operation : recorded->operations)
        operation();
    } catch (...) {
      if (mayBegin)
        throw;
    }
  };
  if (recorded->work.ended)
    later.ended = [recorded](const Error *error) { recorded->work.ended(error); };
  return later;
}

//===----------------------------------------------------------------------===//
// The engine
//===----------------------------------------------------------------------===//

namespace {
/// Gives the runs of a plan to the stream, with their arguments by value.
template <typename Plan> class Given : public Plan {
public:
  explicit Given(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {}

protected:
  std::shared_ptr<const Plan> plan_;
};

class GivenMatmul final : public Given<MatmulPlan> {
public:
  using Given::Given;
  void run(const void *a, const void *b, void *c, const void *bias) const override {
    giveToStream([=, plan = plan_] { plan->run(a, b, c, bias); });
  }
  std::string describe() const override { return plan_->describe(); }
};

class GivenQuantizedMatmul final : public Given<QuantizedMatmulPlan> {
public:
  using Given::Given;
  void run(const QuantizedMatmulArgs &args) const override {
    giveToStream([args, plan = plan_] { plan->run(args); });
  }
  std::string describe() const override { return plan_->describe(); }
};

class GivenAttention final : public Given<AttentionPlan> {
public:
  using Given::Given;
  void run(const AttentionArgs &args) const override {
    giveToStream([args, plan = plan_] { plan->run(args); });
  }
};

class GivenAttentionGrad final : public Given<AttentionGradPlan> {
public:
  using Given::Given;
  void run(const AttentionGradArgs &args) const override {
    giveToStream([args, plan = plan_] { plan->run(args); });
  }
};

class GivenLibraryCall final : public Given<LibraryPlan> {
public:
  using Given::Given;
  void run(std::span<void *const> tensors) const override {
    giveToStream([args = std::vector<void *>(tensors.begin(), tensors.end()), plan = plan_] { plan->run(args); });
  }
};
} // namespace

std::shared_ptr<const MatmulPlan> StreamEngine::planMatmul(const MatmulSpec &spec) {
  return std::make_shared<const GivenMatmul>(engine_.planMatmul(spec));
}
std::shared_ptr<const QuantizedMatmulPlan> StreamEngine::planQuantizedMatmul(const QuantizedMatmulSpec &spec) {
  return std::make_shared<const GivenQuantizedMatmul>(engine_.planQuantizedMatmul(spec));
}
std::shared_ptr<const AttentionPlan> StreamEngine::planAttention(const AttentionSpec &spec) {
  return std::make_shared<const GivenAttention>(engine_.planAttention(spec));
}
std::shared_ptr<const AttentionGradPlan> StreamEngine::planAttentionGrad(const AttentionGradSpec &spec) {
  return std::make_shared<const GivenAttentionGrad>(engine_.planAttentionGrad(spec));
}
std::shared_ptr<const LibraryPlan> StreamEngine::planLibraryCall(const LibraryCallSpec &spec) {
  return std::make_shared<const GivenLibraryCall>(engine_.planLibraryCall(spec));
}

void StreamEngine::fill(void *target, uint64_t bytes, uint64_t pattern, uint32_t patternBytes) {
  giveToStream([=, &engine = engine_] { engine.fill(target, bytes, pattern, patternBytes); });
}
void StreamEngine::add(float *sum, const float *addend, int64_t count) {
  giveToStream([=, &engine = engine_] { engine.add(sum, addend, count); });
}
void StreamEngine::scale(float *data, int64_t count, float factor) {
  giveToStream([=, &engine = engine_] { engine.scale(data, count, factor); });
}
void StreamEngine::rotate(float *rows, int64_t count, int64_t columns) {
  giveToStream([=, &engine = engine_] { engine.rotate(rows, count, columns); });
}
void StreamEngine::restore(const LowBitRows &rows) {
  giveToStream([rows, &engine = engine_] { engine.restore(rows); });
}
void StreamEngine::countNonFinite(const NonFiniteRows &rows, const void *data, NonFiniteCount &count) {
  giveToStream([=, &engine = engine_, &rows, &count] { engine.countNonFinite(rows, data, count); });
}

} // namespace segue::inline runtime
