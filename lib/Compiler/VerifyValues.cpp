//===- VerifyValues.cpp - kernels against the interpreter -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/Compiler/VerifyValues.h"
#include "ParsedText.h"
#include "mlir/Pass/PassManager.h"
#include "segue/Compiler/Pipelines.h"
#include "segue/Conversion/SegueToLoops/SegueToLoops.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "segue/Dialect/Segue/Interpreter/HostBytes.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include "segue/Target/CPU/LoadedKernels.h"
#include "segue/Target/NVPTX/GpuTwins.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/InterleavedRange.h"
#include <cmath>

using namespace mlir;
using namespace segue;

/// Runs of the interpreter that show how far rounding can carry a result.
static constexpr unsigned kDisturbedRuns = 6;
/// A result may be out by so many of the greatest distances of these runs.
static constexpr double kDistances = 8;
/// The bytes behind each buffer that a kernel must leave alone.
static constexpr size_t kZone = 256;
static constexpr char kGarbage = static_cast<char>(0xAB);

std::string KernelDifference::str() const {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << "kernel " << kernel << " differs from the reference interpreter: launch " << launch << " of @" << function
     << ", result " << result << " (" << op << " at " << location << "), " << variant << "; " << wrong << " of " << elements
     << " elements, most at [" << llvm::interleaved(index) << "]: " << llvm::format("%.9g", actual) << " in place of "
     << llvm::format("%.9g", expected) << ", difference " << llvm::format("%.3g", std::abs(actual - expected))
     << ", allowed " << llvm::format("%.3g", allowed);
  return text;
}

static std::string locationOf(Location location) {
  std::string text;
  llvm::raw_string_ostream os(text);
  // The first place in a file: what is fused or named came from there.
  bool found = false;
  location->walk([&](Location at) {
    auto file = dyn_cast<FileLineColLoc>(at);
    if (!file)
      return WalkResult::advance();
    os << file.getFilename().getValue() << ":" << file.getLine();
    found = true;
    return WalkResult::interrupt();
  });
  if (!found)
    os << "no known place";
  return text;
}

/// The distance from 1 to the next larger number of a float type.
static double unitOf(Type element) {
  auto type = dyn_cast<FloatType>(element);
  return type ? std::ldexp(1.0, 1 - static_cast<int>(llvm::APFloat::semanticsPrecision(type.getFloatSemantics()))) : 0;
}

namespace {
/// The values that a kernel should give, and how far it may be from them.
struct Expected {
  HostTensor exact, rounded;
  std::vector<HostTensor> disturbed;

  double allowed(int64_t i) const {
    double spread = 0;
    for (const HostTensor &run : disturbed)
      if (double distance = std::abs(run.at(i) - exact.at(i)); std::isfinite(distance))
        spread = std::max(spread, distance);
    Type element = exact.type.getElementType();
    // Denormals may be flushed.
    return kDistances * spread + 2 * unitOf(element) * std::abs(exact.at(i)) + 1.2e-38;
  }

  bool accepts(double actual, int64_t i) const {
    auto same = [&](double expected) { return actual == expected || (std::isnan(actual) && std::isnan(expected)); };
    if (!exact.isFloat())
      return same(exact.at(i)) || llvm::any_of(disturbed, [&](const HostTensor &run) { return same(run.at(i)); });
    // A value that overflows in the element type need not overflow in double.
    double expected = roundTo(exact.type.getElementType(), exact.at(i));
    if (same(expected) || same(rounded.at(i)))
      return true;
    if (!std::isfinite(actual))
      return llvm::any_of(disturbed, [&](const HostTensor &run) { return !std::isfinite(run.at(i)); });
    double limit = allowed(i);
    return std::abs(actual - exact.at(i)) <= limit || std::abs(actual - rounded.at(i)) <= limit;
  }
};

/// The kernels in one form that this machine can run.
struct KernelCode {
  std::string name;
  std::function<llvm::Expected<int64_t>(StringRef kernel, ArrayRef<void *> args, int64_t range)> call;
};

class Verifier {
public:
  Verifier(const VerifyOptions &verify, ArrayRef<KernelCode> codes) : seed(verify.seed), codes(codes), values(verify.values) {}

  /// Compares two functions: `reference` has its kernels as `segue.fused`, `lowered` as launches.
  LogicalResult run(func::FuncOp reference, func::FuncOp lowered) {
    SmallVector<LaunchOp> launches;
    lowered.walk([&](LaunchOp launch) { launches.push_back(launch); });
    function = reference.getName().str();
    numbers.clear();
    unsigned number = 0;
    reference.walk([&](FusedOp fused) { numbers[fused] = number++; });
    if (numbers.size() != launches.size())
      return reference.emitError() << "has " << numbers.size() << " regions, but " << launches.size() << " launches";
    SmallVector<HostTensor> arguments;
    for (unsigned i = 0; i < reference.getNumArguments(); ++i) {
      FailureOr<HostTensor> value = argument(reference, i);
      if (failed(value))
        return failure();
      arguments.push_back(std::move(*value));
    }
    InterpreterOptions options;
    options.observe = [&](Operation *op, ArrayRef<HostTensor> operands, ArrayRef<HostTensor> results) {
      auto fused = dyn_cast<FusedOp>(op);
      if (!fused || report.difference || fused->getParentOfType<func::FuncOp>() != reference)
        return success();
      return check(fused, launches[numbers.lookup(fused)], operands, results);
    };
    FailureOr<SmallVector<HostTensor>> results = interpret(reference, arguments, options);
    if (failed(results))
      return failure();
    for (auto [i, result] : llvm::enumerate(*results))
      if (auto name = reference.getResultAttrOfType<StringAttr>(i, SegueDialect::kNameAttr))
        values.try_emplace(name.getValue(), result);
    return success();
  }

  VerifiedValues report;

private:
  /// Returns an argument that is given by name, or drawn: what a sum of squares may be is not negative.
  FailureOr<HostTensor> argument(func::FuncOp reference, unsigned index) {
    auto type = dyn_cast<RankedTensorType>(reference.getArgumentTypes()[index]);
    auto name = reference.getArgAttrOfType<StringAttr>(index, SegueDialect::kNameAttr);
    if (!type)
      return reference.emitError() << "argument " << index << " is not a tensor";
    if (auto known = name ? values.find(name.getValue()) : values.end(); known != values.end()) {
      HostTensor value = known->second;
      if (value.type.getShape() != type.getShape() || value.type.getElementType() != type.getElementType())
        return reference.emitError() << "argument \"" << name.getValue() << "\" is " << type << ", given is " << value.type;
      // The layout of a value is not part of it.
      value.type = type;
      return value;
    }
    HostTensor value = HostTensor::random(type, (seed << 20) + values.size());
    auto role = reference.getArgAttrOfType<RoleAttr>(index, SegueDialect::kRoleAttr);
    bool isHyper = role && role.getValue() == Role::Hyper;
    if (isHyper && name && name.getValue() == "lr")
      value = HostTensor::filled(type, 1e-3);
    else if (isHyper)
      value = HostTensor::filled(type, 1);
    else if (role && role.getValue() == Role::State)
      for (int64_t i = 0; i < value.size(); ++i)
        value.set(i, value.at(i) * value.at(i));
    if (name)
      values.try_emplace(name.getValue(), value);
    return value;
  }

  LogicalResult check(FusedOp fused, LaunchOp launch, ArrayRef<HostTensor> operands, ArrayRef<HostTensor> rounded) {
    ++report.launches;
    InterpreterOptions options;
    options.roundFloats = false;
    FailureOr<SmallVector<HostTensor>> exact = interpretOp(fused, operands, options);
    if (failed(exact))
      return failure();
    SmallVector<Expected> expected;
    for (auto [value, result] : llvm::zip_equal(*exact, rounded))
      expected.push_back({value, result, {}});
    for (unsigned run = 1; run <= kDisturbedRuns; ++run) {
      options.disturb = seed * kDisturbedRuns + run;
      FailureOr<SmallVector<HostTensor>> disturbed = interpretOp(fused, operands, options);
      if (failed(disturbed))
        return failure();
      for (auto [result, value] : llvm::zip_equal(expected, *disturbed))
        result.disturbed.push_back(std::move(value));
    }
    for (const KernelCode &code : codes) {
      ArrayRef<int64_t> pairs = launch.getInPlace();
      for (size_t pair = 0; pair <= pairs.size() / 2 && !report.difference; ++pair)
        if (failed(call(fused, launch, operands, expected, code, pair ? pairs.slice(2 * pair - 2, 2) : ArrayRef<int64_t>())))
          return failure();
    }
    return success();
  }

  /// One call; `place` is empty, or the operand and the result that share a buffer.
  LogicalResult call(FusedOp fused, LaunchOp launch, ArrayRef<HostTensor> operands, ArrayRef<Expected> expected,
                     const KernelCode &code, ArrayRef<int64_t> place) {
    ++report.calls;
    SmallVector<std::vector<char>> buffers;
    for (const HostTensor &operand : operands)
      buffers.push_back(toBytes(operand));
    for (const Expected &result : expected)
      buffers.emplace_back(result.exact.size() * bytesOfElement(result.exact.type.getElementType()), kGarbage);
    SmallVector<void *> pointers;
    for (std::vector<char> &buffer : buffers) {
      buffer.resize(buffer.size() + kZone, kGarbage);
      pointers.push_back(buffer.data());
    }
    if (!place.empty())
      pointers[operands.size() + place[1]] = pointers[place[0]];
    llvm::Expected<int64_t> status = code.call(launch.getKernel(), pointers, launch.getRange());
    if (!status)
      return launch.emitError() << "kernel " << launch.getKernel() << ", " << code.name << ": " << llvm::toString(status.takeError());
    if (*status)
      return launch.emitError() << "kernel " << launch.getKernel() << " refuses an index of operand " << *status - 1;
    for (auto [at, result] : llvm::enumerate(expected)) {
      const char *bytes = static_cast<char *>(pointers[operands.size() + at]);
      compare(fused, launch, at, fromBytes(result.exact.type, bytes), result);
      size_t size = result.exact.size() * bytesOfElement(result.exact.type.getElementType());
      if (!report.difference && std::any_of(bytes + size, bytes + size + kZone, [](char c) { return c != kGarbage; }))
        return launch.emitError() << "kernel " << launch.getKernel() << " writes behind its result " << at;
      if (report.difference && report.difference->variant.empty()) {
        report.difference->variant = code.name;
        if (!place.empty())
          report.difference->variant +=
              ", with result " + std::to_string(place[1]) + " in place of operand " + std::to_string(place[0]);
      }
    }
    return success();
  }

  void compare(FusedOp fused, LaunchOp launch, unsigned at, const HostTensor &actual, const Expected &expected) {
    if (report.difference)
      return;
    int64_t wrong = 0, worst = -1;
    double most = -1;
    for (int64_t i = 0; i < actual.size(); ++i) {
      if (expected.accepts(actual.at(i), i))
        continue;
      ++wrong;
      double distance = std::abs(actual.at(i) - expected.exact.at(i));
      if (worst < 0 || !(distance <= most)) {
        most = distance;
        worst = i;
      }
    }
    if (!wrong)
      return;
    Value yielded = fused.getBody().front().getTerminator()->getOperand(at);
    Operation *maker = yielded.getDefiningOp() ? yielded.getDefiningOp() : fused.getOperation();
    KernelDifference difference;
    difference.function = function;
    difference.launch = numbers.lookup(fused);
    difference.kernel = launch.getKernel().str();
    difference.result = at;
    difference.op = maker->getName().getStringRef().str();
    difference.location = locationOf(maker->getLoc());
    ArrayRef<int64_t> shape = actual.type.getShape();
    difference.index.resize(shape.size());
    for (int64_t dim = static_cast<int64_t>(shape.size()) - 1, rest = worst; dim >= 0; --dim) {
      difference.index[dim] = rest % shape[dim];
      rest /= shape[dim];
    }
    difference.actual = actual.at(worst);
    difference.expected = expected.exact.at(worst);
    difference.allowed = actual.isFloat() ? expected.allowed(worst) : 0;
    difference.wrong = wrong;
    difference.elements = actual.size();
    report.difference = std::move(difference);
  }

  uint64_t seed;
  ArrayRef<KernelCode> codes;
  NamedTensors values;
  std::string function;
  llvm::DenseMap<Operation *, unsigned> numbers;
};
} // namespace

static LogicalResult runPasses(ModuleOp module, function_ref<LogicalResult(PassManager &)> build) {
  PassManager pm(module.getContext(), ModuleOp::getOperationName());
  return failure(failed(build(pm)) || failed(pm.run(module)));
}

/// Compiles kernels for the instruction sets of `options` that this machine can run.
static LogicalResult loadForProcessor(ModuleOp kernels, const CompileOptions &options, LoadedKernels &loaded,
                                      SmallVectorImpl<KernelCode> &codes) {
  CPUTargetOptions target{false, false, std::max(1u, options.threads)};
  for (KernelIsa isa : runnableIsas()) {
    bool &wanted = isa == KernelIsa::V4 ? target.v4 : target.v3;
    wanted = isa == KernelIsa::V4 ? options.v4 : options.v3;
    if (!wanted)
      continue;
    codes.push_back({nameOf(isa).str(), [&loaded, isa](StringRef kernel, ArrayRef<void *> args, int64_t range) -> llvm::Expected<int64_t> {
                       LoadedKernels::Function function = loaded.find(kernel, isa);
                       if (!function)
                         return llvm::createStringError("is not there");
                       return function(args.data(), 0, range);
                     }});
  }
  if (codes.empty())
    return success();
  FailureOr<CompiledKernels> compiled = compileKernels(kernels, target);
  if (failed(compiled))
    return failure();
  if (llvm::Error error = loaded.load(std::move(*compiled)))
    return kernels.emitError() << llvm::toString(std::move(error));
  return success();
}

/// Compiles kernels of a GPU for this machine, to be run in three orders.
static LogicalResult loadForGpu(ModuleOp kernels, GpuTwins &twins, SmallVectorImpl<KernelCode> &codes) {
  constexpr std::pair<TwinOrder, const char *> orders[] = {{TwinOrder::Forward, "in order"},
                                                           {TwinOrder::Reverse, "in reverse order"},
                                                           {TwinOrder::Shuffled, "in random order"}};
  for (auto [order, name] : orders)
    codes.push_back({std::string("blocks of a GPU ") + name,
                     [&twins, order](StringRef kernel, ArrayRef<void *> args, int64_t) -> llvm::Expected<int64_t> {
                       if (!twins.has(kernel))
                         return llvm::createStringError("is not there");
                       return twins.run(kernel, args, order);
                     }});
  return twins.load(kernels);
}

FailureOr<VerifiedValues> segue::verifyValues(ModuleOp module, const CompileOptions &options,
                                              const VerifyOptions &verify) {
  auto build = [&](PassManager &pm) -> LogicalResult {
    buildBlockPipeline(pm, options.blockPrograms);
    std::string error;
    if (options.training && failed(buildTrainingPipeline(pm, options.optimizer, error, options.gradientStatistics)))
      return module.emitError() << "optimizer \"" << options.optimizer << "\": " << error;
    buildLayoutPipeline(pm, options.stitchHints, options.frozenStorage);
    buildFusionPipeline(pm, options.gpuCapability != 0);
    return success();
  };
  if (failed(runPasses(module, build)))
    return failure();
  OwningOpRef<ModuleOp> reference = module.clone();
  auto outline = [&](PassManager &pm) {
    pm.addPass(createSegueOutlineKernels({.gpu = options.gpuCapability != 0}));
    return success();
  };
  if (failed(runPasses(module, outline)))
    return failure();

  VerifiedValues nothing;
  auto kernels = module.lookupSymbol<ModuleOp>(SegueDialect::kKernelsModule);
  if (!kernels)
    return nothing;
  if (verify.edit)
    verify.edit(kernels);
  LoadedKernels loaded;
  GpuTwins twins;
  SmallVector<KernelCode> codes;
  if (failed(loadForProcessor(kernels, options, loaded, codes)))
    return failure();
  if (auto forGpu = module.lookupSymbol<ModuleOp>(kGpuKernelsModule)) {
    if (verify.edit)
      verify.edit(forGpu);
    if (failed(loadForGpu(forGpu, twins, codes)))
      return failure();
  }
  if (codes.empty())
    return module.emitError() << "no instruction set that kernels are compiled for runs on this machine";

  Verifier verifier(verify, codes);
  verifier.report.kernels = llvm::range_size(kernels.getOps<func::FuncOp>());
  for (auto function : reference->getOps<func::FuncOp>()) {
    auto lowered = module.lookupSymbol<func::FuncOp>(function.getName());
    if (function.isDeclaration() || !lowered)
      continue;
    if (failed(verifier.run(function, lowered)))
      return failure();
    if (verifier.report.difference)
      break;
  }
  return verifier.report;
}

FailureOr<VerifiedValues> segue::verifyText(StringRef text, const CompileOptions &options, StringRef safetensors,
                                            std::string &diagnostics, StringRef source) {
  VerifyOptions verify;
  ParsedText parsed(text, source, diagnostics);
  if (!parsed.get())
    return failure();
  llvm::Expected<NamedTensors> values = readSafetensors(safetensors, parsed.get().getContext());
  if (!values) {
    diagnostics += (source + ": " + llvm::toString(values.takeError()) + "\n").str();
    return failure();
  }
  verify.values = std::move(*values);
  return verifyValues(parsed.get(), options, verify);
}
