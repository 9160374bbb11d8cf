//===- PerformCommand.cpp - what a queue runs -----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One operation on addresses that were taken when it was queued. On devices with
// queues this is another thread's work, and an error has nobody to be thrown at:
// it becomes the outcome of the run's outputs, and the operations after it do
// nothing.
//
//===----------------------------------------------------------------------===//

#include "PreparedProgram.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <cstring>

namespace segue::inline runtime {

void PreparedProgram::failLaunch(const Op &op, int64_t code) const {
  std::string where = image_.location(op.location);
  std::string message = "program \"" + info_.name + "\", kernel \"" + std::string(op.label) + "\"" +
                        (where.empty() ? "" : " at " + where) + ": ";
  if (code < 1 || uint64_t(code) > op.operandCount)
    throw Error(ErrorCode::InvalidArgument, message + "failed with code " + std::to_string(code));
  uint32_t slot = operands_[op.firstOperand + uint32_t(code - 1)].slot;
  message += "argument " + std::to_string(code - 1);
  if (slot < inputs_.size())
    message += " (input \"" + info_.inputs[slot].name + "\")";
  throw Error(ErrorCode::IndexOutOfRange, message + " holds an index outside of its table");
}

/// Verification lets no such file pass; this is for what it overlooks.
void PreparedProgram::failOnHost(const Op &op, uint32_t operand) const {
  std::string where = image_.location(op.location);
  throw Error(ErrorCode::InvalidArgument,
              "program \"" + info_.name + "\", " + std::string(op.label) + (where.empty() ? "" : " at " + where) +
                  ": operand " + std::to_string(operand) + " is not in the memory of device \"" + device_.name() +
                  "\", where commands compute; only copies reach the host's");
}

template <typename T> static void fillWith(void *target, uint64_t bytes, uint64_t pattern) {
  T value;
  std::memcpy(&value, &pattern, sizeof(T));
  auto *elements = static_cast<T *>(target);
  std::fill(elements, elements + bytes / sizeof(T), value);
}

void PreparedProgram::perform(const Op &op, void *const *args) {
  if (auto *launch = std::get_if<LaunchOp>(&op.body)) {
    if (int64_t code = device_.launch(launch->kernel, args, launch->range, launch->grain, launch->threads))
      failLaunch(op, code);
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
    attention->plan->run({args[0], args[1], args[2], args[3], args[4], static_cast<float *>(args[5])});
  } else if (auto *grad = std::get_if<AttentionGradOp>(&op.body)) {
    grad->plan->run({args[0], args[1], args[2], args[3], args[4], static_cast<const float *>(args[5]), args[6], args[7],
                     args[8], args[9]});
  } else if (auto *copy = std::get_if<CopyOp>(&op.body)) {
    device_.relayout(*copy->plan, args[0], args[1]);
  } else {
    const FillOp &fill = std::get<FillOp>(op.body);
    switch (fill.patternBytes) {
    case 1:
      return fillWith<uint8_t>(args[0], fill.bytes, fill.pattern);
    case 2:
      return fillWith<uint16_t>(args[0], fill.bytes, fill.pattern);
    case 4:
      return fillWith<uint32_t>(args[0], fill.bytes, fill.pattern);
    default:
      return fillWith<uint64_t>(args[0], fill.bytes, fill.pattern);
    }
  }
}

void PreparedProgram::performTimed(Op &op, void *const *args) {
  double start = device_.seconds();
  perform(op, args);
  double seconds = device_.seconds() - start;
  std::lock_guard lock(profileMutex_);
  op.seconds += seconds;
  ++op.calls;
}

void PreparedProgram::performQueued(Run &run, Op &op) noexcept {
  if (run.failed.load(std::memory_order_relaxed))
    return;
  PreparedProgram &self = *run.owner;
  for (uint32_t i = op.before.begin; i < op.before.end; ++i) {
    const auto &outcome = run.outcomes[self.marks_[i].slot];
    if (const Error *error = outcome ? outcome->error() : nullptr)
      return self.fail(run, *error, /*asItIs=*/true);
  }
  if (std::holds_alternative<TransferOp>(op.body)) { // its copy has ended; how, its target knows
    const auto &outcome = run.outcomes[self.operands_[op.firstOperand + op.firstWritten].slot];
    if (const Error *error = outcome ? outcome->error() : nullptr)
      self.fail(run, *error, /*asItIs=*/true);
    return;
  }
  try {
    void *const *args = run.args.data() + op.firstOperand;
    if (self.profiling_.load(std::memory_order_relaxed))
      self.performTimed(op, args);
    else
      self.perform(op, args);
  } catch (const Error &error) {
    self.fail(run, error, /*asItIs=*/false);
  } catch (const std::exception &error) {
    self.fail(run, Error(ErrorCode::InvalidArgument, "program \"" + self.info_.name + "\": " + error.what()), false);
  }
}

/// Outputs that are not written carry the first cause; what was written by the
/// program before it failed is not told apart.
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
