//===- StitchHints.cpp - copies that a run left between programs ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "StitchHints.h"
#include "JsonDepth.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"

using namespace mlir;
using namespace segue;
namespace json = llvm::json;

namespace {
/// Reads one file; the first thing that is wrong ends it.
class HintReader {
public:
  HintReader(StringRef path, Location loc) : path(path), loc(loc) {}

  FailureOr<std::vector<StitchHint>> read() {
    auto buffer = llvm::MemoryBuffer::getFile(path, /*IsText=*/true);
    if (!buffer)
      return emitError(loc) << "cannot read stitch hints " << path << ": " << buffer.getError().message();
    if (size_t depth = schema::jsonDepth((*buffer)->getBuffer()); depth > schema::greatestJsonDepth)
      return emitError(loc) << "stitch hints " << path << ": objects and lists lie " << depth
                            << " deep in one another; " << schema::greatestJsonDepth << " levels are read at most";
    llvm::Expected<json::Value> parsed = json::parse((*buffer)->getBuffer());
    if (!parsed)
      return emitError(loc) << "stitch hints " << path << " are not JSON: " << llvm::toString(parsed.takeError());
    const json::Object *file = parsed->getAsObject();
    if (!file)
      return emitError(loc) << "stitch hints " << path << " are not a JSON object";
    FailureOr<int64_t> version = integer(*file, "", "version", 0);
    if (failed(version))
      return failure();
    if (*version != 1)
      return emitError(loc) << "stitch hints " << path << " have version " << *version
                            << ", but this compiler reads version 1; write them with the runtime of this release";
    const json::Array *edges = file->getArray("edges");
    if (!edges)
      return fail("edges", "a list");
    if (failed(knownKeys(*file, "", {"version", "edges"})))
      return failure();
    std::vector<StitchHint> hints;
    for (auto [i, value] : llvm::enumerate(*edges)) {
      std::string where = "edges[" + std::to_string(i) + "]";
      const json::Object *edge = value.getAsObject();
      if (!edge)
        return fail(where, "an object");
      FailureOr<StitchHint> hint = readEdge(*edge, where);
      if (failed(hint))
        return failure();
      hints.push_back(std::move(*hint));
    }
    return hints;
  }

private:
  LogicalResult fail(const Twine &key, const Twine &wanted) {
    return emitError(loc) << "stitch hints " << path << ": \"" << key << "\" must be " << wanted;
  }

  static std::string join(StringRef where, StringRef key) {
    return where.empty() ? key.str() : (where + "." + key).str();
  }

  LogicalResult knownKeys(const json::Object &object, StringRef where, ArrayRef<StringRef> known) {
    for (const auto &entry : object) {
      StringRef key = entry.first;
      if (llvm::is_contained(known, key))
        continue;
      StringRef nearest = *llvm::min_element(
          known, [&](StringRef a, StringRef b) { return key.edit_distance(a) < key.edit_distance(b); });
      return emitError(loc) << "stitch hints " << path << ": unknown key \"" << join(where, key)
                            << "\"; the nearest is \"" << nearest << "\"";
    }
    return success();
  }

  FailureOr<int64_t> integer(const json::Object &object, StringRef where, StringRef key, int64_t least) {
    std::optional<int64_t> value = object.getInteger(key);
    if (!value || *value < least)
      return fail(join(where, key), "an integer of at least " + Twine(least));
    return *value;
  }

  FailureOr<StringRef> string(const json::Object &object, StringRef where, StringRef key) {
    std::optional<StringRef> value = object.getString(key);
    if (!value)
      return fail(join(where, key), "a string");
    return *value;
  }

  FailureOr<SmallVector<int64_t>> list(const json::Object &object, StringRef where, StringRef key, int64_t least) {
    const json::Array *array = object.getArray(key);
    SmallVector<int64_t> numbers;
    for (const json::Value &value : array ? *array : json::Array()) {
      std::optional<int64_t> number = value.getAsInteger();
      numbers.push_back(number.value_or(least - 1));
    }
    if (!array || llvm::any_of(numbers, [&](int64_t number) { return number < least; }))
      return fail(join(where, key), "a list of integers of at least " + Twine(least));
    return numbers;
  }

  LogicalResult readEnd(const json::Object &edge, StringRef where, StringRef side, StringRef valueKey,
                        StitchHint &hint) {
    std::string path = join(where, side);
    const json::Object *end = edge.getObject(side);
    if (!end)
      return fail(path, "an object");
    FailureOr<StringRef> signature = string(*end, path, "signature"), program = string(*end, path, "program"),
                         value = string(*end, path, valueKey);
    if (failed(signature) || failed(program) || failed(value) ||
        failed(knownKeys(*end, path, {"signature", "program", valueKey})))
      return failure();
    if (signature->size() != 16 || signature->getAsInteger(16, hint.signature))
      return fail(path + ".signature", "16 hexadecimal digits");
    hint.program = program->str();
    hint.value = value->str();
    return success();
  }

  FailureOr<LayoutAttr> readLayout(const json::Object &edge, StringRef where, StringRef key) {
    std::string path = join(where, key);
    const json::Object *object = edge.getObject(key);
    if (!object)
      return fail(path, "an object");
    FailureOr<StringRef> space = string(*object, path, "space"), storage = string(*object, path, "storage");
    FailureOr<SmallVector<int64_t>> strides = list(*object, path, "strides", 0), tile = list(*object, path, "tile", 1);
    FailureOr<int64_t> alignment = integer(*object, path, "alignment", 1);
    std::optional<bool> zeroPoints = object->getBoolean("zero_points");
    if (failed(space) || failed(storage) || failed(strides) || failed(tile) || failed(alignment))
      return failure();
    if (!zeroPoints)
      return fail(path + ".zero_points", "true or false");
    if (failed(knownKeys(*object, path, {"space", "strides", "tile", "storage", "zero_points", "alignment"})))
      return failure();
    std::optional<Space> knownSpace = symbolizeSpace(*space);
    if (!knownSpace)
      return fail(path + ".space", "host, host_pinned, device_dram or device_l1");
    std::optional<Storage> knownStorage = symbolizeStorage(*storage);
    if (!knownStorage)
      return fail(path + ".storage", "element, int8_row, fp8_e4m3_row, fp8_e5m2_row, int4_group32 or int4_group64");
    if (*alignment > std::numeric_limits<uint32_t>::max())
      return fail(path + ".alignment", "below 2^32");
    auto layout = LayoutAttr::getChecked(
        [&] { return emitError(loc) << "stitch hints " << this->path << ": \"" << path << "\": "; }, loc.getContext(),
        *knownSpace, ArrayRef<int64_t>(*strides), ArrayRef<int64_t>(*tile), *knownStorage, *zeroPoints,
        static_cast<uint32_t>(*alignment));
    if (!layout)
      return failure();
    return layout;
  }

  FailureOr<StitchHint> readEdge(const json::Object &edge, StringRef where) {
    if (failed(knownKeys(edge, where, {"producer", "consumer", "change", "bytes_per_step", "from", "to"})))
      return failure();
    FailureOr<StringRef> change = string(edge, where, "change");
    if (failed(change))
      return failure();
    if (*change != "producer" && *change != "consumer")
      return fail(join(where, "change"), "producer or consumer");
    FailureOr<int64_t> bytes = integer(edge, where, "bytes_per_step", 0);
    FailureOr<LayoutAttr> from = readLayout(edge, where, "from"), to = readLayout(edge, where, "to");
    StitchHint producer, hint;
    if (failed(bytes) || failed(from) || failed(to) || failed(readEnd(edge, where, "consumer", "input", hint)))
      return failure();
    hint.isInput = true;
    bool hasProducer = edge.get("producer") != nullptr;
    if (hasProducer && failed(readEnd(edge, where, "producer", "output", producer)))
      return failure();
    if (*change == "producer") {
      if (!hasProducer)
        return fail(join(where, "change"), "consumer where the edge has no producer");
      hint = std::move(producer);
    }
    hint.layout = hint.isInput ? *from : *to;
    hint.bytesPerStep = static_cast<uint64_t>(*bytes);
    hint.where = where.str();
    return hint;
  }

  StringRef path;
  Location loc;
};
} // namespace

FailureOr<std::vector<StitchHint>> segue::readStitchHints(StringRef path, Location loc) {
  return HintReader(path, loc).read();
}
