//===- SlabBuilder.h - makes a slab from a checkpoint -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Quantises the linear layers of a safetensors file into `<slab>.safetensors`
// with `<slab>.manifest.json` and `<slab>.report.json` beside it:
//
//   SlabBuilder builder({.source = "model.safetensors", .slab = "slab"});
//   while (builder.step()) {}                // one layer each
//   BuildReport report = builder.finish();   // the files are there
//
// It is NEW, then at LAYER k of n, then FINALISED. What has been done is kept in
// `<slab>.safetensors.partial` and `<slab>.safetensors.building`: a builder of
// the same source and options goes on there, whatever ended the one before,
// and gives the same bytes. The final names appear by rename, after everything
// was made durable. The bytes depend on source, options and version alone:
// not on the time, the number of threads or how often it was begun.
//
// One tensor is held at a time, in its stored form. One thread calls.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_SQUAREQ_SLABBUILDER_H
#define SEGUE_RUNTIME_SERVICES_SQUAREQ_SLABBUILDER_H

#include "segue/runtime/Services/SquareQ/LayerQuantizer.h"
#include "segue/runtime/Services/SquareQ/SlabManifest.h"
#include "segue/runtime/Services/SquareQ/SquareQConfig.h"
#include <filesystem>
#include <memory>

namespace segue::inline runtime {

struct BuildOptions {
  std::filesystem::path source;
  /// The path of the slab, with or without ".safetensors".
  std::filesystem::path slab;
  SquareQConfig config = {};
  std::string architectureId = "unknown";
  /// With true, layers with NaN or infinite weights stay out, instead of ending the build.
  bool keepNonfiniteBf16 = false;
  /// The number of threads; 0 for as many as the machine has.
  int threads = 0;
};

enum class BuildState : int8_t { New, Layer, Finalised };

struct LayerReport {
  std::string name;
  Shape shape;
  SlabSize size;
  QuantizationError error;
  bool rotated = false;
  int64_t rank = 0;
};

struct BuildReport {
  /// The layers, sorted by name.
  std::vector<LayerReport> layers;
  /// The layers that stayed bf16, with the reason of each.
  std::map<std::string, std::string> keptBf16;
  /// The layers whose columns are not a multiple of 256, in a build that rotates: they are
  /// stored without rotation.
  std::vector<std::string> notRotated;
  /// The bytes of the quantised layers in the source, and in the slab.
  uint64_t bytesIn = 0, bytesOut = 0;
  int64_t flooredRows = 0;
  double maxRelRmse = 0, minCosine = 1, meanCosine = 1;
  double seconds = 0;
  /// The number of layers that an earlier builder had done.
  size_t resumedLayers = 0;

  /// Returns the bytes that the quantised layers would take as bf16.
  uint64_t bytesBf16() const {
    uint64_t bytes = 0;
    for (const LayerReport &layer : layers)
      bytes += layer.size.bf16;
    return bytes;
  }

  /// Returns the record of a build: `layers`, `kept_bf16`, `bytes_in`, `bytes_out`,
  /// `floored_rows`, `max_rel_rmse`, `min_cosine`, `seconds`.
  Json telemetry() const;
  /// Returns the content of `<slab>.report.json`: per layer relative RMSE, cosine, floored
  /// rows; the layers that stayed bf16 and why. Selective Precision reads its first errors
  /// there.
  Json json() const;
};

class SlabBuilder {
public:
  /// Reads the header of the source, decides what is quantised, and takes up
  /// or begins the files. Throws IoFailed (also where the disk has no room,
  /// or another process builds the same slab), FileCorrupt, ConfigInvalid for
  /// a prefix that no layer has, and NonFinite. Cost: with a bound in keep_bf16
  /// or keepNonfiniteBf16, quantises each layer once to decide.
  explicit SlabBuilder(BuildOptions options);
  ~SlabBuilder();
  SlabBuilder(const SlabBuilder &) = delete;
  SlabBuilder &operator=(const SlabBuilder &) = delete;

  BuildState state() const;
  /// Return the number of layers that are done, and of all.
  size_t layersDone() const;
  size_t layerCount() const;
  /// Returns the layer that step() does next; empty behind the last.
  std::string_view nextLayer() const;
  /// Returns why an earlier build was not gone on with; empty if it was, or there was none.
  const std::string &restartReason() const;

  /// Does a layer; returns false if none was left. Throws NonFinite naming layer, row and
  /// column, SourceChanged, IoFailed; the work so far is kept.
  bool step();

  /// Does the layers that are left, then puts the files in their places. Throws as step()
  /// does; then nothing has a final name that had none before.
  BuildReport finish();

private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The paths `<slab>.safetensors`, `.manifest.json` and `.report.json`.
struct SlabPaths {
  std::filesystem::path slab, manifest, report;
  explicit SlabPaths(const std::filesystem::path &slab);
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_SQUAREQ_SLABBUILDER_H
