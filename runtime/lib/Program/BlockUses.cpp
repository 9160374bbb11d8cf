//===- BlockUses.cpp - which block reads which input ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/BlockUses.h"
#include "BinaryImage.h"
#include "CommandBuffers.h"
#include "CostOfCommand.h"
#include "segue/runtime/Transfer/TransferPlan.h"
#include <algorithm>

namespace segue::inline runtime {

/// Returns true for values that outlive a submit and belong to a block of the model.
static bool canStream(Role role) {
  return role == Role::Parameter || role == Role::Frozen || role == Role::Gradient || role == Role::State;
}

//===----------------------------------------------------------------------===//
// What blocks give
//===----------------------------------------------------------------------===//

namespace {
constexpr uint32_t outsideOfBlocks = UINT32_MAX;

/// A command touches a buffer within a block.
struct Touch {
  uint32_t command, block;
  bool isWrite;
};
} // namespace

/// Returns the result that lies in a buffer; nothing if its values are no floats, or their type is not told.
static std::optional<BlockResult> resultIn(const ProgramInfo &program, const std::vector<uint32_t> &inputOf,
                                           uint32_t index) {
  const schema::Buffer &buffer = *program.table->buffers()->Get(index);
  BlockResult result{.buffer = index, .bytes = buffer.bytes()};
  if (buffer.kind() == schema::BufferKind::output) {
    const Value &value = program.outputs[buffer.index()];
    if (inputOf[buffer.index()] != UINT32_MAX || value.role == Role::Statistics ||
        value.desc().layout.storage != StorageType::Element)
      return std::nullopt;
    result.output = int32_t(buffer.index());
    result.element = value.desc().element;
  } else if (buffer.kind() == schema::BufferKind::arena && buffer.element()) {
    result.arena = buffer.index();
    result.offset = buffer.offset();
    result.element = ElementType(*buffer.element());
  } else {
    return std::nullopt;
  }
  return isFloat(result.element) ? std::optional(result) : std::nullopt;
}

static bool isGivenToBlocks(Role role) { return role == Role::Input || role == Role::Saved || role == Role::Gradient; }

static void findResults(const ProgramInfo &program, const std::vector<uint32_t> &inputOf,
                        const std::vector<std::vector<Touch>> &touches, BlockUses &uses) {
  for (uint32_t i = 0; i < touches.size(); ++i) {
    auto last = std::ranges::find(touches[i].rbegin(), touches[i].rend(), true, &Touch::isWrite);
    if (last == touches[i].rend() || last->block == outsideOfBlocks)
      continue;
    std::optional<BlockResult> result = resultIn(program, inputOf, i);
    if (!result)
      continue;
    result->block = last->block;
    result->command = last->command;
    result->isRead = std::ranges::any_of(
        touches[i], [&](const Touch &touch) { return touch.command > last->command && touch.block != last->block; });
    if (result->isRead || result->output >= 0)
      uses.results.push_back(*result);
  }
  std::ranges::stable_sort(uses.results, {}, &BlockResult::command);

  std::vector<uint32_t> resultOf(touches.size(), UINT32_MAX);
  for (uint32_t i = 0; i < uses.results.size(); ++i)
    resultOf[uses.results[i].buffer] = i;
  auto note = [](std::vector<uint32_t> &list, uint32_t value) {
    if (std::ranges::find(list, value) == list.end())
      list.insert(std::ranges::upper_bound(list, value), value);
  };
  for (uint32_t i = 0; i < touches.size(); ++i) {
    const schema::Buffer &buffer = *program.table->buffers()->Get(i);
    bool isInput = buffer.kind() == schema::BufferKind::input && isGivenToBlocks(program.inputs[buffer.index()].role);
    const BlockResult *result = resultOf[i] == UINT32_MAX ? nullptr : &uses.results[resultOf[i]];
    for (const Touch &touch : touches[i]) {
      if (touch.block == outsideOfBlocks || touch.isWrite)
        continue;
      if (isInput)
        note(uses.blocks[touch.block].inputsRead, buffer.index());
      else if (result && touch.command > result->command && touch.block != result->block)
        note(uses.blocks[touch.block].resultsRead, resultOf[i]);
    }
  }
}

std::string describe(const Program &program, const BlockResult &result) {
  if (result.output >= 0)
    return "\"" + program.output(size_t(result.output)).name + "\"";
  const BinaryImage &image = *program.image();
  const schema::Command &command = *image.programs()[program.index()].table->commands()->Get(result.command);
  const schema::Launch *launch = command.body_as_Launch();
  std::string text = "temporary of ";
  text += launch ? image.root().kernels()->Get(launch->kernel())->name()->str() : kindOf(command);
  std::string where = image.location(command.location());
  return where.empty() ? text : text + " at " + where;
}

//===----------------------------------------------------------------------===//
// What blocks touch
//===----------------------------------------------------------------------===//

BlockUses blockUses(const BinaryImage &image, const ProgramInfo &program) {
  BlockUses uses;
  uses.streamable.resize(program.inputs.size());
  for (size_t i = 0; i < program.inputs.size(); ++i)
    // An input that lies on the host comes by a command of the program.
    uses.streamable[i] =
        canStream(program.inputs[i].role) && !isHostSpace(program.inputs[i].desc().layout.space);
  uses.written.resize(program.inputs.size());
  uses.touched.resize(program.inputs.size());
  // An output with a required alias is its input under another name.
  std::vector<uint32_t> inputOf(program.outputs.size(), UINT32_MAX);
  for (const Alias &alias : program.aliases) {
    if (alias.required) {
      inputOf[alias.output] = alias.input;
      uses.written[alias.input] = true;
    } else {
      uses.streamable[alias.input] = false;
    }
  }

  const schema::Program &table = *program.table;
  std::vector<size_t> open; // indices into blocks, the innermost last
  std::vector<size_t> first(program.inputs.size(), SIZE_MAX), last(program.inputs.size(), SIZE_MAX);
  // The block of the last command that touches an output; none outside of blocks.
  std::vector<size_t> finishedIn(program.outputs.size(), SIZE_MAX);
  std::vector<std::vector<Touch>> touches(countOf(table.buffers()));
  for (uint32_t i = 0; i < countOf(table.commands()); ++i) {
    const schema::Command &command = *table.commands()->Get(i);
    if (const schema::BlockBegin *begin = command.body_as_BlockBegin()) {
      open.push_back(uses.blocks.size());
      uses.blocks.emplace_back().name = begin->name()->str();
    } else if (command.body_type() == schema::CommandBody::BlockEnd) {
      open.pop_back();
    }
    forEachBuffer(image.root(), command, [&](uint32_t buffer, bool isWrite) {
      touches[buffer].push_back({i, open.empty() ? outsideOfBlocks : uint32_t(open.back()), isWrite});
      const schema::Buffer &source = *table.buffers()->Get(buffer);
      uint32_t input = UINT32_MAX;
      if (source.kind() == schema::BufferKind::input)
        input = source.index();
      else if (source.kind() == schema::BufferKind::output) {
        input = inputOf[source.index()];
        finishedIn[source.index()] = open.empty() ? SIZE_MAX : open.back();
      }
      if (input == UINT32_MAX)
        return;
      uses.touched[input] = true;
      if (open.empty()) {
        uses.streamable[input] = false;
        return;
      }
      if (first[input] == SIZE_MAX)
        first[input] = open.back();
      last[input] = open.back();
    });
  }
  for (uint32_t i = 0; i < program.inputs.size(); ++i) {
    // An input that no command touches has no block to come for.
    uses.streamable[i] = uses.streamable[i] && first[i] != SIZE_MAX;
    if (!uses.streamable[i])
      continue;
    uses.blocks[first[i]].firstTouched.push_back(i);
    uses.blocks[last[i]].lastTouched.push_back(i);
  }
  for (uint32_t i = 0; i < program.outputs.size(); ++i)
    if (program.outputs[i].role == Role::Gradient && inputOf[i] == UINT32_MAX && finishedIn[i] != SIZE_MAX)
      uses.blocks[finishedIn[i]].finished.push_back(i);
  findResults(program, inputOf, touches, uses);
  return uses;
}

BlockUses blockUses(const Program &program) {
  return blockUses(*program.image(), program.image()->programs()[program.index()]);
}

BlockCursor::Place &BlockCursor::placeOf(const Program &program) {
  auto key = std::pair(static_cast<const void *>(program.image().get()), program.index());
  auto found = places_.find(key);
  if (found == places_.end())
    found = places_.try_emplace(key, Place{program, blockUses(program), 0, {}}).first;
  return found->second;
}

const BlockUses &BlockCursor::usesOf(const Program &program) { return placeOf(program).uses; }

size_t BlockCursor::begin(const Program &program) {
  Place &place = placeOf(program);
  if (place.begun == place.uses.blocks.size()) { // it runs again
    place.begun = 0;
    place.open.clear();
  }
  place.open.push_back(place.begun);
  return place.begun++;
}

size_t BlockCursor::end(const Program &program) {
  Place &place = placeOf(program);
  size_t block = place.open.back();
  place.open.pop_back();
  return block;
}

void BlockCursor::reset() {
  for (auto &[key, place] : places_) {
    place.begun = 0;
    place.open.clear();
  }
}

} // namespace segue::inline runtime
