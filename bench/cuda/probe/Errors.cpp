//===- Errors.cpp - what an error leaves of a context ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Probe.h"
#include <atomic>
#include <cstdlib>
#include <cstdio>
#include <cstring>

using namespace probe;

static std::atomic<int> called;

/// Makes one error in a process of its own, and asks everything after it.
void probe::runFault(const std::string &fault) {
  setPart("errors");
  auto say = [&](const std::string &what, CUresult result) { reportText(fault + ": " + what, nameOf(result)); };
  CUdevice device;
  CUcontext context;
  MUST(cu.deviceGet(&device, 0));
  MUST(cu.ctxCreate(&context, 1, device));
  kernels.load();
  Pinned kept(mib);
  Stream *stream = new Stream, *other = new Stream;
  Buffer *buffer = new Buffer(mib);
  Event *before = new Event(2), *after = new Event(2);
  MUST(cu.toHost(kept.data, buffer->address, mib, *stream));
  stream->wait();
  unsigned value = 1;
  auto store = [&](CUdeviceptr to) {
    void *arguments[] = {&to, &value};
    return cu.launch(kernels.storeAt, 1, 1, 1, 1, 1, 1, 0, *stream, arguments, nullptr);
  };
  spinFor(0.02, *stream);
  MUST(cu.eventRecord(*before, *stream));
  CUresult result = 0;
  if (fault == "illegal-address") {
    result = store(buffer->address + (1ull << 40));
  } else if (fault == "null-address") {
    result = store(0);
  } else if (fault == "misaligned") {
    result = store(buffer->address + 2);
  } else if (fault == "trap") {
    result = cu.launch(kernels.trap, 1, 1, 1, 1, 1, 1, 0, *stream, nullptr, nullptr);
  } else if (fault == "unmapped") {
    CUdeviceptr range = 0;
    MUST(cu.reserve(&range, 64 * mib, 0, 0, 0));
    result = store(range);
  } else if (fault == "freed") {
    CUdeviceptr address = 0;
    MUST(cu.memAlloc(&address, 64 * mib));
    MUST(cu.memFree(address));
    result = store(address);
  } else if (fault == "unmapped-under-work") {
    CUdeviceptr range = 0;
    CUmemHandle chunk = 0;
    MemProperties properties{};
    properties.type = 1;
    properties.location = {1, 0};
    MemAccess access{{1, 0}, 3};
    MUST(cu.reserve(&range, 64 * mib, 0, 0, 0));
    MUST(cu.create(&chunk, 64 * mib, &properties, 0));
    MUST(cu.map(range, 64 * mib, 0, chunk, 0));
    MUST(cu.setAccess(range, 64 * mib, &access, 1));
    MUST(cu.fill(range, 1, 16 * mib, *stream));
    result = cu.unmap(range, 64 * mib);
  } else if (fault == "too-many-threads") {
    result = cu.launch(kernels.empty, 1, 1, 1, 4096, 1, 1, 0, *stream, nullptr, nullptr);
  } else if (fault == "too-much-shared") {
    result = cu.launch(kernels.empty, 1, 1, 1, 32, 1, 1, 1 << 20, *stream, nullptr, nullptr);
  } else if (fault == "out-of-memory") {
    CUdeviceptr address = 0;
    result = cu.memAlloc(&address, 1ull << 40);
  } else if (fault == "copy-beyond") {
    result = cu.toDevice(buffer->address, kept.data, 64 * mib, *stream);
  } else if (fault == "bad-image") {
    CUmodule module;
    result = cu.moduleLoad(&module, "no PTX");
  }
  say("the call", result);
  say("cuEventRecord after it", cu.eventRecord(*after, *stream));
  say("cuLaunchHostFunc after it", cu.hostFunction(*stream, [](void *) { ++called; }, nullptr));
  double started = now();
  say("cuStreamSynchronize", cu.streamSynchronize(*stream));
  report(fault + ": cuStreamSynchronize takes", (now() - started) * 1e3, "ms", "20 ms of good work are ahead");
  say("cuEventQuery of the event before it", cu.eventQuery(*before));
  say("cuEventQuery of the event after it", cu.eventQuery(*after));
  reportText(fault + ": the host function behind it", called ? "was called" : "was not called");
  say("cuStreamSynchronize again", cu.streamSynchronize(*stream));
  say("cuStreamQuery of another stream", cu.streamQuery(*other));
  say("a launch on another stream", cu.launch(kernels.empty, 1, 1, 1, 32, 1, 1, 0, *other, nullptr, nullptr));
  say("cuMemcpyDtoHAsync on another stream", cu.toHost(kept.data, buffer->address, 4, *other));
  say("its end", cu.streamSynchronize(*other));
  CUdeviceptr address = 0;
  say("cuMemAlloc", cu.memAlloc(&address, mib));
  void *host = nullptr;
  say("cuMemHostAlloc", cu.hostAlloc(&host, mib, 0));
  size_t free = 0, total = 0;
  say("cuMemGetInfo", cu.memInfo(&free, &total));
  unsigned word = 0;
  std::memcpy(&word, static_cast<char *>(kept.data) + 4096, 4);
  reportText(fault + ": page-locked memory that was copied before",
             word == 0x3f9d70a4 ? "is readable, and whole" : "has other bytes");
  say("cuMemFree", cu.memFree(buffer->address));
  say("cuCtxDestroy", cu.ctxDestroy(context));
  CUcontext again = nullptr;
  say("a new context in the same process", cu.ctxCreate(&again, 1, device));
  if (again) {
    kernels.load();
    say("a launch in it", cu.launch(kernels.empty, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr));
    say("its end", cu.ctxSynchronize());
  }
  std::fflush(stdout);
  std::_Exit(0);
}

void probe::probeErrors(const char *program) {
  for (const char *fault : {"none", "illegal-address", "null-address", "misaligned", "trap", "unmapped", "freed",
                            "unmapped-under-work", "too-many-threads",
                            "too-much-shared", "out-of-memory", "copy-beyond", "bad-image"}) {
    int status = std::system((std::string(program) + " --fault " + fault + " 2>&1").c_str());
    if (status)
      report(std::string(fault) + ": the process ended with status", status, "");
  }
}
