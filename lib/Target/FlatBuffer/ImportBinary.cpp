//===- ImportBinary.cpp - from a file to prog -----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The bytes are untrusted. First the file is checked (trailer, hash,
// FlatBuffer), then every index while ops are built; what is a rule of the
// prog dialect is left to its verifiers, which run at the end.
//
//===----------------------------------------------------------------------===//

#include "FileLayout.h"
#include "binary_generated.h"
#include "mlir/IR/AsmState.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "mlir/IR/Verifier.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "segue/Dialect/Prog/IR/ProgDialect.h"
#include "segue/Target/FlatBuffer/FlatBuffer.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/xxhash.h"
#include <cstring>

using namespace mlir;
using namespace segue;

/// Largest extent, stride or size that is taken from a file: products of a
/// few of them still fit into 64 bits where it matters.
static constexpr uint64_t kMaxBytes = uint64_t(1) << 62;

namespace {
class Importer {
public:
  Importer(StringRef bytes, MLIRContext *context, StringRef name)
      : bytes(bytes), builder(context), fileLoc(FileLineColLoc::get(context, name, 0, 0)) {}

  OwningOpRef<ModuleOp> run() {
    if (failed(checkFile()) || failed(importLocations()))
      return {};
    OwningOpRef<ModuleOp> owner = ModuleOp::create(builder.getUnknownLoc());
    module = *owner;
    builder.setInsertionPointToEnd(module.getBody());
    if (failed(importHeader()) || failed(importSegments()) || failed(importKernels()) || failed(importPrograms()) ||
        failed(verify(module)))
      return {};
    return owner;
  }

private:
  InFlightDiagnostic error() { return emitError(fileLoc) << where; }

  template <typename T> static size_t count(const T *vector) { return vector ? vector->size() : 0; }
  template <typename T> static auto list(const flatbuffers::Vector<T> *vector) {
    SmallVector<int64_t> values;
    for (size_t i = 0; i < count(vector); ++i)
      values.push_back(static_cast<int64_t>(vector->Get(i)));
    return values;
  }
  static StringRef text(const flatbuffers::String *string) {
    return string ? StringRef(string->c_str(), string->size()) : StringRef();
  }
  StringAttr optionalText(const flatbuffers::String *string) {
    return string ? builder.getStringAttr(text(string)) : StringAttr();
  }

  /// Checks that `index` is one of `size`.
  LogicalResult checkIndex(StringRef what, uint64_t index, uint64_t size) {
    if (index >= size)
      return error() << what << " " << index << " is outside of " << size;
    return success();
  }
  template <typename Enum> LogicalResult checkEnum(StringRef what, Enum value, Enum last) {
    if (static_cast<int>(value) < 0 || static_cast<int>(value) > static_cast<int>(last))
      return error() << what << " has unknown value " << static_cast<int>(value);
    return success();
  }

  //===--------------------------------------------------------------------===//
  // The file
  //===--------------------------------------------------------------------===//

  LogicalResult checkFile() {
    Trailer trailer;
    if (bytes.size() < sizeof(Trailer))
      return error() << "file of " << bytes.size() << " bytes is too short for a .segue file";
    StringRef body = bytes.drop_back(sizeof(Trailer));
    std::memcpy(&trailer, bytes.data() + body.size(), sizeof(Trailer));
    if (StringRef(trailer.magic, sizeof(trailer.magic)) != kMagic)
      return error() << "file does not end with the trailer of a .segue file: cut off, or another kind of file";
    if (trailer.fileBytes != bytes.size())
      return error() << "file has " << bytes.size() << " bytes, but its trailer says " << trailer.fileBytes;
    if (llvm::xxh3_64bits(body) != trailer.hash)
      return error() << "file does not have the hash that its trailer says: changed or damaged";
    if (trailer.flatBufferBytes > body.size() || trailer.flatBufferBytes < 2 * sizeof(uint32_t))
      return error() << "trailer names a FlatBuffer of " << trailer.flatBufferBytes << " bytes in a file of "
                     << bytes.size();
    // Tables are read in place, and need the alignment of their widest field.
    storage.resize(trailer.flatBufferBytes / sizeof(uint64_t) + 1);
    std::memcpy(storage.data(), body.data(), trailer.flatBufferBytes);
    auto *data = reinterpret_cast<const uint8_t *>(storage.data());
    if (uint64_t(flatbuffers::GetPrefixedSize(data)) + sizeof(uint32_t) > trailer.flatBufferBytes)
      return error() << "FlatBuffer is longer than the trailer says";
    flatbuffers::Verifier verifier(data, trailer.flatBufferBytes, /*max_depth=*/64,
                                   /*max_tables=*/flatbuffers::uoffset_t(trailer.flatBufferBytes / 4));
    if (!schema::VerifySizePrefixedBinaryBuffer(verifier))
      return error() << "FlatBuffer breaks the rules of schemas/binary.fbs";
    root = schema::GetSizePrefixedBinary(data);
    if (root->version_major() != prog::ProgDialect::kVersionMajor)
      return error() << "file has version " << root->version_major() << "." << root->version_minor()
                     << ", but this tool reads " << prog::ProgDialect::kVersionMajor << ".x";
    if (root->version_minor() > uint32_t(prog::ProgDialect::kVersionMinor))
      return error() << "file has version " << root->version_major() << "." << root->version_minor()
                     << ", but this tool reads up to " << prog::ProgDialect::kVersionMajor << "."
                     << prog::ProgDialect::kVersionMinor;
    if (root->layout_vocabulary() > kLayoutVocabulary)
      return error() << "file has layout vocabulary " << root->layout_vocabulary() << ", but this tool knows up to "
                     << kLayoutVocabulary;
    return success();
  }

  LogicalResult importLocations() {
    for (size_t i = 0; i < count(root->locations()); ++i) {
      const schema::Location &entry = *root->locations()->Get(i);
      Location loc = builder.getUnknownLoc();
      if (!text(entry.file()).empty())
        loc = FileLineColLoc::get(builder.getContext(), text(entry.file()), entry.line(), entry.column());
      if (!text(entry.name()).empty())
        loc = NameLoc::get(builder.getStringAttr(text(entry.name())), loc);
      if (entry.parent() >= 0) {
        if (failed(checkIndex("parent of a location", entry.parent(), i)))
          return failure();
        loc = CallSiteLoc::get(loc, locations[entry.parent()]);
      }
      locations.push_back(loc);
    }
    return success();
  }

  FailureOr<Location> location(int32_t index) {
    if (index == -1)
      return Location(builder.getUnknownLoc());
    if (index < 0 || static_cast<size_t>(index) >= locations.size())
      return error() << "location " << index << " is outside of " << locations.size();
    return locations[index];
  }

  LogicalResult importHeader() {
    module->setAttr(prog::ProgDialect::kVersionAttr,
                    builder.getDenseI32ArrayAttr(
                        {static_cast<int32_t>(root->version_major()), static_cast<int32_t>(root->version_minor())}));
    if (root->producer())
      module->setAttr(prog::ProgDialect::kProducerAttr, builder.getStringAttr(text(root->producer())));
    NamedAttrList options;
    for (size_t i = 0; i < count(root->options()); ++i) {
      const schema::Option &option = *root->options()->Get(i);
      if (text(option.key()).empty() || options.get(text(option.key())))
        return error() << "option \"" << text(option.key()) << "\" is empty or comes twice";
      options.set(text(option.key()), builder.getStringAttr(text(option.value())));
    }
    if (!options.empty())
      module->setAttr(prog::ProgDialect::kOptionsAttr, options.getDictionary(builder.getContext()));
    return success();
  }

  static std::string segmentName(uint64_t index) { return "segment" + std::to_string(index); }

  LogicalResult importSegments() {
    for (size_t i = 0; i < count(root->segments()); ++i) {
      const schema::Segment &segment = *root->segments()->Get(i);
      where = "segment " + std::to_string(i) + ": ";
      if (failed(checkEnum("kind", segment.kind(), schema::SegmentKind::MAX)))
        return failure();
      uint64_t limit = bytes.size() - sizeof(Trailer);
      if (segment.offset() > limit || segment.length() > limit - segment.offset())
        return error() << segment.length() << " bytes at offset " << segment.offset() << " end outside of the file";
      if (segment.alignment() == 0 || segment.offset() % segment.alignment())
        return error() << "offset " << segment.offset() << " is not a multiple of alignment " << segment.alignment();
      StringRef data = bytes.substr(segment.offset(), segment.length());
      if (llvm::xxh3_64bits(data) != segment.hash())
        return error() << "its bytes do not have the hash that the file says";
      AsmResourceBlob blob =
          HeapAsmResourceBlob::allocateAndCopyWithAlign(ArrayRef<char>(data.data(), data.size()), prog::kAlignment,
                                                        /*dataIsMutable=*/false);
      auto type = RankedTensorType::get({static_cast<int64_t>(data.size())}, builder.getI8Type());
      prog::SegmentOp::create(builder, builder.getUnknownLoc(), segmentName(i),
                              static_cast<prog::SegmentKind>(segment.kind()), segment.alignment(),
                              DenseResourceElementsAttr::get(type, segmentName(i), std::move(blob)),
                              segment.capability());
    }
    where.clear();
    return success();
  }

  LogicalResult importKernels() {
    for (size_t i = 0; i < count(root->kernels()); ++i) {
      const schema::Kernel &kernel = *root->kernels()->Get(i);
      where = "kernel " + std::to_string(i) + ": ";
      if (text(kernel.name()).empty() || !kernelNames.insert(text(kernel.name())).second)
        return error() << "name \"" << text(kernel.name()) << "\" is empty or taken";
      SmallVector<Attribute> variants;
      for (size_t v = 0; v < count(kernel.variants()); ++v) {
        const schema::KernelVariant &variant = *kernel.variants()->Get(v);
        if (failed(checkEnum("isa", variant.isa(), schema::Isa::MAX)) ||
            failed(checkIndex("segment", variant.segment(), count(root->segments()))))
          return failure();
        variants.push_back(prog::VariantAttr::get(
            builder.getContext(), static_cast<prog::Isa>(variant.isa()), builder.getStringAttr(text(variant.symbol())),
            FlatSymbolRefAttr::get(builder.getContext(), segmentName(variant.segment())), variant.blocks()));
      }
      prog::KernelOp::create(
          builder, builder.getUnknownLoc(), builder.getStringAttr(text(kernel.name())),
          builder.getUI32IntegerAttr(kernel.arguments()), builder.getUI32IntegerAttr(kernel.outputs()),
          builder.getDenseI64ArrayAttr(list(kernel.fixed_bytes())),
          builder.getDenseI64ArrayAttr(list(kernel.bytes_per_unit())), unsigned64(kernel.hash()),
          variants.empty() ? ArrayAttr() : builder.getArrayAttr(variants), unsigned64(kernel.flops_per_unit()));
    }
    where.clear();
    return success();
  }

  IntegerAttr unsigned64(uint64_t value) {
    return builder.getIntegerAttr(builder.getIntegerType(64, /*isSigned=*/false), APInt(64, value));
  }

  //===--------------------------------------------------------------------===//
  // Programs
  //===--------------------------------------------------------------------===//

  FailureOr<Type> elementType(schema::ElementType type) {
    switch (type) {
    case schema::ElementType::f32:
      return Type(builder.getF32Type());
    case schema::ElementType::bf16:
      return Type(builder.getBF16Type());
    case schema::ElementType::f16:
      return Type(builder.getF16Type());
    case schema::ElementType::i64:
      return Type(builder.getI64Type());
    case schema::ElementType::i32:
      return Type(builder.getI32Type());
    case schema::ElementType::i8:
      return Type(builder.getI8Type());
    case schema::ElementType::i1:
      return Type(builder.getI1Type());
    case schema::ElementType::f64:
      return Type(builder.getF64Type());
    }
    return error() << "element type has unknown value " << static_cast<int>(type);
  }

  /// Checks that the product of the extents is a number of elements that memory could hold.
  LogicalResult checkShape(ArrayRef<int64_t> shape) {
    uint64_t elements = 1;
    for (int64_t extent : shape) {
      if (extent < 0 || (extent > 0 && elements > kMaxBytes / 8 / static_cast<uint64_t>(extent)))
        return error() << "a shape has extent " << extent << ", which makes no size in bytes";
      elements *= std::max<int64_t>(extent, 1);
    }
    return success();
  }

  LogicalResult importLayout(const schema::Layout &layout, const schema::Value &value, ArrayRef<int64_t> shape,
                             LayoutAttr &attr) {
    if (failed(checkEnum("space", layout.space(), schema::Space::MAX)) ||
        failed(checkEnum("storage", layout.storage(), schema::Storage::MAX)))
      return failure();
    if (layout.offset() != 0)
      return error() << "value \"" << text(value.name()) << "\" has an offset of its own, which the dialect cannot say";
    SmallVector<int64_t> strides = list(layout.strides()), tile = list(layout.tile());
    attr = LayoutAttr::getChecked([&] { return error(); }, builder.getContext(), static_cast<Space>(layout.space()),
                                  ArrayRef<int64_t>(strides), ArrayRef<int64_t>(tile),
                                  static_cast<Storage>(layout.storage()), layout.zero_points(), layout.alignment());
    return success(attr && succeeded(checkRanks(shape, attr)));
  }

  /// Checks what an encoding's own verifier takes for granted when it counts bytes.
  LogicalResult checkRanks(ArrayRef<int64_t> shape, LayoutAttr layout) {
    if ((!layout.getStrides().empty() && layout.getStrides().size() != shape.size()) ||
        layout.getTile().size() > shape.size())
      return error() << "a layout has " << layout.getStrides().size() << " strides and " << layout.getTile().size()
                     << " tile extents for " << shape.size() << " dimensions";
    return success();
  }

  FailureOr<prog::ValueAttr> importValue(const schema::Value &value) {
    const schema::TensorDesc &desc = *value.desc();
    SmallVector<int64_t> shape = list(desc.shape());
    FailureOr<Type> element = elementType(desc.element());
    if (failed(element) || failed(checkShape(shape)) || failed(checkEnum("role", value.role(), schema::Role::MAX)))
      return failure();
    LayoutAttr encoding;
    if (desc.layout() && failed(importLayout(*desc.layout(), value, shape, encoding)))
      return failure();
    SmallVector<LayoutAttr> alternatives;
    for (size_t i = 0; i < count(value.alternatives()); ++i)
      if (failed(importLayout(*value.alternatives()->Get(i), value, shape, alternatives.emplace_back())))
        return failure();
    auto type = RankedTensorType::getChecked([&] { return error(); }, shape, *element, encoding);
    if (!type)
      return failure();
    auto attr = prog::ValueAttr::getChecked([&] { return error(); }, builder.getContext(),
                                            builder.getStringAttr(text(value.name())), static_cast<Role>(value.role()),
                                            type, optionalText(value.of()), ArrayRef<LayoutAttr>(alternatives));
    if (!attr)
      return failure();
    return attr;
  }

  LogicalResult importPrograms() {
    for (size_t i = 0; i < count(root->programs()); ++i) {
      const schema::Program &program = *root->programs()->Get(i);
      std::string name = text(program.name()).str();
      where = "program \"" + name + "\": ";
      if (name.empty() || !programNames.insert(name).second || kernelNames.contains(name))
        return error() << "its name is empty or taken";
      if (failed(importProgram(program)))
        return failure();
    }
    where.clear();
    return success();
  }

  template <typename Table, typename Import>
  FailureOr<ArrayAttr> importArray(const flatbuffers::Vector<flatbuffers::Offset<Table>> *tables, Import import) {
    SmallVector<Attribute> attrs;
    for (size_t i = 0; i < count(tables); ++i) {
      Attribute attr = import(*tables->Get(i));
      if (!attr)
        return failure();
      attrs.push_back(attr);
    }
    return attrs.empty() ? ArrayAttr() : builder.getArrayAttr(attrs);
  }

  LogicalResult importProgram(const schema::Program &table) {
    MLIRContext *context = builder.getContext();
    SmallVector<Attribute> inputs, outputs;
    SmallVector<Type> types;
    SmallVector<Location> locs;
    auto addValue = [&](const schema::Value &value, SmallVector<Attribute> &values) -> LogicalResult {
      FailureOr<prog::ValueAttr> attr = importValue(value);
      FailureOr<Location> loc = location(value.location());
      if (failed(attr) || failed(loc))
        return failure();
      values.push_back(*attr);
      types.push_back(prog::bufferType(attr->getType()));
      locs.push_back(*loc);
      return success();
    };
    for (size_t i = 0; i < count(table.inputs()); ++i)
      if (failed(addValue(*table.inputs()->Get(i), inputs)))
        return failure();
    for (size_t i = 0; i < count(table.outputs()); ++i)
      if (failed(addValue(*table.outputs()->Get(i), outputs)))
        return failure();

    auto aliases = importArray(table.aliases(), [&](const schema::Alias &alias) -> Attribute {
      return prog::AliasAttr::get(context, alias.output(), alias.input(), alias.required());
    });
    arenaSpaces.clear();
    auto arenas = importArray(table.arenas(), [&](const schema::Arena &arena) -> Attribute {
      if (failed(checkEnum("space", arena.space(), schema::Space::MAX)))
        return {};
      arenaSpaces.push_back(static_cast<Space>(arena.space()));
      return prog::ArenaAttr::getChecked([&] { return error(); }, context, arenaSpaces.back(), arena.bytes(),
                                         arena.lower_bound(), arena.alignment());
    });
    auto saves = importArray(table.save_points(), [&](const schema::SavePoint &save) -> Attribute {
      FlatSymbolRefAttr recompute;
      if (save.recompute_program() >= 0) {
        if (size_t(save.recompute_program()) >= count(root->programs())) {
          error() << "a save point names program " << save.recompute_program() << " of " << count(root->programs());
          return {};
        }
        recompute = FlatSymbolRefAttr::get(context, text(root->programs()->Get(save.recompute_program())->name()));
      }
      return prog::SavePointAttr::get(context, save.value(), save.aliases_input(), save.backward_input(),
                                      save.backward_order(), save.bytes(), save.recompute_flops(),
                                      optionalText(save.block()), save.recompute_bytes(), recompute,
                                      recompute ? save.recompute_output() : 0);
    });
    if (failed(aliases) || failed(arenas) || failed(saves))
      return failure();

    OpBuilder::InsertionGuard guard(builder);
    program =
        prog::ProgramOp::create(builder, builder.getUnknownLoc(), builder.getStringAttr(text(table.name())),
                                builder.getArrayAttr(inputs), builder.getArrayAttr(outputs), *aliases, *arenas, *saves);
    Block &body = program.getBody().emplaceBlock();
    body.addArguments(types, locs);
    builder.setInsertionPointToStart(&body);
    if (failed(importBuffers(table)))
      return failure();
    openBlocks.clear();
    for (size_t i = 0; i < count(table.commands()); ++i) {
      where = ("program \"" + text(table.name()) + "\", command " + std::to_string(i) + ": ").str();
      if (failed(importCommand(*table.commands()->Get(i))))
        return failure();
    }
    if (!openBlocks.empty())
      return error() << "block \"" << openBlocks.back() << "\" is not closed";
    if (root->version_minor() < 2)
      moveSavesBehindUses();
    return success();
  }

  /// Moves saves behind uses: until version 0.2 a save said that the value was final, not
  /// that it was used no more.
  void moveSavesBehindUses() {
    DenseMap<Value, Operation *> lastUse;
    SmallVector<prog::SaveOp> saves;
    program.walk<WalkOrder::PreOrder>([&](Operation *op) {
      if (auto save = dyn_cast<prog::SaveOp>(op))
        return saves.push_back(save);
      if (isa<prog::ViewOp>(op))
        return;
      for (Value operand : op->getOperands()) {
        auto view = operand.getDefiningOp<prog::ViewOp>();
        lastUse[view ? Value(view.getSource()) : operand] = op;
      }
    });
    for (prog::SaveOp save : saves)
      if (Operation *use = lastUse.lookup(save.getBuffer()))
        save->moveAfter(use);
  }

  LogicalResult importBuffers(const schema::Program &table) {
    buffers.clear();
    for (size_t i = 0; i < count(table.buffers()); ++i) {
      const schema::Buffer &buffer = *table.buffers()->Get(i);
      if (buffer.bytes() > kMaxBytes)
        return error() << "buffer " << i << " of " << buffer.bytes() << " bytes is too large";
      switch (buffer.kind()) {
      case schema::BufferKind::input:
      case schema::BufferKind::output: {
        bool isInput = buffer.kind() == schema::BufferKind::input;
        if (failed(checkIndex(isInput ? "input" : "output", buffer.index(),
                              isInput ? program.getNumInputs() : program.getNumOutputs())))
          return failure();
        BlockArgument arg = isInput ? program.getInputBuffer(buffer.index()) : program.getOutputBuffer(buffer.index());
        if (buffer.offset() != 0 || buffer.bytes() != prog::viewBytes(cast<MemRefType>(arg.getType())))
          return error() << "buffer " << i << " is not the whole of its input or output";
        buffers.push_back(arg);
        break;
      }
      case schema::BufferKind::arena: {
        if (failed(checkIndex("arena", buffer.index(), arenaSpaces.size())))
          return failure();
        Type type = prog::bytesType(builder.getContext(), buffer.bytes(),
                                    prog::spaceAttr(builder.getContext(), arenaSpaces[buffer.index()]));
        TypeAttr holds;
        if (buffer.element()) {
          FailureOr<Type> element = elementType(*buffer.element());
          if (failed(element))
            return failure();
          holds = TypeAttr::get(*element);
        }
        buffers.push_back(
            prog::AllocOp::create(builder, builder.getUnknownLoc(), type, unsigned64(buffer.offset()), holds));
        break;
      }
      case schema::BufferKind::constant:
        if (failed(checkIndex("segment", buffer.index(), count(root->segments()))))
          return failure();
        buffers.push_back(prog::ConstantOp::create(builder, builder.getUnknownLoc(),
                                                   prog::bytesType(builder.getContext(), buffer.bytes()),
                                                   segmentName(buffer.index()), buffer.offset()));
        break;
      default:
        return error() << "buffer " << i << " has unknown kind " << static_cast<int>(buffer.kind());
      }
    }
    return success();
  }

  FailureOr<Value> importBuffer(uint32_t index) {
    if (failed(checkIndex("buffer", index, buffers.size())))
      return failure();
    return buffers[index];
  }

  /// A tensor with tiles or rows in bytes; its type goes to `as`.
  FailureOr<Value> importLaidView(const schema::View &view, Value buffer, Type element, ArrayRef<int64_t> shape,
                                  ArrayRef<int64_t> strides, Location loc, TypeAttr &as) {
    if (failed(checkEnum("storage", view.storage(), schema::Storage::MAX)))
      return failure();
    auto source = cast<MemRefType>(buffer.getType());
    SmallVector<int64_t> tile = list(view.tile());
    auto layout = LayoutAttr::getChecked([&] { return error(); }, builder.getContext(), prog::spaceOf(source), strides,
                                         ArrayRef<int64_t>(tile), static_cast<Storage>(view.storage()),
                                         view.zero_points(), kDefaultAlignment);
    if (!layout || failed(checkRanks(shape, layout)))
      return failure();
    auto type = RankedTensorType::getChecked([&] { return error(); }, shape, element, layout.getCanonical(shape));
    MemRefType bytes = type ? prog::bufferType(type) : MemRefType();
    if (!bytes)
      return failure();
    as = TypeAttr::get(type);
    if (bytes == source && view.offset() == 0)
      return buffer;
    return Value(prog::ViewOp::create(builder, loc, bytes, buffer, view.offset()));
  }

  /// A null view gives a null value. `as`, where given, gets the tensor of a
  /// view with tiles or rows; elsewhere these are refused.
  FailureOr<Value> importView(const schema::View *view, Location loc, TypeAttr *as = nullptr) {
    if (!view)
      return Value();
    FailureOr<Value> buffer = importBuffer(view->buffer());
    FailureOr<Type> element = elementType(view->element());
    SmallVector<int64_t> shape = list(view->shape()), strides = list(view->strides());
    if (failed(buffer) || failed(element) || failed(checkShape(shape)))
      return failure();
    if (shape.size() != strides.size() || llvm::any_of(strides, [](int64_t stride) { return stride < 0; }))
      return error() << "a view has " << strides.size() << " strides for " << shape.size()
                     << " dimensions, or a negative one";
    if (count(view->tile()) || view->storage() != schema::Storage::element || view->zero_points()) {
      if (!as)
        return error() << "a view has tiles or rows, which only to_layout and the b of a matmul may have";
      return importLaidView(*view, *buffer, *element, shape, strides, loc, *as);
    }
    auto source = cast<MemRefType>(buffer->getType());
    MemRefType type = prog::viewType(shape, *element, strides, source.getMemorySpace());
    if (type == source && view->offset() == 0)
      return *buffer;
    return Value(prog::ViewOp::create(builder, loc, type, *buffer, view->offset()));
  }

  LogicalResult importViews(ArrayRef<const schema::View *> views, Location loc, SmallVector<Value> &values) {
    for (const schema::View *view : views) {
      FailureOr<Value> value = importView(view, loc);
      if (failed(value))
        return failure();
      values.push_back(*value);
    }
    return success();
  }

  /// The probability and the id of the dropout of attention, if it has any.
  template <typename Table> std::pair<FloatAttr, IntegerAttr> importDropout(const Table &attention) {
    if (attention.dropout() == 0)
      return {};
    return {builder.getF32FloatAttr(attention.dropout()), builder.getI64IntegerAttr(attention.dropout_id())};
  }

  /// The buffer of a signature value.
  LogicalResult importMark(uint32_t index, bool output, Value &buffer) {
    unsigned size = output ? program.getNumOutputs() : program.getNumInputs();
    if (failed(checkIndex(output ? "output" : "input", index, size)))
      return failure();
    buffer = output ? program.getOutputBuffer(index) : program.getInputBuffer(index);
    return success();
  }

  LogicalResult importCommand(const schema::Command &command) {
    FailureOr<Location> found = location(command.location());
    if (failed(found))
      return failure();
    Location loc = *found;
    SmallVector<Value> v;
    Value mark;
    UnitAttr unit = builder.getUnitAttr();
    switch (command.body_type()) {
    case schema::CommandBody::Launch: {
      const schema::Launch &launch = *command.body_as_Launch();
      if (failed(checkIndex("kernel", launch.kernel(), count(root->kernels()))))
        return failure();
      for (int64_t arg : list(launch.args())) {
        FailureOr<Value> buffer = importBuffer(arg);
        if (failed(buffer))
          return failure();
        v.push_back(*buffer);
      }
      SmallVector<int64_t> offsets = list(launch.offsets());
      prog::LaunchOp::create(
          builder, loc,
          FlatSymbolRefAttr::get(builder.getContext(), text(root->kernels()->Get(launch.kernel())->name())), v,
          offsets.empty() ? DenseI64ArrayAttr() : builder.getDenseI64ArrayAttr(offsets),
          builder.getI64IntegerAttr(launch.range()), builder.getI64IntegerAttr(launch.grain()), DenseI64ArrayAttr());
      return success();
    }
    case schema::CommandBody::Matmul: {
      const schema::Matmul &op = *command.body_as_Matmul();
      TypeAttr bType;
      FailureOr<Value> a = importView(op.a(), loc), b = importView(op.b(), loc, &bType);
      if (failed(a) || failed(b) || failed(importViews({op.bias(), op.c()}, loc, v)) ||
          failed(checkEnum("activation", op.activation(), schema::Activation::MAX)))
        return failure();
      prog::MatmulOp::create(
          builder, loc, *a, *b, bType, op.b_transposed() ? unit : UnitAttr(), v[0], v[1],
          op.accumulate() ? unit : UnitAttr(),
          prog::ActivationAttr::get(builder.getContext(), static_cast<prog::Activation>(op.activation())));
      return success();
    }
    case schema::CommandBody::Attention: {
      const schema::Attention &op = *command.body_as_Attention();
      if (failed(importViews({op.q(), op.k(), op.v(), op.mask(), op.seed(), op.step(), op.out(), op.lse()}, loc, v)))
        return failure();
      auto [dropout, id] = importDropout(op);
      prog::AttentionOp::create(builder, loc, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], dropout, id,
                                op.causal() ? unit : UnitAttr(), builder.getF32FloatAttr(op.scale()));
      return success();
    }
    case schema::CommandBody::AttentionGrad: {
      const schema::AttentionGrad &op = *command.body_as_AttentionGrad();
      if (failed(importViews({op.q(), op.k(), op.v(), op.mask(), op.seed(), op.step(), op.out(), op.lse(),
                              op.grad_out(), op.grad_q(), op.grad_k(), op.grad_v()},
                             loc, v)))
        return failure();
      auto [dropout, id] = importDropout(op);
      prog::AttentionGradOp::create(builder, loc, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10],
                                    v[11], dropout, id, op.causal() ? unit : UnitAttr(),
                                    builder.getF32FloatAttr(op.scale()));
      return success();
    }
    case schema::CommandBody::LibraryCall: {
      const schema::LibraryCall &op = *command.body_as_LibraryCall();
      SmallVector<Value> writes;
      for (auto [views, values] : {std::pair(op.reads(), &v), std::pair(op.writes(), &writes)})
        for (size_t i = 0; i < count(views); ++i)
          if (failed(importViews({views->Get(i)}, loc, *values)))
            return failure();
      prog::LibraryCallOp::create(builder, loc, text(op.operation()), v, writes, list(op.numbers()));
      return success();
    }
    case schema::CommandBody::ToLayout: {
      const schema::ToLayout &op = *command.body_as_ToLayout();
      TypeAttr sourceType, targetType;
      FailureOr<Value> source = importView(op.source(), loc, &sourceType);
      FailureOr<Value> target = importView(op.target(), loc, &targetType);
      if (failed(source) || failed(target))
        return failure();
      prog::ToLayoutOp::create(builder, loc, *source, sourceType, *target, targetType);
      return success();
    }
    case schema::CommandBody::Fill: {
      const schema::Fill &op = *command.body_as_Fill();
      FailureOr<Value> buffer = importBuffer(op.buffer());
      if (failed(buffer))
        return failure();
      SmallVector<int8_t> pattern;
      for (int64_t byte : list(op.pattern()))
        pattern.push_back(static_cast<int8_t>(byte));
      prog::FillOp::create(builder, loc, *buffer, pattern);
      return success();
    }
    case schema::CommandBody::SetPhase: {
      schema::Phase phase = command.body_as_SetPhase()->phase();
      if (failed(checkEnum("phase", phase, schema::Phase::MAX)))
        return failure();
      if (!openBlocks.empty())
        return error() << "a phase begins inside of block \"" << openBlocks.back() << "\"";
      builder.setInsertionPointToEnd(&program.getBlock());
      auto op = prog::PhaseOp::create(builder, loc, static_cast<prog::Phase>(phase));
      builder.setInsertionPointToEnd(&op.getBody().emplaceBlock());
      return success();
    }
    case schema::CommandBody::BlockBegin: {
      auto op = prog::BlockOp::create(builder, loc, text(command.body_as_BlockBegin()->name()));
      builder.setInsertionPointToEnd(&op.getBody().emplaceBlock());
      openBlocks.push_back(op.getName().str());
      return success();
    }
    case schema::CommandBody::BlockEnd: {
      StringRef name = text(command.body_as_BlockEnd()->name());
      if (openBlocks.empty() || openBlocks.back() != name)
        return error() << "block \"" << name << "\" is closed but is not the innermost open one";
      openBlocks.pop_back();
      builder.setInsertionPointAfter(builder.getInsertionBlock()->getParentOp());
      return success();
    }
    case schema::CommandBody::Save:
      if (failed(importMark(command.body_as_Save()->output(), /*output=*/true, mark)))
        return failure();
      prog::SaveOp::create(builder, loc, mark);
      return success();
    case schema::CommandBody::Restore:
      if (failed(importMark(command.body_as_Restore()->input(), /*output=*/false, mark)))
        return failure();
      prog::RestoreOp::create(builder, loc, mark);
      return success();
    case schema::CommandBody::Free:
      if (failed(importMark(command.body_as_Free()->input(), /*output=*/false, mark)))
        return failure();
      prog::FreeOp::create(builder, loc, mark);
      return success();
    default:
      return error() << "unknown kind " << static_cast<int>(command.body_type());
    }
  }

  StringRef bytes;
  OpBuilder builder;
  Location fileLoc;
  /// The start of every message: what is being read.
  std::string where;
  std::vector<uint64_t> storage;
  const schema::Binary *root = nullptr;
  ModuleOp module;
  SmallVector<Location> locations;
  llvm::StringSet<> kernelNames, programNames;

  prog::ProgramOp program;
  SmallVector<Space> arenaSpaces;
  SmallVector<Value> buffers;
  std::vector<std::string> openBlocks;
};
} // namespace

OwningOpRef<ModuleOp> segue::importBinary(StringRef bytes, MLIRContext *context, StringRef name) {
  context->loadDialect<prog::ProgDialect>();
  return Importer(bytes, context, name).run();
}
