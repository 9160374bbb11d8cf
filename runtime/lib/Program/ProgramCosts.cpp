//===- ProgramCosts.cpp - what the commands of a program cost -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/ProgramCosts.h"
#include "CostOfCommand.h"

namespace segue::inline runtime {

static uint64_t bytesOf(const schema::View *view) {
  if (!view)
    return 0;
  uint64_t elements = *checkedElementCount(numbers(view->shape()));
  StorageType storage{int8_t(view->storage())};
  return isGroupStorage(storage) ? elements / 2 : elements * storedByteSize(ElementType(view->element()), storage);
}

static uint64_t bytesOf(std::initializer_list<const schema::View *> views) {
  uint64_t bytes = 0;
  for (const schema::View *view : views)
    bytes += bytesOf(view);
  return bytes;
}

LibraryCallSpec librarySpec(const schema::LibraryCall &call) {
  LibraryCallSpec spec;
  spec.operation = call.operation()->str();
  auto read = [](const auto &views, std::vector<LibraryTensor> &tensors) {
    for (const schema::View *view : views) {
      auto shape = numbers(view->shape());
      tensors.push_back({ElementType(view->element()), {shape.begin(), shape.end()}});
    }
  };
  read(*call.reads(), spec.reads);
  read(*call.writes(), spec.writes);
  auto given = numbers(call.numbers());
  spec.numbers.assign(given.begin(), given.end());
  return spec;
}

std::string kindOf(const schema::Command &command) {
  const schema::LibraryCall *call = command.body_as_LibraryCall();
  return call ? call->operation()->str() : schema::EnumNameCommandBody(command.body_type());
}

/// Returns the flops of `products` of [rows, keys] per head; half of them if they are causal.
template <typename Table> static uint64_t attentionFlops(const Table &attention, uint64_t products) {
  auto q = numbers(attention.q()->shape()), k = numbers(attention.k()->shape());
  uint64_t flops = 2 * products * uint64_t(q[0]) * uint64_t(q[1]) * uint64_t(q[2]) * uint64_t(k[2]) * uint64_t(q[3]);
  return attention.causal() ? flops / 2 : flops;
}

static WorkCost costOf(const schema::Binary &root, const schema::Launch &launch) {
  const schema::Kernel &kernel = *root.kernels()->Get(launch.kernel());
  WorkCost cost;
  // An estimate that nobody verified.
  cost.flops = checkedMultiply(launch.range(), kernel.flops_per_unit()).value_or(UINT64_MAX);
  // Verified not to overflow; the sum may wrap.
  for (uint32_t i = 0; i < countOf(launch.args()); ++i)
    cost.memoryBytes += kernel.fixed_bytes()->Get(i) + launch.range() * kernel.bytes_per_unit()->Get(i);
  return cost;
}

WorkCost costOfCommand(const schema::Binary &root, const schema::Program &program, const schema::Command &command) {
  WorkCost cost;
  switch (command.body_type()) {
  case schema::CommandBody::Launch:
    return costOf(root, *command.body_as_Launch());
  case schema::CommandBody::Matmul: {
    const schema::Matmul &m = *command.body_as_Matmul();
    auto a = numbers(m.a()->shape()), c = numbers(m.c()->shape());
    cost.memoryBytes = bytesOf({m.a(), m.b(), m.c(), m.bias()});
    cost.flops = 2 * uint64_t(c[0]) * uint64_t(c[1]) * uint64_t(c[2]) * uint64_t(a[2]);
    return cost;
  }
  case schema::CommandBody::Attention: {
    const schema::Attention &a = *command.body_as_Attention();
    cost.memoryBytes = bytesOf({a.q(), a.k(), a.v(), a.mask(), a.out(), a.lse()});
    cost.flops = attentionFlops(a, 2);
    return cost;
  }
  case schema::CommandBody::AttentionGrad: {
    const schema::AttentionGrad &a = *command.body_as_AttentionGrad();
    cost.memoryBytes =
        bytesOf({a.q(), a.k(), a.v(), a.mask(), a.out(), a.lse(), a.grad_out(), a.grad_q(), a.grad_k(), a.grad_v()});
    cost.flops = attentionFlops(a, 5);
    return cost;
  }
  case schema::CommandBody::LibraryCall: {
    LibraryCallSpec spec = librarySpec(*command.body_as_LibraryCall());
    for (const auto *tensors : {&spec.reads, &spec.writes})
      for (const LibraryTensor &tensor : *tensors)
        cost.memoryBytes += uint64_t(tensor.elements()) * byteSize(tensor.element);
    cost.flops = findLibraryOperation(spec.operation)->flops(spec);
    return cost;
  }
  case schema::CommandBody::ToLayout:
    cost.memoryBytes = bytesOf({command.body_as_ToLayout()->source(), command.body_as_ToLayout()->target()});
    return cost;
  case schema::CommandBody::Fill:
    cost.memoryBytes = program.buffers()->Get(command.body_as_Fill()->buffer())->bytes();
    return cost;
  default:
    return cost;
  }
}

std::vector<CommandCost> commandCosts(const Program &program) {
  const BinaryImage &image = *program.image();
  const schema::Program &table = *image.root().programs()->Get(uint32_t(program.index()));
  std::vector<CommandCost> costs;
  std::vector<std::string> blocks;
  for (uint32_t i = 0; i < countOf(table.commands()); ++i) {
    const schema::Command &command = *table.commands()->Get(i);
    if (auto *begin = command.body_as_BlockBegin())
      blocks.push_back(begin->name()->str());
    else if (command.body_as_BlockEnd())
      blocks.pop_back();
    WorkCost cost = costOfCommand(image.root(), table, command);
    if (cost.flops || cost.memoryBytes)
      costs.push_back({kindOf(command), blocks.empty() ? "" : blocks.back(),
                       cost.flops, cost.memoryBytes, image.location(command.location())});
  }
  return costs;
}

std::vector<RecomputeCost> recomputeCosts(const Program &program) {
  const schema::Program &table = *program.image()->root().programs()->Get(uint32_t(program.index()));
  std::vector<RecomputeCost> costs;
  for (uint32_t i = 0; i < countOf(table.save_points()); ++i) {
    const schema::SavePoint &point = *table.save_points()->Get(i);
    costs.push_back({point.recompute_flops(), point.recompute_bytes()});
  }
  return costs;
}

} // namespace segue::inline runtime
