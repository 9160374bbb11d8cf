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
    A saved value passes from `@forward` to `@backward` of one binary and is seen
    by nobody else: where neither source nor hint gives it a layout
    (`segue-assign-layouts`), each order of its dimensions (up to 4) is priced
    over all functions that write or read it, and the cheapest gets
    `segue.layout`. Prices are bytes moved in the memory of the device
    (LayoutCosts.h): a reader or writer that cannot take the order pays a
    conversion, once for all that share the copy; a product that can pays a small
    penalty across its rows. Shape ops on the way are followed as views. Dense
    rows stay where nothing is gained.

    Inputs, outputs, parameters, gradients and states are given, read or summed
    by others, who take dense rows: they stay as declared. What programs that
    were compiled apart want of each other is found while they run
    (`prog-list-alternatives`) or given as a hint. Temporaries inside of a
    function lie where their readers take them without a copy: see
    `segue-to-prog`.

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
  let statistics = [
    Statistic<"considered", "considered", "Saved values whose layout is open">,
    Statistic<"turned", "turned", "Saved values that do not lie in dense rows">,
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
    producer cannot. The layout of an input or output is that of its type or of
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
  let statistics = [
    Statistic<"copies", "copies", "Commands that only copy">,
    Statistic<"copiedBytes", "copied-bytes", "Bytes written by them">,
    Statistic<"placed", "written-in-place", "Values written straight into a given place">,
    Statistic<"fused", "products-of-codes", "Products that read a weight of codes where it lies">
  ];
}

#endif // SEGUE_CONVERSION_SEGUETOPROG_PASSES_TD
