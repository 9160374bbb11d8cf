//===- Passes.td - from tensors to programs ----------------*- tablegen -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_CONVERSION_SEGUETOPROG_PASSES_TD
#define SEGUE_CONVERSION_SEGUETOPROG_PASSES_TD

include "mlir/Pass/PassBase.td"

def SegueChooseLayouts : Pass<"segue-choose-layouts", "::mlir::ModuleOp"> {
  let summary = "chooses the layouts that the source leaves open";
  let description = [{
    A seam is a tensor that one function of the module returns and another takes:
    what `@forward` saves for `@backward`, the gradients that `@backward` hands to
    `@optimizer`, and an output that is another function's input by its name.
    Where neither source nor hint gives a seam a layout (`segue-assign-layouts`),
    each order of its dimensions (up to 4) is priced over all functions that write
    or read it, and so is each layout that one of its ends was given: the cheapest
    gets `segue.layout` at the open ends. So a producer writes tiles where several
    consumers want them, or where it would copy its output anyway.

    Prices are bytes moved in the memory of the device (LayoutCosts.h): a reader or
    writer that cannot take the order pays a conversion, once for all that share
    the copy; a product that can pays a small penalty across its rows; ends that
    disagree pay the runtime's conversion. Shape ops on the way are followed as
    views. Gradients are also summed by the runtime, and results of `@forward` are
    also read by its caller: both in dense rows, which is priced as one more
    reader. Dense rows stay where nothing is gained. A seam that dense rows cost
    nothing is not looked at any further; others take at most 24 orders times
    their uses, with the views behind these.

    What the caller gives (inputs, parameters) and what lies over something else
    (states, new parameters) stays as declared, dense rows by default. What
    programs that were compiled apart want of each other is found while they run
    (`prog-list-alternatives`) or given as a hint. Temporaries inside of a
    function are ordered by the same prices: see `segue-to-prog`.

    ```mlir
    func.func @forward(...) -> (tensor<64x32xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>}) // of a product
    func.func @backward(%s: tensor<64x32xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>}) ... {
      %t = segue.transpose %s [1, 0] : tensor<64x32xf32> -> tensor<32x64xf32>
      segue.launch @kernels::@k(%t) ...      // reads dense rows
    ```
    becomes
    ```mlir
    func.func @forward(...) -> (tensor<64x32xf32> {segue.layout = #segue.layout<space = device_dram, strides = [1, 64]>, ...})
    func.func @backward(%s: tensor<64x32xf32> {segue.layout = #segue.layout<space = device_dram, strides = [1, 64]>, ...})
    ```
  }];
  let options = [Option<"explain", "explain", "bool", "false", "A remark for each seam: its layout and what it costs">];
  let statistics = [
    Statistic<"considered", "considered", "Seams whose layout is open">,
    Statistic<"turned", "turned", "Seams that do not lie in dense rows">,
    Statistic<"bytesSaved", "bytes-saved", "Bytes that need not be moved for it in a step">
  ];
  let dependentDialects = ["::segue::SegueDialect"];
}

def SegueToProg : Pass<"segue-to-prog", "::mlir::ModuleOp"> {
  let summary = "turns functions over tensors into programs of buffers and commands";
  let description = [{
    Takes what `segue-outline-kernels` leaves: functions of `segue.launch`,
    `dot_general`, `attention`, `attention_grad`, constants and shape ops, and
    the kernels in `@kernels`. Every function becomes a `prog.program`, every
    kernel a `prog.kernel` (the module `@kernels` stays, to be compiled).

    Shape ops become views. Where a value must lie in a given place (a result
    of the function, an operand of a concat, a shape that no strides can show)
    its producer writes there; a copy (`prog.to_layout`) is made only where the
    producer cannot. A temporary that a library call makes lies in the order of
    its dimensions (up to 4) in which making and reading it moves the fewest bytes
    (`choose-orders`), priced as by `segue-choose-layouts`; kernels write dense
    rows. A view is copied where its readers would pay as much for it as it is. The layout of an input or output is that of its type or of
    `segue.layout`; one with tiles or codes is copied to or from a dense
    temporary, where it is first read and after all else is written. A matrix of
    codes that is the right operand of a product is not copied: the product
    reads the codes (`prog.matmul ... as`). What is declared on the host is
    copied to the device where it is first read, and to the host after all else
    is written: commands compute in the memory of the device.

    ```mlir
    func.func @forward(%x: tensor<4x8xf32>, %w: tensor<2x8xf32>) -> tensor<4x2xf32> {
      %t = segue.transpose %w [1, 0] : tensor<2x8xf32> -> tensor<8x2xf32>
      %y = segue.dot_general %x, %t batch [] x [] contract [1] x [0] : ...
      return %y : tensor<4x2xf32>
    }
    ```
    becomes
    ```mlir
    prog.program @forward inputs [...] outputs [...] {
    ^bb0(%x: memref<4x8xf32>, %w: memref<2x8xf32>, %y: memref<4x2xf32>):
      prog.phase forward {
        %a = prog.view %x offset 0 : memref<4x8xf32> to memref<1x4x8xf32>
        %b = prog.view %w offset 0 : memref<2x8xf32> to memref<1x8x2xf32, strided<[16, 1, 8]>>
        %c = prog.view %y offset 0 : memref<4x2xf32> to memref<1x4x2xf32>
        prog.matmul %a, %b into %c : ...
      }
    }
    ```
  }];
  let dependentDialects = ["::segue::prog::ProgDialect"];
  let options = [Option<"chooseOrders", "choose-orders", "bool", "true",
                        "Temporaries lie in the cheapest order of their dimensions, not in dense rows">,
                 Option<"explain", "explain", "bool", "false", "A remark for each temporary that does not lie in dense rows">];
  let statistics = [
    Statistic<"copies", "copies", "Commands that only copy">,
    Statistic<"copiedBytes", "copied-bytes", "Bytes written by them">,
    Statistic<"placed", "written-in-place", "Values written straight into a given place">,
    Statistic<"ordered", "ordered", "Temporaries that do not lie in dense rows">,
    Statistic<"orderedBytes", "ordered-bytes", "Bytes that need not be moved for it">,
    Statistic<"fused", "products-of-codes", "Products that read a weight of codes where it lies">
  ];
}

#endif // SEGUE_CONVERSION_SEGUETOPROG_PASSES_TD
