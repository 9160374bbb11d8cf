//===- PerformCommand.cpp - what a queue runs -----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One operation on addresses that were taken when it was queued. On devices with
// queues an error has nobody to be thrown at: it becomes the outcome of the run's
// outputs, and the operations after it do nothing, or what nobody reads.
//
//===----------------------------------------------------------------------===//

#include "PreparedProgram.h"
#include "segue/runtime/Error.h"

namespace segue::inline runtime {

Error PreparedProgram::launchError(const Op &op, int64_t code) const {
  std::string where = image_.location(op.location);
  std::string message = "program \"" + info_.name + "\", kernel \"" + std::string(op.label) + "\"" +
                        (where.empty() ? "" : " at " + where) + ": ";
  if (code < 1 || uint64_t(code) > op.operandCount)
    return Error(ErrorCode::InvalidArgument, message + "failed with code " + std::to_string(code));
  uint32_t slot = operands_[op.firstOperand + uint32_t(code - 1)].slot;
  message += "argument " + std::to_string(code - 1);
  if (slot < inputs_.size())
    message += " (input \"" + info_.inputs[slot].name + "\")";
  return Error(ErrorCode::IndexOutOfRange,
               message + " holds an index outside of its table, or a 0 by which whole numbers are divided");
}

/// Throws for an operand that the host cannot use. Verification lets no such file pass; this is for what it overlooks.
void PreparedProgram::failOnHost(const Op &op, uint32_t operand) const {
  std::string where = image_.location(op.location);
  throw Error(ErrorCode::InvalidArgument,
              "program \"" + info_.name + "\", " + std::string(op.label) + (where.empty() ? "" : " at " + where) +
                  ": operand " + std::to_string(operand) + " is not in the memory of device \"" + device_.name() +
                  "\", where commands compute; only copies reach the host's");
}

void PreparedProgram::perform(const Op &op, void *const *args) {
  auto numberAt = [&](size_t i) { return static_cast<const int64_t *>(args[i]); };
  if (auto *launch = std::get_if<LaunchOp>(&op.body)) {
    device_.launch(*launch->kernel, {args, op.operandCount}, launch->range, launch->grain, launch->threads);
  } else if (auto *matmul = std::get_if<MatmulOp>(&op.body)) {
    matmul->plan->run(args[0], args[1], args[3], args[2]);
  } else if (auto *fused = std::get_if<FusedMatmulOp>(&op.body)) {
    auto *codes = static_cast<const std::byte *>(args[1]);
    fused->plan->run({.x = args[0],
                      .codes = codes,
                      .scales = codes + fused->scales,
                      .zeroPoints = fused->zeroPoints ? codes + fused->zeroPoints : nullptr,
                      .bias = args[2],
                      .y = args[3]});
  } else if (auto *attention = std::get_if<AttentionOp>(&op.body)) {
    attention->plan->run({args[0], args[1], args[2], args[3], numberAt(4), numberAt(5), args[6],
                          static_cast<float *>(args[7])});
  } else if (auto *grad = std::get_if<AttentionGradOp>(&op.body)) {
    grad->plan->run({args[0], args[1], args[2], args[3], numberAt(4), numberAt(5), args[6],
                     static_cast<const float *>(args[7]), args[8], args[9], args[10], args[11]});
  } else if (auto *call = std::get_if<LibraryOp>(&op.body)) {
    call->plan->run({args, op.operandCount});
  } else if (auto *copy = std::get_if<CopyOp>(&op.body)) {
    device_.relayout(*copy->plan, args[0], args[1]);
  } else {
    const FillOp &fill = std::get<FillOp>(op.body);
    device_.engine().fill(args[0], fill.bytes, fill.pattern, fill.patternBytes);
  }
}

/// Performs a command on devices where commands are done at once.
void PreparedProgram::performInline(Op &op, void *const *args) {
  try {
    if (!lane_.readsClock())
      return perform(op, args);
    double start = device_.seconds();
    perform(op, args);
    noteCall(op, start, device_.seconds() - start);
  } catch (const Error &error) {
    if (auto *code = error.details<KernelFault::Code>())
      throw launchError(op, code->value);
    throw;
  }
}

//===----------------------------------------------------------------------===//
// Where they are queued
//===----------------------------------------------------------------------===//

/// False if the run or what the operation reads has failed, which is noted then.
bool PreparedProgram::mayBegin(Run &run, const Op &op) noexcept {
  if (run.failed.load(std::memory_order_relaxed))
    return false;
  PreparedProgram &self = *run.owner;
  auto hasFailed = [&](uint32_t slot) {
    const auto &outcome = run.outcomes[slot];
    const Error *error = outcome ? outcome->error() : nullptr;
    if (error)
      self.fail(run, *error, /*asItIs=*/true);
    return error != nullptr;
  };
  for (uint32_t i = op.before.begin; i < op.before.end; ++i)
    if (hasFailed(self.marks_[i].slot))
      return false;
  if (std::holds_alternative<TransferOp>(op.body)) // its copy has ended; how, its target knows
    return !hasFailed(self.operands_[op.firstOperand + op.firstWritten].slot);
  return true;
}

void PreparedProgram::giveQueued(Run &run, Op &op) {
  run.owner->perform(op, run.args.data() + op.firstOperand);
}

void PreparedProgram::endQueued(Run &run, const Op &op, const Error *error) noexcept {
  if (!error)
    return;
  PreparedProgram &self = *run.owner;
  if (auto *code = error->details<KernelFault::Code>())
    self.fail(run, self.launchError(op, code->value), /*asItIs=*/false);
  else
    self.fail(run, *error, /*asItIs=*/false);
}

/// Two pointers each: no std::function allocates for them.
Work PreparedProgram::workOf(Run &run, Op &op) {
  Run *runPointer = &run;
  Op *opPointer = &op;
  Work work;
  work.cost = op.cost;
  work.label = op.label;
  work.mayBegin = [runPointer, opPointer] { return mayBegin(*runPointer, *opPointer); };
  if (std::holds_alternative<TransferOp>(op.body))
    return work;
  work.run = [runPointer, opPointer] { giveQueued(*runPointer, *opPointer); };
  work.ended = [runPointer, opPointer](const Error *error) { endQueued(*runPointer, *opPointer, error); };
  if (!lane_.readsClock()) {
    work.command = {op.number, std::span(run.args).subspan(op.firstOperand, op.operandCount)};
    return work;
  }
  auto begin = std::make_shared<Timestamp>(), end = std::make_shared<Timestamp>();
  work.run = [this, runPointer, opPointer, begin, end] {
    device_.stamp(begin);
    giveQueued(*runPointer, *opPointer);
    device_.stamp(end);
  };
  work.ended = [this, runPointer, opPointer, begin, end](const Error *error) {
    if (begin->isKnown() && end->isKnown())
      noteCall(*opPointer, begin->seconds(), end->seconds() - begin->seconds());
    endQueued(*runPointer, *opPointer, error);
  };
  return work;
}

/// Returns the error of an output. Outputs that are not written carry the first cause;
/// those that the program wrote before it failed are not told apart.
Error PreparedProgram::failureOf(size_t output, const Error &error) const {
  return error.within("output \"" + info_.outputs[output].name + "\" of program \"" + info_.name + "\"");
}

void PreparedProgram::fail(Run &run, const Error &error, bool asItIs) noexcept {
  std::lock_guard lock(run.lateMutex);
  if (!run.failure)
    run.failure.emplace(error);
  for (size_t i = 0; i < outputs_.size(); ++i)
    if (const auto &outcome = run.outcomes[outputSlot(i)])
      outcome->fail(asItIs ? error : failureOf(i, error));
  for (size_t i = 0; run.watchesArenas && i < arenas_.size(); ++i)
    if (const auto &outcome = run.outcomes[arenaSlot(i)])
      outcome->fail(error);
  run.failed.store(true); // from here on nothing is written: all of it is said to be
}

} // namespace segue::inline runtime
