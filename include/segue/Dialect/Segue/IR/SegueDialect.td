//===- SegueDialect.td - the segue dialect -----------------*- tablegen -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_IR_SEGUEDIALECT_TD
#define SEGUE_DIALECT_SEGUE_IR_SEGUEDIALECT_TD

include "mlir/IR/OpBase.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"

def Segue_Dialect : Dialect {
  let name = "segue";
  let cppNamespace = "::segue";
  let summary = "training graphs over ranked, static tensors";
  let description = [{
    A training graph is a module with `func.func` ops. `@forward` is given;
    `@backward`, `@optimizer` and `@grad_norm` are derived by passes. Values
    are ranked tensors with static shapes of f64, f32, bf16, f16, i64, i32, i8
    or i1. Ops are pure: a value is never changed.

    Functions carry the training signature as argument and result attributes:

    | attribute | on | meaning |
    | --- | --- | --- |
    | `segue.name` | argument, result | name, unique among the arguments and among the results |
    | `segue.role` | argument, result | `#segue.role<...>`: what the value is to a training step |
    | `segue.of` | argument, result | for `gradient` and `state`: the name of the value it belongs to; for `statistics`: the block |
    | `segue.layout` | argument, result | `#segue.layout<...>`: where the value lies, instead of in its type |
    | `segue.requires_grad` | argument | `false`: nobody wants the gradient of this float `input` |
    | `segue.weight_decay` | argument | overrides the optimizer's decay for this `parameter` |
    | `segue.rate_group` | argument | the learning rate of this `parameter` is `lr.<group>`; without, or for 0, `lr` |
    | `segue.optimizer` | argument | the optimizer of this `parameter`, instead of that of the others: `sgd:momentum=0.9` |
    | `segue.alias` | result | the argument whose memory the result takes |
    | `segue.recompute_flops` | result | what computing a `saved` value again would cost |
    | `segue.recompute_bytes` | result | what that would read and write, op by op |
    | `segue.block` | result | the block that a `saved` value belongs to |

    A value with a role is a static tensor and has a name. Other attributes
    that begin with `segue.` are errors there.

    An op may carry `segue.block = "h.3"`: the block of the model that it
    belongs to. Blocks are what the runtime streams and spills by. A kernel
    that computes ops of several blocks has `segue.blocks = ["h.3", "h.4"]`
    beside it, until `segue-group-blocks` decides.

    An extent may be 0. What has no elements is folded to a constant, and what is
    made of nothing to what nothing counts: 0 for a sum, NaN for a mean.

    Broadcasting is explicit: elementwise ops take operands of one shape, and
    `segue.broadcast` makes them so.
  }];
  let dependentDialects = [];
  let useDefaultAttributePrinterParser = 1;
  let hasCanonicalizer = 1;
  let hasConstantMaterializer = 1;
  let hasOperationAttrVerify = 1;
  let hasRegionArgAttrVerify = 1;
  let hasRegionResultAttrVerify = 1;
  let extraClassDeclaration = [{
    static constexpr ::llvm::StringLiteral kNameAttr = "segue.name";
    static constexpr ::llvm::StringLiteral kRoleAttr = "segue.role";
    static constexpr ::llvm::StringLiteral kOfAttr = "segue.of";
    static constexpr ::llvm::StringLiteral kBlockAttr = "segue.block";
    static constexpr ::llvm::StringLiteral kBlocksAttr = "segue.blocks";
    /// The name of a parameter, on ops that update it: they share a kernel with no others.
    static constexpr ::llvm::StringLiteral kUpdateAttr = "segue.update";
    static constexpr ::llvm::StringLiteral kLayoutAttr = "segue.layout";

    /// Names of the functions of a training module.
    static constexpr ::llvm::StringLiteral kForward = "forward";
    static constexpr ::llvm::StringLiteral kBackward = "backward";
    static constexpr ::llvm::StringLiteral kOptimizer = "optimizer";
    static constexpr ::llvm::StringLiteral kGradNorm = "grad_norm";
    /// The program that is forward and, before each block, the update of its parameters.
    static constexpr ::llvm::StringLiteral kForwardUpdating = "forward_updating";
    /// The names of functions that compute saved values again begin with this.
    static constexpr ::llvm::StringLiteral kRecomputePrefix = "recompute.";
    /// The nested module that `segue-outline-kernels` fills.
    static constexpr ::llvm::StringLiteral kKernelsModule = "kernels";

    void registerAttributes();
  }];
}

#endif // SEGUE_DIALECT_SEGUE_IR_SEGUEDIALECT_TD
