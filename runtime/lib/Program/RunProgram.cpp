//===- RunProgram.cpp - walking the operations ----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The half of PreparedProgram that happens at each submit: check and align the
// inputs, place the outputs, walk the operations. Memory is taken for outputs
// and for the arena alone, and comes back from the device's cache from the
// second run on.
//
//===----------------------------------------------------------------------===//

#include "PreparedProgram.h"
#include "segue/runtime/Error.h"
#include <cstring>

namespace segue::inline runtime {

//===----------------------------------------------------------------------===//
// Inputs and outputs
//===----------------------------------------------------------------------===//

/// Quick answer for what nearly every input is: the very description, or dense
/// on both sides. False means that `hasLayout` must decide.
static bool isPlainlyInPlace(const Tensor &tensor, const Value &wanted) {
  if (tensor.sharedDesc() == wanted.sharedDesc)
    return true;
  const Layout &given = tensor.desc().layout, &layout = wanted.desc().layout;
  return given.space == layout.space && given.strides.empty() && layout.strides.empty() &&
         given.alignment >= layout.alignment && given.tile.empty() && given.storage == layout.storage;
}

void PreparedProgram::checkInputs(const DeviceRef &device, const std::vector<Tensor> &inputs) const {
  auto where = [&](size_t i) {
    return "program \"" + info_.name + "\", input " + std::to_string(i) + " (\"" + info_.inputs[i].name + "\")";
  };
  if (inputs.size() != info_.inputs.size())
    throw Error(ErrorCode::InvalidArgument, "program \"" + info_.name + "\": " + std::to_string(inputs.size()) +
                                                " inputs given, " + std::to_string(info_.inputs.size()) + " declared");
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i])
      throw Error(ErrorCode::MissingInput,
                  where(i) + ": no tensor given; " + info_.inputs[i].desc().str() + " declared");
    const TensorDesc &given = inputs[i].desc(), &wanted = info_.inputs[i].desc();
    auto mismatch = [&](const std::string &wayOut) {
      return Error(ErrorCode::LayoutMismatch,
                   where(i) + ": " + given.str() + " given, " + wanted.str() + " declared; " + wayOut);
    };
    if (given.shape != wanted.shape)
      throw mismatch("compile for this shape");
    if (given.element != wanted.element)
      throw mismatch("element types never change by themselves, convert with toLayout");
    if (inputs[i].device() != device)
      throw mismatch("it is on device \"" + inputs[i].device()->name() + "\", the program runs on another, \"" +
                     device->name() + "\"; move it with toLayout");
  }
  for (const Alias &alias : info_.aliases) {
    if (!alias.required)
      continue;
    const Tensor &tensor = inputs[alias.input];
    if (!tensor.storage()->isWritable())
      throw Error(ErrorCode::InvalidArgument, where(alias.input) + " is written in place, and its memory is read-only");
    if (!isPlainlyInPlace(tensor, info_.inputs[alias.input]) &&
        !hasLayout(tensor, info_.inputs[alias.input].desc().layout))
      throw Error(ErrorCode::LayoutMismatch, where(alias.input) + ": " + tensor.desc().str() + " aligned to " +
                                                 std::to_string(tensor.desc().layout.alignment) + " bytes given, " +
                                                 info_.inputs[alias.input].desc().str() + " aligned to " +
                                                 std::to_string(info_.inputs[alias.input].desc().layout.alignment) +
                                                 " declared; it is written in place, convert it with toLayout first");
  }
}

void PreparedProgram::alignInputs(const DeviceRef &device, std::vector<Tensor> &inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    ++counters_.inputs;
    const Value &wanted = info_.inputs[i];
    if (isPlainlyInPlace(inputs[i], wanted) || hasLayout(inputs[i], wanted.desc().layout)) {
      ++counters_.inputsElided;
      continue;
    }
    inputs[i] = toLayout(device, inputs[i], wanted.desc());
    ++counters_.inputsConverted;
    counters_.convertedBytes += inputs[i].elementCount() * byteSize(inputs[i].element());
  }
}

std::vector<Tensor> PreparedProgram::placeOutputs(const DeviceRef &device, std::vector<Tensor> &inputs) {
  std::vector<Tensor> outputs(info_.outputs.size());
  for (const Alias &alias : info_.aliases) {
    Tensor &input = inputs[alias.input];
    if (alias.required) {
      outputs[alias.output] = input;
      input.storage()->bumpVersion();
    } else if (input.isSoleOwner() && input.storage()->isWritable()) {
      outputs[alias.output] = input;
      ++counters_.donations;
    }
  }
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!outputs[i])
      outputs[i] = Tensor::empty(device, info_.outputs[i].sharedDesc);
  return outputs;
}

//===----------------------------------------------------------------------===//
// Operations
//===----------------------------------------------------------------------===//

std::string PreparedProgram::label(const Op &op) const {
  if (auto *launch = std::get_if<LaunchOp>(&op.body))
    return "launch " + image_.root().kernels()->Get(launch->kernelIndex)->name()->str();
  if (std::get_if<MatmulOp>(&op.body))
    return "matmul";
  if (std::get_if<AttentionOp>(&op.body))
    return "attention";
  if (std::get_if<AttentionGradOp>(&op.body))
    return "attention_grad";
  if (std::get_if<CopyOp>(&op.body))
    return "to_layout";
  if (std::get_if<FillOp>(&op.body))
    return "fill";
  return "event";
}

void PreparedProgram::failLaunch(const Op &op, const LaunchOp &launch, int64_t code) const {
  std::string where = image_.location(op.location);
  std::string message = "program \"" + info_.name + "\", kernel \"" +
                        image_.root().kernels()->Get(launch.kernelIndex)->name()->str() + "\"" +
                        (where.empty() ? "" : " at " + where) + ": ";
  if (code < 1 || uint64_t(code) > launch.args.size())
    throw Error(ErrorCode::InvalidArgument, message + "failed with code " + std::to_string(code));
  const BufferSource &source = buffers_[launch.args[size_t(code - 1)].buffer];
  message += "argument " + std::to_string(code - 1);
  if (source.kind == schema::BufferKind::input)
    message += " (input \"" + info_.inputs[source.index].name + "\")";
  throw Error(ErrorCode::IndexOutOfRange, message + " holds an index outside of its table");
}

template <typename T> static void fillWith(std::byte *target, uint64_t bytes, uint64_t pattern) {
  T value;
  std::memcpy(&value, &pattern, sizeof(T));
  auto *elements = reinterpret_cast<T *>(target);
  std::fill(elements, elements + bytes / sizeof(T), value);
}

void PreparedProgram::execute(const Op &op, const Program &program, std::vector<Tensor> &inputs, EventSink *events) {
  if (auto *launch = std::get_if<LaunchOp>(&op.body)) {
    for (size_t i = 0; i < launch->args.size(); ++i)
      launchArgs_[i] = at(launch->args[i]);
    if (int64_t code =
            device_.launch(launch->kernel, launchArgs_.data(), launch->range, launch->grain, launch->threads))
      failLaunch(op, *launch, code);
  } else if (auto *matmul = std::get_if<MatmulOp>(&op.body)) {
    matmul->plan->run(at(matmul->a), at(matmul->b), at(matmul->c), matmul->hasBias ? at(matmul->bias) : nullptr);
  } else if (auto *attention = std::get_if<AttentionOp>(&op.body)) {
    attention->plan->run({at(attention->q), at(attention->k), at(attention->v),
                          attention->hasMask ? at(attention->mask) : nullptr, at(attention->out),
                          reinterpret_cast<float *>(at(attention->lse))});
  } else if (auto *grad = std::get_if<AttentionGradOp>(&op.body)) {
    grad->plan->run({at(grad->q), at(grad->k), at(grad->v), grad->hasMask ? at(grad->mask) : nullptr, at(grad->out),
                     reinterpret_cast<const float *>(at(grad->lse)), at(grad->gradOut), at(grad->gradQ),
                     at(grad->gradK), at(grad->gradV)});
  } else if (auto *copy = std::get_if<CopyOp>(&op.body)) {
    copy->plan.run(at(copy->source), at(copy->target), device_.threads());
  } else if (auto *fill = std::get_if<FillOp>(&op.body)) {
    std::byte *target = at(fill->target);
    switch (fill->patternBytes) {
    case 1:
      return fillWith<uint8_t>(target, fill->bytes, fill->pattern);
    case 2:
      return fillWith<uint16_t>(target, fill->bytes, fill->pattern);
    case 4:
      return fillWith<uint32_t>(target, fill->bytes, fill->pattern);
    default:
      return fillWith<uint64_t>(target, fill->bytes, fill->pattern);
    }
  } else if (auto *release = std::get_if<FreeOp>(&op.body)) {
    inputs[release->input] = Tensor();
  } else if (events) {
    const auto &event = std::get<EventOp>(op.body);
    if (event.kind == schema::CommandBody::BlockBegin)
      events->onBlockBegin(program, event.block);
    else if (event.kind == schema::CommandBody::BlockEnd)
      events->onBlockEnd(program);
    else if (event.kind == schema::CommandBody::Save)
      events->onSave(program, event.index);
    else
      events->onRestore(program, event.index);
  }
}

std::vector<Tensor> PreparedProgram::run(const DeviceRef &device, const Program &program, std::vector<Tensor> inputs,
                                         EventSink *events) {
  std::lock_guard lock(mutex_);
  checkInputs(device, inputs);
  ++counters_.submits;
  alignInputs(device, inputs);
  std::shared_ptr<Storage> arena;
  if (arenaBytes_)
    arena = Storage::allocate(device, arenaSpace_, arenaBytes_, arenaAlignment_);
  std::vector<Tensor> outputs = placeOutputs(device, inputs);

  for (size_t i = 0; i < buffers_.size(); ++i) {
    const BufferSource &source = buffers_[i];
    switch (source.kind) {
    case schema::BufferKind::input:
      bases_[i] = inputs[source.index].bytes();
      break;
    case schema::BufferKind::output:
      bases_[i] = outputs[source.index].bytes();
      break;
    case schema::BufferKind::arena:
      bases_[i] = arena ? arena->data() + source.offset : nullptr;
      break;
    case schema::BufferKind::constant:
      bases_[i] = const_cast<std::byte *>(image_.segment(source.index).data()) + source.offset;
      break;
    }
  }

  for (Op &op : ops_) {
    if (!profiling_) {
      execute(op, program, inputs, events);
      continue;
    }
    double start = device_.seconds();
    execute(op, program, inputs, events);
    op.seconds += device_.seconds() - start;
    ++op.calls;
  }
  return outputs;
}

//===----------------------------------------------------------------------===//
// What the runs have cost
//===----------------------------------------------------------------------===//

SubmitCounters PreparedProgram::counters() const {
  std::lock_guard lock(mutex_);
  return counters_;
}

void PreparedProgram::setProfiling(bool on) {
  std::lock_guard lock(mutex_);
  profiling_ = on;
}

std::vector<CommandProfile> PreparedProgram::profile() const {
  std::lock_guard lock(mutex_);
  std::vector<CommandProfile> profile;
  for (const Op &op : ops_)
    if (op.calls && !std::holds_alternative<EventOp>(op.body) && !std::holds_alternative<FreeOp>(op.body))
      profile.push_back({label(op), image_.location(op.location), op.seconds, op.calls});
  return profile;
}

} // namespace segue::inline runtime
