//===- SlabSource.h - a slab, for who streams weights -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A SlabSource is what a WeightStreamer and a session need of a slab. Reading slabs is in a
// library of its own, SegueSquareQ, whose SlabServer is one of these; who trains
// on floats alone does not link it:
//
//   SessionOptions options;
//   options.openSlab = openSlab;             // of SquareQ/SlabServer.h
//
// Called by the thread that submits to the device.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_SLABSOURCE_H
#define SEGUE_RUNTIME_SERVICES_SLABSOURCE_H

#include "segue/runtime/Json.h"
#include "segue/runtime/Services/WeightMatching.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <filesystem>
#include <functional>

namespace segue::inline runtime {

struct SquareQConfig;

/// The fields of SquareQ in the weight record; sums since the record before.
struct SlabTelemetry {
  uint64_t blocksServed = 0;
  /// Over the link, and what bf16 would have taken more.
  uint64_t bytesH2d = 0;
  int64_t bytesSaved = 0;
  /// Time of the device in dequantising. 0 on a device without bytes.
  double dequantMs = 0;
  /// Products on the device that read codes, of programs and of fusedLinear.
  uint64_t fusedCalls = 0;
  /// Reads of weights whose bytes were not those of the manifest.
  uint64_t crcFailures = 0;

  SlabTelemetry &operator+=(const SlabTelemetry &other);
  /// `squareq_blocks_served`, `squareq_bytes_h2d`, `squareq_bytes_saved`,
  /// `dequant_ms`, `fused_calls`, `crc_failures`.
  Json json() const;
};

class SlabSource {
public:
  virtual ~SlabSource() = default;

  virtual const std::filesystem::path &path() const = 0;
  /// Sentences about the slab that a user should know.
  virtual const std::vector<std::string> &notes() const = 0;
  /// True if a weight of that name is in the slab. Below: throws NameUnknown for
  /// others.
  virtual bool holds(std::string_view name) const = 0;
  /// Before it was quantised.
  virtual const Shape &shape(std::string_view name) const = 0;
  /// Bytes of the weight's codes, with their scales and zero points.
  virtual uint64_t storedBytes(std::string_view name) const = 0;

  /// The weight as dense floats. Throws ChecksumMismatch, SourceChanged, IoFailed.
  virtual void copyDequantized(std::string_view name, ElementType element, std::span<std::byte> dense) const = 0;
  /// Queues the weight over the whole of `target`, a slot of the caller; false
  /// if the gate denied it. Throws as copyDequantized, and DeviceOom.
  virtual bool serveInto(std::string_view name, const Tensor &target, const TransferOptions &options = {}) = 0;
  /// `read` gives the weight as it was before it was quantised, in the host's memory.
  /// It serves where the slab's bytes are damaged; what it throws, the use throws.
  virtual void setOriginal(std::string_view name, std::function<Tensor()> read) = 0;
  /// Takes `bytes` of memory, or what there is, for weights that are read before
  /// they are asked for; page-locked as far as `reserve`, if given, allows it, else
  /// a little that is not. Once; later calls do nothing.
  virtual void takeBuffers(uint64_t bytes, const std::function<bool(uint64_t bytes)> &reserve) = 0;
  /// Counts that all weights of a block were served.
  virtual void blockServed() = 0;
  /// The weights that will be asked for, in this order, in the place of what was
  /// said before. Returns at once.
  virtual void readAhead(std::vector<std::string> order) = 0;
  /// Returns the counts since the last call. Dequantising that has not run yet is
  /// counted in a later one.
  virtual SlabTelemetry takeTelemetry() = 0;
};

/// Which slab, and for whom.
struct SlabRequest {
  std::filesystem::path slab, manifest;
  /// All parameters of the programs; empty: whatever the slab holds will do.
  std::span<const ProgramWeight> program;
  NameAliases aliases = {};
};

/// Opens a slab with its checks, and takes no memory for reading ahead yet. Throws
/// SlabInvalid, ConfigError where programs do not read what the config serves,
/// IoFailed.
using SlabOpener = std::function<std::shared_ptr<SlabSource>(const DeviceRef &device, const SlabRequest &request,
                                                             const SquareQConfig &config)>;

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_SLABSOURCE_H
