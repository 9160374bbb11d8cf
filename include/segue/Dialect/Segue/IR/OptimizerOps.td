//===- OptimizerOps.td - optimizers of the segue dialect ---*- tablegen -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_IR_OPTIMIZEROPS_TD
#define SEGUE_DIALECT_SEGUE_IR_OPTIMIZEROPS_TD

include "segue/Dialect/Segue/IR/SegueTypes.td"

//===----------------------------------------------------------------------===//
// Optimizers: one step on one parameter. `lr` is an f32 scalar, `step` an i64
// scalar that is 1 at the first step.
//===----------------------------------------------------------------------===//

def Segue_AdamWOp : Segue_Op<"adamw", [Pure, AllTypesMatch<["parameter", "newParameter"]>,
                                       AllTypesMatch<["m", "v", "newM", "newV"]>,
                                       AllShapesMatch<["parameter", "grad", "m"]>]> {
  let summary = "makes one AdamW step";
  let description = [{
    Loshchilov and Hutter, arXiv:1711.05101, as in PyTorch: with g = grad * clip,
    `m' = b1 m + (1 - b1) g`, `v' = b2 v + (1 - b2) g^2`,
    `p' = p (1 - lr decay) - lr / (1 - b1^step) * m' / (sqrt(v') / sqrt(1 - b2^step) + eps)`.
    `clip` is a scalar factor on the gradient, 1 where nothing is clipped.
    (C1) `betas` holds two numbers from [0, 1).

    Example: `%p1, %m1, %v1 = segue.adamw %p, %g, %m, %v lr %lr step %t clip %c betas [0.9, 0.95] eps 1.0e-8 decay 0.1 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>`
  }];
  let arguments = (ins Segue_FloatTensor:$parameter, Segue_FloatTensor:$grad, Segue_F32Tensor:$m,
                       Segue_F32Tensor:$v, Segue_F32Scalar:$lr, Segue_I64Scalar:$step,
                       Segue_F32Scalar:$clip, DenseF64ArrayAttr:$betas, F64Attr:$eps, F64Attr:$decay);
  let results = (outs Segue_FloatTensor:$newParameter, Segue_F32Tensor:$newM, Segue_F32Tensor:$newV);
  let assemblyFormat = [{
    $parameter `,` $grad `,` $m `,` $v `lr` $lr `step` $step `clip` $clip `betas` $betas `eps` $eps `decay` $decay
    attr-dict `:` type($parameter) `,` type($grad) `,` type($m)
  }];
  let hasVerifier = 1;
}

def Segue_DescendOp : Segue_Op<"descend", [Pure, AllTypesMatch<["parameter", "newParameter"]>,
                                           AllShapesMatch<["parameter", "grad"]>]> {
  let summary = "makes one step of gradient descent, without momentum";
  let description = [{
    As PyTorch's SGD whose momentum is 0, which keeps no state and ignores a dampening:
    `p' = p - lr * (grad * clip + decay * p)`.

    Example: `%p1 = segue.descend %p, %g lr %lr clip %c decay 0.1 : tensor<4xf32>, tensor<4xf32>`
  }];
  let arguments = (ins Segue_FloatTensor:$parameter, Segue_FloatTensor:$grad, Segue_F32Scalar:$lr,
                       Segue_F32Scalar:$clip, F64Attr:$decay);
  let results = (outs Segue_FloatTensor:$newParameter);
  let assemblyFormat = [{
    $parameter `,` $grad `lr` $lr `clip` $clip `decay` $decay attr-dict `:` type($parameter) `,` type($grad)
  }];
}

def Segue_SgdOp : Segue_Op<"sgd", [Pure, AllTypesMatch<["parameter", "newParameter"]>,
                                   AllTypesMatch<["velocity", "newVelocity"]>,
                                   AllShapesMatch<["parameter", "grad", "velocity"]>]> {
  let summary = "makes one step of gradient descent with momentum";
  let description = [{
    As in PyTorch: with `g = grad * clip + decay * p`: `u' = g` at step 1,
    otherwise `momentum * u + (1 - dampening) * g`; `p' = p - lr * u'`, or with
    `nesterov`, `p' = p - lr * (g + momentum * u')`.

    Example: `%p1, %u1 = segue.sgd %p, %g, %u lr %lr step %t clip %c momentum 0.9 dampening 0.0 decay 0.0 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>`
  }];
  let arguments = (ins Segue_FloatTensor:$parameter, Segue_FloatTensor:$grad, Segue_F32Tensor:$velocity,
                       Segue_F32Scalar:$lr, Segue_I64Scalar:$step, Segue_F32Scalar:$clip,
                       F64Attr:$momentum, F64Attr:$dampening, F64Attr:$decay, UnitAttr:$nesterov);
  let results = (outs Segue_FloatTensor:$newParameter, Segue_F32Tensor:$newVelocity);
  let assemblyFormat = [{
    $parameter `,` $grad `,` $velocity `lr` $lr `step` $step `clip` $clip `momentum` $momentum
    `dampening` $dampening `decay` $decay (`nesterov` $nesterov^)?
    attr-dict `:` type($parameter) `,` type($grad) `,` type($velocity)
  }];
}

#endif // SEGUE_DIALECT_SEGUE_IR_OPTIMIZEROPS_TD
