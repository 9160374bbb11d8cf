//===- Link.cpp - copies between host and device --------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Probe.h"
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <thread>

using namespace probe;

static void copy(bool isToDevice, void *host, CUdeviceptr device, size_t bytes, CUstream stream) {
  if (isToDevice)
    MUST(cu.toDevice(device, host, bytes, stream));
  else
    MUST(cu.toHost(host, device, bytes, stream));
}

/// GB/s of copies of `bytes` in a row, from first to last event; the median of three.
static double rate(bool isToDevice, void *host, CUdeviceptr device, size_t bytes, CUstream stream) {
  size_t count = std::clamp<size_t>(256 * mib / bytes, 2, 200);
  std::vector<double> found;
  Event from, to;
  for (int round = 0; round < 4; ++round) {
    MUST(cu.eventRecord(from, stream));
    for (size_t i = 0; i < count; ++i)
      copy(isToDevice, host, device, bytes, stream);
    MUST(cu.eventRecord(to, stream));
    MUST(cu.streamSynchronize(stream));
    if (round)
      found.push_back(double(count * bytes) / between(from, to) / 1e9);
  }
  return median(found);
}

static const char *direction(bool isToDevice) { return isToDevice ? "H2D" : "D2H"; }

static std::string sized(size_t bytes) {
  return bytes >= gib ? std::to_string(bytes / gib) + " GiB" : bytes >= mib ? std::to_string(bytes / mib) + " MiB"
                                                                            : std::to_string(bytes / kib) + " KiB";
}

void probe::probeLink() {
  const size_t most = gib;
  Pinned pinned(most), other(most);
  Buffer device(most), second(most);
  Stream up, down, compute;

  for (bool isToDevice : {true, false})
    for (size_t bytes : {4 * kib, 64 * kib, 256 * kib, mib, 4 * mib, 16 * mib, 64 * mib, 256 * mib, gib}) {
      report(std::string(direction(isToDevice)) + " pinned " + sized(bytes),
             rate(isToDevice, pinned.data, device.address, bytes, up),
             "GB/s");
      std::vector<double> times;
      for (int i = 0; i < (bytes > 64 * mib ? 3 : 30); ++i) {
        double started = now();
        copy(isToDevice, pinned.data, device.address, bytes, up);
        up.wait();
        times.push_back(now() - started);
      }
      report(std::string(direction(isToDevice)) + " pinned " + sized(bytes) + ", one copy and wait",
             median(times) * 1e6, "us");
    }

  void *pageable = std::aligned_alloc(4096, 256 * mib);
  std::memset(pageable, 1, 256 * mib);
  for (bool isToDevice : {true, false})
    for (size_t bytes : {64 * kib, mib, 16 * mib, 256 * mib}) {
      double call = now();
      copy(isToDevice, pageable, device.address, bytes, up);
      call = now() - call;
      up.wait();
      report(std::string(direction(isToDevice)) + " pageable " + sized(bytes),
             rate(isToDevice, pageable, device.address, bytes, up),
             "GB/s", "the asynchronous call itself takes " + std::to_string(int(call * 1e6)) + " us");
    }
  // A queue that is busy shows whether a pageable copy holds the caller until its turn comes.
  for (bool isToDevice : {true, false}) {
    spinFor(0.02, up);
    double started = now();
    copy(isToDevice, pageable, device.address, mib, up);
    report(std::string(direction(isToDevice)) + " pageable 1 MiB behind 20 ms of work: the call takes",
           (now() - started) * 1e3, "ms");
    up.wait();
    spinFor(0.02, up);
    started = now();
    copy(isToDevice, pinned.data, device.address, mib, up);
    report(std::string(direction(isToDevice)) + " pinned 1 MiB behind 20 ms of work: the call takes",
           (now() - started) * 1e3, "ms");
    up.wait();
  }
  std::free(pageable);

  {
    Pinned combined(256 * mib, 4);
    report("H2D write-combined 256 MiB", rate(true, combined.data, device.address, 256 * mib, up), "GB/s");
    report("D2H write-combined 256 MiB", rate(false, combined.data, device.address, 256 * mib, up), "GB/s");
  }

  // Both directions at once: each stream's own time for ten copies.
  auto both = [&](size_t bytes) {
    Event begin[2], end[2];
    int count = int(std::clamp<size_t>(gib / bytes, 4, 400));
    MUST(cu.eventRecord(begin[0], up));
    MUST(cu.eventRecord(begin[1], down));
    for (int i = 0; i < count; ++i) {
      copy(true, pinned.data, device.address, bytes, up);
      copy(false, other.data, second.address, bytes, down);
    }
    MUST(cu.eventRecord(end[0], up));
    MUST(cu.eventRecord(end[1], down));
    up.wait();
    down.wait();
    report("H2D while D2H runs, " + sized(bytes), double(count) * double(bytes) / between(begin[0], end[0]) / 1e9,
           "GB/s");
    report("D2H while H2D runs, " + sized(bytes), double(count) * double(bytes) / between(begin[1], end[1]) / 1e9,
           "GB/s");
  };
  for (size_t bytes : {mib, 16 * mib, 256 * mib})
    both(bytes);

  // Two streams in one direction share one engine, or have one each.
  {
    double started = now();
    for (int i = 0; i < 4; ++i) {
      copy(true, pinned.data, device.address, 256 * mib, up);
      copy(true, other.data, second.address, 256 * mib, down);
    }
    up.wait();
    down.wait();
    report("H2D on two streams, together", 8 * 256.0 * mib / (now() - started) / 1e9, "GB/s");
  }

  // A small copy behind a large one of another stream, by priority.
  int least = 0, greatest = 0;
  MUST(cu.priorityRange(&least, &greatest));
  for (int priority : {least, greatest}) {
    Stream quick(priority);
    copy(true, pinned.data, device.address, gib, up);
    double started = now();
    copy(true, other.data, second.address, 64 * kib, quick);
    quick.wait();
    double waited = now() - started;
    up.wait();
    report("H2D of 64 KiB on another stream (priority " + std::to_string(priority) + ") beside H2D of 1 GiB",
           waited * 1e3, "ms");
    for (int i = 0; i < 64; ++i)
      copy(true, static_cast<char *>(pinned.data) + i * 16 * mib, device.address + i * 16 * mib, 16 * mib, up);
    started = now();
    copy(true, other.data, second.address, 64 * kib, quick);
    quick.wait();
    waited = now() - started;
    up.wait();
    report("H2D of 64 KiB on another stream (priority " + std::to_string(priority) + ") beside 64 H2D of 16 MiB",
           waited * 1e3, "ms");
  }

  // The same 64 KiB read by a kernel over the link, which takes no turn at the copy engine; and copies queued in
  // pieces, of which no more than two are under way at a time.
  {
    Stream quick(greatest);
    copy(true, pinned.data, device.address, gib, up);
    std::vector<double> took;
    for (int i = 0; i < 20; ++i) {
      double started = now();
      copyKernel(second.address, reinterpret_cast<CUdeviceptr>(other.data), 64 * kib, 1, quick);
      quick.wait();
      took.push_back(now() - started);
    }
    up.wait();
    report("64 KiB read by a kernel beside H2D of 1 GiB", median(took) * 1e6, "us");
    for (size_t piece : {mib, 4 * mib, 16 * mib}) {
      Event first(2), last(2);
      std::vector<double> waits;
      double started = now();
      size_t count = gib / piece;
      for (size_t i = 0; i < count; ++i) {
        CUevent turn = i % 2 ? last : first;
        if (i > 1)
          MUST(cu.eventSynchronize(turn));
        copy(true, static_cast<char *>(pinned.data) + i * piece, device.address + i * piece, piece, up);
        MUST(cu.eventRecord(turn, up));
        if (i % (count / 8) == 5) {
          double asked = now();
          copy(true, other.data, second.address, 64 * kib, quick);
          quick.wait();
          waits.push_back(now() - asked);
        }
      }
      up.wait();
      double rate = double(gib) / (now() - started) / 1e9;
      report("H2D in pieces of " + sized(piece) + ", two under way", rate, "GB/s");
      report("  64 KiB on another stream then", median(waits) * 1e6, "us");
    }
  }

  // Beside a kernel that moves as much memory as the device can.
  Buffer a(2 * gib), b(2 * gib);
  auto kernelRate = [&](bool isBeside) {
    Event from, to;
    unsigned repeat = 60;
    MUST(cu.eventRecord(from, compute));
    copyKernel(b.address, a.address, 2 * gib, repeat, compute);
    MUST(cu.eventRecord(to, compute));
    if (isBeside) {
      report("H2D beside a kernel at memory speed", rate(true, pinned.data, device.address, 64 * mib, up), "GB/s");
      compute.wait();
      copyKernel(b.address, a.address, 2 * gib, repeat, compute);
      report("D2H beside a kernel at memory speed", rate(false, pinned.data, device.address, 64 * mib, up), "GB/s");
    }
    compute.wait();
    return 2.0 * repeat * 2 * gib / between(from, to) / 1e9;
  };
  kernelRate(false);
  report("copy kernel alone", kernelRate(false), "GB/s");
  report("copy kernel beside H2D", kernelRate(true), "GB/s");

  // A kernel that reads and writes page-locked memory itself.
  for (bool isToDevice : {true, false}) {
    Event from, to;
    CUdeviceptr host = reinterpret_cast<CUdeviceptr>(pinned.data);
    for (int round = 0; round < 2; ++round) {
      MUST(cu.eventRecord(from, compute));
      if (isToDevice)
        copyKernel(device.address, host, 256 * mib, 1, compute);
      else
        copyKernel(host, device.address, 256 * mib, 1, compute);
      MUST(cu.eventRecord(to, compute));
      compute.wait();
    }
    report(std::string(direction(isToDevice)) + " by a kernel over page-locked memory, 256 MiB",
           256.0 * mib / between(from, to) / 1e9, "GB/s");
  }
}

void probe::probePinned() {
  for (size_t bytes : {64 * mib, gib, 8 * gib}) {
    double started = now();
    void *data = nullptr;
    MUST(cu.hostAlloc(&data, bytes, 0));
    report("cuMemHostAlloc " + sized(bytes), (now() - started) * double(gib) / double(bytes), "s/GiB");
    started = now();
    std::memset(data, 1, bytes);
    report("first write to it", double(bytes) / (now() - started) / 1e9, "GB/s");
    started = now();
    MUST(cu.hostFree(data));
    report("cuMemFreeHost " + sized(bytes), (now() - started) * double(gib) / double(bytes), "s/GiB");
  }
  for (bool isTouched : {false, true})
    for (bool isHuge : {false, true}) {
      size_t bytes = 4 * gib;
      void *data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (isHuge)
        madvise(data, bytes, MADV_HUGEPAGE);
      double touch = now();
      if (isTouched)
        std::memset(data, 1, bytes);
      touch = now() - touch;
      double started = now();
      CUresult result = cu.hostRegister(data, bytes, 0);
      double took = now() - started;
      std::string what = std::string("cuMemHostRegister of 4 GiB, ") + (isTouched ? "touched" : "not touched") +
                         (isHuge ? ", huge pages asked for" : "");
      if (result) {
        reportText(what, nameOf(result));
      } else {
        report(what, took / 4, "s/GiB", isTouched ? "touching took " + std::to_string(touch / 4) + " s/GiB" : "");
        Buffer device(256 * mib);
        Stream stream;
        report("H2D from it", rate(true, data, device.address, 256 * mib, stream), "GB/s");
        started = now();
        MUST(cu.hostUnregister(data));
        report("cuMemHostUnregister", (now() - started) / 4, "s/GiB");
      }
      munmap(data, bytes);
    }
  // Touched by several threads first, in huge pages: the fastest way to page-locked memory.
  for (unsigned threads : {1u, 4u, 8u}) {
    size_t bytes = 8 * gib;
    double started = now();
    char *data = static_cast<char *>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    madvise(data, bytes, MADV_HUGEPAGE);
    std::vector<std::thread> pool;
    for (unsigned i = 0; i < threads; ++i)
      pool.emplace_back([=] { std::memset(data + bytes / threads * i, 1, bytes / threads); });
    for (std::thread &thread : pool)
      thread.join();
    double touched = now() - started;
    MUST(cu.hostRegister(data, bytes, 0));
    report("huge pages touched by " + std::to_string(threads) + " threads, then cuMemHostRegister, 8 GiB",
           (now() - started) / 8, "s/GiB",
           "of which touching " + std::to_string(touched / 8));
    MUST(cu.hostUnregister(data));
    munmap(data, bytes);
  }
  // The host's own copy, which a staging buffer costs.
  std::vector<char> from(512 * mib, 1), to(512 * mib, 2);
  double started = now();
  std::memcpy(to.data(), from.data(), from.size());
  report("memcpy on the host by one thread", double(from.size()) / (now() - started) / 1e9, "GB/s", "bytes copied");
}
