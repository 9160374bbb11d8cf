//===- PreparedProgram.h - a program made ready for a device ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The commands of a verified program as a flat list of operations: kernels
// found, library calls planned, copies planned, operands as slot and offset, and
// beside each operation what it must wait for and which storages it is done
// with. Kept by the binary's image, one per device.
//
//   slots       inputs, outputs, arenas and constants in one numbering
//   operations  what is queued, in order, and the events between
//   input plans what became of the last tensor seen at each input, so that the
//               same description is not looked at twice
//   kept        arenas and small outputs of earlier runs that serve again
//   runs        the state of submits that are queued or under way
//
// The holder of the device's lane (SubmitLane.h) alone runs it. Preparing is in
// PreparedProgram.cpp and PrepareCommands.cpp, a submit in RunProgram.cpp, what
// it checks in CheckInputs.cpp, what a queue runs in PerformCommand.cpp; outputs
// change their layout for their readers in RetargetOutput.cpp, what commands take is in
// CommandTimer.cpp.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_PROGRAM_PREPAREDPROGRAM_H
#define SEGUE_LIB_PROGRAM_PREPAREDPROGRAM_H

#include "BinaryImage.h"
#include "SubmitLane.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Program/BlockUses.h"
#include "segue/runtime/Program/CommandTimer.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <deque>
#include <variant>

namespace segue::inline runtime {

class PreparedProgram : public std::enable_shared_from_this<PreparedProgram> {
public:
  PreparedProgram(DeviceRef device, const BinaryImage &image, size_t program);
  /// Waits for what is queued, since its code is unmapped with the binary.
  ~PreparedProgram();

  /// The owner of a submit's tensors afterwards.
  enum class Given : bool {
    /// Tensors stay the caller's, except those marked by donate().
    Lent,
    /// Tensors are nobody's: each may be overwritten or freed as soon as it is not needed.
    Away
  };

  /// Runs one submit. Until the first operation is queued nothing has changed and every
  /// tensor is the caller's; afterwards given tensors are null.
  void run(const Program &program, std::span<Tensor> inputs, std::span<Tensor> outputs, Given given, EventSink *events);

  const BinaryImage &image() const { return image_; }
  SubmitCounters counters() const;
  /// Forget, and return, what commands have taken while they were timed. Any thread may call.
  void forgetTimes();
  ProgramTimes times() const;

  /// Returns the bytes of storages that are kept for the next run and that nobody uses now.
  uint64_t droppableBytes(Space space) const;
  /// Gives such storages up; returns the bytes freed.
  uint64_t dropKept(Space space);
  /// Returns true if nothing waits for a run to end. False while another thread submits to the device. Any thread may
  /// call.
  bool isIdle();

private:
  //===--------------------------------------------------------------------===//
  // Operations
  //===--------------------------------------------------------------------===//

  /// A place in a slot.
  struct Operand {
    uint32_t slot = 0;
    uint64_t offset = 0;
    /// True if the optional operand is absent: the command gets null.
    bool absent = false;
  };
  struct LaunchOp {
    /// The kernel; null on a device without bytes, which never launches it.
    KernelRef kernel;
    int64_t range, grain;
    int threads;
  };
  struct MatmulOp {
    std::shared_ptr<const MatmulPlan> plan;
  };
  /// A product with codes. `scales` and `zeroPoints` are offsets in bytes behind the first
  /// code; there are no zero points if `zeroPoints` is 0.
  struct FusedMatmulOp {
    std::shared_ptr<const QuantizedMatmulPlan> plan;
    uint64_t scales, zeroPoints;
  };
  struct AttentionOp {
    std::shared_ptr<const AttentionPlan> plan;
  };
  struct AttentionGradOp {
    std::shared_ptr<const AttentionGradPlan> plan;
  };
  struct LibraryOp {
    std::shared_ptr<const LibraryPlan> plan;
  };
  struct CopyOp {
    std::shared_ptr<const CopyPlan> plan;
  };
  /// A copy with an end in the host's memory, which the transfer engine makes.
  struct TransferOp {
    /// The views, where their buffers lay in the last run. As a rule they lie there again,
    /// and no description is made.
    std::shared_ptr<const TensorDesc> source, target;
    std::shared_ptr<const TransferConsumer> consumer;
  };
  struct FillOp {
    uint64_t bytes, pattern;
    uint32_t patternBytes;
  };
  /// A range of `marks_`.
  struct MarkRange {
    uint32_t begin = 0, end = 0;
  };
  struct Op {
    /// The command in the file, which outlives it.
    const schema::Command *command = nullptr;
    std::variant<LaunchOp, MatmulOp, FusedMatmulOp, AttentionOp, AttentionGradOp, LibraryOp, CopyOp, FillOp, TransferOp>
        body;
    /// The number of its command, of all programs of the process; another one where it is planned anew.
    uint64_t number = 0;
    /// The range of operands_, and of the arguments of a run.
    uint32_t firstOperand = 0, operandCount = 0;
    /// The first operand that is written; all behind it are written too.
    uint32_t firstWritten = 0;
    int32_t location = -1;
    WorkCost cost;
    /// The name of the operation, "gelu_3" or "matmul", which lives as long as the device.
    std::string_view label;
    MarkRange before, after;
    /// The range of blocks_.results that are final with it.
    MarkRange results;
    // Guarded by timesMutex_.
    double seconds = 0;
    uint64_t calls = 0;
  };
  struct Event {
    schema::CommandBody kind;
    /// The index of an input, output or phase, or the block's place in blocks_.
    uint32_t index;
    std::string_view block;
  };
  /// An operation, or an event where `op` is null.
  struct Step {
    Op *op = nullptr;
    uint32_t event = 0;
  };

  /// A kind of mark. Operations of one queue run in order, so that a storage is waited for
  /// at the first operation that touches it, and is told at the last. Place: an output
  /// whose memory was left for later is needed now.
  enum class MarkKind : uint8_t { Place, WaitForWrites, WaitForUses, NoteRead, NoteWrite, Drop };
  struct Mark {
    MarkKind kind;
    uint32_t slot;
  };

  //===--------------------------------------------------------------------===//
  // Signature
  //===--------------------------------------------------------------------===//

  /// An input as the plan knows it, and what became of the last tensor there.
  struct InputPlan {
    const TensorDesc *wanted = nullptr;
    uint64_t wantedHash = 0;
    uint64_t bytes = 0;
    /// True if it is written in place: it has a required alias.
    bool writtenInPlace = false;
    /// True if the program has a restore command for it.
    bool restored = false;
    /// True if it is BlockUses::streamable.
    bool streamable = false;
    /// The output with a required alias to it, or -1.
    int32_t outputInPlace = -1;
    /// True if the sink of this submit brings it when a block needs it.
    bool deferred = false;
    /// True if it is trained or frozen: a converted copy serves again.
    bool isParameter = false;
    const StitchEnd *end = nullptr;
    std::shared_ptr<const TransferConsumer> consumer;

    // The memo.
    std::shared_ptr<const TensorDesc> given;
    const TensorOrigin *origin = nullptr;
    bool inPlace = false;
    StitchReport::Counters *edge = nullptr;
  };
  struct OutputPlan {
    std::shared_ptr<const TensorDesc> desc;
    uint64_t descHash = 0, bytes = 0;
    OwnerId owner = 0;
    TensorOrigin *origin = nullptr;
    /// The number of times that it changed its layout for its readers.
    size_t retargets = 0;
    /// True if the first command that touches it takes its memory. That is so where a sink
    /// watches: what a sink has freed by then serves it.
    bool late = false;
    /// True if it is small enough to be kept for the next run; and what is kept.
    bool keeps = false;
    Tensor kept;
  };
  struct ArenaPlan {
    Space space;
    uint64_t bytes;
    uint32_t alignment;
    OwnerId owner = 0;
    bool keeps = false;
    std::shared_ptr<Storage> kept;
  };

  //===--------------------------------------------------------------------===//
  // Runs
  //===--------------------------------------------------------------------===//

  struct Slot {
    /// The storage; null for constants in the file's own memory.
    Storage *storage = nullptr;
    uint64_t offset = 0;
    std::byte *base = nullptr;

    std::byte *data() const { return storage ? storage->data() + offset : base; }
  };
  /// A submit. The queue's thread reads what `args` and `outcomes` hold once an
  /// operation is queued; the rest belongs to the submitting thread.
  struct Run {
    PreparedProgram *owner = nullptr;
    bool underWay = false;
    /// The fence of its last operation.
    Fence done;
    std::vector<Slot> slots;
    /// For each input, its converted copy, or what a sink gave; for each output whose
    /// tensor's place a sink took, the tensor that the commands write.
    std::vector<Tensor> held, heldOutputs;
    /// The outputs as they were placed.
    std::vector<Tensor> placed;
    std::vector<std::shared_ptr<Storage>> arenas;
    /// Addresses by operand, as they were when the operation was queued.
    std::vector<void *> args;
    /// The outcome of each slot; null where nothing can fail.
    std::vector<std::shared_ptr<Outcome>> outcomes;
    std::atomic<bool> failed{false};
    /// Guards that outputs get their outcomes while the queue may fail them all.
    std::mutex lateMutex;
    std::optional<Error> failure;
    /// The number of inputs in place that are not counted yet.
    uint64_t elided = 0;
    /// True if the sink wants what blocks give.
    bool tellsResults = false;
    /// True if somebody besides the program's commands looks at temporaries.
    bool watchesArenas = false;
  };

  // Preparing.
  void readSignature();
  void placeConstants();
  void prepare(const schema::Command &command);
  static uint64_t nextNumber();
  void prepareLaunch(const schema::Launch &launch, Op &op);
  static MatmulSpec matmulSpec(const schema::Matmul &matmul);
  static QuantizedMatmulSpec fusedSpec(const schema::Matmul &matmul);
  FusedMatmulOp planFused(const QuantizedMatmulSpec &spec);
  void prepareMatmul(const schema::Matmul &matmul, Op &op);
  template <typename Table> AttentionSpec attentionSpec(const Table &attention);
  void prepareAttention(const schema::Attention &attention, Op &op);
  AttentionGradSpec attentionGradSpec(const schema::AttentionGrad &attention);
  void prepareAttentionGrad(const schema::AttentionGrad &attention, Op &op);
  void prepareLibraryCall(const schema::LibraryCall &call, Op &op);
  void prepareCopy(const schema::ToLayout &copy, Op &op);
  Space spaceOf(uint32_t buffer) const;
  void prepareFill(const schema::Fill &fill, Op &op);
  Operand operandOf(uint32_t buffer, uint64_t offset = 0) const;
  void addOperand(Op &op, const schema::View *view);
  void addEvent(schema::CommandBody kind, uint32_t index, std::string_view block = {});
  void markSteps();
  void markResults();
  // Writing outputs as their readers want them.
  void answerDemand();
  void retarget(size_t output, const std::shared_ptr<const TensorDesc> &desc);
  Step *writerOf(size_t output);
  bool isRewritten(size_t output, const TensorDesc &desc) const;
  bool keepsNumbers(size_t output, const TensorDesc &desc);
  void rewrite(Op &op, size_t output, const TensorDesc &desc);
  [[noreturn]] void refuse(const std::string &which, const TensorDesc &desc) const;

  // Checking inputs.
  std::string inputText(size_t input) const;
  void checkInputs(const Program &program, std::span<const Tensor> inputs, EventSink *events);
  void checkInput(size_t index, const Tensor &tensor, bool deferRestored);
  void resolveInput(size_t index, const Tensor &tensor);

  // A submit.
  Run &takeRun();
  void alignInput(Run &run, size_t input, const Tensor &tensor);
  Alignment convertInput(size_t input, Tensor &tensor);
  void countElided(Run &run);
  void freeUnretained(Run &run, Storage &storage);
  std::shared_ptr<Storage> placeArena(ArenaPlan &arena);
  Tensor placeOutput(size_t output, const Tensor *replaced, bool keeps);
  /// Waits, where all else is done at once, for what other ranks still read or write of a tensor.
  void awaitRanks(const Storage &storage);
  void placeOutputs(Run &run, std::span<Tensor> inputs, std::span<Tensor> outputs, Given given, bool watched);
  void startOutput(Run &run, size_t output, std::span<Tensor> outputs);
  Error failureOf(size_t output, const Error &error) const;
  void placeLateOutputs(Run &run, const Op &op, std::span<Tensor> outputs);
  void setSlot(Run &run, uint32_t slot, const Tensor &tensor);
  void runSteps(Run &run, const Program &program, std::span<Tensor> inputs, std::span<Tensor> outputs, Given given,
                EventSink *events);
  void enqueue(Run &run, Op &op);
  void enqueueTransfer(Run &run, Op &op, std::span<Tensor> inputs);
  Tensor tensorAt(const Run &run, const Operand &operand, std::shared_ptr<const TensorDesc> &desc,
                  std::span<Tensor> inputs) const;
  void applyAfter(const Op &op, Run &run, std::span<Tensor> inputs, Given given, const Fence &fence);
  void handleEvent(Run &run, const Event &event, const Program &program, std::span<Tensor> inputs,
                   std::span<Tensor> outputs, Given given, EventSink *events);
  /// Hands an output over that is final: `tell` may put another tensor in its place.
  /// `Final` is event::Save or event::Output.
  template <typename Final>
  void handOver(Run &run, uint32_t output, const Program &program, Tensor &tensor, EventSink &events);
  void handleRestore(Run &run, uint32_t input, const Program &program, Tensor &tensor, bool givenAway,
                     EventSink &events);
  void tellResults(Run &run, const Op &op, const Program &program, EventSink &events);
  void takeLate(Run &run, uint32_t input, Tensor value);
  void beginBlock(Run &run, const Event &event, const Program &program, std::span<Tensor> inputs, EventSink &events);
  void endBlock(Run &run, const Event &event, const Program &program, std::span<Tensor> inputs,
                std::span<Tensor> outputs, Given given, EventSink &events);
  void abandon(Run &run, const Error &error, std::span<Tensor> outputs) noexcept;
  void release(Run &run) noexcept;

  // These perform what queues run.
  void perform(const Op &op, void *const *args);
  void performInline(Op &op, void *const *args);
  std::string labelOf(const Op &op) const;
  void noteCall(Op &op, double begin, double seconds);
  Work workOf(Run &run, Op &op);
  static bool mayBegin(Run &run, const Op &op) noexcept;
  static void giveQueued(Run &run, Op &op);
  static void endQueued(Run &run, const Op &op, const Error *error) noexcept;
  Error launchError(const Op &op, int64_t code) const;
  [[noreturn]] void failOnHost(const Op &op, uint32_t operand) const;
  void fail(Run &run, const Error &error, bool asItIs) noexcept;

  /// The number of a segment that stands for patterns_.
  static constexpr uint32_t patternSegment = UINT32_MAX;

  uint32_t inputSlot(size_t input) const { return uint32_t(input); }
  uint32_t outputSlot(size_t output) const { return uint32_t(inputs_.size() + output); }
  uint32_t arenaSlot(size_t arena) const { return uint32_t(inputs_.size() + outputs_.size() + arena); }
  uint32_t constantSlot(size_t constant) const { return arenaSlot(arenas_.size()) + uint32_t(constant); }

  DeviceRef deviceRef_;
  Device &device_;
  SubmitLane &lane_;
  TransferEngine &transfer_;
  const BinaryImage &image_;
  const ProgramInfo &info_;
  const bool inline_;

  std::vector<InputPlan> inputs_;
  std::vector<OutputPlan> outputs_;
  std::vector<ArenaPlan> arenas_;
  /// The constants, on the device or in the file.
  std::vector<Slot> constants_;
  std::vector<std::shared_ptr<Storage>> constantStorages_;
  std::map<uint32_t, uint32_t> constantOfSegment_;
  uint32_t slotCount_ = 0;
  BlockUses blocks_;
  /// While preparing, the blocks that are open, and the number of those that have begun.
  std::vector<uint32_t> openBlocks_;
  uint32_t blocksBegun_ = 0;
  /// True if some output can be written in several layouts; true if some command is a transfer.
  bool hasAlternatives_ = false, hasTransfers_ = false;

  /// The operations. One that was replaced stays, since it may be queued.
  std::deque<Op> ops_;
  std::vector<Event> events_;
  std::vector<Step> steps_;
  std::vector<Mark> marks_;
  std::vector<Operand> operands_;
  /// The bytes that fills write where the host cannot write the device's memory: 8 per
  /// pattern, in a constant of their own.
  std::vector<uint64_t> patterns_;

  /// The type of each result of blocks_ that is a temporary.
  std::vector<std::shared_ptr<const TensorDesc>> resultDescs_;

  std::deque<Run> runs_;

  std::atomic<uint64_t> submits_{0}, elided_{0}, converted_{0}, convertedBytes_{0}, donations_{0}, cacheHits_{0};
  mutable std::mutex timesMutex_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_PROGRAM_PREPAREDPROGRAM_H
