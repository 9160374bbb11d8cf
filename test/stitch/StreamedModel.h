//===- StreamedModel.h - blocks of weights to stream in tests ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Two stitched modules of layers that are a block each: "front" with frozen
// weights f0.weight, ... and "back" with trained ones w0, w1, ...; "shared" is added
// in every block of back, "outer" behind the last: there the compiler puts it into
// the kernel of that block, and the optimizer has no block for it.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_STITCH_STREAMEDMODEL_H
#define SEGUE_TEST_STITCH_STREAMEDMODEL_H

#include "CompiledModule.h"
#include "Session/TemporaryFolder.h"
#include "segue/runtime/Files/Safetensors.h"
#include "segue/runtime/Session/Session.h"
#include <filesystem>
#include <sstream>

namespace segue::test {

inline constexpr int64_t modelLayers = 4, modelRows = 16, modelWidth = 64;

inline std::string layersText(bool isFront) {
  std::string matrix = "tensor<64x64xf32>", wide = "tensor<16x64xf32>";
  std::ostringstream out;
  const char *weight = isFront ? "f" : "w", *role = isFront ? "frozen" : "parameter";
  out << "func.func @forward(%h0: " << wide << " {segue.name = \"" << (isFront ? "x" : "hidden")
      << "\", segue.role = #segue.role<input>" << (isFront ? ", segue.requires_grad = false" : "") << "}";
  for (int64_t i = 0; i < modelLayers; ++i)
    out << ",\n  %w" << i << ": " << matrix << " {segue.name = \"" << weight << i << (isFront ? ".weight" : "")
        << "\", segue.role = #segue.role<" << role << ">}";
  if (!isFront)
    for (const char *name : {"shared", "outer"})
      out << ",\n  %" << name << ": " << wide << " {segue.name = \"" << name
          << "\", segue.role = #segue.role<parameter>}";
  out << ")\n  -> (" << (isFront ? wide : "tensor<f32>") << " {segue.name = \"" << (isFront ? "h" : "loss")
      << "\", segue.role = #segue.role<output>}) {\n";
  for (int64_t i = 0; i < modelLayers; ++i) {
    std::string block = "{segue.block = \"h." + std::to_string(i) + "\"} : ";
    out << "  %p" << i << " = segue.dot_general %h" << i << ", %w" << i << " batch [] x [] contract [1] x [1] " << block
        << wide << ", " << matrix << " -> " << wide << "\n";
    out << "  %g" << i << " = segue.gelu tanh %p" << i << " " << block << wide << "\n";
    out << "  %h" << i + 1 << " = segue.add %g" << i << ", %" << (isFront ? "h" + std::to_string(i) : "shared") << " "
        << block << wide << "\n";
  }
  if (isFront) {
    out << "  return %h" << modelLayers << " : " << wide << "\n}\n";
    return out.str();
  }
  out << "  %o = segue.mul %h" << modelLayers << ", %outer : " << wide << "\n  %s = segue.mul %o, %o : " << wide
      << "\n  %loss = segue.reduce mean %s dims [0, 1] : " << wide
      << " -> tensor<f32>\n  return %loss : tensor<f32>\n}\n";
  return out.str();
}

/// Name and bytes of each compiled module; `edit` changes its text before.
template <typename Edit> std::vector<std::pair<std::string, std::string>> compileFiles(Edit edit) {
  std::vector<std::pair<std::string, std::string>> files;
  for (bool isFront : {true, false}) {
    CompileOptions options;
    options.name = isFront ? "front" : "back";
    options.training = true;
    options.optimizer = "adamw";
    std::string text = layersText(isFront), diagnostics;
    edit(text);
    llvm::FailureOr<std::string> file = compileText(text, options, diagnostics);
    if (failed(file))
      throw std::runtime_error(diagnostics);
    files.emplace_back(options.name, std::move(*file));
  }
  return files;
}

inline std::vector<SessionModule> loadFiles(const std::vector<std::pair<std::string, std::string>> &files) {
  std::vector<SessionModule> modules;
  for (const auto &[name, file] : files)
    modules.push_back({name, Binary::fromMemory(std::as_bytes(std::span(file)), {}, name)});
  return modules;
}

template <typename Edit> std::vector<SessionModule> compileModel(Edit edit) { return loadFiles(compileFiles(edit)); }

inline const std::vector<std::pair<std::string, std::string>> &modelFiles() {
  static const auto files = compileFiles([](std::string &) {});
  return files;
}

/// The modules of the unchanged texts, of one load.
inline std::vector<SessionModule> modelModules() {
  static const std::vector<SessionModule> modules = loadFiles(modelFiles());
  return modules;
}

inline TensorMap batchOf(const DeviceRef &device, int seed) {
  return {{"x", randomTensor(device, {modelRows, modelWidth}, 1000 + uint32_t(seed))}};
}

/// With values of its own for every parameter; no services without a config.
inline Session makeSession(const DeviceRef &device, const std::string &config = "", SessionOptions options = {},
                           std::vector<SessionModule> modules = modelModules()) {
  if (!config.empty())
    options.config = Config::parse(config, "test");
  options.wires = {{"back", "hidden", "front", "h"}};
  Session session(device, std::move(modules), std::move(options));
  uint32_t seed = 1;
  for (const ParameterInfo &info : session.parameters()) {
    Tensor value = randomTensor(device, info.desc.shape, seed++);
    for (uint64_t i = 0; i < value.elementCount(); ++i)
      value.data<float>()[i] *= 0.2f;
    session.setParameter(info.key, value);
  }
  return session;
}

/// Weight Stagehand alone, without telemetry.
inline std::string streamingConfig(double highMiB, int64_t window, const std::string &more = "") {
  std::ostringstream text;
  text << R"({"memory": {"stagehand": {"telemetry_enabled": false, "vram_high_watermark_mb": )" << highMiB
       << R"(, "vram_low_watermark_mb": )" << highMiB * 0.75 << R"(, "prefetch_window_blocks": )" << window << more
       << "}}}";
  return text.str();
}

} // namespace segue::test

#endif // SEGUE_TEST_STITCH_STREAMEDMODEL_H
