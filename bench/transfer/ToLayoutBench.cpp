//===- ToLayoutBench.cpp - toLayout beside memcpy -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each row: a conversion, the bytes that it has to read and write, GB/s of those
// bytes, and the ratio to what moves as many in the same run: memcpy, for row
// storages a plain vectorised loop that does the same. In turns, the least time
// of each. `plan` is CopyPlan::run between two buffers that exist; `toLayout` is
// the call of the runtime with the memory that it takes and gives back.
//
//   segue-bench-transfer [threads] [rounds] [filter] [--json]
//
//===----------------------------------------------------------------------===//

#include "../LeastTime.h"
#include "PlainLoops.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

using namespace segue;
using namespace segue::bench;

namespace {
struct Case {
  const char *name;
  Shape shape;
  ElementType from, to;
  Layout source, target;
  /// What the issue asks for, of the reference.
  double goal;
};
} // namespace

static Layout strided(std::vector<int64_t> strides) { return {.strides = std::move(strides)}; }
static Layout tiled(std::vector<uint32_t> tile) { return {.tile = std::move(tile)}; }
static Layout stored(StorageType storage) { return {.storage = storage}; }

static std::vector<Case> cases() {
  using enum ElementType;
  constexpr double transposed = 0.8, plain = 0.9;
  return {
      {"contiguous f32 1 MiB", {512, 512}, f32, f32, {}, {}, plain},
      {"contiguous f32 64 MiB", {4096, 4096}, f32, f32, {}, {}, plain},
      {"transpose f32", {4096, 4096}, f32, f32, {}, strided({1, 4096}), transposed},
      {"transpose f32, odd extents", {4099, 4093}, f32, f32, {}, strided({1, 4099}), transposed},
      {"transpose bf16", {8192, 4096}, bf16, bf16, {}, strided({1, 8192}), transposed},
      {"transpose i8", {8192, 8192}, i8, i8, {}, strided({1, 8192}), transposed},
      {"transpose i64", {4096, 2048}, i64, i64, {}, strided({1, 4096}), transposed},
      {"batched transpose f32", {64, 512, 512}, f32, f32, {}, strided({512 * 512, 1, 512}), transposed},
      {"outer transpose f32", {8, 256, 48, 64}, f32, f32, {}, strided({48 * 256 * 64, 64, 256 * 64, 1}), transposed},
      {"outer transpose bf16",
       {16, 256, 48, 64},
       bf16,
       bf16,
       {},
       strided({48 * 256 * 64, 64, 256 * 64, 1}),
       transposed},
      {"inner transpose f32", {4096, 64, 64}, f32, f32, {}, strided({64 * 64, 1, 64}), transposed},
      {"to channels last f32", {32, 64, 64, 64}, f32, f32, {}, strided({64 * 64 * 64, 1, 64 * 64, 64}), transposed},
      {"to tiles 32x32 f32", {4096, 4096}, f32, f32, {}, tiled({32, 32}), transposed},
      {"from tiles 32x32 f32", {4096, 4096}, f32, f32, tiled({32, 32}), {}, transposed},
      {"to tiles 32x32 bf16", {8192, 4096}, bf16, bf16, {}, tiled({32, 32}), transposed},
      {"tiles 32x32 to 16x64 f32", {4096, 4096}, f32, f32, tiled({32, 32}), tiled({16, 64}), transposed},
      {"cast f32 to bf16", {4096, 4096}, f32, bf16, {}, {}, transposed},
      {"cast bf16 to f32", {4096, 4096}, bf16, f32, {}, {}, transposed},
      {"cast f32 to f16", {4096, 4096}, f32, f16, {}, {}, transposed},
      {"cast f16 to f32", {4096, 4096}, f16, f32, {}, {}, transposed},
      {"cast bf16 to f16", {4096, 4096}, bf16, f16, {}, {}, transposed},
      {"cast i32 to f32", {4096, 4096}, i32, f32, {}, {}, transposed},
      {"cast f32 to i8", {4096, 4096}, f32, i8, {}, {}, transposed},
      {"cast i64 to i32", {4096, 2048}, i64, i32, {}, {}, transposed},
      {"cast and transpose f32 to bf16", {4096, 4096}, f32, bf16, {}, strided({1, 4096}), transposed},
      {"cast and tile f32 to bf16", {4096, 4096}, f32, bf16, {}, tiled({32, 32}), transposed},
      {"quantize int8 768x3072", {768, 3072}, f32, f32, {}, stored(StorageType::Int8Row), transposed},
      {"quantize int8", {4096, 4096}, f32, f32, {}, stored(StorageType::Int8Row), transposed},
      {"dequantize int8 768x3072", {768, 3072}, f32, f32, stored(StorageType::Int8Row), {}, transposed},
      {"dequantize int8", {4096, 4096}, f32, f32, stored(StorageType::Int8Row), {}, transposed},
  };
}

static void run(const Case &test, int threads, int rounds, const DeviceRef &device, bool json) {
  TensorDesc from(test.shape, test.from, test.source), to(test.shape, test.to, test.target);
  CopyPlan plan(from, to);
  uint64_t moved = plan.bytesRead() + plan.bytesWritten();
  int64_t rows = test.shape[0], columns = int64_t(from.elementCount()) / rows;
  Tensor source = Tensor::zeros(device, from);
  // Values of all magnitudes, none of them a NaN in any element type.
  std::byte *values = source.bytes();
  for (uint64_t i = 0, end = from.spanBytes(); i < end; ++i)
    values[i] = std::byte(i * 37 % 61);
  // From the runtime's allocator for all, so that pages are alike; written once.
  auto bytes = [&](uint64_t count) { return Tensor::zeros(device, TensorDesc({int64_t(count)}, ElementType::i8)); };
  Tensor target = bytes(to.spanBytes()), otherSource = bytes(moved / 2);
  Tensor otherTarget = bytes(std::max(moved / 2, to.spanBytes()));
  bool quantizes = isRowStorage(to.layout.storage), dequantizes = isRowStorage(from.layout.storage);
  if (dequantizes)
    std::fill_n(reinterpret_cast<float *>(source.bytes() + from.parts().scales), rows, 0.01f);

  auto reference = [&] {
    auto *other = otherTarget.bytes();
    if (quantizes)
      plainQuantize(source.data<float>(), reinterpret_cast<int8_t *>(other),
                    reinterpret_cast<float *>(other + to.parts().scales), rows, columns, threads);
    else if (dequantizes)
      plainDequantize(source.data<int8_t>(), reinterpret_cast<float *>(source.bytes() + from.parts().scales),
                      reinterpret_cast<float *>(other), rows, columns, threads);
    else
      plainCopy(otherSource.bytes(), other, moved / 2, threads);
  };
  // Small ones several times, so that the clock does not count.
  int calls = int(std::max<uint64_t>(1, (8 << 20) / moved));
  std::vector<double> seconds = leastTimes(
      rounds, calls,
      {reference, [&] { plan.run(source.bytes(), target.bytes(), threads); }, [&] { copyTo(device, source, to); }});
  double ratio = seconds[0] / seconds[1], callRatio = seconds[0] / seconds[2];
  auto rate = [&](double time) { return double(moved) / time * 1e-9; };
  if (json)
    std::printf("{\"what\":\"%s\",\"threads\":%d,\"bytes\":%llu,\"reference_gbps\":%.3f,\"plan_gbps\":%.3f,"
                "\"to_layout_gbps\":%.3f,\"ratio\":%.3f,\"to_layout_ratio\":%.3f,\"goal\":%.1f}\n",
                test.name, threads, (unsigned long long)moved, rate(seconds[0]), rate(seconds[1]), rate(seconds[2]),
                ratio, callRatio, test.goal);
  else
    std::printf("| %-32s | %7.1f | %6.2f | %6.2f | %6.2f | %5.2f | %5.2f | %.1f%s |\n", test.name,
                double(moved) / (1 << 20), rate(seconds[0]), rate(seconds[1]), rate(seconds[2]), ratio, callRatio,
                test.goal, ratio < test.goal ? " MISSED" : "");
  std::fflush(stdout);
}

int main(int argc, char **argv) {
  bool json = argc > 1 && !std::strcmp(argv[argc - 1], "--json");
  argc -= json;
  int threads = argc > 1 ? std::atoi(argv[1]) : 1, rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  const char *filter = argc > 3 ? argv[3] : "";
  if (threads < 1 || rounds < 1) {
    std::fprintf(stderr, "usage: segue-bench-transfer [threads] [rounds] [filter] [--json]\n");
    return 2;
  }
  DeviceRef device = Device::open("cpu:threads=" + std::to_string(threads));
  if (!json)
    std::printf("%d threads, least of %d, GB/s of the bytes read and written\n\n"
                "| conversion | MiB | reference | plan | toLayout | plan ratio | toLayout ratio | goal |\n"
                "| --- | --: | --: | --: | --: | --: | --: | --: |\n",
                threads, rounds);
  for (const Case &test : cases())
    if (std::strstr(test.name, filter))
      run(test, threads, rounds, device, json);
}
