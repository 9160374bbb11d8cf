//===- Context.cpp - what the device is, and what a context costs ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Probe.h"
#include <fstream>
#include <iterator>

using namespace probe;

void probe::probeContext(const std::string &cubin) {
  CUdevice device;
  MUST(cu.deviceGet(&device, 0));
  char name[256];
  MUST(cu.deviceName(name, sizeof name, device));
  reportText("device", name);
  int version = 0;
  MUST(cu.driverVersion(&version));
  report("driver's CUDA version", version, "");
  const std::pair<int, const char *> attributes[] = {{16, "multiprocessors"},
                                                     {13, "clock, kHz"},
                                                     {36, "memory clock, kHz"},
                                                     {37, "memory bus, bits"},
                                                     {38, "L2, bytes"},
                                                     {39, "threads per multiprocessor"},
                                                     {40, "copy engines"},
                                                     {8, "shared memory per block, bytes"},
                                                     {97, "shared memory per block by opt-in, bytes"},
                                                     {81, "shared memory per multiprocessor, bytes"},
                                                     {82, "registers per multiprocessor"},
                                                     {32, "ECC"},
                                                     {75, "compute capability, major"},
                                                     {76, "compute capability, minor"},
                                                     {102, "virtual memory management"},
                                                     {107, "compressible memory"},
                                                     {108, "persisting L2 at most, bytes"},
                                                     {109, "access policy window at most, bytes"},
                                                     {115, "memory pools"},
                                                     {122, "64-bit stream memory operations"},
                                                     {123, "stream wait value NOR"},
                                                     {88, "pageable memory access"},
                                                     {89, "concurrent managed access"},
                                                     {91, "host memory at the same address"},
                                                     {99, "registered host memory"}};
  for (auto [number, what] : attributes) {
    int value = 0;
    if (!cu.deviceAttribute(&value, number, device))
      report(what, value, "");
  }
  size_t total = 0;
  MUST(cu.deviceTotal(&total, device));
  report("memory by cuDeviceTotalMem", double(total), "B");

  double started = now();
  CUcontext context;
  MUST(cu.ctxCreate(&context, 1, device));
  report("cuCtxCreate", now() - started, "s");
  size_t free = freeBytes(), seen = 0, unused = 0;
  MUST(cu.memInfo(&unused, &seen));
  report("memory by cuMemGetInfo", double(seen), "B");
  report("not free after the first context", double(seen - free) / mib, "MiB");
  started = now();
  CUcontext second;
  MUST(cu.ctxCreate(&second, 1, device));
  report("a second context in this process", now() - started, "s");
  report("a second context takes", double(free - freeBytes()) / mib, "MiB");
  MUST(cu.ctxDestroy(second));
  MUST(cu.ctxSetCurrent(context));
  report("of which stays when it is destroyed", double(free - freeBytes()) / mib, "MiB");

  size_t before = freeBytes();
  started = now();
  kernels.load();
  report("cuModuleLoadData of PTX, 11 small kernels", (now() - started) * 1e3, "ms");
  report("a module of PTX takes", double(before - freeBytes()) / mib, "MiB");
  if (!cubin.empty()) {
    std::ifstream file(cubin, std::ios::binary);
    std::string image(std::istreambuf_iterator<char>(file), {});
    CUmodule module;
    started = now();
    MUST(cu.moduleLoad(&module, image.data()));
    report("cuModuleLoadData of a cubin", (now() - started) * 1e3, "ms", std::to_string(image.size()) + " bytes");
    MUST(cu.moduleUnload(module));
  }
  Stream stream;
  before = freeBytes();
  for (const char *which : {"first launch", "second launch", "third launch"}) {
    started = now();
    launch(kernels.empty, 1, 32, stream, {});
    stream.wait();
    report(which, (now() - started) * 1e6, "us");
  }
  report("a first launch takes", double(before - freeBytes()) / mib, "MiB");

  // Stack memory of kernels comes from the device's memory and is counted by nobody but the driver.
  Buffer out(4 * kib);
  const std::pair<const char *, CUfunction> stacks[] = {
      {"1 KiB", kernels.stack1}, {"4 KiB", kernels.stack4}, {"16 KiB", kernels.stack16}};
  for (auto [what, kernel] : stacks) {
    before = freeBytes();
    unsigned at = 128;
    started = now();
    launch(kernel, 1, 32, stream, {&out.address, &at});
    double queued = now() - started;
    stream.wait();
    report(std::string("a launch with a stack of ") + what + " per thread takes", double(before - freeBytes()) / mib,
           "MiB",
           "one block of 32 threads; launch call " + std::to_string(int(queued * 1e6)) + " us");
  }
  before = freeBytes();
  launch(kernels.empty, 1, 32, stream, {});
  stream.wait();
  report("given back by a launch without a stack", double(freeBytes() - before) / mib, "MiB");
  size_t limit = 0;
  MUST(cu.ctxGetLimit(&limit, 0));
  report("limit of the stack now", double(limit), "B");
  CUresult result = cu.ctxSetLimit(0, 1024);
  reportText("cuCtxSetLimit(stack, 1024)", nameOf(result));
  report("given back by lowering the limit", double(freeBytes() - before) / mib, "MiB");
}
