//===- Executor.h - runs a program on a device ------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An Executor is a program made ready for a device: kernels found, library
// calls planned, every view resolved to buffer and offset, the arena there.
// To run it is to walk a flat vector. What was made ready is kept with the
// binary, one per program and device, and shared by all executors of the two:
// an Executor is a handle, cheap to make again and to copy.
//
//   std::vector<Tensor> y = submit(device, binary.program("forward"), {x, w});
//   std::vector<Tensor> z = submit(device, other.program("forward"), std::move(y));
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PROGRAM_EXECUTOR_H
#define SEGUE_RUNTIME_PROGRAM_EXECUTOR_H

#include "segue/runtime/Program/Binary.h"
#include "segue/runtime/Program/Events.h"
#include "segue/runtime/Tensor/Tensor.h"

namespace segue::inline runtime {

/// SubmitCounters hold what aligning inputs has cost so far.
/// inputs = inputsElided + inputsConverted + cacheHits.
struct SubmitCounters {
  uint64_t submits = 0, inputs = 0, inputsElided = 0, inputsConverted = 0, cacheHits = 0;
  /// The bytes that conversions have written.
  uint64_t convertedBytes = 0;
  /// The outputs that took the storage of a donated input.
  uint64_t donations = 0;
};

class PreparedProgram;

/// Makes all files let go of what they keep ready for `device`: constants and arenas on it,
/// kernels, and the device itself. A file that is loaded keeps this for the last
/// `mostPreparedDevices` devices that a program of it ran on, while one is at work, and while an Executor of it is there; call
/// this when a device is no longer used and its files still are. Waits for the work of the programs. No other thread
/// may submit to the device meanwhile.
void releasePrograms(const DeviceRef &device);
inline constexpr size_t mostPreparedDevices = 8;

class Executor {
public:
  // An Executor that was moved from is what it was.
  Executor(const Executor &) = default;
  Executor &operator=(const Executor &) = default;

  /// Makes `program` ready, if it is not. Throws NativeCodeRefused, Unsupported
  /// (no kernel for this CPU, a library call that no engine has), DeviceOom.
  /// Costs milliseconds the first time: plans library calls and maps kernels.
  Executor(DeviceRef device, Program program);

  /// Aligns the inputs, runs, and returns one tensor per output. All inputs are
  /// checked before anything is converted (shape, element type, device,
  /// losslessness, in index order); an input that is in place is not copied.
  /// A tensor that nobody else holds is donated: its storage may become an
  /// output's, and it is freed after its last use. Inputs with a required alias
  /// are written in place.
  ///
  /// On a device with queues the outputs are PENDING on return: the work that
  /// fills them waits in the queue for what it reads. A kernel that fails there
  /// makes the outputs FAILED and the rest of the program void; whoever reads
  /// them, `wait` included, gets the error.
  ///
  /// An output lies as declared, or in an alternative that it lists; its desc()
  /// tells. That is so where device_l1 is full, and after readers have converted
  /// it twice to what an alternative would have been: the next run writes that,
  /// to the same values, and nothing is copied any more.
  ///
  /// Throws LayoutMismatch, MissingInput, InvalidArgument, DeviceOom and the
  /// error of a FAILED or FREED input before anything has changed: `inputs` is
  /// as it was then. With `events`, an output's memory is taken when a command first
  /// touches it, as inputs that were given away are free by then; DeviceOom may come
  /// once the program has begun, and is then an error as one of a kernel is.
  /// IndexOutOfRange from a kernel where work runs inline, after which inputs with a
  /// required alias hold unspecified values. One thread at a time submits to a device;
  /// a second one waits.
  std::vector<Tensor> run(std::vector<Tensor> &&inputs, EventSink *events = nullptr) const;
  /// Runs with copies of the handles, so that nothing is donated.
  std::vector<Tensor> run(const std::vector<Tensor> &inputs, EventSink *events = nullptr) const;

  /// Runs for callers that keep their tensors in place: `inputs` stay, but for
  /// those marked by donate(), which are null afterwards; `outputs` are replaced,
  /// one per output. From the third submit with the same layouts on, the call
  /// neither allocates nor locks, if outputs and temporaries are small (1 MiB
  /// together) and the outputs before were dropped or are those in `outputs`.
  void run(std::span<Tensor> inputs, std::span<Tensor> outputs, EventSink *events = nullptr) const;

  const Program &program() const & { return program_; }
  Program program() && { return program_; }
  const DeviceRef &device() const & { return device_; }
  DeviceRef device() && { return device_; }
  SubmitCounters counters() const;

private:
  DeviceRef device_;
  Program program_;
  std::shared_ptr<PreparedProgram> prepared_;
};

/// Returns Executor(device, program).run(inputs).
std::vector<Tensor> submit(const DeviceRef &device, const Program &program, std::vector<Tensor> &&inputs,
                           EventSink *events = nullptr);
std::vector<Tensor> submit(const DeviceRef &device, const Program &program, const std::vector<Tensor> &inputs,
                           EventSink *events = nullptr);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PROGRAM_EXECUTOR_H
