//===- StepTrace.h - training steps as a Perfetto trace ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An EventSink that writes what a session does as a trace that chrome://tracing
// and ui.perfetto.dev open: phases, blocks, one track per queue with every kernel
// and library call (its bytes, flops and line in the source), every copy
// (from which layout to which, for which program, where in the source) and every
// message to other ranks, and the live bytes of each space. Where there are ranks,
// `otherData.network` says how long messages take, and how much of it the device
// computes: while its compute queue is in a block.
//
//   StepTrace trace(device);
//   Session session(device, modules, {.events = &trace});
//   session.step(batch, lr);
//   trace.write("trace.json");
//
// Times are the device's: a phase or block lasts from when the compute queue
// comes to it until it comes to the next. Bytes are counted in the order of
// submits. It costs an entry of the compute queue per event and a record per
// kernel and copy, kept in memory until written, some 250 bytes each and beside any
// budget. So a trace ends with the step behind which it has `mostRecords`.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_REPORTS_STEPTRACE_H
#define SEGUE_RUNTIME_REPORTS_STEPTRACE_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Json.h"
#include "segue/runtime/Program/CommandTimer.h"
#include "segue/runtime/Program/Events.h"
#include "segue/runtime/Program/WorkingMemory.h"
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>

namespace segue::inline runtime {

/// The name of the instant that says who holds device_dram when a step holds the most.
inline constexpr const char *mostHeldLabel = "most held";

class StepTrace final : public EventSink {
public:
  /// Memory says what the trace notes of the memory at each event: the total of each space
  /// (Totals); or also the bytes of device_dram, and of the disk where there is one, by
  /// role (ByRole), which takes a walk over the books per event.
  ///
  /// With ByRole each step also has an instant "most held" at the event where device_dram holds the most: who holds it,
  /// with lines of the source, and the block that runs. The working memory of the program that runs is told by its values,
  /// those that it has where it needs the most (WorkingMemory.h).
  enum class Memory : uint8_t { Totals, ByRole };
  /// Says whether each kernel and library call is noted. A device of virtual time has none.
  enum class Commands : uint8_t { Left, Noted };

  /// The records that a trace has before it ends: some 50 MiB.
  static constexpr size_t usualRecords = 200000;

  /// Turns the device's records of copies on.
  explicit StepTrace(DeviceRef device, Memory memory = Memory::Totals, Commands commands = Commands::Noted,
                     size_t mostRecords = usualRecords);
  ~StepTrace() override;

  /// Turns noting on or off, copies included. The
  /// trace is on at first, and off for good when it has ended. Call it between steps.
  void setOn(bool on);
  /// Returns the number of steps after which the trace has ended, as it was full; empty while it has not.
  std::optional<uint64_t> endedAfter() const { return endedAfter_; }

  void receive(const Event &event) override;
  void on(const event::PhaseBegin &begin);
  void on(const event::Submit &submit);
  void on(const event::BlockBegin &begin);
  void on(const event::BlockEnd &end);
  void on(const event::Save &save);
  void on(const event::Restore &restore);

  /// Returns {"traceEvents":[…]} with all events so far, times
  /// in microseconds since the first. Waits for queued work.
  Json toJson();
  /// Writes what toJson returns into a file, without all of it in memory. Throws IoFailed.
  void write(const std::filesystem::path &path);

private:
  Json forEachEvent(const std::function<void(Json)> &give);

  /// One line of who holds the most.
  struct HeldLine {
    uint64_t bytes = 0;
    MemoryOwner owner;
    /// The line is a value of the working memory of a program, or what its values leave of it.
    bool isTemporary = false, isRest = false;
  };
  struct Most;

  /// Notes the time, and who holds memory. `running` is the program within which the event is; null between programs.
  size_t mark(const Program *running = nullptr);
  void noteMost(size_t mark, std::vector<MemoryHolder> holders, const Program *running);
  void closeSpans();
  void takeRecords();
  size_t records() const;
  std::vector<HeldLine> linesOf(const Most &most);
  void addWorkingMemory(const Program &program, HeldLine arena, std::vector<HeldLine> &lines);
  Json jsonOf(const HeldLine &line) const;
  std::string placeOf(std::string_view name) const;

  DeviceRef device_;
  Memory memory_;
  bool on_ = false;
  size_t mostRecords_;
  /// The steps that were noted, and the number of those behind which copies and commands are taken next.
  uint64_t steps_ = 0, takenAfter_ = 1;
  std::optional<uint64_t> endedAfter_;
  /// The times at which the compute queue came to each mark.
  std::vector<TimestampRef> marks_;
  struct Span {
    std::string track, name, program;
    size_t begin, end;
  };
  std::vector<Span> spans_;
  struct Level {
    size_t mark;
    Space space;
    uint64_t bytes;
  };
  std::vector<Level> levels_;
  /// Blocks that were put elsewhere than planned, counted at a mark.
  struct Displaced {
    size_t mark;
    AddressFigures figures;
  };
  std::vector<Displaced> displaced_;
  uint64_t lastDisplaced_ = 0;
  /// The bytes of a space by role, with the mark at which they were noted.
  struct Roles {
    size_t mark;
    Space space;
    std::map<std::string, uint64_t> bytes;
  };
  std::vector<Roles> roles_;
  /// The moment of a step at which device_dram holds the most.
  struct Most {
    size_t mark = 0;
    uint64_t bytes = 0;
    std::vector<MemoryHolder> holders;
    /// The innermost block that runs then, and its program; empty between blocks.
    std::string block, program;
    /// The program that runs then, which has all its working memory.
    std::optional<Program> running;
  };
  std::vector<Most> most_;
  /// The working memory of programs that run where a step holds the most; `most_` keeps the images of the keys alive.
  std::map<std::pair<const BinaryImage *, size_t>, std::vector<WorkingMemory>> working_;
  /// The first command of each module, "model.py:12:3 (h.0.fc)" by "h.0.fc"; the places of values, which are those of
  /// an .mlir file where no command says a module; and the programs that have been asked.
  std::map<std::string, std::string> modules_, values_;
  std::set<std::pair<const BinaryImage *, size_t>> asked_;
  /// The indices of spans that have not ended: the phase first, then blocks, the innermost last.
  std::vector<size_t> open_;
  std::vector<Json> copies_;
  /// Null where commands are left.
  std::unique_ptr<CommandSpans> commands_;
  std::vector<CommandSpan> spansOfCommands_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_REPORTS_STEPTRACE_H
