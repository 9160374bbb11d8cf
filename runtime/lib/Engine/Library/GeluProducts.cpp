//===- GeluProducts.cpp - products with gelu behind them ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The operation of segue.dot_gelu, whose number is 1 where the matrix is transposed
// (SegueLibraryOps.td). Here it is the product, rounded as one without gelu is, and a loop
// over its rows: what a GPU gains by it, a processor does not. It reads rows, the matrix
// and perhaps a bias, and writes the result and perhaps the sums.
//
//===----------------------------------------------------------------------===//

#include "GeluProducts.h"
#include "FloatRows.h"
#include "LibraryPlans.h"

namespace segue::inline runtime {

/// So many numbers are widened at once; a thread has that many at least.
static constexpr int64_t pieceElements = 1024;

GeluProduct readGeluProduct(const LibraryCallSpec &spec) {
  const LibraryTensor &lhs = spec.reads[0], &rhs = spec.reads[1];
  bool transposed = spec.numbers[0];
  GeluProduct call{.hasSums = spec.writes.size() == 2, .product = {}};
  MatmulSpec &product = call.product;
  product.k = lhs.shape.back();
  product.m = 1;
  for (size_t dim = 0; dim + 1 < lhs.shape.size(); ++dim)
    product.m *= lhs.shape[dim];
  product.n = rhs.shape[transposed ? 0 : 1];
  product.a = {lhs.element, {0, product.k, 1}};
  product.b = {lhs.element, {0, transposed ? 1 : product.n, transposed ? product.k : 1}};
  product.c = {lhs.element, {0, product.n, 1}};
  product.hasBias = spec.reads.size() == 3;
  product.bias = lhs.element;
  return call;
}

GeluProductArgs::GeluProductArgs(const GeluProduct &call, std::span<void *const> tensors)
    : lhs(tensors[0]), rhs(tensors[1]), bias(call.product.hasBias ? tensors[2] : nullptr) {
  size_t written = 2 + call.product.hasBias;
  sums = call.hasSums ? tensors[written + 1] : nullptr;
  result = tensors[written];
}

static std::string findProblem(const LibraryCallSpec &spec) {
  size_t reads = spec.reads.size(), writes = spec.writes.size();
  if (reads < 2 || reads > 3 || writes < 1 || writes > 2)
    return std::to_string(reads) + " operands and " + std::to_string(writes) +
           " results; it takes two or three and gives one or two";
  if (spec.numbers.size() != 1 || spec.numbers[0] < 0 || spec.numbers[0] > 1)
    return std::to_string(spec.numbers.size()) + " numbers; it takes one, 0 or 1";
  for (const std::vector<LibraryTensor> *tensors : {&spec.reads, &spec.writes})
    for (const LibraryTensor &tensor : *tensors)
      if (std::string problem = findElementsProblem(tensor, spec.reads[0]); !problem.empty())
        return problem;
  const std::vector<int64_t> &lhs = spec.reads[0].shape, &rhs = spec.reads[1].shape;
  if (lhs.empty() || rhs.size() != 2)
    return "tensors of " + listed(lhs) + " and " + listed(rhs) + ", which have other dimensions than it takes";
  bool transposed = spec.numbers[0];
  std::vector<int64_t> wanted = lhs;
  wanted.back() = rhs[transposed ? 0 : 1];
  bool fits = rhs[transposed ? 1 : 0] == lhs.back();
  for (const LibraryTensor &written : spec.writes)
    fits &= written.shape == wanted;
  if (reads == 3)
    fits &= spec.reads[2].shape == std::vector{wanted.back()};
  if (!fits) {
    std::string shapes;
    for (const std::vector<LibraryTensor> *tensors : {&spec.reads, &spec.writes})
      for (const LibraryTensor &tensor : *tensors)
        shapes += (shapes.empty() ? "" : ", ") + listed(tensor.shape);
    return "tensors of " + shapes + " do not fit together";
  }
  return {};
}

static uint64_t flopsOf(const LibraryCallSpec &spec) { return countedFlops(readGeluProduct(spec).product.flops()); }

namespace {
class GeluByRows final : public LibraryPlan {
public:
  GeluByRows(const GeluProduct &call, const LibraryTools &tools)
      : call_(call), threads_(tools.threads), kernels_(tools.kernels), product_(tools.planMatmul(call.product)) {}

  void run(std::span<void *const> tensors) const override {
    GeluProductArgs args(call_, tensors);
    void *product = args.sums ? args.sums : args.result;
    product_->run(args.lhs, args.rhs, product, args.bias);
    ElementType type = call_.product.a.element;
    threads_.parallelFor(call_.elements(), pieceElements, [&](int64_t begin, int64_t end) {
      FlushDenormals flush;
      alignas(64) float numbers[pieceElements];
      for (int64_t at = begin; at < end; at += pieceElements) {
        int64_t count = std::min(pieceElements, end - at);
        widen(kernels_, type, count, advance(product, type, at), numbers);
        kernels_.gelu(count, numbers);
        narrow(kernels_, type, count, numbers, advance(args.result, type, at));
      }
    });
  }

private:
  GeluProduct call_;
  Threads threads_;
  const VectorKernels &kernels_;
  std::shared_ptr<const MatmulPlan> product_;
};
} // namespace

static std::shared_ptr<const LibraryPlan> planGelu(const LibraryCallSpec &spec, const LibraryTools &tools) {
  return std::make_shared<GeluByRows>(readGeluProduct(spec), tools);
}

std::span<const LibraryOperation> operationsOfGeluProducts() {
  static constexpr LibraryOperation operations[] = {
      {"dot_gelu", findProblem, flopsOf, planGelu},
  };
  return operations;
}

} // namespace segue::inline runtime
