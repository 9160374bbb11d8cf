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
#include "../Tensor/NullHandles.h"
#include "BinaryImage.h"
#include "CommandBuffers.h"
#include "FileTrailer.h"
#include "SignatureHash.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <cstring>
#include <numeric>

namespace segue::inline runtime {

namespace {
constexpr uint32_t dropped = UINT32_MAX;

/// Renumbers the buffers that a command names.
void renumberBuffers(schema::CommandT &command, const std::function<uint32_t(uint32_t)> &to) {
  auto renumber = [&](auto &...views) {
    auto one = [&](auto &view) {
      if (view)
        view->buffer = to(view->buffer);
    };
    (one(views), ...);
  };
  schema::CommandBodyUnion &body = command.body;
  if (auto *launch = body.AsLaunch())
    std::ranges::transform(launch->args, launch->args.begin(), to);
  else if (auto *matmul = body.AsMatmul())
    renumber(matmul->a, matmul->b, matmul->bias, matmul->c);
  else if (auto *at = body.AsAttention())
    renumber(at->q, at->k, at->v, at->mask, at->seed, at->step, at->out, at->lse);
  else if (auto *grad = body.AsAttentionGrad())
    renumber(grad->q, grad->k, grad->v, grad->mask, grad->seed, grad->step, grad->out, grad->lse, grad->grad_out,
             grad->grad_q, grad->grad_k, grad->grad_v);
  else if (auto *copy = body.AsToLayout())
    renumber(copy->source, copy->target);
  else if (auto *fill = body.AsFill())
    fill->buffer = to(fill->buffer);
  else if (auto *call = body.AsLibraryCall())
    for (auto *views : {&call->reads, &call->writes})
      for (auto &view : *views)
        renumber(view);
}

/// A Renumbering knows which elements of a list are kept, and the number that each of them gets.
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

/// What outputs of a program need, and the program without the rest.
class Slicer {
public:
  Slicer(const BinaryImage &image, size_t program)
      : root_(image.root()), info_(image.programs()[program]), inputs_(info_.inputs.size()),
        outputs_(info_.outputs.size()), buffers_(countOf(info_.table->buffers())),
        commands_(countOf(info_.table->commands())), sameAs_(info_.outputs.size(), dropped) {
    for (const Alias &alias : info_.aliases)
      if (alias.required)
        sameAs_[alias.output] = alias.input;
  }

  /// Marks what these outputs need, and returns all outputs that are made with them.
  const std::vector<bool> &mark(const std::vector<bool> &outputs);
  /// Leaves in `program`, which is this one unpacked, what is marked.
  void slice(schema::ProgramT &program) {
    keepMarks(program);
    dropEmptyBlocks(program);
    renumber(program);
  }

private:
  std::vector<bool>::reference markOf(uint32_t number);
  void keepMarks(const schema::ProgramT &program);
  void dropEmptyBlocks(const schema::ProgramT &program);
  void renumber(schema::ProgramT &program);

  const schema::Binary &root_;
  const ProgramInfo &info_;
  Renumbering inputs_, outputs_, buffers_, commands_;
  /// The input that an output is under another name.
  std::vector<uint32_t> sameAs_;
};

/// Returns the mark of the value that lies in a buffer: that of the input, the output or the buffer itself.
std::vector<bool>::reference Slicer::markOf(uint32_t number) {
  const schema::Buffer &buffer = *info_.table->buffers()->Get(number);
  if (buffer.kind() == schema::BufferKind::input)
    return inputs_.isKept[buffer.index()];
  if (buffer.kind() != schema::BufferKind::output)
    return buffers_.isKept[number];
  uint32_t input = sameAs_[buffer.index()];
  return input == dropped ? outputs_.isKept[buffer.index()] : inputs_.isKept[input];
}

const std::vector<bool> &Slicer::mark(const std::vector<bool> &outputs) {
  outputs_.isKept = outputs;
  inputs_.isKept.assign(inputs_.isKept.size(), false);
  buffers_.isKept.assign(buffers_.isKept.size(), false);
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i] && sameAs_[i] != dropped)
      inputs_.isKept[sameAs_[i]] = true;
  // Temporaries that share bytes of an arena are values of their own: each is known by its number.
  for (uint32_t c = countOf(info_.table->commands()); c-- > 0;) {
    const schema::Command &command = *info_.table->commands()->Get(c);
    bool isNeeded = false;
    forEachBuffer(root_, command, [&](uint32_t buffer, bool isWritten) { isNeeded |= isWritten && markOf(buffer); });
    commands_.isKept[c] = isNeeded;
    if (isNeeded)
      forEachBuffer(root_, command, [&](uint32_t buffer, bool) {
        markOf(buffer) = true;
        buffers_.isKept[buffer] = true;
        const schema::Buffer &of = *info_.table->buffers()->Get(buffer);
        if (of.kind() == schema::BufferKind::output)
          outputs_.isKept[of.index()] = true;
      });
  }
  return outputs_.isKept;
}

void Slicer::keepMarks(const schema::ProgramT &program) {
  for (size_t c = 0; c < program.commands.size(); ++c) {
    const schema::CommandBodyUnion &body = program.commands[c]->body;
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

void Slicer::dropEmptyBlocks(const schema::ProgramT &program) {
  struct Open {
    size_t command;
    bool isEmpty = true;
  };
  std::vector<Open> open;
  for (size_t c = 0; c < program.commands.size(); ++c) {
    schema::CommandBody type = program.commands[c]->body.type;
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

void Slicer::renumber(schema::ProgramT &program) {
  commands_.apply(program.commands);
  inputs_.apply(program.inputs);
  outputs_.apply(program.outputs);
  buffers_.apply(program.buffers);
  for (auto &command : program.commands) {
    renumberBuffers(*command, [&](uint32_t buffer) { return buffers_[buffer]; });
    if (auto *save = command->body.AsSave())
      save->output = outputs_[save->output];
    else if (auto *restore = command->body.AsRestore())
      restore->input = inputs_[restore->input];
    else if (auto *free = command->body.AsFree())
      free->input = inputs_[free->input];
  }
  std::vector<uint64_t> ends(program.arenas.size());
  for (auto &buffer : program.buffers)
    if (buffer->kind == schema::BufferKind::input)
      buffer->index = inputs_[buffer->index];
    else if (buffer->kind == schema::BufferKind::output)
      buffer->index = outputs_[buffer->index];
    else if (buffer->kind == schema::BufferKind::arena)
      ends[buffer->index] = std::max(ends[buffer->index], buffer->offset + buffer->bytes);
  for (size_t i = 0; i < ends.size(); ++i) {
    program.arenas[i]->bytes = std::min(program.arenas[i]->bytes, ends[i]);
    program.arenas[i]->lower_bound = std::min(program.arenas[i]->lower_bound, ends[i]);
  }
  std::erase_if(program.aliases, [&](auto &alias) {
    alias->input = inputs_[alias->input];
    alias->output = outputs_[alias->output];
    return alias->input == dropped || alias->output == dropped;
  });
}

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
  Slicer slicer(*image_, whole.index());
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
  requireGiven(isKept, "Binary::slice");
  const Program &whole = program(name);
  if (!whole.savePoints().empty())
    throw Error(ErrorCode::Unsupported, this->name() + ": program \"" + whole.name() +
                                            "\" saves values for another one, which are not sliced with it");
  std::vector<bool> wanted;
  for (const Value &output : whole.outputs())
    wanted.push_back(isKept(output));
  Slicer slicer(*image_, whole.index());
  const std::vector<bool> &made = slicer.mark(wanted);
  for (size_t i = 0; i < wanted.size(); ++i)
    if (made[i] && !wanted[i])
      throw Error(ErrorCode::Unsupported, this->name() + ": program \"" + whole.name() + "\" makes \"" +
                                              whole.output(i).name +
                                              "\" by a command that others need, so that it cannot be left out");
  std::unique_ptr<schema::BinaryT> binary(image_->root().UnPack());
  schema::ProgramT &program = *binary->programs[whole.index()];
  slicer.slice(program);
  hashSignature(program);
  auto image = std::make_shared<BinaryImage>(FileBytes::copy(fileOf(*binary, *image_)), this->name(), LoadOptions());
  image->takeLeaveOf(*image_);
  return Binary(std::move(image));
}

} // namespace segue::inline runtime
