//===- Passes.td - passes on the segue dialect -------------*- tablegen -*-===//
//
// In the order in which the pipeline runs them.
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_TRANSFORMS_PASSES_TD
#define SEGUE_DIALECT_SEGUE_TRANSFORMS_PASSES_TD

include "mlir/Pass/PassBase.td"

def SegueAutodiff : Pass<"segue-autodiff", "::mlir::ModuleOp"> {
  let summary = "makes @backward from @forward by reverse-mode differentiation";
  let description = [{
    Training needs the gradients of the parameters, and of the inputs that
    come from a module before. A value gets a gradient only if it lies on a
    path from an argument that wants one (a float argument of role
    `parameter`, or of role `input` without `segue.requires_grad = false`) to
    a float output; for frozen values nothing is computed or saved.

    `@forward` gets one more result per value that `@backward` uses, with role
    `saved`. Constants and iotas are made again instead, and so are reshapes,
    transposes and broadcasts of what is there. `@backward` takes the saved
    values in the order of the results, the arguments of `@forward` that it
    uses, and a gradient `grad.<output>` per output that has a path; it
    returns `grad.<name>` per parameter, then per input that wants one, zeros
    where there is no path. The original stays as `@inference`. Ops of
    `@backward` have the location and the block of the op that they belong to.

    Before:
    ```mlir
    func.func @forward(%x: tensor<4xf32> {segue.name = "x", segue.role = #segue.role<input>, segue.requires_grad = false},
                       %w: tensor<4xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
        -> (tensor<4xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
      %0 = segue.mul %x, %w : tensor<4xf32>
      %1 = segue.tanh %0 : tensor<4xf32>
      return %1 : tensor<4xf32>
    }
    ```
    After, without the attributes:
    ```mlir
    func.func @forward(%x: tensor<4xf32>, %w: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
      %0 = segue.mul %x, %w : tensor<4xf32>
      %1 = segue.tanh %0 : tensor<4xf32>
      return %1, %1 : tensor<4xf32>, tensor<4xf32>
    }
    func.func @backward(%saved: tensor<4xf32>, %x: tensor<4xf32>, %grad: tensor<4xf32>) -> tensor<4xf32> {
      %0 = segue.mul %saved, %saved : tensor<4xf32>
      %one = segue.constant dense<1.0> : tensor<4xf32>
      %1 = segue.sub %one, %0 : tensor<4xf32>
      %2 = segue.mul %grad, %1 : tensor<4xf32>
      %3 = segue.mul %2, %x : tensor<4xf32>
      return %3 : tensor<4xf32>
    }
    ```
  }];
  let dependentDialects = ["::segue::SegueDialect", "::mlir::func::FuncDialect"];
  let statistics = [
    Statistic<"valuesSaved", "values-saved", "Forward values that backward needs">,
    Statistic<"bytesSaved", "bytes-saved", "Bytes of these values">];
}

def SeguePlanSaved : Pass<"segue-plan-saved", "::mlir::ModuleOp"> {
  let summary = "chooses what backward gets saved and what it recomputes";
  let description = [{
    Most of the memory of a training step holds saved values, and many of them
    follow from others by a few flops: the result of a gelu from its operand, a
    dropout mask from its seed. This pass picks the cheapest set of values from
    which `@backward` can make all that it needs: a minimum cut of the graph of
    `@forward`, where saving a value costs its bytes and recomputing an op
    costs its flops, `flops-per-byte` of which weigh as much as one byte.
    Parameters and inputs are there anyway and cost nothing, except for float
    inputs: these are activations of the module before.

    With `recompute=cheap`, contractions, attention and scatters are never done
    twice; with `all`, they may be, and bytes alone decide; with `none`, what
    was saved stays saved. Ops to recompute are cloned into `@backward` in
    front of their first use.

    Every saved result is marked with `segue.recompute_flops`, what it would
    cost to make it from the other saved values and the arguments, and with the
    `segue.block` of its op: the runtime may still drop or move it.

    Before:
    ```mlir
    func.func @forward(...) -> (tensor<8x32xf32>, tensor<8x64xf32> {segue.name = "saved.0"}, tensor<8x64xf32> {segue.name = "saved.1"}) {
      %h = segue.dot_general %x, %w1 ...
      %a = segue.gelu erf %h : tensor<8x64xf32>
      %y = segue.dot_general %a, %w2 ...
      return %y, %h, %a : ...
    }
    func.func @backward(%h: ..., %a: ..., ...) {
      %dw2 = segue.dot_general %grad, %a ...
    ```
    After:
    ```mlir
    func.func @forward(...) -> (tensor<8x32xf32>, tensor<8x64xf32> {segue.name = "saved.0", segue.recompute_flops = 32768}) {
      ...
      return %y, %h : ...
    }
    func.func @backward(%h: ..., ...) {
      %a = segue.gelu erf %h : tensor<8x64xf32>
      %dw2 = segue.dot_general %grad, %a ...
    ```
  }];
  let options = [
    Option<"recompute", "recompute", "::segue::Recompute", "::segue::Recompute::Cheap",
           "What may be recomputed: none, cheap, all",
           [{::llvm::cl::values(
               clEnumValN(::segue::Recompute::None, "none", "nothing: every value that backward needs stays saved"),
               clEnumValN(::segue::Recompute::Cheap, "cheap", "all but contractions, attention and scatters"),
               clEnumValN(::segue::Recompute::All, "all", "everything: fewest bytes"))}]>,
    Option<"flopsPerByte", "flops-per-byte", "int64_t", "64",
           "Flops of recomputation that one saved byte is worth">,
    Option<"maxRecomputeFlops", "max-recompute-flops", "int64_t", "0",
           "Most flops that one op may cost to be recomputed; 0: no limit">];
  let dependentDialects = ["::segue::SegueDialect", "::mlir::func::FuncDialect"];
  let statistics = [
    Statistic<"bytesBefore", "bytes-saved-before", "Bytes of saved values before">,
    Statistic<"bytesAfter", "bytes-saved-after", "Bytes of saved values after">,
    Statistic<"opsRecomputed", "ops-recomputed", "Ops cloned into backward">,
    Statistic<"flopsRecomputed", "flops-recomputed", "Flops of these ops">];
}

def SegueOptimizer : Pass<"segue-optimizer", "::mlir::ModuleOp"> {
  let summary = "makes @optimizer and @grad_norm from the gradients of @backward";
  let description = [{
    An optimizer step is a program like the others, compiled with the module
    whose parameters it updates. Each trained parameter `p` brings its value,
    its gradient `grad.p` and the states that its optimizer keeps, in f32: `m.p`
    and `v.p` for adamw, `u.p` for sgd with momentum; without momentum there is
    none. They are zero before the first step. Scalars `lr`, `step` (1 at the
    first step) and `clip` (a factor on the gradients) are arguments, so that
    schedules and clipping are the session's. A result that replaces an argument
    names it in `segue.alias` and is written in its place.

    The formula of a step is written in ops of the dialect, all in the block of
    the parameter. Kinds, their constants, states and formulas are the rules in
    `OptimizerRules.cpp`; a constant that is left out is that of PyTorch, but for
    `decay`, the weight decay, which is 0. With `clip-value`, which all of them
    have, too, the elements of gradients are first brought into
    [-clip-value, clip-value]; with `ema`, the state `ema.p` is a moving average
    of the parameter, which is the first one at the first step.

    With `state-bits=8`, moments are codes, and the step decodes them, computes
    in f32 and codes what it keeps. `m.p` has an i8 for each element, in the shape
    blocks x 256, and `m_scale.p` an f32 for each block. Blocks have 128 or 64
    elements where 256 does not divide those of the parameter. With less than 4,096
    elements, or where 64 does not divide them, a state stays in f32, as the state
    `ema.p` does. `StateCodes.h` says what codes mean.

    `@grad_norm` returns the sums of squares of the elements of each gradient of a
    parameter: first `grad_norm_squares`, all in their order, where there are
    several, then each by itself, for a rank that has some gradients alone. The session adds them up
    over its modules, takes the root and passes `clip`.

    `segue.weight_decay` on a parameter of `@forward` overrides `decay` for it.
    `segue.rate_group` gives it another learning rate: that of group 2 is the
    scalar `lr.2`, which comes after `lr`. With `own-steps`, a group counts its
    steps by itself: that of group 2 is `step.2`, which comes after `step`.
    `segue.optimizer` gives it another optimizer, for muon is for matrices alone.

    After, with one parameter and `optimizer=sgd`, without the attributes:
    ```mlir
    func.func @optimizer(%w: tensor<4xf32>, %grad: tensor<4xf32>,
                         %lr: tensor<f32>, %step: tensor<i64>, %clip: tensor<f32>) -> tensor<4xf32> {
      %0 = segue.broadcast %clip dims [] : tensor<f32> -> tensor<4xf32>
      %1 = segue.mul %grad, %0 : tensor<4xf32>
      %2 = segue.broadcast %lr dims [] : tensor<f32> -> tensor<4xf32>
      %3 = segue.mul %2, %1 : tensor<4xf32>
      %4 = segue.sub %w, %3 : tensor<4xf32>
      return %4 : tensor<4xf32>
    }
    func.func @grad_norm(%grad: tensor<4xf32>) -> tensor<1xf32> {
      %0 = segue.mul %grad, %grad : tensor<4xf32>
      %1 = segue.reduce sum %0 dims [0] : tensor<4xf32> -> tensor<f32>
      %2 = segue.reshape %1 : tensor<f32> -> tensor<1xf32>
      return %2 : tensor<1xf32>
    }
    ```
  }];
  let options = [
    Option<"optimizer", "optimizer", "std::string", "\"adamw\"",
           "kind[:key=value,...]: adamw or another rule of OptimizerRules.cpp, and constants of it; an unknown one names all">];
  let dependentDialects = ["::segue::SegueDialect", "::mlir::func::FuncDialect"];
  let statistics = [
    Statistic<"parameters", "parameters", "Parameters that are trained">,
    Statistic<"stateBytes", "state-bytes", "Bytes of optimizer state">];
}

def SegueUpdateInBackward : Pass<"segue-update-in-backward", "::mlir::ModuleOp"> {
  let summary = "moves @optimizer and @grad_norm into @backward";
  let description = [{
    A parameter is updated as soon as its gradient is known and backward reads
    the old value no more. The gradient dies there: a step never holds the
    gradients of all parameters at once, and what moves parameters and states
    to and from the device does so beside the products of backward.

    `@backward` takes the parameters, states and scalars of `@optimizer`, and
    gives its results in the place of the gradients of parameters; last comes
    `grad_norm_squares`, the sum of squares of each of these gradients, which
    `@grad_norm` adds up. Both functions are gone then. What needs all gradients
    before the first update, such as clipping by their norm, cannot be done so:
    the session says so. Ops of an update carry `segue.update`, the name of the
    parameter, and share kernels with no others.

    Before, with one parameter, `optimizer=sgd` and without attributes; `@optimizer`
    and `@grad_norm` are those of the example of `segue-optimizer`:
    ```mlir
    func.func @backward(%seed: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = segue.mul %seed, %x : tensor<4xf32>
      return %0 : tensor<4xf32>
    }
    ```
    After:
    ```mlir
    func.func @backward(%seed: tensor<4xf32>, %x: tensor<4xf32>, %w: tensor<4xf32>,
                        %lr: tensor<f32>, %step: tensor<i64>, %clip: tensor<f32>) -> (tensor<4xf32>, tensor<1xf32>) {
      %0 = segue.mul %seed, %x : tensor<4xf32>
      %1 = segue.mul %0, %0 : tensor<4xf32>
      %2 = segue.reduce sum %1 dims [0] : tensor<4xf32> -> tensor<f32>
      %3 = segue.reshape %2 : tensor<f32> -> tensor<1xf32>
      %4 = segue.broadcast %clip dims [] : tensor<f32> -> tensor<4xf32>
      %5 = segue.mul %0, %4 : tensor<4xf32>
      %6 = segue.broadcast %lr dims [] : tensor<f32> -> tensor<4xf32>
      %7 = segue.mul %6, %5 : tensor<4xf32>
      %8 = segue.sub %w, %7 : tensor<4xf32>
      %9 = segue.concat %3 dim 0 : tensor<1xf32> -> tensor<1xf32>
      return %8, %9 : tensor<4xf32>, tensor<1xf32>
    }
    ```
  }];
  let dependentDialects = ["::segue::SegueDialect", "::mlir::func::FuncDialect"];
  let statistics = [Statistic<"parameters", "parameters", "Parameters that are updated in backward">];
}

def SegueGradientStatistics : Pass<"segue-gradient-statistics", "::mlir::ModuleOp"> {
  let summary = "makes @backward return statistics of the gradients of each block";
  let description = [{
    Selective Precision chooses the storage of a block by the size of its
    gradients. This pass adds a result `statistics.<block>` to `@backward` for
    every block with trained parameters, in the order of `@forward`: f32 [4]
    with the sum of squares, the greatest magnitude, the sum and the number of
    all elements of all gradients of the block's parameters. L2 norm and
    variance follow from these. A block without gradients has no result.

    A parameter belongs to the block of the first op of `@forward` that reads
    it. Sums are f32, also for gradients of fewer bits, and do not depend on
    the number of threads. The reductions belong to the block whose gradients
    they read, and fuse with the kernels that make them.

    With `per-layer`, a layer of a block gets a result each, `statistics.<layer>`
    of `<layer>`: the linear layers, whose weight `<layer>.weight` has rank 2. A
    parameter belongs to the frozen layer that is nearest above or below it in
    the tree that the dots in names make, within its block: an adapter
    `h.0.fc.a.weight` to `h.0.fc.base`, the only one under `h.0.fc`. A block with
    one layer has no other for its adapters. Trained weights of rank 2 that have
    none are layers themselves. What belongs to no
    layer, such as norms, has no statistics then.

    ```mlir
    return %dw : tensor<4x8xf32>
    ```
    becomes, for a block `h.0` with this one parameter,
    ```mlir
    %sq = segue.mul %dw, %dw : tensor<4x8xf32>
    %0 = segue.reduce sum %sq dims [0, 1] : tensor<4x8xf32> -> tensor<f32>
    %abs = segue.abs %dw : tensor<4x8xf32>
    %1 = segue.reduce max %abs dims [0, 1] : tensor<4x8xf32> -> tensor<f32>
    %2 = segue.reduce sum %dw dims [0, 1] : tensor<4x8xf32> -> tensor<f32>
    %3 = segue.constant dense<32.0> : tensor<1xf32>
    %s = segue.concat ... dim 0 : ... -> tensor<4xf32>
    return %dw, %s : tensor<4x8xf32>, tensor<4xf32>
    ```
  }];
  let dependentDialects = ["::segue::SegueDialect", "::mlir::func::FuncDialect"];
  let options = [Option<"perLayer", "per-layer", "bool", "false", "A result for each linear layer, not for each block">];
  let statistics = [Statistic<"units", "units", "Blocks, or layers, with statistics">];
}

def SegueOutlineBlocks : Pass<"segue-outline-blocks", "::mlir::ModuleOp"> {
  let summary = "makes a function of each block of @forward";
  let description = [{
    Calibration asks how much a block's output changes when its weights are
    quantised. For that a block must run by itself, on the inputs that it has in
    a normal forward. This pass adds functions `@segment.0`, `@segment.1`, ...
    which one after the other do what `@forward` does: a run of ops of one
    block, or of none, each. `@forward` stays.

    Arguments of `@forward` keep their attributes. A value that goes from one
    segment to another is an output of the first and an input of the second; it
    is called as the result of `@forward` that it is, or `value.<k>`, counted in
    the order of definition. Constants are repeated where they are read. It goes
    before `segue-autodiff`.

    ```mlir
    func.func @forward(%x: ... {segue.name = "x"}, %w: ... {segue.name = "w", segue.role = #segue.role<frozen>})
        -> (... {segue.name = "y"}) {
      %0 = segue.exp %x : tensor<4xf32>
      %1 = segue.mul %0, %w {segue.block = "h.0"} : tensor<4xf32>
      return %1 : tensor<4xf32>
    }
    ```
    becomes, beside it,
    ```mlir
    func.func @segment.0(%x: ... {segue.name = "x"}) -> (... {segue.name = "value.0", segue.role = output})
    func.func @segment.1(%0: ... {segue.name = "value.0", segue.role = input}, %w: ...)
        -> (... {segue.name = "y", segue.role = output})
    ```
  }];
  let dependentDialects = ["::segue::SegueDialect", "::mlir::func::FuncDialect"];
  let statistics = [Statistic<"segments", "segments", "Functions made">];
}

def SegueAssignLayouts : Pass<"segue-assign-layouts", "::mlir::ModuleOp"> {
  let summary = "gives inputs and outputs the layouts that are asked for";
  let description = [{
    An argument or result of a function that somebody asks a layout for gets
    `segue.layout`: what the program declares, and what the runtime brings a tensor
    to before the program starts. By whom it is decided, first match:

    1. the source: `segue.layout` on an input, parameter, frozen value or
       output, or a `#segue.layout` in its type. All values that are one tensor
       to a training step (an argument of `@forward` that `@backward` takes
       again, a saved value, a parameter, its gradient between `@backward` and
       `@optimizer`, a result over an argument) get the layout of the one that
       has it.
    2. `hints`: a file that the runtime wrote after a run
       (`StitchReport::writeHints`). It lists the copies that were left between
       programs; where one ends of them is a program of this module, the layout
       of that end changes to that of the other, and the copy is gone. Programs
       are known by their interface (names, roles, shapes, element types), so
       that hints for other modules are left alone. Of two hints for one tensor
       the one that saves more bytes counts.
    3. `frozen-storage`: a frozen matrix of floats that is the right operand of
       products and nothing else, in all functions that take it, is stored so.
       The products read its codes, and no copy of it in floats is made.
    4. the type of a gradient, which has that of its value.

    What nobody asked a layout for gets no attribute: between programs of the
    module `segue-choose-layouts` chooses it, all else is dense in `device_dram`.

    Inside of a function layouts are the compiler's to choose: types lose their
    `#segue.layout`, and `segue.to_layout` is gone. One to a layout that no
    argument or result of the function has is an error, and so is one to a storage
    that rounds, unless its result is returned.

    ```mlir
    func.func @forward(%x: tensor<64x32xf32, #segue.layout<strides = [1, 64]>>) -> tensor<64x32xf32> {
      %0 = segue.to_layout %x : tensor<64x32xf32, #segue.layout<strides = [1, 64]>> -> tensor<64x32xf32>
    ```
    becomes
    ```mlir
    func.func @forward(%x: tensor<64x32xf32> {segue.layout = #segue.layout<space = device_dram, strides = [1, 64]>})
        -> tensor<64x32xf32> {
    ```
  }];
  let options = [
    Option<"hints", "hints", "std::string", "\"\"", "File that StitchReport::writeHints wrote">,
    Option<"frozenStorage", "frozen-storage", "std::string", "\"\"",
           "How frozen matrices that only products read are stored: int8_row, int4_group64, ...">
  ];
  let statistics = [Statistic<"given", "given", "Inputs and outputs whose layout the source gives">,
                    Statistic<"hinted", "hinted", "Inputs and outputs whose layout a hint gives">,
                    Statistic<"stored", "stored", "Inputs in the frozen storage">];
  let dependentDialects = ["::segue::SegueDialect"];
}

def SegueExpand : Pass<"segue-expand"> {
  let summary = "writes composite ops in terms of primitives";
  let description = [{
    Composite ops (`gelu`, `layer_norm`, `softmax`, `cross_entropy`, ...) exist so that derivatives are short and exact; kernels are made of
    primitives alone. Each op says how by ExpandableOpInterface. Matmul,
    attention and their gradients stay: they are library calls. Run `cse`
    afterwards: optimizers share their bias corrections.

    ```mlir
    %y = segue.silu %x : tensor<4xf32>
    ```
    becomes
    ```mlir
    %n = segue.neg %x : tensor<4xf32>
    %e = segue.exp %n : tensor<4xf32>
    %one = segue.constant dense<1.0> : tensor<4xf32>
    %d = segue.add %e, %one : tensor<4xf32>
    %y = segue.div %x, %d : tensor<4xf32>
    ```
  }];
  let statistics = [Statistic<"expanded", "expanded", "composite ops expanded">];
  let dependentDialects = ["::segue::SegueDialect"];
}

def SegueFuseEpilogues : Pass<"segue-fuse-epilogues", "::mlir::func::FuncOp"> {
  let summary = "has products take the gelu behind them";
  let description = [{
    cuBLASLt takes `gelu tanh` (and no `erf`) of sums while they are in
    registers, where a kernel would read and write them once more. On a
    processor that saves nothing, so that this runs where a GPU is among the
    targets (docs/decisions.md).

    Taken are products of rows with a matrix, of one element type, with columns
    in multiples of 8, as the library writes sums beside results; not those with
    a weight of codes, and not where a kernel reads what gelu gives, which makes
    it on its way.

    ```mlir
    %s = segue.dot_general %a, %w batch [] x [] contract [1] x [1] : tensor<4x6xf32>, tensor<8x6xf32> -> tensor<4x8xf32>
    %y = segue.gelu tanh %s : tensor<4x8xf32>
    ```
    becomes
    ```mlir
    %y = segue.dot_gelu %a, %w transposed : tensor<4x6xf32>, tensor<8x6xf32> -> tensor<4x8xf32>
    ```
  }];
  let statistics = [Statistic<"fused", "fused", "products that take what comes behind them">];
  let dependentDialects = ["::segue::SegueDialect"];
}

def SegueFormKernels : Pass<"segue-form-kernels", "::mlir::func::FuncOp"> {
  let summary = "fuses primitives into regions that are one kernel each";
  let description = [{
    Memory traffic is what elementwise work costs, so ops that walk the same
    rows are computed by one kernel: elementwise chains, reductions along rows
    with what comes before and after them, sums over rows (gradients of biases
    and scales), and several results at once. Library calls (`dot_general`,
    `attention`, `attention_grad`) stay, and so do views that they read; the
    addition of a bias after a matmul becomes its `bias` operand.

    Sums over many rows are split in chunks whose number depends on the shape
    alone, and a second kernel adds the chunks: the result is the same on any
    number of threads.

    Expects primitives (`segue-expand`, then `cse` and `canonicalize`).

    ```mlir
    %s = segue.reduce sum %x dims [1] : tensor<4x8xf32> -> tensor<4xf32>
    %b = segue.broadcast %s dims [0] : tensor<4xf32> -> tensor<4x8xf32>
    %y = segue.sub %x, %b : tensor<4x8xf32>
    ```
    becomes
    ```mlir
    %y = segue.fused(%a = %x : tensor<4x8xf32>) -> (tensor<4x8xf32>) {
      %s = segue.reduce sum %a dims [1] : tensor<4x8xf32> -> tensor<4xf32>
      %b = segue.broadcast %s dims [0] : tensor<4xf32> -> tensor<4x8xf32>
      %d = segue.sub %a, %b : tensor<4x8xf32>
      segue.yield %d : tensor<4x8xf32>
    }
    ```
  }];
  let statistics = [Statistic<"kernels", "kernels", "kernel regions formed">,
                    Statistic<"biases", "biases", "biases folded into matmuls">,
                    Statistic<"splitReductions", "split-reductions", "reductions done in steps">];
  let dependentDialects = ["::segue::SegueDialect"];
}

def SegueOutlineKernels : Pass<"segue-outline-kernels", "::mlir::ModuleOp"> {
  let summary = "turns fused regions into kernel functions and launches";
  let description = [{
    Every `segue.fused` becomes a `segue.launch` of a function in the nested
    module `@kernels`: loops over 1-D buffers that allocate and copy nothing
    and run over a range, so that the runtime can split them across threads.
    A result does not depend on the split. Equal kernels are stored once,
    whatever their locations: 48 equal blocks have the kernels of one.
    Functions carry what schemas/binary.fbs wants to know of a kernel:
    `segue.outputs`, `segue.fixed_bytes`, `segue.bytes_per_unit`, `segue.flops_per_unit`.

    ```mlir
    %y = segue.fused(%a = %x : tensor<8xf32>) -> (tensor<8xf32>) { ... }
    ```
    becomes
    ```mlir
    %y = segue.launch @k0_exp(%x) range 8 grain 4096 {inPlace = array<i64: 0, 0>} : (tensor<8xf32>) -> tensor<8xf32>
    module @kernels {
      func.func @k0_exp(%a: memref<?xf32>, %y: memref<?xf32>, %begin: index, %end: index) -> i64 { ... }
    }
    ```
    With `gpu`, each kernel has a second form of the same name in the module `@gpu_kernels`: what one thread of a GPU does, with the
    attributes `segue.grid_blocks` and `segue.block_threads`.
  }];
  let options = [Option<"gpu", "gpu", "bool", "false", "kernels for a GPU, too">];
  let statistics = [Statistic<"launches", "launches", "kernel launches">,
                    Statistic<"distinct", "distinct", "distinct kernels">];
  let dependentDialects = ["::mlir::arith::ArithDialect", "::mlir::func::FuncDialect", "::mlir::gpu::GPUDialect",
                           "::mlir::math::MathDialect", "::mlir::memref::MemRefDialect", "::mlir::NVVM::NVVMDialect",
                           "::mlir::scf::SCFDialect", "::segue::SegueDialect"];
}

def SegueGroupBlocks : Pass<"segue-group-blocks", "::mlir::func::FuncOp"> {
  let summary = "orders ops so that every block of the model begins once";
  let description = [{
    The runtime streams weights and spills activations by block, and what is
    between the begin and the end of a block should be all of it. Fusion mixes
    blocks: the kernel that ends the gradient of one begins that of the next,
    and sums in two steps end later than the block that they belong to.

    Blocks keep their order (of the middle one of their ops). A kernel with ops
    of several blocks (`segue.blocks`) goes to the last of these that comes
    after all that it reads and before all that read it; an op without a block
    goes between blocks, or into the one that it depends on and that depends on
    it. Then ops are sorted by block, stably. Where a block needs another that
    needs the first, it begins again; values are the same in any case.

    Expects ops without effects on memory (`segue-outline-kernels`).

    ```mlir
    %a:2 = segue.launch @tail(%g) ... {segue.block = "h.0", segue.blocks = ["h.1", "h.0"]}
    %b = segue.launch @first(%a#0) ... {segue.block = "h.0"}
    %c = segue.launch @sum(%a#1) ... {segue.block = "h.1"}
    %d = segue.launch @second(%b) ... {segue.block = "h.0"}
    ```
    becomes
    ```mlir
    %a:2 = segue.launch @tail(%g) ... {segue.block = "h.1"}
    %c = segue.launch @sum(%a#1) ... {segue.block = "h.1"}
    %b = segue.launch @first(%a#0) ... {segue.block = "h.0"}
    %d = segue.launch @second(%b) ... {segue.block = "h.0"}
    ```
  }];
  let statistics = [Statistic<"begins", "begins", "times that a block begins">,
                    Statistic<"moved", "moved", "kernels of several blocks that changed block">];
}

def SegueRecomputePrograms : Pass<"segue-recompute-programs", "::mlir::ModuleOp"> {
  let summary = "makes functions that compute saved values again while backward runs";
  let description = [{
    What `segue-plan-saved` saves need not stay in memory until `@backward`
    reads it: the runtime may drop it, and have it made again from other saved
    values, parameters and inputs. For each saved result of `@forward` this pass
    makes a function `@recompute.<k>` that does so, called as the result that it
    gives. Results of one op come from one function: an attention gives its
    output and its log of sums at once.

    The functions hold clones of the launches and library calls of `@forward`,
    as fused and outlined there, so that what they give is equal to the bit;
    they launch the same kernels. They start from the nearest other saved
    values. There is none for a value that takes more than `max-flops-per-byte`
    or `max-commands`, or that follows from an input that `@backward` does not
    take. `segue-to-prog` leaves out those that need a saved value which
    `@backward` has finished with by then, and lists the others in the save
    points of `@forward`.

    Expects `segue-outline-kernels`.

    ```mlir
    func.func @forward(%x, %w) -> (..., tensor<8x64xf32> {segue.name = "saved.0"}, tensor<8x64xf32> {segue.name = "saved.1"}) {
      %n = segue.launch @norm(%x) ...
      %h = segue.dot_general %n, %w ...
      return ..., %n, %h : ...
    ```
    gets beside it
    ```mlir
    func.func @recompute.0(%n: tensor<8x64xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>},
                           %w: ... {segue.name = "w", segue.role = #segue.role<parameter>})
        -> (tensor<8x64xf32> {segue.name = "saved.1", segue.role = #segue.role<output>}) {
      %h = segue.dot_general %n, %w ...
      return %h
    ```
  }];
  let options = [
    Option<"maxFlopsPerByte", "max-flops-per-byte", "int64_t", "16384",
           "Most flops of a function per byte that it gives">,
    Option<"maxCommands", "max-commands", "int64_t", "16", "Most launches and library calls of a function">];
  let statistics = [Statistic<"functions", "functions", "Functions made">,
                    Statistic<"bytesRecomputable", "bytes-recomputable", "Bytes of the values that they give">];
  let dependentDialects = ["::mlir::func::FuncDialect", "::segue::SegueDialect"];
}

#endif // SEGUE_DIALECT_SEGUE_TRANSFORMS_PASSES_TD
