//===- segue-compile.cpp - from MLIR to a .segue file ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../MlirInput.h"
#include "../ShortDiagnostics.h"
#include "../ToolCompletion.h"
#include "../ToolVersion.h"
#include "ToolkitFiles.h"
#include "mlir/IR/AsmState.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Support/FileUtilities.h"
#include "segue/Compiler/Compiler.h"
#include "segue/Compiler/Registration.h"
#include "segue/Compiler/VerifyValues.h"
#include "segue/runtime/ByteQuantity.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/OutputFile.h"
#include "segue/runtime/Program/Signatures.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/InitLLVM.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/SourceMgr.h"
#include <span>

using namespace mlir;
using namespace segue;
namespace cl = llvm::cl;

static constexpr const char *kOverview =
    R"(Segue compiler: a module with @forward in MLIR to a file that the runtime plays

  segue-compile model.mlir -o model.segue --optimizer=adamw:beta2=0.95,decay=0.1
  segue-compile model.mlir --emit=prog | less

A .segue file holds machine code. It is signed with the key of this user, made
at the first time ($XDG_DATA_HOME/segue or ~/.local/share/segue), so that it
runs unasked for this user alone; others need segue-run trust or --allow-native.
)";

/// The most threads that compile kernels: more wait for one another.
static constexpr unsigned kMostThreads = 1024;

namespace {
/// Whether kernels of a GPU have cubins beside their PTX.
enum class Cubins { Auto, On, Off };

struct Flags {
  cl::OptionCategory category{"Compiling"};
  cl::opt<std::string> input{cl::Positional, cl::desc("<module.mlir, - for standard input>"), cl::init("-"),
                             cl::cat(category)};
  cl::opt<std::string> output{"o", cl::desc("Where to write; - for standard output"), cl::value_desc("file"),
                              cl::init("-"), cl::cat(category)};
  cl::opt<Emit> emit{
      "emit", cl::desc("What to write"), cl::init(Emit::Binary),
      cl::values(clEnumValN(Emit::Segue, "segue", "training functions in the segue dialect"),
                 clEnumValN(Emit::Loops, "loops", "kernels as loops"),
                 clEnumValN(Emit::Loops, "linalg", "another name for loops: kernels have no linalg form"),
                 clEnumValN(Emit::LLVM, "llvm", "kernels as optimised LLVM IR"),
                 clEnumValN(Emit::Assembly, "asm", "kernels as assembly"),
                 clEnumValN(Emit::Gpu, "gpu", "kernels of a GPU as what a thread does; needs a --target such as sm_90"),
                 clEnumValN(Emit::NVVM, "nvvm", "kernels of a GPU as optimised LLVM IR"),
                 clEnumValN(Emit::PTX, "ptx", "kernels of a GPU as PTX"),
                 clEnumValN(Emit::Prog, "prog", "programs in the prog dialect"),
                 clEnumValN(Emit::Binary, "binary", "the .segue file (default)")),
      cl::cat(category)};
  cl::opt<std::string> name{"name", cl::desc("Name of the module, kept in the file; default: that of the input"),
                            cl::cat(category)};
  cl::opt<std::string> optimizer{
      "optimizer", cl::desc("kind[:key=value,...] with the options of segue-optimizer and in-backward=true or in-forward=true, or none; default: adamw"),
      cl::value_desc("spec"), cl::init("adamw"), cl::cat(category)};
  // Text: --help lists an option of enumerators twice if it may stand without one.
  cl::opt<std::string> gradientStatistics{
      "gradient-statistics", cl::ValueOptional,
      cl::desc("The backward program returns f32 [4] per block (default) or linear layer, adapters with the layer they "
               "adapt: sum of squares, greatest magnitude, sum and number of its gradients' elements"),
      cl::value_desc("block|layer"), cl::cat(category)};
  cl::opt<bool> blockPrograms{"block-programs",
                              cl::desc("Compile @forward in pieces too, a program for each block: what Selective "
                                       "Precision calibrates with"),
                              cl::cat(category)};
  cl::opt<std::string> stitchHints{
      "stitch-hints",
      cl::desc("File of copies that a run left between programs (StitchReport::writeHints); layouts of inputs and "
               "outputs change so that these vanish"),
      cl::value_desc("stitch_hints.json"), cl::cat(category)};
  cl::opt<std::string> frozenStorage{
      "frozen-storage",
      cl::desc("How frozen matrices that only products read are stored, "
               "{int8_row,fp8_e4m3_row,fp8_e5m2_row,int4_group32,int4_group64}; the products read the codes"),
      cl::value_desc("storage"), cl::cat(category)};
  cl::opt<std::string> l1Bytes{"l1-bytes",
                               cl::desc("Bytes of device_l1 that a program may take for temporaries, as 64KiB; default: 0"),
                               cl::value_desc("bytes"), cl::init("0"), cl::cat(category)};
  cl::opt<bool> chooseLayouts{"choose-layouts",
                              cl::desc("Choose the layouts that the source leaves open by what they cost; default: true. "
                                       "With =false they are dense rows"),
                              cl::init(true), cl::cat(category)};
  cl::opt<bool> explainLayouts{"explain-layouts", cl::desc("Say what is chosen for each, and what it costs"),
                               cl::cat(category)};
  cl::opt<bool> verifyValues{"verify-values",
                             cl::desc("Call every kernel and compare with the reference interpreter before anything is "
                                      "written; names the first that differs"),
                             cl::cat(category)};
  cl::opt<std::string> verifyInputs{
      "verify-inputs", cl::desc("Values of arguments for --verify-values, by name; what is missing is drawn"),
      cl::value_desc("file.safetensors"), cl::cat(category)};
  cl::opt<bool> inferenceOnly{"inference-only", cl::desc("Compile @forward alone"), cl::cat(category)};
  cl::list<std::string> targets{"target",
                                cl::desc("{x86-64-v3,x86-64-v4,sm_80,sm_90,sm_100}; default: both of x86-64. PTX is "
                                         "for the lowest sm, which later GPUs run too, and a cubin for each"),
                                cl::CommaSeparated, cl::cat(category)};
  cl::opt<Cubins> cubin{"cubin",
                        cl::desc("Machine code of GPUs beside the PTX, which the driver need not compile; ptxas makes "
                                 "it (SEGUE_PTXAS, PATH, CUDA_HOME, wheels)"),
                        cl::init(Cubins::Auto),
                        cl::values(clEnumValN(Cubins::Auto, "auto", "where there is a ptxas (default)"),
                                   clEnumValN(Cubins::On, "on", "an error where there is none"),
                                   clEnumValN(Cubins::Off, "off", "PTX alone")),
                        cl::cat(category)};
  cl::opt<unsigned> ptxasSeconds{"ptxas-seconds", cl::desc("How long ptxas may take; default: 600"), cl::init(600),
                                 cl::Hidden, cl::cat(category)};
  cl::opt<std::string> gpuTwins{"gpu-twins",
                                cl::desc("Where to write the kernels of a GPU as code of this machine, for a fake driver in tests"),
                                cl::value_desc("folder"), cl::Hidden, cl::cat(category)};
  cl::opt<unsigned> threads{"compile-threads", cl::desc("Threads that compile kernels; default: 2"), cl::init(2),
                            cl::cat(category)};
};
} // namespace

static LogicalResult chooseCubins(const Flags &flags, CubinOptions &cubins) {
  auto refuse = [](const llvm::Twine &what) {
    llvm::errs() << "segue-compile: " << what << "\n";
    return failure();
  };
  cubins.mostSeconds = flags.ptxasSeconds;
  if (flags.cubin == Cubins::Off) {
    if (cubins.capabilities.size() > 1)
      return refuse("--target: sm_" + llvm::Twine(cubins.capabilities[0]) + " and sm_" +
                    llvm::Twine(cubins.capabilities[1]) +
                    " found, with --cubin=off; give the lowest, whose PTX later GPUs run too");
    return success();
  }
  if (flags.cubin == Cubins::On && cubins.capabilities.empty())
    return refuse("--cubin=on: kernels of a GPU need a --target such as sm_90");
  if (!cubins.capabilities.empty())
    cubins.ptxas = schema::findPtxas(reinterpret_cast<const void *>(&chooseCubins));
  if (flags.cubin == Cubins::On && cubins.ptxas.empty())
    return refuse(llvm::Twine("--cubin=on: ") + schema::kNoPtxas);
  return success();
}

static LogicalResult readOptions(const Flags &flags, CompileOptions &options) {
  options.name = flags.name.empty() ? llvm::sys::path::stem(flags.input).str() : flags.name.getValue();
  options.training = !flags.inferenceOnly;
  options.optimizer = flags.optimizer;
  if (flags.gradientStatistics.getNumOccurrences()) {
    bool isOfBlocks = flags.gradientStatistics.empty() || flags.gradientStatistics == "block";
    if (!isOfBlocks && flags.gradientStatistics != "layer") {
      llvm::errs() << "segue-compile: --gradient-statistics: " << flags.gradientStatistics << " found, block or layer allowed\n";
      return failure();
    }
    options.gradientStatistics = isOfBlocks ? StatisticsPer::Block : StatisticsPer::Layer;
  }
  options.blockPrograms = flags.blockPrograms;
  options.stitchHints = flags.stitchHints;
  options.frozenStorage = flags.frozenStorage;
  if (flags.threads < 1 || flags.threads > kMostThreads) {
    llvm::errs() << "segue-compile: --compile-threads: " << flags.threads << " found, a whole number from 1 to "
                 << kMostThreads << " allowed\n";
    return failure();
  }
  if (std::optional<uint64_t> bytes = parseByteQuantity(flags.l1Bytes.getValue())) {
    options.l1Bytes = *bytes;
  } else {
    llvm::errs() << "segue-compile: --l1-bytes: " << flags.l1Bytes << " found, " << byteQuantityForm << " allowed\n";
    return failure();
  }
  options.chooseLayouts = flags.chooseLayouts;
  options.explainLayouts = flags.explainLayouts;
  options.threads = flags.threads;
  options.emit = flags.emit;
  options.gpuTwins = flags.gpuTwins;
  if (!flags.targets.empty())
    if (std::string wrong = readTargets(flags.targets, options); !wrong.empty()) {
      llvm::errs() << "segue-compile: " << wrong << "\n";
      return failure();
    }
  return chooseCubins(flags, options.cubins);
}

/// Checks the output before the work: a long compilation must not end where nothing can be written.
static LogicalResult checkOutput(const std::string &output) {
  try {
    if (output != "-")
      OutputFile::check(output);
    return success();
  } catch (const segue::Error &error) {
    llvm::errs() << "segue-compile: " << error.what() << "\n";
    return failure();
  }
}

static LogicalResult writeResult(const std::string &output, const std::string &result) {
  try {
    if (output == "-") {
      llvm::outs() << result;
      llvm::outs().flush();
      if (!llvm::outs().has_error())
        return success();
      llvm::errs() << "segue-compile: standard output cannot be written: " << llvm::outs().error().message() << "\n";
      llvm::outs().clear_error(); // said already
      return failure();
    }
    OutputFile file(output);
    file.write(result);
    file.commit();
    return success();
  } catch (const segue::Error &error) {
    llvm::errs() << "segue-compile: " << error.what() << "\n";
    return failure();
  }
}

/// Calls the kernels of a copy of `module`; says what agrees, or what does not.
static LogicalResult verify(ModuleOp module, const CompileOptions &options, StringRef inputs) {
  VerifyOptions given;
  if (!inputs.empty()) {
    std::string error;
    std::unique_ptr<llvm::MemoryBuffer> file = openInputFile(inputs, &error);
    if (!file) {
      llvm::errs() << "segue-compile: " << error << "\n";
      return failure();
    }
    llvm::Expected<NamedTensors> values = readSafetensors(file->getBuffer(), module.getContext());
    if (!values) {
      llvm::errs() << "segue-compile: " << inputs << ": " << llvm::toString(values.takeError()) << "\n";
      return failure();
    }
    given.values = std::move(*values);
  }
  OwningOpRef<ModuleOp> copy = module.clone();
  FailureOr<VerifiedValues> found = verifyValues(*copy, options, given);
  if (failed(found))
    return failure();
  if (found->difference) {
    llvm::errs() << "segue-compile: " << found->difference->str() << "\n";
    return failure();
  }
  llvm::errs() << "segue-compile: " << found->kernels << " kernels agree with the reference interpreter in "
               << found->launches << " launches, " << found->calls << " calls\n";
  return success();
}

int main(int argc, char **argv) {
  llvm::InitLLVM init(argc, argv);
  tool::setVersion("segue-compile");
  registerAsmPrinterCLOptions();
  tool::shortenDiagnostics();
  registerPassManagerCLOptions();
  registerDefaultTimingManagerCLOptions();
  Flags flags;
  tool::addCompletion("segue-compile", &flags.category);
  // LLVM brings hundreds of options; `--help-hidden` shows them.
  cl::HideUnrelatedOptions(flags.category);
  cl::ParseCommandLineOptions(argc, argv, kOverview);
  // lld resets all options when it links kernels: take what is needed now.
  std::string output = flags.output, verifyInputs = flags.verifyInputs;
  bool verifies = flags.verifyValues || !verifyInputs.empty();
  CompileOptions options;
  if (failed(readOptions(flags, options)))
    return EXIT_FAILURE;

  if (failed(checkOutput(output)))
    return EXIT_FAILURE;
  std::string error;
  std::unique_ptr<llvm::MemoryBuffer> buffer = tool::openAlignedInput(flags.input, &error);
  if (!buffer) {
    llvm::errs() << "segue-compile: " << error << "\n";
    return EXIT_FAILURE;
  }
  DialectRegistry registry;
  registerAllSegue(registry);
  MLIRContext context(registry);
  llvm::SourceMgr sources;
  sources.AddNewSourceBuffer(std::move(buffer), llvm::SMLoc());
  SourceMgrDiagnosticHandler handler(sources, &context);

  DefaultTimingManager timing;
  applyDefaultTimingManagerCLOptions(timing);
  TimingScope root = timing.getRootScope();
  TimingScope parse = root.nest("parse");
  OwningOpRef<ModuleOp> module = parseSourceFile<ModuleOp>(sources, &context);
  parse.stop();
  if (!module)
    return EXIT_FAILURE;
  if (verifies && failed(verify(*module, options, verifyInputs)))
    return EXIT_FAILURE;
  FailureOr<std::string> result =
      compile(*module, options, [](PassManager &pm) { return applyPassManagerCLOptions(pm); }, &root);
  if (failed(result))
    return EXIT_FAILURE;

  // This user's own files run unasked on this machine (SECURITY.md). One that
  // could not be signed is as good: whoever runs it is told.
  if (options.emit == Emit::Binary)
    if (std::string problem = Signatures::ofUser().sign(std::as_bytes(std::span<const char>(*result)));
        !problem.empty())
      llvm::errs() << "segue-compile: warning: the file is not signed, and runs only where that is allowed "
                      "(segue-run --allow-native): "
                   << problem << "\n";

  return succeeded(writeResult(output, *result)) ? EXIT_SUCCESS : EXIT_FAILURE;
}
