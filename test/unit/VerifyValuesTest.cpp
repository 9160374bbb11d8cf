//===- VerifyValuesTest.cpp - a wrong kernel is named ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Compiler/VerifyValues.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/Builders.h"
#include "mlir/Parser/Parser.h"
#include "segue/Compiler/Registration.h"
#include "segue/Conversion/SegueToLoops/SegueToLoops.h"
#include "llvm/Support/Error.h"
#include <gtest/gtest.h>

using namespace mlir;
using namespace segue;

namespace {
/// A model with rows, a long sum, slices that are written apart, and bf16.
constexpr const char *kModel = R"(
func.func @forward(%x: tensor<4x300xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %g: tensor<300xf32> {segue.name = "g", segue.role = #segue.role<parameter>},
                   %i: tensor<6xi64> {segue.name = "i", segue.role = #segue.role<input>},
                   %e: tensor<5x300xf32> {segue.name = "e", segue.role = #segue.role<parameter>})
    -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
  %n, %r = segue.rms_norm %x gamma %g : tensor<300xf32> eps 1.0e-5 : tensor<4x300xf32> -> tensor<4xf32>
  %t = segue.gelu tanh %n : tensor<4x300xf32> loc("model.py":7:1)
  %b = segue.cast %t : tensor<4x300xf32> -> tensor<4x300xbf16>
  %c = segue.mul %b, %b : tensor<4x300xbf16>
  %d = segue.cast %c : tensor<4x300xbf16> -> tensor<4x300xf32>
  %u = segue.gather %e[%i] : tensor<5x300xf32>, tensor<6xi64> -> tensor<6x300xf32>
  %a = segue.concat %d, %u dim 0 : tensor<4x300xf32>, tensor<6x300xf32> -> tensor<10x300xf32>
  %s = segue.softmax %a dim 1 : tensor<10x300xf32>
  %q = segue.mul %s, %a : tensor<10x300xf32>
  %l = segue.reduce sum %q dims [0, 1] : tensor<10x300xf32> -> tensor<f32> loc("model.py":15:1)
  return %l : tensor<f32>
}
)";

class VerifyValues : public testing::Test {
protected:
  VerifyValues() {
    DialectRegistry registry;
    registerAllSegue(registry);
    context.appendDialectRegistry(registry);
    context.loadAllAvailableDialects();
  }

  FailureOr<VerifiedValues> run(const VerifyOptions &verify = {}, bool onGpu = false) {
    OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(kModel, &context);
    CompileOptions options;
    options.optimizer = "adamw";
    options.threads = 1;
    if (onGpu) {
      options.v3 = options.v4 = false;
      options.gpuCapability = 90;
    }
    return verifyValues(*module, options, verify);
  }

  /// The values with a fault that `edit` puts in all ops of a kind, in the first
  /// kernel whose name has `kernel` in it.
  template <typename OpTy, typename Edit> KernelDifference faulty(StringRef kernel, Edit edit) {
    VerifyOptions verify;
    verify.edit = [&](ModuleOp kernels) {
      for (auto function : kernels.getOps<func::FuncOp>())
        if (function.getName().contains(kernel)) {
          edited = function.getName().str();
          function.walk([&](OpTy op) { edit(op); });
          return;
        }
    };
    FailureOr<VerifiedValues> found = run(verify);
    EXPECT_TRUE(succeeded(found));
    EXPECT_FALSE(edited.empty());
    EXPECT_TRUE(succeeded(found) && found->difference);
    return succeeded(found) && found->difference ? *found->difference : KernelDifference();
  }

  MLIRContext context;
  std::string edited;
};
} // namespace

TEST_F(VerifyValues, AgreesForSeveralInputs) {
  VerifyOptions verify;
  for (uint64_t seed : {1, 2}) {
    verify.seed = seed;
    FailureOr<VerifiedValues> found = run(verify);
    ASSERT_TRUE(succeeded(found));
    EXPECT_FALSE(found->difference) << found->difference->str();
    // Forward, backward and optimizer, each in place too.
    EXPECT_GE(found->launches, 6u);
    EXPECT_GT(found->calls, found->launches);
  }
}

TEST_F(VerifyValues, NamesAKernelThatAddsWhereItShouldMultiply) {
  KernelDifference difference = faulty<arith::MulFOp>("rsqrt", [](arith::MulFOp op) {
    OpBuilder b(op);
    op.replaceAllUsesWith(arith::AddFOp::create(b, op.getLoc(), op.getLhs(), op.getRhs()).getResult());
  });
  EXPECT_EQ(difference.kernel, edited);
  EXPECT_EQ(difference.function, "forward");
  EXPECT_NE(difference.str().find("kernel " + edited), std::string::npos);
  EXPECT_NE(difference.location, "no known place") << difference.str();
}

TEST_F(VerifyValues, AgreesOnAGpu) {
  FailureOr<VerifiedValues> found = run({}, /*onGpu=*/true);
  ASSERT_TRUE(succeeded(found));
  EXPECT_FALSE(found->difference) << found->difference->str();
  EXPECT_GE(found->calls, 3 * found->launches) << "three orders";
}

/// Threads that read what others have not written yet.
TEST_F(VerifyValues, NamesAKernelOfAGpuWithoutABarrier) {
  VerifyOptions verify;
  verify.edit = [&](ModuleOp kernels) {
    SmallVector<Operation *> barriers;
    kernels.walk([&](gpu::BarrierOp op) { barriers.push_back(op); });
    for (Operation *op : barriers) {
      edited = op->getParentOfType<func::FuncOp>().getName().str();
      op->erase();
    }
  };
  FailureOr<VerifiedValues> found = run(verify, /*onGpu=*/true);
  EXPECT_FALSE(edited.empty());
  ASSERT_TRUE(succeeded(found) && found->difference);
  EXPECT_NE(found->difference->variant.find("blocks of a GPU in"), std::string::npos) << found->difference->str();
}

/// A shuffle that a part of a warp comes to ends a run on a GPU in nobody knows what.
TEST_F(VerifyValues, RefusesAKernelOfAGpuThatWaitsForever) {
  VerifyOptions verify;
  verify.edit = [&](ModuleOp kernels) {
    kernels.walk([&](gpu::ShuffleOp shuffle) {
      auto branch = llvm::find_if(shuffle->getBlock()->getOperations(), [](Operation &op) { return isa<scf::IfOp>(op); });
      if (branch == shuffle->getBlock()->end() || !edited.empty())
        return;
      edited = shuffle->getParentOfType<func::FuncOp>().getName().str();
      cast<scf::IfOp>(*branch).thenBlock()->push_front(shuffle->clone());
    });
  };
  std::string said;
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) { return said += diagnostic.str(), success(); });
  EXPECT_TRUE(failed(run(verify, /*onGpu=*/true)));
  EXPECT_FALSE(edited.empty());
  EXPECT_NE(said.find("wait for others that do not come"), std::string::npos) << said;
}

/// The tolerance is one of rounding: a thousandth is no rounding.
/// A function that is in no library of ours: kernels call none, and their maker is told where forms are.
TEST_F(VerifyValues, RefusesAFunctionThatHasNoForm) {
  for (bool onGpu : {false, true}) {
    VerifyOptions verify;
    verify.edit = [&](ModuleOp kernels) {
      kernels.walk([&](math::TanhOp op) {
        OpBuilder b(op);
        op.replaceAllUsesWith(math::AtanOp::create(b, op.getLoc(), op.getOperand()).getResult());
        op.erase();
      });
    };
    std::string said;
    ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) { said += diagnostic.str(); });
    EXPECT_TRUE(failed(run(verify, onGpu)));
    EXPECT_NE(said.find("'math.atan' op on 'f32' has no form in arithmetic"), std::string::npos) << said;
    EXPECT_NE(said.find("ExpandMath.cpp"), std::string::npos) << said;
  }
}

TEST_F(VerifyValues, NamesAKernelWhoseResultIsAThousandthOff) {
  KernelDifference difference = faulty<memref::StoreOp>("gather", [](memref::StoreOp op) {
    // Stores of indices that are refused are not of f32.
    if (!op.getValue().getType().isF32())
      return;
    OpBuilder b(op);
    Value factor = arith::ConstantOp::create(b, op.getLoc(), b.getF32FloatAttr(1.001f));
    op.getValueMutable().assign(arith::MulFOp::create(b, op.getLoc(), op.getValue(), factor).getResult());
  });
  EXPECT_EQ(difference.kernel, edited);
}

/// The defect that this is for: another result is stored first.
TEST_F(VerifyValues, NamesAKernelThatIsWrongInPlaceAlone) {
  VerifyOptions verify;
  unsigned moved = 0;
  verify.edit = [&](ModuleOp kernels) {
    kernels.walk([&](memref::StoreOp store) {
      auto function = store->getParentOfType<func::FuncOp>();
      // A load of the operand, again, after the store of the result.
      auto pairs = function->getAttrOfType<DenseI64ArrayAttr>(kInPlaceAttr);
      auto outputs = function->getAttrOfType<IntegerAttr>("segue.outputs");
      if (!pairs || moved || store->getNextNode() == nullptr)
        return;
      unsigned first = function.getNumArguments() - 2 - outputs.getInt();
      Value operand = function.getArgument(pairs.asArrayRef()[0]), result = function.getArgument(first + pairs.asArrayRef()[1]);
      if (store.getMemref() != result || operand.getType() != result.getType() ||
          !cast<MemRefType>(operand.getType()).getElementType().isF32())
        return;
      OpBuilder b(store);
      Location loc = store.getLoc();
      Value zero = arith::ConstantOp::create(b, loc, b.getF32FloatAttr(0));
      Value before = memref::LoadOp::create(b, loc, operand, store.getIndices());
      memref::StoreOp::create(b, loc, zero, result, store.getIndices());
      Value after = memref::LoadOp::create(b, loc, operand, store.getIndices());
      Value lost = arith::SubFOp::create(b, loc, before, after);
      store.getValueMutable().assign(arith::SubFOp::create(b, loc, store.getValue(), lost).getResult());
      ++moved;
    });
  };
  FailureOr<VerifiedValues> found = run(verify);
  ASSERT_TRUE(succeeded(found));
  ASSERT_EQ(moved, 1u);
  ASSERT_TRUE(found->difference);
  EXPECT_NE(found->difference->variant.find("in place of operand"), std::string::npos) << found->difference->str();
}

TEST_F(VerifyValues, TakesValuesByName) {
  VerifyOptions verify;
  Builder b(&context);
  auto indices = RankedTensorType::get({6}, b.getI64Type());
  verify.values["i"] = HostTensor::filled(indices, 4);
  FailureOr<VerifiedValues> found = run(verify);
  ASSERT_TRUE(succeeded(found));
  EXPECT_FALSE(found->difference) << found->difference->str();

  // Said as the interpreter says it: an index that is no row.
  std::string said;
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) { said += diagnostic.str(); });
  verify.values["i"] = HostTensor::filled(indices, 5);
  EXPECT_TRUE(failed(run(verify)));
  EXPECT_NE(said.find("index 5"), std::string::npos) << said;
  said.clear();
  verify.values["i"] = HostTensor::filled(RankedTensorType::get({7}, b.getI64Type()));
  EXPECT_TRUE(failed(run(verify)));
  EXPECT_NE(said.find("argument \"i\" is 'tensor<6xi64>'"), std::string::npos) << said;
}

//===----------------------------------------------------------------------===//
// Files of values
//===----------------------------------------------------------------------===//

static std::string safetensors(const std::string &header, const std::string &data) {
  uint64_t length = header.size();
  return std::string(reinterpret_cast<const char *>(&length), 8) + header + data;
}

TEST_F(VerifyValues, ReadsSafetensors) {
  const float floats[] = {1.5f, -2.0f};
  std::string data(reinterpret_cast<const char *>(floats), 8);
  auto tensors = readSafetensors(
      safetensors(R"({"x": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]}, "__metadata__": {"a": "b"}})", data),
      &context);
  ASSERT_TRUE(!!tensors) << llvm::toString(tensors.takeError());
  ASSERT_EQ(tensors->size(), 1u);
  EXPECT_EQ(tensors->lookup("x").floats, (std::vector<double>{1.5, -2}));

  const std::pair<std::string, const char *> bad[] = {
      {"short", "does not fit"},
      {safetensors("[1]", ""), "not a JSON object"},
      {safetensors(R"({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}})", data), "outside of the file"},
      {safetensors(R"({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}})", data), "outside of the file"},
      {safetensors(R"({"x": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}})", data), "a shape that is none"},
      {safetensors(R"({"x": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}})", data), "F8_E4M3"},
  };
  for (const auto &[bytes, word] : bad) {
    auto refused = readSafetensors(bytes, &context);
    ASSERT_FALSE(!!refused);
    EXPECT_NE(llvm::toString(refused.takeError()).find(word), std::string::npos) << word;
  }
}
