//===- Probe.h - what the parts of the probe share ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_BENCH_CUDA_PROBE_H
#define SEGUE_BENCH_CUDA_PROBE_H

#include "Driver.h"
#include <initializer_list>
#include <string>
#include <vector>

namespace probe {

constexpr size_t kib = 1024, mib = 1024 * kib, gib = 1024 * mib;

/// Prints one line of JSON. `part` is what runs, `name` a figure of it.
void report(const std::string &name, double value, const char *unit, const std::string &note = "");
void reportText(const std::string &name, const std::string &text);
void setPart(const std::string &part);

/// Name and number of an error: "CUDA_ERROR_ILLEGAL_ADDRESS (700)".
std::string nameOf(CUresult result);

/// Throws std::runtime_error with the driver's name of the error.
void must(CUresult result, const char *call);
#define MUST(call) must(call, #call)

/// Seconds of the host's steady clock.
double now();

double median(std::vector<double> values);

/// A stream of its own that synchronizes with no other; `priority` as the driver counts, 0 is the least.
struct Stream {
  explicit Stream(int priority = 0) { MUST(cu.streamCreate(&stream, 1, priority)); }
  ~Stream() { cu.streamDestroy(stream); }
  Stream(const Stream &) = delete;
  Stream &operator=(const Stream &) = delete;
  operator CUstream() const { return stream; }
  void wait() const { MUST(cu.streamSynchronize(stream)); }
  CUstream stream = nullptr;
};

struct Event {
  explicit Event(unsigned flags = 0) { MUST(cu.eventCreate(&event, flags)); }
  ~Event() { cu.eventDestroy(event); }
  Event(const Event &) = delete;
  Event &operator=(const Event &) = delete;
  operator CUevent() const { return event; }
  CUevent event = nullptr;
};

/// Seconds between two events; both have passed.
double between(CUevent from, CUevent to);

/// Bytes of the device's memory that nobody holds, as the driver counts them.
size_t freeBytes();

/// Device memory by cuMemAlloc, filled with numbers that are not zero.
struct Buffer {
  explicit Buffer(size_t bytes);
  ~Buffer() { cu.memFree(address); }
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;
  CUdeviceptr address = 0;
  size_t bytes;
};

/// Page-locked memory by cuMemHostAlloc, touched.
struct Pinned {
  explicit Pinned(size_t bytes, unsigned flags = 0);
  ~Pinned() { cu.hostFree(data); }
  Pinned(const Pinned &) = delete;
  Pinned &operator=(const Pinned &) = delete;
  void *data = nullptr;
  size_t bytes;
};

/// The probe's kernels; Kernels.cpp has their PTX.
struct Kernels {
  CUmodule module = nullptr;
  CUfunction empty, spin, copy, readWindow, storeAt, trap, clock, stack1, stack4, stack16, many;
  void load();
};
inline Kernels kernels;
extern const char *kernelText;

void launch(CUfunction kernel, unsigned grid, unsigned block, CUstream stream,
            std::initializer_list<const void *> arguments);

/// One thread that waits for `seconds` of the device's clock.
void spinFor(double seconds, CUstream stream);

/// Copies `bytes` with 16-byte loads and stores, `repeat` times in one launch.
void copyKernel(CUdeviceptr to, CUdeviceptr from, size_t bytes, unsigned repeat, CUstream stream);

// The parts.
void probeContext(const std::string &cubin);
void probeLink();
void probePinned();
void probeMemory();
void probeAddresses();
void probeQueues();
void probeGraphs();
void probePriority();
void probeCache();
void probeErrors(const char *program);
void runFault(const std::string &fault);

} // namespace probe

#endif // SEGUE_BENCH_CUDA_PROBE_H
