//===- Kernels.cpp - code of files on a GPU -------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Kernels.h"
#include "CubinHeader.h"
#include <algorithm>

namespace segue::inline runtime::cuda {

/// The threads of a block if the kernel does not say how many.
static constexpr unsigned usualThreads = 128;

/// The most blocks of a grid along x.
static constexpr int64_t mostBlocks = (int64_t(1) << 31) - 1;

class Module {
public:
  Module(std::shared_ptr<const Context> context, CUmodule module) : context(std::move(context)), module(module) {}
  Module(const Module &) = delete;
  ~Module() {
    context->use();
    (void)context->succeeded(context->api().moduleUnload(module), "cuModuleUnload");
  }
  const std::shared_ptr<const Context> context;
  const CUmodule module;
};

/// Returns true if a GPU of compute capability `gpu` can run code that was made for `code`: code is for one generation.
static bool canRun(uint32_t code, uint32_t gpu) { return code / 10 == gpu / 10 && code <= gpu; }

/// The first driver that knows the ABI of cubins of CUDA 13.
static constexpr int driverOfCuda13 = 13000;

Kernels::Candidates Kernels::candidates(const KernelSource &source) const {
  Candidates found;
  int driver = 0;
  context_->check(context_->api().driverVersion(&driver), "cuDriverGetVersion");
  for (const KernelSource::Variant &variant : source.variants) {
    if (variant.isa == KernelIsa::Ptx)
      found.ptx = &variant;
    if (variant.isa != KernelIsa::Cubin || !canRun(variant.capability, uint32_t(context_->capability())))
      continue;
    schema::CubinHeader header;
    std::string wrong = schema::readCubinHeader(variant.object.data(), variant.object.size(), header);
    if (!wrong.empty())
      throw Error(ErrorCode::FileCorrupt,
                  source.file + ": segment " + std::to_string(variant.segment) + ": is no cubin: " + wrong);
    if (header.abi >= schema::kCubinAbiOfCuda13 && driver < driverOfCuda13)
      continue;
    if (!found.cubin || found.cubin->capability < variant.capability)
      found.cubin = &variant;
  }
  return found;
}

/// Returns true for results that say that the driver has no use for a cubin of a good file: another, or PTX, may do.
static bool isUnfit(CUresult result) { return result == noBinaryForGpu || result == unsupportedPtx; }

std::shared_ptr<const Module> Kernels::load(const KernelSource &source, const KernelSource::Variant &variant,
                                            bool hasOther) {
  std::lock_guard lock(mutex_);
  std::erase_if(modules_, [](const auto &entry) { return entry.second.expired(); });
  if (auto known = modules_.find(variant.object.data()); known != modules_.end())
    if (auto module = known->second.lock())
      return module;
  // Text ends with a zero byte for the driver; cubins say their length themselves.
  std::string image(reinterpret_cast<const char *>(variant.object.data()), variant.object.size());
  CUmodule handle = nullptr;
  CUresult result = context_->api().moduleLoad(&handle, image.c_str());
  if (!context_->succeeded(result, "cuModuleLoadData")) {
    context_->throwIfLost();
    if (hasOther && isUnfit(result))
      return nullptr;
    ErrorCode code = result == outOfMemory                                              ? ErrorCode::DeviceOom
                     : result == invalidImage || result == invalidPtx                   ? ErrorCode::FileCorrupt
                                                                                         : ErrorCode::Unsupported;
    throw Error(code, source.file + ": segment " + std::to_string(variant.segment) + ": cuModuleLoadData gives " +
                          context_->api().describe(result));
  }
  auto module = std::make_shared<const Module>(context_, handle);
  modules_[variant.object.data()] = module;
  return module;
}

/// Says why no variant of a kernel can be loaded.
static std::string lackOf(const KernelSource &source, int capability) {
  std::string cubins;
  for (const KernelSource::Variant &variant : source.variants)
    if (variant.isa == KernelIsa::Cubin)
      cubins += (cubins.empty() ? "sm_" : ", sm_") + std::to_string(variant.capability);
  if (cubins.empty())
    return "has no PTX, and a GPU runs nothing else; compile it with --target=sm_80 or later";
  return "has no PTX, and its cubins (" + cubins + ") are not for a GPU of compute capability " +
         std::to_string(capability / 10) + "." + std::to_string(capability % 10) +
         " with this driver; compile it with a --target that is no later";
}

std::shared_ptr<const CudaKernel> Kernels::make(const KernelSource &source) {
  std::string which = source.file + ": kernel \"" + source.kernel + "\"";
  context_->throwIfLost();
  context_->use();
  Candidates found = candidates(source);
  const KernelSource::Variant *variant = found.cubin ? found.cubin : found.ptx;
  if (!variant)
    throw Error(ErrorCode::Unsupported, which + " " + lackOf(source, context_->capability()));
  std::shared_ptr<const Module> module = load(source, *variant, /*hasOther=*/found.cubin && found.ptx);
  if (!module) {
    variant = found.ptx;
    module = load(source, *variant, /*hasOther=*/false);
  }
  const Api &api = context_->api();
  CUfunction function = nullptr;
  if (CUresult result = api.moduleFunction(&function, module->module, variant->symbol.c_str())) {
    if (result == notFound)
      throw Error(ErrorCode::FileCorrupt, which + ": its segment has no entry \"" + variant->symbol + "\"");
    context_->check(result, "cuModuleGetFunction");
  }
  int most = 0, local = 0;
  context_->check(api.functionAttribute(&most, functionMaxThreads, function), "cuFuncGetAttribute");
  context_->check(api.functionAttribute(&local, functionLocalBytes, function), "cuFuncGetAttribute");
  // Without .maxntid the driver says what the registers allow, 1024 mostly.
  unsigned threads = most >= 1024 ? usualThreads : unsigned(std::max(most, 1));
  return std::make_shared<const CudaKernel>(std::move(module), function, threads, variant->blocks, uint64_t(local));
}

//===----------------------------------------------------------------------===//
// Launches
//===----------------------------------------------------------------------===//

static void requireNoFault(const volatile uint64_t *words) {
  if (uint64_t fault = *words; fault != UINT64_MAX)
    throw KernelFault(int64_t(fault & 0xffff));
}

void Kernels::launch(Streams &streams, const CudaKernel &kernel, std::span<void *const> args, int64_t range,
                     int64_t grain) {
  if (range <= 0)
    return;
  int64_t piece = std::max<int64_t>(grain, 1);
  while ((range + piece - 1) / piece > mostBlocks)
    piece *= 2;
  auto blocks = unsigned(kernel.blocks ? kernel.blocks : (range + piece - 1) / piece);
  auto launched = std::make_unique<WordsOfLaunch>(words_, requireNoFault);
  uint64_t last[] = {uint64_t(range), uint64_t(piece), reinterpret_cast<uint64_t>(launched->words)};
  std::vector<void *> given;
  given.reserve(args.size() + std::size(last));
  for (void *const &arg : args)
    given.push_back(const_cast<void **>(&arg));
  for (uint64_t &number : last)
    given.push_back(&number);
  streams.give([&](CUstream stream) {
    context_->check(context_->api().launch(kernel.function, blocks, 1, 1, kernel.threads,
                                           1, 1, 0, stream, given.data(), nullptr),
                    "cuLaunchKernel");
  });
  WordsOfLaunch::finish(streams, std::move(launched));
}

} // namespace segue::inline runtime::cuda
