//===- PreparedProgram.cpp - what is decided once per program -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Signature, constants, and for each operation what it waits for and is done
// with. PrepareCommands.cpp makes the operations.
//
//===----------------------------------------------------------------------===//

#include "PreparedProgram.h"
#include "LackOfMemory.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Recomputation.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <cstring>

namespace segue::inline runtime {

/// The greatest sum of the arenas and outputs of one program that are kept for its next
/// run: small ones cost more to allocate than to compute.
static constexpr uint64_t keptBytes = 1 << 20;

PreparedProgram::PreparedProgram(DeviceRef device, const BinaryImage &image, size_t program)
    : deviceRef_(std::move(device)), device_(*deviceRef_), lane_(device_.lane()), transfer_(device_.transfer()),
      image_(image), info_(image.programs()[program]), inline_(device_.runsInline()) {
  readSignature();
  LackOfMemory lack;
  for (uint32_t i = 0; i < countOf(info_.table->commands()); ++i)
    lack.attempt([&] { prepare(*info_.table->commands()->Get(i)); });
  lack.throwIfAny();
  placeConstants();
  slotCount_ = constantSlot(constants_.size());
  markSteps();
  markResults();
  lane_.enlist(*this);
}

PreparedProgram::~PreparedProgram() {
  lane_.remove(*this);
  try {
    for (Run &run : runs_)
      device_.wait(run.done);
  } catch (...) { // a device that failed runs nothing any more
  }
}

//===----------------------------------------------------------------------===//
// Signature
//===----------------------------------------------------------------------===//

void PreparedProgram::refuse(const std::string &which, const TensorDesc &desc) const {
  throw Error(ErrorCode::Unsupported, image_.name() + ": program \"" + info_.name + "\", " + which + ": device \"" +
                                          device_.name() + "\" cannot hold " + desc.str() +
                                          "; compile for spaces that it has, or with device_dram as an alternative");
}

void PreparedProgram::readSignature() {
  const schema::Program &table = *info_.table;
  uint64_t room = info_.name.starts_with(recomputePrefix) ? 0 : keptBytes;
  auto keeps = [&](uint64_t bytes) {
    bool fits = bytes <= room;
    room -= fits ? bytes : 0;
    return fits;
  };
  auto endOf = [&](const Value &value) {
    return StitchEnd{image_.name(), info_.name, info_.interfaceHash, value.name, value.location};
  };
  auto ownerOf = [&](const std::string &value, const std::string &role, const std::string &location) {
    return device_.memory().intern(
        {.program = info_.name, .value = value, .role = role, .block = {}, .location = location});
  };
  // A space that the device lacks is refused unless the program can do without.
  auto checkSpaces = [&](const Value &value, const char *kind) {
    auto holds = [&](const TensorDesc &desc) { return device_.hasSpace(desc.layout.space); };
    if (!holds(value.desc()) &&
        std::ranges::none_of(value.alternatives, [&](const auto &desc) { return holds(*desc); }))
      refuse(std::string(kind) + " \"" + value.name + "\"", value.desc());
  };
  for (uint32_t i = 0; i < countOf(table.arenas()); ++i) {
    const schema::Arena &arena = *table.arenas()->Get(i);
    // Temporaries of L1 lie in DRAM where there is none: commands do not mind.
    Space space = Space(arena.space());
    if (space == Space::DeviceL1 && !device_.hasSpace(space))
      space = Space::DeviceDram;
    if (!device_.hasSpace(space))
      refuse("arena", TensorDesc({int64_t(arena.bytes())}, ElementType::i8, Layout{.space = space}));
    arenas_.push_back(
        {space, arena.bytes(), arena.alignment(), ownerOf("(arena)", "", ""), keeps(arena.bytes()), nullptr});
  }
  for (const Value &value : info_.inputs) {
    checkSpaces(value, "input");
    InputPlan plan;
    plan.wanted = &value.desc();
    plan.wantedHash = value.desc().hash();
    plan.bytes = value.desc().spanBytes();
    plan.isParameter = value.role == Role::Parameter || value.role == Role::Frozen;
    inputs_.push_back(std::move(plan));
  }
  for (uint32_t i = 0; i < info_.outputs.size(); ++i) {
    const Value &value = info_.outputs[i];
    checkSpaces(value, "output");
    OutputPlan plan;
    plan.desc = value.sharedDesc;
    if (plan.desc->layout.offset) {
      TensorDesc moved = *plan.desc;
      moved.layout.offset = 0;
      plan.desc = std::make_shared<const TensorDesc>(std::move(moved));
    }
    plan.descHash = value.desc().hash();
    plan.bytes = value.desc().spanBytes();
    plan.owner = ownerOf(value.name, std::string(name(value.role)), value.location);
    plan.keeps = keeps(plan.bytes);
    plan.origin = &lane_.report().addOrigin(endOf(value), i);
    plan.origin->demand.open = !value.alternatives.empty();
    hasAlternatives_ |= plan.origin->demand.open;
    plan.late = plan.desc->layout.space == Space::DeviceDram &&
                std::ranges::none_of(info_.aliases, [&](const Alias &alias) { return alias.output == i; });
    outputs_.push_back(std::move(plan));
  }
  for (const Alias &alias : info_.aliases)
    if (alias.required) {
      inputs_[alias.input].writtenInPlace = true;
      inputs_[alias.input].outputInPlace = int32_t(alias.output);
    }
  blocks_ = blockUses(image_, info_);
  for (size_t i = 0; i < inputs_.size(); ++i)
    inputs_[i].streamable = blocks_.streamable[i];
  uint32_t constants = 0;
  for (uint32_t i = 0; i < countOf(table.buffers()); ++i)
    if (const schema::Buffer &buffer = *table.buffers()->Get(i); buffer.kind() == schema::BufferKind::constant)
      constantOfSegment_.emplace(buffer.index(), 0);
  constantOfSegment_.emplace(patternSegment, 0);
  for (auto &[segment, constant] : constantOfSegment_)
    constant = constants++;
  // If the value has no location, that of the first command which reads it is taken.
  std::vector<int32_t> firstReader(inputs_.size(), -1);
  auto note = [&](uint32_t buffer, int32_t location) {
    const schema::Buffer &source = *table.buffers()->Get(buffer);
    if (source.kind() == schema::BufferKind::input && firstReader[source.index()] < 0)
      firstReader[source.index()] = location;
  };
  for (uint32_t i = 0; i < countOf(table.commands()); ++i) {
    const schema::Command &command = *table.commands()->Get(i);
    if (const schema::Launch *launch = command.body_as_Launch())
      for (uint32_t buffer : numbers(launch->args()))
        note(buffer, command.location());
    if (const schema::Matmul *matmul = command.body_as_Matmul())
      for (const schema::View *view : {matmul->a(), matmul->b(), matmul->bias()})
        if (view)
          note(view->buffer(), command.location());
    if (const schema::Attention *attention = command.body_as_Attention())
      for (const schema::View *view : {attention->q(), attention->k(), attention->v(), attention->mask()})
        if (view)
          note(view->buffer(), command.location());
    if (const schema::LibraryCall *call = command.body_as_LibraryCall())
      for (const schema::View *view : *call->reads())
        note(view->buffer(), command.location());
    if (const schema::ToLayout *copy = command.body_as_ToLayout())
      note(copy->source()->buffer(), command.location());
  }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    StitchEnd end = endOf(info_.inputs[i]);
    if (end.location.empty())
      end.location = image_.location(firstReader[i]);
    inputs_[i].consumer = std::make_shared<const TransferConsumer>(
        info_.name, "input " + std::to_string(i) + " (\"" + end.value + "\")", end.location);
    inputs_[i].end = &lane_.report().addConsumer(std::move(end));
  }
}

//===----------------------------------------------------------------------===//
// Constants
//===----------------------------------------------------------------------===//

/// Places constants: they stay in the mapped file if host and device share memory;
/// otherwise each segment goes to the device once.
void PreparedProgram::placeConstants() {
  constants_.resize(constantOfSegment_.size());
  for (auto [segment, constant] : constantOfSegment_) {
    bool isPattern = segment == patternSegment;
    std::span<const std::byte> bytes = isPattern ? std::as_bytes(std::span(patterns_)) : image_.segment(segment);
    auto *data = const_cast<std::byte *>(bytes.data());
    if (device_.hasUnifiedMemory() || bytes.empty()) {
      constants_[constant].base = data;
      continue;
    }
    uint64_t offset = isPattern ? 64 : image_.root().segments()->Get(segment)->offset();
    TensorDesc desc({int64_t(bytes.size())}, ElementType::i8);
    desc.layout.alignment = uint32_t(std::min<uint64_t>(offset & -offset, 4096));
    Tensor given = Tensor::wrap(deviceRef_, TensorDesc(desc.shape, desc.element), data, {}, /*writable=*/false);
    Tensor placed = toLayout(deviceRef_, given, desc);
    device_.wait(placed.storage()->uses());
    placed.storage()->requireUsable("a constant of program \"" + info_.name + "\"");
    constants_[constant] = {placed.storage().get(), 0, nullptr};
    constantStorages_.push_back(placed.storage());
  }
}

//===----------------------------------------------------------------------===//
// Marks
//===----------------------------------------------------------------------===//

void PreparedProgram::markSteps() {
  struct Use {
    size_t firstRead = SIZE_MAX, firstWrite = SIZE_MAX, lastRead = SIZE_MAX, lastWrite = SIZE_MAX;
  };
  std::vector<Use> uses(slotCount_);
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Op *op = steps_[i].op;
    if (!op)
      continue;
    for (uint32_t k = 0; k < op->operandCount; ++k) {
      const Operand &operand = operands_[op->firstOperand + k];
      if (operand.absent)
        continue;
      Use &use = uses[operand.slot];
      bool written = k >= op->firstWritten;
      size_t &first = written ? use.firstWrite : use.firstRead, &last = written ? use.lastWrite : use.lastRead;
      first = std::min(first, i);
      last = i;
    }
  }
  // An input that a command reads before it is restored is aligned at the start.
  for (size_t i = 0; i < steps_.size(); ++i)
    if (!steps_[i].op && events_[steps_[i].event].kind == schema::CommandBody::Restore) {
      uint32_t input = events_[steps_[i].event].index;
      inputs_[input].restored &= std::min(uses[input].firstRead, uses[input].firstWrite) > i;
    }
  std::vector<std::vector<Mark>> before(steps_.size()), after(steps_.size());
  auto mark = [](std::vector<std::vector<Mark>> &marks, size_t step, MarkKind kind, uint32_t slot) {
    if (step != SIZE_MAX)
      marks[step].push_back({kind, slot});
  };
  for (uint32_t slot = 0; slot < slotCount_; ++slot) {
    const Use &use = uses[slot];
    bool isConstant = slot >= constantSlot(0);
    if (slot >= outputSlot(0) && slot < arenaSlot(0) && std::min(use.firstRead, use.firstWrite) == SIZE_MAX)
      outputs_[slot - outputSlot(0)].late = false; // no command would place it
    bool isLate = slot >= outputSlot(0) && slot < arenaSlot(0) && outputs_[slot - outputSlot(0)].late;
    if (isLate)
      mark(before, std::min(use.firstRead, use.firstWrite), MarkKind::Place, slot);
    if (!inline_ && !isConstant) {
      mark(before, use.firstRead, MarkKind::WaitForWrites, slot);
      mark(before, use.firstWrite, MarkKind::WaitForUses, slot);
      mark(after, use.lastRead, MarkKind::NoteRead, slot);
      mark(after, use.lastWrite, MarkKind::NoteWrite, slot);
    }
    size_t last = use.lastRead;
    if (last == SIZE_MAX || (use.lastWrite != SIZE_MAX && use.lastWrite > last))
      last = use.lastWrite;
    if (slot < arenaSlot(0))
      mark(after, last, MarkKind::Drop, slot);
  }
  auto append = [&](std::vector<Mark> &marks) {
    MarkRange range{uint32_t(marks_.size()), uint32_t(marks_.size() + marks.size())};
    marks_.insert(marks_.end(), marks.begin(), marks.end());
    return range;
  };
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (!steps_[i].op)
      continue;
    steps_[i].op->before = append(before[i]);
    steps_[i].op->after = append(after[i]);
  }
}

/// Marks the operations after which results are final. Results are in the order of commands, as operations are.
void PreparedProgram::markResults() {
  for (const BlockResult &result : blocks_.results) {
    auto &desc = resultDescs_.emplace_back();
    if (result.output >= 0)
      continue;
    TensorDesc made({int64_t(result.bytes / byteSize(result.element))}, result.element);
    made.layout.space = arenas_[result.arena].space;
    made.layout.offset = result.offset;
    desc = std::make_shared<const TensorDesc>(std::move(made));
  }
  uint32_t next = 0;
  for (Op &op : ops_) {
    op.results.begin = next;
    while (next < blocks_.results.size() && info_.table->commands()->Get(blocks_.results[next].command) == op.command)
      ++next;
    op.results.end = next;
  }
}

//===----------------------------------------------------------------------===//
// What the runs have cost
//===----------------------------------------------------------------------===//

SubmitCounters PreparedProgram::counters() const {
  SubmitCounters counters;
  counters.submits = submits_.load(std::memory_order_relaxed);
  counters.inputsElided = elided_.load(std::memory_order_relaxed);
  counters.inputsConverted = converted_.load(std::memory_order_relaxed);
  counters.cacheHits = cacheHits_.load(std::memory_order_relaxed);
  counters.inputs = counters.inputsElided + counters.inputsConverted + counters.cacheHits;
  counters.convertedBytes = convertedBytes_.load(std::memory_order_relaxed);
  counters.donations = donations_.load(std::memory_order_relaxed);
  return counters;
}

uint64_t PreparedProgram::droppableBytes(Space space) const {
  uint64_t bytes = 0;
  for (const OutputPlan &output : outputs_)
    if (output.kept && output.desc->layout.space == space && output.kept.storage().use_count() == 1)
      bytes += output.kept.storage()->bytes();
  for (const ArenaPlan &arena : arenas_)
    if (arena.kept && arena.space == space && arena.kept.use_count() == 1)
      bytes += arena.bytes;
  return bytes;
}

uint64_t PreparedProgram::dropKept(Space space) {
  uint64_t freed = 0;
  for (OutputPlan &output : outputs_)
    if (output.kept && output.desc->layout.space == space && output.kept.storage().use_count() == 1) {
      freed += output.kept.storage()->bytes();
      output.kept = Tensor();
    }
  for (ArenaPlan &arena : arenas_)
    if (arena.kept && arena.space == space && arena.kept.use_count() == 1) {
      freed += arena.bytes;
      arena.kept.reset();
    }
  return freed;
}

} // namespace segue::inline runtime
