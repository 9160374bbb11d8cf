//===- CompilePieces.cpp - modules apart, and joined ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CompilePieces.h"
#include "RandomModel.h"
#include "StoredPieces.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/Passes.h"
#include "segue/Compiler/Compiler.h"
#include "segue/Compiler/Pipelines.h"
#include "segue/Compiler/Registration.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include "segue/Target/FlatBuffer/FlatBuffer.h"
#include <map>
#include <stdexcept>

using namespace mlir;
using namespace segue;

static DialectRegistry registry() {
  DialectRegistry registry;
  registerAllSegue(registry);
  return registry;
}

/// The folder, empty for modules of processors. It is named before main begins.
static std::string &gpuTwins() {
  static std::string folder;
  return folder;
}

void segue::test::compileForGpus(const std::string &twins) { gpuTwins() = twins; }

std::vector<std::string> segue::test::targetWords() {
  if (gpuTwins().empty())
    return {"--target=x86-64-v3"};
  return {"--target=sm_80", "--cubin=off", "--gpu-twins=" + gpuTwins()}; // ptxas would take most of the time
}

static CompileOptions optionsFor(bool training) {
  CompileOptions options;
  options.name = "piece";
  options.training = training;
  options.optimizer = "none";
  options.v4 = false; // half the time, and every machine runs it
  options.threads = 1;
  if (!gpuTwins().empty()) {
    options.v3 = false;
    options.gpuCapability = 80;
    options.gpuTwins = gpuTwins();
  }
  return options;
}

std::string segue::test::compileModule(const std::string &text, bool training) {
  std::string diagnostics;
  FailureOr<std::string> file = compileText(text, optionsFor(training), diagnostics);
  if (failed(file))
    throw std::runtime_error(diagnostics + "in\n" + text);
  return storePiece("module", {text, std::to_string(training)}, *file);
}

std::set<std::string> segue::test::libraryCalls(const std::string &file) {
  MLIRContext context(registry(), MLIRContext::Threading::DISABLED);
  OwningOpRef<ModuleOp> module = importBinary(file, &context);
  if (!module)
    throw std::runtime_error("a file of the compiler cannot be imported");
  std::set<std::string> calls;
  module->walk([&](Operation *op) {
    StringRef name = op->getName().getStringRef();
    if (name != "prog.matmul" && !name.starts_with("prog.attention"))
      return;
    std::string text = name.str();
    llvm::raw_string_ostream os(text);
    os << " " << op->getAttrDictionary();
    for (Type type : op->getOperandTypes())
      if (auto buffer = dyn_cast<MemRefType>(type))
        os << " " << MemRefType::get(buffer.getShape(), buffer.getElementType(), buffer.getLayout());
    calls.insert(text);
  });
  std::string lines;
  for (const std::string &call : calls)
    lines += call + "\n";
  storePiece("calls", {file}, lines);
  return calls;
}

//===----------------------------------------------------------------------===//
// Joining
//===----------------------------------------------------------------------===//

namespace {
class Joiner {
public:
  explicit Joiner(bool training) : context(registry(), MLIRContext::Threading::DISABLED), training(training) {
    context.loadDialect<func::FuncDialect, SegueDialect>();
    OpBuilder builder(&context);
    joined = ModuleOp::create(builder.getUnknownLoc());
    builder.setInsertionPointToStart(joined->getBody());
    forward = func::FuncOp::create(builder, builder.getUnknownLoc(), "forward", builder.getFunctionType({}, {}));
    forward.addEntryBlock();
  }

  std::string run(const std::vector<std::string> &texts, const std::vector<std::string> &outputs) {
    std::vector<OwningOpRef<ModuleOp>> modules;
    for (const std::string &text : texts)
      modules.push_back(form(text, training));

    for (size_t i = 0; i < modules.size(); ++i)
      inlineForward(i, modules[i]->lookupSymbol<func::FuncOp>("forward"));
    for (const std::string &output : outputs)
      give(output, values.at(output));
    if (training) {
      for (const std::string &output : outputs)
        if (isa<FloatType>(getElementTypeOrSelf(values.at(output).getType())))
          gradients[output].push_back(argument("grad." + output, values.at(output).getType()));
      for (size_t i = modules.size(); i-- > 0;)
        if (auto backward = modules[i]->lookupSymbol<func::FuncOp>("backward"))
          inlineBackward(i, backward);
      for (const auto &[name, value] : entered)
        if (!gradients[name].empty())
          give("grad." + name, gradientOf(name));
    }
    finish();
    FailureOr<std::string> file = compile(*joined, optionsFor(/*training=*/false));
    if (failed(file))
      throw std::runtime_error("the joined module does not compile");
    return *file;
  }

private:
  /// The functions of a module with their kernels formed.
  OwningOpRef<ModuleOp> form(const std::string &text, bool derive) {
    OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(text, &context);
    PassManager pm(&context);
    std::string error;
    bool built = !derive || succeeded(buildTrainingPipeline(pm, "none", error));
    buildLayoutPipeline(pm, /*stitchHints=*/"", /*frozenStorage=*/"");
    pm.addNestedPass<func::FuncOp>(createSegueExpand());
    pm.addNestedPass<func::FuncOp>(createCanonicalizerPass());
    pm.addNestedPass<func::FuncOp>(createCSEPass());
    pm.addNestedPass<func::FuncOp>(createSegueFormKernels());
    if (!module || !built || failed(pm.run(*module)))
      throw std::runtime_error("a piece does not compile: " + text);
    return module;
  }

  static std::string nameOf(func::FuncOp func, unsigned argument) {
    return func.getArgAttrOfType<StringAttr>(argument, SegueDialect::kNameAttr).str();
  }
  static std::string resultName(func::FuncOp func, unsigned result, StringRef attribute = SegueDialect::kNameAttr) {
    auto name = func.getResultAttrOfType<StringAttr>(result, attribute);
    return name ? name.str() : std::string();
  }
  static Type plain(Type type) {
    auto tensor = cast<RankedTensorType>(type);
    return RankedTensorType::get(tensor.getShape(), tensor.getElementType());
  }
  OpBuilder atEnd() { return OpBuilder::atBlockEnd(&forward.getBody().front()); }
  Value inType(Value value, Type type) {
    if (value.getType() == type)
      return value;
    OpBuilder builder = atEnd();
    return ToLayoutOp::create(builder, value.getLoc(), type, value);
  }

  /// A new argument, or the one of this name.
  Value argument(const std::string &name, Type type) {
    auto [found, isNew] = values.try_emplace(name);
    if (!isNew)
      return found->second;
    Builder builder(&context);
    auto attributes =
        builder.getDictionaryAttr(builder.getNamedAttr(SegueDialect::kNameAttr, builder.getStringAttr(name)));
    unsigned index = forward.getNumArguments();
    if (failed(forward.insertArgument(index, plain(type), attributes, builder.getUnknownLoc())))
      throw std::runtime_error("no argument " + name);
    return found->second = forward.getArgument(index);
  }

  void give(const std::string &name, Value value) {
    results.push_back(value);
    resultNames.push_back(name);
  }

  /// Clones the body; returns what it returns.
  SmallVector<Value> inlineBody(func::FuncOp func, function_ref<Value(unsigned)> argumentAt) {
    IRMapping map;
    for (unsigned i = 0; i < func.getNumArguments(); ++i)
      map.map(func.getArgument(i), inType(argumentAt(i), func.getArgument(i).getType()));
    OpBuilder builder = atEnd();
    for (Operation &op : func.getBody().front().without_terminator())
      builder.clone(op, map);
    SmallVector<Value> returned;
    for (Value value : func.getBody().front().getTerminator()->getOperands()) {
      Value mapped = map.lookup(value);
      returned.push_back(inType(mapped, plain(mapped.getType())));
    }
    return returned;
  }

  void inlineForward(size_t piece, func::FuncOp func) {
    SmallVector<Value> returned = inlineBody(func, [&](unsigned i) {
      std::string name = nameOf(func, i);
      if (!values.contains(name))
        entered[name] = argument(name, func.getArgument(i).getType());
      return values.at(name);
    });
    for (auto [i, value] : llvm::enumerate(returned)) {
      std::string name = resultName(func, i);
      (name.starts_with("saved.") ? saved[{piece, name}] : values[name]) = value;
    }
  }

  void inlineBackward(size_t piece, func::FuncOp func) {
    SmallVector<Value> returned = inlineBody(func, [&](unsigned i) -> Value {
      std::string name = nameOf(func, i);
      if (auto found = saved.find({piece, name}); found != saved.end())
        return found->second;
      if (auto of = func.getArgAttrOfType<StringAttr>(i, SegueDialect::kOfAttr))
        return gradientOf(of.str(), func.getArgument(i).getType());
      return values.at(name);
    });
    for (auto [i, value] : llvm::enumerate(returned))
      gradients[resultName(func, i, SegueDialect::kOfAttr)].push_back(value);
  }

  /// The sum of what arrived so far, or zeros.
  Value gradientOf(const std::string &name, Type type = {}) {
    std::vector<Value> &parts = gradients[name];
    OpBuilder builder = atEnd();
    if (parts.empty()) {
      auto tensor = cast<RankedTensorType>(plain(type));
      parts.push_back(ConstantOp::create(builder, builder.getUnknownLoc(),
                                         DenseElementsAttr::get(tensor, builder.getZeroAttr(tensor.getElementType()))));
    }
    Value sum = parts.front();
    for (size_t i = 1; i < parts.size(); ++i) {
      auto tensor = cast<RankedTensorType>(sum.getType());
      std::string element;
      llvm::raw_string_ostream(element) << tensor.getElementType();
      OwningOpRef<ModuleOp> adder = form(test::sumText(tensor.getShape().vec(), element), /*derive=*/false);
      Value operands[] = {sum, parts[i]};
      sum = inlineBody(adder->lookupSymbol<func::FuncOp>("forward"), [&](unsigned j) { return operands[j]; }).front();
    }
    parts = {sum};
    return sum;
  }

  void finish() {
    OpBuilder builder = atEnd();
    func::ReturnOp::create(builder, builder.getUnknownLoc(), results);
    forward.setFunctionType(builder.getFunctionType(forward.getArgumentTypes(), ValueRange(results).getTypes()));
    for (auto [i, name] : llvm::enumerate(resultNames))
      forward.setResultAttr(i, SegueDialect::kNameAttr, builder.getStringAttr(name));
  }

  MLIRContext context;
  bool training;
  OwningOpRef<ModuleOp> joined;
  func::FuncOp forward;
  /// Arguments and results of pieces by name, in plain layout.
  std::map<std::string, Value> values;
  /// The arguments and results that enter.
  std::map<std::string, Value> entered;
  std::map<std::pair<size_t, std::string>, Value> saved;
  std::map<std::string, std::vector<Value>> gradients;
  SmallVector<Value> results;
  std::vector<std::string> resultNames;
};
} // namespace

std::string segue::test::compileJoined(const std::vector<std::string> &modules, const std::vector<std::string> &outputs,
                                       bool training) {
  std::vector<std::string> words = modules;
  words.insert(words.end(), outputs.begin(), outputs.end());
  words.push_back(std::to_string(training));
  return storePiece("joined", words, Joiner(training).run(modules, outputs));
}
