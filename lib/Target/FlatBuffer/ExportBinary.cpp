//===- ExportBinary.cpp - from prog to a file -----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "FileLayout.h"
#include "SignatureHash.h"
#include "binary_generated.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "segue/Dialect/Prog/IR/ProgDialect.h"
#include "segue/Target/FlatBuffer/FlatBuffer.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/MathExtras.h"
#include "llvm/Support/xxhash.h"
#include <cstring>

using namespace mlir;
using namespace segue;

static schema::ElementType elementType(Type type) { return static_cast<schema::ElementType>(*elementNumber(type)); }

namespace {
class Exporter {
public:
  explicit Exporter(ModuleOp module) : module(module) {}

  LogicalResult run(raw_ostream &os) {
    if (failed(exportModule()))
      return failure();
    write(os);
    return success();
  }

private:
  LogicalResult exportModule() {
    // Numbers first: kernels and segments may be named before they come.
    for (auto segment : module.getOps<prog::SegmentOp>())
      segmentNumber.try_emplace(segment.getSymName(), segmentNumber.size());
    for (auto program : module.getOps<prog::ProgramOp>())
      programNumber.try_emplace(program.getSymName(), programNumber.size());
    for (auto kernel : module.getOps<prog::KernelOp>())
      kernelNumber.try_emplace(kernel.getSymName(), kernelNumber.size());

    // A written file has the fields of this version, wherever it came from.
    auto version = module->getAttrOfType<DenseI32ArrayAttr>(prog::ProgDialect::kVersionAttr);
    binary.version_major = version ? version[0] : prog::ProgDialect::kVersionMajor;
    binary.version_minor = std::max(version ? version[1] : 0, prog::ProgDialect::kVersionMinor);
    binary.layout_vocabulary = kLayoutVocabulary;
    if (auto producer = module->getAttrOfType<StringAttr>(prog::ProgDialect::kProducerAttr))
      binary.producer = producer.str();
    if (auto options = module->getAttrOfType<DictionaryAttr>(prog::ProgDialect::kOptionsAttr))
      for (NamedAttribute option : options) {
        auto entry = std::make_unique<schema::OptionT>();
        entry->key = option.getName().str();
        entry->value = cast<StringAttr>(option.getValue()).str();
        binary.options.push_back(std::move(entry));
      }
    for (Operation &op : *module.getBody()) {
      LogicalResult result = TypeSwitch<Operation *, LogicalResult>(&op)
                                 .Case([&](prog::SegmentOp op) { return exportSegment(op); })
                                 .Case([&](prog::KernelOp op) { return exportKernel(op); })
                                 .Case([&](prog::ProgramOp op) { return exportProgram(op); })
                                 .Default([](Operation *op) {
                                   return op->emitOpError() << "has no place in a binary: it holds `prog.segment`, "
                                                               "`prog.kernel` and `prog.program` ops alone";
                                 });
      if (failed(result))
        return failure();
    }
    return success();
  }

  LogicalResult exportSegment(prog::SegmentOp op) {
    if (!op.hasBytes())
      return op.emitOpError() << "has a resource without bytes, as in text that leaves them out";
    auto segment = std::make_unique<schema::SegmentT>();
    segment->kind = static_cast<schema::SegmentKind>(op.getKind());
    segment->alignment = op.getAlignment();
    segment->capability = op.getCapability();
    SmallVector<char> storage;
    ArrayRef<char> bytes = op.getBytes(storage);
    segment->length = bytes.size();
    segment->hash = llvm::xxh3_64bits(StringRef(bytes.data(), bytes.size()));
    segmentBytes.emplace_back(bytes.begin(), bytes.end());
    binary.segments.push_back(std::move(segment));
    return success();
  }

  LogicalResult exportKernel(prog::KernelOp op) {
    auto kernel = std::make_unique<schema::KernelT>();
    kernel->name = op.getSymName().str();
    kernel->arguments = op.getArguments();
    kernel->outputs = op.getOutputs();
    kernel->fixed_bytes.assign(op.getFixedBytes().begin(), op.getFixedBytes().end());
    kernel->bytes_per_unit.assign(op.getBytesPerUnit().begin(), op.getBytesPerUnit().end());
    kernel->flops_per_unit = op.getFlopsPerUnit();
    kernel->hash = op.getHash();
    if (op.getVariants())
      for (auto variant : op.getVariants()->getAsRange<prog::VariantAttr>()) {
        auto entry = std::make_unique<schema::KernelVariantT>();
        entry->isa = static_cast<schema::Isa>(variant.getIsa());
        entry->symbol = variant.getSymbol().str();
        entry->segment = segmentNumber.lookup(variant.getSegment().getValue());
        entry->blocks = variant.getBlocks();
        kernel->variants.push_back(std::move(entry));
      }
    binary.kernels.push_back(std::move(kernel));
    return success();
  }

  //===--------------------------------------------------------------------===//
  // Locations: a name over a place in a file, and the caller's location.
  //===--------------------------------------------------------------------===//

  int32_t locationOf(Location loc) {
    if (isa<UnknownLoc>(loc))
      return -1;
    if (auto known = locationNumber.find(loc); known != locationNumber.end())
      return known->second;
    schema::LocationT entry;
    int32_t parent = -1;
    if (auto call = dyn_cast<CallSiteLoc>(Location(loc))) {
      parent = locationOf(call.getCaller());
      describe(call.getCallee(), entry);
    } else {
      describe(loc, entry);
    }
    entry.parent = parent;
    if (entry.file.empty() && entry.name.empty() && parent < 0)
      return locationNumber[loc] = -1;
    // Locations that differ in what the file does not keep are one.
    std::string key = entry.file + '\0' + entry.name + '\0' + std::to_string(entry.line) + ':' +
                      std::to_string(entry.column) + ':' + std::to_string(entry.parent);
    auto [known, isNew] = locationKey.try_emplace(key, binary.locations.size());
    if (isNew)
      binary.locations.push_back(std::make_unique<schema::LocationT>(entry));
    return locationNumber[loc] = known->second;
  }

  /// Takes name and place from `loc`; of fused locations, from the first that
  /// has any.
  static void describe(Location loc, schema::LocationT &entry) {
    TypeSwitch<LocationAttr>(loc)
        .Case([&](FileLineColRange at) {
          entry.file = at.getFilename().str();
          entry.line = at.getStartLine();
          entry.column = at.getStartColumn();
        })
        .Case([&](NameLoc name) {
          describe(name.getChildLoc(), entry);
          if (entry.name.empty())
            entry.name = name.getName().str();
        })
        .Case([&](FusedLoc fused) {
          for (Location part : fused.getLocations())
            if (entry.file.empty() && entry.name.empty())
              describe(part, entry);
        })
        .Case([&](CallSiteLoc call) { describe(call.getCallee(), entry); });
  }

  //===--------------------------------------------------------------------===//
  // Programs
  //===--------------------------------------------------------------------===//

  static std::unique_ptr<schema::LayoutT> exportLayout(LayoutAttr attr) {
    auto layout = std::make_unique<schema::LayoutT>();
    layout->space = static_cast<schema::Space>(attr.getSpace());
    layout->strides.assign(attr.getStrides().begin(), attr.getStrides().end());
    layout->tile.assign(attr.getTile().begin(), attr.getTile().end());
    layout->storage = static_cast<schema::Storage>(attr.getStorage());
    layout->zero_points = attr.getZeroPoints();
    layout->alignment = attr.getAlignment();
    return layout;
  }

  std::unique_ptr<schema::ValueT> exportValue(prog::ValueAttr attr, Location loc) {
    auto value = std::make_unique<schema::ValueT>();
    value->name = attr.getName().str();
    value->role = static_cast<schema::Role>(attr.getRole());
    if (attr.getOf())
      value->of = attr.getOf().str();
    value->location = locationOf(loc);
    value->desc = std::make_unique<schema::TensorDescT>();
    value->desc->shape.assign(attr.getType().getShape().begin(), attr.getType().getShape().end());
    value->desc->element = elementType(attr.getType().getElementType());
    if (auto layout = cast_if_present<LayoutAttr>(attr.getType().getEncoding()))
      value->desc->layout = exportLayout(layout);
    for (LayoutAttr layout : attr.getAlternatives())
      value->alternatives.push_back(exportLayout(layout));
    return value;
  }

  template <typename Attr> static auto attributes(std::optional<ArrayAttr> array) {
    return llvm::map_range(array ? array->getValue() : ArrayRef<Attribute>(),
                           [](Attribute attr) { return cast<Attr>(attr); });
  }

  LogicalResult exportProgram(prog::ProgramOp op) {
    program = std::make_unique<schema::ProgramT>();
    bufferNumber.clear();
    program->name = op.getSymName().str();
    for (unsigned i = 0; i < op.getNumInputs(); ++i)
      program->inputs.push_back(exportValue(op.getInput(i), op.getInputBuffer(i).getLoc()));
    for (unsigned i = 0; i < op.getNumOutputs(); ++i)
      program->outputs.push_back(exportValue(op.getOutput(i), op.getOutputBuffer(i).getLoc()));
    hashSignature();
    for (auto attr : attributes<prog::AliasAttr>(op.getAliases())) {
      auto alias = std::make_unique<schema::AliasT>();
      alias->input = attr.getInput();
      alias->output = attr.getOutput();
      alias->required = attr.getRequired();
      program->aliases.push_back(std::move(alias));
    }
    SmallVector<Space> arenaSpaces;
    for (auto attr : attributes<prog::ArenaAttr>(op.getArenas())) {
      auto arena = std::make_unique<schema::ArenaT>();
      arena->space = static_cast<schema::Space>(attr.getSpace());
      arena->bytes = attr.getBytes();
      arena->lower_bound = attr.getLowerBound();
      arena->alignment = attr.getAlignment();
      arenaSpaces.push_back(attr.getSpace());
      program->arenas.push_back(std::move(arena));
    }
    for (auto attr : attributes<prog::SavePointAttr>(op.getSavePoints())) {
      auto save = std::make_unique<schema::SavePointT>();
      save->value = attr.getValue();
      save->aliases_input = attr.getAliasesInput();
      save->backward_input = attr.getBackwardInput();
      save->backward_order = attr.getOrder();
      save->bytes = attr.getBytes();
      save->recompute_flops = attr.getRecomputeFlops();
      if (attr.getBlock())
        save->block = attr.getBlock().str();
      save->recompute_bytes = attr.getRecomputeBytes();
      if (attr.getRecompute()) {
        save->recompute_program = programNumber.lookup(attr.getRecompute().getValue());
        save->recompute_output = attr.getRecomputeOutput();
      }
      program->save_points.push_back(std::move(save));
    }
    for (BlockArgument arg : op.getBlock().getArguments()) {
      bool isInput = arg.getArgNumber() < op.getNumInputs();
      addBuffer(arg, isInput ? schema::BufferKind::input : schema::BufferKind::output,
                isInput ? arg.getArgNumber() : arg.getArgNumber() - op.getNumInputs(), 0);
    }
    if (failed(exportBlock(op.getBlock(), arenaSpaces)))
      return failure();
    binary.programs.push_back(std::move(program));
    return success();
  }

  /// Makes both hashes from the table as the runtime will see it. Called when the program
  /// has its inputs and outputs and nothing else.
  void hashSignature() {
    flatbuffers::FlatBufferBuilder scratch;
    scratch.Finish(schema::Program::Pack(scratch, program.get()));
    const auto &table = *flatbuffers::GetRoot<schema::Program>(scratch.GetBufferPointer());
    program->signature_hash = schema::signatureHash(table);
    program->interface_hash = schema::interfaceHash(table);
  }

  void addBuffer(Value buffer, schema::BufferKind kind, uint32_t index, uint64_t offset) {
    bufferNumber[buffer] = program->buffers.size();
    auto entry = std::make_unique<schema::BufferT>();
    entry->kind = kind;
    entry->index = index;
    entry->offset = offset;
    entry->bytes = *prog::viewBytes(cast<MemRefType>(buffer.getType()));
    program->buffers.push_back(std::move(entry));
  }

  template <typename T> T &addCommand(Operation *op) {
    T body;
    auto command = std::make_unique<schema::CommandT>();
    command->body.Set(std::move(body));
    command->location = locationOf(op->getLoc());
    program->commands.push_back(std::move(command));
    return *static_cast<T *>(program->commands.back()->body.value);
  }

  /// Exports a view. `as` is the tensor with tiles or rows that lies in bytes.
  std::unique_ptr<schema::ViewT> exportView(Value value, std::optional<Type> as = {}) {
    if (!value)
      return nullptr;
    auto type = cast<MemRefType>(value.getType());
    auto view = std::make_unique<schema::ViewT>();
    if (auto op = value.getDefiningOp<prog::ViewOp>()) {
      view->offset = op.getOffset();
      value = op.getSource();
    }
    view->buffer = bufferNumber.lookup(value);
    if (as) {
      auto tensor = cast<RankedTensorType>(*as);
      auto layout = cast<LayoutAttr>(tensor.getEncoding());
      SmallVector<int64_t> strides = layout.getStridesFor(tensor.getShape());
      view->element = elementType(tensor.getElementType());
      view->shape.assign(tensor.getShape().begin(), tensor.getShape().end());
      view->strides.assign(strides.begin(), strides.end());
      view->tile.assign(layout.getTile().begin(), layout.getTile().end());
      view->storage = static_cast<schema::Storage>(layout.getStorage());
      view->zero_points = layout.getZeroPoints();
      return view;
    }
    view->element = elementType(type.getElementType());
    view->shape.assign(type.getShape().begin(), type.getShape().end());
    SmallVector<int64_t> strides = *prog::stridesOf(type);
    view->strides.assign(strides.begin(), strides.end());
    return view;
  }

  LogicalResult exportBlock(Block &block, ArrayRef<Space> arenas) {
    for (Operation &op : block)
      if (failed(exportOp(&op, arenas)))
        return failure();
    return success();
  }

  LogicalResult exportOp(Operation *op, ArrayRef<Space> arenas) {
    return TypeSwitch<Operation *, LogicalResult>(op)
        .Case([&](prog::AllocOp op) -> LogicalResult {
          if (!op.getOffset())
            return op.emitOpError() << "has no offset in the arena; run prog-plan-memory first";
          addBuffer(op, schema::BufferKind::arena, llvm::find(arenas, prog::spaceOf(op.getType())) - arenas.begin(),
                    *op.getOffset());
          if (op.getElement())
            program->buffers.back()->element = elementType(*op.getElement());
          return success();
        })
        .Case([&](prog::ConstantOp op) {
          addBuffer(op, schema::BufferKind::constant, segmentNumber.lookup(op.getSegment()), op.getOffset());
          return success();
        })
        .Case([&](prog::ViewOp) { return success(); })
        .Case([&](prog::PhaseOp op) {
          addCommand<schema::SetPhaseT>(op).phase = static_cast<schema::Phase>(op.getPhase());
          return exportBlock(op.getBlock(), arenas);
        })
        .Case([&](prog::BlockOp op) {
          addCommand<schema::BlockBeginT>(op).name = op.getName().str();
          if (failed(exportBlock(op.getBlock(), arenas)))
            return failure();
          addCommand<schema::BlockEndT>(op).name = op.getName().str();
          return success();
        })
        .Default([&](Operation *op) { return exportCommand(op); });
  }

  LogicalResult exportCommand(Operation *op) {
    return TypeSwitch<Operation *, LogicalResult>(op)
        .Case([&](prog::LaunchOp op) -> LogicalResult {
          if (op.getInPlace())
            return op.emitOpError() << "has an `in_place` list; run prog-plan-memory first";
          schema::LaunchT &launch = addCommand<schema::LaunchT>(op);
          launch.kernel = kernelNumber.lookup(op.getKernel());
          for (Value arg : op.getArgs())
            launch.args.push_back(bufferNumber.lookup(arg));
          if (op.getOffsets())
            launch.offsets.assign(op.getOffsets()->begin(), op.getOffsets()->end());
          launch.range = op.getRange();
          launch.grain = op.getGrain();
          return success();
        })
        .Case([&](prog::MatmulOp op) {
          schema::MatmulT &matmul = addCommand<schema::MatmulT>(op);
          matmul.a = exportView(op.getA());
          matmul.b = exportView(op.getB(), op.getBType());
          matmul.b_transposed = op.getBTransposed();
          matmul.c = exportView(op.getC());
          matmul.bias = exportView(op.getBias());
          matmul.accumulate = op.getAccumulate();
          matmul.activation = static_cast<schema::Activation>(op.getActivation());
          return success();
        })
        .Case([&](prog::AttentionOp op) {
          schema::AttentionT &attention = addCommand<schema::AttentionT>(op);
          exportAttention(op, attention);
          return success();
        })
        .Case([&](prog::AttentionGradOp op) {
          schema::AttentionGradT &attention = addCommand<schema::AttentionGradT>(op);
          exportAttention(op, attention);
          attention.grad_out = exportView(op.getGradOut());
          attention.grad_q = exportView(op.getGradQ());
          attention.grad_k = exportView(op.getGradK());
          attention.grad_v = exportView(op.getGradV());
          return success();
        })
        .Case([&](prog::LibraryCallOp op) {
          schema::LibraryCallT &call = addCommand<schema::LibraryCallT>(op);
          call.operation = op.getCallee().str();
          for (Value read : op.getReads())
            call.reads.push_back(exportView(read));
          for (Value written : op.getWrites())
            call.writes.push_back(exportView(written));
          call.numbers.assign(op.getNumbers().begin(), op.getNumbers().end());
          return success();
        })
        .Case([&](prog::ToLayoutOp op) {
          schema::ToLayoutT &copy = addCommand<schema::ToLayoutT>(op);
          copy.source = exportView(op.getSource(), op.getSourceType());
          copy.target = exportView(op.getTarget(), op.getTargetType());
          return success();
        })
        .Case([&](prog::FillOp op) {
          schema::FillT &fill = addCommand<schema::FillT>(op);
          fill.buffer = bufferNumber.lookup(op.getBuffer());
          fill.pattern.assign(op.getPattern().begin(), op.getPattern().end());
          return success();
        })
        .Case([&](prog::SaveOp op) {
          addCommand<schema::SaveT>(op).output = program->buffers[bufferNumber.lookup(op.getBuffer())]->index;
          return success();
        })
        .Case([&](prog::RestoreOp op) {
          addCommand<schema::RestoreT>(op).input = program->buffers[bufferNumber.lookup(op.getBuffer())]->index;
          return success();
        })
        .Case([&](prog::FreeOp op) {
          addCommand<schema::FreeT>(op).input = program->buffers[bufferNumber.lookup(op.getBuffer())]->index;
          return success();
        })
        .Default([](Operation *op) { return op->emitOpError() << "is not a command of a program"; });
  }

  template <typename Op, typename Table> void exportAttention(Op op, Table &table) {
    table.q = exportView(op.getQ());
    table.k = exportView(op.getK());
    table.v = exportView(op.getV());
    table.mask = exportView(op.getMask());
    table.out = exportView(op.getOut());
    table.lse = exportView(op.getLse());
    table.scale = op.getScale().convertToFloat();
    table.causal = op.getCausal();
    table.dropout = op.getDropout() ? op.getDropout()->convertToFloat() : 0;
    table.seed = exportView(op.getSeed());
    table.step = exportView(op.getStep());
    table.dropout_id = op.getId().value_or(0);
  }

  //===--------------------------------------------------------------------===//
  // The file
  //===--------------------------------------------------------------------===//

  static void build(flatbuffers::FlatBufferBuilder &builder, const schema::BinaryT &binary) {
    schema::FinishSizePrefixedBinaryBuffer(builder, schema::Binary::Pack(builder, &binary));
  }

  void write(raw_ostream &os) {
    // Segments follow the FlatBuffer, whose size does not depend on where, as
    // long as no offset has the value that is left out: 0.
    for (auto &segment : binary.segments)
      segment->offset = 1;
    flatbuffers::FlatBufferBuilder draft;
    build(draft, binary);
    uint64_t end = draft.GetSize();
    for (auto &segment : binary.segments) {
      segment->offset = llvm::alignTo(end, std::max<uint64_t>(segment->alignment, prog::kAlignment));
      end = segment->offset + segment->length;
    }
    flatbuffers::FlatBufferBuilder builder;
    build(builder, binary);

    std::string file(reinterpret_cast<const char *>(builder.GetBufferPointer()), builder.GetSize());
    for (auto [segment, bytes] : llvm::zip_equal(binary.segments, segmentBytes)) {
      file.resize(segment->offset, '\0');
      file += bytes;
    }
    Trailer trailer{llvm::xxh3_64bits(file), file.size() + sizeof(Trailer), builder.GetSize(), {}};
    std::memcpy(trailer.magic, kMagic.data(), sizeof(trailer.magic));
    os << file;
    os.write(reinterpret_cast<const char *>(&trailer), sizeof(trailer));
  }

  ModuleOp module;
  schema::BinaryT binary;
  std::vector<std::string> segmentBytes;
  llvm::StringMap<uint32_t> segmentNumber, programNumber, kernelNumber;
  llvm::DenseMap<Attribute, int32_t> locationNumber;
  llvm::StringMap<int32_t> locationKey;
  std::unique_ptr<schema::ProgramT> program;
  llvm::DenseMap<Value, uint32_t> bufferNumber;
};
} // namespace

LogicalResult segue::exportBinary(ModuleOp module, raw_ostream &os) { return Exporter(module).run(os); }
