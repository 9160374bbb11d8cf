//===- SliceProgram.cpp - a program for some of its outputs ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// From the last command to the first: one that writes what is needed is kept, and needs
// what it reads. What no kept command names is left out, the rest is numbered anew. The
// result is written as a file is, in memory, and verified as one that comes from a disk.
//
//===----------------------------------------------------------------------===//

#include "../Hash.h"
#include "BinaryImage.h"
#include "FileTrailer.h"
#include "SignatureHash.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <cstring>
#include <numeric>

namespace segue::inline runtime {

namespace {
constexpr uint32_t dropped = UINT32_MAX;

/// Calls `visit(number of a buffer, written)` for each operand; the number may be changed.
template <typename Visit>
void forEachBuffer(const schema::BinaryT &binary, schema::CommandT &command, Visit &&visit) {
  auto views = [&](bool isWritten, auto &...each) {
    auto one = [&](auto &view) {
      if (view)
        visit(view->buffer, isWritten);
    };
    (one(each), ...);
  };
  schema::CommandBodyUnion &body = command.body;
  if (auto *launch = body.AsLaunch()) {
    size_t firstWritten = launch->args.size() - binary.kernels[launch->kernel]->outputs;
    for (size_t i = 0; i < launch->args.size(); ++i)
      visit(launch->args[i], i >= firstWritten);
  } else if (auto *matmul = body.AsMatmul()) {
    views(false, matmul->a, matmul->b, matmul->bias);
    views(true, matmul->c);
  } else if (auto *attention = body.AsAttention()) {
    views(false, attention->q, attention->k, attention->v, attention->mask);
    views(true, attention->out, attention->lse);
  } else if (auto *grad = body.AsAttentionGrad()) {
    views(false, grad->q, grad->k, grad->v, grad->mask, grad->out, grad->lse, grad->grad_out);
    views(true, grad->grad_q, grad->grad_k, grad->grad_v);
  } else if (auto *call = body.AsLibraryCall()) {
    for (auto &view : call->reads)
      views(false, view);
    for (auto &view : call->writes)
      views(true, view);
  } else if (auto *copy = body.AsToLayout()) {
    views(false, copy->source);
    views(true, copy->target);
  } else if (auto *fill = body.AsFill()) {
    visit(fill->buffer, true);
  }
}

/// The numbers that elements of a list have once the others are left out.
class Renumbering {
public:
  explicit Renumbering(size_t count) : isKept(count), to_(count, dropped) {}

  std::vector<bool> isKept;
  uint32_t operator[](size_t from) const { return to_[from]; }

  template <typename Element> void apply(std::vector<Element> &list) {
    size_t next = 0;
    for (size_t i = 0; i < list.size(); ++i)
      if (isKept[i]) {
        to_[i] = uint32_t(next);
        if (next != i)
          list[next] = std::move(list[i]);
        ++next;
      }
    list.resize(next);
  }

private:
  std::vector<uint32_t> to_;
};

class Slicer {
public:
  Slicer(schema::BinaryT &binary, schema::ProgramT &program)
      : binary_(binary), program_(program), inputs_(program.inputs.size()), outputs_(program.outputs.size()),
        buffers_(program.buffers.size()), commands_(program.commands.size()), sameAs_(program.outputs.size(), dropped) {
    for (const auto &alias : program.aliases)
      if (alias->required)
        sameAs_[alias->output] = alias->input;
  }

  /// Marks what these outputs need, and returns all outputs that are made with them.
  const std::vector<bool> &mark(const std::vector<bool> &outputs) {
    outputs_.isKept = outputs;
    inputs_.isKept.assign(inputs_.isKept.size(), false);
    buffers_.isKept.assign(buffers_.isKept.size(), false);
    for (size_t i = 0; i < outputs.size(); ++i)
      if (outputs[i] && sameAs_[i] != dropped)
        inputs_.isKept[sameAs_[i]] = true;
    chooseCommands();
    return outputs_.isKept;
  }
  /// Leaves in the program what is marked.
  void slice() {
    keepMarks();
    dropEmptyBlocks();
    renumber();
  }

private:
  /// Returns the mark of the value that lies in a buffer: that of the input, the output or the buffer itself.
  std::vector<bool>::reference markOf(uint32_t number) {
    const schema::BufferT &buffer = *program_.buffers[number];
    switch (buffer.kind) {
    case schema::BufferKind::input:
      return inputs_.isKept[buffer.index];
    case schema::BufferKind::output:
      if (sameAs_[buffer.index] != dropped)
        return inputs_.isKept[sameAs_[buffer.index]];
      return outputs_.isKept[buffer.index];
    default:
      return buffers_.isKept[number];
    }
  }

  void chooseCommands() {
    // Temporaries that share bytes of an arena are values of their own: each is known by its number.
    for (size_t c = program_.commands.size(); c-- > 0;) {
      schema::CommandT &command = *program_.commands[c];
      bool isNeeded = false;
      forEachBuffer(binary_, command,
                    [&](uint32_t buffer, bool isWritten) { isNeeded |= isWritten && markOf(buffer); });
      commands_.isKept[c] = isNeeded;
      if (isNeeded)
        forEachBuffer(binary_, command, [&](uint32_t buffer, bool) {
          markOf(buffer) = true;
          buffers_.isKept[buffer] = true;
          const schema::BufferT &of = *program_.buffers[buffer];
          if (of.kind == schema::BufferKind::output)
            outputs_.isKept[of.index] = true;
        });
    }
  }

  void keepMarks() {
    for (size_t c = 0; c < program_.commands.size(); ++c) {
      schema::CommandBodyUnion &body = program_.commands[c]->body;
      if (auto *save = body.AsSave())
        commands_.isKept[c] = outputs_.isKept[save->output];
      else if (auto *restore = body.AsRestore())
        commands_.isKept[c] = inputs_.isKept[restore->input];
      else if (auto *free = body.AsFree())
        commands_.isKept[c] = inputs_.isKept[free->input];
      else if (body.type == schema::CommandBody::SetPhase)
        commands_.isKept[c] = true;
    }
  }

  void dropEmptyBlocks() {
    struct Open {
      size_t command;
      bool isEmpty = true;
    };
    std::vector<Open> open;
    for (size_t c = 0; c < program_.commands.size(); ++c) {
      schema::CommandBody type = program_.commands[c]->body.type;
      if (type == schema::CommandBody::BlockBegin) {
        open.push_back({c});
      } else if (type == schema::CommandBody::BlockEnd) {
        Open block = open.back();
        open.pop_back();
        commands_.isKept[block.command] = commands_.isKept[c] = !block.isEmpty;
        if (!block.isEmpty && !open.empty())
          open.back().isEmpty = false;
      } else if (commands_.isKept[c] && !open.empty()) {
        open.back().isEmpty = false;
      }
    }
  }

  void renumber() {
    commands_.apply(program_.commands);
    inputs_.apply(program_.inputs);
    outputs_.apply(program_.outputs);
    buffers_.apply(program_.buffers);
    for (auto &command : program_.commands) {
      forEachBuffer(binary_, *command, [&](uint32_t &buffer, bool) { buffer = buffers_[buffer]; });
      if (auto *save = command->body.AsSave())
        save->output = outputs_[save->output];
      else if (auto *restore = command->body.AsRestore())
        restore->input = inputs_[restore->input];
      else if (auto *free = command->body.AsFree())
        free->input = inputs_[free->input];
    }
    std::vector<uint64_t> ends(program_.arenas.size());
    for (auto &buffer : program_.buffers)
      if (buffer->kind == schema::BufferKind::input)
        buffer->index = inputs_[buffer->index];
      else if (buffer->kind == schema::BufferKind::output)
        buffer->index = outputs_[buffer->index];
      else if (buffer->kind == schema::BufferKind::arena)
        ends[buffer->index] = std::max(ends[buffer->index], buffer->offset + buffer->bytes);
    for (size_t i = 0; i < ends.size(); ++i) {
      program_.arenas[i]->bytes = std::min(program_.arenas[i]->bytes, ends[i]);
      program_.arenas[i]->lower_bound = std::min(program_.arenas[i]->lower_bound, ends[i]);
    }
    std::erase_if(program_.aliases, [&](auto &alias) {
      alias->input = inputs_[alias->input];
      alias->output = outputs_[alias->output];
      return alias->input == dropped || alias->output == dropped;
    });
  }

  schema::BinaryT &binary_;
  schema::ProgramT &program_;
  Renumbering inputs_, outputs_, buffers_, commands_;
  /// The input that an output is under another name.
  std::vector<uint32_t> sameAs_;
};

void hashSignature(schema::ProgramT &program) {
  flatbuffers::FlatBufferBuilder scratch;
  scratch.Finish(schema::Program::Pack(scratch, &program));
  const auto &table = *flatbuffers::GetRoot<schema::Program>(scratch.GetBufferPointer());
  program.signature_hash = schema::signatureHash(table);
  program.interface_hash = schema::interfaceHash(table);
}

/// Returns the file of `binary`, whose segments have the bytes of those of `from`.
std::vector<std::byte> fileOf(schema::BinaryT &binary, const BinaryImage &from) {
  auto pack = [&] {
    flatbuffers::FlatBufferBuilder builder;
    schema::FinishSizePrefixedBinaryBuffer(builder, schema::Binary::Pack(builder, &binary));
    return builder;
  };
  constexpr uint64_t alignment = 64;
  auto aligned = [&](uint64_t offset) { return (offset + alignment - 1) / alignment * alignment; };
  // A number takes the same room whatever it is, unless it is 0.
  uint64_t end = pack().GetSize();
  for (auto &segment : binary.segments) {
    segment->offset = aligned(end);
    end = segment->offset + segment->length;
  }
  flatbuffers::FlatBufferBuilder builder = pack();
  std::vector<std::byte> file(end + sizeof(FileTrailer));
  std::memcpy(file.data(), builder.GetBufferPointer(), builder.GetSize());
  for (uint32_t i = 0; i < binary.segments.size(); ++i)
    std::ranges::copy(from.segment(i), file.begin() + ptrdiff_t(binary.segments[i]->offset));
  HashOfPieces hash;
  hash.add(file.data(), end);
  FileTrailer trailer{hash.value(), file.size(), builder.GetSize(), {}};
  std::ranges::copy(trailerMagic, trailer.magic);
  std::memcpy(file.data() + end, &trailer, sizeof(trailer));
  return file;
}
} // namespace

std::vector<size_t> Binary::outputsMadeTogether(std::string_view name) const {
  const Program &whole = program(name);
  std::unique_ptr<schema::BinaryT> binary(image_->root().UnPack());
  Slicer slicer(*binary, *binary->programs[whole.index()]);
  std::vector<size_t> first(whole.outputs().size());
  std::iota(first.begin(), first.end(), 0);
  for (size_t i = 0; i < first.size(); ++i) {
    std::vector<bool> one(first.size());
    one[i] = true;
    const std::vector<bool> &with = slicer.mark(one);
    for (size_t k = 0; k < first.size(); ++k)
      if (size_t from = first[k], to = first[i]; with[k] && from != to)
        std::ranges::replace(first, std::max(from, to), std::min(from, to));
  }
  return first;
}

Binary Binary::slice(std::string_view name, const std::function<bool(const Value &)> &isKept) const {
  const Program &whole = program(name);
  std::unique_ptr<schema::BinaryT> binary(image_->root().UnPack());
  schema::ProgramT &program = *binary->programs[whole.index()];
  if (!whole.savePoints().empty())
    throw Error(ErrorCode::Unsupported, this->name() + ": program \"" + whole.name() +
                                            "\" saves values for another one, which are not sliced with it");
  std::vector<bool> wanted;
  for (const Value &output : whole.outputs())
    wanted.push_back(isKept(output));
  Slicer slicer(*binary, program);
  const std::vector<bool> &made = slicer.mark(wanted);
  for (size_t i = 0; i < wanted.size(); ++i)
    if (made[i] && !wanted[i])
      throw Error(ErrorCode::Unsupported, this->name() + ": program \"" + whole.name() + "\" makes \"" +
                                              whole.output(i).name +
                                              "\" by a command that others need, so that it cannot be left out");
  slicer.slice();
  hashSignature(program);
  auto image = std::make_shared<BinaryImage>(FileBytes::copy(fileOf(*binary, *image_)), this->name(), LoadOptions());
  image->takeLeaveOf(*image_);
  return Binary(std::move(image));
}

} // namespace segue::inline runtime
