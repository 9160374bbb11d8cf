//===- SlabSource.h - a slab, for who streams weights -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A SlabSource is what a WeightStreamer and a session need of a slab. Reading slabs is in a
// library of its own, SegueSquareQ, whose SlabServer is one of these; programs that train
// on floats alone do not link it:
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

/// The fields of SquareQ in the weight record: sums since the record before.
struct SlabTelemetry {
  uint64_t blocksServed = 0;
  /// The bytes that went over the link, and those that bf16 would have taken more.
  uint64_t bytesH2d = 0;
  int64_t bytesSaved = 0;
  /// The milliseconds of the device in dequantising; 0 on a device without bytes.
  double dequantMs = 0;
  /// The products on the device that read codes, of programs and of fusedLinear.
  uint64_t fusedCalls = 0;
  /// The reads of weights whose bytes were not those of the manifest.
  uint64_t crcFailures = 0;

  SlabTelemetry &operator+=(const SlabTelemetry &other);
  /// Returns `squareq_blocks_served`, `squareq_bytes_h2d`, `squareq_bytes_saved`,
  /// `dequant_ms`, `fused_calls`, `crc_failures`.
  Json json() const;
};

class SlabSource {
public:
  virtual ~SlabSource() = default;

  virtual const std::filesystem::path &path() const = 0;
  /// Returns sentences about the slab that a user should know.
  virtual const std::vector<std::string> &notes() const = 0;
  /// Returns true if a weight of that name is in the slab. The functions below throw
  /// NameUnknown for others.
  virtual bool holds(std::string_view name) const = 0;
  /// Returns the shape of the weight before it was quantised.
  virtual const Shape &shape(std::string_view name) const = 0;
  /// Returns the bytes of the weight's codes, with their scales and zero points.
  virtual uint64_t storedBytes(std::string_view name) const = 0;

  /// Writes the weight as dense floats. Throws ChecksumMismatch, SourceChanged, IoFailed.
  virtual void copyDequantized(std::string_view name, ElementType element, std::span<std::byte> dense) const = 0;
  /// Queues the weight over the whole of `target`, a slot of the caller; returns false if
  /// the gate denied it. Throws as copyDequantized does, and DeviceOom.
  virtual bool serveInto(std::string_view name, const Tensor &target, const TransferOptions &options = {}) = 0;
  /// Sets a function that reads the weight as it was before it was quantised, into the
  /// host's memory. It is called where the slab's bytes are damaged; the use of the weight
  /// throws what it throws.
  virtual void setOriginal(std::string_view name, std::function<Tensor()> read) = 0;
  /// Takes `bytes` of memory, or what there is, for weights that are read before they are
  /// asked for. The memory is page-locked as far as `reserve`, if given, allows it; beyond
  /// that a little is taken that is not. Later calls do nothing.
  virtual void takeBuffers(uint64_t bytes, const std::function<bool(uint64_t bytes)> &reserve) = 0;
  /// Counts that all weights of a block were served.
  virtual void blockServed() = 0;
  /// Names the weights that will be asked for, in this order, in the place of those named
  /// before. Returns at once.
  virtual void readAhead(std::vector<std::string> order) = 0;
  /// Returns the counts since the last call. Dequantising that has not run yet is
  /// counted in a later one.
  virtual SlabTelemetry takeTelemetry() = 0;
};

/// The slab that is to be opened, and the parameters that it is for.
struct SlabRequest {
  std::filesystem::path slab, manifest;
  /// All parameters of the programs; if it is empty, whatever the slab holds will do.
  std::span<const ProgramWeight> program;
  NameAliases aliases = {};
};

/// A function that opens a slab with its checks, and takes no memory for reading ahead yet.
/// Throws SlabInvalid, ConfigError where programs do not read what the config serves,
/// IoFailed.
using SlabOpener = std::function<std::shared_ptr<SlabSource>(const DeviceRef &device, const SlabRequest &request,
                                                             const SquareQConfig &config)>;

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_SLABSOURCE_H
