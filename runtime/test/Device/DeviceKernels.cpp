//===- DeviceKernels.cpp - PTX of the kernels of tests --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "DeviceKernels.h"

// %a4 runs from the thread's first unit to the end of the block's piece, %a5, by the
// threads of a block, %a7; %a12 is where the piece begins.
#define SEGUE_PIECE                                                                                                    \
  "  .reg .u64 %a<16>; .reg .u32 %v<8>; .reg .pred %p;\n"                                                              \
  "  ld.param.u64 %a2, [range]; ld.param.u64 %a3, [piece]; mov.u32 %v0, %ctaid.x; cvt.u64.u32 %a13, %v0;\n"            \
  "  mul.lo.u64 %a12, %a13, %a3; add.u64 %a5, %a12, %a3; min.u64 %a5, %a5, %a2;\n"                                     \
  "  mov.u32 %v1, %tid.x; cvt.u64.u32 %a6, %v1; add.u64 %a4, %a12, %a6; mov.u32 %v2, %ntid.x;\n"                       \
  "  cvt.u64.u32 %a7, %v2;\n"
#define SEGUE_LAST ".param .u64 range, .param .u64 piece, .param .u64 fault) .maxntid 32, 1, 1 {\n"
// Tells the code in %a14.
#define SEGUE_FAULT                                                                                                    \
  "  shl.b64 %a13, %a13, 16; or.b64 %a13, %a13, %a14; ld.param.u64 %a15, [fault];\n"                                   \
  "  cvta.to.global.u64 %a15, %a15; red.global.min.u64 [%a15], %a13;\n"

const char *const deviceKernelsPtx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry empty(" SEGUE_LAST "  ret;\n}\n"

    ".visible .entry mix(.param .u64 target, .param .u64 source, " SEGUE_LAST SEGUE_PIECE
    "  ld.param.u64 %a0, [target]; cvta.to.global.u64 %a0, %a0;\n"
    "  ld.param.u64 %a1, [source]; cvta.to.global.u64 %a1, %a1;\n"
    "next: setp.ge.u64 %p, %a4, %a5; @%p bra end; shl.b64 %a8, %a4, 3; add.u64 %a9, %a0, %a8; add.u64 %a10, %a1, %a8;\n"
    "  ld.global.u64 %a8, [%a9]; ld.global.u64 %a11, [%a10]; mad.lo.u64 %a8, %a8, 31, %a11; st.global.u64 [%a9], %a8;\n"
    "  add.u64 %a4, %a4, %a7; bra next;\n"
    "end: ret;\n}\n"

    ".visible .entry mark(.param .u64 counts, .param .u64 grain, " SEGUE_LAST SEGUE_PIECE
    "  ld.param.u64 %a0, [counts]; cvta.to.global.u64 %a0, %a0;\n"
    "  ld.param.u64 %a1, [grain]; cvta.to.global.u64 %a1, %a1; ld.global.u64 %a1, [%a1];\n"
    "  rem.u64 %a1, %a12, %a1; setp.eq.u64 %p, %a1, 0; @%p bra next;\n"
    "  mov.u64 %a14, 99;\n" SEGUE_FAULT "  ret;\n"
    "next: setp.ge.u64 %p, %a4, %a5; @%p bra end; shl.b64 %a8, %a4, 2; add.u64 %a9, %a0, %a8;\n"
    "  ld.global.u32 %v3, [%a9]; add.u32 %v3, %v3, 1; st.global.u32 [%a9], %v3; add.u64 %a4, %a4, %a7; bra next;\n"
    "end: ret;\n}\n"

    ".visible .entry failBehind(.param .u64 limit, " SEGUE_LAST SEGUE_PIECE
    "  ld.param.u64 %a0, [limit]; cvta.to.global.u64 %a0, %a0; ld.global.u64 %a0, [%a0];\n"
    "  setp.le.s64 %p, %a5, %a0; @%p bra end; div.u64 %a14, %a12, 10; add.u64 %a14, %a14, 1;\n" SEGUE_FAULT
    "end: ret;\n}\n"

    ".visible .entry storeAtNull(" SEGUE_LAST
    "  .reg .u64 %a0; .reg .u32 %v0;\n  mov.u64 %a0, 0; mov.u32 %v0, 1; st.global.u32 [%a0], %v0; ret;\n}\n"

    // Each thread writes to a local array at places known only at run time, so that the array needs memory.
    ".visible .entry stack4096(.param .u64 out, " SEGUE_LAST
    "  .local .align 16 .b8 depot[4096];\n  .reg .u64 %a<5>; .reg .u32 %v<4>;\n"
    "  ld.param.u64 %a0, [out]; cvta.to.global.u64 %a0, %a0; ld.param.u32 %v0, [range]; shl.b32 %v0, %v0, 2;\n"
    "  mov.u64 %a1, depot; cvt.u64.u32 %a2, %v0; add.u64 %a1, %a1, %a2;\n"
    "  st.local.u32 [%a1], %v0; st.local.u32 [%a1+64], %v0; xor.b64 %a2, %a2, 64; mov.u64 %a3, depot;\n"
    "  add.u64 %a3, %a3, %a2; ld.local.u32 %v1, [%a3]; st.global.u32 [%a0], %v1; ret;\n}\n";
