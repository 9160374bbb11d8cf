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

def ProgUpdateInForward : Pass<"prog-update-in-forward", "::mlir::ModuleOp"> {
  let summary = "makes a forward that updates its parameters first";
  let description = [{
    Adds `@forward_updating`: `@forward`, and before each of its blocks the commands of
    `@optimizer` for the parameters that are read there first. What an update moves is hidden
    behind the products of the blocks before, as nothing is computed beside the updates
    of a phase of their own; and gradients are all known by then, so that they can be
    clipped by their joint norm. Comes before passes that place temporaries.

    The inputs are those of `@forward` and, behind them, the gradients, states and
    hypers of `@optimizer`; hypers are called `update.lr` and so on. The outputs are those
    of both, and parameters and states lie over their inputs. The other programs stay: `@forward` begins a run, and `@optimizer` ends
    one, or updates whenever parameters are read from outside.

    ```mlir
    prog.program @forward_updating inputs [x, w, grad.w, m.w, lr] outputs [y, w, m.w]
        aliases [#prog.alias<output 1 = input 1 required>, #prog.alias<output 2 = input 3 required>] {
      prog.phase forward {
        prog.block "b0" {
          prog.launch @update(...)  // of @optimizer
          prog.matmul ...           // of @forward
    ```
  }];
}

def ProgPlaceInL1 : Pass<"prog-place-in-l1", "::segue::prog::ProgramOp"> {
  let summary = "moves the temporaries that gain most from it into device_l1";
  let description = [{
    Comes before `prog-plan-memory`, which packs each space. A temporary is worth
    the bytes that commands read and write of it (LayoutCosts.h), for the bytes
    that it takes of L1 and the commands during which it does. The best ones go,
    as long as their arena takes no more than `l1-bytes`. On a device without L1,
    or with a full one, the runtime places that arena in `device_dram`.

    ```mlir
    %t = prog.alloc of f32 : memref<4096xi8>
    ```
    becomes
    ```mlir
    %t = prog.alloc of f32 : memref<4096xi8, #segue.space<device_l1>>
    ```
  }];
  let options = [Option<"l1Bytes", "l1-bytes", "uint64_t", "0",
                        "Bytes of device_l1 that a program may take for temporaries; 0: none">];
  let statistics = [Statistic<"placed", "placed", "Temporaries moved">,
                    Statistic<"savedBytes", "saved-bytes", "Bytes that commands move in L1 instead of DRAM">];
}

def ProgListAlternatives : Pass<"prog-list-alternatives", "::segue::prog::ProgramOp"> {
  let summary = "lists the layouts that inputs and outputs can take at no cost";
  let description = [{
    Where two programs that were compiled apart do not agree on a layout, the
    runtime may ask the first for the layout that the second wants, if the
    command that writes the output can write that as well. This pass lists such
    layouts after each output of role `output` or `gradient`, best first:

    - other orders of the dimensions, dense rows first, for outputs of up to 4 dimensions that one
      `matmul`, `attention`, `attention_grad` or `to_layout` writes whole and no
      other command names. The command's view must be able to follow
      (schemas/RetargetStrides.h), and its innermost dimension must stay
      contiguous, or the product must be one that can be turned.
    - rows that begin at multiples of 64 bytes, where they do not, under the
      same conditions.
    - `device_l1`, as declared, for outputs of at most `l1-bytes`.

    An output that lies over an input has none, and neither has one on the host.
    What is declared in `device_l1`, be it input or output, may lie in
    `device_dram` as well: so the program runs where L1 is full, or missing. An
    input, gradient, parameter or frozen value of at most `l1-bytes` that is
    declared in `device_dram`, and that no output lies over, may be given in
    `device_l1`: it is read there, and not copied.

    ```mlir
    outputs [#prog.value<"y" output tensor<4x8xf32>>]
    ```
    becomes
    ```mlir
    outputs [#prog.value<"y" output tensor<4x8xf32> or [<space = device_dram, strides = [1, 4]>, ...]>]
    ```
  }];
  let options = [Option<"l1Bytes", "l1-bytes", "uint64_t", "1 << 20",
                        "Largest input or output that may lie in device_l1; 0: none">];
  let statistics = [Statistic<"alternatives", "alternatives", "Alternatives listed">];
}

#endif // SEGUE_DIALECT_PROG_TRANSFORMS_PASSES_TD
