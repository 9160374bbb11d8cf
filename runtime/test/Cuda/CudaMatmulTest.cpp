//===- CudaMatmulTest.cpp - products of cuda:N against the CPU's ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// On the fake driver, and on a GPU where there is one (SegueGpuTests). The CPU's engine,
// which is compared with sums in double, says what is right.
//
//===----------------------------------------------------------------------===//

#include "../Engine/MatmulCases.h"
#include "../Engine/Values.h"
#include "CudaSpecs.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/CpuEngine.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <thread>

using namespace segue;
using namespace segue::test;

static constexpr ElementType types[] = {ElementType::f32, ElementType::bf16, ElementType::f16, ElementType::f64};

namespace {
/// The operands of a product, here and on a device, where they lie in one block with guards around each.
class Operands {
public:
  /// The operands begin `skipped` elements behind a multiple of 512 bytes.
  Operands(Device &device, const MatmulSpec &spec, uint64_t seed, int64_t skipped = 0)
      : a(spec.a.element, span(spec.a, spec.batch, spec.m, spec.k), seed),
        b(spec.b.element, span(spec.b, spec.batch, spec.k, spec.n), seed + 1),
        c(spec.c.element, span(spec.c, spec.batch, spec.m, spec.n), seed + 2), bias(spec.bias, spec.n, seed + 3),
        device_(device), spec_(spec) {
    uint64_t end = 0;
    for (Values *values : {&a, &b, &c, &bias}) {
      // Sums of the values as they are would be exact, in whatever order.
      for (int64_t i = 0; i < values->size(); ++i)
        if (isWide(spec.a.element))
          values->set(i, float(values->at(i)) * 0.7310586f);
      uint64_t elementBytes = values->size() ? values->bytes().size() / uint64_t(values->size()) : 0;
      offsets_.push_back((end + guardBytes + 511) / 512 * 512 + uint64_t(skipped) * elementBytes);
      end = offsets_.back() + values->bytes().size();
    }
    image_.assign(end + guardBytes, guard);
    for (size_t i = 0; i < 4; ++i)
      if (!of(i).bytes().empty())
        std::memcpy(image_.data() + offsets_[i], of(i).data(), of(i).bytes().size());
    block_ = device.memory().allocate(Space::DeviceDram, image_.size(), 512);
  }
  Operands(const Operands &) = delete;
  ~Operands() {
    device_.drain();
    device_.memory().free(Space::DeviceDram, block_.data, image_.size(), 512, block_.account, {});
  }

  std::byte *at(size_t which) const { return static_cast<std::byte *>(block_.data) + offsets_[which]; }
  void upload() const { device_.copy(block_.data, image_.data(), image_.size()); }
  Values download() const {
    std::vector<std::byte> found(image_.size());
    device_.copy(found.data(), block_.data, found.size());
    Values result = c;
    std::byte *place = found.data() + offsets_[2];
    if (!result.bytes().empty()) {
      std::memcpy(result.data(), place, result.bytes().size());
      std::memcpy(place, image_.data() + offsets_[2], result.bytes().size());
    }
    EXPECT_TRUE(found == image_) << "written outside of the result";
    return result;
  }
  void runPlan(const MatmulPlan &plan) const { plan.run(at(0), at(1), at(2), spec_.hasBias ? at(3) : nullptr); }

  /// Compares with what the CPU gives, and what lies between the rows of c with what was there.
  void expect(const Values &found) {
    Values wanted = c;
    static CpuEngine engine{Threads(1)};
    engine.planMatmul(spec_)->run(a.data(), b.data(), wanted.data(), spec_.hasBias ? bias.data() : nullptr);
    double sums = spec_.a.element == ElementType::f64 ? 1e-15 : 1e-6;
    for (int64_t i = 0; i < c.size(); ++i)
      ASSERT_NEAR(found.at(i), wanted.at(i),
                  tolerance(spec_.c.element) * (1 + std::abs(wanted.at(i))) + sums * double(spec_.k))
          << "at " << i;
  }

  Values a, b, c, bias;

private:
  static constexpr uint64_t guardBytes = 4096;
  static constexpr std::byte guard{0x5a};
  static bool isWide(ElementType type) { return type == ElementType::f32 || type == ElementType::f64; }
  Values &of(size_t which) {
    Values *all[] = {&a, &b, &c, &bias};
    return *all[which];
  }

  Device &device_;
  MatmulSpec spec_;
  std::vector<uint64_t> offsets_;
  std::vector<std::byte> image_;
  MemoryBlock block_;
};

class CudaMatmulTest : public testing::TestWithParam<std::string> {
protected:
  /// Runs a spec in a body and outside of one, on one of the devices: they take turns.
  void check(const MatmulSpec &spec, int64_t skipped = 0) {
    std::vector<std::string> all = cudaSpecs();
    if (all[cases_++ % all.size()] != GetParam())
      return;
    ASSERT_EQ(spec.findProblem(), "");
    auto plan = device->engine().planMatmul(spec);
    SCOPED_TRACE(plan->describe());
    Operands operands(*device, spec, 1, skipped);
    operands.upload();
    std::string message;
    Work work{[&] { operands.runPlan(*plan); }};
    work.ended = [&](const Error *error) { message = error ? error->what() : ""; };
    device->wait(Fence(Queue::Compute, device->enqueue(Queue::Compute, {}, std::move(work))));
    ASSERT_EQ(message, "");
    Values first = operands.download();
    operands.expect(first);
    operands.upload();
    operands.runPlan(*plan);
    EXPECT_EQ(operands.download().bytes(), first.bytes()) << "the same bits at each run";
  }

  DeviceRef device = Device::open(GetParam());

private:
  size_t cases_ = 0;
};
} // namespace

TEST_P(CudaMatmulTest, TakesRowsAndColumnsOfAllTypes) {
  for (ElementType type : types)
    for (Lie left : {Lie::Plain, Lie::Transposed, Lie::Padded, Lie::Strided})
      for (Lie right : {Lie::Plain, Lie::Transposed, Lie::Padded, Lie::Strided})
        for (const Extents &e : {Extents{3, 13, 33, 17}, Extents{1, 40, 24, 64}}) {
          SCOPED_TRACE(std::string(name(type)) + " " + std::to_string(int(left)) + " " + std::to_string(int(right)));
          MatmulSpec spec{e.batch, e.m, e.n, e.k};
          spec.a = place(type, e.m, e.k, left);
          spec.b = place(type, e.k, e.n, right);
          spec.c = place(type, e.m, e.n, Lie::Padded);
          check(spec);
        }
}

// Extents of 1, for which a stride means nothing, among them; results of f32; a bias, and what c held.
TEST_P(CudaMatmulTest, AddsBiasAndResultAtAllExtents) {
  for (ElementType type : types)
    for (const Extents &e : {Extents{1, 1, 1, 1}, Extents{1, 5, 7, 3}, Extents{2, 1, 100, 64}, Extents{1, 50, 1, 20},
                             Extents{1, 1, 9, 1}, Extents{4, 8, 16, 40}})
      for (ElementType result : {type, type == ElementType::f64 ? type : ElementType::f32})
        for (int options = 0; options < 4; ++options) {
          MatmulSpec spec{e.batch, e.m, e.n, e.k};
          spec.a = place(type, e.m, e.k, Lie::Plain);
          spec.b = place(type, e.k, e.n, Lie::Transposed);
          spec.c = place(result, e.m, e.n, Lie::Plain);
          spec.hasBias = options & 1;
          spec.bias = result;
          spec.accumulate = options & 2;
          if (type == ElementType::f64 && options == 3)
            continue; // refused
          SCOPED_TRACE(std::string(name(type)) + " -> " + std::string(name(result)) + " " + std::to_string(e.m) + "x" +
                       std::to_string(e.k) + "x" + std::to_string(e.n) + " options " + std::to_string(options));
          check(spec);
        }
}

TEST_P(CudaMatmulTest, BatchesRepeatGoOnAndInterleave) {
  for (ElementType type : types) {
    MatmulSpec spec{4, 20, 40, 30};
    spec.a = {type, {0, 30, 1}}; // one matrix for all items
    spec.b = {type, {1200, 40, 1}};
    spec.c = place(type, 20, 40, Lie::Plain);
    check(spec);
    spec.a = {type, {600, 30, 1}}; // an item goes on where the last one ends
    spec.b = {type, {0, 1, 30}};
    spec.hasBias = true;
    spec.bias = type;
    check(spec);
    spec.hasBias = false;
    spec.b = {type, {40, 160, 1}}; // heads: rows of the items in turn
    spec.c = {type, {40, 160, 1}};
    spec.a = {type, {30, 120, 1}};
    check(spec);
  }
}

// What cuBLASLt cannot read or write as it lies goes by way of copies.
TEST_P(CudaMatmulTest, RowsRepeatAndHalvesTakeAnyBias) {
  for (ElementType type : types) {
    MatmulSpec spec{3, 20, 40, 30};
    spec.a = {type, {0, 0, 1}}; // one row for all
    spec.b = {type, {0, 1, 0}}; // one column for all
    spec.c = place(type, 20, 40, Lie::Padded);
    check(spec);
    spec.a = {type, {20, 1, 0}};
    spec.b = {type, {1200, 30, 1}}; // rows that overlap
    spec.accumulate = true;
    check(spec);
    if (type != ElementType::bf16 && type != ElementType::f16)
      continue;
    spec.hasBias = true; // of f32
    for (int64_t k : {0, 30})
      for (bool accumulate : {false, true}) {
        spec.accumulate = accumulate;
        spec.k = k;
        if (k || !accumulate) // else it is refused
          check(spec);
      }
  }
}

TEST_P(CudaMatmulTest, EmptyProductsAreTheBiasOrZeroOrNothing) {
  for (ElementType type : types)
    for (Lie lie : {Lie::Plain, Lie::Padded})
      for (int options = 0; options < 3; ++options) {
        MatmulSpec spec{3, 7, 40, 0};
        spec.a = place(type, 7, 0, Lie::Plain);
        spec.b = place(type, 0, 40, Lie::Plain);
        spec.c = place(type, 7, 40, lie);
        spec.hasBias = options == 1;
        spec.bias = type;
        spec.accumulate = options == 2;
        check(spec);
      }
  for (Extents e : {Extents{0, 2, 2, 2}, Extents{1, 0, 2, 2}, Extents{1, 2, 0, 2}}) {
    MatmulSpec spec{e.batch, e.m, e.n, e.k};
    spec.a = place(ElementType::f32, e.m, e.k, Lie::Plain);
    spec.b = place(ElementType::f32, e.k, e.n, Lie::Plain);
    spec.c = place(ElementType::f32, e.m, e.n, Lie::Plain);
    check(spec);
  }
}

// Operands in the midst of tensors begin at no multiple of 16 bytes.
TEST_P(CudaMatmulTest, OperandsBeginAnywhere) {
  for (ElementType type : types)
    for (int64_t skipped : {1, 3, 8})
      for (ElementType result : {type, type == ElementType::f64 ? type : ElementType::f32}) {
        MatmulSpec spec{2, 9, 23, 48};
        spec.a = place(type, 9, 48, Lie::Padded);
        spec.b = place(type, 48, 23, Lie::Plain);
        spec.c = place(result, 9, 23, Lie::Plain);
        spec.hasBias = true;
        spec.bias = result;
        check(spec, skipped);
      }
}

// Nothing waits on the host: what a product reads comes by one queue, and what it writes leaves by another.
TEST_P(CudaMatmulTest, RunsInTheOrderOfItsQueue) {
  MatmulSpec spec{1, 24, 40, 64};
  spec.a = place(ElementType::f32, 24, 64, Lie::Plain);
  spec.b = place(ElementType::f32, 64, 40, Lie::Plain);
  spec.c = place(ElementType::f32, 24, 40, Lie::Plain);
  spec.accumulate = true;
  auto plan = device->engine().planMatmul(spec);
  constexpr int rounds = 24;
  std::vector<std::unique_ptr<Operands>> operands;
  for (uint64_t i = 0; i < rounds; ++i)
    operands.push_back(std::make_unique<Operands>(*device, spec, 4 * i));
  std::vector<Values> found;
  for (auto &each : operands)
    found.push_back(each->c);
  Operands shared(*device, spec, 0); // one place on the device for all
  Fence free;
  for (size_t i = 0; i < rounds; ++i) {
    Fence there(Queue::HostToDevice, device->enqueue(Queue::HostToDevice, free, {[&, i] {
                  device->copy(shared.at(0), operands[i]->a.data(), operands[i]->a.bytes().size());
                  device->copy(shared.at(1), operands[i]->b.data(), operands[i]->b.bytes().size());
                  device->copy(shared.at(2), operands[i]->c.data(), operands[i]->c.bytes().size());
                }}));
    Fence done(Queue::Compute,
               device->enqueue(Queue::Compute, there, {[&] { shared.runPlan(*plan); }}));
    free = Fence(Queue::DeviceToHost, device->enqueue(Queue::DeviceToHost, done, {[&, i] {
                   device->copy(found[i].data(), shared.at(2), found[i].bytes().size());
                 }}));
  }
  device->wait(free);
  for (size_t i = 0; i < rounds; ++i)
    operands[i]->expect(found[i]);
}

// Queues run beside each other, and so do threads that wait for what they ask for.
TEST_P(CudaMatmulTest, RunsBesideOthers) {
  for (Lie lie : {Lie::Plain, Lie::Strided}) { // the latter is copied
    MatmulSpec spec{2, 16, 24, 64};
    spec.a = place(ElementType::f32, 16, 64, lie);
    spec.b = place(ElementType::f32, 64, 24, Lie::Plain);
    spec.c = place(ElementType::f32, 16, 24, Lie::Plain);
    spec.hasBias = true;
    std::vector<std::unique_ptr<Operands>> operands;
    for (uint64_t i = 0; i < 24; ++i) {
      operands.push_back(std::make_unique<Operands>(*device, spec, 4 * i));
      operands.back()->upload();
    }
    auto inThread = [&](size_t first) {
      auto plan = device->engine().planMatmul(spec);
      for (size_t i = first; i < 12; i += 2)
        operands[i]->runPlan(*plan);
    };
    std::thread one(inThread, 0), two(inThread, 1);
    auto plan = device->engine().planMatmul(spec);
    Fence all;
    for (size_t i = 12; i < 24; ++i) {
      Queue queue = allQueues[i % 3];
      all.join(Fence(queue, device->enqueue(queue, {}, {[&, i] { operands[i]->runPlan(*plan); }})));
    }
    one.join();
    two.join();
    device->wait(all);
    for (auto &each : operands)
      each->expect(each->download());
  }
}

TEST_P(CudaMatmulTest, EqualSpecsShareAPlan) {
  MatmulSpec spec{
      1, 8, 8, 8, {ElementType::f32, {64, 8, 1}}, {ElementType::f32, {64, 8, 1}}, {ElementType::f32, {64, 8, 1}}};
  auto plan = device->engine().planMatmul(spec);
  EXPECT_EQ(device->engine().planMatmul(spec), plan);
  spec.accumulate = true;
  EXPECT_NE(device->engine().planMatmul(spec), plan);
}

INSTANTIATE_TEST_SUITE_P(Gpus, CudaMatmulTest, testing::ValuesIn(cudaSpecs()), [](const auto &info) {
  std::string name = info.param;
  std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
  return name;
});
