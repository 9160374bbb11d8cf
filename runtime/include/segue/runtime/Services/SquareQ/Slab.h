//===- Slab.h - quantised frozen weights in a file --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A slab is `<name>.safetensors` with `<name>.manifest.json` beside it. It is
// CLOSED, then OPEN (mapped and checked), then CLOSED:
//
//   Slab slab("base.safetensors");
//   slab.open({.signature = signature, .wants = wants});
//   TensorDesc desc = slab.desc("h.0.attn.weight", ElementType::bf16);
//   std::vector<std::byte> staging(slab.layerBytes("h.0.attn.weight"));
//   slab.copyLayer("h.0.attn.weight", staging);     // q | scales | zero points
//
// A layer comes in the row storage that desc() describes, ready for toLayout to
// dequantise on the device; its tensors lie apart in the file and are put
// together in the span that is given, which is all the memory it takes. A zero
// point that is all 0 is left out. int4_group has no such storage: these layers
// are dequantised here.
//
// open and close: one thread, and nobody reading. All else: any thread.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_SQUAREQ_SLAB_H
#define SEGUE_RUNTIME_SERVICES_SQUAREQ_SLAB_H

#include "segue/runtime/Services/SquareQ/SlabChecks.h"
#include "segue/runtime/Services/SquareQ/SquareQConfig.h"
#include "segue/runtime/Tensor/Tensor.h"
#include <filesystem>

namespace segue::inline runtime {

enum class SlabState : int8_t { Closed, Open };

/// Returns `<name>.manifest.json` for `<name>.safetensors`.
std::filesystem::path manifestPathOf(const std::filesystem::path &slab);

class Slab {
public:
  /// Remembers the files; reads nothing.
  explicit Slab(std::filesystem::path slab, std::filesystem::path manifest = {});
  ~Slab();
  Slab(const Slab &) = delete;
  Slab &operator=(const Slab &) = delete;

  /// Maps the files and makes the checks of SlabChecks.h, then those of the
  /// hashes. Throws SlabInvalid listing all mismatches of the first check that
  /// fails; the slab is then CLOSED and nothing of it was loaded. Throws
  /// StateTransition if it is OPEN. Cost: reads header, manifest and scales;
  /// with SlabVerify::Full, the whole file.
  void open(SlabExpectation expected = {}, SlabVerify verify = SlabVerify::Open);
  /// Unmaps. Tensors and spans of the mapped file are invalid from here on.
  void close();

  SlabState state() const { return opened_ ? SlabState::Open : SlabState::Closed; }
  const std::filesystem::path &path() const { return path_; }

  // Below: throws StateTransition while CLOSED, and NameUnknown (with the
  // nearest) for a name that the slab does not hold. Names are those of
  // parameters, "fc1.weight", or of layers; adapters' names and the aliases
  // given to open() are understood.

  const SlabManifest &manifest() const;
  /// Returns the layers that the program does not want.
  const std::vector<std::string> &unused() const;
  /// Returns sentences that a user should know: "the manifest has no hashes, ...".
  const std::vector<std::string> &notes() const;

  /// Returns true if the slab holds a weight or bias of that name; never throws NameUnknown.
  bool holds(std::string_view name) const;
  const SlabLayer &layer(std::string_view name) const;
  SlabSize size(std::string_view name) const;

  /// Returns the layer as copyLayer writes it and as it crosses the link: logical type
  /// `element`, rows of `padded` columns, in the storage of its form.
  TensorDesc desc(std::string_view name, ElementType element = ElementType::bf16) const;
  /// Returns true if the weight is more than its codes: rotated, or with a low-rank
  /// product.
  bool isRestored(std::string_view name) const;
  /// The places at which copyLayer puts the matrices of the low-rank product, bf16[out,
  /// rank] and bf16[rank, in]: offsets in bytes. With rank 0 there are none.
  struct LowRankPlaces {
    int64_t rank = 0;
    uint64_t a = 0, b = 0;
  };
  LowRankPlaces lowRank(std::string_view name) const;
  /// Returns the bytes that copyLayer writes: desc(name).spanBytes(), then the low-rank product.
  uint64_t layerBytes(std::string_view name) const;

  /// Reads a layer into `staging`, which has layerBytes bytes or more. The
  /// first read of a layer checks its CRC (SlabVerify::Open). Throws
  /// ChecksumMismatch, after which the bytes must not be used; SourceChanged;
  /// IoFailed. Allocates nothing.
  void copyLayer(std::string_view name, std::span<std::byte> staging) const;

  /// Loads a layer into a new tensor of `device`, in a `space` that the host can
  /// write.
  Tensor loadLayer(const DeviceRef &device, std::string_view name, ElementType element = ElementType::bf16,
                   Space space = Space::Host) const;
  /// Writes (q - zero point) * scale in f32, rounded once to `element`, dense.
  void copyDequantized(std::string_view name, ElementType element, std::span<std::byte> dense) const;

  /// Writes the f32 values of a bias; its name is that of the tensor, "fc1.bias".
  void copyBias(std::string_view name, std::span<float> values) const;

  /// Returns a stored tensor by its key, in the mapped file, unchecked by CRC.
  std::span<const std::byte> mapped(std::string_view key) const;

  /// Asks the system to have a layer in memory soon; returns at once.
  void readAhead(std::string_view name) const;

private:
  struct Opened;
  const Opened &opened() const;

  std::filesystem::path path_, manifestPath_;
  std::unique_ptr<Opened> opened_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_SQUAREQ_SLAB_H
