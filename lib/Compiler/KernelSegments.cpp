//===- KernelSegments.cpp - compiled kernels in a module ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "KernelSegments.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/AsmState.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "segue/Conversion/SegueToLoops/SegueToLoops.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "segue/Dialect/Prog/IR/ProgDialect.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "segue/Target/NVPTX/GpuTwins.h"
#include "segue/Target/NVPTX/NVPTXTarget.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/MathExtras.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Support/xxhash.h"

using namespace mlir;
using namespace segue;

/// Adds a segment behind those that are there, and returns its name. `capability` is that of a cubin.
static FlatSymbolRefAttr addSegment(ModuleOp module, prog::SegmentKind kind, StringRef bytes, unsigned capability = 0) {
  OpBuilder builder = OpBuilder::atBlockBegin(module.getBody());
  unsigned number = 0;
  for (auto segment : module.getOps<prog::SegmentOp>()) {
    builder.setInsertionPointAfter(segment);
    ++number;
  }
  std::string name = "segment" + std::to_string(number);
  auto type = RankedTensorType::get({static_cast<int64_t>(bytes.size())}, builder.getI8Type());
  AsmResourceBlob blob = HeapAsmResourceBlob::allocateAndCopyWithAlign(ArrayRef<char>(bytes.data(), bytes.size()),
                                                                       prog::kAlignment, /*dataIsMutable=*/false);
  prog::SegmentOp::create(builder, builder.getUnknownLoc(), name, kind, prog::kAlignment,
                          DenseResourceElementsAttr::get(type, name, std::move(blob)), capability);
  return FlatSymbolRefAttr::get(module.getContext(), name);
}

static LogicalResult addVariants(ModuleOp module, SymbolTable &symbols, StringRef kernel, ArrayRef<Attribute> variants) {
  auto op = symbols.lookup<prog::KernelOp>(kernel);
  if (!op)
    return module.emitError() << "kernel \"" << kernel << "\" was compiled but not declared";
  SmallVector<Attribute> all;
  if (op.getVariants())
    llvm::append_range(all, *op.getVariants());
  llvm::append_range(all, variants);
  op.setVariantsAttr(ArrayAttr::get(module.getContext(), all));
  return success();
}

static LogicalResult attachForProcessors(ModuleOp module, ModuleOp kernels, const CPUTargetOptions &target) {
  FailureOr<CompiledKernels> compiled = compileKernels(kernels, target);
  if (failed(compiled))
    return failure();
  if (compiled->elf.empty())
    return success();
  FlatSymbolRefAttr segment = addSegment(module, prog::SegmentKind::Elf, compiled->elf);
  SymbolTable symbols(module);
  MLIRContext *context = module.getContext();
  for (const KernelSymbol &kernel : compiled->kernels) {
    SmallVector<Attribute> variants;
    auto add = [&](prog::Isa isa, const std::string &symbol) {
      if (!symbol.empty())
        variants.push_back(prog::VariantAttr::get(context, isa, StringAttr::get(context, symbol), segment, /*blocks=*/0));
    };
    add(prog::Isa::X86_64_v3, kernel.v3Symbol);
    add(prog::Isa::X86_64_v4, kernel.v4Symbol);
    if (failed(addVariants(module, symbols, kernel.name, variants)))
      return failure();
  }
  return success();
}

//===----------------------------------------------------------------------===//
// GPUs
//===----------------------------------------------------------------------===//

/// The bytes that the address of `buffer` is a multiple of, as far as the program knows: tensors and arenas begin at more.
static uint64_t alignmentOf(Value buffer) {
  auto lowest = [](uint64_t offset) { return offset ? offset & -offset : kGpuAlignment; };
  uint64_t alignment = kGpuAlignment;
  if (auto view = buffer.getDefiningOp<prog::ViewOp>())
    alignment = std::min(alignmentOf(view.getSource()), lowest(view.getOffset()));
  else if (auto alloc = buffer.getDefiningOp<prog::AllocOp>())
    alignment = lowest(alloc.getOffset().value_or(0));
  else if (auto constant = buffer.getDefiningOp<prog::ConstantOp>())
    alignment = lowest(constant.getOffset());
  return std::min<uint64_t>(alignment, kGpuAlignment);
}

/// Tells each kernel what all launches of it keep of the alignment of its buffers.
static void noteAlignments(ModuleOp module, ModuleOp kernels) {
  llvm::StringMap<SmallVector<int64_t>> alignments;
  module.walk([&](prog::LaunchOp launch) {
    SmallVector<int64_t> &known = alignments[launch.getKernel()];
    known.resize(launch.getArgs().size(), kGpuAlignment);
    for (auto [at, buffer] : llvm::enumerate(launch.getArgs())) {
      uint64_t offset = launch.getOffsets() ? (*launch.getOffsets())[at] : 0;
      uint64_t alignment = alignmentOf(buffer);
      if (offset)
        alignment = std::min(alignment, offset & -offset);
      known[at] = std::min<int64_t>(known[at], alignment);
    }
  });
  for (auto kernel : kernels.getOps<func::FuncOp>())
    if (auto found = alignments.find(kernel.getName()); found != alignments.end())
      kernel->setAttr(kGpuAlignmentsAttr, DenseI64ArrayAttr::get(module.getContext(), found->second));
}

/// Writes what a fake driver finds by the hash of `image`. In one step: a process may have the file mapped that another
/// compilation of the same kernels left there.
static LogicalResult leave(ModuleOp kernels, StringRef folder, StringRef image, StringRef ending, StringRef content) {
  SmallString<128> path(folder);
  std::string name;
  llvm::raw_string_ostream(name) << llvm::format_hex_no_prefix(llvm::xxh3_64bits(image), 16) << ending;
  llvm::sys::path::append(path, name);
  llvm::Error error = llvm::writeToOutput(path, [&](raw_ostream &file) {
    file << content;
    return llvm::Error::success();
  });
  if (error)
    return kernels.emitError() << "twins: cannot write " << llvm::toString(std::move(error));
  return success();
}

static LogicalResult leaveTwins(ModuleOp kernels, StringRef folder, StringRef ptx, ArrayRef<std::string> cubins) {
  FailureOr<std::string> elf = compileGpuTwins(kernels);
  if (failed(elf) || failed(leave(kernels, folder, ptx, ".so", *elf)))
    return failure();
  for (const std::string &cubin : cubins)
    if (failed(leave(kernels, folder, cubin, ".ptx", ptx)))
      return failure();
  return success();
}

static LogicalResult attachForGpus(ModuleOp module, ModuleOp kernels, const CompileOptions &options) {
  if (kernels.getBody()->empty())
    return success();
  noteAlignments(module, kernels);
  FailureOr<std::string> ptx = gpuKernelsToPTX(kernels, options.gpuCapability);
  if (failed(ptx))
    return failure();
  FailureOr<SmallVector<std::string>> cubins = SmallVector<std::string>();
  if (!options.cubins.ptxas.empty())
    cubins = assembleCubins(module, *ptx, options.cubins);
  if (failed(cubins) || (!options.gpuTwins.empty() && failed(leaveTwins(kernels, options.gpuTwins, *ptx, *cubins))))
    return failure();
  SmallVector<std::pair<prog::Isa, FlatSymbolRefAttr>> forms;
  forms.emplace_back(prog::Isa::Ptx, addSegment(module, prog::SegmentKind::Ptx, *ptx));
  for (auto [capability, cubin] : llvm::zip(options.cubins.capabilities, *cubins))
    forms.emplace_back(prog::Isa::Cubin, addSegment(module, prog::SegmentKind::Cubin, cubin, capability));
  SymbolTable symbols(module);
  for (auto kernel : kernels.getOps<func::FuncOp>()) {
    uint64_t blocks = kernel->getAttrOfType<IntegerAttr>(kGpuBlocksAttr).getInt();
    SmallVector<Attribute> variants;
    for (auto [isa, segment] : forms)
      variants.push_back(prog::VariantAttr::get(module.getContext(), isa, kernel.getNameAttr(), segment, blocks));
    if (failed(addVariants(module, symbols, kernel.getName(), variants)))
      return failure();
  }
  return success();
}

LogicalResult segue::attachKernels(ModuleOp module, const CPUTargetOptions &target, const CompileOptions &options) {
  if (auto kernels = module.lookupSymbol<ModuleOp>(SegueDialect::kKernelsModule)) {
    if ((target.v3 || target.v4) && failed(attachForProcessors(module, kernels, target)))
      return failure();
    kernels.erase();
  }
  if (auto kernels = module.lookupSymbol<ModuleOp>(kGpuKernelsModule)) {
    if (failed(attachForGpus(module, kernels, options)))
      return failure();
    kernels.erase();
  }
  return success();
}
