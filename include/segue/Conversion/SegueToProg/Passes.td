//===- Passes.td - from tensors to programs ----------------*- tablegen -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_CONVERSION_SEGUETOPROG_PASSES_TD
#define SEGUE_CONVERSION_SEGUETOPROG_PASSES_TD

include "mlir/Pass/PassBase.td"

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
