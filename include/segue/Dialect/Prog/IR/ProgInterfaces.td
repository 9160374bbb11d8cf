//===- ProgInterfaces.td - what commands say of themselves -*- tablegen -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_PROG_IR_PROGINTERFACES_TD
#define SEGUE_DIALECT_PROG_IR_PROGINTERFACES_TD

include "mlir/IR/OpBase.td"

def Prog_WritesStridedOpInterface : OpInterface<"WritesStridedOpInterface"> {
  let cppNamespace = "::segue::prog";
  let description = [{
    A command that can write a result in other strides than its buffer has, so that an
    output which it writes may be given in the layout that a reader wants. Commands
    without the interface write what the file says.
  }];
  let methods = [
    InterfaceMethod<"Returns true if `operand` is a result: the command writes all of it, and reads nothing of it.",
                    "bool", "writesAllOf", (ins "::mlir::Value":$operand)>,
    InterfaceMethod<"Returns true if the command can write a result of `shape` in `strides`, as the runtime verifies.",
                    "bool", "canWriteIn",
                    (ins "::llvm::ArrayRef<int64_t>":$shape, "::llvm::ArrayRef<int64_t>":$strides), [{}], [{ return true; }]>
  ];
}

#endif // SEGUE_DIALECT_PROG_IR_PROGINTERFACES_TD
