//===- BlockUses.cpp - which block reads which input ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/BlockUses.h"
#include "BinaryImage.h"

namespace segue::inline runtime {

template <typename Touch> static void forEachBuffer(const schema::Command &command, Touch &&touch) {
  auto views = [&](std::initializer_list<const schema::View *> all) {
    for (const schema::View *view : all)
      if (view)
        touch(view->buffer());
  };
  if (const schema::Launch *launch = command.body_as_Launch()) {
    for (uint32_t buffer : numbers(launch->args()))
      touch(buffer);
  } else if (const schema::Matmul *matmul = command.body_as_Matmul()) {
    views({matmul->a(), matmul->b(), matmul->c(), matmul->bias()});
  } else if (const schema::Attention *at = command.body_as_Attention()) {
    views({at->q(), at->k(), at->v(), at->mask(), at->out(), at->lse()});
  } else if (const schema::AttentionGrad *grad = command.body_as_AttentionGrad()) {
    views({grad->q(), grad->k(), grad->v(), grad->mask(), grad->out(), grad->lse(), grad->grad_out(), grad->grad_q(),
           grad->grad_k(), grad->grad_v()});
  } else if (const schema::ToLayout *copy = command.body_as_ToLayout()) {
    views({copy->source(), copy->target()});
  } else if (const schema::Fill *fill = command.body_as_Fill()) {
    touch(fill->buffer());
  }
}

/// Values that outlive a submit and belong to a block of the model.
static bool canStream(Role role) {
  return role == Role::Parameter || role == Role::Frozen || role == Role::Gradient || role == Role::State;
}

BlockUses blockUses(const ProgramInfo &program) {
  BlockUses uses;
  uses.streamable.resize(program.inputs.size());
  for (size_t i = 0; i < program.inputs.size(); ++i)
    uses.streamable[i] = canStream(program.inputs[i].role);
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
  for (uint32_t i = 0; i < countOf(table.commands()); ++i) {
    const schema::Command &command = *table.commands()->Get(i);
    if (const schema::SetPhase *set = command.body_as_SetPhase())
      uses.phases.push_back(Phase(set->phase()));
    if (const schema::BlockBegin *begin = command.body_as_BlockBegin()) {
      open.push_back(uses.blocks.size());
      uses.blocks.push_back({begin->name()->str(), {}, {}});
    } else if (command.body_type() == schema::CommandBody::BlockEnd) {
      open.pop_back();
    }
    forEachBuffer(command, [&](uint32_t buffer) {
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
    // What no command touches has no block to come for.
    uses.streamable[i] = uses.streamable[i] && first[i] != SIZE_MAX;
    if (!uses.streamable[i])
      continue;
    uses.blocks[first[i]].firstTouched.push_back(i);
    uses.blocks[last[i]].lastTouched.push_back(i);
  }
  for (uint32_t i = 0; i < program.outputs.size(); ++i)
    if (program.outputs[i].role == Role::Gradient && inputOf[i] == UINT32_MAX && finishedIn[i] != SIZE_MAX)
      uses.blocks[finishedIn[i]].finished.push_back(i);
  return uses;
}

BlockUses blockUses(const Program &program) { return blockUses(program.image()->programs()[program.index()]); }

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
