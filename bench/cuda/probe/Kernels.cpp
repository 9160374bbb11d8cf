//===- Kernels.cpp - the probe's kernels in PTX ---------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Probe.h"
#include <algorithm>

using namespace probe;

// Each thread of `stackN` writes to a local array at places known only at run time, so that the array needs memory.
#define SEGUE_STACK_KERNEL(name, bytes)                                                                                \
  ".visible .entry " name "(.param .u64 out, .param .u32 at) {\n"                                                      \
  "  .local .align 16 .b8 depot[" bytes "];\n  .reg .u64 %a<5>; .reg .u32 %v<4>;\n"                                   \
  "  ld.param.u64 %a0, [out]; ld.param.u32 %v0, [at]; cvta.to.global.u64 %a0, %a0;\n"                                  \
  "  mov.u64 %a1, depot; cvt.u64.u32 %a2, %v0; add.u64 %a1, %a1, %a2;\n"                                               \
  "  st.local.u32 [%a1], %v0; st.local.u32 [%a1+64], %v0; xor.b64 %a2, %a2, 64; mov.u64 %a3, depot;\n"                 \
  "  add.u64 %a3, %a3, %a2; ld.local.u32 %v1, [%a3]; st.global.u32 [%a0], %v1; ret;\n}\n"

const char *probe::kernelText =
    ".version 8.3\n.target sm_90\n.address_size 64\n"
    ".visible .entry empty() { ret; }\n"

    // Eight pointers, as a kernel of a model has.
    ".visible .entry many(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d, .param .u64 e, .param .u64 f,\n"
    "                     .param .u64 g, .param .u64 h) { ret; }\n"

    ".visible .entry spin(.param .u64 ns) {\n"
    "  .reg .u64 %a<4>; .reg .pred %p;\n"
    "  ld.param.u64 %a0, [ns]; mov.u64 %a1, %globaltimer;\n"
    "again: mov.u64 %a2, %globaltimer; sub.u64 %a2, %a2, %a1; setp.lt.u64 %p, %a2, %a0; @%p bra again;\n  ret;\n}\n"

    // Two hundred readings of the device's clock by one thread.
    ".visible .entry clock(.param .u64 out) {\n"
    "  .reg .u64 %a<3>; .reg .u32 %n; .reg .pred %p;\n"
    "  ld.param.u64 %a0, [out]; cvta.to.global.u64 %a0, %a0; mov.u32 %n, 0;\n"
    "again: mov.u64 %a1, %globaltimer; st.global.u64 [%a0], %a1; add.u64 %a0, %a0, 8; add.u32 %n, %n, 1;\n"
    "  setp.lt.u32 %p, %n, 200; @%p bra again;\n  ret;\n}\n"

    // Thread t of T copies the 16 bytes at t, t + T, ... below `count`, all of it `repeat` times, four loads ahead of
    // the stores.
    ".visible .entry copy(.param .u64 to, .param .u64 from, .param .u64 count, .param .u32 repeat) {\n"
    "  .reg .u64 %a<12>; .reg .u32 %v<24>; .reg .pred %p;\n"
    "  ld.param.u64 %a0, [to]; cvta.to.global.u64 %a0, %a0; ld.param.u64 %a1, [from]; cvta.to.global.u64 %a1, %a1;\n"
    "  ld.param.u64 %a2, [count]; ld.param.u32 %v20, [repeat];\n"
    "  mov.u32 %v0, %ctaid.x; mov.u32 %v1, %ntid.x; mov.u32 %v2, %tid.x; mad.wide.u32 %a3, %v0, %v1, 0;\n"
    "  cvt.u64.u32 %a4, %v2; add.u64 %a3, %a3, %a4; mov.u32 %v3, %nctaid.x; mul.wide.u32 %a5, %v3, %v1;\n"
    "  shl.b64 %a6, %a5, 4;\n"
    "whole: setp.eq.u32 %p, %v20, 0; @%p bra end; sub.u32 %v20, %v20, 1; mov.u64 %a7, %a3;\n"
    "next: setp.ge.u64 %p, %a7, %a2; @%p bra whole;\n"
    "  shl.b64 %a8, %a7, 4; add.u64 %a9, %a1, %a8; add.u64 %a10, %a0, %a8;\n"
    "  ld.global.v4.u32 {%v4, %v5, %v6, %v7}, [%a9]; add.u64 %a9, %a9, %a6;\n"
    "  ld.global.v4.u32 {%v8, %v9, %v10, %v11}, [%a9]; add.u64 %a9, %a9, %a6;\n"
    "  ld.global.v4.u32 {%v12, %v13, %v14, %v15}, [%a9]; add.u64 %a9, %a9, %a6;\n"
    "  ld.global.v4.u32 {%v16, %v17, %v18, %v19}, [%a9];\n"
    "  st.global.v4.u32 [%a10], {%v4, %v5, %v6, %v7}; add.u64 %a10, %a10, %a6;\n"
    "  st.global.v4.u32 [%a10], {%v8, %v9, %v10, %v11}; add.u64 %a10, %a10, %a6;\n"
    "  st.global.v4.u32 [%a10], {%v12, %v13, %v14, %v15}; add.u64 %a10, %a10, %a6;\n"
    "  st.global.v4.u32 [%a10], {%v16, %v17, %v18, %v19};\n"
    "  shl.b64 %a11, %a5, 2; add.u64 %a7, %a7, %a11; bra next;\n"
    "end: ret;\n}\n"

    // Reads `count` pieces of 16 bytes and keeps their xor; a store that never happens keeps the loads.
    ".visible .entry readWindow(.param .u64 out, .param .u64 from, .param .u64 count) {\n"
    "  .reg .u64 %a<10>; .reg .u32 %v<12>; .reg .pred %p;\n"
    "  ld.param.u64 %a0, [out]; cvta.to.global.u64 %a0, %a0; ld.param.u64 %a1, [from]; cvta.to.global.u64 %a1, %a1;\n"
    "  ld.param.u64 %a2, [count]; mov.u32 %v8, 0;\n"
    "  mov.u32 %v0, %ctaid.x; mov.u32 %v1, %ntid.x; mov.u32 %v2, %tid.x; mul.wide.u32 %a3, %v0, %v1;\n"
    "  cvt.u64.u32 %a4, %v2; add.u64 %a3, %a3, %a4; mov.u32 %v3, %nctaid.x; mul.wide.u32 %a5, %v3, %v1;\n"
    "next: setp.ge.u64 %p, %a3, %a2; @%p bra done;\n"
    "  shl.b64 %a6, %a3, 4; add.u64 %a7, %a1, %a6; ld.global.v4.u32 {%v4, %v5, %v6, %v7}, [%a7];\n"
    "  xor.b32 %v8, %v8, %v4; xor.b32 %v8, %v8, %v5; xor.b32 %v8, %v8, %v6; xor.b32 %v8, %v8, %v7;\n"
    "  add.u64 %a3, %a3, %a5; bra next;\n"
    "done: setp.ne.u32 %p, %v8, 0x9e3779b9; @%p bra end; st.global.u32 [%a0], %v8;\nend: ret;\n}\n"

    ".visible .entry storeAt(.param .u64 to, .param .u32 value) {\n"
    "  .reg .u64 %a0; .reg .u32 %v0;\n"
    "  ld.param.u64 %a0, [to]; cvta.to.global.u64 %a0, %a0; ld.param.u32 %v0, [value];\n"
    "  st.global.u32 [%a0], %v0; ret;\n}\n"

    ".visible .entry trap() { trap; }\n"

    SEGUE_STACK_KERNEL("stack1", "1024") SEGUE_STACK_KERNEL("stack4", "4096") SEGUE_STACK_KERNEL("stack16", "16384");

void Kernels::load() {
  MUST(cu.moduleLoad(&module, kernelText));
  const std::pair<const char *, CUfunction *> names[] = {
      {"empty", &empty},   {"spin", &spin},     {"copy", &copy},     {"readWindow", &readWindow},
      {"storeAt", &storeAt}, {"trap", &trap},   {"clock", &clock},   {"stack1", &stack1},
      {"stack4", &stack4}, {"stack16", &stack16}, {"many", &many}};
  for (auto [name, function] : names)
    MUST(cu.moduleFunction(function, module, name));
}

void probe::launch(CUfunction kernel, unsigned grid, unsigned block, CUstream stream,
                   std::initializer_list<const void *> arguments) {
  std::vector<void *> pointers;
  for (const void *argument : arguments)
    pointers.push_back(const_cast<void *>(argument));
  MUST(cu.launch(kernel, grid, 1, 1, block, 1, 1, 0, stream, pointers.data(), nullptr));
}

void probe::spinFor(double seconds, CUstream stream) {
  uint64_t ns = uint64_t(seconds * 1e9);
  launch(kernels.spin, 1, 1, stream, {&ns});
}

void probe::copyKernel(CUdeviceptr to, CUdeviceptr from, size_t bytes, unsigned repeat, CUstream stream) {
  // The kernel has four pieces in flight per thread: the grid divides the pieces, so that it needs no tail.
  uint64_t count = bytes / 16;
  unsigned grid = unsigned(std::max<uint64_t>(1, std::min<uint64_t>(132 * 8, count / (4 * 256))));
  while (grid > 1 && count % (uint64_t(grid) * 256 * 4))
    --grid;
  launch(kernels.copy, grid, 256, stream, {&to, &from, &count, &repeat});
}
