//===- CopiedProduct.cpp - a product of copies of its operands ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CopiedProduct.h"

namespace segue::inline runtime::cuda {

/// A copy begins at a multiple of this, as tensors do.
static constexpr uint64_t copyAlignment = 256;

MatmulSpec CopiedProduct::specOfCopies(const MatmulSpec &spec, Copied copied) {
  auto dense = [](const MatrixView &view, int64_t rows, int64_t columns) {
    return MatrixView{view.element, {view.strides[0] ? rows * columns : 0, columns, 1}};
  };
  MatmulSpec copies = spec;
  if (copied.a)
    copies.a = dense(spec.a, spec.m, spec.k);
  if (copied.b)
    copies.b = dense(spec.b, spec.k, spec.n);
  if (copied.c)
    copies.c = {ElementType::f32, {spec.m * spec.n, spec.n, 1}};
  return copies;
}

/// Adds a copy of `from` that lies as `to`; one matrix where all items of a batch share it.
void CopiedProduct::add(std::optional<Copy> &copy, int64_t batch, int64_t rows, int64_t columns, const MatrixView &from,
                        const MatrixView &to) {
  int64_t shape[] = {from.strides[0] ? batch : 1, rows, columns};
  copy = Copy{CopyPlan(shape, {from.element, {from.strides.begin(), from.strides.end()}},
                       {to.element, {to.strides.begin(), to.strides.end()}}),
              bytes_};
  bytes_ += copy->plan.bytesWritten();
  bytes_ = (bytes_ + copyAlignment - 1) / copyAlignment * copyAlignment;
}

CopiedProduct::CopiedProduct(const MatmulSpec &spec, Copied copied, std::shared_ptr<const MatmulPlan> product,
                             BuiltinKernels &kernels, Workspaces &copies)
    : accumulates_(spec.accumulate), product_(std::move(product)), kernels_(kernels), copies_(copies) {
  MatmulSpec to = specOfCopies(spec, copied);
  if (copied.a)
    add(a_, spec.batch, spec.m, spec.k, spec.a, to.a);
  if (copied.b)
    add(b_, spec.batch, spec.k, spec.n, spec.b, to.b);
  if (copied.c) {
    add(c_, spec.batch, spec.m, spec.n, spec.c, to.c);
    back_.emplace(c_->plan.target(), c_->plan.source());
  }
  copies_.takeForPlans(bytes_);
}

std::string CopiedProduct::describe() const {
  return product_->describe() + ", copies " + std::to_string(bytes_) + (a_ ? " a" : "") + (b_ ? " b" : "") +
         (c_ ? " c" : "");
}

void CopiedProduct::run(const void *a, const void *b, void *c, const void *bias) const {
  copies_.use(bytes_, "copies of the operands of a product", [&](std::byte *memory) {
    auto copied = [&](const std::optional<Copy> &copy, const void *operand) {
      if (!copy)
        return operand;
      relayoutOnDevice(kernels_, copy->plan, static_cast<const std::byte *>(operand), memory + copy->offset);
      return static_cast<const void *>(memory + copy->offset);
    };
    if (c_ && accumulates_)
      copied(c_, c);
    product_->run(copied(a_, a), copied(b_, b), c_ ? memory + c_->offset : c, bias);
    if (c_)
      relayoutOnDevice(kernels_, *back_, memory + c_->offset, static_cast<std::byte *>(c));
  });
}

} // namespace segue::inline runtime::cuda
