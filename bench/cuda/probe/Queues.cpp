//===- Queues.cpp - events, launches, host functions, graphs --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Probe.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <thread>

using namespace probe;

template <typename Call> static double each(int count, Call call) {
  double started = now();
  for (int i = 0; i < count; ++i)
    call(i);
  return (now() - started) / count;
}

static void probeEvents() {
  Stream a, b;
  Event timed, plain(2), blocking(1 | 2);
  report("cuEventRecord, with time", each(5000, [&](int) { MUST(cu.eventRecord(timed, a)); }) * 1e6, "us");
  a.wait();
  report("cuEventRecord, without time", each(5000, [&](int) { MUST(cu.eventRecord(plain, a)); }) * 1e6, "us");
  a.wait();
  report("cuStreamWaitEvent of one that has passed", each(5000, [&](int) { MUST(cu.streamWaitEvent(b, plain,
                                                                                                   0)); }) * 1e6, "us");
  report("cuEventQuery of one that has passed", each(5000, [&](int) { MUST(cu.eventQuery(plain)); }) * 1e6, "us");
  spinFor(0.01, a);
  MUST(cu.eventRecord(plain, a));
  report("cuEventQuery of one that has not", each(1000, [&](int) { cu.eventQuery(plain); }) * 1e6, "us");
  a.wait();
  std::vector<std::unique_ptr<Event>> many;
  report("cuEventCreate", each(2000, [&](int) { many.push_back(std::make_unique<Event>(2)); }) * 1e6, "us");
  report("cuEventDestroy", each(2000, [&](int) { many.pop_back(); }) * 1e6, "us");

  // Timestamps: differences of events in a row.
  std::vector<std::unique_ptr<Event>> stamps;
  for (int i = 0; i < 400; ++i)
    stamps.push_back(std::make_unique<Event>());
  for (auto &stamp : stamps)
    MUST(cu.eventRecord(*stamp, a));
  a.wait();
  std::set<double> differences;
  double least = 1;
  for (size_t i = 1; i < stamps.size(); ++i) {
    double difference = between(*stamps[i - 1], *stamps[i]);
    differences.insert(difference);
    if (difference > 0)
      least = std::min(least, difference);
  }
  double step = 1;
  for (auto next = differences.begin(), last = next++; next != differences.end(); last = next++)
    step = std::min(step, *next - *last);
  report("event times: least difference of two in a row", least * 1e9, "ns");
  report("event times: resolution", step * 1e9, "ns", std::to_string(differences.size()) + " different ones of 399");

  Buffer clock(4 * kib);
  launch(kernels.clock, 1, 1, a, {&clock.address});
  std::vector<uint64_t> read(200);
  MUST(cu.toHost(read.data(), clock.address, 1600, a));
  a.wait();
  uint64_t tick = UINT64_MAX;
  for (size_t i = 1; i < read.size(); ++i)
    if (read[i] != read[i - 1])
      tick = std::min(tick, read[i] - read[i - 1]);
  report("%globaltimer: least step", double(tick), "ns");

  // One stream waits for another, a hundred times in turn.
  std::vector<std::unique_ptr<Event>> turns;
  for (int i = 0; i < 200; ++i)
    turns.push_back(std::make_unique<Event>(2));
  for (bool isAcross : {false, true}) {
    Event from, to;
    for (int round = 0; round < 2; ++round) {
      spinFor(0.005, a);
      MUST(cu.eventRecord(from, a));
      for (int i = 0; i < 100; ++i) {
        launch(kernels.empty, 1, 32, a, {});
        if (isAcross) {
          MUST(cu.eventRecord(*turns[2 * i], a));
          MUST(cu.streamWaitEvent(b, *turns[2 * i], 0));
          launch(kernels.empty, 1, 32, b, {});
          MUST(cu.eventRecord(*turns[2 * i + 1], b));
          MUST(cu.streamWaitEvent(a, *turns[2 * i + 1], 0));
        } else {
          launch(kernels.empty, 1, 32, a, {});
        }
      }
      MUST(cu.eventRecord(to, a));
      a.wait();
    }
    report(isAcross ? "an empty kernel and a wait for it on the other stream" : "an empty kernel on one stream",
           between(from, to) / 200 * 1e6, "us", "on the device, queued ahead");
  }

  // How long the host needs to see the end of work.
  for (auto [what, event] : {std::pair("spinning", &plain), std::pair("blocking", &blocking)}) {
    std::vector<double> late;
    for (int i = 0; i < 50; ++i) {
      double started = now();
      spinFor(0.0005, a);
      MUST(cu.eventRecord(*event, a));
      MUST(cu.eventSynchronize(*event));
      late.push_back(now() - started - 0.0005);
    }
    report(std::string("launch of 0.5 ms and cuEventSynchronize, ") + what + ": beyond 0.5 ms", median(late) * 1e6,
           "us");
  }
}

static std::atomic<int> calls;
static std::vector<double> seen(256);
static std::thread::id lastThread;

static void probeHostFunctions() {
  Stream a, b;
  auto note = [](void *) {
    lastThread = std::this_thread::get_id();
    seen[size_t(calls++) % seen.size()] = now();
  };
  std::vector<double> late;
  for (int i = 0; i < 100; ++i) {
    calls = 0;
    double started = now();
    spinFor(0.0005, a);
    MUST(cu.hostFunction(a, note, nullptr));
    a.wait();
    late.push_back(seen[0] - started - 0.0005);
  }
  report("host function after 0.5 ms of work: begins beyond 0.5 ms after", median(late) * 1e6, "us");
  reportText("it runs on",
             lastThread == std::this_thread::get_id() ? "the thread that waits" : "a thread of the driver");
  calls = 0;
  double call = each(200, [&](int) { MUST(cu.hostFunction(a, note, nullptr)); });
  a.wait();
  report("cuLaunchHostFunc, the call", call * 1e6, "us");
  report("host functions in a row", (seen[199] - seen[0]) / 199 * 1e6, "us");
  Event from, to;
  MUST(cu.eventRecord(from, a));
  for (int i = 0; i < 100; ++i) {
    launch(kernels.empty, 1, 32, a, {});
    MUST(cu.hostFunction(a, note, nullptr));
  }
  MUST(cu.eventRecord(to, a));
  a.wait();
  report("an empty kernel and a host function in turn", between(from, to) / 100 * 1e6, "us",
         "the stream waits for the function");
  auto slow = [](void *) { std::this_thread::sleep_for(std::chrono::milliseconds(10)); };
  double started = now();
  MUST(cu.hostFunction(a, slow, nullptr));
  MUST(cu.hostFunction(b, slow, nullptr));
  a.wait();
  b.wait();
  report("host functions of 10 ms on two streams together", (now() - started) * 1e3, "ms");
  reportText("a call of the driver from a host function", [&] {
    static CUresult inside;
    auto ask = [](void *) { inside = cu.streamQuery(nullptr); };
    MUST(cu.hostFunction(a, ask, nullptr));
    a.wait();
    return nameOf(inside);
  }());

  // Values in page-locked memory in place of events and host functions.
  Pinned flags(4 * kib);
  volatile uint32_t *words = static_cast<uint32_t *>(flags.data);
  CUdeviceptr address = reinterpret_cast<CUdeviceptr>(flags.data);
  words[0] = 0;
  words[16] = 0;
  CUresult written = cu.writeValue(a, address, 1, 0), waited = cu.waitValue(a, address, 1, 0);
  reportText("cuStreamWriteValue32", nameOf(written));
  reportText("cuStreamWaitValue32", nameOf(waited));
  a.wait();
  if (written || waited)
    return;
  std::vector<double> there, back;
  for (unsigned i = 1; i <= 200; ++i) {
    // The stream waits for the host's word and answers.
    MUST(cu.waitValue(a, address + 64, i, 0));
    MUST(cu.writeValue(a, address, i + 1, 0));
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    double from = now();
    words[16] = i;
    while (words[0] != i + 1)
      ;
    back.push_back(now() - from);
  }
  a.wait();
  report("the host's word releases a stream, which answers", median(back) * 1e6, "us",
         "there and back, over page-locked memory");
  report("cuStreamWriteValue32, the call", each(1000, [&](int i) { MUST(cu.writeValue(a, address, uint32_t(i),
                                                                                      0)); }) * 1e6, "us");
  a.wait();
  for (int i = 0; i < 50; ++i) {
    double from = now();
    words[0] = 0;
    spinFor(0.0005, a);
    MUST(cu.writeValue(a, address, 1, 0));
    while (!words[0])
      ;
    there.push_back(now() - from - 0.0005);
  }
  a.wait();
  report("launch of 0.5 ms and a word that the host polls: beyond 0.5 ms", median(there) * 1e6, "us");
}

void probe::probeQueues() {
  Stream a;
  for (int round = 0; round < 2; ++round) {
    Event from, to;
    MUST(cu.eventRecord(from, a));
    double call = each(5000, [&](int) { launch(kernels.empty, 1, 32, a, {}); });
    MUST(cu.eventRecord(to, a));
    a.wait();
    if (round) {
      report("cuLaunchKernel, no arguments, the call", call * 1e6, "us");
      report("empty kernels in a row, on the device", between(from, to) / 5000 * 1e6, "us");
    }
  }
  Buffer buffer(4 * kib);
  const void *p = &buffer.address;
  report("cuLaunchKernel, 8 arguments, the call",
         each(5000, [&](int) { launch(kernels.many, 1, 32, a, {p, p, p, p, p, p, p, p}); }) * 1e6, "us");
  a.wait();
  // Queued ahead behind a kernel: what the device needs between two.
  for (unsigned grid : {1u, 132u, 1056u}) {
    Event from, to;
    spinFor(0.01, a);
    MUST(cu.eventRecord(from, a));
    for (int i = 0; i < 500; ++i)
      launch(kernels.empty, grid, 256, a, {});
    MUST(cu.eventRecord(to, a));
    a.wait();
    report("kernels of " + std::to_string(grid) + " empty blocks of 256, queued ahead, on the device",
           between(from, to) / 500 * 1e6, "us");
  }
  // How far ahead the host may queue.
  spinFor(0.2, a);
  int queued = 0;
  for (double started = now(); queued < 20000; ++queued) {
    double from = now();
    launch(kernels.empty, 1, 32, a, {});
    if (now() - from > 0.001 || from - started > 0.15)
      break;
  }
  report("launches queued behind a kernel before a call waits", queued, "");
  a.wait();
  probeEvents();
  probeHostFunctions();
}

void probe::probeGraphs() {
  Stream stream, branch;
  Buffer buffer(4 * mib);
  size_t free = 0, total = 0, after = 0;
  for (int count : {10, 100, 1000}) {
    MUST(cu.memInfo(&free, &total));
    double started = now();
    MUST(cu.beginCapture(stream, 1));
    for (int i = 0; i < count; ++i) {
      CUdeviceptr to = buffer.address + CUdeviceptr(i) * 64;
      unsigned value = unsigned(i);
      launch(kernels.storeAt, 1, 32, stream, {&to, &value});
    }
    CUgraph graph;
    MUST(cu.endCapture(stream, &graph));
    std::string of = std::to_string(count) + " nodes: ";
    report(of + "capture, each", (now() - started) / count * 1e6, "us");
    CUgraphExec exec;
    started = now();
    MUST(cu.graphInstantiate(&exec, graph, 0));
    report(of + "cuGraphInstantiate, each", (now() - started) / count * 1e6, "us");
    started = now();
    MUST(cu.graphUpload(exec, stream));
    stream.wait();
    report(of + "cuGraphUpload", (now() - started) * 1e6, "us");
    MUST(cu.memInfo(&after, &total));
    report(of + "device memory it takes", double(free - after) / mib, "MiB");
    auto play = [&](const std::string &what) {
      std::vector<double> call, device;
      for (int round = 0; round < 20; ++round) {
        Event from, to;
        spinFor(0.001, stream);
        MUST(cu.eventRecord(from, stream));
        double begun = now();
        MUST(cu.graphLaunch(exec, stream));
        call.push_back(now() - begun);
        MUST(cu.eventRecord(to, stream));
        stream.wait();
        device.push_back(between(from, to));
      }
      report(of + "cuGraphLaunch" + what + ", the call", median(call) * 1e6, "us");
      report(of + "on the device" + what + ", each node", median(device) / count * 1e6, "us");
    };
    play("");
    Event from, to;
    std::vector<double> plain;
    for (int round = 0; round < 6; ++round) {
      spinFor(0.01, stream);
      MUST(cu.eventRecord(from, stream));
      for (int i = 0; i < count; ++i) {
        CUdeviceptr at = buffer.address;
        unsigned value = 1;
        launch(kernels.storeAt, 1, 32, stream, {&at, &value});
      }
      MUST(cu.eventRecord(to, stream));
      stream.wait();
      plain.push_back(between(from, to));
    }
    report(of + "the same by launches that were queued ahead, each", median(plain) / count * 1e6, "us");

    std::vector<CUgraphNode> nodes(static_cast<size_t>(count));
    size_t found = nodes.size();
    MUST(cu.graphNodes(graph, nodes.data(), &found));
    for (int changed : {1, count}) {
      std::vector<double> set, launched;
      for (int round = 0; round < 5; ++round) {
        double begun = now();
        for (int i = 0; i < changed; ++i) {
          KernelNodeParams params{};
          MUST(cu.graphNodeParams(nodes[size_t(i)], &params));
          CUdeviceptr at = buffer.address + CUdeviceptr(round) * 4;
          unsigned value = unsigned(round);
          void *arguments[] = {&at, &value};
          params.arguments = arguments;
          MUST(cu.graphSetParams(exec, nodes[size_t(i)], &params));
        }
        set.push_back((now() - begun) / changed);
        begun = now();
        MUST(cu.graphLaunch(exec, stream));
        launched.push_back(now() - begun);
        stream.wait();
      }
      report(of + "cuGraphExecKernelNodeSetParams of " + std::to_string(changed) + ", each", median(set) * 1e6, "us");
      report(of + "cuGraphLaunch after it, the call", median(launched) * 1e6, "us");
    }
    MUST(cu.graphExecDestroy(exec));
    MUST(cu.graphDestroy(graph));
  }

  // Two branches, joined: what a captured event and wait cost beside a straight line.
  Event fork(2), join(2);
  Pinned host(mib);
  MUST(cu.beginCapture(stream, 1));
  for (int i = 0; i < 100; ++i) {
    launch(kernels.empty, 1, 32, stream, {});
    MUST(cu.eventRecord(fork, stream));
    MUST(cu.streamWaitEvent(branch, fork, 0));
    launch(kernels.empty, 1, 32, branch, {});
    MUST(cu.eventRecord(join, branch));
    MUST(cu.streamWaitEvent(stream, join, 0));
  }
  CUgraph graph;
  MUST(cu.endCapture(stream, &graph));
  CUgraphExec exec;
  MUST(cu.graphInstantiate(&exec, graph, 0));
  Event from, to;
  // The seconds of the last of three launches, each behind other work.
  auto secondsOfGraph = [&] {
    for (int round = 0; round < 3; ++round) {
      spinFor(0.001, stream);
      MUST(cu.eventRecord(from, stream));
      MUST(cu.graphLaunch(exec, stream));
      MUST(cu.eventRecord(to, stream));
      stream.wait();
    }
    return between(from, to);
  };
  report("graph of 200 kernels that two streams run in turn, each", secondsOfGraph() / 200 * 1e6, "us");
  MUST(cu.graphExecDestroy(exec));
  MUST(cu.graphDestroy(graph));

  // Copies and host functions as nodes.
  MUST(cu.beginCapture(stream, 1));
  for (int i = 0; i < 50; ++i) {
    launch(kernels.empty, 1, 32, stream, {});
    MUST(cu.toDevice(buffer.address, host.data, 64 * kib, stream));
  }
  CUresult captured = cu.hostFunction(stream, [](void *) {}, nullptr);
  reportText("cuLaunchHostFunc while a stream is captured", nameOf(captured));
  MUST(cu.endCapture(stream, &graph));
  MUST(cu.graphInstantiate(&exec, graph, 0));
  report("graph of 50 empty kernels and 50 H2D copies of 64 KiB, each pair", secondsOfGraph() / 50 * 1e6, "us");
  MUST(cu.graphExecDestroy(exec));
  MUST(cu.graphDestroy(graph));
  // Calls that capture refuses.
  MUST(cu.beginCapture(stream, 1));
  CUdeviceptr address = 0;
  CUresult allocated = cu.memAlloc(&address, mib);
  reportText("cuMemAlloc while a stream is captured (thread local)", nameOf(allocated));
  reportText("cuStreamSynchronize of another stream then", nameOf(cu.streamSynchronize(branch)));
  reportText("cuEventQuery then", nameOf(cu.eventQuery(fork)));
  reportText("cuStreamEndCapture then", nameOf(cu.endCapture(stream, &graph)));
  if (!allocated)
    cu.memFree(address);
}

void probe::probePriority() {
  int least = 0, greatest = 0;
  MUST(cu.priorityRange(&least, &greatest));
  report("priority, least", least, "");
  report("priority, greatest", greatest, "");
  Stream low(least);
  uint64_t ns = 50000;
  for (int priority : {least, greatest}) {
    Stream quick(priority);
    std::vector<double> waited;
    for (int round = 0; round < 10; ++round) {
      // Blocks that fill the device for 50 us each, forty times over.
      launch(kernels.spin, 132 * 2 * 40, 1024, low, {&ns});
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      double started = now();
      launch(kernels.empty, 132, 1024, quick, {});
      quick.wait();
      waited.push_back(now() - started);
      low.wait();
    }
    report("a kernel of 132 blocks (priority " + std::to_string(priority) + ") beside a full device of priority " +
           std::to_string(least),
           median(waited) * 1e6, "us", "2 ms of work were left");
  }
}
