//===- Memory.cpp - the device's memory, its ranges and its L2 ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Probe.h"
#include <algorithm>

using namespace probe;

static std::string inMiB(size_t bytes) { return std::to_string(bytes / mib) + " MiB"; }

/// Seconds of `run`'s work by events, the median of five after one.
template <typename Run> static double timed(CUstream stream, Run run) {
  Event from, to;
  std::vector<double> found;
  for (int round = 0; round < 6; ++round) {
    MUST(cu.eventRecord(from, stream));
    run();
    MUST(cu.eventRecord(to, stream));
    MUST(cu.streamSynchronize(stream));
    if (round)
      found.push_back(between(from, to));
  }
  return median(found);
}

void probe::probeMemory() {
  Stream stream;
  {
    Buffer a(4 * gib), b(4 * gib), sum(4 * kib);
    for (size_t bytes : {mib, 8 * mib, 32 * mib, 128 * mib, 512 * mib, 4 * gib}) {
      unsigned repeat = unsigned(std::clamp<size_t>(4 * gib / bytes, 1, 200));
      double kernel = timed(stream, [&] { copyKernel(b.address, a.address, bytes, repeat, stream); }) / repeat;
      report("copy kernel " + inMiB(bytes), 2.0 * double(bytes) / kernel / 1e9, "GB/s", "bytes read and written");
      double driver = timed(stream, [&] {
        for (int i = 0; i < 10; ++i)
          MUST(cu.onDevice(b.address, a.address, bytes, stream));
      });
      report("cuMemcpyDtoD " + inMiB(bytes), 20.0 * double(bytes) / driver / 1e9, "GB/s", "bytes read and written");
    }
    uint64_t count = 4 * gib / 16;
    double read = timed(stream, [&] { launch(kernels.readWindow, 132 * 8, 256, stream,
                                             {&sum.address, &a.address, &count}); });
    report("read 4 GiB", 4.0 * gib / read / 1e9, "GB/s");
    double fill = timed(stream, [&] { MUST(cu.fill(a.address, 1, gib, stream)); });
    report("cuMemsetD32 4 GiB", 4.0 * gib / fill / 1e9, "GB/s");
  }

  // What the driver's figure makes of allocations.
  for (size_t bytes : {size_t(1), 64 * kib, mib, 2 * mib, 3 * mib, 64 * mib}) {
    size_t before = freeBytes();
    std::vector<CUdeviceptr> held(64);
    double started = now();
    for (CUdeviceptr &address : held)
      MUST(cu.memAlloc(&address, bytes));
    double took = (now() - started) / 64;
    report("64 cuMemAlloc of " + std::to_string(bytes) + " bytes: cuMemGetInfo falls by",
           double(before - freeBytes()) / mib, "MiB",
           "distance of the first two addresses " + std::to_string((long long)(held[1] - held[0])));
    started = now();
    for (CUdeviceptr address : held)
      MUST(cu.memFree(address));
    report("  cuMemAlloc each", took * 1e6, "us");
    report("  cuMemFree each", (now() - started) / 64 * 1e6, "us");
    report("  not given back", double(before - freeBytes()) / mib, "MiB");
  }

  // Whether the calls wait for work of other streams.
  {
    CUdeviceptr held = 0;
    MUST(cu.memAlloc(&held, 64 * mib));
    spinFor(0.02, stream);
    double started = now();
    CUdeviceptr address = 0;
    MUST(cu.memAlloc(&address, 64 * mib));
    report("cuMemAlloc of 64 MiB beside 20 ms of work", (now() - started) * 1e3, "ms");
    started = now();
    MUST(cu.memFree(held));
    report("cuMemFree of 64 MiB beside 20 ms of work", (now() - started) * 1e3, "ms");
    stream.wait();
    MUST(cu.memFree(address));
    for (double seconds : {0.0, 0.05}) {
      if (seconds > 0)
        spinFor(seconds, stream);
      started = now();
      void *host = nullptr;
      MUST(cu.hostAlloc(&host, 2 * mib, 0));
      double took = now() - started;
      MUST(cu.hostFree(host));
      std::string beside = seconds > 0 ? " beside 50 ms of work" : " beside nothing";
      report("cuMemHostAlloc of 2 MiB" + beside, took * 1e3, "ms");
      report("cuMemFreeHost of 2 MiB" + beside, (now() - started - took) * 1e3, "ms");
      stream.wait();
    }
    stream.wait();
  }
  size_t before = freeBytes();
  for (int round = 0; round < 3; ++round) {
    CUdeviceptr address = 0;
    double started = now();
    MUST(cu.memAllocAsync(&address, 256 * mib, stream));
    double took = now() - started;
    MUST(cu.memFreeAsync(address, stream));
    report("cuMemAllocAsync of 256 MiB, round " + std::to_string(round), took * 1e6, "us");
    stream.wait();
  }
  report("memory pool keeps after cuMemFreeAsync and a wait", double(before - freeBytes()) / mib, "MiB");

  // The end of the memory.
  std::vector<CUdeviceptr> held;
  CUresult result = 0;
  for (size_t bytes = 8 * gib; bytes >= 2 * mib; bytes /= 2)
    for (;;) {
      CUdeviceptr address = 0;
      result = cu.memAlloc(&address, bytes);
      if (result)
        break;
      held.push_back(address);
    }
  reportText("cuMemAlloc when memory is out", nameOf(result));
  report("free by cuMemGetInfo then", double(freeBytes()) / mib, "MiB");
  reportText("a launch then", nameOf(cu.launch(kernels.empty, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr)));
  reportText("and its end", nameOf(cu.streamSynchronize(stream)));
  CUevent event = nullptr;
  reportText("cuEventCreate then", nameOf(cu.eventCreate(&event, 0)));
  if (event)
    cu.eventDestroy(event);
  CUdeviceptr out = held.front();
  unsigned at = 128;
  void *arguments[] = {&out, &at};
  reportText("a launch with a stack of 16 KiB then", nameOf(cu.launch(kernels.stack16, 1, 1, 1, 32, 1, 1, 0, stream,
                                                                      arguments, nullptr)));
  reportText("and its end", nameOf(cu.streamSynchronize(stream)));
  for (CUdeviceptr address : held)
    MUST(cu.memFree(address));
}

static MemProperties onDevice() {
  MemProperties properties{};
  properties.type = 1;
  properties.location = {1, 0};
  return properties;
}

static const MemAccess readWrite{{1, 0}, 3};

void probe::probeAddresses() {
  MemProperties properties = onDevice();
  size_t least = 0, recommended = 0;
  MUST(cu.granularity(&least, &properties, 0));
  MUST(cu.granularity(&recommended, &properties, 1));
  report("granularity, least", double(least), "B");
  report("granularity, recommended", double(recommended), "B");
  double started = now();
  CUdeviceptr range = 0;
  const size_t span = 512 * gib;
  MUST(cu.reserve(&range, span, 0, 0, 0));
  report("cuMemAddressReserve of 512 GiB", (now() - started) * 1e6, "us", "aligned to " +
         std::to_string(range & -range));
  Stream stream, other;

  for (size_t bytes : {2 * mib, 16 * mib, 64 * mib, 256 * mib, gib}) {
    size_t count = std::min<size_t>(256, 16 * gib / bytes);
    std::vector<CUmemHandle> handles(count);
    size_t before = freeBytes();
    started = now();
    for (CUmemHandle &handle : handles)
      MUST(cu.create(&handle, bytes, &properties, 0));
    double created = (now() - started) / double(count);
    size_t taken = before - freeBytes();
    started = now();
    for (size_t i = 0; i < count; ++i)
      MUST(cu.map(range + i * bytes, bytes, 0, handles[i], 0));
    double mapped = (now() - started) / double(count);
    started = now();
    MUST(cu.setAccess(range, bytes * count, &readWrite, 1));
    double whole = now() - started;
    if (bytes == 2 * mib || bytes == gib) {
      Buffer plain(bytes * count);
      for (auto [what, address] : {std::pair("mapped chunks", range), std::pair("cuMemAlloc", plain.address)}) {
        size_t half = bytes * count / 2;
        double took = timed(stream, [&, at = address] { copyKernel(at + half, at, half, 20, stream); }) / 20;
        report(std::string("copy kernel in ") + what + " of " + inMiB(bytes) + " x " + std::to_string(count),
               2.0 * double(half) / took / 1e9, "GB/s");
      }
    }
    started = now();
    for (size_t i = 0; i < count; ++i)
      MUST(cu.unmap(range + i * bytes, bytes));
    double unmapped = (now() - started) / double(count);
    started = now();
    for (size_t i = 0; i < count; ++i) {
      MUST(cu.map(range + i * bytes, bytes, 0, handles[i], 0));
      MUST(cu.setAccess(range + i * bytes, bytes, &readWrite, 1));
    }
    double remapped = (now() - started) / double(count);
    started = now();
    for (size_t i = 0; i < count; ++i)
      MUST(cu.unmap(range + i * bytes, bytes));
    started = now();
    for (CUmemHandle handle : handles)
      MUST(cu.release(handle));
    double released = (now() - started) / double(count);
    std::string chunk = "chunk of " + inMiB(bytes) + ": ";
    report(chunk + "cuMemCreate", created * 1e6, "us");
    report(chunk + "cuMemMap", mapped * 1e6, "us");
    report(chunk + "cuMemSetAccess of " + std::to_string(count) + " at once, each", whole / double(count) * 1e6, "us");
    report(chunk + "cuMemMap and cuMemSetAccess one by one", remapped * 1e6, "us");
    report(chunk + "cuMemUnmap", unmapped * 1e6, "us");
    report(chunk + "cuMemRelease", released * 1e6, "us");
    report(chunk + "cuMemGetInfo falls by, of what was created", double(taken) / double(bytes * count), "");
  }

  // The calls beside work, which neither uses the range nor ends before them.
  const size_t bytes = 64 * mib;
  CUmemHandle a = 0, b = 0;
  MUST(cu.create(&a, bytes, &properties, 0));
  MUST(cu.map(range, bytes, 0, a, 0));
  MUST(cu.setAccess(range, bytes, &readWrite, 1));
  auto beside = [&](const char *what, auto call) {
    spinFor(0.03, stream);
    double from = now();
    call();
    report(std::string(what) + " of 64 MiB beside 30 ms of work", (now() - from) * 1e3, "ms");
    stream.wait();
  };
  beside("cuMemCreate", [&] { MUST(cu.create(&b, bytes, &properties, 0)); });
  beside("cuMemMap", [&] { MUST(cu.map(range + bytes, bytes, 0, b, 0)); });
  beside("cuMemSetAccess", [&] { MUST(cu.setAccess(range + bytes, bytes, &readWrite, 1)); });
  beside("cuMemUnmap", [&] { MUST(cu.unmap(range + bytes, bytes)); });
  beside("cuMemRelease", [&] { MUST(cu.release(b)); });
  for (double seconds : {0.0, 0.02, 0.08}) {
    MUST(cu.create(&b, bytes, &properties, 0));
    if (seconds > 0)
      spinFor(seconds, stream);
    double from = now();
    MUST(cu.release(b));
    report("cuMemRelease of 64 MiB, never mapped, beside " + std::to_string(int(seconds * 1e3)) + " ms of work",
           (now() - from) * 1e3, "ms");
    stream.wait();
    MUST(cu.create(&b, bytes, &properties, 0));
    MUST(cu.map(range + bytes, bytes, 0, b, 0));
    MUST(cu.setAccess(range + bytes, bytes, &readWrite, 1));
    MUST(cu.fill(range + bytes, 1, bytes / 4, other));
    other.wait();
    if (seconds > 0)
      spinFor(seconds, stream);
    from = now();
    MUST(cu.unmap(range + bytes, bytes));
    double unmapped = now() - from;
    MUST(cu.release(b));
    report("cuMemUnmap of 64 MiB that was used, beside " + std::to_string(int(seconds * 1e3)) + " ms of work",
           unmapped * 1e3, "ms");
    report("  and cuMemRelease", (now() - from - unmapped) * 1e3, "ms");
    stream.wait();
  }

  // What unmapping under queued work does is among the errors, in a process of its own.
  MUST(cu.unmap(range, bytes));
  size_t before = freeBytes();
  MUST(cu.release(a));
  report("given back when a chunk is released", double(freeBytes() - before) / mib, "MiB");
  MUST(cu.create(&a, bytes, &properties, 0));
  MUST(cu.map(range, bytes, 0, a, 0));
  MUST(cu.setAccess(range, bytes, &readWrite, 1));
  before = freeBytes();
  MUST(cu.release(a));
  report("given back when a chunk is released that is still mapped", double(freeBytes() - before) / mib, "MiB");
  MUST(cu.unmap(range, bytes));
  report("and when it is unmapped", double(freeBytes() - before) / mib, "MiB");

  // The end of the memory, by chunks.
  std::vector<CUmemHandle> handles;
  CUresult result = 0;
  started = now();
  for (CUmemHandle handle; !(result = cu.create(&handle, 64 * mib, &properties, 0));)
    handles.push_back(handle);
  report("cuMemCreate of 64 MiB, all of the memory, each", (now() - started) / double(handles.size()) * 1e6, "us",
         std::to_string(handles.size()) + " chunks, then " + nameOf(result));
  report("free by cuMemGetInfo then", double(freeBytes()) / mib, "MiB");
  for (CUmemHandle handle : handles)
    MUST(cu.release(handle));
  MUST(cu.addressFree(range, span));
}

void probe::probeCache() {
  size_t limit = 0;
  MUST(cu.ctxGetLimit(&limit, 6));
  report("limit of persisting L2 by default", double(limit), "B");
  int most = 0;
  MUST(cu.deviceAttribute(&most, 108, 0));
  reportText("cuCtxSetLimit(persisting L2, the most)", nameOf(cu.ctxSetLimit(6, size_t(most))));
  MUST(cu.ctxGetLimit(&limit, 6));
  report("limit of persisting L2 then", double(limit), "B");
  Buffer window(64 * mib), big(2 * gib), sum(4 * kib);
  Stream plain, kept;
  for (size_t bytes : {mib, 4 * mib, 8 * mib, 16 * mib, 24 * mib, 32 * mib, 48 * mib})
    for (bool isKept : {false, true}) {
      CUstream stream = isKept ? kept : plain;
      if (isKept) {
        StreamAttribute attribute{};
        attribute.window = {reinterpret_cast<void *>(window.address), bytes, 1.0f, 2, 1};
        if (CUresult result = cu.streamAttribute(stream, 1, &attribute)) {
          reportText("access policy window of " + inMiB(bytes), nameOf(result));
          continue;
        }
      }
      // The window is read, much else is read, the window is read again: the last is timed.
      Event from, to;
      std::vector<double> found;
      uint64_t small = bytes / 16;
      for (int round = 0; round < 8; ++round) {
        uint64_t large = (128 + round % 2) * mib / 16;
        CUdeviceptr elsewhere = big.address + size_t(round) * 200 * mib;
        for (int i = 0; i < 2; ++i)
          launch(kernels.readWindow, 132 * 4, 256, stream, {&sum.address, &window.address, &small});
        launch(kernels.readWindow, 132 * 4, 256, stream, {&sum.address, &elsewhere, &large});
        MUST(cu.eventRecord(from, stream));
        launch(kernels.readWindow, 132 * 4, 256, stream, {&sum.address, &window.address, &small});
        MUST(cu.eventRecord(to, stream));
        MUST(cu.streamSynchronize(stream));
        found.push_back(between(from, to));
      }
      report("read again after 128 MiB of other reads, " + inMiB(bytes) +
             (isKept ? ", persisting window" : ", no window"),
             double(bytes) / median(found) / 1e9, "GB/s");
      if (isKept)
        MUST(cu.ctxResetL2());
    }
  // What stays in the cache by itself.
  for (size_t bytes : {mib, 8 * mib, 16 * mib, 24 * mib, 32 * mib, 48 * mib, 64 * mib}) {
    uint64_t small = bytes / 16;
    double took = timed(plain, [&] {
      for (int i = 0; i < 20; ++i)
        launch(kernels.readWindow, 132 * 4, 256, plain, {&sum.address, &window.address, &small});
    });
    report("read " + inMiB(bytes) + " again and again", 20.0 * double(bytes) / took / 1e9, "GB/s");
  }
}
