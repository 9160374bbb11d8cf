//===- KernelHarness.cpp - compiles and runs kernels in a test ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "KernelHarness.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/DialectRegistry.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/Passes.h"
#include "segue/Conversion/SegueToLoops/SegueToLoops.h"
#include "segue/Dialect/Segue/Interpreter/HostBytes.h"
#include "segue/Dialect/Segue/Lowerings/Lowerings.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include "llvm/Support/Error.h"
#include <chrono>
#include <cstring>
#include <gtest/gtest.h>

using namespace mlir;
using namespace segue;
using namespace segue::test;

/// Bytes after each buffer that must stay as they are.
constexpr size_t kZone = 256;
constexpr char kGarbage = static_cast<char>(0xAB);

SmallVector<StringRef> segue::test::instructionSets() {
  return llvm::map_to_vector(runnableIsas(), [](KernelIsa isa) { return StringRef(isa == KernelIsa::V4 ? "v4" : "v3"); });
}

static std::vector<char> withZone(std::vector<char> bytes) {
  bytes.resize(bytes.size() + kZone, kGarbage);
  return bytes;
}

static HostTensor withoutZone(RankedTensorType type, const std::vector<char> &bytes) {
  for (size_t at = bytes.size() - kZone; at < bytes.size(); ++at)
    EXPECT_EQ(bytes[at], kGarbage) << "a kernel wrote " << at - (bytes.size() - kZone) << " bytes behind its buffer";
  return fromBytes(type, bytes.data());
}

std::string segue::test::optimizerText(const std::string &spec, ArrayRef<std::string> types) {
  // The gradient of each parameter is a number that @backward is given.
  std::string arguments, gradients, results, values;
  for (auto [index, type] : llvm::enumerate(types)) {
    std::string name = "w" + std::to_string(index), comma = index ? ", " : "", tensor = "tensor<" + type + ">";
    arguments += comma + "%" + name + ": " + tensor + " {segue.name = \"" + name + "\", segue.role = #segue.role<parameter>}";
    gradients += comma + "%" + name + ": " + tensor;
    results += comma + tensor + " {segue.name = \"grad." + name + "\", segue.of = \"" + name +
               "\", segue.role = #segue.role<gradient>}";
    values += comma + "%" + name;
  }
  std::string text = "func.func @forward(" + arguments + ") { return }\nfunc.func @backward(" + gradients + ") -> (" +
                     results + ") { return " + values + " : ";
  for (auto [index, type] : llvm::enumerate(types))
    text += (index ? ", tensor<" : "tensor<") + type + ">";
  text += " }";

  DialectRegistry registry;
  registry.insert<SegueDialect, func::FuncDialect>();
  MLIRContext context(registry);
  OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(text, &context);
  PassManager passes(&context);
  passes.addPass(createSegueOptimizer({.optimizer = spec}));
  if (!module || failed(passes.run(*module))) {
    ADD_FAILURE() << "no optimizer " << spec << " for:\n" << text;
    return "";
  }
  auto function = module->lookupSymbol<func::FuncOp>(SegueDialect::kOptimizer);
  function.setName("f");
  std::string printed;
  llvm::raw_string_ostream os(printed);
  function.print(os);
  return printed;
}

std::vector<std::string> segue::test::elementwiseOps(unsigned operands, const std::string &type) {
  DialectRegistry registry;
  registry.insert<SegueDialect, func::FuncDialect>();
  registerLowerings(registry);
  MLIRContext context(registry);
  context.loadAllAvailableDialects();
  ScopedDiagnosticHandler quiet(&context, [](Diagnostic &) { return success(); });
  std::string given, types;
  for (unsigned at = 0; at < operands; ++at) {
    given += at ? ", %x" : "%x";
    types += (at ? ", " : "") + type;
  }
  std::vector<std::string> names;
  for (RegisteredOperationName op : context.getRegisteredOperations()) {
    if (!op.hasInterface<ScalarOpInterface>() && !op.hasInterface<ExpandableOpInterface>())
      continue;
    std::string name = op.getStringRef().str();
    if (parseSourceString<ModuleOp>("func.func @f(%x: " + type + ") {\n\"" + name + "\"(" + given + ") : (" + types + ") -> " +
                                        type + "\nreturn\n}",
                                    &context))
      names.push_back(name);
  }
  return names;
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

Kernels::Kernels(const std::string &text, bool gpu) : text(text), gpu(gpu) {
  DialectRegistry registry;
  registry.insert<SegueDialect, func::FuncDialect>();
  registerKernelModels(registry);
  registerLowerings(registry);
  context.appendDialectRegistry(registry);
  context.loadAllAvailableDialects();
  source = parseSourceString<ModuleOp>(text, &context);
  if (!source) {
    ADD_FAILURE() << "does not parse:\n" << text;
    return;
  }
  lowered = cast<ModuleOp>(source->clone());
  PassManager passes(&context);
  passes.addPass(createSegueExpand());
  passes.addPass(createCSEPass());
  passes.addPass(createCanonicalizerPass());
  passes.addNestedPass<func::FuncOp>(createSegueFormKernels());
  passes.addPass(createSegueOutlineKernels({.gpu = gpu}));
  if (failed(passes.run(*lowered))) {
    ADD_FAILURE() << "passes failed on:\n" << text;
    return;
  }
  if (gpu) {
    loaded = succeeded(twins.load(lowered->lookupSymbol<ModuleOp>(kGpuKernelsModule)));
    EXPECT_TRUE(loaded) << "kernels of a GPU do not compile:\n" << text;
    return;
  }
  auto kernels = lowered->lookupSymbol<ModuleOp>(SegueDialect::kKernelsModule);
  FailureOr<CompiledKernels> result = compileKernels(kernels);
  if (failed(result)) {
    ADD_FAILURE() << "kernels do not compile:\n" << text;
    return;
  }
  if (llvm::Error error = compiled.load(std::move(*result)))
    ADD_FAILURE() << llvm::toString(std::move(error));
  else
    loaded = true;
}

func::FuncOp Kernels::function(ModuleOp module) { return module.lookupSymbol<func::FuncOp>("f"); }

FailureOr<SmallVector<HostTensor>> Kernels::interpret(ArrayRef<HostTensor> arguments) {
  return segue::interpret(function(*source), arguments);
}

SmallVector<RankedTensorType> Kernels::argumentTypes() {
  SmallVector<RankedTensorType> types;
  for (Type type : function(*source).getArgumentTypes())
    types.push_back(cast<RankedTensorType>(type));
  return types;
}

size_t Kernels::launches() {
  auto ops = function(*lowered).getOps<LaunchOp>();
  return std::distance(ops.begin(), ops.end());
}

size_t Kernels::distinctKernels() { return compiled.kernels().kernels.size(); }

LoadedKernels::Function Kernels::symbol(StringRef kernel, StringRef isa) {
  return compiled.find(kernel, isa == "v4" ? KernelIsa::V4 : KernelIsa::V3);
}

size_t Kernels::places() {
  size_t most = 0;
  for (LaunchOp launch : function(*lowered).getOps<LaunchOp>())
    most = std::max(most, launch.getInPlace().size() / 2);
  return most;
}

/// True if operand `operand` and result `result` of `launch` may be one buffer.
static bool isListed(LaunchOp launch, int64_t operand, int64_t result) {
  ArrayRef<int64_t> pairs = launch.getInPlace();
  for (size_t i = 0; i + 1 < pairs.size(); i += 2)
    if (pairs[i] == operand && pairs[i + 1] == result)
      return true;
  return false;
}

int64_t Kernels::call(LaunchOp launch, ArrayRef<void *> pointers, StringRef isa, bool pieces) {
  int64_t range = launch.getRange(), grain = launch.getGrain(), width = 0, code = 0;
  if (gpu) {
    TwinOrder order = isa == "forward" ? TwinOrder::Forward : isa == "reverse" ? TwinOrder::Reverse : TwinOrder::Shuffled;
    llvm::Expected<int64_t> result = twins.run(launch.getKernel(), pointers, order);
    if (result)
      return *result;
    ADD_FAILURE() << launch.getKernel().str() << ": " << llvm::toString(result.takeError());
    return -1;
  }
  LoadedKernels::Function kernel = symbol(launch.getKernel(), isa);
  for (int64_t begin = 0; begin < range && code == 0;) {
    // 1, 2, 3, 1, 2, ... grains.
    width = width % 3 + 1;
    int64_t end = pieces ? std::min(range, begin + width * grain) : range;
    code = kernel(pointers.data(), begin, end);
    begin = end;
  }
  return code;
}

SmallVector<HostTensor> Kernels::run(ArrayRef<HostTensor> arguments, StringRef isa, bool pieces,
                                     std::optional<size_t> place) {
  func::FuncOp f = function(*lowered);
  llvm::DenseMap<Value, Bytes> buffers;
  for (auto [argument, tensor] : llvm::zip_equal(f.getArguments(), arguments))
    buffers[argument] = withZone(toBytes(tensor));
  SmallVector<HostTensor> results;
  lastStatus = 0;
  for (Operation &op : f.getBody().front()) {
    if (auto constant = dyn_cast<ConstantOp>(op)) {
      buffers[constant] = withZone(toBytes(HostTensor::fromAttr(constant.getValue())));
    } else if (auto reshape = dyn_cast<ReshapeOp>(op)) {
      Bytes bytes = buffers.lookup(reshape.getInput());
      buffers[reshape] = bytes;
    } else if (auto launch = dyn_cast<LaunchOp>(op)) {
      for (Value result : launch.getResults()) {
        auto type = cast<RankedTensorType>(result.getType());
        buffers[result] = Bytes(type.getNumElements() * bytesOfElement(type.getElementType()) + kZone, kGarbage);
      }
      SmallVector<void *> pointers;
      for (Value input : launch.getInputs())
        pointers.push_back(buffers.find(input)->second.data());
      for (Value result : launch.getResults())
        pointers.push_back(buffers.find(result)->second.data());
      if (place && 2 * *place < launch.getInPlace().size()) {
        int64_t operand = launch.getInPlace()[2 * *place], result = launch.getInPlace()[2 * *place + 1];
        Value value = launch.getInputs()[operand], target = launch.getResult(result);
        auto sees = [&](int64_t at) { return launch.getInputs()[at] == value; };
        auto all = llvm::seq<int64_t>(0, launch.getInputs().size());
        // A value that is passed twice is in place for all its readers or for none.
        if (llvm::all_of(all, [&](int64_t at) { return !sees(at) || isListed(launch, at, result); })) {
          // Later launches read the operand as it was: the result starts as a copy of it.
          buffers[target] = Bytes(buffers.lookup(value));
          void *shared = buffers.find(target)->second.data();
          for (int64_t at : all)
            if (sees(at))
              pointers[at] = shared;
          pointers[launch.getInputs().size() + result] = shared;
        }
      }
      lastStatus = call(launch, pointers, isa, pieces);
      if (lastStatus)
        return results;
    } else if (isa_and_present<func::ReturnOp>(&op)) {
      for (Value value : op.getOperands())
        results.push_back(withoutZone(cast<RankedTensorType>(value.getType()), buffers.lookup(value)));
    } else {
      ADD_FAILURE() << "the harness does not play " << op.getName().getStringRef().str();
      return results;
    }
  }
  return results;
}

double Kernels::time(ArrayRef<HostTensor> arguments, StringRef isa, int repetitions) {
  func::FuncOp f = function(*lowered);
  llvm::DenseMap<Value, void *> buffers;
  std::vector<std::unique_ptr<char[]>> memory;
  auto add = [&](Value value) {
    auto type = cast<RankedTensorType>(value.getType());
    size_t bytes = type.getNumElements() * bytesOfElement(type.getElementType());
    memory.push_back(std::make_unique<char[]>(bytes + 64));
    char *start = memory.back().get();
    start += 64 - reinterpret_cast<uintptr_t>(start) % 64;
    std::memset(start, 0, bytes);
    return buffers[value] = start;
  };
  for (auto [argument, tensor] : llvm::zip_equal(f.getArguments(), arguments)) {
    Bytes bytes = toBytes(tensor);
    std::memcpy(add(argument), bytes.data(), bytes.size());
  }
  struct Call {
    LoadedKernels::Function kernel;
    SmallVector<void *> pointers;
    int64_t range;
  };
  std::vector<Call> calls;
  for (Operation &op : f.getBody().front()) {
    if (auto reshape = dyn_cast<ReshapeOp>(op))
      buffers[reshape] = buffers.lookup(reshape.getInput());
    auto launch = dyn_cast<LaunchOp>(op);
    if (!launch)
      continue;
    Call call{symbol(launch.getKernel(), isa), {}, static_cast<int64_t>(launch.getRange())};
    for (Value input : launch.getInputs())
      call.pointers.push_back(buffers.lookup(input));
    for (Value result : launch.getResults())
      call.pointers.push_back(add(result));
    calls.push_back(std::move(call));
  }
  double best = 1e30;
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    auto start = std::chrono::steady_clock::now();
    for (const Call &call : calls)
      call.kernel(call.pointers.data(), 0, call.range);
    std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  return best;
}

//===----------------------------------------------------------------------===//
// Against the interpreter
//===----------------------------------------------------------------------===//

std::vector<HostTensor> test::randomArguments(Kernels &kernels, uint64_t seed) {
  std::vector<HostTensor> arguments;
  for (mlir::RankedTensorType type : kernels.argumentTypes())
    arguments.push_back(HostTensor::random(type, seed++));
  return arguments;
}

/// About how many pairs of a case are tried in place: those of optimizers and of
/// gradients that are cut in slices are dozens.
constexpr size_t kPlaces = 8;

/// Fails unless kernels of a GPU give what the interpreter gives, with the same bits in every order, and in place.
static void expectParityOnGpu(const std::string &text, const std::vector<HostTensor> &arguments,
                              llvm::ArrayRef<HostTensor> expected, Tolerance tolerance) {
  Kernels kernels(text, /*gpu=*/true);
  if (!kernels.ok())
    return;
  auto first = kernels.run(arguments, "forward", /*pieces=*/false);
  ASSERT_EQ(kernels.status(), 0);
  ASSERT_EQ(first.size(), expected.size());
  for (size_t at = 0; at < first.size(); ++at) {
    double absolute = first[at].type.getElementType().isInteger(8) ? tolerance.codes : tolerance.absolute;
    EXPECT_EQ(findDifference(first[at], expected[at], absolute, tolerance.relative), "") << "on a GPU, result " << at;
  }
  auto expectSame = [&](StringRef order, std::optional<size_t> place) {
    auto other = kernels.run(arguments, order, /*pieces=*/false, place);
    ASSERT_EQ(other.size(), first.size());
    for (size_t at = 0; at < first.size(); ++at)
      EXPECT_EQ(findDifference(other[at], first[at], 0, 0), "")
          << "on a GPU, " << order.str() << (place ? ", in place by pair " + std::to_string(*place) : "") << ", result " << at;
  };
  expectSame("reverse", std::nullopt);
  expectSame("shuffled", std::nullopt);
  size_t places = kernels.places(), step = std::max<size_t>(1, places / kPlaces);
  for (size_t place = 0; place < places; place += step)
    expectSame("shuffled", place);
}

void test::expectParity(Kernels &kernels, const std::vector<HostTensor> &arguments, Tolerance tolerance) {
  ASSERT_TRUE(kernels.ok());
  auto expected = kernels.interpret(arguments);
  ASSERT_TRUE(mlir::succeeded(expected));
  expectParityOnGpu(kernels.getText(), arguments, *expected, tolerance);
  for (StringRef isa : instructionSets()) {
    auto whole = kernels.run(arguments, isa, /*pieces=*/false), split = kernels.run(arguments, isa, /*pieces=*/true);
    ASSERT_EQ(kernels.status(), 0);
    ASSERT_EQ(whole.size(), expected->size());
    for (size_t at = 0; at < whole.size(); ++at) {
      double absolute = whole[at].type.getElementType().isInteger(8) ? tolerance.codes : tolerance.absolute;
      EXPECT_EQ(findDifference(whole[at], (*expected)[at], absolute, tolerance.relative), "")
          << isa.str() << ", result " << at;
      EXPECT_EQ(findDifference(split[at], whole[at], 0, 0), "") << isa.str() << ", split, result " << at;
    }
    if (isa != instructionSets().back())
      continue;
    size_t places = kernels.places(), step = std::max<size_t>(1, places / kPlaces);
    for (size_t place = 0; place < places; place += step) {
      auto shared = kernels.run(arguments, isa, /*pieces=*/true, place);
      ASSERT_EQ(shared.size(), whole.size());
      for (size_t at = 0; at < whole.size(); ++at)
        EXPECT_EQ(findDifference(shared[at], whole[at], 0, 0), "")
            << isa.str() << ", in place by pair " << place << ", result " << at;
    }
  }
}

void test::expectParity(const std::string &text, Tolerance tolerance) {
  SCOPED_TRACE(text);
  Kernels kernels(text);
  if (kernels.ok())
    expectParity(kernels, randomArguments(kernels), tolerance);
}
