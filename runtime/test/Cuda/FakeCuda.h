//===- FakeCuda.h - a CUDA driver without a GPU -----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A library in the place of libcuda.so.1 behind the driver of `cuda:N`, so that its code
// runs in every check. It behaves as the driver was measured to (docs/cuda.md), at its
// worst within what is allowed:
//
//   - 24 GPUs of 256 MiB. What is given to streams runs on a thread per GPU, in any order
//     that streams and events allow, drawn from the number of the GPU and a seed: at times
//     nothing until somebody waits, at times one stream far ahead of or behind the others.
//   - Device addresses cannot be read or written by the host. Ranges are reserved, chunks
//     mapped, and what touches an address that is not mapped when its turn comes ends the
//     GPU with ILLEGAL_ADDRESS, for good. So does an argument that is no multiple of what
//     its kernel takes it for.
//   - Pageable memory is read when a copy is asked for, and held back for one to the host.
//   - Host functions run on one thread; every call of the driver there is refused.
//   - Kernels are host functions of the name of their PTX entry (FakeKernels.cpp), the same
//     sources compiled for this machine if they are part of the runtime, or twins that the
//     compiler wrote to the folder FAKE_CUDA_TWINS. A cubin runs as the PTX that the compiler
//     left there for it, and on GPUs of its own generation alone.
//   - A stream that is captured does nothing: what it is given becomes a graph, and a launch
//     gives all of that to a stream. Whoever waits for it, or gives it what no graph can hold,
//     spoils the capture.
//   - Calls fail where a test says so.
//
// A process that ends with misuse that nobody has asked for says so, and ends with 86.
//
// GPU 8 cannot map memory. FAKE_CUDA_VERSION and FAKE_CUDA_DEVICES in the environment set
// the version of the driver and the number of GPUs, before the library is opened, and
// FAKE_CUDA_CAPABILITY their compute capability times ten (90).
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_CUDA_FAKECUDA_H
#define SEGUE_TEST_CUDA_FAKECUDA_H

#include "TwinBlocks.h"
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace fakecuda {

/// Calls of `call` ("cuMemcpyHtoDAsync_v2") fail with `result`: `count` of them after the
/// next `skipped`.
void failCalls(const std::string &call, int result, unsigned skipped, unsigned count);
/// Lets the host wait so much longer for events than they take, as on a busy machine.
void waitLonger(int microseconds);
/// Forgets all of them, the misuse, and the calls that were counted.
void reset();
/// Returns the number of calls of `call` since reset, of all threads and GPUs.
uint64_t callCount(const std::string &call);

/// From here on, all GPUs draw from `seed` what they do next. FAKE_CUDA_SEED in the environment is the first.
void reseed(uint64_t seed);

/// Returns, a line each, what no driver would have said but no program may do, since
/// reset: calls in a host function or without a context, operations of two streams on the same
/// bytes of which none waits for the other (FakeOrder.h), pageable memory in a copy behind
/// work that is pending, streams, events and graphs that are destroyed before their work is
/// done.
std::string misuse();

/// Bytes of chunks, stacks and nothing else that GPU `device` has given out.
uint64_t takenBytes(int device);
/// Bytes that the streams of a GPU keep in its cache, those of each by themselves.
uint64_t keptBytes(int device);
/// Ranges that are reserved and chunks that are mapped on a GPU.
uint64_t mappedChunks(int device);

//===----------------------------------------------------------------------===//
// For FakeKernels.cpp
//===----------------------------------------------------------------------===//

/// Thrown by `at`.
struct IllegalAddress {};

/// Memory behind a device address, or page-locked memory: throws IllegalAddress if it is
/// neither.
void *at(uint64_t address, uint64_t bytes);

/// A kernel that is part of the runtime, by its twin.
struct BuiltinTwin {
  const char *name;
  segue::TwinEntry entry;
  /// The bytes of its struct, and the addresses at its beginning.
  size_t bytes, addresses;
  bool flushesDenormals;
};
/// Null if there is none of that name.
const BuiltinTwin *findBuiltin(const std::string &name);
/// Runs all blocks, in random order by `seed`, with a copy of the struct.
void runBuiltin(const BuiltinTwin &twin, std::vector<std::byte> args, unsigned blocks, unsigned threads, uint64_t seed);

struct Launch {
  /// The values of the parameters.
  std::span<const uint64_t> parameters;
  unsigned blocks = 0, threads = 0;
};
using Kernel = void (*)(const Launch &launch, unsigned block);
/// Null if there is none of that name.
Kernel findKernel(const std::string &name);
/// The kernel `name` of the PTX `image` in the folder FAKE_CUDA_TWINS of the environment,
/// where segue-compile --gpu-twins wrote it. Null if there is none.
segue::TwinEntry findTwin(const std::string &image, const std::string &name);
/// Runs all blocks, in random order by `seed`. The last three parameters are range, piece and fault, the others
/// addresses. Throws IllegalAddress for those of no memory, and where threads wait for ever.
void runBlocks(segue::TwinEntry twin, const Launch &launch, uint64_t seed);

} // namespace fakecuda

/// callCount for programs that are not C++.
extern "C" uint64_t fakeCudaCallCount(const char *call);
#pragma GCC visibility pop

#endif // SEGUE_TEST_CUDA_FAKECUDA_H
