//===- Commands.td - ops that become commands --------------*- tablegen -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_CONVERSION_SEGUETOPROG_COMMANDS_TD
#define SEGUE_CONVERSION_SEGUETOPROG_COMMANDS_TD

include "mlir/IR/Interfaces.td"

def Segue_CommandOpInterface : OpInterface<"CommandOpInterface"> {
  let cppNamespace = "::segue";
  let description = [{
    An op that becomes commands of a program: a launch, or a call of the library.
    Whoever decides where values lie asks what reading and writing cost there, in
    bytes moved besides the value itself, by the figures of LayoutCosts.h.
  }];
  let methods = [
    InterfaceMethod<"Emits the commands.", "::llvm::LogicalResult", "lower",
    (ins "::segue::FunctionLowering &":$lowering)>,
    InterfaceMethod<[{
      What reading operand number `operand` in `window` costs; nothing if the
      command reads a dense copy.
    }],
    "std::optional<uint64_t>", "getReadCost", (ins "unsigned":$operand, "const ::segue::Window &":$window)>,
    InterfaceMethod<[{
      What writing result number `result` straight to `place` costs; nothing if the
      command cannot.
    }],
    "std::optional<uint64_t>", "getWriteCost", (ins "unsigned":$result, "const ::segue::Window &":$place)>,
    InterfaceMethod<"True if a result may take the place of an operand that the command reads.",
    "bool", "mayWriteOver", (ins "unsigned":$operand, "unsigned":$result), "", "return false;">
  ];
}

#endif // SEGUE_CONVERSION_SEGUETOPROG_COMMANDS_TD
