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
#include "segue/Dialect/Segue/Lowerings/Lowerings.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include "llvm/ADT/APFloat.h"
#include <chrono>
#include <cstring>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

using namespace mlir;
using namespace segue;
using namespace segue::test;

/// Bytes after each buffer that must stay as they are.
constexpr size_t kZone = 256;
constexpr char kGarbage = static_cast<char>(0xAB);

SmallVector<StringRef> segue::test::instructionSets() {
  SmallVector<StringRef> sets;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    sets.push_back("v3");
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    sets.push_back("v4");
  return sets;
}

//===----------------------------------------------------------------------===//
// Tensors and bytes
//===----------------------------------------------------------------------===//

static size_t sizeOf(Type element) { return (element.getIntOrFloatBitWidth() + 7) / 8; }

static std::vector<char> toBytes(const HostTensor &tensor) {
  Type element = tensor.type.getElementType();
  size_t size = sizeOf(element);
  std::vector<char> bytes(tensor.size() * size + kZone, kGarbage);
  for (int64_t at = 0; at < tensor.size(); ++at) {
    uint64_t raw;
    if (auto type = dyn_cast<FloatType>(element)) {
      APFloat value(tensor.floats[at]);
      bool inexact;
      value.convert(type.getFloatSemantics(), APFloat::rmNearestTiesToEven, &inexact);
      raw = value.bitcastToAPInt().getZExtValue();
    } else {
      raw = static_cast<uint64_t>(tensor.ints[at]);
    }
    std::memcpy(bytes.data() + at * size, &raw, size);
  }
  return bytes;
}

static HostTensor fromBytes(RankedTensorType type, const std::vector<char> &bytes) {
  HostTensor tensor = HostTensor::filled(type);
  Type element = type.getElementType();
  size_t size = sizeOf(element);
  for (int64_t at = 0; at < tensor.size(); ++at) {
    uint64_t raw = 0;
    std::memcpy(&raw, bytes.data() + at * size, size);
    if (auto floatType = dyn_cast<FloatType>(element)) {
      APFloat value(floatType.getFloatSemantics(), APInt(floatType.getWidth(), raw));
      bool inexact;
      value.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven, &inexact);
      tensor.floats[at] = value.convertToDouble();
    } else {
      tensor.ints[at] = element.isInteger(1) ? raw : llvm::SignExtend64(raw, element.getIntOrFloatBitWidth());
    }
  }
  for (size_t at = tensor.size() * size; at < bytes.size(); ++at)
    EXPECT_EQ(bytes[at], kGarbage) << "a kernel wrote " << at - tensor.size() * size << " bytes behind its buffer";
  return tensor;
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

Kernels::Kernels(const std::string &text) {
  DialectRegistry registry;
  registry.insert<SegueDialect, func::FuncDialect>();
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
  passes.addPass(createSegueOutlineKernels());
  if (failed(passes.run(*lowered))) {
    ADD_FAILURE() << "passes failed on:\n" << text;
    return;
  }
  auto kernels = lowered->lookupSymbol<ModuleOp>(SegueDialect::kKernelsModule);
  FailureOr<CompiledKernels> result = compileKernels(kernels);
  if (failed(result)) {
    ADD_FAILURE() << "kernels do not compile:\n" << text;
    return;
  }
  compiled = std::move(*result);
  if (compiled.elf.empty()) {
    // Views alone need no kernel.
    loaded = true;
    return;
  }
  // The descriptor stays open: glibc knows libraries by path.
  descriptor = memfd_create("segue-kernels", 0);
  if (write(descriptor, compiled.elf.data(), compiled.elf.size()) != static_cast<ssize_t>(compiled.elf.size()))
    return;
  library = dlopen(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    ADD_FAILURE() << dlerror();
    return;
  }
  loaded = true;
}

Kernels::~Kernels() {
  if (library)
    dlclose(library);
  if (descriptor >= 0)
    close(descriptor);
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

size_t Kernels::distinctKernels() { return compiled.kernels.size(); }

Kernels::Function Kernels::symbol(StringRef kernel, StringRef isa) {
  for (const KernelSymbol &known : compiled.kernels)
    if (known.name == kernel)
      return reinterpret_cast<Function>(dlsym(library, (isa == "v4" ? known.v4Symbol : known.v3Symbol).c_str()));
  return nullptr;
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

SmallVector<HostTensor> Kernels::run(ArrayRef<HostTensor> arguments, StringRef isa, bool pieces,
                                     std::optional<size_t> place) {
  func::FuncOp f = function(*lowered);
  llvm::DenseMap<Value, Bytes> buffers;
  for (auto [argument, tensor] : llvm::zip_equal(f.getArguments(), arguments))
    buffers[argument] = toBytes(tensor);
  SmallVector<HostTensor> results;
  lastStatus = 0;
  for (Operation &op : f.getBody().front()) {
    if (auto constant = dyn_cast<ConstantOp>(op)) {
      buffers[constant] = toBytes(HostTensor::fromAttr(constant.getValue()));
    } else if (auto reshape = dyn_cast<ReshapeOp>(op)) {
      Bytes bytes = buffers.lookup(reshape.getInput());
      buffers[reshape] = bytes;
    } else if (auto launch = dyn_cast<LaunchOp>(op)) {
      for (Value result : launch.getResults()) {
        auto type = cast<RankedTensorType>(result.getType());
        buffers[result] = Bytes(type.getNumElements() * sizeOf(type.getElementType()) + kZone, kGarbage);
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
      Function kernel = symbol(launch.getKernel(), isa);
      int64_t range = launch.getRange(), grain = launch.getGrain(), width = 0;
      for (int64_t begin = 0; begin < range && lastStatus == 0;) {
        // 1, 2, 3, 1, 2, ... grains.
        width = width % 3 + 1;
        int64_t end = pieces ? std::min(range, begin + width * grain) : range;
        lastStatus = kernel(pointers.data(), begin, end);
        begin = end;
      }
      if (lastStatus)
        return results;
    } else if (isa_and_present<func::ReturnOp>(&op)) {
      for (Value value : op.getOperands())
        results.push_back(fromBytes(cast<RankedTensorType>(value.getType()), buffers.lookup(value)));
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
    size_t bytes = type.getNumElements() * sizeOf(type.getElementType());
    memory.push_back(std::make_unique<char[]>(bytes + 64));
    char *start = memory.back().get();
    start += 64 - reinterpret_cast<uintptr_t>(start) % 64;
    std::memset(start, 0, bytes);
    return buffers[value] = start;
  };
  for (auto [argument, tensor] : llvm::zip_equal(f.getArguments(), arguments)) {
    Bytes bytes = toBytes(tensor);
    std::memcpy(add(argument), bytes.data(), bytes.size() - kZone);
  }
  struct Call {
    Function kernel;
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
