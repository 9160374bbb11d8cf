//===- SegueAttrs.td - attributes of the segue dialect -----*- tablegen -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_IR_SEGUEATTRS_TD
#define SEGUE_DIALECT_SEGUE_IR_SEGUEATTRS_TD

include "mlir/IR/TensorEncoding.td"
include "segue/Dialect/Segue/IR/SegueDialect.td"

class Segue_Attr<string name, string mnem, list<Trait> traits = []>
    : AttrDef<Segue_Dialect, name, traits> {
  let mnemonic = mnem;
}

class Segue_I32Enum<string name, string summary, list<I32EnumCase> cases>
    : I32Enum<name, summary, cases> {
  let cppNamespace = "::segue";
}

//===----------------------------------------------------------------------===//
// Layout. The enumerators have the values of schemas/types.fbs.
//===----------------------------------------------------------------------===//

def Segue_Space : Segue_I32Enum<"Space", "where bytes live", [
    I32EnumCase<"Host", 0, "host">,
    I32EnumCase<"HostPinned", 1, "host_pinned">,
    I32EnumCase<"DeviceDram", 2, "device_dram">,
    I32EnumCase<"DeviceL1", 3, "device_l1">]>;
def Segue_SpaceAttr : EnumAttr<Segue_Dialect, Segue_Space, "space"> {
  let assemblyFormat = "`<` $value `>`";
}

def Segue_Storage : Segue_I32Enum<"Storage", "how an element is stored", [
    I32EnumCase<"Element", 0, "element">,
    I32EnumCase<"Int8Row", 1, "int8_row">,
    I32EnumCase<"Fp8E4M3Row", 2, "fp8_e4m3_row">,
    I32EnumCase<"Fp8E5M2Row", 3, "fp8_e5m2_row">]>;

def Segue_LayoutAttr
    : Segue_Attr<"Layout", "layout", [DeclareAttrInterfaceMethods<VerifiableTensorEncoding>]> {
  let summary = "where a tensor lives, how it lies and how it is stored";
  let description = [{
    A layout maps an index to bytes. Without a tile, the element with index
    `i0, ..., in` of a tensor lies at `sum(ik * strides[k])` elements from the
    start; absent strides are dense row-major. With a tile `t` over the
    trailing dimensions, these are padded to multiples of `t`, the strides
    step over whole tiles, and a tile is dense row-major inside.

    Constraints: (C1) one stride per dimension, none negative. (C2) no more
    tile extents than dimensions, all positive. (C3) a row storage needs at
    least one dimension and a float element type.

    Example: `tensor<64x32xf32, #segue.layout<space = device_dram, strides = [1, 64]>>`
    is a transposed matrix in device memory.
  }];
  let parameters = (ins
    DefaultValuedParameter<"::segue::Space", "::segue::Space::DeviceDram">:$space,
    OptionalArrayRefParameter<"int64_t">:$strides,
    OptionalArrayRefParameter<"int64_t">:$tile,
    DefaultValuedParameter<"::segue::Storage", "::segue::Storage::Element">:$storage);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
}

//===----------------------------------------------------------------------===//
// Roles. The enumerators have the values of schemas/program.fbs.
//===----------------------------------------------------------------------===//

def Segue_Role : Segue_I32Enum<"Role", "what a value is to a training step", [
    I32EnumCase<"Input", 0, "input">,
    I32EnumCase<"Parameter", 1, "parameter">,
    I32EnumCase<"Frozen", 2, "frozen">,
    I32EnumCase<"Output", 3, "output">,
    I32EnumCase<"Saved", 4, "saved">,
    I32EnumCase<"Gradient", 5, "gradient">,
    I32EnumCase<"State", 6, "state">,
    I32EnumCase<"Hyper", 7, "hyper">]>;
def Segue_RoleAttr : EnumAttr<Segue_Dialect, Segue_Role, "role"> {
  let summary = "what a value is to a training step";
  let assemblyFormat = "`<` $value `>`";
}

//===----------------------------------------------------------------------===//
// Kinds of op families.
//===----------------------------------------------------------------------===//

def Segue_ReduceKind : Segue_I32Enum<"ReduceKind", "how a reduction combines", [
    I32EnumCase<"Sum", 0, "sum">, I32EnumCase<"Max", 1, "max">,
    I32EnumCase<"Min", 2, "min">, I32EnumCase<"Mean", 3, "mean">]>;

def Segue_Predicate : Segue_I32Enum<"Predicate", "relation of a comparison", [
    I32EnumCase<"Eq", 0, "eq">, I32EnumCase<"Ne", 1, "ne">,
    I32EnumCase<"Lt", 2, "lt">, I32EnumCase<"Le", 3, "le">,
    I32EnumCase<"Gt", 4, "gt">, I32EnumCase<"Ge", 5, "ge">]>;

def Segue_GeluKind : Segue_I32Enum<"GeluKind", "which gelu", [
    I32EnumCase<"Erf", 0, "erf">, I32EnumCase<"Tanh", 1, "tanh">]>;

def Segue_ReduceKindAttr : EnumAttr<Segue_Dialect, Segue_ReduceKind, "reduce_kind"> {
  let assemblyFormat = "$value";
}

def Segue_PredicateAttr : EnumAttr<Segue_Dialect, Segue_Predicate, "predicate"> {
  let assemblyFormat = "$value";
}

def Segue_GeluKindAttr : EnumAttr<Segue_Dialect, Segue_GeluKind, "gelu_kind"> {
  let assemblyFormat = "$value";
}

#endif // SEGUE_DIALECT_SEGUE_IR_SEGUEATTRS_TD
