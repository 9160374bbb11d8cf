//===- PreparedProgram.h - a program made ready for a device ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The commands of a verified program as a flat vector of operations: kernels
// found, library calls planned, copies planned, operands as buffer and offset.
// Kept by the binary's image, one per device; refers to both and owns neither.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_PROGRAM_PREPAREDPROGRAM_H
#define SEGUE_LIB_PROGRAM_PREPAREDPROGRAM_H

#include "BinaryImage.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <variant>

namespace segue::inline runtime {

class PreparedProgram {
public:
  PreparedProgram(Device &device, const BinaryImage &image, size_t program);

  /// `device` and `program` are those of the constructor, by their handles.
  std::vector<Tensor> run(const DeviceRef &device, const Program &program, std::vector<Tensor> inputs,
                          EventSink *events);

  SubmitCounters counters() const;
  void setProfiling(bool on);
  std::vector<CommandProfile> profile() const;

private:
  /// A place in a buffer.
  struct Operand {
    uint32_t buffer = 0;
    uint64_t offset = 0;
  };
  struct LaunchOp {
    KernelFunction kernel;
    uint32_t kernelIndex;
    std::vector<Operand> args;
    int64_t range, grain;
    int threads;
  };
  struct MatmulOp {
    std::shared_ptr<const MatmulPlan> plan;
    Operand a, b, c, bias;
    bool hasBias;
  };
  struct AttentionOp {
    std::shared_ptr<const AttentionPlan> plan;
    Operand q, k, v, mask, out, lse;
    bool hasMask;
  };
  struct AttentionGradOp {
    std::shared_ptr<const AttentionGradPlan> plan;
    Operand q, k, v, mask, out, lse, gradOut, gradQ, gradK, gradV;
    bool hasMask;
  };
  struct CopyOp {
    CopyPlan plan;
    Operand source, target;
  };
  struct FillOp {
    Operand target;
    uint64_t bytes, pattern;
    uint32_t patternBytes;
  };
  struct FreeOp {
    uint32_t input;
  };
  /// Only told to the event sink.
  struct EventOp {
    schema::CommandBody kind;
    uint32_t index;
    std::string_view block;
  };
  struct Op {
    std::variant<LaunchOp, MatmulOp, AttentionOp, AttentionGradOp, CopyOp, FillOp, FreeOp, EventOp> body;
    int32_t location;
    double seconds = 0;
    uint64_t calls = 0;
  };
  struct BufferSource {
    schema::BufferKind kind;
    uint32_t index;
    uint64_t offset;
  };

  void prepare(const schema::Command &command);
  LaunchOp prepareLaunch(const schema::Launch &launch);
  MatmulOp prepareMatmul(const schema::Matmul &matmul);
  template <typename Table> AttentionSpec attentionSpec(const Table &attention);

  void checkInputs(const DeviceRef &device, const std::vector<Tensor> &inputs) const;
  void alignInputs(const DeviceRef &device, std::vector<Tensor> &inputs);
  std::vector<Tensor> placeOutputs(const DeviceRef &device, std::vector<Tensor> &inputs);
  void execute(const Op &op, const Program &program, std::vector<Tensor> &inputs, EventSink *events);
  [[noreturn]] void failLaunch(const Op &op, const LaunchOp &launch, int64_t code) const;
  std::string label(const Op &op) const;

  std::byte *at(const Operand &operand) const { return bases_[operand.buffer] + operand.offset; }

  Device &device_;
  const BinaryImage &image_;
  const ProgramInfo &info_;
  std::vector<Op> ops_;
  std::vector<BufferSource> buffers_;
  uint64_t arenaBytes_ = 0;
  uint32_t arenaAlignment_ = 64;
  Space arenaSpace_ = Space::DeviceDram;

  // One run at a time; everything below belongs to it.
  mutable std::mutex mutex_;
  /// Start of each buffer during a run.
  std::vector<std::byte *> bases_;
  std::vector<void *> launchArgs_;
  SubmitCounters counters_;
  bool profiling_ = false;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_PROGRAM_PREPAREDPROGRAM_H
