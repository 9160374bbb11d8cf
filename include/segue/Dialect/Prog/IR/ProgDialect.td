//===- ProgDialect.td - the prog dialect -------------------*- tablegen -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_PROG_IR_PROGDIALECT_TD
#define SEGUE_DIALECT_PROG_IR_PROGDIALECT_TD

include "mlir/IR/OpBase.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"

def Prog_Dialect : Dialect {
  let name = "prog";
  let cppNamespace = "::segue::prog";
  let summary = "programs: buffers and commands, as the runtime plays them";
  let description = [{
    A module of this dialect is a `.segue` file, one to one: each op is a table
    of `schemas/program.fbs` or `schemas/binary.fbs`, and `segue-translate`
    goes both ways (`--prog-to-flatbuffer`, `--flatbuffer-to-prog`).

    | attribute of the module | meaning |
    | --- | --- |
    | `prog.version` | `array<i32: major, minor>` of the file; an older minor is written as the current one |
    | `prog.producer` | who made it |
    | `prog.options` | dictionary of strings: the options that produced it |

    A `prog.program` holds buffers and commands. Buffers are its block
    arguments (inputs, then outputs), `prog.alloc` (temporaries in an arena)
    and `prog.constant`; the last two are untyped bytes. A `prog.view` gives a
    strided window of elements into a buffer, which library commands work on;
    a buffer of an input or output may be used by a command as it is.
    Locations of commands and block arguments are the debug locations of the
    file.
  }];
  let dependentDialects = ["::segue::SegueDialect"];
  let useDefaultAttributePrinterParser = 1;
  let hasOperationAttrVerify = 1;
  let extraClassDeclaration = [{
    static constexpr ::llvm::StringLiteral kVersionAttr = "prog.version";
    static constexpr ::llvm::StringLiteral kProducerAttr = "prog.producer";
    static constexpr ::llvm::StringLiteral kOptionsAttr = "prog.options";

    /// Version of the files that this compiler writes.
    static constexpr int32_t kVersionMajor = 0;
    static constexpr int32_t kVersionMinor = 3;

    void registerAttributes();
  }];
}

#endif // SEGUE_DIALECT_PROG_IR_PROGDIALECT_TD
