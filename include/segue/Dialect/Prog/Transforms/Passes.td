//===- Passes.td - passes on the prog dialect --------------*- tablegen -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_PROG_TRANSFORMS_PASSES_TD
#define SEGUE_DIALECT_PROG_TRANSFORMS_PASSES_TD

include "mlir/Pass/PassBase.td"

def ProgPlanMemory : Pass<"prog-plan-memory", "::segue::prog::ProgramOp"> {
  let summary = "gives every temporary its place in an arena";
  let description = [{
    A temporary lives from the first command that uses it to the last. Two
    temporaries that live at different times may share bytes. Placing them in
    the fewest bytes is NP-hard (dynamic storage allocation); three greedy
    orders are tried and the best is kept: largest first, largest size times
    lifetime first, and first use first, each putting a temporary at the lowest
    offset that is free while it lives.

    A launch that lists a pair in `in_place` lets its output take the place of
    an input that dies there. The pass uses and removes these lists.

    ```mlir
    %a = prog.alloc : memref<100xi8>     // used by commands 0 and 1
    %b = prog.alloc : memref<100xi8>     // by 1 and 2
    %c = prog.alloc : memref<100xi8>     // by 2 and 3
    ```
    becomes
    ```mlir
    %a = prog.alloc offset 0 : memref<100xi8>
    %b = prog.alloc offset 128 : memref<100xi8>
    %c = prog.alloc offset 0 : memref<100xi8>
    ```
    with `arenas [#prog.arena<device_dram bytes = 256 lower_bound = 256 alignment = 64>]`:
    no placement needs less than the lower bound, the peak of the live bytes.
  }];
  let statistics = [
    Statistic<"temporaries", "temporaries", "Temporaries placed">,
    Statistic<"arenaBytes", "arena-bytes", "Bytes of all arenas">,
    Statistic<"lowerBoundBytes", "lower-bound-bytes", "Peak of the live bytes">,
    Statistic<"worstPermille", "worst-ratio-permille", "Largest arena / lower bound of a program, in thousandths">,
    Statistic<"inPlace", "in-place", "Outputs that took the place of an input">
  ];
}

#endif // SEGUE_DIALECT_PROG_TRANSFORMS_PASSES_TD
