//===- SegueInterfaces.td - what ops of the dialect can do -*- tablegen -*-===//
//
// The interfaces are attached as external models, each from one library, so that
// the dialect itself stays small: derivatives from lib/Dialect/Segue/Derivatives;
// costs, expansions and scalar bodies from lib/Dialect/Segue/Lowerings; how an op
// takes part in kernels from lib/Conversion/SegueToLoops. docs/guides/adding.md
// lists the places, and OpAnswersTest fails where an op gives no answer.
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_IR_SEGUEINTERFACES_TD
#define SEGUE_DIALECT_SEGUE_IR_SEGUEINTERFACES_TD

include "mlir/IR/OpBase.td"
include "mlir/IR/Interfaces.td"

def Segue_DifferentiableOpInterface
    : OpInterface<"DifferentiableOpInterface"> {
  let cppNamespace = "::segue";
  let description = [{
    Gives the derivative of an op for reverse mode. Called by
    `segue-autodiff`. A wrong answer breaks training silently: every
    implementation is checked against finite differences by
    test/unit/DerivativeTest.cpp.
  }];
  let methods = [
    InterfaceMethod<[{
      Builds, at the insertion point of `builder`, the gradients of the
      operands from those of the results: the vector-Jacobian product.

      `resultGradients` holds one value per result; null means zero.
      `wanted` tells which operands need a gradient. The answer holds one
      value per operand, of the type of that operand; null means zero, or not
      wanted. Operands and results of the op itself may be used freely: the
      pass saves or recomputes what is used.
    }],
    "::mlir::FailureOr<::llvm::SmallVector<::mlir::Value>>", "buildGradients",
    (ins "::mlir::OpBuilder &":$builder,
         "::mlir::ValueRange":$resultGradients,
         "::llvm::ArrayRef<bool>":$wanted)>
  ];
}

def Segue_ExpandableOpInterface : OpInterface<"ExpandableOpInterface"> {
  let cppNamespace = "::segue";
  let description = [{
    Writes a composite op (`layer_norm`, `gelu`, ...) in terms of
    primitive ones. Called by `segue-expand`, after derivatives were taken and
    before kernels are formed.
  }];
  let methods = [
    InterfaceMethod<[{
      Builds the primitives at the insertion point of `builder` and returns
      one value per result, of the same types.
    }],
    "::llvm::SmallVector<::mlir::Value>", "expand",
    (ins "::mlir::OpBuilder &":$builder)>
  ];
}

def Segue_ScalarOpInterface : OpInterface<"ScalarOpInterface"> {
  let cppNamespace = "::segue";
  let description = [{
    An elementwise primitive: element i of the result depends on element i of
    the operands alone. Called when kernel bodies are built.
  }];
  let methods = [
    InterfaceMethod<[{
      Builds the computation of one element with `arith` and `math` ops.
      `operands` holds one scalar per operand, of its element type, except
      that bf16 and f16 arrive as f32 (`computeType`); the answer is of the element type of
      the result with the same exception.
    }],
    "::mlir::Value", "buildScalar",
    (ins "::mlir::OpBuilder &":$builder, "::mlir::ValueRange":$operands)>,
    InterfaceMethod<[{
      Tells how near the element is to the exact one. Asked where kernels are
      compared with the interpreter (`--verify-values`): an approximation that is
      called exact is reported as a wrong kernel.
    }],
    "::segue::Accuracy", "getAccuracy">
  ];
}

def Segue_CostOpInterface : OpInterface<"CostOpInterface"> {
  let cppNamespace = "::segue";
  let description = [{
    Tells what an op costs, for choices between keeping a value and computing it
    again. Every op has it; passes ask through the functions of OpAnswers.h.
  }];
  let methods = [
    InterfaceMethod<[{
      About the instructions for one element of the result inside of a kernel,
      those of the operands not included; a transcendental function counts as
      what its polynomial takes.
    }],
    "int64_t", "getElementCost">,
    InterfaceMethod<[{
      Flops of the whole op. What only moves or looks at elements is free, and so
      is a draw of random numbers, which is there to be repeated.
    }],
    "int64_t", "getFlops">,
    InterfaceMethod<"Tells when the results are computed again instead of kept.",
    "::segue::Remake", "getRemake">
  ];
}

def Segue_KernelOpInterface : OpInterface<"KernelOpInterface"> {
  let cppNamespace = "::segue";
  let description = [{
    Tells how an op that is no ScalarOpInterface takes part in kernels. The pass
    that forms kernels asks for the role, the shape of the loops and how operands
    are read; whoever builds the loops asks for one element, or for the loops.
  }];
  let methods = [
    InterfaceMethod<"Tells what the op is to a kernel.", "::segue::KernelRole", "getKernelRole">,
    InterfaceMethod<"True for a root of a kernel: a reduction, or an op that writes its loops itself.",
    "bool", "hasKernelLoops", (ins), "", "return false;">,
    InterfaceMethod<[{
      The loops that the op needs: Map over its elements unless `hasKernelLoops`.
      Fails, with an error on the op, where no loops can do it.
    }],
    "::llvm::FailureOr<::segue::KernelShape>", "getKernelShape", (ins), "",
    [{
      auto type = ::mlir::cast<::mlir::RankedTensorType>($_op->getResult(0).getType());
      return ::segue::KernelShape{::segue::KernelShape::Kind::Map, 1, type.getNumElements()};
    }]>,
    InterfaceMethod<"Tells where operand number `operand` is read.", "::segue::OperandAccess", "getOperandAccess",
    (ins "unsigned":$operand), "", "return ::segue::OperandAccess::Element;">,
    InterfaceMethod<[{
      Tells whether the result may lie where operand number `operand` does. Asked
      of an op with loops of its own: it reads such an operand, itself and not
      through `element`, before it writes to the same place.
    }],
    "bool", "mayOverwrite", (ins "unsigned":$operand), "", "return false;">,
    InterfaceMethod<[{
      Appends, for each operand, where the element at the flat `index` of the
      result reads it. False where a loop must be split first, as
      `space.wantedSplit` says. Not asked of an op with loops.
    }],
    "bool", "getKernelReads",
    (ins "::segue::IndexSpace &":$space, "const ::segue::IndexExpr &":$index,
         "::llvm::SmallVectorImpl<::segue::KernelRead> &":$reads)>,
    InterfaceMethod<[{
      Builds the element at the flat `index` of the result in scope number `scope`
      of `kernel`. Null where that is not possible, with an error on the op unless
      the index could not be taken apart.
    }],
    "::mlir::Value", "buildElement",
    (ins "::segue::KernelBuilder &":$kernel, "const ::segue::IndexExpr &":$index, "size_t":$scope)>,
    InterfaceMethod<"Writes the loops of an op whose shape is its own, with the stores of its result.",
    "void", "buildOwnLoops", (ins "::segue::KernelBuilder &":$kernel), "", [{ llvm_unreachable("has no loops of its own"); }]>
  ];
}

#endif // SEGUE_DIALECT_SEGUE_IR_SEGUEINTERFACES_TD
