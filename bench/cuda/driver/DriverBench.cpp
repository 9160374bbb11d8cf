//===- DriverBench.cpp - what the device cuda:0 costs ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
//   segue-cuda-driver [PART ...]
//
// The link, queues, launches, memory, products (of codes, too), attention and errors of cuda:0 through the interface of
// devices: a line of JSON per figure, with the names of the probe beside it (bench/cuda/probe)
// where that measured the same. `lost` ends the GPU for this process and comes last.
//
//===----------------------------------------------------------------------===//

#include "../../../runtime/lib/Cuda/DriverApi.h"
#include "../../../runtime/test/Device/DeviceKernels.h"
#include "segue/runtime/Cuda/CudaDriver.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>
#include <vector>

using namespace segue;

static constexpr uint64_t kib = 1 << 10, mib = 1 << 20, gib = 1 << 30;
static std::string part;

static void report(const std::string &name, double value, const char *unit) {
  std::printf("{\"part\":\"%s\",\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\"}\n", part.c_str(), name.c_str(), value, unit);
  std::fflush(stdout);
}

static double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static std::string sized(uint64_t bytes) {
  return bytes < mib ? std::to_string(bytes / kib) + " KiB" : std::to_string(bytes / mib) + " MiB";
}

/// Returns the bytes that the driver has given to anybody.
static double takenBytes() {
  size_t free = 0, total = 0;
  cuda::Api::open("cuda:0").memInfo(&free, &total);
  return double(total - free);
}

static KernelRef kernel(Device &device, const char *name) {
  KernelSource source{"bench", name, {}};
  source.variants.push_back({KernelIsa::Ptx, 0, std::as_bytes(std::span(std::string_view(deviceKernelsPtx))), name});
  return device.makeKernel(source);
}

namespace {
struct Block {
  Device &device;
  Space space;
  uint64_t bytes;
  MemoryBlock block;
  Block(Device &device, Space space, uint64_t bytes)
      : device(device), space(space), bytes(bytes), block(device.memory().allocate(space, bytes, 512)) {}
  Block(const Block &) = delete;
  ~Block() { device.memory().free(space, block.data, bytes, 512, block.account, {}); }
  std::byte *data() const { return static_cast<std::byte *>(block.data); }
};
} // namespace

/// An entry that must not fail.
static uint64_t enqueue(Device &device, Queue queue, const Fence &after, std::function<void()> body) {
  Work work;
  work.run = std::move(body);
  work.ended = [](const Error *error) {
    if (error) {
      std::fprintf(stderr, "segue-cuda-driver: %s\n", error->what());
      std::exit(1);
    }
  };
  return device.enqueue(queue, after, std::move(work));
}

/// Seconds of entries on `queues` by stamps, the median of `rounds`; `body` gives the work of one.
static double timed(Device &device, std::vector<Queue> queues, int rounds, const std::function<void(Queue)> &body) {
  std::vector<double> found;
  for (int round = 0; round <= rounds; ++round) {
    std::vector<TimestampRef> begins, ends;
    Fence all;
    for (Queue queue : queues) {
      begins.push_back(std::make_shared<Timestamp>()), ends.push_back(std::make_shared<Timestamp>());
      uint64_t position = enqueue(device, queue, {}, [&, begin = begins.back(), end = ends.back()] {
        device.stamp(begin);
        body(queue);
        device.stamp(end);
      });
      all.join(Fence(queue, position));
    }
    device.wait(all);
    double begin = begins[0]->seconds(), end = ends[0]->seconds();
    for (size_t i = 1; i < begins.size(); ++i)
      begin = std::min(begin, begins[i]->seconds()), end = std::max(end, ends[i]->seconds());
    if (round)
      found.push_back(end - begin);
  }
  std::ranges::nth_element(found, found.begin() + ptrdiff_t(found.size() / 2));
  return found[found.size() / 2];
}

static void measureLink() {
  DeviceRef device = Device::open("cuda:0,dram=1GiB,pinned=1GiB");
  Block up(*device, Space::HostPinned, 256 * mib), down(*device, Space::HostPinned, 256 * mib);
  Block to(*device, Space::DeviceDram, 256 * mib), from(*device, Space::DeviceDram, 256 * mib);
  std::memset(up.data(), 1, 256 * mib);
  auto copies = [&](Queue queue, uint64_t bytes) {
    for (uint64_t at = 0; at < 256 * mib; at += bytes)
      queue == Queue::HostToDevice ? device->copy(to.data() + at, up.data() + at, bytes)
                                   : device->copy(down.data() + at, from.data() + at, bytes);
  };
  for (uint64_t bytes : {64 * kib, mib, 4 * mib, 16 * mib, 64 * mib, 256 * mib}) {
    for (Queue queue : {Queue::HostToDevice, Queue::DeviceToHost}) {
      double seconds = timed(*device, {queue}, 5, [&](Queue) { copies(queue, bytes); });
      report(std::string(name(queue)) + " page-locked, in a row of " + sized(bytes), 256 * double(mib) / seconds / 1e9,
             "GB/s");
    }
    double seconds = timed(*device, {Queue::HostToDevice, Queue::DeviceToHost}, 5, [&](Queue q) { copies(q, bytes); });
    report("both directions at once, each, in a row of " + sized(bytes), 256 * double(mib) / seconds / 1e9, "GB/s");
  }
  for (uint64_t bytes : {4 * kib, 64 * kib, mib}) {
    double begin = now();
    for (int i = 0; i < 100; ++i)
      device->wait(Fence(Queue::HostToDevice, enqueue(*device, Queue::HostToDevice, {},
                                                      [&] { device->copy(to.data(), up.data(), bytes); })));
    report("one copy of " + sized(bytes) + " with the wait for it", (now() - begin) / 100 * 1e6, "us");
  }
  std::vector<std::byte> pageable(64 * mib, std::byte(3));
  for (bool inBody : {true, false})
    for (Queue queue : {Queue::HostToDevice, Queue::DeviceToHost}) {
      auto copy = [&] {
        queue == Queue::HostToDevice ? device->copy(to.data(), pageable.data(), 64 * mib)
                                     : device->copy(pageable.data(), from.data(), 64 * mib);
      };
      double begin = now();
      for (int i = 0; i < 3; ++i)
        inBody ? device->wait(Fence(queue, enqueue(*device, queue, {}, copy))) : copy();
      report(std::string(name(queue)) + " pageable 64 MiB, " + (inBody ? "in a body" : "outside of one"),
             3 * 64 * double(mib) / (now() - begin) / 1e9, "GB/s");
    }
}

static void measureQueues() {
  DeviceRef device = Device::open("cuda:0,dram=256MiB,pinned=64MiB");
  constexpr int count = 2000;
  auto run = [&](const char *what, int each, const std::function<void(int, Fence &)> &enqueue) {
    for (bool isTimed : {false, true}) {
      Fence last;
      double begin = now();
      for (int i = 0; i < count; ++i)
        enqueue(i, last);
      double queued = now() - begin;
      device->drain();
      if (!isTimed)
        continue;
      report(std::string(what) + ", the call", queued / count / each * 1e6, "us");
      report(std::string(what) + ", to its end", (now() - begin) / count / each * 1e6, "us");
    }
  };
  run("an empty entry", 1, [&](int, Fence &) { device->enqueue(Queue::Compute, {}, {}); });
  run("an entry behind one of another queue", 1, [&](int i, Fence &last) {
    Queue queue = i % 2 ? Queue::Compute : Queue::HostToDevice;
    last = Fence(queue, device->enqueue(queue, last, {}));
  });
  KernelRef empty = kernel(*device, "empty");
  run("an entry with an empty kernel", 1, [&](int, Fence &) {
    enqueue(*device, Queue::Compute, {}, [&] { device->launch(*empty, {}, 1, 1, 1); });
  });
  run("an empty kernel of ten in an entry", 10, [&](int, Fence &) {
    enqueue(*device, Queue::Compute, {}, [&] {
      for (int k = 0; k < 10; ++k)
        device->launch(*empty, {}, 1, 1, 1);
    });
  });
  run("an entry with an empty kernel behind another queue's", 1, [&](int i, Fence &last) {
    Queue queue = i % 2 ? Queue::Compute : Queue::HostToDevice;
    last = Fence(queue, enqueue(*device, queue, last, [&] { device->launch(*empty, {}, 1, 1, 1); }));
  });
  double begin = now();
  for (int i = 0; i < 200; ++i)
    device->wait(Fence(Queue::Compute, enqueue(*device, Queue::Compute, {}, [&] { device->launch(*empty, {}, 1, 1, 1); })));
  report("an empty kernel with the wait for it", (now() - begin) / 200 * 1e6, "us");
  begin = now();
  for (int i = 0; i < 200; ++i)
    device->wait(Fence(Queue::Compute, device->enqueueCall(Queue::Compute, {}, [] {})));
  report("a host function with the wait for it", (now() - begin) / 200 * 1e6, "us");
  run("a host function", 1, [&](int, Fence &) { device->enqueueCall(Queue::Compute, {}, [] {}); });

  // Times: of stamps in a row, the least difference that is not 0, and how many differ.
  std::vector<TimestampRef> stamps;
  for (int i = 0; i < 400; ++i) {
    stamps.push_back(std::make_shared<Timestamp>());
    device->enqueueStamp(Queue::Compute, {}, stamps.back());
  }
  device->drain();
  double least = 1, descending = 0;
  for (size_t i = 1; i < stamps.size(); ++i) {
    double step = stamps[i]->seconds() - stamps[i - 1]->seconds();
    least = step > 0 ? std::min(least, step) : least;
    descending += step < 0;
  }
  report("least step between stamps", least * 1e9, "ns");
  report("stamps in a row that descend", descending, "");
  report("a stamp behind the host's clock when it is seen", (device->seconds() - stamps.back()->seconds()) * 1e6, "us");
}

static void measureMemory() {
  double begin = now();
  DeviceRef device = Device::open("cuda:0,dram=16GiB,pinned=2GiB");
  report("open, a second in the process", now() - begin, "s");
  double before = takenBytes();
  for (uint64_t bytes : {512 * kib, 2 * mib, 64 * mib, gib})
    for (const char *when : {"first", "again"}) {
      uint64_t count = std::min<uint64_t>(64, 4 * gib / bytes);
      std::vector<MemoryBlock> blocks;
      begin = now();
      for (uint64_t i = 0; i < count; ++i)
        blocks.push_back(device->memory().allocate(Space::DeviceDram, bytes, 512));
      double took = now() - begin;
      begin = now();
      for (const MemoryBlock &block : blocks)
        device->memory().free(Space::DeviceDram, block.data, bytes, 512, block.account, {});
      report("allocate " + sized(bytes) + ", " + when, took / double(count) * 1e6, "us");
      report("free " + sized(bytes) + ", " + when, (now() - begin) / double(count) * 1e6, "us");
    }
  report("taken after 4 GiB were used", (takenBytes() - before) / double(mib), "MiB");
  device->memory().setBudget(Space::DeviceDram, gib);
  report("taken after the budget became 1 GiB", (takenBytes() - before) / double(mib), "MiB");
  device->memory().setBudget(Space::DeviceDram, 4 * gib);
  auto measureBlock = [&](const char *what, const MemoryBlock &block) {
    double seconds = timed(*device, {Queue::Compute}, 5, [&](Queue) {
      for (int i = 0; i < 10; ++i)
        device->engine().fill(block.data, 2 * gib, 7, 4);
    });
    report(std::string("fill of 2 GiB ") + what, 20 * double(gib) / seconds / 1e9, "GB/s");
    seconds = timed(*device, {Queue::Compute}, 5, [&](Queue) {
      for (int i = 0; i < 10; ++i)
        device->copy(static_cast<std::byte *>(block.data) + gib, block.data, gib);
    });
    report(std::string("copy within 2 GiB ") + what + " (bytes read and written)", 20 * double(gib) / seconds / 1e9, "GB/s");
  };
  {
    Block plain(*device, Space::DeviceDram, 2 * gib);
    measureBlock("of neighbouring chunks", plain.block);
  }
  // Every other chunk of 4 GiB is free, and one block takes them all.
  std::vector<MemoryBlock> blocks;
  for (int i = 0; i < 2048; ++i)
    blocks.push_back(device->memory().allocate(Space::DeviceDram, 2 * mib, 512));
  for (size_t i = 0; i < blocks.size(); i += 2)
    device->memory().free(Space::DeviceDram, blocks[i].data, 2 * mib, 512, blocks[i].account, {});
  begin = now();
  MemoryBlock whole = device->memory().allocate(Space::DeviceDram, 2 * gib, 512);
  report("allocate 2 GiB from 1024 chunks that lie apart", (now() - begin) * 1e3, "ms");
  report("taken then", (takenBytes() - before) / double(mib), "MiB");
  measureBlock("of chunks that lay apart", whole);
  begin = now();
  MemoryBlock locked = device->memory().allocate(Space::HostPinned, gib, 512);
  report("page-lock 1 GiB", now() - begin, "s");
  device->memory().free(Space::HostPinned, locked.data, gib, 512, locked.account, {});
  device->memory().free(Space::DeviceDram, whole.data, 2 * gib, 512, whole.account, {});
  for (size_t i = 1; i < blocks.size(); i += 2)
    device->memory().free(Space::DeviceDram, blocks[i].data, 2 * mib, 512, blocks[i].account, {});
  before = takenBytes();
  uint64_t live = device->memory().liveBytes(Space::DeviceDram);
  device->memory().setBudget(Space::DeviceDram, 16 * gib);
  KernelRef deep = kernel(*device, "stack4096");
  report("stacks of 4 KiB, by the books", double(device->memory().liveBytes(Space::DeviceDram) - live) / double(mib), "MiB");
  report("stacks of 4 KiB, taken when the kernel was made", (takenBytes() - before) / double(mib), "MiB");
  Block out(*device, Space::DeviceDram, 4096);
  double made = takenBytes();
  void *args[] = {out.data()};
  device->launch(*deep, args, 1, 1, 1);
  report("and with its first launch", (takenBytes() - made) / double(mib), "MiB");
}

static void measureLoss() {
  DeviceRef device = Device::open("cuda:0,dram=64MiB,pinned=8MiB");
  Block there(*device, Space::DeviceDram, mib), here(*device, Space::HostPinned, mib);
  std::memset(here.data(), 9, mib);
  KernelRef wild = kernel(*device, "storeAtNull");
  std::string message;
  int ended = 0;
  double begin = now();
  Work work;
  work.run = [&] { device->launch(*wild, {}, 1, 1, 1); };
  work.ended = [&](const Error *error) { message = error ? error->what() : "nothing", ++ended; };
  Fence last(Queue::Compute, device->enqueue(Queue::Compute, {}, std::move(work)));
  for (int i = 0; i < 30; ++i)
    for (Queue queue : allQueues) {
      Work more;
      more.run = [&] {
        device->copy(there.data(), here.data(), mib);
        device->call([] {});
      };
      more.ended = [&](const Error *error) { ended += error && error->code() == ErrorCode::DeviceLost; };
      last.join(Fence(queue, device->enqueue(queue, last, std::move(more))));
    }
  device->wait(last);
  report("entries that ended with the loss, of 91", ended, "");
  report("from the launch to the last of them", now() - begin, "s");
  report("page-locked memory is whole", std::ranges::count(std::span(here.data(), mib), std::byte(9)) == int64_t(mib), "");
  std::string escaped;
  for (char c : message)
    escaped += c == '"' ? "'" : std::string(1, c);
  std::printf("{\"part\":\"lost\",\"name\":\"message\",\"text\":\"%s\"}\n", escaped.c_str());
}

/// Products of the engine: what a plan costs, a small product in a row, and large ones.
static void measureProducts() {
  struct {
    const char *name;
    ElementType element;
    int64_t m, n, k;
    /// A weight [n, k], as linear layers have it, and a bias.
    bool isLinear;
    const char *options;
  } products[] = {{"64^3 in f32", ElementType::f32, 64, 64, 64, false, ""},
                  {"8192^3 in f32", ElementType::f32, 8192, 8192, 8192, false, ""},
                  {"8192^3 in tf32", ElementType::f32, 8192, 8192, 8192, false, ",tf32=on"},
                  {"8192^3 in bf16", ElementType::bf16, 8192, 8192, 8192, false, ""},
                  {"8192^3 in f16", ElementType::f16, 8192, 8192, 8192, false, ""},
                  {"8192x768x3072 in bf16 with a bias (GPT-2 fc)", ElementType::bf16, 8192, 3072, 768, true, ""},
                  {"8192x3072x768 in bf16 with a bias (GPT-2 out)", ElementType::bf16, 8192, 768, 3072, true, ""}};
  for (const auto &[name, element, m, n, k, isLinear, options] : products) {
    DeviceRef device = Device::open(std::string("cuda:0,dram=2GiB,pinned=64MiB") + options);
    uint64_t size = byteSize(element);
    Block a(*device, Space::DeviceDram, uint64_t(m * k) * size), b(*device, Space::DeviceDram, uint64_t(n * k) * size),
        c(*device, Space::DeviceDram, uint64_t(m * n) * size), bias(*device, Space::DeviceDram, uint64_t(n) * size);
    // 0.5 in f32 and a small number in bf16 and f16: a GPU is faster on zeros.
    for (Block *block : {&a, &b, &bias})
      device->engine().fill(block->data(), block->bytes, size == 4 ? 0x3f000000 : 0x3001, uint32_t(size));
    MatmulSpec spec{1, m, n, k, {element, {0, k, 1}}, {element, {0, n, 1}}, {element, {0, n, 1}}, isLinear, element};
    if (isLinear)
      spec.b.strides = {0, 1, k};
    double begin = now();
    auto plan = device->engine().planMatmul(spec);
    report(std::string(name) + ", the plan", (now() - begin) * 1e6, "us");
    constexpr int count = 20;
    auto run = [&] {
      Fence last;
      for (int i = 0; i < count; ++i)
        last = Fence(Queue::Compute, enqueue(*device, Queue::Compute, {}, [&] {
                       plan->run(a.data(), b.data(), c.data(), isLinear ? bias.data() : nullptr);
                     }));
      device->wait(last);
    };
    run();
    begin = now();
    run();
    double seconds = (now() - begin) / count;
    report(std::string(name) + ", in a row", seconds * 1e6, "us");
    report(std::string(name) + ", " + plan->describe(), spec.flops() / seconds * 1e-12, "TFLOP/s");
  }
}

/// Products of bf16 with a weight of codes, in the shapes of `fc` and of a layer of 4096, both forms: as floats, and
/// with x rounded to codes.
static void measureCodeProducts() {
  constexpr struct {
    const char *name;
    int64_t rows, out, in;
  } layers[] = {{"8192x3072x768", 8192, 3072, 768}, {"4096x4096x4096", 4096, 4096, 4096}};
  for (const char *options : {"", ",codes=on", ",codes=on,panels=128MiB"})
    for (auto [storage, kind] : {std::pair(StorageType::Int8Row, "int8"), {StorageType::Fp8E4M3Row, "fp8"}})
      for (const auto &[name, rows, out, in] : layers)
        for (bool transposed : {false, true}) {
          DeviceRef device = Device::open(std::string("cuda:0,dram=2GiB,pinned=64MiB") + options);
          QuantizedMatmulSpec spec{.rows = rows, .out = out, .in = in, .codeStride = in, .storage = storage};
          spec.transposed = transposed;
          spec.x = spec.y = ElementType::bf16;
          spec.xStride = spec.depth();
          spec.yStride = spec.columns();
          Block x(*device, Space::DeviceDram, uint64_t(rows * spec.depth()) * 2),
              y(*device, Space::DeviceDram, uint64_t(rows * spec.columns()) * 2),
              codes(*device, Space::DeviceDram, uint64_t(out * in)),
              scales(*device, Space::DeviceDram, uint64_t(out) * 4);
          device->engine().fill(x.data(), x.bytes, 0x3c01, 2);
          device->engine().fill(codes.data(), codes.bytes, 0x21, 1);
          device->engine().fill(scales.data(), scales.bytes, 0x3c000000, 4);
          auto plan = device->engine().planQuantizedMatmul(spec);
          constexpr int count = 20;
          auto run = [&] {
            Fence last;
            for (int i = 0; i < count; ++i)
              last = Fence(Queue::Compute, enqueue(*device, Queue::Compute, {}, [&] {
                             plan->run({.x = x.data(), .codes = codes.data(), .scales = scales.data(), .y = y.data()});
                           }));
            device->wait(last);
          };
          run();
          double begin = now();
          run();
          double seconds = (now() - begin) / count;
          report(std::string(name) + (transposed ? " dx, " : ", ") + kind + options + ", " + plan->describe(),
                 spec.flops() / seconds * 1e-12, "TFLOP/s");
        }
}

/// Causal attention and its derivative in the shapes of bench/cuda/kernels/attention.py, and heads of 256 dims. Half of the
/// products of all scores count as operations: two forward and five backward.
static void measureAttention() {
  constexpr struct {
    int64_t batch, heads, length, dim;
  } shapes[] = {{8, 12, 1024, 64}, {2, 16, 2048, 128}, {1, 16, 8192, 128}, {2, 8, 2048, 256}};
  DeviceRef device = Device::open("cuda:0,dram=2GiB,pinned=64MiB");
  for (ElementType element : {ElementType::bf16, ElementType::f16, ElementType::f32})
    for (auto [batch, heads, length, dim] : shapes) {
      if (element == ElementType::f32 && length > 1024)
        continue;
      AttentionGradSpec spec;
      AttentionSpec &forward = spec.forward;
      forward.batch = batch, forward.heads = heads, forward.rows = forward.keys = length, forward.dim = dim;
      forward.element = element;
      forward.causal = true;
      forward.scale = 1 / std::sqrt(float(dim));
      AttentionStrides strides{heads * length * dim, length * dim, dim, 1};
      forward.q = forward.k = forward.v = forward.out = strides;
      spec.gradOut = spec.gradQ = spec.gradK = spec.gradV = strides;
      uint64_t bytes = uint64_t(batch * heads * length * dim) * byteSize(element);
      // Numbers between -1 and 1: a GPU is faster on zeros.
      std::vector<std::byte> numbers(bytes);
      uint64_t random = 1;
      for (size_t i = 0; i < bytes / byteSize(element); ++i) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        float value = std::ldexp(float(int64_t(random) >> 40), -23);
        uint32_t bits = element == ElementType::f32    ? std::bit_cast<uint32_t>(value)
                        : element == ElementType::bf16 ? floatToBf16(value)
                                                       : floatToF16(value);
        std::memcpy(&numbers[i * byteSize(element)], &bits, byteSize(element));
      }
      Block q(*device, Space::DeviceDram, bytes), k(*device, Space::DeviceDram, bytes),
          v(*device, Space::DeviceDram, bytes), out(*device, Space::DeviceDram, bytes),
          gradOut(*device, Space::DeviceDram, bytes), gradQ(*device, Space::DeviceDram, bytes),
          gradK(*device, Space::DeviceDram, bytes), gradV(*device, Space::DeviceDram, bytes),
          lse(*device, Space::DeviceDram, uint64_t(batch * heads * length) * 4);
      for (Block *block : {&q, &k, &v, &gradOut})
        device->copy(block->data(), numbers.data(), bytes);
      auto plan = device->engine().planAttention(forward);
      auto gradPlan = device->engine().planAttentionGrad(spec);
      std::string shape = "[" + std::to_string(batch) + ", " + std::to_string(heads) + ", " + std::to_string(length) +
                          ", " + std::to_string(dim) + "] " + std::string(name(element));
      double flops = double(batch * heads) * double(length) * double(length) * double(dim);
      auto *sums = reinterpret_cast<float *>(lse.data());
      auto measure = [&](const char *what, double products, const std::function<void()> &run) {
        constexpr int count = 10;
        double seconds = timed(*device, {Queue::Compute}, 5, [&](Queue) {
          for (int i = 0; i < count; ++i)
            run();
        });
        report(shape + what, seconds / count * 1e6, "us");
        report(shape + what, products * flops * count / seconds * 1e-12, "TFLOP/s");
      };
      measure(", forward", 2, [&] { plan->run({q.data(), k.data(), v.data(), nullptr, nullptr, nullptr, out.data(), sums}); });
      measure(", backward", 5, [&] {
        gradPlan->run({q.data(), k.data(), v.data(), nullptr, nullptr, nullptr, out.data(), sums, gradOut.data(),
                       gradQ.data(), gradK.data(), gradV.data()});
      });
    }
}

int main(int argc, char **argv) {
  useCuda();
  std::pair<const char *, void (*)()> parts[] = {
      {"link", measureLink}, {"queues", measureQueues}, {"memory", measureMemory},
      {"products", measureProducts}, {"codes", measureCodeProducts}, {"attention", measureAttention},
      {"lost", measureLoss}};
  try {
    double begin = now();
    DeviceRef device = Device::open("cuda:0,dram=2MiB,pinned=1MiB"); // keeps the context
    part = "open";
    report("open, the first in the process", now() - begin, "s");
    for (auto [name, measure] : parts) {
      bool isAsked = argc < 2;
      for (int i = 1; i < argc; ++i)
        isAsked |= std::string_view(argv[i]) == name;
      part = name;
      if (isAsked)
        measure();
    }
  } catch (const Error &error) {
    std::fprintf(stderr, "segue-cuda-driver: %s\n", error.what());
    return 1;
  }
  return 0;
}
