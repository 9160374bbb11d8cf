//===- ProgAttrs.td - attributes of the prog dialect -------*- tablegen -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_PROG_IR_PROGATTRS_TD
#define SEGUE_DIALECT_PROG_IR_PROGATTRS_TD

include "mlir/IR/CommonAttrConstraints.td"
include "segue/Dialect/Prog/IR/ProgDialect.td"
include "segue/Dialect/Prog/IR/ProgEnums.td"
include "segue/Dialect/Segue/IR/SegueAttrs.td"

class Prog_Attr<string name, string mnem, list<Trait> traits = []> : AttrDef<Prog_Dialect, name, traits> {
  let mnemonic = mnem;
}

def Prog_PhaseAttr : EnumAttr<Prog_Dialect, Prog_Phase, "phase_kind"> {
  let assemblyFormat = "$value";
}

def Prog_SegmentKindAttr : EnumAttr<Prog_Dialect, Prog_SegmentKind, "segment_kind"> {
  let assemblyFormat = "$value";
}

def Prog_ActivationAttr : EnumAttr<Prog_Dialect, Prog_Activation, "activation"> {
  let assemblyFormat = "$value";
}

//===----------------------------------------------------------------------===//
// Parts of a signature.
//===----------------------------------------------------------------------===//

def Prog_ValueAttr : Prog_Attr<"Value", "value"> {
  let summary = "an input or output: name, role, tensor description";
  let description = [{
    The encoding of the tensor type is its `#segue.layout`; without one the
    tensor is dense row-major in device_dram. `of` names the value that a
    gradient, state or saved value belongs to.

    After `or` come other layouts that the caller may choose, best first: of an
    input, where it may lie as well; of an output, what its last command can
    write at no cost.

    Constraints: (C1) the name is not empty. (C2) the type, and the type with
    each alternative, can be stored.

    Example: `#prog.value<"grad.w" gradient tensor<4x8xf32> of "w" or [<space = device_l1>]>`
  }];
  let parameters = (ins "::mlir::StringAttr":$name, EnumParameter<Segue_Role>:$role,
                        "::mlir::RankedTensorType":$type, OptionalParameter<"::mlir::StringAttr">:$of,
                        OptionalArrayRefParameter<"::segue::LayoutAttr">:$alternatives);
  let builders = [AttrBuilder<(ins "::mlir::StringAttr":$name, "::segue::Role":$role, "::mlir::RankedTensorType":$type,
                                   "::mlir::StringAttr":$of), [{
    return $_get($_ctxt, name, role, type, of, ::llvm::ArrayRef<::segue::LayoutAttr>());
  }]>];
  let assemblyFormat = "`<` $name $role $type (`of` $of^)? (`or` ` ` `[` $alternatives^ `]`)? `>`";
  let genVerifyDecl = 1;
}
def Prog_Values : TypedArrayAttrBase<Prog_ValueAttr, "values of a signature">;

def Prog_AliasAttr : Prog_Attr<"Alias", "alias"> {
  let summary = "an output that reuses the storage of an input";
  let description = [{
    With `required` the program writes the input in place, otherwise it may.

    Example: `#prog.alias<output 0 = input 2 required>`
  }];
  let parameters = (ins "uint32_t":$output, "uint32_t":$input, DefaultValuedParameter<"bool", "false">:$required);
  let hasCustomAssemblyFormat = 1;
}
def Prog_Aliases : TypedArrayAttrBase<Prog_AliasAttr, "aliases">;

def Prog_ArenaAttr : Prog_Attr<"Arena", "arena"> {
  let summary = "bytes for temporaries in one space";
  let description = [{
    `lower_bound` is the peak of the live bytes: no placement needs less.

    Example: `#prog.arena<device_dram bytes = 4096 lower_bound = 4096 alignment = 64>`
  }];
  let parameters = (ins EnumParameter<Segue_Space>:$space, "uint64_t":$bytes, "uint64_t":$lowerBound,
                        "uint32_t":$alignment);
  let assemblyFormat = [{
    `<` $space `bytes` `=` $bytes `lower_bound` `=` $lowerBound `alignment` `=` $alignment `>`
  }];
  let genVerifyDecl = 1;
}
def Prog_Arenas : TypedArrayAttrBase<Prog_ArenaAttr, "arenas">;

def Prog_SavePointAttr : Prog_Attr<"SavePoint", "save_point"> {
  let summary = "what the services must know of one saved value";
  let description = [{
    `value` is the output of the forward program with role saved (the input
    with `aliases_input`), `backward_input` the input of the backward program
    that gets it. `order` 0 is what backward needs first. `recompute_flops` 0
    means that it is not known to be recomputable; `recompute_bytes` are what
    that would read and write, op by op. Output `recompute_output` of the
    program `recompute` is the value again.

    Example: `#prog.save_point<value = 2, backward_input = 0, order = 1, bytes = 4096, block = "h.0", recompute = @recompute.0>`
  }];
  let parameters = (ins "uint32_t":$value, DefaultValuedParameter<"bool", "false">:$aliases_input,
                        "uint32_t":$backward_input, "uint32_t":$order, "uint64_t":$bytes,
                        DefaultValuedParameter<"uint64_t", "0">:$recompute_flops,
                        OptionalParameter<"::mlir::StringAttr">:$block,
                        DefaultValuedParameter<"uint64_t", "0">:$recompute_bytes,
                        OptionalParameter<"::mlir::FlatSymbolRefAttr">:$recompute,
                        DefaultValuedParameter<"uint32_t", "0">:$recompute_output);
  let assemblyFormat = "`<` struct(params) `>`";
}
def Prog_SavePoints : TypedArrayAttrBase<Prog_SavePointAttr, "save points">;

def Prog_VariantAttr : Prog_Attr<"Variant", "variant"> {
  let summary = "one compiled form of a kernel";
  let description = [{
    A variant in PTX or a cubin says how many blocks its grid has.

    Examples: `#prog.variant<x86_64_v3 "k_v3" in @segment0>`, `#prog.variant<ptx "k" in @segment1 blocks 1024>`
  }];
  let parameters = (ins EnumParameter<Prog_Isa>:$isa, "::mlir::StringAttr":$symbol,
                        "::mlir::FlatSymbolRefAttr":$segment, DefaultValuedParameter<"uint64_t", "0">:$blocks);
  let assemblyFormat = "`<` $isa $symbol `in` $segment (`blocks` $blocks^)? `>`";
}
def Prog_Variants : TypedArrayAttrBase<Prog_VariantAttr, "variants">;

#endif // SEGUE_DIALECT_PROG_IR_PROGATTRS_TD
