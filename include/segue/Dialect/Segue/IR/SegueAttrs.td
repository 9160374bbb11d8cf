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
    I32EnumCase<"Fp8E5M2Row", 3, "fp8_e5m2_row">,
    I32EnumCase<"Int4Group32", 4, "int4_group32">,
    I32EnumCase<"Int4Group64", 5, "int4_group64">]>;

def Segue_LayoutAttr
    : Segue_Attr<"Layout", "layout", [DeclareAttrInterfaceMethods<VerifiableTensorEncoding>]> {
  let summary = "where a tensor lives, how it lies and how it is stored";
  let description = [{
    A layout maps an index to bytes: every dimension adds its own term.

    ```
    address(i0, ..., in) = elementBytes * sum over k of term_k(ik)
    term_k(i) = i * strides[k]                                   not tiled
    term_k(i) = (i / tile) * strides[k] + (i % tile) * inTile    tiled
    ```

    A tile covers the trailing dimensions, which are padded to multiples of it
    with zeros; its elements lie row-major, and `inTile` is the step inside of
    it. The stride of a tiled dimension goes from one tile to the next. Absent
    strides are dense: row-major over the dimensions or, where there is a tile,
    over the outer dimensions and the grid of tiles. `[4,6]` in tiles `[2,4]`:

    ```
    strides [16,8]      column  0  1  2  3 | 4  5  p  p     p: padding
                        row 0   0  1  2  3 | 8  9 10 11
                        row 1   4  5  6  7 |12 13 14 15
                        row 2  16 17 18 19 |24 ...
    ```

    A row storage holds one byte per element, laid so, then from the next
    multiple of 64 bytes on one f32 scale per row, then with `zero_points` one
    f32 zero point per row. A row is an index of dimension 0; a vector is one
    row. A value is `(q - zero_point) * scale`.

    A group storage holds two elements per byte, the one of the even index in
    the low half. The elements of a row lie row-major, padded with zeros to
    whole groups of 32 or 64; the stride of dimension 0 may pad rows further.
    From the next multiple of 64 bytes on follows one bf16 scale per group,
    those of the first groups of all rows first. A value is `q * scale`.

    `alignment` is that of the first byte, in bytes.

    Constraints: (C1) one stride per dimension, none negative. (C2) no more
    tile extents than dimensions, all positive and below 2^32. (C3) a row
    or group storage needs at least one dimension and a float element type; zero
    points need a row storage. (C4) the alignment is a power of two, at least
    that of an element, and 4 for the scales of rows. (C5) the bytes it spans
    are a number of 62 bits. (C6) a group storage has no tile, its rows are dense
    and whole groups. What a program writes must not hold two elements in one
    place: that is checked where it is written.

    Example: `tensor<64x32xf32, #segue.layout<space = device_dram, strides = [1, 64]>>`
    is a transposed matrix in device memory.
  }];
  let parameters = (ins
    DefaultValuedParameter<"::segue::Space", "::segue::Space::DeviceDram">:$space,
    OptionalArrayRefParameter<"int64_t">:$strides,
    OptionalArrayRefParameter<"int64_t">:$tile,
    DefaultValuedParameter<"::segue::Storage", "::segue::Storage::Element">:$storage,
    DefaultValuedParameter<"bool", "false">:$zeroPoints,
    DefaultValuedParameter<"uint32_t", "::segue::kDefaultAlignment">:$alignment);
  let extraClassDeclaration = [{
    /// Codes and scales in place of elements.
    bool isQuantized() const { return getStorage() != ::segue::Storage::Element; }
    /// Elements of a row that share a scale in a group storage; 0 in others.
    int64_t getGroup() const {
      return getStorage() == ::segue::Storage::Int4Group32 ? 32
             : getStorage() == ::segue::Storage::Int4Group64 ? 64 : 0;
    }
    /// Strides alone say where an element lies.
    bool isStrided() const { return getTile().empty() && !isQuantized(); }

    /// The strides for a tensor of `shape`, also where they are left out.
    ::llvm::SmallVector<int64_t> getStridesFor(::llvm::ArrayRef<int64_t> shape) const;
    /// Returns the strides that are left out: dense over `shape` in tiles of `tile`.
    static ::llvm::SmallVector<int64_t> getDenseStrides(::llvm::ArrayRef<int64_t> shape,
                                                        ::llvm::ArrayRef<int64_t> tile);
    /// Bytes from the first element to behind the last byte, scales included.
    /// Nothing where that is not a number of 62 bits.
    std::optional<uint64_t> getBytes(::llvm::ArrayRef<int64_t> shape, ::mlir::Type element) const;
    /// True if no two elements lie in one place: sorted by stride, each
    /// dimension steps over all smaller ones.
    bool isInjective(::llvm::ArrayRef<int64_t> shape) const;
    /// This layout with strides left out where they are dense.
    LayoutAttr getCanonical(::llvm::ArrayRef<int64_t> shape) const;
  }];
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
    I32EnumCase<"Hyper", 7, "hyper">,
    I32EnumCase<"Statistics", 8, "statistics">]>;
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
