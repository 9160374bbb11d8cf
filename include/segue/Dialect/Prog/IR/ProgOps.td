//===- ProgOps.td - ops of the prog dialect ----------------*- tablegen -*-===//
//
// The reference manual of the dialect: docs/reference/Prog.md is generated from this
// file. Meaning and units of every field are those of schemas/*.fbs.
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_PROG_IR_PROGOPS_TD
#define SEGUE_DIALECT_PROG_IR_PROGOPS_TD

include "mlir/IR/BuiltinAttributeInterfaces.td"
include "mlir/IR/CommonTypeConstraints.td"
include "mlir/IR/OpAsmInterface.td"
include "mlir/IR/RegionKindInterface.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"
include "segue/Dialect/Prog/IR/ProgAttrs.td"
include "segue/Dialect/Prog/IR/ProgInterfaces.td"

class Prog_Op<string mnemonic, list<Trait> traits = []> : Op<Prog_Dialect, mnemonic, traits>;

/// A buffer or a view: static shape, strided layout, at most a segue space.
def Prog_Buffer : Type<And<[MemRefOf<[AnyType]>.predicate, HasStaticShapePred]>,
                       "memref with a static shape", "::mlir::MemRefType">;
/// One that commands compute on.
def Prog_DeviceBuffer : Type<And<[Prog_Buffer.predicate,
                                  CPred<"::segue::prog::isOnDevice(::llvm::cast<::mlir::MemRefType>($_self))">]>,
                             "memref with a static shape in the memory of the device", "::mlir::MemRefType">;
/// Untyped bytes.
def Prog_Bytes : Type<And<[MemRefRankOf<[I8], [1]>.predicate, HasStaticShapePred]>,
                      "1-D memref of i8 with a static shape", "::mlir::MemRefType">;

//===----------------------------------------------------------------------===//
// Structure.
//===----------------------------------------------------------------------===//

def Prog_ProgramOp : Prog_Op<"program", [Symbol, IsolatedFromAbove, NoTerminator, SingleBlock,
                                         HasParent<"::mlir::ModuleOp">,
                                         DeclareOpInterfaceMethods<SymbolUserOpInterface>,
                                         DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmBlockArgumentNames"]>]> {
  let summary = "is one program: signature, buffers and commands";
  let description = [{
    The block arguments are the buffers of the inputs, then of the outputs.
    `prog.alloc` and `prog.constant` come first, then the commands.

    Constraints: (C1) names are unique among the inputs, and among the outputs.
    (C2) there is one block argument per input and output, of the type that
    its tensor has as a buffer: `memref<shape x element>` with the strides and
    space of its layout, or bytes where it is tiled or stored otherwise.
    (C3) aliases and save points name existing inputs and outputs; an output
    has at most one alias. (C4) after the first `prog.phase` every command
    lies in one. (C5) buffers come before commands. (C6) each space has at
    most one arena. (C7) alternatives of an input differ from its layout in
    space and alignment alone; an output that an alias requires to lie in an
    input has none, and neither has that input; one of a tensor on the device lies on the device, one of a
    tensor on the host on the host. (C8) outputs do not hold two elements in one place. (C9)
    the program that a save point names for `recompute` gives the same tensor
    as its output `recompute_output`; each of its inputs has the name of a
    saved output (role saved) or of an input of this program, and is the same
    tensor. (C10) phases come in the order of a step: `backward` follows
    `forward`, `forward` (the next micro-batch) or `optimizer` follows
    `backward`; a phase may follow itself.

    Example: `prog.program @double inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] { ^bb0(%x: memref<4xf32>, %y: memref<4xf32>): prog.launch @k(%x, %y) range 4 grain 1 : memref<4xf32>, memref<4xf32> }`
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Prog_Values:$inputs, Prog_Values:$outputs,
                       OptionalAttr<Prog_Aliases>:$aliases, OptionalAttr<Prog_Arenas>:$arenas,
                       OptionalAttr<Prog_SavePoints>:$savePoints);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = [{
    $sym_name `inputs` $inputs `outputs` $outputs (`aliases` $aliases^)? (`arenas` $arenas^)?
    (`save_points` $savePoints^)? attr-dict-with-keyword $body
  }];
  let hasVerifier = 1;
  let hasRegionVerifier = 1;
  let extraClassDeclaration = [{
    ::mlir::Block &getBlock() { return getBody().front(); }
    ValueAttr getInput(unsigned i) { return ::mlir::cast<ValueAttr>(getInputs()[i]); }
    ValueAttr getOutput(unsigned i) { return ::mlir::cast<ValueAttr>(getOutputs()[i]); }
    unsigned getNumInputs() { return getInputs().size(); }
    unsigned getNumOutputs() { return getOutputs().size(); }
    ::mlir::BlockArgument getInputBuffer(unsigned i) { return getBlock().getArgument(i); }
    ::mlir::BlockArgument getOutputBuffer(unsigned i) { return getBlock().getArgument(getNumInputs() + i); }
  }];
}

class Prog_Region<string mnemonic, string what>
    : Prog_Op<mnemonic, [NoTerminator, SingleBlock, NoRegionArguments,
                         ParentOneOf<["ProgramOp", "PhaseOp", "BlockOp"]>, RecursiveMemoryEffects]> {
  let summary = what;
  let regions = (region SizedRegion<1>:$body);
  let extraClassDeclaration = [{ ::mlir::Block &getBlock() { return getBody().front(); } }];
}

def Prog_PhaseOp : Prog_Region<"phase", "holds the commands of one phase"> {
  let description = [{
    The phase that is current goes on; another begins with the first command
    of its region. (C1) a phase lies directly in a program. (C2) it is
    `forward`, `backward` or `optimizer`: steps begin and end outside of
    programs.

    Example: `prog.phase forward { prog.save %y : memref<4xf32> }`
  }];
  let arguments = (ins Prog_PhaseAttr:$phase);
  let assemblyFormat = "$phase attr-dict-with-keyword $body";
  let hasVerifier = 1;
}

def Prog_BlockOp : Prog_Region<"block", "holds the commands of one block of the model"> {
  let description = [{
    Blocks are what the services stream and spill by; they nest. (C1) the name
    is not empty.

    Example: `prog.block "h.0" { prog.save %y : memref<4xf32> }`
  }];
  let arguments = (ins StrAttr:$name);
  let assemblyFormat = "$name attr-dict-with-keyword $body";
  let hasVerifier = 1;
}

def Prog_KernelOp : Prog_Op<"kernel", [Symbol, HasParent<"::mlir::ModuleOp">,
                                       DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "declares a compiled kernel";
  let description = [{
    The last `outputs` of the `arguments` buffers are written. For range r,
    buffer i must hold `fixed_bytes[i] + r * bytes_per_unit[i]` bytes. `hash`
    is that of the kernel's IR: equal kernels are stored once.
    `flops_per_unit` is what one unit of the range costs, 0 where not known.

    Constraints: (C1) `outputs` is at most `arguments`. (C2) `fixed_bytes` and
    `bytes_per_unit` have one entry per argument, none negative. (C3) variants
    name `prog.segment` ops with code of their instruction set.

    Example: `prog.kernel @k arguments 2 outputs 1 fixed_bytes [0, 0] bytes_per_unit [4, 4] hash 7 variants [#prog.variant<x86_64_v3 "k_v3" in @segment0>]`
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, UI32Attr:$arguments, UI32Attr:$outputs,
                       DenseI64ArrayAttr:$fixedBytes, DenseI64ArrayAttr:$bytesPerUnit, UI64Attr:$hash,
                       OptionalAttr<Prog_Variants>:$variants, DefaultValuedAttr<UI64Attr, "0">:$flopsPerUnit);
  let assemblyFormat = [{
    $sym_name `arguments` $arguments `outputs` $outputs `fixed_bytes` $fixedBytes `bytes_per_unit` $bytesPerUnit
    `hash` $hash (`flops_per_unit` $flopsPerUnit^)? (`variants` $variants^)? attr-dict
  }];
  let hasVerifier = 1;
}

def Prog_SegmentOp : Prog_Op<"segment", [Symbol, HasParent<"::mlir::ModuleOp">]> {
  let summary = "holds bytes that follow the FlatBuffer in the file";
  let description = [{
    (C1) `data` is a 1-D tensor of i8. (C2) `alignment` is a power of two, at
    most 4096. (C3) segments are called `@segment0`, `@segment1`, ... in their
    order: the file knows them by number. (C4) a cubin, and nothing else, names
    the compute capability that it is for, times ten, and is the ELF executable
    of a GPU of that one. (C5) a resource has as many bytes as the type says, or
    none at all, as in text that leaves them out to be read; no file is made of that.

    Example: `prog.segment @segment0 constants alignment 64 dense<[1, 2]> : tensor<2xi8>`,
    `prog.segment @segment1 cubin capability 90 alignment 64 dense_resource<segment1> : tensor<3584xi8>`
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Prog_SegmentKindAttr:$kind, UI32Attr:$alignment,
                       ElementsAttr:$data, DefaultValuedAttr<UI32Attr, "0">:$capability);
  let assemblyFormat = "$sym_name $kind (`capability` $capability^)? `alignment` $alignment $data attr-dict";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The bytes: those of the attribute, or `storage` when it is a splat.
    ::llvm::ArrayRef<char> getBytes(::llvm::SmallVectorImpl<char> &storage);
    /// Returns false for a resource whose bytes are left out.
    bool hasBytes();
    uint64_t getNumBytes() { return getData().getNumElements(); }
  }];
}

//===----------------------------------------------------------------------===//
// Buffers and views.
//===----------------------------------------------------------------------===//

def Prog_AllocOp : Prog_Op<"alloc", [MemoryEffects<[MemAlloc]>]> {
  let summary = "is a temporary in the arena of its space";
  let description = [{
    `offset`, in bytes from the start of the arena, is set by
    `prog-plan-memory`: temporaries that are alive at different times share
    bytes. `of` says what lies there, where that is one dense tensor: services
    that look at what a block gives read it so, and no command depends on it.

    Constraints: (C1) with an offset, the program has an arena for the space,
    and the temporary ends inside of it. (C2) the type of `of` is that of
    elements, and the bytes are a multiple of theirs.

    Example: `%t = prog.alloc offset 128 of f32 : memref<4096xi8>`
  }];
  let arguments = (ins OptionalAttr<UI64Attr>:$offset, OptionalAttr<TypeAttr>:$element);
  let results = (outs Prog_Bytes:$result);
  let assemblyFormat = "(`offset` $offset^)? (`of` $element^)? attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Prog_ConstantOp : Prog_Op<"constant", [Pure, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "is a range of bytes in a segment of constants";
  let description = [{
    (C1) `segment` names a `prog.segment` of kind `constants`. (C2) the range
    lies inside of it.

    Example: `%c = prog.constant @segment0 offset 64 : memref<16xi8>`
  }];
  let arguments = (ins FlatSymbolRefAttr:$segment, UI64Attr:$offset);
  let results = (outs Prog_Bytes:$result);
  let assemblyFormat = "$segment `offset` $offset attr-dict `:` type($result)";
}

def Prog_ViewOp : Prog_Op<"view", [Pure]> {
  let summary = "gives a strided window of elements into a buffer";
  let description = [{
    The window's first element lies `offset` bytes after the start of the
    buffer; the type says the rest: extents, element type and the elements to
    step per dimension, where 0 repeats. A view belongs to the one command
    that uses it.

    Constraints: (C1) the source is a buffer, not a view. (C2) strides are
    static, none negative, and the type has no offset. (C3) the last byte of
    the window lies inside the buffer. (C4) source and result are in one
    space. (C5) a view that is the buffer itself is not written.

    Example: `%v = prog.view %b offset 64 : memref<4096xi8> to memref<4x8xf32, strided<[16, 1]>>`
  }];
  let arguments = (ins Prog_Buffer:$source, UI64Attr:$offset);
  let results = (outs Prog_Buffer:$result);
  let assemblyFormat = "$source `offset` $offset attr-dict `:` type($source) `to` type($result)";
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Commands run in order: what a command reads was written by those before it.
// They compute in the memory of the device; only a copy reaches the host's.
//===----------------------------------------------------------------------===//

def Prog_LaunchOp : Prog_Op<"launch", [DeclareOpInterfaceMethods<SymbolUserOpInterface>,
                                       DeclareOpInterfaceMethods<MemoryEffectsOpInterface>]> {
  let summary = "runs a kernel over [0, range)";
  let description = [{
    The runtime splits the range at multiples of `grain`; pieces may run at
    the same time. `offsets` are bytes into each buffer, all 0 when absent.
    `in_place` lists pairs (input, output) of positions in `args` that may
    have one address; `prog-plan-memory` uses and removes it.

    Constraints: (C1) `kernel` names a `prog.kernel` with as many arguments.
    (C2) each buffer holds the bytes that the kernel needs for this range.
    (C3) `offsets` has one entry per buffer; it is not written when all are 0.
    (C4) range and grain are positive.

    Example: `prog.launch @k(%x, %y) range 4 grain 1 : memref<4xf32>, memref<4xf32>`
  }];
  let arguments = (ins FlatSymbolRefAttr:$kernel, Variadic<Prog_DeviceBuffer>:$args,
                       OptionalAttr<DenseI64ArrayAttr>:$offsets, I64Attr:$range, I64Attr:$grain,
                       OptionalAttr<DenseI64ArrayAttr>:$inPlace);
  let assemblyFormat = [{
    $kernel `(` $args `)` (`offsets` $offsets^)? `range` $range `grain` $grain (`in_place` $inPlace^)?
    attr-dict `:` type($args)
  }];
  let hasVerifier = 1;
}

class Prog_Reads<string what, Type type = Prog_DeviceBuffer> : Arg<type, what, [MemRead]>;
class Prog_Writes<string what, Type type = Prog_DeviceBuffer> : Arg<type, what, [MemWrite]>;

def Prog_MatmulOp : Prog_Op<"matmul", [DeclareOpInterfaceMethods<Prog_WritesStridedOpInterface, ["canWriteIn"]>]> {
  let summary = "multiplies batches of matrices";
  let description = [{
    `c[b, m, n] = sum_k a[b, m, k] * b[b, k, n] (+ bias[n]) (+ c if
    accumulate)`, accumulated in f32.

    Constraints: (C1) a is [batch, m, k], b is [batch, k, n], c is
    [batch, m, n], bias is [n]. (C2) c has unit stride in n. (C3) a and b have
    one float element type, c that or f32. (C4) a b of bytes says after `as`
    which weight of codes lies in it: a matrix with a row or group storage and
    no tile, [k, n], or [n, k] if `transposed`. Then batch is 1, the rows of
    a and of the codes are contiguous and do not overlap, and nothing is
    accumulated. No copy of the weight in floats is made.

    Example: `prog.matmul %a, %b into %c : memref<1x4x8xf32>, memref<1x8x2xf32>, memref<1x4x2xf32>`

    Example: `prog.matmul %a, %w as tensor<2x8xf32, #segue.layout<storage = int8_row>> transposed into %c : memref<1x4x8xf32>, memref<72xi8>, memref<1x4x2xf32>`
  }];
  let arguments = (ins Prog_Reads<"[batch, m, k]">:$a, Prog_Reads<"[batch, k, n]">:$b,
                       OptionalAttr<TypeAttrOf<AnyStaticShapeTensor>>:$bType, UnitAttr:$bTransposed,
                       Arg<Optional<Prog_DeviceBuffer>, "[n]", [MemRead]>:$bias,
                       Arg<Prog_DeviceBuffer, "[batch, m, n]", [MemRead, MemWrite]>:$c, UnitAttr:$accumulate,
                       DefaultValuedAttr<Prog_ActivationAttr, "Activation::None">:$activation);
  let assemblyFormat = [{
    $a `,` $b (`as` $bType^)? (`transposed` $bTransposed^)? (`bias` $bias^ `:` type($bias))? `into` $c (`accumulate` $accumulate^)? (`activation` $activation^)?
    attr-dict `:` type($a) `,` type($b) `,` type($c)
  }];
  let hasVerifier = 1;
}

def Prog_AttentionOp : Prog_Op<"attention", [AttrSizedOperandSegments, DeclareOpInterfaceMethods<Prog_WritesStridedOpInterface, ["canWriteIn"]>]> {
  let summary = "computes scaled dot product attention";
  let description = [{
    As `segue.attention`. Constraints: (C1) q and out are [batch, heads, rows,
    dim], k and v [batch, heads, keys, dim], lse is f32 [batch, heads, rows],
    a mask is [batch, heads, rows, keys]. (C2) dim is contiguous in q, k, v
    and out. (C3) `dropout` is at least 0 and less than 1, and comes with `seed`, `step` and `id`; the first two are
    an i64.

    Example: `prog.attention %q, %k, %v into %o, %l causal scale 0.5 : memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4xf32>`
  }];
  let arguments = (ins Prog_Reads<"">:$q, Prog_Reads<"">:$k, Prog_Reads<"">:$v,
                       Arg<Optional<Prog_DeviceBuffer>, "", [MemRead]>:$mask,
                       Arg<Optional<Prog_DeviceBuffer>, "", [MemRead]>:$seed,
                       Arg<Optional<Prog_DeviceBuffer>, "", [MemRead]>:$step, Prog_Writes<"">:$out, Prog_Writes<"">:$lse,
                       OptionalAttr<F32Attr>:$dropout, OptionalAttr<I64Attr>:$id, UnitAttr:$causal, F32Attr:$scale);
  let assemblyFormat = [{
    $q `,` $k `,` $v (`mask` $mask^ `:` type($mask))?
    (`dropout` $dropout^ `by` $seed `:` type($seed) `,` $step `:` type($step) `id` $id)?
    `into` $out `,` $lse (`causal` $causal^)? `scale` $scale
    attr-dict `:` type($q) `,` type($k) `,` type($v) `,` type($out) `,` type($lse)
  }];
  let hasVerifier = 1;
}

def Prog_AttentionGradOp : Prog_Op<"attention_grad", [AttrSizedOperandSegments, DeclareOpInterfaceMethods<Prog_WritesStridedOpInterface, ["canWriteIn"]>]> {
  let summary = "computes the gradients of attention for q, k and v";
  let description = [{
    As `segue.attention_grad`. Constraints: (C1) q, out, grad_out and grad_q
    are [batch, heads, rows, dim], k, v, grad_k and grad_v [batch, heads, keys,
    dim], lse is f32 [batch, heads, rows], a mask is [batch, heads, rows,
    keys]. (C2) dim is contiguous in all but mask and lse. (C3) `dropout` is as that of `prog.attention`.

    Example: `prog.attention_grad %q, %k, %v out %o lse %l grad %g into %dq, %dk, %dv scale 0.5 : memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>`
  }];
  let arguments = (ins Prog_Reads<"">:$q, Prog_Reads<"">:$k, Prog_Reads<"">:$v,
                       Arg<Optional<Prog_DeviceBuffer>, "", [MemRead]>:$mask,
                       Arg<Optional<Prog_DeviceBuffer>, "", [MemRead]>:$seed,
                       Arg<Optional<Prog_DeviceBuffer>, "", [MemRead]>:$step, Prog_Reads<"">:$out, Prog_Reads<"">:$lse,
                       Prog_Reads<"">:$gradOut, Prog_Writes<"">:$gradQ, Prog_Writes<"">:$gradK,
                       Prog_Writes<"">:$gradV, OptionalAttr<F32Attr>:$dropout, OptionalAttr<I64Attr>:$id,
                       UnitAttr:$causal, F32Attr:$scale);
  let assemblyFormat = [{
    $q `,` $k `,` $v (`mask` $mask^ `:` type($mask))?
    (`dropout` $dropout^ `by` $seed `:` type($seed) `,` $step `:` type($step) `id` $id)? `out` $out `lse` $lse `grad` $gradOut
    `into` $gradQ `,` $gradK `,` $gradV (`causal` $causal^)? `scale` $scale attr-dict
    `:` type($q) `,` type($k) `,` type($v) `,` type($out) `,` type($lse) `,` type($gradOut)
    `,` type($gradQ) `,` type($gradK) `,` type($gradV)
  }];
  let hasVerifier = 1;
}

def Prog_LibraryCallOp : Prog_Op<"library_call", [AttrSizedOperandSegments]> {
  let summary = "runs an operation of the device's library on dense tensors";
  let description = [{
    The operation is known to the runtime by its name: an op of `segue` that
    becomes such a call needs nothing of its own in this dialect, in the file or
    in the executor. What the `numbers` say, and which tensors the operation
    takes, is checked by the runtime when it loads the file.

    Constraints: (C1) the name is not empty. (C2) the tensors are dense in
    row-major order. (C3) at least one is written.

    Example: `prog.library_call "conv2d" (%x, %w) into %y numbers [1, 1, 0, 0, 0, 0, 1, 1, 1] : memref<1x2x4x4xf32>, memref<3x2x1x1xf32> into memref<1x3x4x4xf32>`
  }];
  let arguments = (ins StrAttr:$callee, Arg<Variadic<Prog_DeviceBuffer>, "", [MemRead]>:$reads,
                       Arg<Variadic<Prog_DeviceBuffer>, "", [MemWrite]>:$writes, DenseI64ArrayAttr:$numbers);
  let assemblyFormat = [{
    $callee `(` $reads `)` `into` $writes `numbers` $numbers attr-dict `:` type($reads) `into` type($writes)
  }];
  let hasVerifier = 1;
}

def Prog_ToLayoutOp : Prog_Op<"to_layout", [DeclareOpInterfaceMethods<Prog_WritesStridedOpInterface>]> {
  let summary = "copies a view into another; casts, re-lays and restores on the way";
  let description = [{
    A buffer of bytes that holds tiles or a row storage says after `as` which
    tensor lies in it. The two may lie in different spaces. Where one is in
    the host's memory, the bytes cross the link of a discrete device, and are
    counted as those of any transfer.

    Constraints: (C1) one shape. (C2) a type after `as` has a `#segue.layout`
    with a tile or a row storage, in the space of the buffer; the buffer is
    bytes and holds it. (C3) a target does not hold two elements in one place.

    Example: `prog.to_layout %w as tensor<4x8xf32, #segue.layout<storage = int8_row>> into %t : memref<80xi8>, memref<4x8xf32>`
  }];
  let arguments = (ins Prog_Reads<"", Prog_Buffer>:$source,
                       OptionalAttr<TypeAttrOf<AnyStaticShapeTensor>>:$sourceType,
                       Prog_Writes<"", Prog_Buffer>:$target, OptionalAttr<TypeAttrOf<AnyStaticShapeTensor>>:$targetType);
  let assemblyFormat = [{
    $source (`as` $sourceType^)? `into` $target (`as` $targetType^)? attr-dict `:` type($source) `,` type($target)
  }];
  let hasVerifier = 1;
  let builders = [OpBuilder<(ins "::mlir::Value":$source, "::mlir::Value":$target), [{
    build($_builder, $_state, source, ::mlir::TypeAttr(), target, ::mlir::TypeAttr());
  }]>];
  let extraClassDeclaration = [{
    /// The tensor that is read, and the one that is written, with its layout.
    ::mlir::RankedTensorType getSourceTensor();
    ::mlir::RankedTensorType getTargetTensor();
  }];
}

def Prog_FillOp : Prog_Op<"fill"> {
  let summary = "writes one element value over a whole buffer";
  let description = [{
    `pattern` holds the bytes of one element. (C1) it has 1, 2, 4 or 8 bytes,
    and the buffer is a multiple of it. (C2) the target is a buffer, not a
    view.

    Example: `prog.fill %t with [0, 0, -128, 63] : memref<4096xi8>`
  }];
  let arguments = (ins Prog_Writes<"">:$buffer, DenseI8ArrayAttr:$pattern);
  let assemblyFormat = "$buffer `with` $pattern attr-dict `:` type($buffer)";
  let hasVerifier = 1;
}

class Prog_Mark<string mnemonic, string what>
    : Prog_Op<mnemonic, [MemoryEffects<[MemRead, MemWrite]>]> {
  let summary = what;
  let arguments = (ins Prog_Buffer:$buffer);
  let assemblyFormat = "$buffer attr-dict `:` type($buffer)";
  let hasVerifier = 1;
}

def Prog_SaveOp : Prog_Mark<"save", "tells that a saved output is final and not used any more"> {
  let description = [{
    Once it is copied elsewhere its memory may be given up. (C1) the buffer is
    that of an output with role saved. (C2) no later command of the program
    uses it.

    Example: `prog.save %y : memref<4xf32>`
  }];
}
def Prog_RestoreOp : Prog_Mark<"restore", "tells that a saved input must be on the device from here on"> {
  let description = [{
    (C1) the buffer is that of an input with role saved.

    Example: `prog.restore %x : memref<4xf32>`
  }];
}
def Prog_FreeOp : Prog_Mark<"free", "tells that an input is not read by any later command"> {
  let description = [{
    (C1) the buffer is that of an input.

    Example: `prog.free %x : memref<4xf32>`
  }];
}

#endif // SEGUE_DIALECT_PROG_IR_PROGOPS_TD
