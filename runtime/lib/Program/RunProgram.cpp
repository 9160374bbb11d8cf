//===- RunProgram.cpp - one submit ----------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Check all inputs, align them, take memory for arenas and outputs; from there
// on the tensors are the program's, and its operations are run or queued in
// order, with the fences of what they touch. Where a sink watches, outputs in
// device_dram take their memory when they are first written instead, so that what
// the sink has freed by then serves them; no memory is an error in the midst of
// the program there. Once a program has run with the
// same descriptions of inputs, nothing here allocates or locks as long as what
// it needs was kept from the run before.
//
//===----------------------------------------------------------------------===//

#include "PreparedProgram.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <type_traits>
#include <utility>

namespace segue::inline runtime {

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

bool PreparedProgram::isIdle() {
  auto isOver = [this](const Run &run) {
    return !run.underWay && (inline_ || !device_.hasBytes() || device_.wasDone(run.done));
  };
  return lane_.tryTurn([&] { return std::ranges::all_of(runs_, isOver); });
}

PreparedProgram::Run &PreparedProgram::takeRun() {
  Run *free = nullptr;
  for (Run &run : runs_)
    if (!run.underWay && (inline_ || !device_.hasBytes() || device_.isDone(run.done))) {
      free = &run;
      break;
    }
  if (!free) {
    free = &runs_.emplace_back();
    free->owner = this;
    free->slots.resize(slotCount_);
    free->outcomes.resize(slotCount_);
    free->held.resize(inputs_.size());
    free->placed.resize(outputs_.size());
    free->heldOutputs.resize(outputs_.size());
    free->arenas.resize(arenas_.size());
  }
  if (free->args.size() < operands_.size())
    free->args.resize(operands_.size());
  free->failed.store(false, std::memory_order_relaxed);
  free->failure.reset();
  for (size_t i = 0; i < constants_.size(); ++i)
    free->slots[constantSlot(i)] = constants_[i];
  free->underWay = true;
  return *free;
}

/// The holder of the last other handle has read what it wanted to read.
static bool isFree(const std::shared_ptr<Storage> &storage, long handles) {
  if (storage.use_count() != handles || !storage->isUsable())
    return false;
  std::atomic_thread_fence(std::memory_order_acquire);
  return true;
}

std::shared_ptr<Storage> PreparedProgram::placeArena(ArenaPlan &arena) {
  if (arena.kept && isFree(arena.kept, 1))
    return arena.kept;
  auto place = [&](Space space) {
    return Storage::allocate(deviceRef_, space, arena.bytes, arena.alignment, arena.owner, Lifetime::Short);
  };
  try {
    auto storage = place(arena.space);
    if (arena.keeps)
      arena.kept = storage;
    return storage;
  } catch (const Error &error) {
    // R9: what does not fit in L1 lies in DRAM, for this run.
    if (error.code() != ErrorCode::DeviceOom || arena.space != Space::DeviceL1)
      throw;
    transfer_.counters().l1Fallbacks += 1;
    return place(Space::DeviceDram);
  }
}

/// Returns memory for an output. `replaced` is the tensor that the caller has there now and
/// will not see again. Without `keeps`, the bytes are nobody's between two runs.
void PreparedProgram::awaitRanks(const Storage &storage) {
  if (inline_ && storage.uses()[Queue::Network])
    device_.wait(storage.uses());
}

Tensor PreparedProgram::placeOutput(size_t index, const Tensor *replaced, bool keeps) {
  OutputPlan &plan = outputs_[index];
  if (keeps && plan.kept &&
      isFree(plan.kept.storage(), replaced && replaced->storage() == plan.kept.storage() ? 2 : 1)) {
    awaitRanks(*plan.kept.storage());
    plan.kept.storage()->renew();
    return plan.kept;
  }
  auto place = [&](const std::shared_ptr<const TensorDesc> &desc, uint64_t descHash) {
    auto storage =
        Storage::allocate(deviceRef_, desc->layout.space, desc->spanBytes(), desc->layout.alignment, plan.owner);
    return Tensor(std::move(storage), desc, descHash, plan.origin);
  };
  auto placeElsewhere = [&]() -> Tensor {
    for (const auto &other : info_.outputs[index].alternatives)
      if (other->layout.space != plan.desc->layout.space && device_.hasSpace(other->layout.space) &&
          other->hash() == plan.descHash)
        return place(other, plan.descHash);
    return Tensor();
  };
  if (!device_.hasSpace(plan.desc->layout.space))
    return placeElsewhere();
  try {
    Tensor tensor = place(plan.desc, plan.descHash);
    if (keeps && plan.keeps)
      plan.kept = tensor;
    return tensor;
  } catch (const Error &error) {
    // R9: what does not fit in L1 lies in DRAM where the program can do with it.
    if (error.code() != ErrorCode::DeviceOom || plan.desc->layout.space != Space::DeviceL1)
      throw;
    Tensor elsewhere = placeElsewhere();
    if (!elsewhere)
      throw;
    transfer_.counters().l1Fallbacks += 1;
    return elsewhere;
  }
}

//===----------------------------------------------------------------------===//
// Inputs and outputs
//===----------------------------------------------------------------------===//

static void add(std::atomic<uint64_t> &sum, uint64_t amount) { StitchReport::Counters::add(sum, amount); }

/// Adds the counts of elided inputs together, as the counters of the device are shared with its queues.
void PreparedProgram::countElided(Run &run) {
  if (uint64_t elided = std::exchange(run.elided, 0)) {
    add(elided_, elided);
    transfer_.counters().inputs += elided;
    transfer_.counters().inputsElided += elided;
  }
}

/// Leaves in `run.held` what has to be converted.
void PreparedProgram::alignInput(Run &run, size_t index, const Tensor &tensor) {
  InputPlan &plan = inputs_[index];
  StitchReport::Counters &edge = *plan.edge;
  OutputDemand *demand = nullptr; // of a program of this device
  if (plan.origin && tensor.device().get() == &device_ && plan.origin->demand.open)
    demand = &plan.origin->demand;
  if (plan.inPlace) {
    ++run.elided;
    if (demand)
      ++demand->elided;
    add(edge.elided, 1);
    add(edge.elidedBytes, plan.bytes);
    return;
  }
  Tensor aligned = tensor;
  Alignment alignment = convertInput(index, aligned);
  if (alignment == Alignment::Elided) { // where an alternative is, not where it is declared
    add(elided_, 1);
    add(edge.elided, 1);
    add(edge.elidedBytes, plan.bytes);
    return;
  }
  run.held[index] = std::move(aligned);
  if (alignment == Alignment::Cached) {
    add(cacheHits_, 1);
    add(edge.cacheHits, 1);
    add(edge.cacheHitBytes, plan.bytes);
    return;
  }
  add(converted_, 1);
  add(convertedBytes_, plan.bytes);
  add(edge.converted, 1);
  add(edge.convertedBytes, plan.bytes);
  lane_.report().noteConversion(edge, tensor.desc(), *plan.wanted);
  if (demand) {
    if (!demand->wanted)
      demand->wanted = info_.inputs[index].sharedDesc;
    if (*demand->wanted == *plan.wanted)
      ++demand->converted;
  }
}

Alignment PreparedProgram::convertInput(size_t index, Tensor &tensor) {
  InputPlan &plan = inputs_[index];
  const Value &value = info_.inputs[index];
  // Whoever owns memory from outside may write it without telling.
  TransferOptions options;
  options.isParameter = plan.isParameter && !tensor.storage()->isExternal();
  options.consumer = plan.consumer;
  auto elsewhere = [&]() -> const std::shared_ptr<const TensorDesc> * {
    for (const auto &other : value.alternatives)
      if (other->layout.space != plan.wanted->layout.space && device_.hasSpace(other->layout.space) &&
          other->hash() == plan.wantedHash)
        return &other;
    return nullptr;
  };
  if (!device_.hasSpace(plan.wanted->layout.space))
    return transfer_.align(deviceRef_, tensor, *elsewhere(), options);
  try {
    return transfer_.align(deviceRef_, tensor, value.sharedDesc, options);
  } catch (const Error &error) {
    // R9: what does not fit in L1 is read from DRAM where the program can.
    const auto *other = elsewhere();
    if (error.code() != ErrorCode::DeviceOom || plan.wanted->layout.space != Space::DeviceL1 || !other)
      throw;
    transfer_.counters().l1Fallbacks += 1;
    return transfer_.align(deviceRef_, tensor, *other, options);
  }
}

/// A storage whose handles nobody needs goes with its last reader here.
void PreparedProgram::freeUnretained(Run &run, Storage &storage) {
  for (const Slot &slot : run.slots)
    if (slot.storage == &storage)
      return;
  for (const Tensor &output : run.placed)
    if (output.storage().get() == &storage)
      return;
  storage.free();
}

void PreparedProgram::placeOutputs(Run &run, std::span<Tensor> inputs, std::span<Tensor> outputs, Given given,
                                   bool watched) {
  for (const Alias &alias : info_.aliases) {
    const Tensor &input = run.held[alias.input] ? run.held[alias.input] : inputs[alias.input];
    const OutputPlan &plan = outputs_[alias.output];
    if (inputs_[alias.input].deferred) { // the sink copies into the caller's tensor
      run.placed[alias.output] = inputs[alias.input];
      continue;
    }
    if (!alias.required) {
      if (plan.retargets)
        continue; // laid otherwise than the input
      bool mayBe = run.held[alias.input] || given == Given::Away;
      if ((!input.storage()->isDonated() && !(mayBe && input.isSoleOwner())) || !input.storage()->isWritable() ||
          input.storage()->isExternal() || (watched && inputs_[alias.input].restored))
        continue;
      add(donations_, 1);
      transfer_.counters().donations += 1;
    }
    bool asDeclared = input.desc().layout.offset == plan.desc->layout.offset;
    run.placed[alias.output] = Tensor(input.storage(), asDeclared ? plan.desc : input.sharedDesc(),
                                      asDeclared ? plan.descHash : input.descHash(), plan.origin);
  }
  for (size_t i = 0; i < outputs_.size(); ++i)
    if (!run.placed[i] && !(watched && outputs_[i].late))
      run.placed[i] = placeOutput(i, &outputs[i], /*keeps=*/true);
}

/// The output has its memory and is the caller's from here on.
void PreparedProgram::startOutput(Run &run, size_t index, std::span<Tensor> outputs) {
  if (!inline_)
    run.placed[index].storage()->outcome();
  setSlot(run, outputSlot(index), run.placed[index]);
  outputs[index] = run.placed[index];
}

void PreparedProgram::placeLateOutputs(Run &run, const Op &op, std::span<Tensor> outputs) {
  for (uint32_t i = op.before.begin; i < op.before.end; ++i) {
    size_t index = marks_[i].slot - outputSlot(0);
    if (marks_[i].kind != MarkKind::Place || run.placed[index])
      continue;
    // Services count what is live: nothing is kept that they cannot see.
    run.placed[index] = placeOutput(index, &outputs[index], /*keeps=*/false);
    std::lock_guard lock(run.lateMutex);
    startOutput(run, index, outputs);
    if (run.failure && !inline_)
      run.outcomes[marks_[i].slot]->fail(failureOf(index, *run.failure));
  }
}

static bool isGivenAway(const Tensor &tensor, bool all) { return all || (tensor && tensor.storage()->isDonated()); }

void PreparedProgram::setSlot(Run &run, uint32_t slot, const Tensor &tensor) {
  run.slots[slot] = {tensor.storage().get(), tensor.desc().layout.offset, nullptr};
  if (!inline_)
    run.outcomes[slot] = tensor.storage()->outcomeIfAny();
}

//===----------------------------------------------------------------------===//
// Steps
//===----------------------------------------------------------------------===//

void PreparedProgram::applyAfter(const Op &op, Run &run, std::span<Tensor> inputs, Given given, const Fence &fence) {
  for (uint32_t i = op.after.begin; i < op.after.end; ++i) {
    Slot &slot = run.slots[marks_[i].slot];
    switch (marks_[i].kind) {
    case MarkKind::NoteRead:
      slot.storage->addRead(fence);
      break;
    case MarkKind::NoteWrite:
      slot.storage->addWrite(fence);
      break;
    case MarkKind::Drop: {
      size_t index = marks_[i].slot;
      Storage *storage = std::exchange(slot.storage, nullptr);
      if (index >= inputs_.size()) {
        run.heldOutputs[index - inputs_.size()] = Tensor();
        break;
      }
      run.held[index] = Tensor();
      if (inputs[index] && inputs[index].storage().get() == storage && !storage->isRetained())
        freeUnretained(run, *storage);
      // Nobody else reads what was given: a gradient goes with its block.
      if (isGivenAway(inputs[index], given == Given::Away))
        inputs[index] = Tensor();
      break;
    }
    case MarkKind::Place:
    case MarkKind::WaitForWrites:
    case MarkKind::WaitForUses:
      break;
    }
  }
}

template <typename Final>
void PreparedProgram::handOver(Run &run, uint32_t output, const Program &program, Tensor &tensor, EventSink &events) {
  Tensor saved = tensor;
  events.receive(Final{program, output, saved});
  if (saved && saved.storage() == tensor.storage())
    return;
  const TensorDesc &declared = *outputs_[output].desc;
  bool isTaken = !saved && std::is_same_v<Final, event::Output>;
  if (!isTaken && (!saved || saved.shape() != declared.shape || saved.element() != declared.element))
    throw Error(ErrorCode::LayoutMismatch, "program \"" + info_.name + "\", output " + std::to_string(output) + " (\"" +
                                               info_.outputs[output].name + "\"): the event sink put " +
                                               (saved ? saved.desc().str() : "no tensor") + " in the place of " +
                                               declared.str() + "; only layout and space may change");
  // The bytes on the device go back once the last command has read them.
  if (run.slots[outputSlot(output)].storage)
    run.heldOutputs[output] = std::move(tensor);
  outputs_[output].kept = Tensor();
  run.placed[output] = Tensor();
  tensor = std::move(saved);
}

void PreparedProgram::handleRestore(Run &run, uint32_t input, const Program &program, Tensor &tensor, bool givenAway,
                                    EventSink &events) {
  if (!tensor) // given away: restored before, or dropped after its last reader
    return;
  InputPlan &plan = inputs_[input];
  Tensor saved = tensor;
  events.receive(event::Restore{program, input, saved});
  if (!saved)
    throw Error(ErrorCode::MissingInput,
                inputText(input) + ": the event sink took the tensor away; " + plan.wanted->str() + " is needed now");
  if (!plan.restored)
    return; // aligned at the start, as an earlier command reads it
  takeLate(run, input, std::move(saved));
  if (givenAway)
    tensor = Tensor();
}

void PreparedProgram::tellResults(Run &run, const Op &op, const Program &program, EventSink &events) {
  for (uint32_t i = op.results.begin; i < op.results.end; ++i) {
    const BlockResult &result = blocks_.results[i];
    Tensor value = result.output >= 0 ? run.placed[size_t(result.output)]
                                      : Tensor::in(run.arenas[result.arena], resultDescs_[i]);
    events.receive(event::BlockResult{program, i, value});
  }
}

/// Checks and aligns what a sink brings in the middle of a program, as at the start.
void PreparedProgram::takeLate(Run &run, uint32_t input, Tensor value) {
  checkInput(input, value, /*deferRestored=*/false);
  alignInput(run, input, value);
  countElided(run);
  if (!run.held[input])
    run.held[input] = std::move(value);
  setSlot(run, inputSlot(input), run.held[input]);
}

void PreparedProgram::beginBlock(Run &run, const Event &event, const Program &program, std::span<Tensor> inputs,
                                 EventSink &events) {
  events.receive(event::BlockBegin{program, event.block});
  for (uint32_t input : blocks_.blocks[event.index].firstTouched) {
    const InputPlan &plan = inputs_[input];
    if (!plan.deferred)
      continue;
    Tensor value = inputs[input];
    events.receive(event::BlockInput{program, input, value});
    if (!value)
      throw Error(ErrorCode::MissingInput,
                  inputText(input) + ": the event sink deferred the tensor and brought none; " + plan.wanted->str() +
                      " is needed by block \"" + std::string(event.block) + "\"");
    takeLate(run, input, std::move(value));
    if (plan.outputInPlace < 0)
      continue;
    // A failure is that of the caller's tensor, as the outcome there says.
    run.held[input].storage()->bumpVersion();
    run.slots[outputSlot(size_t(plan.outputInPlace))] = run.slots[inputSlot(input)];
  }
}

void PreparedProgram::endBlock(Run &run, const Event &event, const Program &program, std::span<Tensor> inputs,
                               std::span<Tensor> outputs, Given given, EventSink &events) {
  for (uint32_t input : blocks_.blocks[event.index].lastTouched) {
    if (!inputs_[input].deferred)
      continue;
    run.held[input] = Tensor();
    run.slots[inputSlot(input)] = {};
    if (int32_t output = inputs_[input].outputInPlace; output >= 0)
      run.slots[outputSlot(size_t(output))] = {};
    if (isGivenAway(inputs[input], given == Given::Away))
      inputs[input] = Tensor();
  }
  events.receive(event::BlockEnd{program});
  for (uint32_t output : blocks_.blocks[event.index].finished)
    handOver<event::Output>(run, output, program, outputs[output], events);
}

void PreparedProgram::handleEvent(Run &run, const Event &event, const Program &program, std::span<Tensor> inputs,
                                  std::span<Tensor> outputs, Given given, EventSink *events) {
  if (event.kind == schema::CommandBody::Free) {
    run.held[event.index] = Tensor();
    if (isGivenAway(inputs[event.index], given == Given::Away))
      inputs[event.index] = Tensor();
    if (events)
      events->receive(event::Free{program, event.index});
    return;
  }
  if (!events)
    return;
  if (event.kind == schema::CommandBody::SetPhase)
    enterPhase(info_, Phase(event.index), *events);
  else if (event.kind == schema::CommandBody::BlockBegin)
    beginBlock(run, event, program, inputs, *events);
  else if (event.kind == schema::CommandBody::BlockEnd)
    endBlock(run, event, program, inputs, outputs, given, *events);
  else if (event.kind == schema::CommandBody::Save)
    handOver<event::Save>(run, event.index, program, outputs[event.index], *events);
  else
    handleRestore(run, event.index, program, inputs[event.index],
                  isGivenAway(inputs[event.index], given == Given::Away), *events);
}

void PreparedProgram::enqueue(Run &run, Op &op) {
  void **args = run.args.data() + op.firstOperand;
  const Operand *operands = operands_.data() + op.firstOperand;
  for (uint32_t i = 0; i < op.operandCount; ++i) {
    const Slot &slot = run.slots[operands[i].slot];
    args[i] = operands[i].absent ? nullptr : slot.data() + operands[i].offset;
    if (!inline_ && args[i] && slot.storage && slot.storage->bytes() && !device_.computesOn(args[i]))
      failOnHost(op, i);
  }
  if (inline_) {
    performInline(op, args);
    return;
  }
  Fence after;
  for (uint32_t i = op.before.begin; i < op.before.end; ++i) {
    if (marks_[i].kind == MarkKind::Place)
      continue;
    const Storage &storage = *run.slots[marks_[i].slot].storage;
    after.join(marks_[i].kind == MarkKind::WaitForWrites ? storage.writes() : storage.uses());
  }
  run.done = Fence(Queue::Compute, device_.enqueue(Queue::Compute, after, workOf(run, op)));
}

/// A handle of what `operand` points to. `desc` is brought to where that lies.
Tensor PreparedProgram::tensorAt(const Run &run, const Operand &operand, std::shared_ptr<const TensorDesc> &desc,
                                 std::span<Tensor> inputs) const {
  const Slot &slot = run.slots[operand.slot];
  uint64_t offset = slot.offset + operand.offset;
  if (desc->layout.space != slot.storage->space() || desc->layout.offset != offset) {
    TensorDesc moved = *desc;
    moved.layout.space = slot.storage->space();
    moved.layout.offset = offset;
    desc = std::make_shared<const TensorDesc>(std::move(moved));
  }
  if (operand.slot >= constantSlot(0))
    for (const auto &storage : constantStorages_)
      if (storage.get() == slot.storage)
        return Tensor::in(storage, desc);
  if (operand.slot >= arenaSlot(0))
    return Tensor::in(run.arenas[operand.slot - arenaSlot(0)], desc);
  if (operand.slot >= outputSlot(0))
    return Tensor::in(run.placed[operand.slot - outputSlot(0)].storage(), desc);
  const Tensor &input = run.held[operand.slot] ? run.held[operand.slot] : inputs[operand.slot];
  return Tensor::in(input.storage(), desc);
}

/// Queues a transfer over the link, whose bytes are counted and given leave as those of any
/// transfer. It begins after the commands before it; those after it wait behind an entry of
/// their queue that waits for it.
void PreparedProgram::enqueueTransfer(Run &run, Op &op, std::span<Tensor> inputs) {
  TransferOp &body = std::get<TransferOp>(op.body);
  const Operand *operands = operands_.data() + op.firstOperand;
  Tensor source = tensorAt(run, operands[0], body.source, inputs);
  Tensor target = tensorAt(run, operands[1], body.target, inputs);
  source.storage()->addWrite(run.done);
  target.storage()->addRead(run.done);
  transfer_.copyInto(source, target, {.keepsOutcome = true, .consumer = body.consumer});
  Fence after = target.storage()->writes();
  after.join(source.storage()->uses());
  run.done = Fence(Queue::Compute, device_.enqueue(Queue::Compute, after, workOf(run, op)));
}

void PreparedProgram::runSteps(Run &run, const Program &program, std::span<Tensor> inputs, std::span<Tensor> outputs,
                               Given given, EventSink *events) {
  for (const Step &step : steps_) {
    if (!step.op) {
      handleEvent(run, events_[step.event], program, inputs, outputs, given, events);
      continue;
    }
    if (events)
      placeLateOutputs(run, *step.op, outputs);
    if (std::holds_alternative<TransferOp>(step.op->body))
      enqueueTransfer(run, *step.op, inputs);
    else
      enqueue(run, *step.op);
    applyAfter(*step.op, run, inputs, given, run.done);
    if (run.tellsResults)
      tellResults(run, *step.op, program, *events);
  }
}

/// The program has begun and cannot end: what it was to write is not there.
void PreparedProgram::abandon(Run &run, const Error &error, std::span<Tensor> outputs) noexcept {
  if (inline_) {
    for (Tensor &output : outputs)
      output = Tensor();
    return;
  }
  fail(run, error, /*asItIs=*/false);
  // A slot is noted by the last command that uses it. Streams go on with those that they were given before.
  for (size_t i = 0; i < constantSlot(0); ++i) {
    Storage *storage = run.slots[i].storage;
    if (storage && i < outputSlot(0))
      storage->addRead(run.done);
    else if (storage)
      storage->addWrite(run.done);
  }
}

void PreparedProgram::release(Run &run) noexcept {
  for (Tensor &tensor : run.held)
    tensor = Tensor();
  for (Tensor &tensor : run.heldOutputs)
    tensor = Tensor();
  for (Tensor &tensor : run.placed)
    tensor = Tensor();
  for (auto &arena : run.arenas)
    arena.reset();
  run.underWay = false;
}

void PreparedProgram::run(const Program &program, std::span<Tensor> inputs, std::span<Tensor> outputs, Given given,
                          EventSink *events) {
  SubmitLane::Turn turn(lane_);
  if (outputs.size() != outputs_.size())
    throw Error(ErrorCode::InvalidArgument, "program \"" + info_.name + "\": room for " +
                                                std::to_string(outputs.size()) + " outputs given, " +
                                                std::to_string(outputs_.size()) + " declared");
  if (events) {
    if (info_.beginsWithPhase)
      enterPhase(info_, info_.phases.front(), *events);
    events->receive(event::Submit{program, inputs});
  }
  checkInputs(program, inputs, events);
  bool tellsResults = false;
  if (events && !blocks_.results.empty())
    events->receive(event::OfferResults{program, tellsResults});
  if (hasAlternatives_)
    answerDemand();
  struct Release {
    PreparedProgram &self;
    Run &run;
    ~Release() { self.release(run); }
  } guard{*this, takeRun()};
  Run &run = guard.run;
  run.tellsResults = tellsResults;
  run.watchesArenas = tellsResults || hasTransfers_;
  add(submits_, 1);
  transfer_.counters().submits += 1;

  // May fail, and changes nothing.
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!events || !(inputs_[i].restored || inputs_[i].deferred))
      alignInput(run, i, inputs[i]);
  countElided(run);
  for (size_t i = 0; i < arenas_.size(); ++i)
    run.arenas[i] = placeArena(arenas_[i]);
  placeOutputs(run, inputs, outputs, given, events != nullptr);

  // The program has its memory and begins. Addresses in L1 are settled now.
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs_[i].deferred)
      run.slots[inputSlot(i)] = {};
    else
      setSlot(run, inputSlot(i), run.held[i] ? run.held[i] : inputs[i]);
  for (const Alias &alias : info_.aliases)
    if (run.slots[inputSlot(alias.input)].storage == run.placed[alias.output].storage().get())
      run.placed[alias.output].storage()->bumpVersion();
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (run.placed[i])
      startOutput(run, i, outputs);
    else {
      run.slots[outputSlot(i)] = {};
      run.outcomes[outputSlot(i)] = nullptr;
    }
  }
  for (const Alias &alias : info_.aliases)
    if (inputs_[alias.input].deferred)
      run.slots[outputSlot(alias.output)] = {};
  for (size_t i = 0; i < arenas_.size(); ++i) {
    run.slots[arenaSlot(i)] = {run.arenas[i].get(), 0, nullptr};
    if (!run.watchesArenas)
      continue;
    // Whoever looks at temporaries is to know whether they were written.
    run.arenas[i]->forgetOutcome();
    run.outcomes[arenaSlot(i)] = run.arenas[i]->outcome();
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!run.held[i])
      continue;
    if (!inputs[i].storage()->isRetained())
      freeUnretained(run, *inputs[i].storage());
    if (isGivenAway(inputs[i], given == Given::Away))
      inputs[i] = Tensor();
  }

  try {
    runSteps(run, program, inputs, outputs, given, events);
    device_.submit();
  } catch (const Error &error) {
    abandon(run, error, outputs);
    throw;
  } catch (const std::exception &error) {
    abandon(run, Error(ErrorCode::StepAborted, error.what()), outputs);
    throw;
  }
  for (Tensor &input : inputs)
    if (isGivenAway(input, given == Given::Away))
      input = Tensor();
  for (const Alias &alias : info_.aliases)
    if (const Tensor &output = run.placed[alias.output])
      output.storage()->setDonated(false);
}

} // namespace segue::inline runtime
