//===- NcclCollectives.cpp - collectives on device memory -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "NcclCollectives.h"
#include "../../Collectives/MessageWork.h"
#include "../MappedMemory.h"
#include "Communicator.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <array>
#include <limits>

namespace segue::inline runtime::cuda {

/// The stage has so many bytes at most: NCCL is as fast as it gets with messages of this size.
static constexpr uint64_t mostStageBytes = 8 << 20;
/// Pieces in the stage begin at multiples of this, and are of so many bytes at least where a tensor has them.
static constexpr uint64_t pieceAlignment = 256;
/// So many broadcasts are under way at once before one waits for an older one.
static constexpr size_t wordCount = 64;
static constexpr uint64_t wordStride = 64;

static bool isGiven(ncclResult_t result) { return result == ncclOk || result == ncclNotYet; }
static uint64_t inPieces(uint64_t bytes) { return (bytes + pieceAlignment - 1) / pieceAlignment * pieceAlignment; }

namespace {
/// A Piece is a part of a tensor in a round, and where it lies in the stage if it passes there.
struct Piece {
  size_t tensor;
  uint64_t offset, bytes, place;
};
using Round = std::vector<Piece>;

/// A Part is where a tensor of a call lies, and whether its bytes are there.
struct Part {
  std::byte *data;
  /// True for one that NCCL reads and writes where it lies; others pass through the stage.
  bool isDirect;
  /// True for one that was never written, as far as that is known when the call is given. Others may read its memory.
  bool isLost;
};

/// A Word is a number in the host's memory by which the root of a broadcast says whether it has what it sends.
struct Word {
  uint32_t *value = nullptr;
  Fence lastUse;
};

class NcclCollectives final : public Collectives {
public:
  NcclCollectives(const NcclApi &api, DeviceRef device, std::shared_ptr<Transport> transport,
                  const CollectiveOptions &options, const NcclId &id);
  ~NcclCollectives() override;

  int rank() const override { return transport_->rank(); }
  int ranks() const override { return transport_->ranks(); }
  uint64_t bucketBytes() const override { return options_.bucketBytes; }
  CollectiveFigures figures() const override;
  uint64_t memoryFor(std::span<const std::vector<uint64_t>> calls) const override { return 0; }

  Fence allReduce(std::span<const Tensor> tensors) override;
  Fence reduce(std::span<const Tensor> tensors, int root) override;
  Fence broadcast(std::span<const Tensor> tensors, int root) override;
  Fence reduceScatter(const Tensor &whole, const Tensor &part) override;
  Fence allGather(const Tensor &part, const Tensor &whole) override;
  Fence send(const Tensor &tensor, int to) override { return host_->send(tensor, to); }
  Fence receive(const Tensor &tensor, int from) override { return host_->receive(tensor, from); }
  std::vector<std::string> exchange(std::string_view what, std::string_view message) override {
    return host_->exchange(what, message);
  }
  std::shared_ptr<Collectives> twin(DeviceRef device) const override;
  void abandon(std::string_view why) noexcept override {
    host_->abandon(why);
    communicator_->fail("rank " + std::to_string(rank()) + " has given up: " + std::string(why));
  }

private:
  using Tensors = std::span<const Tensor>;

  std::vector<Round> roundsOf(Tensors tensors, uint64_t unit) const;
  std::vector<Part> partsOf(Tensors tensors) const;
  void giveRounds(Tensors tensors, const char *what, bool isRead, bool isWritten,
                  const std::function<ncclResult_t(ncclComm_t, CUstream, std::byte *, uint64_t)> &call, Work &work);
  Fence perform(const char *label, Tensors read, Tensors written, const RingTraffic &traffic, Work work,
                const std::shared_ptr<const std::optional<Error>> &lack = nullptr);
  void giveParts(uint64_t bytes, const char *what, const std::function<void(uint64_t done, uint64_t piece)> &bring,
                 const std::function<ncclResult_t(ncclComm_t, CUstream, std::byte *single, uint64_t piece)> &call,
                 const std::function<void(uint64_t done, uint64_t piece)> &take, Work &work);
  void give(Communicator &communicator, const char *what,
            const std::function<ncclResult_t(ncclComm_t, CUstream)> &calls);
  void copy(void *to, const void *from, uint64_t bytes) { device_->copy(to, from, bytes); }
  std::byte *stage() const { return static_cast<std::byte *>(stage_.data); }
  /// Returns where the part of this rank alone lies in the stage, behind those of all ranks.
  std::byte *singleOf(uint64_t piece) const { return stage() + inPieces(uint64_t(ranks()) * piece); }
  void loseNumbers(std::byte *data, uint64_t bytes);
  Word &takeWord();
  void warmUp();
  void countMemory(uint64_t freeBefore);
  uint64_t freeOfDriver() const;
  void release() noexcept;

  const NcclApi &api_;
  DeviceRef device_;
  GpuHolder &gpu_;
  std::shared_ptr<Transport> transport_;
  CollectiveOptions options_;
  /// The operations that go by way of the host.
  std::shared_ptr<Collectives> host_;
  std::shared_ptr<Communicator> communicator_;
  uint64_t stageBytes_;
  /// The stage, with a word for broadcasts behind it.
  MemoryBlock stage_, words_, counted_;
  uint64_t countedBytes_ = 0;
  Space wordSpace_ = Space::HostPinned;
  std::array<Word, wordCount> word_;
  size_t nextWord_ = 0;
  CollectiveFigures figures_;
};
} // namespace

//===----------------------------------------------------------------------===//
// Beginning and ending
//===----------------------------------------------------------------------===//

static GpuHolder &gpuOf(const DeviceRef &device) { return dynamic_cast<GpuHolder &>(*device); }

NcclCollectives::NcclCollectives(const NcclApi &api, DeviceRef device, std::shared_ptr<Transport> transport,
                                 const CollectiveOptions &options, const NcclId &id)
    : api_(api), device_(std::move(device)), gpu_(gpuOf(device_)), transport_(std::move(transport)),
      options_(options), host_(makeCollectives(device_, transport_, options_)),
      stageBytes_(inPieces(std::clamp(options_.bucketBytes, pieceAlignment * uint64_t(ranks() + 1), mostStageBytes))) {
  DeviceMemory &memory = device_->memory();
  OwnerId owner = memory.intern({.value = std::string(messageOwner)});
  try {
    stage_ = memory.allocate(Space::DeviceDram, stageBytes_ + pieceAlignment, uint32_t(pieceAlignment), owner);
    words_ = memory.tryAllocate(Space::HostPinned, wordCount * wordStride, wordStride, owner);
    if (!words_.data)
      words_ = memory.allocate(wordSpace_ = Space::Host, wordCount * wordStride, wordStride, owner);
    for (size_t i = 0; i < wordCount; ++i)
      word_[i].value = reinterpret_cast<uint32_t *>(static_cast<std::byte *>(words_.data) + i * wordStride);
    Fence after = stage_.after;
    after.join(words_.after);
    device_->wait(after);
    uint64_t before = freeOfDriver();
    communicator_ = std::make_shared<Communicator>(api_, gpu_.context(), transport_, id);
    warmUp();
    countMemory(before);
  } catch (...) {
    release();
    throw;
  }
}

NcclCollectives::~NcclCollectives() { release(); }

void NcclCollectives::release() noexcept {
  try {
    device_->wait(Fence(Queue::Network, device_->position(Queue::Network)));
  } catch (const std::exception &) { // of a lost device nothing is under way any more
  }
  communicator_ = nullptr;
  DeviceMemory &memory = device_->memory();
  if (counted_.data)
    gpu_.countNoMore(counted_, countedBytes_);
  if (words_.data)
    memory.free(wordSpace_, words_.data, wordCount * wordStride, wordStride, words_.account, {});
  if (stage_.data)
    memory.free(Space::DeviceDram, stage_.data, stageBytes_ + pieceAlignment, uint32_t(pieceAlignment),
                stage_.account, {});
}

uint64_t NcclCollectives::freeOfDriver() const {
  const Context &context = *gpu_.context();
  size_t free = 0, total = 0;
  context.use();
  context.check(context.api().memInfo(&free, &total), "cuMemGetInfo");
  return free;
}

/// Takes each kind of call once: NCCL makes its connections, and takes the memory for them, with the first.
void NcclCollectives::warmUp() {
  Work work;
  work.label = "NCCL begins";
  work.run = [this] {
    give(*communicator_, "the first calls", [this](ncclComm_t all, CUstream stream) {
      ncclResult_t result = api_.allReduce(stage(), stage(), 1, ncclFloats, ncclAdd, all, stream);
      if (isGiven(result))
        result = api_.broadcast(stage(), stage(), 4, ncclBytes, 0, all, stream);
      return isGiven(result) ? api_.reduce(stage(), stage(), 1, ncclFloats, ncclAdd, 0, all, stream) : result;
    });
  };
  std::exception_ptr failed;
  work.ended = [&failed](const Error *error) {
    if (error)
      failed = std::make_exception_ptr(*error);
  };
  device_->wait(Fence(Queue::Network, device_->enqueue(Queue::Network, {}, std::move(work))));
  if (failed)
    std::rethrow_exception(failed);
  if (std::optional<Error> error = communicator_->failure("the first calls"))
    throw *error;
}

void NcclCollectives::countMemory(uint64_t freeBefore) {
  uint64_t free = freeOfDriver();
  countedBytes_ = MappedMemory::inChunks(freeBefore - std::min(free, freeBefore));
  if (!countedBytes_)
    return;
  try {
    counted_ = gpu_.countForLibrary(countedBytes_, ncclOwner);
  } catch (const Error &error) {
    throw error.within("NCCL has taken " + std::to_string(countedBytes_) +
                       " bytes of the GPU for itself, which count; give a larger budget, or have messages go by way "
                       "of the host");
  }
}

CollectiveFigures NcclCollectives::figures() const {
  CollectiveFigures figures = host_->figures();
  figures.messages += figures_.messages;
  figures.sentBytes += figures_.sentBytes;
  return figures;
}

std::shared_ptr<Collectives> NcclCollectives::twin(DeviceRef device) const {
  CollectiveOptions options = options_;
  options.wires = {.bytesPerSecond = std::numeric_limits<double>::infinity(), .latencySeconds = 0};
  options.areDirect = true;
  options.group = nullptr;
  return virtualRanks(std::move(device), rank(), ranks(), options);
}

//===----------------------------------------------------------------------===//
// A call
//===----------------------------------------------------------------------===//

/// Cuts tensors into rounds that fit into the stage, by their sizes alone. A piece has a multiple of `unit` bytes.
std::vector<Round> NcclCollectives::roundsOf(Tensors tensors, uint64_t unit) const {
  uint64_t most = stageBytes_ / unit * unit;
  std::vector<Round> rounds;
  uint64_t taken = most;
  for (size_t i = 0; i < tensors.size(); ++i) {
    uint64_t whole = tensors[i].desc().spanBytes();
    for (uint64_t offset = 0; offset < whole;) {
      if (taken + pieceAlignment > most) {
        rounds.emplace_back();
        taken = 0;
      }
      uint64_t bytes = std::min(whole - offset, (most - taken) / unit * unit);
      rounds.back().push_back({i, offset, bytes, taken});
      taken = inPieces(taken + bytes);
      offset += bytes;
    }
  }
  return rounds;
}

std::vector<Part> NcclCollectives::partsOf(Tensors tensors) const {
  std::vector<Part> parts;
  for (const Tensor &tensor : tensors) {
    bool isLost = tensor.storage()->failure() != nullptr;
    parts.push_back({tensor.bytes(), !isLost && device_->computesOn(tensor.bytes()), isLost});
  }
  return parts;
}

/// Writes NaN of every float, which a sum has where a rank has nothing.
void NcclCollectives::loseNumbers(std::byte *data, uint64_t bytes) {
  gpu_.streams().give([&](CUstream stream) {
    const Context &context = *gpu_.context();
    context.check(context.api().fill8(reinterpret_cast<CUdeviceptr>(data), 0xff, bytes, stream), "cuMemsetD8Async");
  });
}

/// Runs the body of a call. One that fails ends the communicator, as the others are in the midst of it.
template <typename Body> static void orFail(Communicator &communicator, Body body) {
  try {
    body();
  } catch (const std::exception &error) {
    communicator.fail(error.what());
    throw;
  }
}

/// Gives calls to the stream of the body as a group.
void NcclCollectives::give(Communicator &communicator, const char *what,
                           const std::function<ncclResult_t(ncclComm_t, CUstream)> &calls) {
  gpu_.streams().give([&](CUstream stream) {
    communicator.give(stream, what, [&](ncclComm_t all) { return calls(all, stream); });
  });
}

/// Has the body of `work` give `call` for each piece, with where it lies on the device: the tensors' own memory, or the
/// stage, which those on the host are brought to if the call reads them, and taken from if it writes them.
void NcclCollectives::giveRounds(
    Tensors tensors, const char *what, bool isRead, bool isWritten,
    const std::function<ncclResult_t(ncclComm_t, CUstream, std::byte *, uint64_t)> &call, Work &work) {
  work.run = [this, communicator = communicator_, rounds = roundsOf(tensors, sizeof(float)), parts = partsOf(tensors),
              what, isRead, isWritten, call, before = std::move(work.run)] {
    orFail(*communicator, [&] {
      if (before)
        before();
      for (const Round &round : rounds) {
        auto place = [&](const Piece &piece) {
          const Part &part = parts[piece.tensor];
          return part.isDirect ? part.data + piece.offset : stage() + piece.place;
        };
        for (const Piece &piece : round) {
          const Part &part = parts[piece.tensor];
          if (isRead && part.isLost)
            loseNumbers(place(piece), piece.bytes);
          else if (isRead && !part.isDirect)
            copy(place(piece), part.data + piece.offset, piece.bytes);
        }
        give(*communicator, what, [&](ncclComm_t all, CUstream stream) {
          ncclResult_t result = ncclOk;
          for (const Piece &piece : round)
            if (isGiven(result))
              result = call(all, stream, place(piece), piece.bytes);
          return result;
        });
        for (const Piece &piece : round)
          if (const Part &part = parts[piece.tensor]; isWritten && !part.isDirect)
            copy(part.data + piece.offset, place(piece), piece.bytes);
      }
    });
  };
}

/// Appends `work` to the queue. Its tensors fail with it, and those that are written where what it reads was never
/// there, or where `lack` says so when it has ended.
Fence NcclCollectives::perform(const char *label, Tensors read, Tensors written, const RingTraffic &traffic,
                               Work work, const std::shared_ptr<const std::optional<Error>> &lack) {
  Fence after;
  std::vector<std::shared_ptr<Outcome>> sources, results;
  for (const Tensor &tensor : read) {
    after.join(tensor.storage()->writes());
    sources.push_back(tensor.storage()->outcome());
  }
  for (const Tensor &tensor : written) {
    after.join(tensor.storage()->uses());
    results.push_back(tensor.storage()->outcome());
  }
  work.label = label;
  work.cost.linkBytes = traffic.sentBytes;
  work.ended = [ended = std::move(work.ended), communicator = communicator_, sources, results, label,
                lack](const Error *error) {
    if (ended)
      ended(error);
    std::optional<Error> why = communicator->failure(label);
    if (!why && error)
      why.emplace(*error);
    for (const auto &source : sources)
      if (const Error *lost = source->error(); lost && !why)
        why.emplace(*lost);
    if (!why && lack && *lack)
      why.emplace(**lack);
    for (const auto &result : results)
      if (why && !result->error())
        result->fail(why->within(label));
  };
  traceMessage(*device_, work, traffic.sentBytes);
  ++figures_.messages;
  figures_.sentBytes += traffic.sentBytes;
  Fence fence(Queue::Network, device_->enqueue(Queue::Network, after, std::move(work)));
  for (const Tensor &tensor : read)
    tensor.storage()->addRead(fence);
  for (const Tensor &tensor : written)
    tensor.storage()->addWrite(fence);
  return fence;
}

static uint64_t bytesOf(std::span<const Tensor> tensors) {
  uint64_t bytes = 0;
  for (const Tensor &tensor : tensors)
    bytes += tensor.desc().spanBytes();
  return bytes;
}

//===----------------------------------------------------------------------===//
// The operations
//===----------------------------------------------------------------------===//

Fence NcclCollectives::allReduce(Tensors tensors) {
  for (const Tensor &tensor : tensors)
    requireMessage(device_, "a sum over ranks", tensor, /*isSum=*/true);
  Work work;
  giveRounds(
      tensors, "a sum over ranks", /*isRead=*/true, /*isWritten=*/true,
      [&api = api_](ncclComm_t all, CUstream stream, std::byte *data, uint64_t bytes) {
        return api.allReduce(data, data, bytes / sizeof(float), ncclFloats, ncclAdd, all, stream);
      },
      work);
  return perform("a sum over ranks", tensors, tensors, RingTraffic::sum(bytesOf(tensors), ranks()), std::move(work));
}

Fence NcclCollectives::reduce(Tensors tensors, int root) {
  requireRank(root, ranks());
  for (const Tensor &tensor : tensors)
    requireMessage(device_, "a sum for one rank", tensor, /*isSum=*/true);
  Work work;
  giveRounds(
      tensors, "a sum for one rank", /*isRead=*/true, /*isWritten=*/root == rank(),
      [&api = api_, root](ncclComm_t all, CUstream stream, std::byte *data, uint64_t bytes) {
        return api.reduce(data, data, bytes / sizeof(float), ncclFloats, ncclAdd, root, all, stream);
      },
      work);
  // NCCL reads what the others have, and writes it nowhere.
  return perform("a sum for one rank", tensors, root == rank() ? tensors : Tensors(),
                 RingTraffic::reduction(bytesOf(tensors), ranks()), std::move(work));
}

Word &NcclCollectives::takeWord() {
  Word &word = word_[nextWord_++ % wordCount];
  device_->wait(word.lastUse); // of a broadcast so many calls ago
  return word;
}

Fence NcclCollectives::broadcast(Tensors tensors, int root) {
  requireRank(root, ranks());
  for (const Tensor &tensor : tensors)
    requireMessage(device_, "a broadcast", tensor, /*isSum=*/false);
  bool isRoot = root == rank();
  Word &word = takeWord();
  *word.value = 0;
  std::vector<std::shared_ptr<Outcome>> outcomes;
  for (const Tensor &tensor : tensors)
    if (isRoot)
      outcomes.push_back(tensor.storage()->outcome());
  // Whether the root has it is said by a word that goes ahead.
  std::byte *shared = stage() + stageBytes_;
  auto lack = std::make_shared<std::optional<Error>>();
  Work work;
  work.run = [this, communicator = communicator_, outcomes, value = word.value, shared, root, isRoot] {
    if (isRoot) {
      device_->call([outcomes, value] {
        *value = std::ranges::none_of(outcomes, [](const auto &outcome) { return outcome->error(); });
      });
      copy(shared, value, sizeof(uint32_t));
    }
    give(*communicator, "a broadcast", [&](ncclComm_t all, CUstream stream) {
      return api_.broadcast(shared, shared, sizeof(uint32_t), ncclBytes, root, all, stream);
    });
    if (!isRoot)
      copy(value, shared, sizeof(uint32_t));
  };
  work.ended = [value = word.value, lack, root, isRoot](const Error *error) {
    if (!error && !isRoot && !*value)
      lack->emplace(notThere(root));
  };
  giveRounds(
      tensors, "a broadcast", /*isRead=*/isRoot, /*isWritten=*/!isRoot,
      [&api = api_, root](ncclComm_t all, CUstream stream, std::byte *data, uint64_t bytes) {
        return api.broadcast(data, data, bytes, ncclBytes, root, all, stream);
      },
      work);
  RingTraffic traffic = RingTraffic::broadcast(sizeof(uint32_t), ranks()) +
                        RingTraffic::broadcast(bytesOf(tensors), ranks());
  Fence done = perform("a broadcast", isRoot ? tensors : Tensors(), isRoot ? Tensors() : tensors, traffic,
                       std::move(work), lack);
  word.lastUse = done;
  return done;
}

/// Has the body of `work` sum or gather parts of `bytes` by way of the stage, wherever tensors lie, since the parts of
/// a piece lie apart in the whole: it brings what the call reads to the stage, and takes what it writes from there.
void NcclCollectives::giveParts(
    uint64_t bytes, const char *what, const std::function<void(uint64_t, uint64_t)> &bring,
    const std::function<ncclResult_t(ncclComm_t, CUstream, std::byte *, uint64_t)> &call,
    const std::function<void(uint64_t, uint64_t)> &take, Work &work) {
  work.run = [=, this, communicator = communicator_] {
    orFail(*communicator, [&] {
      uint64_t most = stageBytes_ / uint64_t(ranks() + 1) / pieceAlignment * pieceAlignment;
      for (uint64_t done = 0, piece; done < bytes; done += piece) {
        piece = std::min(most, bytes - done);
        bring(done, piece);
        give(*communicator, what,
             [&](ncclComm_t all, CUstream stream) { return call(all, stream, singleOf(piece), piece); });
        take(done, piece);
      }
    });
  };
}

Fence NcclCollectives::reduceScatter(const Tensor &whole, const Tensor &part) {
  requireMessage(device_, "a scattered sum", whole, /*isSum=*/true);
  requireMessage(device_, "a scattered sum", part, /*isSum=*/true);
  requireParts(whole, part, ranks());
  auto count = uint64_t(ranks());
  uint64_t bytes = part.desc().spanBytes();
  Work work;
  giveParts(
      bytes, "a scattered sum",
      [this, from = partsOf(std::span(&whole, 1)).front(), bytes, count](uint64_t done, uint64_t piece) {
        for (uint64_t rank = 0; rank < count; ++rank)
          from.isLost ? loseNumbers(stage() + rank * piece, piece)
                      : copy(stage() + rank * piece, from.data + rank * bytes + done, piece);
      },
      [this](ncclComm_t all, CUstream stream, std::byte *single, uint64_t piece) {
        return api_.reduceScatter(stage(), single, piece / sizeof(float), ncclFloats, ncclAdd, all, stream);
      },
      [this, to = part.bytes()](uint64_t done, uint64_t piece) { copy(to + done, singleOf(piece), piece); }, work);
  return perform("a scattered sum", std::span(&whole, 1), std::span(&part, 1),
                 RingTraffic::scatteredSum(bytes * count, ranks()), std::move(work));
}

Fence NcclCollectives::allGather(const Tensor &part, const Tensor &whole) {
  requireMessage(device_, "a gathering", whole, /*isSum=*/false);
  requireMessage(device_, "a gathering", part, /*isSum=*/false);
  requireParts(whole, part, ranks());
  auto count = uint64_t(ranks());
  uint64_t bytes = part.desc().spanBytes();
  Work work;
  giveParts(
      bytes, "a gathering",
      [this, from = partsOf(std::span(&part, 1)).front()](uint64_t done, uint64_t piece) {
        from.isLost ? loseNumbers(singleOf(piece), piece) : copy(singleOf(piece), from.data + done, piece);
      },
      [this](ncclComm_t all, CUstream stream, std::byte *single, uint64_t piece) {
        return api_.allGather(single, stage(), piece, ncclBytes, all, stream);
      },
      [this, to = whole.bytes(), bytes, count](uint64_t done, uint64_t piece) {
        for (uint64_t rank = 0; rank < count; ++rank)
          copy(to + rank * bytes + done, stage() + rank * piece, piece);
      },
      work);
  return perform("a gathering", std::span(&part, 1), std::span(&whole, 1),
                 RingTraffic::gathering(bytes * count, ranks()), std::move(work));
}

std::shared_ptr<Collectives> ncclCollectives(const NcclApi &api, DeviceRef device,
                                             std::shared_ptr<Transport> transport, const CollectiveOptions &options,
                                             const NcclId &id) {
  return std::make_shared<NcclCollectives>(api, std::move(device), std::move(transport), options, id);
}

} // namespace segue::inline runtime::cuda
