//===- VerifyBinary.cpp - a file is untrusted until this has passed -------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Two steps. verifyFile: trailer, hash, FlatBuffer structure, versions. Then
// verifyTables: each index, offset, size, shape product, alias and kernel
// reference of each program, so that nothing after it needs to look again.
// Sizes are compared by rangeFits and the checked functions of Layout.h alone.
//
//===----------------------------------------------------------------------===//

#include "BinaryImage.h"
#include "CostOfCommand.h"
#include "CubinHeader.h"
#include "FileTrailer.h"
#include "PhaseOrder.h"
#include "RetargetView.h"
#include "SignatureHash.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Events.h"
#include "segue/runtime/Transfer/TransferPlan.h"
#include <algorithm>
#include <cstring>
#include <set>

namespace segue::inline runtime {

//===----------------------------------------------------------------------===//
// The file
//===----------------------------------------------------------------------===//

const schema::Binary *verifyFile(std::span<const std::byte> file, const std::string &name) {
  auto corrupt = [&](const std::string &what, int line = __builtin_LINE()) {
    return BrokenRule(ErrorCode::FileCorrupt, name + ": " + what, line);
  };
  FileTrailer trailer;
  if (file.size() < sizeof(FileTrailer))
    throw corrupt("only " + std::to_string(file.size()) + " bytes long; not a .segue file, or cut off");
  std::span<const std::byte> body = file.first(file.size() - sizeof(FileTrailer));
  std::memcpy(&trailer, file.data() + body.size(), sizeof(FileTrailer));
  if (std::string_view(trailer.magic, sizeof(trailer.magic)) != trailerMagic)
    throw corrupt("does not end with the trailer of a .segue file; cut off, or another kind of file");
  if (trailer.fileBytes != file.size())
    throw corrupt("its trailer says " + std::to_string(trailer.fileBytes) + " bytes, but it has " +
                  std::to_string(file.size()));
  if (XXH3_64bits(body.data(), body.size()) != trailer.hash)
    throw corrupt("its hash does not match its trailer: the file was changed or damaged; compile or copy it again");
  if (trailer.flatBufferBytes > body.size() || trailer.flatBufferBytes < 2 * sizeof(uint32_t))
    throw corrupt("its trailer names a FlatBuffer of " + std::to_string(trailer.flatBufferBytes) +
                  " bytes in a file of " + std::to_string(file.size()));

  auto *data = reinterpret_cast<const uint8_t *>(body.data());
  size_t bytes = size_t(trailer.flatBufferBytes);
  if (uint64_t(flatbuffers::GetPrefixedSize(data)) + sizeof(uint32_t) > bytes)
    throw corrupt("its FlatBuffer is longer than its trailer says");
  // The file may have as many tables as fit in it; the depth bounds the stack.
  flatbuffers::Verifier verifier(data, bytes, /*max_depth=*/64, /*max_tables=*/flatbuffers::uoffset_t(bytes / 4));
  if (!schema::VerifySizePrefixedBinaryBuffer(verifier))
    throw corrupt("its FlatBuffer breaks the rules of schemas/binary.fbs");

  const schema::Binary *root = schema::GetSizePrefixedBinary(data);
  if (root->version_major() != Binary::versionMajor)
    throw BrokenRule(ErrorCode::VersionUnsupported, name + ": version " + std::to_string(root->version_major()) + "." +
                                                   std::to_string(root->version_minor()) + "; this runtime reads " +
                                                   std::to_string(Binary::versionMajor) +
                                                   ".x; compile it again with this release");
  if (root->version_minor() > Binary::versionMinor)
    throw BrokenRule(ErrorCode::VersionUnsupported,
                name + ": version " + std::to_string(root->version_major()) + "." +
                    std::to_string(root->version_minor()) + "; this runtime reads up to " +
                    std::to_string(Binary::versionMajor) + "." + std::to_string(Binary::versionMinor) +
                    "; update the runtime, or compile the file with the older release");
  if (root->layout_vocabulary() > Binary::layoutVocabulary)
    throw BrokenRule(ErrorCode::VersionUnsupported,
                name + ": layout vocabulary " + std::to_string(root->layout_vocabulary()) +
                    "; this runtime knows up to " + std::to_string(Binary::layoutVocabulary) + "; update the runtime");
  return root;
}

//===----------------------------------------------------------------------===//
// The tables
//===----------------------------------------------------------------------===//

namespace {
/// Checks one program. Messages start with the file, the program and, inside
/// a command, its number and kind.
class ProgramVerifier {
public:
  ProgramVerifier(const schema::Binary &root, const schema::Program &program, const std::string &file)
      : root_(root), program_(program), where_(file + ": program \"" + program.name()->str() + "\"") {}

  void verify() {
    verifyValues(program_.inputs(), "input", inputs_);
    verifyValues(program_.outputs(), "output", outputs_);
    verifyArenas();
    verifyAliases();
    verifyBuffers();
    freed_.assign(inputs_.size(), false);
    for (uint32_t i = 0; i < countOf(program_.commands()); ++i)
      verifyCommand(i, *program_.commands()->Get(i));
    command_.clear();
    if (openBlocks_ != 0)
      fail(std::to_string(openBlocks_) + " blocks are not closed");
    verifySavePoints();
    verifyAlternatives(program_.inputs(), "input", inputs_);
    verifyAlternatives(program_.outputs(), "output", outputs_);
    verifyHashes();
  }

private:
  [[noreturn]] void fail(const std::string &what, int line = __builtin_LINE()) const {
    throw BrokenRule(ErrorCode::FileCorrupt, where_ + command_ + ": " + what, line);
  }
  void check(bool holds, const std::string &what, int line = __builtin_LINE()) const {
    if (!holds)
      fail(what, line);
  }
  static std::string num(uint64_t number) { return std::to_string(number); }

  void verifyLocation(int32_t location) {
    check(location >= -1 && location < int64_t(countOf(root_.locations())),
          "location " + std::to_string(location) + " of " + num(countOf(root_.locations())));
  }

  void verifyValues(const flatbuffers::Vector<flatbuffers::Offset<schema::Value>> *values, const std::string &kind,
                    std::vector<TensorDesc> &descs) {
    std::set<std::string_view> names;
    for (uint32_t i = 0; i < countOf(values); ++i) {
      const schema::Value &value = *values->Get(i);
      std::string which = kind + " " + num(i) + " (\"" + value.name()->str() + "\")";
      check(names.insert(value.name()->string_view()).second, which + ": its name is taken");
      check(uint8_t(value.role()) <= uint8_t(schema::Role::statistics), which + ": role " + num(uint8_t(value.role())));
      verifyLocation(value.location());
      try {
        descs.push_back(readTensorDesc(*value.desc()));
      } catch (const Error &error) {
        fail(which + ": " + error.what());
      }
      check(descs.back().layout.alignment >= byteSize(descs.back().element),
            which + ": aligned to less than an element");
      check(kind == "input" || isInjective(descs.back().shape, descs.back().layout),
            which + ": two elements in one place");
    }
  }

  void verifyArenas() {
    std::set<schema::Space> spaces;
    for (uint32_t i = 0; i < countOf(program_.arenas()); ++i) {
      const schema::Arena &arena = *program_.arenas()->Get(i);
      check(arena.bytes() <= uint64_t(INT64_MAX), "an arena of " + num(arena.bytes()) + " bytes");
      check(uint8_t(arena.space()) <= uint8_t(schema::Space::device_l1), "space " + num(uint8_t(arena.space())));
      check(spaces.insert(arena.space()).second, "two arenas in " + std::string(name(Space(arena.space()))));
      check(std::has_single_bit(arena.alignment()), "arena alignment " + num(arena.alignment()));
    }
  }

  void verifyAliases() {
    std::set<uint32_t> inputs, outputs;
    inPlace_.assign(inputs_.size(), false);
    outputUses_.assign(outputs_.size(), {});
    for (uint32_t i = 0; i < countOf(program_.aliases()); ++i) {
      const schema::Alias &alias = *program_.aliases()->Get(i);
      std::string which = "alias " + num(i);
      check(alias.input() < inputs_.size(), which + ": input " + num(alias.input()) + " of " + num(inputs_.size()));
      check(alias.output() < outputs_.size(),
            which + ": output " + num(alias.output()) + " of " + num(outputs_.size()));
      check(inputs.insert(alias.input()).second && outputs.insert(alias.output()).second,
            which + ": an input or output with two aliases");
      const TensorDesc &input = inputs_[alias.input()], &output = outputs_[alias.output()];
      check(input.shape == output.shape && input.element == output.element &&
                satisfies(input.shape, input.layout, output.layout, true),
            which + ": joins " + input.str() + " and " + output.str());
      inPlace_[alias.input()] = alias.required();
      outputUses_[alias.output()].aliased = alias.required();
      outputUses_[alias.output()].written = true;
    }
  }

  void verifyBuffers() {
    for (uint32_t i = 0; i < countOf(program_.buffers()); ++i) {
      const schema::Buffer &buffer = *program_.buffers()->Get(i);
      std::string which = "buffer " + num(i);
      switch (buffer.kind()) {
      case schema::BufferKind::input:
        check(buffer.index() < inputs_.size(), which + ": input " + num(buffer.index()) + " of " + num(inputs_.size()));
        check(buffer.offset() == 0 && rangeFits(0, buffer.bytes(), inputs_[buffer.index()].spanBytes()),
              which + ": " + num(buffer.bytes()) + " bytes of an input of " + num(inputs_[buffer.index()].spanBytes()));
        break;
      case schema::BufferKind::output:
        check(buffer.index() < outputs_.size(),
              which + ": output " + num(buffer.index()) + " of " + num(outputs_.size()));
        check(buffer.offset() == 0 && rangeFits(0, buffer.bytes(), outputs_[buffer.index()].spanBytes()),
              which + ": " + num(buffer.bytes()) + " bytes of an output of " +
                  num(outputs_[buffer.index()].spanBytes()));
        break;
      case schema::BufferKind::arena: {
        check(buffer.index() < countOf(program_.arenas()),
              which + ": arena " + num(buffer.index()) + " of " + num(countOf(program_.arenas())));
        uint64_t arenaBytes = program_.arenas()->Get(buffer.index())->bytes();
        check(rangeFits(buffer.offset(), buffer.bytes(), arenaBytes), which + ": " + num(buffer.bytes()) +
                                                                          " bytes at " + num(buffer.offset()) +
                                                                          " of an arena of " + num(arenaBytes));
        if (auto element = buffer.element()) {
          check(*element >= schema::ElementType::MIN && *element <= schema::ElementType::MAX &&
                    buffer.bytes() % byteSize(ElementType(*element)) == 0,
                which + ": " + num(buffer.bytes()) + " bytes cannot hold elements of type " + num(uint8_t(*element)));
          check(alignmentOf(buffer) >= byteSize(ElementType(*element)), which + ": elements are not aligned");
        }
        break;
      }
      case schema::BufferKind::constant: {
        check(buffer.index() < countOf(root_.segments()),
              which + ": segment " + num(buffer.index()) + " of " + num(countOf(root_.segments())));
        const schema::Segment &segment = *root_.segments()->Get(buffer.index());
        check(segment.kind() == schema::SegmentKind::constants, which + ": its segment holds no constants");
        check(rangeFits(buffer.offset(), buffer.bytes(), segment.length()),
              which + ": " + num(buffer.bytes()) + " bytes at " + num(buffer.offset()) + " of a segment of " +
                  num(segment.length()));
        break;
      }
      default:
        fail(which + ": kind " + num(uint8_t(buffer.kind())));
      }
    }
  }

  /// The greatest alignment that the start of a buffer is known to have.
  uint64_t alignmentOf(const schema::Buffer &buffer) const {
    auto lowestBit = [](uint64_t number, uint64_t bound) { return number ? std::min(number & -number, bound) : bound; };
    switch (buffer.kind()) {
    case schema::BufferKind::input:
      return inputs_[buffer.index()].layout.alignment;
    case schema::BufferKind::output:
      return outputs_[buffer.index()].layout.alignment;
    case schema::BufferKind::arena:
      return lowestBit(buffer.offset(), program_.arenas()->Get(buffer.index())->alignment());
    case schema::BufferKind::constant:
      return lowestBit(root_.segments()->Get(buffer.index())->offset() + buffer.offset(), 4096);
    }
    return 1;
  }

  Space spaceOf(const schema::Buffer &buffer) const {
    switch (buffer.kind()) {
    case schema::BufferKind::input:
      return inputs_[buffer.index()].layout.space;
    case schema::BufferKind::output:
      return outputs_[buffer.index()].layout.space;
    case schema::BufferKind::arena:
      return Space(program_.arenas()->Get(buffer.index())->space());
    case schema::BufferKind::constant:
      break;
    }
    return Space::DeviceDram; // where the runtime puts it
  }

  const schema::Buffer &verifyAccess(uint32_t index, bool written) {
    check(index < countOf(program_.buffers()), "buffer " + num(index) + " of " + num(countOf(program_.buffers())));
    const schema::Buffer &buffer = *program_.buffers()->Get(index);
    if (buffer.kind() == schema::BufferKind::input) {
      check(!freed_[buffer.index()], "uses input " + num(buffer.index()) + " after it was freed");
      check(!written || inPlace_[buffer.index()],
            "writes input " + num(buffer.index()) + ", which no output is required to alias");
    }
    check(!written || buffer.kind() != schema::BufferKind::constant, "writes constant buffer " + num(index));
    check(currentCommand_->body_type() == schema::CommandBody::ToLayout || !isHostSpace(spaceOf(buffer)),
          "computes on buffer " + num(index) + " in " + std::string(name(spaceOf(buffer))) +
              "; only to_layout reaches the memory of the host");
    if (buffer.kind() == schema::BufferKind::output) {
      OutputUse &use = outputUses_[buffer.index()];
      check(!use.saved, "uses output " + num(buffer.index()) + " after it was saved");
      use.commands += use.command != currentCommand_;
      use.command = currentCommand_;
      use.read |= !written;
      use.written |= written;
    }
    return buffer;
  }

  /// The layout of a view of to_layout, which may have tiles and rows.
  TensorDesc laidDesc(const schema::View *view, const std::string &operand) const {
    auto shape = numbers(view->shape()), strides = numbers(view->strides());
    auto tile = numbers(view->tile());
    TensorDesc desc({shape.begin(), shape.end()}, ElementType(view->element()));
    desc.layout.strides.assign(strides.begin(), strides.end());
    desc.layout.tile.assign(tile.begin(), tile.end());
    desc.layout.storage = StorageType(view->storage());
    desc.layout.zeroPoints = view->zero_points();
    try {
      desc.validate();
    } catch (const Error &error) {
      fail(operand + ": " + error.what());
    }
    return desc;
  }

  void verifyLaidView(const schema::View *view, const std::string &operand, const schema::Buffer &buffer,
                      bool written) {
    TensorDesc desc = laidDesc(view, operand);
    uint64_t span = desc.spanBytes();
    check(rangeFits(view->offset(), span, buffer.bytes()),
          operand + ": " + num(span) + " bytes at " + num(view->offset()) + " of a buffer of " + num(buffer.bytes()));
    // Scales start at a multiple of 64 bytes.
    bool codes = isQuantized(desc.layout.storage);
    uint64_t unit = codes ? 64 : byteSize(desc.element), least = codes ? alignof(float) : unit;
    check(view->offset() % unit == 0 && alignmentOf(buffer) >= least, operand + ": elements or scales are not aligned");
    check(!written || isInjective(desc.shape, desc.layout), operand + ": is written and has two elements in one place");
  }

  /// Verifies a view. With `laid` it may have tiles and rows.
  void verifyView(const schema::View *view, const std::string &operand, size_t rank, bool written, bool laid = false) {
    const schema::Buffer &buffer = verifyAccess(view->buffer(), written);
    check(uint8_t(view->element()) <= uint8_t(schema::ElementType::MAX),
          operand + ": element type " + num(uint8_t(view->element())));
    uint64_t elementBytes = byteSize(ElementType(view->element()));
    auto shape = numbers(view->shape()), strides = numbers(view->strides());
    check(shape.size() == strides.size(), operand + ": strides do not match the number of dimensions");
    check(rank == anyRank || shape.size() == rank,
          operand + ": " + num(shape.size()) + " dimensions, " + num(rank) + " needed");
    if (written && buffer.kind() == schema::BufferKind::output)
      outputUses_[buffer.index()].view = view;
    if (countOf(view->tile()) || view->storage() != schema::Storage::element || view->zero_points()) {
      check(laid, operand + ": has tiles or rows, which only to_layout and the b of a matmul may have");
      return verifyLaidView(view, operand, buffer, written);
    }
    auto span = checkedSpanBytes(shape, strides, elementBytes);
    check(span.has_value(), operand + ": extents or strides are negative or overflow");
    check(rangeFits(view->offset(), *span, buffer.bytes()),
          operand + ": " + num(*span) + " bytes at " + num(view->offset()) + " of a buffer of " + num(buffer.bytes()));
    check(view->offset() % elementBytes == 0 && alignmentOf(buffer) >= elementBytes,
          operand + ": elements are not aligned");
    check(!written || isInjective(shape, strides), operand + ": is written and has two elements in one place");
  }

  static bool sameExtents(const schema::View *a, std::initializer_list<int64_t> shape) {
    return std::ranges::equal(numbers(a->shape()), shape);
  }

  void verifyCommand(uint32_t index, const schema::Command &command);
  void verifyPhase(schema::Phase given);
  void verifyLaunch(const schema::Launch &launch);
  void verifyMatmul(const schema::Matmul &matmul);
  void verifyLibraryCall(const schema::LibraryCall &call);
  template <typename Table> void verifyAttentionOperands(const Table &attention, bool outWritten);
  void verifySavePoints();
  void verifyRecompute(const schema::SavePoint &point, const std::string &which) const;
  void verifyAlternatives(const flatbuffers::Vector<flatbuffers::Offset<schema::Value>> *values,
                          const std::string &kind, const std::vector<TensorDesc> &descs);
  void verifyHashes();

  /// The commands that name an output's buffer, as far as alternatives depend
  /// on them.
  struct OutputUse {
    uint32_t commands = 0;
    /// The last of them, and what it writes.
    const schema::Command *command = nullptr;
    const schema::View *view = nullptr;
    bool read = false;
    /// An earlier command has written it, or it is an input's.
    bool written = false;
    /// A Save has given it away; until version 0.2 that said less.
    bool saved = false;
    /// True if it must lie in an input's storage.
    bool aliased = false;
  };
  bool canWrite(const OutputUse &use, const TensorDesc &declared, const TensorDesc &alternative) const;

  static constexpr size_t anyRank = SIZE_MAX;

  const schema::Binary &root_;
  const schema::Program &program_;
  std::string where_, command_;
  std::vector<TensorDesc> inputs_, outputs_;
  std::vector<OutputUse> outputUses_;
  const schema::Command *currentCommand_ = nullptr;
  /// Flags per input: it has a required alias; it was freed by an earlier command.
  std::vector<bool> inPlace_, freed_;
  uint64_t openBlocks_ = 0;
  /// The phase that the commands entered last.
  std::optional<Phase> phase_;
};
} // namespace

void ProgramVerifier::verifyPhase(schema::Phase given) {
  check(uint8_t(given) <= uint8_t(schema::Phase::step_end), "there is no phase " + num(uint8_t(given)));
  Phase phase = Phase(given);
  std::string which(name(phase));
  check(schema::isProgramPhase(schema::StepPart(given)),
        "enters " + which + ", but steps begin and end outside of programs");
  check(openBlocks_ == 0, "enters " + which + " inside of a block");
  check(!phase_ || *phase_ == phase || canFollow(*phase_, phase),
        which + " cannot follow " + std::string(name(phase_.value_or(phase))));
  phase_ = phase;
}

void ProgramVerifier::verifyLaunch(const schema::Launch &launch) {
  check(launch.kernel() < countOf(root_.kernels()),
        "kernel " + num(launch.kernel()) + " of " + num(countOf(root_.kernels())));
  const schema::Kernel &kernel = *root_.kernels()->Get(launch.kernel());
  auto args = numbers(launch.args());
  auto offsets = numbers(launch.offsets());
  check(args.size() == kernel.arguments(),
        num(args.size()) + " arguments for kernel \"" + kernel.name()->str() + "\" of " + num(kernel.arguments()));
  check(offsets.empty() || offsets.size() == args.size(), num(offsets.size()) + " offsets for its arguments");
  check(launch.range() <= uint64_t(INT64_MAX), "range " + num(launch.range()));
  check(launch.grain() >= 1 && launch.grain() <= uint64_t(INT64_MAX), "grain " + num(launch.grain()));
  uint64_t written = 1; // of the largest output
  for (size_t i = 0; i < args.size(); ++i) {
    bool isOutput = i >= args.size() - kernel.outputs();
    const schema::Buffer &buffer = verifyAccess(args[i], isOutput);
    written = std::max(written, isOutput ? buffer.bytes() : 0);
    auto perRange = checkedMultiply(launch.range(), kernel.bytes_per_unit()->Get(uint32_t(i)));
    auto sum = perRange ? checkedAdd(*perRange, kernel.fixed_bytes()->Get(uint32_t(i))) : std::nullopt;
    uint64_t needed = sum.value_or(UINT64_MAX); // fits in no buffer
    check(rangeFits(offsets.empty() ? 0 : offsets[i], needed, buffer.bytes()),
          "argument " + num(i) + " needs " + num(needed) + " bytes of a buffer of " + num(buffer.bytes()));
  }
  // Units of the range run at the same time: each writes a byte of its own. Without
  // that, a kernel whose arguments do not grow with the range would have no end.
  check(launch.range() <= written,
        "range " + num(launch.range()) + " of a kernel that writes " + num(written) + " bytes at most");
}

void ProgramVerifier::verifyMatmul(const schema::Matmul &matmul) {
  verifyView(matmul.a(), "a", 3, false);
  bool codes = matmul.b()->storage() != schema::Storage::element;
  verifyView(matmul.b(), "b", codes ? 2 : 3, false, /*laid=*/codes);
  verifyView(matmul.c(), "c", 3, true);
  auto a = numbers(matmul.a()->shape()), c = numbers(matmul.c()->shape());
  bool fits = codes                   ? a[0] == 1 && (matmul.b_transposed() ? sameExtents(matmul.b(), {c[2], a[2]})
                                                                            : sameExtents(matmul.b(), {a[2], c[2]}))
              : matmul.b_transposed() ? false
                                      : sameExtents(matmul.b(), {a[0], a[2], c[2]});
  check(fits && c[0] == a[0] && c[1] == a[1], "the shapes of a, b and c do not fit together");
  if (codes) {
    auto strides = numbers(matmul.b()->strides()), rows = numbers(matmul.a()->strides());
    check(countOf(matmul.b()->tile()) == 0 && strides[1] == 1, "the rows of codes of b are not contiguous");
    check(a[2] < 2 || rows[2] == 1, "the rows of a are not contiguous");
    check(!matmul.accumulate(), "accumulates a product with codes");
  }
  check(matmul.activation() == schema::Activation::none, "activation " + num(uint8_t(matmul.activation())));
  if (matmul.bias()) {
    verifyView(matmul.bias(), "bias", 1, false);
    check(sameExtents(matmul.bias(), {c[2]}), "the bias does not fit c");
    check(numbers(matmul.bias()->strides())[0] == 1 || c[2] == 1, "the bias is not dense");
  }
}

template <typename Table> void ProgramVerifier::verifyAttentionOperands(const Table &attention, bool outWritten) {
  verifyView(attention.q(), "q", 4, false);
  verifyView(attention.k(), "k", 4, false);
  verifyView(attention.v(), "v", 4, false);
  verifyView(attention.out(), "out", 4, outWritten);
  verifyView(attention.lse(), "lse", 3, outWritten);
  auto q = numbers(attention.q()->shape()), k = numbers(attention.k()->shape());
  check(k[0] == q[0] && k[1] == q[1] && k[3] == q[3] && std::ranges::equal(k, numbers(attention.v()->shape())) &&
            std::ranges::equal(q, numbers(attention.out()->shape())) &&
            sameExtents(attention.lse(), {q[0], q[1], q[2]}),
        "the shapes of q, k, v, out and lse do not fit together");
  check(attention.lse()->element() == schema::ElementType::f32, "lse is not f32");
  auto lse = numbers(attention.lse()->strides());
  check(isDense(numbers(attention.lse()->shape()), lse), "lse is not dense");
  check(attention.dropout() >= 0 && attention.dropout() < 1, "dropout is not in [0, 1)");
  for (const schema::View *number : {attention.seed(), attention.step()}) {
    check(!number == (attention.dropout() == 0), "seed and step belong to dropout");
    if (!number)
      continue;
    verifyView(number, number == attention.seed() ? "seed" : "step", 0, false);
    check(number->element() == schema::ElementType::i64, "seed and step must be i64");
  }
  if (!attention.mask())
    return;
  verifyView(attention.mask(), "mask", 4, false);
  auto mask = numbers(attention.mask()->shape());
  const int64_t scores[] = {q[0], q[1], q[2], k[2]};
  for (size_t dim = 0; dim < 4; ++dim)
    check(mask[dim] == scores[dim] || mask[dim] == 1, "the mask does not broadcast to the scores");
}

void ProgramVerifier::verifyLibraryCall(const schema::LibraryCall &call) {
  const LibraryOperation *operation = findLibraryOperation(call.operation()->string_view());
  if (!operation)
    throw BrokenRule(ErrorCode::VersionUnsupported, where_ + command_ + ": operation \"" + call.operation()->str() +
                                                        "\" is not known to this runtime; update it");
  for (const auto *views : {call.reads(), call.writes()})
    for (uint32_t i = 0; i < views->size(); ++i) {
      bool written = views == call.writes();
      std::string operand = (written ? "result " : "operand ") + num(i);
      verifyView(views->Get(i), operand, anyRank, written);
      check(isDense(numbers(views->Get(i)->shape()), numbers(views->Get(i)->strides())), operand + " is not dense");
    }
  std::string problem = operation->findProblem(librarySpec(call));
  check(problem.empty(), call.operation()->str() + ": " + problem);
}

void ProgramVerifier::verifyCommand(uint32_t index, const schema::Command &command) {
  command_ = ", command " + num(index);
  currentCommand_ = &command;
  if (uint8_t(command.body_type()) < uint8_t(schema::CommandBody::MIN) ||
      uint8_t(command.body_type()) > uint8_t(schema::CommandBody::MAX))
    throw BrokenRule(ErrorCode::VersionUnsupported, where_ + command_ + ": kind " + num(uint8_t(command.body_type())) +
                                                   " is not known to this runtime; update it");
  if (command.body_type() == schema::CommandBody::NONE)
    fail("it has no body");
  command_ += std::string(" (") + schema::EnumNameCommandBody(command.body_type()) + ")";
  verifyLocation(command.location());
  switch (command.body_type()) {
  case schema::CommandBody::Launch:
    return verifyLaunch(*command.body_as_Launch());
  case schema::CommandBody::Matmul:
    return verifyMatmul(*command.body_as_Matmul());
  case schema::CommandBody::Attention:
    return verifyAttentionOperands(*command.body_as_Attention(), true);
  case schema::CommandBody::AttentionGrad: {
    const schema::AttentionGrad &grad = *command.body_as_AttentionGrad();
    verifyAttentionOperands(grad, false);
    verifyView(grad.grad_out(), "grad_out", 4, false);
    verifyView(grad.grad_q(), "grad_q", 4, true);
    verifyView(grad.grad_k(), "grad_k", 4, true);
    verifyView(grad.grad_v(), "grad_v", 4, true);
    auto q = numbers(grad.q()->shape()), k = numbers(grad.k()->shape());
    check(std::ranges::equal(numbers(grad.grad_out()->shape()), q) &&
              std::ranges::equal(numbers(grad.grad_q()->shape()), q) &&
              std::ranges::equal(numbers(grad.grad_k()->shape()), k) &&
              std::ranges::equal(numbers(grad.grad_v()->shape()), k),
          "the shapes of the gradients do not fit q, k and v");
    return;
  }
  case schema::CommandBody::LibraryCall:
    return verifyLibraryCall(*command.body_as_LibraryCall());
  case schema::CommandBody::ToLayout: {
    const schema::ToLayout &copy = *command.body_as_ToLayout();
    verifyView(copy.source(), "source", anyRank, false, /*laid=*/true);
    verifyView(copy.target(), "target", anyRank, true, /*laid=*/true);
    check(std::ranges::equal(numbers(copy.source()->shape()), numbers(copy.target()->shape())),
          "source and target differ in shape");
    return;
  }
  case schema::CommandBody::Fill: {
    const schema::Fill &fill = *command.body_as_Fill();
    const schema::Buffer &buffer = verifyAccess(fill.buffer(), true);
    size_t bytes = numbers(fill.pattern()).size();
    check(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8, "a pattern of " + num(bytes) + " bytes");
    check(buffer.bytes() % bytes == 0, "the pattern does not divide the buffer");
    return;
  }
  case schema::CommandBody::SetPhase:
    return verifyPhase(command.body_as_SetPhase()->phase());
  case schema::CommandBody::BlockBegin:
    ++openBlocks_;
    return;
  case schema::CommandBody::BlockEnd:
    check(openBlocks_ > 0, "closes a block that was not opened");
    --openBlocks_;
    return;
  case schema::CommandBody::Save: {
    uint32_t output = command.body_as_Save()->output();
    check(output < outputs_.size() && program_.outputs()->Get(output)->role() == schema::Role::saved,
          "output " + num(output) + " is not a saved value");
    check(outputUses_[output].written, "saves output " + num(output) + " before a command has written it");
    outputUses_[output].saved = root_.version_minor() >= 2;
    return;
  }
  case schema::CommandBody::Restore: {
    uint32_t input = command.body_as_Restore()->input();
    check(input < inputs_.size() && program_.inputs()->Get(input)->role() == schema::Role::saved,
          "input " + num(input) + " is not a saved value");
    check(!freed_[input], "restores input " + num(input) + " after it was freed");
    return;
  }
  case schema::CommandBody::Free: {
    uint32_t input = command.body_as_Free()->input();
    check(input < inputs_.size() && !freed_[input], "input " + num(input) + " is not there to be freed");
    check(!inPlace_[input], "frees input " + num(input) + ", which an output aliases");
    freed_[input] = true;
    return;
  }
  case schema::CommandBody::NONE:
    return;
  }
}

void ProgramVerifier::verifySavePoints() {
  const schema::Program *backward = nullptr;
  for (uint32_t i = 0; i < countOf(root_.programs()); ++i)
    if (root_.programs()->Get(i)->name()->string_view() == "backward")
      backward = root_.programs()->Get(i);
  for (uint32_t i = 0; i < countOf(program_.save_points()); ++i) {
    const schema::SavePoint &point = *program_.save_points()->Get(i);
    std::string which = "save point " + num(i);
    check(point.value() < (point.aliases_input() ? inputs_ : outputs_).size(), which + ": value " + num(point.value()));
    check(backward && point.backward_input() < countOf(backward->inputs()),
          which + ": backward has no input " + num(point.backward_input()));
    if (point.recompute_program() != -1)
      verifyRecompute(point, which);
  }
}

/// Checks that a program which computes a saved value again takes what this program has,
/// and gives the same tensor.
void ProgramVerifier::verifyRecompute(const schema::SavePoint &point, const std::string &which) const {
  check(point.recompute_program() >= 0 && uint32_t(point.recompute_program()) < countOf(root_.programs()),
        which + ": recompute_program " + std::to_string(point.recompute_program()) + " of " +
            num(countOf(root_.programs())));
  const schema::Program &other = *root_.programs()->Get(uint32_t(point.recompute_program()));
  std::string whose = which + ": program \"" + other.name()->str() + "\"";
  auto descOf = [&](const schema::Value &value) {
    try {
      return readTensorDesc(*value.desc());
    } catch (const Error &error) {
      fail(whose + ", \"" + value.name()->str() + "\": " + error.what());
    }
  };
  auto isSame = [](const TensorDesc &a, const TensorDesc &b) {
    return a.shape == b.shape && a.element == b.element &&
           canonicalize(a.shape, a.layout) == canonicalize(b.shape, b.layout);
  };
  check(point.recompute_output() < countOf(other.outputs()) &&
            isSame(descOf(*other.outputs()->Get(point.recompute_output())),
                   (point.aliases_input() ? inputs_ : outputs_)[point.value()]),
        whose + ": output " + num(point.recompute_output()) + " is not the saved value");
  check(countOf(other.aliases()) == 0, whose + ": it writes what it is given");
  for (uint32_t i = 0; i < countOf(other.inputs()); ++i) {
    const schema::Value &input = *other.inputs()->Get(i);
    bool isSaved = input.role() == schema::Role::saved;
    auto *sources = isSaved ? program_.outputs() : program_.inputs();
    uint32_t k = 0;
    while (k < countOf(sources) && sources->Get(k)->name()->string_view() != input.name()->string_view())
      ++k;
    check(k < countOf(sources) && sources->Get(k)->role() == input.role() &&
              isSame(descOf(input), (isSaved ? outputs_ : inputs_)[k]),
          whose + ": input \"" + input.name()->str() + "\" is not " + (isSaved ? "a saved output" : "an input") +
              " of this program");
  }
}

/// Returns true if the one command that makes an output can write it so.
bool ProgramVerifier::canWrite(const OutputUse &use, const TensorDesc &declared, const TensorDesc &alternative) const {
  if (use.commands != 1 || use.read || !use.view || use.view->offset() != 0 ||
      ElementType(use.view->element()) != declared.element)
    return false;
  const schema::View &view = *use.view;
  auto isPlain = [](const Layout &layout) { return layout.tile.empty() && !isQuantized(layout.storage); };
  if (!isPlain(declared.layout) || !isPlain(alternative.layout)) {
    // A copy of the tensor as it is may end in any layout.
    TensorDesc written = laidDesc(&view, "target");
    return use.command->body_type() == schema::CommandBody::ToLayout && written.shape == declared.shape &&
           satisfies(declared.shape, written.layout, declared.layout, false);
  }
  auto strides = retargetStrides(declared.shape, declared.strides(), alternative.strides(), numbers(view.shape()),
                                 numbers(view.strides()));
  if (!strides)
    return false;
  auto isUnit = [&](size_t dim) { return numbers(view.shape())[dim] == 1 || (*strides)[dim] == 1; };
  switch (use.command->body_type()) {
  case schema::CommandBody::ToLayout:
    return true;
  case schema::CommandBody::Matmul: {
    const schema::Matmul &matmul = *use.command->body_as_Matmul();
    bool turns = !matmul.bias() && matmul.b()->storage() == schema::Storage::element;
    return !matmul.accumulate() && (isUnit(2) || (isUnit(1) && turns));
  }
  case schema::CommandBody::Attention:
  case schema::CommandBody::AttentionGrad:
    return strides->size() == 4 && isUnit(3); // lse has three dimensions and stays dense
  default:
    return false;
  }
}

void ProgramVerifier::verifyAlternatives(const flatbuffers::Vector<flatbuffers::Offset<schema::Value>> *values,
                                         const std::string &kind, const std::vector<TensorDesc> &descs) {
  for (uint32_t i = 0; i < countOf(values); ++i) {
    const schema::Value &value = *values->Get(i);
    for (uint32_t k = 0; k < countOf(value.alternatives()); ++k) {
      std::string which = kind + " " + num(i) + " (\"" + value.name()->str() + "\"), alternative " + num(k);
      TensorDesc alternative = descs[i];
      alternative.layout = readLayout(*value.alternatives()->Get(k));
      try {
        alternative.validate();
      } catch (const Error &error) {
        fail(which + ": " + error.what());
      }
      check(alternative.layout.alignment >= byteSize(alternative.element), which + ": aligned to less than an element");
      check(isHostSpace(alternative.layout.space) == isHostSpace(descs[i].layout.space),
            which + ": is on the other side of the link than " + descs[i].str());
      Layout moved = descs[i].layout;
      moved.space = alternative.layout.space;
      moved.alignment = alternative.layout.alignment;
      bool onlyMoved = canonicalize(descs[i].shape, moved) == canonicalize(descs[i].shape, alternative.layout);
      if (kind == "input") {
        check(onlyMoved, which + ": differs from " + descs[i].str() + " in more than space and alignment");
        check(!inPlace_[i], which + ": an output lies in the storage of this input");
        continue;
      }
      check(!outputUses_[i].aliased, which + ": the output lies in the storage of an input");
      check(isInjective(alternative.shape, alternative.layout), which + ": two elements in one place");
      check(onlyMoved || canWrite(outputUses_[i], descs[i], alternative),
            which + ": no single command writes " + descs[i].str() + " that could write " + alternative.str());
    }
  }
}

/// Verifies the hashes last, so that a wrong signature is first explained by what is wrong in it.
void ProgramVerifier::verifyHashes() {
  check(program_.signature_hash() == schema::signatureHash(program_),
        "its signature_hash does not match its signature");
  bool hasInterface = root_.version_minor() >= 2;
  check(!hasInterface || program_.interface_hash() == schema::interfaceHash(program_),
        "its interface_hash does not match its signature");
}

static void verifySegments(const schema::Binary &root, std::span<const std::byte> file, const std::string &name) {
  uint64_t end = file.size() - sizeof(FileTrailer);
  for (uint32_t i = 0; i < countOf(root.segments()); ++i) {
    const schema::Segment &segment = *root.segments()->Get(i);
    auto fail = [&](const std::string &what, int line = __builtin_LINE()) {
      throw BrokenRule(ErrorCode::FileCorrupt, name + ": segment " + std::to_string(i) + ": " + what, line);
    };
    if (uint8_t(segment.kind()) > uint8_t(schema::SegmentKind::cubin))
      fail("kind " + std::to_string(uint8_t(segment.kind())));
    if (!rangeFits(segment.offset(), segment.length(), end))
      fail(std::to_string(segment.length()) + " bytes at " + std::to_string(segment.offset()) + " of a file of " +
           std::to_string(file.size()));
    if (!std::has_single_bit(segment.alignment()) || segment.offset() % segment.alignment() != 0)
      fail("offset " + std::to_string(segment.offset()) + " is not aligned to " + std::to_string(segment.alignment()));
    if (XXH3_64bits(file.data() + segment.offset(), segment.length()) != segment.hash())
      fail("its hash does not match its bytes");
    if (segment.kind() != schema::SegmentKind::cubin) {
      if (segment.capability())
        fail("compute capability " + std::to_string(segment.capability()) + " of what is no cubin");
      continue;
    }
    schema::CubinHeader header;
    std::string wrong = schema::readCubinHeader(file.data() + segment.offset(), segment.length(), header);
    if (!wrong.empty())
      fail("is no cubin: " + wrong);
    if (header.capability != segment.capability())
      fail("a cubin for compute capability " + std::to_string(header.capability) + " where " +
           std::to_string(segment.capability()) + " is said");
  }
}

/// The most blocks of a grid of a GPU, along x.
static constexpr uint64_t mostBlocks = (uint64_t(1) << 31) - 1;

/// Returns what a segment with code of `isa` holds.
static schema::SegmentKind kindOf(schema::Isa isa) {
  switch (isa) {
  case schema::Isa::ptx:
    return schema::SegmentKind::ptx;
  case schema::Isa::cubin:
    return schema::SegmentKind::cubin;
  default:
    return schema::SegmentKind::elf;
  }
}

static void verifyKernels(const schema::Binary &root, const std::string &name) {
  std::set<std::string_view> names;
  for (uint32_t i = 0; i < countOf(root.kernels()); ++i) {
    const schema::Kernel &kernel = *root.kernels()->Get(i);
    auto fail = [&](const std::string &what, int line = __builtin_LINE()) {
      throw BrokenRule(ErrorCode::FileCorrupt, name + ": kernel \"" + kernel.name()->str() + "\": " + what, line);
    };
    if (!names.insert(kernel.name()->string_view()).second)
      fail("its name is taken");
    if (kernel.outputs() > kernel.arguments())
      fail(std::to_string(kernel.outputs()) + " outputs of " + std::to_string(kernel.arguments()) + " arguments");
    if (numbers(kernel.fixed_bytes()).size() != kernel.arguments() ||
        numbers(kernel.bytes_per_unit()).size() != kernel.arguments())
      fail("the sizes of its arguments are not all given");
    for (uint32_t k = 0; k < countOf(kernel.variants()); ++k) {
      const schema::KernelVariant &variant = *kernel.variants()->Get(k);
      if (uint8_t(variant.isa()) > uint8_t(schema::Isa::cubin))
        fail("instruction set " + std::to_string(uint8_t(variant.isa())));
      if (variant.segment() >= countOf(root.segments()))
        fail("segment " + std::to_string(variant.segment()) + " of " + std::to_string(countOf(root.segments())));
      schema::SegmentKind wanted = kindOf(variant.isa());
      if (root.segments()->Get(variant.segment())->kind() != wanted)
        fail("segment " + std::to_string(variant.segment()) + " holds another kind of code");
      if (variant.blocks() > (wanted == schema::SegmentKind::elf ? 0 : mostBlocks))
        fail("a grid of " + std::to_string(variant.blocks()) + " blocks");
    }
  }
}

void verifyTables(const schema::Binary &root, std::span<const std::byte> file, const std::string &name) {
  verifySegments(root, file, name);
  verifyKernels(root, name);
  for (uint32_t i = 0; i < countOf(root.locations()); ++i) {
    int32_t parent = root.locations()->Get(i)->parent();
    if (parent < -1 || parent >= int64_t(countOf(root.locations())))
      throw BrokenRule(ErrorCode::FileCorrupt, name + ": location " + std::to_string(i) + " has parent " +
                                              std::to_string(parent) + " of " +
                                              std::to_string(countOf(root.locations())));
  }
  std::set<std::string_view> names;
  for (uint32_t i = 0; i < countOf(root.programs()); ++i) {
    const schema::Program &program = *root.programs()->Get(i);
    if (!names.insert(program.name()->string_view()).second)
      throw BrokenRule(ErrorCode::FileCorrupt, name + ": two programs are called \"" + program.name()->str() + "\"");
    ProgramVerifier(root, program, name).verify();
  }
}

} // namespace segue::inline runtime
