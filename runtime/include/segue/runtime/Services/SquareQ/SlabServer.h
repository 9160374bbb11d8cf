//===- SlabServer.h - weights from a slab to a device -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Serves the weights of an open slab in the form that programs want them in.
// The link carries the bytes as stored, codes and scales; zero points that are
// all 0 stay. On the device they become what is wanted: floats (`dequant`), or
// the row storage itself for a product that reads it (`fused`, QuantizedMatmul).
//
//   SlabServer server(device, slab, {.fallback = checkpointFallback(path)});
//   server.readAhead({"blocks.0.fc1.weight", "blocks.0.fc2.weight", ...});
//   Tensor w = server.serve("blocks.0.fc1.weight", wanted);   // pending
//   server.blockServed();                                     // once per block
//   Json record = server.takeTelemetry().json();
//
// One worker reads ahead, in the order that is given, into buffers that are
// taken at the start; reading is all it does. Host memory is those buffers,
// never the slab. Where there is little, there are fewer; with none, weights
// are read when they are asked for.
//
// The thread that submits to the device calls. The slab must stay open, and the
// device must outlive the server.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_SQUAREQ_SLABSERVER_H
#define SEGUE_RUNTIME_SERVICES_SQUAREQ_SLABSERVER_H

#include "segue/runtime/Services/SlabSource.h"
#include "segue/runtime/Services/SquareQ/FusedLinear.h"
#include "segue/runtime/Services/SquareQ/Slab.h"
#include <set>

namespace segue::inline runtime {

/// The source of a layer whose bytes in the slab are damaged: a function that returns a
/// tensor in the host's memory with the values before they were quantised, or no tensor.
using SlabFallback = std::function<Tensor(const DeviceRef &device, std::string_view name)>;

/// Returns a fallback that reads weights from the checkpoint that the slab was made of,
/// mapped; names are as in WeightNames.h. Throws what SafetensorsFile::open throws.
SlabFallback checkpointFallback(const std::filesystem::path &checkpoint, NameAliases aliases = {});

struct SlabServerOptions {
  /// The bytes of host memory for weights that were read and not yet asked for; 0 if there
  /// are none, or takeBuffers() is called later.
  uint64_t readAheadBytes = uint64_t(512) << 20;
  /// The source of damaged layers; may be null.
  SlabFallback fallback;
};

class SlabServer final : public SlabSource {
public:
  /// Takes the buffers: as many of the largest layer's size as `readAheadBytes` hold and
  /// the memory has, page-locked where possible. `slab` must be OPEN.
  SlabServer(DeviceRef device, std::shared_ptr<const Slab> slab, SlabServerOptions options = {});
  ~SlabServer() override;
  SlabServer(const SlabServer &) = delete;
  SlabServer &operator=(const SlabServer &) = delete;

  const Slab &slab() const { return *slab_; }
  /// Returns true if a weight of that name is in the slab. Biases count as not in it: they
  /// go with the other parameters of the block.
  bool holds(std::string_view name) const override;
  const std::filesystem::path &path() const override { return slab_->path(); }
  const std::vector<std::string> &notes() const override { return slab_->notes(); }
  const Shape &shape(std::string_view name) const override { return slab_->layer(name).origShape; }
  uint64_t storedBytes(std::string_view name) const override { return slab_->layerBytes(name); }
  void copyDequantized(std::string_view name, ElementType element, std::span<std::byte> dense) const override {
    slab_->copyDequantized(name, element, dense);
  }

  /// Returns the weight as it lies on the device before anything is dequantised, which is
  /// the layout to ask serve() for where a product reads codes. A weight that is more than
  /// its codes (see serveFused()) gives dense floats.
  TensorDesc storedDesc(std::string_view name, ElementType element = ElementType::bf16) const;
  /// Returns the bytes that cross the link for the weight.
  uint64_t linkBytes(std::string_view name) const;

  /// Names the weights that will be asked for, in this order, in the place of those named
  /// before. What has been read and is in the new order too is kept. Returns at once.
  /// Throws NameUnknown.
  void readAhead(std::vector<std::string> order) override;
  /// Blocks until the buffers are filled: before a first step that is to be
  /// measured, and in tests.
  void waitForReadAhead();

  /// Returns the weight in the layout `wanted`, which has its shape and is on the device.
  /// It is pending: queued work writes it. A weight that was not read ahead is read now.
  /// Returns null if the gate denied a speculative copy; what was read is kept. Throws
  /// ChecksumMismatch where the bytes are damaged and there is no fallback, SourceChanged,
  /// IoFailed, NameUnknown, DeviceOom.
  Tensor serve(std::string_view name, std::shared_ptr<const TensorDesc> wanted, const TransferOptions &options = {});
  /// Returns the weight for fusedLinear: codes, whether they are rotated, and the low-rank
  /// product as a second adapter. Throws as serve does.
  FusedWeight serveFused(std::string_view name, const TransferOptions &options = {});
  /// Serves the weight over the whole of `target`, a slot of the caller; returns false if
  /// the gate denied it.
  bool serveInto(std::string_view name, const Tensor &target, const TransferOptions &options = {}) override;
  /// Sets the source of a weight that is asked before the fallback of the options.
  void setOriginal(std::string_view name, std::function<Tensor()> read) override;

  void takeBuffers(uint64_t bytes, const std::function<bool(uint64_t bytes)> &reserve) override;
  void blockServed() override { ++telemetry_.blocksServed; }
  /// Return how many reads of serve() found the weight read already, and how many did not.
  uint64_t readAheadHits() const { return hits_; }
  uint64_t readAheadMisses() const { return misses_; }
  /// Returns the number of buffers that there was memory for.
  size_t buffers() const;

  /// Returns the counts since the last call. Dequantising that has not run yet is
  /// counted in a later one.
  SlabTelemetry takeTelemetry() override;

private:
  class Reader;
  struct Clock;

  /// A weight before its last step. It has no tensor if the gate denied it.
  struct Brought {
    Tensor tensor;
    /// The matrices of a low-rank product, bf16, and whether codes came.
    Tensor a, b;
    bool isStored = false;
    /// Keeps a buffer of the ring in use, in which the tensor lies where memory is unified.
    std::shared_ptr<void> buffer;
  };
  Tensor original(std::string_view name) const;
  /// Brings a weight into new memory of the device, or into `slot` if that is one for just
  /// these bytes.
  Brought bring(std::string_view name, ElementType element, const TransferOptions &options, const Tensor &slot = {});
  Tensor bringStored(std::string_view name, const std::shared_ptr<Storage> &staged, TensorDesc desc,
                     const TransferOptions &options, const Tensor &slot);
  bool holdsStored(std::string_view name, const TensorDesc &desc) const;
  Tensor restore(std::string_view name, const Brought &brought);
  /// Does the last step: `convert` takes the tensor to what is wanted.
  template <typename Convert>
  void finish(std::string_view name, Brought brought, const TensorDesc &wanted, Convert convert);

  DeviceRef device_;
  std::shared_ptr<const Slab> slab_;
  SlabServerOptions options_;
  std::map<std::string, std::function<Tensor()>, std::less<>> originals_;
  /// The layers that come from elsewhere from now on.
  std::set<std::string, std::less<>> damaged_;
  SlabTelemetry telemetry_;
  uint64_t hits_ = 0, misses_ = 0, fusedBefore_ = 0;
  std::shared_ptr<Clock> clock_;
  std::unique_ptr<Reader> reader_;
};

/// A SlabOpener: checks the slab as `config.verify` says and against the program,
/// and serves it. Throws ConfigError for `serve: fused` where the programs read
/// floats, SlabInvalid where they read other codes than the slab holds.
std::shared_ptr<SlabSource> openSlab(const DeviceRef &device, const SlabRequest &request, const SquareQConfig &config);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_SQUAREQ_SLABSERVER_H
