//===- LoraModel.h - frozen layers with adapters, and a slab ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// h' = h + gelu(h W + s h A B) per block, W frozen and in a slab, A and B
// trained. The factor `s` says how large the gradients of a block are, and so
// which blocks Selective Precision lowers.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_STITCH_LORAMODEL_H
#define SEGUE_TEST_STITCH_LORAMODEL_H

#include "RandomTensors.h"
#include "segue/runtime/Services/PrecisionService.h"
#include "segue/runtime/Services/SquareQ/SlabBuilder.h"
#include "segue/runtime/Services/SquareQ/SlabServer.h"
#include "segue/runtime/Files/Safetensors.h"
#include "segue/runtime/Session/Session.h"
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>
#include <unistd.h>

namespace segue::test {

inline constexpr int64_t loraRows = 4, loraWidth = 64, loraRank = 4;

struct LoraOptions {
  /// A scale for each block.
  std::vector<double> scales{0.02, 0.05, 1, 0.03, 2, 0.04};
  /// The base weights of the last block are trained too.
  bool trainsLastBase = false;
  /// "orig." where the base weights are those of wrapped layers.
  std::string wrapper = {};
  /// The storage that frozen weights are compiled for, "int8_row"; empty: floats.
  std::string frozenStorage = {};
  /// "block", "layer", or empty for none.
  std::string statistics = "block";
  bool blockPrograms = true;
  /// The blocks of this module, and up to which; those of others take what it gives.
  size_t begin = 0, end = SIZE_MAX;
};

inline std::string loraText(const LoraOptions &options) {
  std::string wide = "tensor<4x64xf32>", low = "tensor<4x4xf32>", square = "tensor<64x64xf32>";
  size_t begin = options.begin, end = std::min(options.end, options.scales.size());
  bool isLast = end == options.scales.size();
  std::string last = "%h" + std::to_string(end);
  std::ostringstream out;
  out << "func.func @forward(%h" << begin << ": " << wide << " {segue.name = \"" << (begin ? "h" : "x")
      << "\", segue.role = #segue.role<input>" << (begin ? "}" : ", segue.requires_grad = false}");
  if (isLast)
    out << ",\n  %t: " << wide << " {segue.name = \"t\", segue.role = #segue.role<input>, segue.requires_grad = false}";
  for (size_t i = begin; i < end; ++i) {
    bool isTrained = options.trainsLastBase && i + 1 == options.scales.size();
    std::string name = "h." + std::to_string(i) + ".fc.";
    out << ",\n  %w" << i << ": " << square << " {segue.name = \"" << name << options.wrapper
        << "weight\", segue.role = #segue.role<" << (isTrained ? "parameter" : "frozen") << ">},\n  %a" << i
        << ": tensor<4x64xf32> {segue.name = \"" << name << "a\", segue.role = #segue.role<parameter>},\n  %b" << i
        << ": tensor<64x4xf32> {segue.name = \"" << name << "b\", segue.role = #segue.role<parameter>}";
  }
  out << ")\n  -> (" << (isLast ? "tensor<f32> {segue.name = \"loss\"" : wide + " {segue.name = \"h\"")
      << ", segue.role = #segue.role<output>}) {\n";
  for (size_t i = begin; i < end; ++i) {
    std::string block = "{segue.block = \"h." + std::to_string(i) + "\"} : ", n = std::to_string(i);
    out << "  %p" << n << " = segue.dot_general %h" << n << ", %w" << n << " batch [] x [] contract [1] x [1] " << block
        << wide << ", " << square << " -> " << wide << "\n  %l" << n << " = segue.dot_general %h" << n << ", %a" << n
        << " batch [] x [] contract [1] x [1] " << block << wide << ", tensor<4x64xf32> -> " << low << "\n  %m" << n
        << " = segue.dot_general %l" << n << ", %b" << n << " batch [] x [] contract [1] x [1] " << block << low
        << ", tensor<64x4xf32> -> " << wide << "\n  %s" << n << " = segue.constant {segue.block = \"h." << n
        << "\"} dense<" << std::scientific << options.scales[i] << "> : " << wide << "\n  %q" << n << " = segue.mul %m"
        << n << ", %s" << n << " " << block << wide << "\n  %r" << n << " = segue.add %p" << n << ", %q" << n << " "
        << block << wide << "\n  %g" << n << " = segue.gelu tanh %r" << n << " " << block << wide << "\n  %h" << i + 1
        << " = segue.add %h" << n << ", %g" << n << " " << block << wide << "\n";
  }
  if (!isLast) {
    out << "  return " << last << " : " << wide << "\n}\n";
    return out.str();
  }
  out << "  %d = segue.sub " << last << ", %t : " << wide << "\n  %e = segue.mul %d, %d : " << wide
      << "\n  %loss = segue.reduce mean %e dims [0, 1] : " << wide
      << " -> tensor<f32>\n  return %loss : tensor<f32>\n}\n";
  return out.str();
}

/// A folder of its own under that for temporary files.
inline std::filesystem::path newFolder() {
  std::string path = (std::filesystem::temp_directory_path() / "segue-lora-XXXXXX").string(); // mkdtemp's pattern
  if (!mkdtemp(path.data()))
    throw std::runtime_error("no folder can be made at " + path);
  return path;
}

/// Compiled by a process of its own, once per text and options.
inline Binary loraBinary(const LoraOptions &lora = {}) {
  static std::map<std::string, Binary> made;
  std::string flags = (lora.statistics.empty() ? "" : "--gradient-statistics=" + lora.statistics) +
                      (lora.blockPrograms ? " --block-programs" : "") +
                      (lora.frozenStorage.empty() ? "" : " --frozen-storage=" + lora.frozenStorage);
  std::string text = loraText(lora);
  auto found = made.find(flags + text);
  if (found == made.end()) {
    std::filesystem::path folder = newFolder();
    std::ofstream(folder / "lora.mlir") << text;
    std::string command = "timeout 60 " SEGUE_COMPILE " --optimizer=adamw --target=x86-64-v3 " + flags + " " +
                          (folder / "lora.mlir").string() + " -o " + (folder / "lora.segue").string();
    if (std::system(command.c_str()) != 0)
      throw std::runtime_error("failed: " + command);
    found = made.emplace(flags + text, Binary::load(folder / "lora.segue")).first;
    std::filesystem::remove_all(folder);
  }
  return found->second;
}

/// A folder with the base weights and a slab of them, "int8.safetensors", and
/// one in FP8, "fp8.safetensors".
class LoraFolder {
public:
  explicit LoraFolder(size_t layers = 6, bool fp8 = false) {
    path = newFolder();
    DeviceRef device = Device::open("cpu");
    TensorMap tensors;
    for (size_t i = 0; i < layers; ++i)
      tensors["h." + std::to_string(i) + ".fc.weight"] = baseWeight(device, i);
    saveSafetensors(path / "base.safetensors", tensors);
    build("int8", SlabScheme::PerRowSymmetric);
    if (fp8)
      build("fp8", SlabScheme::Fp8E4M3Row);
  }
  ~LoraFolder() { std::filesystem::remove_all(path); }
  LoraFolder(const LoraFolder &) = delete;

  static Tensor baseWeight(const DeviceRef &device, size_t layer) {
    Tensor value = randomTensor(device, {loraWidth, loraWidth}, 100 + uint32_t(layer));
    for (uint64_t i = 0; i < value.elementCount(); ++i)
      value.data<float>()[i] *= 0.15f;
    return value;
  }

  /// A slab of a file of weights in the folder; `kept` stay in bf16.
  void build(const char *name, SlabScheme scheme, const char *source = "base.safetensors",
             std::vector<std::string> kept = SquareQConfig::defaultKeepBf16(), int64_t rank = 0) {
    BuildOptions options;
    options.source = path / source;
    options.slab = path / (std::string(name) + ".safetensors");
    options.config.scheme = scheme;
    options.config.keepBf16 = std::move(kept);
    options.config.rank = rank;
    SlabBuilder(options).finish();
  }

  std::filesystem::path path;
};

/// A section of Selective Precision, whose records go into the folder if it names no file.
inline std::string inFolder(const LoraFolder &folder, const std::string &precision) {
  Json section = Json::parse(precision);
  if (!section.contains("telemetry_file"))
    section["telemetry_file"] = (folder.path / "precision.jsonl").string();
  return section.dump();
}

/// Weight Stagehand with a slab, and Selective Precision by `precision`: its keys, in
/// braces; empty: the slab is where weights come from. Nothing but what they say is
/// written.
inline std::string precisionConfig(const LoraFolder &folder, const std::string &precision, const std::string &more = "",
                                   double highMiB = 2, int window = 1) {
  std::ostringstream text;
  std::string slab = (folder.path / "int8.safetensors").string();
  text << R"({"memory": {"stagehand": {"telemetry_enabled": false, "prefetch_window_blocks": )" << window
       << R"(, "vram_high_watermark_mb": )" << highMiB << R"(, "vram_low_watermark_mb": )" << highMiB * 0.75
       << R"(, "squareq_slab_path": ")" << slab << R"(", "squareq_manifest_path": ")"
       << (folder.path / "int8.manifest.json").string() << '"' << more
       << (precision.empty() ? "" : R"(, "selective_precision": )" + inFolder(folder, precision)) << "}}}";
  return text.str();
}

/// Decisions at steps 5, 10, ... with telemetry in the folder; `more` begins with
/// a comma, and its keys go over these.
inline std::string dynamicPrecision(const LoraFolder &folder, const std::string &more = "") {
  Json section = {{"enabled", true},
                  {"warmup_steps", 5},
                  {"update_interval_steps", 5},
                  {"min_steps_between_switches", 5},
                  {"history_window", 3},
                  {"calibration_samples", 1},
                  {"telemetry_file", (folder.path / "precision.jsonl").string()}};
  if (!more.empty())
    section.update(Json::parse("{" + more.substr(1 + more.find(',')) + "}"));
  return section.dump();
}

inline Tensor loraValue(const DeviceRef &device, const std::string &key, const TensorDesc &desc) {
  if (key.ends_with(".weight"))
    return LoraFolder::baseWeight(device, size_t(key[2] - '0'));
  Tensor value = randomTensor(device, desc.shape, uint32_t(key[2]) * 2 + uint32_t(key.back()));
  for (uint64_t i = 0; i < value.elementCount(); ++i)
    value.data<float>()[i] *= 0.2f;
  return value;
}

inline void setLoraValues(Session &session) {
  std::vector<std::string> served = session.slabParameters();
  for (const ParameterInfo &info : session.parameters())
    if (std::ranges::find(served, info.key) == served.end())
      session.setParameter(info.key, loraValue(session.device(), info.key, info.desc));
}

inline Session sessionOfLora(const DeviceRef &device, std::vector<SessionModule> modules, const std::string &config,
                             SessionOptions options) {
  if (!config.empty())
    options.config = Config::parse(config, "test");
  options.makePrecision = precisionService();
  options.openSlab = openSlab;
  Session session(device, std::move(modules), std::move(options));
  setLoraValues(session);
  return session;
}

inline Session loraSession(const DeviceRef &device, const std::string &config = "", SessionOptions options = {},
                           const LoraOptions &lora = {}) {
  return sessionOfLora(device, {{"lora", loraBinary(lora)}}, config, std::move(options));
}

/// Returns the model as three modules of two blocks each.
inline std::vector<SessionModule> loraModules() {
  std::vector<SessionModule> modules;
  for (size_t begin : {0, 2, 4})
    modules.push_back({"part" + std::to_string(begin), loraBinary({.begin = begin, .end = begin + 2})});
  return modules;
}

inline TensorMap loraBatch(const DeviceRef &device, int64_t step) {
  return {{"x", randomTensor(device, {loraRows, loraWidth}, 5000 + uint32_t(step))},
          {"t", randomTensor(device, {loraRows, loraWidth}, 9000 + uint32_t(step % 3))}};
}

} // namespace segue::test

#endif // SEGUE_TEST_STITCH_LORAMODEL_H
