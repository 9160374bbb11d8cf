//===- ProgEnums.td - enumerations of the prog dialect -----*- tablegen -*-===//
//
// The enumerators have the values of schemas/program.fbs and binary.fbs.
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_PROG_IR_PROGENUMS_TD
#define SEGUE_DIALECT_PROG_IR_PROGENUMS_TD

include "mlir/IR/EnumAttr.td"

class Prog_I32Enum<string name, string summary, list<I32EnumCase> cases> : I32Enum<name, summary, cases> {
  let cppNamespace = "::segue::prog";
}

def Prog_Phase : Prog_I32Enum<"Phase", "part of a training step", [
    I32EnumCase<"StepBegin", 0, "step_begin">,
    I32EnumCase<"Forward", 1, "forward">,
    I32EnumCase<"Backward", 2, "backward">,
    I32EnumCase<"Optimizer", 3, "optimizer">,
    I32EnumCase<"StepEnd", 4, "step_end">]>;

def Prog_SegmentKind : Prog_I32Enum<"SegmentKind", "what the bytes of a segment are", [
    I32EnumCase<"Elf", 0, "elf">,
    I32EnumCase<"Constants", 1, "constants">,
    I32EnumCase<"Ptx", 2, "ptx">,
    I32EnumCase<"Cubin", 3, "cubin">]>;

def Prog_Isa : Prog_I32Enum<"Isa", "instruction set of a compiled kernel", [
    I32EnumCase<"X86_64_v3", 0, "x86_64_v3">,
    I32EnumCase<"X86_64_v4", 1, "x86_64_v4">,
    I32EnumCase<"Ptx", 2, "ptx">,
    I32EnumCase<"Cubin", 3, "cubin">]>;

def Prog_Activation : Prog_I32Enum<"Activation", "function applied to a matmul's result", [
    I32EnumCase<"None", 0, "none">]>;

#endif // SEGUE_DIALECT_PROG_IR_PROGENUMS_TD
