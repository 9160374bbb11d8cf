//===- StepTrace.cpp - training steps as a Perfetto trace -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Reports/StepTrace.h"
#include "MessageTimes.h"
#include "segue/runtime/Collectives/Interconnect.h"
#include "segue/runtime/Reports/MemoryKinds.h"
#include "segue/runtime/OutputFile.h"
#include "segue/runtime/Program/ProgramCosts.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

static constexpr std::array<std::string_view, 8> tracks = {"phase", "block",     "compute",    "h2d",
                                                           "d2h",   "disk_read", "disk_write", "network"};

static size_t trackId(std::string_view track) { return size_t(std::ranges::find(tracks, track) - tracks.begin()); }

/// The holders that an instant "most held" names; who holds less is summed up.
static constexpr size_t namedHolders = 100;

/// The text of events that is written at once.
static constexpr size_t writtenBytes = 1 << 16;

/// Copies and commands are taken from the device, which waits for what is queued, so many steps apart at most.
static constexpr uint64_t mostStepsApart = 16;

StepTrace::StepTrace(DeviceRef device, Memory memory, Commands commands, size_t mostRecords)
    : device_(std::move(device)), memory_(memory), mostRecords_(mostRecords),
      commands_(commands == Commands::Noted ? std::make_unique<CommandSpans>(device_) : nullptr) {
  setOn(true);
}

StepTrace::~StepTrace() {
  if (on_)
    device_->transfer().traceCopies(false);
}

void StepTrace::setOn(bool on) {
  on &= !endedAfter_;
  if (!on)
    closeSpans();
  if (commands_)
    commands_->setOn(on);
  if (std::exchange(on_, on) != on)
    device_->transfer().traceCopies(on);
}

/// A step that was aborted leaves its blocks open, too.
void StepTrace::closeSpans() {
  if (open_.empty())
    return;
  size_t now = mark();
  for (size_t span : std::exchange(open_, {}))
    spans_[span].end = now;
}

size_t StepTrace::mark(const Program *running) {
  size_t index = marks_.size();
  marks_.push_back(std::make_shared<Timestamp>());
  if (device_->hasBytes()) {
    device_->enqueueStamp(Queue::Compute, Fence(), marks_.back(), "mark");
  } else {
    device_->wait(Fence(Queue::Compute, device_->position(Queue::Compute)));
    marks_.back()->set(device_->seconds());
  }
  for (const SpaceInfo &space : device_->spaces())
    levels_.push_back({index, space.space, device_->memory().liveBytes(space.space)});
  AddressFigures figures = device_->memory().addressFigures();
  uint64_t before = std::exchange(lastDisplaced_, figures.displaced);
  if (figures.displaced > before) { // less, where a plan begins
    figures.displaced -= before;
    displaced_.push_back({index, std::move(figures)});
  }
  if (memory_ == Memory::ByRole)
    for (Space space : {Space::DeviceDram, Space::Disk})
      if (device_->hasSpace(space)) {
        std::vector<MemoryHolder> holders = device_->memory().holders(space);
        roles_.push_back({index, space, liveByRole(holders)});
        if (space == Space::DeviceDram)
          noteMost(index, std::move(holders), running);
      }
  return index;
}

void StepTrace::noteMost(size_t mark, std::vector<MemoryHolder> holders, const Program *running) {
  uint64_t bytes = 0;
  for (const MemoryHolder &holder : holders)
    bytes += holder.liveBytes;
  if (most_.empty() || bytes <= most_.back().bytes)
    return;
  most_.back() = {mark, bytes, std::move(holders), "", "", running ? std::optional(*running) : std::nullopt};
  if (!open_.empty() && spans_[open_.back()].track == "block") {
    most_.back().block = spans_[open_.back()].name;
    most_.back().program = spans_[open_.back()].program;
  }
}

void StepTrace::receive(const Event &event) { deliver(*this, event); }

void StepTrace::on(const event::PhaseBegin &begin) {
  if (!on_)
    return;
  if (begin.phase == Phase::StepBegin) {
    if (steps_ == takenAfter_) {
      takeRecords();
      takenAfter_ += std::min(steps_, mostStepsApart);
    }
    if (records() >= mostRecords_) {
      endedAfter_ = steps_;
      setOn(false);
      return;
    }
    ++steps_;
    most_.emplace_back();
  }
  size_t now = mark();
  for (size_t span : std::exchange(open_, {}))
    spans_[span].end = now;
  open_.push_back(spans_.size());
  spans_.push_back({"phase", std::string(name(begin.phase)), "", now, now});
}

/// Parameters, gradients and states are the session's, whose books have no lines of the source.
void StepTrace::on(const event::Submit &submit) {
  if (!on_ || memory_ != Memory::ByRole || !asked_.emplace(submit.program.image().get(), submit.program.index()).second)
    return;
  for (const CommandCost &command : commandCosts(submit.program))
    if (size_t open = command.location.find(" ("); open != std::string::npos && command.location.ends_with(')'))
      modules_.emplace(command.location.substr(open + 2, command.location.size() - open - 3), command.location);
  for (const std::vector<Value> *values : {&submit.program.inputs(), &submit.program.outputs()})
    for (const Value &value : *values)
      if (!value.location.empty())
        values_.emplace(value.name, value.location);
}

/// Returns where the source uses a parameter, gradient or state: "fc.weight", or "m.fc.weight" for a state of it.
std::string StepTrace::placeOf(std::string_view name) const {
  for (std::string_view own : {name, name.substr(name.find('.') + 1)}) { // npos + 1 is 0: a name without a point
    std::string_view key = modules_.empty() ? own : own.substr(0, own.rfind('.'));
    const auto &places = modules_.empty() ? values_ : modules_;
    if (auto found = places.find(std::string(key)); found != places.end())
      return found->second;
  }
  return "";
}

void StepTrace::on(const event::BlockBegin &begin) {
  const auto &[program, block] = begin;
  if (!on_)
    return;
  size_t now = mark(&program);
  open_.push_back(spans_.size());
  spans_.push_back({"block", std::string(block), program.name(), now, now});
}

void StepTrace::on(const event::BlockEnd &end) {
  if (open_.empty() || spans_[open_.back()].track != "block")
    return;
  spans_[open_.back()].end = mark(&end.program);
  open_.pop_back();
}

void StepTrace::on(const event::Save &save) {
  if (on_)
    mark(&save.program);
}

void StepTrace::on(const event::Restore &restore) {
  if (on_)
    mark(&restore.program);
}

/// Values of working memory that are smaller than this part of it are told in sum.
static constexpr uint64_t smallestPart = 100;

/// Adds the values of the working memory of `program` in place of `arena`, its line of the books, and what they leave.
void StepTrace::addWorkingMemory(const Program &program, HeldLine arena, std::vector<HeldLine> &lines) {
  auto [found, isNew] = working_.try_emplace({program.image().get(), program.index()});
  if (isNew)
    found->second = workingMemory(program);
  std::vector<HeldLine> values;
  uint64_t sum = 0;
  for (const WorkingMemory &memory : found->second) {
    // Temporaries of L1 lie in DRAM where there is none.
    if (memory.space != Space::DeviceDram && (memory.space != Space::DeviceL1 || device_->hasSpace(Space::DeviceL1)))
      continue;
    for (const Temporary &value : memory.values)
      if (value.bytes >= memory.bytes / smallestPart && value.bytes <= arena.bytes) {
        values.push_back({.bytes = value.bytes,
                          .owner = {program.name(), value.maker, arena.owner.value, value.block, value.location},
                          .isTemporary = true});
        sum += value.bytes;
      }
  }
  // More than there is: values of a file that no compiler has written may overlap, and sums of theirs mean nothing.
  if (sum <= arena.bytes) {
    std::ranges::move(values, std::back_inserter(lines));
    arena.bytes -= sum;
    arena.isRest = sum > 0;
  }
  if (arena.bytes)
    lines.push_back(std::move(arena));
}

/// Returns a line per owner, whom the books have once per phase in which it took memory; most bytes first.
std::vector<StepTrace::HeldLine> StepTrace::linesOf(const Most &most) {
  std::map<MemoryOwner, uint64_t> byOwner;
  for (const MemoryHolder &holder : most.holders)
    if (holder.liveBytes)
      byOwner[holder.owner] += holder.liveBytes;
  std::vector<HeldLine> lines;
  for (const auto &[owner, bytes] : byOwner) {
    HeldLine line{.bytes = bytes, .owner = owner};
    if (most.running && owner.value == "(arena)" && owner.program == most.running->name())
      addWorkingMemory(*most.running, std::move(line), lines);
    else
      lines.push_back(std::move(line));
  }
  std::ranges::stable_sort(lines, std::greater(), &HeldLine::bytes);
  return lines;
}

Json StepTrace::jsonOf(const HeldLine &line) const {
  const MemoryOwner &owner = line.owner;
  Json json{{"value", owner.value}, {"role", roleOf(owner)}, {"bytes", line.bytes}};
  std::string location = owner.location.empty() && !line.isTemporary ? placeOf(owner.value) : owner.location;
  for (const auto &[key, text] : {std::pair("program", &owner.program), {"block", &owner.block}, {"location", &location}})
    if (!text->empty())
      json[key] = *text;
  for (const auto &[key, holds] : {std::pair("temporary", line.isTemporary), {"rest", line.isRest}})
    if (holds)
      json[key] = true;
  return json;
}

size_t StepTrace::records() const {
  size_t holders = 0;
  for (const Most &most : most_)
    holders += most.holders.size();
  return marks_.size() + spans_.size() + levels_.size() + roles_.size() + copies_.size() + spansOfCommands_.size() +
         holders;
}

/// Takes what the device has noted so far.
void StepTrace::takeRecords() {
  for (const CopyRecord &copy : device_->transfer().takeTrace()) {
    Json args{{"bytes", copy.bytes}};
    for (const auto &[key, text] : {std::pair("from", &copy.from), {"to", &copy.to}, {"about", &copy.about}})
      if (!text->empty())
        args[key] = *text;
    if (copy.consumer) {
      args["for"] = copy.consumer->str();
      args["location"] = copy.consumer->location;
    }
    copies_.push_back({{"name", copy.hop},
                       {"ph", "X"},
                       {"pid", 1},
                       {"tid", trackId(copy.queue)},
                       {"ts", copy.begin},
                       {"dur", copy.seconds},
                       {"args", std::move(args)}});
  }
  if (commands_)
    std::ranges::move(commands_->take(), std::back_inserter(spansOfCommands_));
}

/// Calls `give` with each event, and returns what the trace says besides.
Json StepTrace::forEachEvent(const std::function<void(Json)> &give) {
  takeRecords();
  if (!open_.empty()) {
    size_t now = mark();
    for (size_t span : open_)
      spans_[span].end = now;
  }
  device_->drain();
  auto at = [this](size_t mark) { return marks_[mark]->seconds(); };

  double start = marks_.empty() ? 0 : at(0);
  for (const Json &copy : copies_)
    start = std::min(start, copy["ts"].get<double>());
  for (const CommandSpan &span : spansOfCommands_)
    start = std::min(start, span.begin);
  auto micros = [](double seconds) { return std::max(0.0, seconds) * 1e6; };

  for (size_t track = 0; track < tracks.size(); ++track)
    give({{"name", "thread_name"},
          {"ph", "M"},
          {"pid", 1},
          {"tid", track},
          {"args", {{"name", std::string(tracks[track])}}}});
  MessageTimes messages;
  for (const Span &span : spans_) {
    if (span.track == "block")
      messages.addCompute(at(span.begin), at(span.end));
    Json args = Json::object();
    if (!span.program.empty())
      args["program"] = span.program;
    give({{"name", span.name},
          {"ph", "X"},
          {"pid", 1},
          {"tid", trackId(span.track)},
          {"ts", micros(at(span.begin) - start)},
          {"dur", micros(at(span.end) - at(span.begin))},
          {"args", std::move(args)}});
  }
  for (const CommandSpan &span : spansOfCommands_) {
    Json args{{"program", span.program}, {"kind", span.kind}, {"bytes", span.bytes}, {"flops", span.flops}};
    if (!span.location.empty())
      args["location"] = span.location;
    give({{"name", span.label},
          {"ph", "X"},
          {"pid", 1},
          {"tid", trackId("compute")},
          {"ts", micros(span.begin - start)},
          {"dur", micros(span.seconds)},
          {"args", std::move(args)}});
  }
  for (Json copy : copies_) {
    double begin = copy["ts"].get<double>(), end = begin + copy["dur"].get<double>();
    if (copy["name"] == meetingLabel)
      messages.addMeeting(begin, end);
    else if (copy["tid"] == trackId("network") && copy["name"] != receiveLabel) // which waits for a message of another
      messages.addMessage(begin, end);
    copy["ts"] = micros(copy["ts"].get<double>() - start);
    copy["dur"] = micros(copy["dur"].get<double>());
    give(std::move(copy));
  }
  for (const Level &level : levels_)
    give({{"name", std::string(name(level.space))},
          {"ph", "C"},
          {"pid", 1},
          {"ts", micros(at(level.mark) - start)},
          {"args", {{"bytes", level.bytes}}}});
  for (const Displaced &each : displaced_)
    give({{"name", "departs from planned addresses"},
          {"ph", "i"},
          {"s", "p"},
          {"pid", 1},
          {"tid", 0},
          {"ts", micros(at(each.mark) - start)},
          {"args", {{"blocks", each.figures.displaced}, {"last", each.figures.lastDisplaced}}}});
  for (const auto &[mark, space, bytes] : roles_)
    give({{"name", std::string(name(space)) + " by role"},
          {"ph", "C"},
          {"pid", 1},
          {"ts", micros(at(mark) - start)},
          {"args", bytes}});
  for (const Most &most : most_) {
    if (!most.bytes)
      continue;
    std::vector<HeldLine> lines = linesOf(most);
    Json held = Json::array();
    uint64_t restBytes = 0;
    for (size_t i = 0; i < lines.size(); ++i)
      if (i < namedHolders)
        held.push_back(jsonOf(lines[i]));
      else
        restBytes += lines[i].bytes;
    Json args{{"bytes", most.bytes}, {"held", std::move(held)}};
    if (lines.size() > namedHolders)
      args["rest"] = {{"holders", lines.size() - namedHolders}, {"bytes", restBytes}};
    if (!most.block.empty())
      args["block"] = most.block, args["program"] = most.program;
    give({{"name", mostHeldLabel},
          {"ph", "i"},
          {"s", "p"},
          {"pid", 1},
          {"tid", 0},
          {"ts", micros(at(most.mark) - start)},
          {"args", std::move(args)}});
  }
  Json other{{"device", device_->name()}};
  if (endedAfter_)
    other["ended_after_steps"] = *endedAfter_;
  if (!messages.empty())
    other["network"] = messages.json(/*perSecond=*/1);
  return other;
}

Json StepTrace::toJson() {
  Json events = Json::array();
  Json other = forEachEvent([&](Json event) { events.push_back(std::move(event)); });
  return {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}, {"otherData", std::move(other)}};
}

void StepTrace::write(const std::filesystem::path &path) {
  OutputFile file(path);
  // All events at once would take ten times what the records do.
  std::string text = R"({"traceEvents":[)";
  std::string_view between;
  Json other = forEachEvent([&](const Json &event) {
    text.append(std::exchange(between, ",")).append(event.dump());
    if (text.size() > writtenBytes) {
      file.write(text);
      text.clear();
    }
  });
  file.write(text + R"(],"displayTimeUnit":"ms","otherData":)" + other.dump() + "}");
  file.commit();
}

} // namespace segue::inline runtime
