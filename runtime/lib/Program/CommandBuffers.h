//===- CommandBuffers.h - the operands of a command -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_PROGRAM_COMMANDBUFFERS_H
#define SEGUE_LIB_PROGRAM_COMMANDBUFFERS_H

#include "BinaryImage.h"
#include <initializer_list>

namespace segue::inline runtime {

/// Calls `touch(buffer, written)` for each operand; one that is written may be read, too.
template <typename Touch>
void forEachBuffer(const schema::Binary &root, const schema::Command &command, Touch &&touch) {
  auto views = [&](bool written, std::initializer_list<const schema::View *> all) {
    for (const schema::View *view : all)
      if (view)
        touch(view->buffer(), written);
  };
  if (const schema::Launch *launch = command.body_as_Launch()) {
    auto args = numbers(launch->args());
    size_t firstWritten = args.size() - root.kernels()->Get(launch->kernel())->outputs();
    for (size_t i = 0; i < args.size(); ++i)
      touch(args[i], i >= firstWritten);
  } else if (const schema::Matmul *matmul = command.body_as_Matmul()) {
    views(false, {matmul->a(), matmul->b(), matmul->bias()});
    views(true, {matmul->c()});
  } else if (const schema::Attention *at = command.body_as_Attention()) {
    views(false, {at->q(), at->k(), at->v(), at->mask(), at->seed(), at->step()});
    views(true, {at->out(), at->lse()});
  } else if (const schema::AttentionGrad *grad = command.body_as_AttentionGrad()) {
    views(false, {grad->q(), grad->k(), grad->v(), grad->mask(), grad->seed(), grad->step(), grad->out(), grad->lse(),
                  grad->grad_out()});
    views(true, {grad->grad_q(), grad->grad_k(), grad->grad_v()});
  } else if (const schema::LibraryCall *call = command.body_as_LibraryCall()) {
    for (const schema::View *view : *call->reads())
      touch(view->buffer(), false);
    for (const schema::View *view : *call->writes())
      touch(view->buffer(), true);
  } else if (const schema::ToLayout *copy = command.body_as_ToLayout()) {
    views(false, {copy->source()});
    views(true, {copy->target()});
  } else if (const schema::Fill *fill = command.body_as_Fill()) {
    touch(fill->buffer(), true);
  }
}

} // namespace segue::inline runtime

#endif // SEGUE_LIB_PROGRAM_COMMANDBUFFERS_H
