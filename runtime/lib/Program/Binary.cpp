//===- Binary.cpp - handles over a verified .segue file -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/Binary.h"
#include "BinaryImage.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/ProgramCosts.h"
#include <algorithm>

namespace segue::inline runtime {

//===----------------------------------------------------------------------===//
// Binary
//===----------------------------------------------------------------------===//

Binary::Binary(std::shared_ptr<const BinaryImage> image) : image_(std::move(image)) {
  for (size_t i = 0; i < image_->programs().size(); ++i)
    programs_.push_back(Program(image_, i));
}

Binary Binary::load(const std::filesystem::path &path, const LoadOptions &options) {
  return Binary(std::make_shared<const BinaryImage>(FileBytes::read(path), path.string(), options));
}

Binary Binary::fromMemory(std::span<const std::byte> bytes, const LoadOptions &options, std::string name) {
  return Binary(std::make_shared<const BinaryImage>(FileBytes::copy(bytes), std::move(name), options));
}

bool Binary::hasProgram(std::string_view name) const {
  return std::ranges::any_of(programs_, [&](const Program &program) { return program.name() == name; });
}

const Program &Binary::program(std::string_view name) const & {
  std::string known;
  for (const Program &program : programs_) {
    if (program.name() == name)
      return program;
    known += (known.empty() ? "\"" : ", \"") + program.name() + "\"";
  }
  throw Error(ErrorCode::NameUnknown, this->name() + " has no program \"" + std::string(name) + "\"; it has " +
                                          (known.empty() ? "none" : known));
}

const std::string &Binary::name() const & { return image_->name(); }

std::string Binary::producer() const { return image_->root().producer() ? image_->root().producer()->str() : ""; }

std::vector<std::pair<std::string, std::string>> Binary::options() const {
  std::vector<std::pair<std::string, std::string>> options;
  auto *tables = image_->root().options();
  for (uint32_t i = 0; i < countOf(tables); ++i)
    options.emplace_back(tables->Get(i)->key()->str(), tables->Get(i)->value() ? tables->Get(i)->value()->str() : "");
  return options;
}

static std::string isaName(schema::Isa isa, const schema::Segment &segment) {
  switch (isa) {
  case schema::Isa::x86_64_v3:
    return "x86-64-v3";
  case schema::Isa::x86_64_v4:
    return "x86-64-v4";
  case schema::Isa::ptx:
    return "ptx";
  case schema::Isa::cubin:
    return "cubin sm_" + std::to_string(segment.capability());
  }
  return "?";
}

std::vector<KernelInfo> Binary::kernels() const {
  std::vector<KernelInfo> kernels;
  auto *tables = image_->root().kernels();
  for (uint32_t i = 0; i < countOf(tables); ++i) {
    const schema::Kernel &table = *tables->Get(i);
    KernelInfo info{table.name()->str(), table.arguments(), table.outputs(), {}, table.hash()};
    for (uint32_t k = 0; k < countOf(table.variants()); ++k) {
      const schema::KernelVariant &variant = *table.variants()->Get(k);
      info.isas.push_back(isaName(variant.isa(), *image_->root().segments()->Get(variant.segment())));
    }
    kernels.push_back(std::move(info));
  }
  return kernels;
}

std::vector<SegmentInfo> Binary::segments() const {
  std::vector<SegmentInfo> segments;
  auto *tables = image_->root().segments();
  for (uint32_t i = 0; i < countOf(tables); ++i) {
    const schema::Segment &table = *tables->Get(i);
    segments.push_back({schema::EnumNameSegmentKind(table.kind()), table.offset(), table.length(), table.hash(),
                        table.capability()});
  }
  return segments;
}

const NativeCodeLeave &Binary::nativeCodeLeave() const & { return image_->nativeCodeLeave(); }

uint64_t Binary::bytes() const { return image_->bytes().size(); }

//===----------------------------------------------------------------------===//
// Program
//===----------------------------------------------------------------------===//

std::string_view name(Role role) {
  static constexpr std::string_view names[] = {"input",    "parameter", "frozen", "output",    "saved",
                                               "gradient", "state",     "hyper",  "statistics"};
  return uint8_t(role) < std::size(names) ? names[uint8_t(role)] : "?";
}

std::string_view name(Phase phase) {
  static constexpr std::string_view names[] = {"step_begin", "forward", "backward", "optimizer", "step_end"};
  return uint8_t(phase) < std::size(names) ? names[uint8_t(phase)] : "?";
}

const std::string &Program::name() const & { return image_->programs()[index_].name; }
const std::vector<Value> &Program::inputs() const & { return image_->programs()[index_].inputs; }
const std::vector<Value> &Program::outputs() const & { return image_->programs()[index_].outputs; }
const std::vector<Alias> &Program::aliases() const & { return image_->programs()[index_].aliases; }
const std::vector<Phase> &Program::phases() const & { return image_->programs()[index_].phases; }
const std::vector<SavePoint> &Program::savePoints() const & { return image_->programs()[index_].savePoints; }

static const Value &at(const std::vector<Value> &values, size_t index, const Program &program, const char *kind) {
  if (index >= values.size())
    throw Error(ErrorCode::InvalidArgument, "program \"" + program.name() + "\" has " + std::to_string(values.size()) +
                                                " " + kind + "s; there is no " + kind + " " + std::to_string(index));
  return values[index];
}

const Value &Program::input(size_t index) const & { return at(inputs(), index, *this, "input"); }
const Value &Program::output(size_t index) const & { return at(outputs(), index, *this, "output"); }

static int find(const std::vector<Value> &values, std::string_view name) {
  auto found = std::ranges::find(values, name, &Value::name);
  return found == values.end() ? -1 : int(found - values.begin());
}

int Program::findInput(std::string_view name) const { return find(inputs(), name); }
int Program::findOutput(std::string_view name) const { return find(outputs(), name); }

Program Program::sibling(size_t index) const {
  size_t count = image_->programs().size();
  if (index >= count)
    throw Error(ErrorCode::InvalidArgument, image_->name() + " has " + std::to_string(count) +
                                                " programs; there is no program " + std::to_string(index));
  return Program(image_, index);
}

static const schema::Program &tableOf(const Program &program) {
  return *program.image()->programs()[program.index()].table;
}

uint64_t Program::signatureHash() const { return tableOf(*this).signature_hash(); }
uint64_t Program::interfaceHash() const { return image_->programs()[index_].interfaceHash; }

uint64_t Program::arenaBytes() const {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < countOf(tableOf(*this).arenas()); ++i)
    bytes += tableOf(*this).arenas()->Get(i)->bytes();
  return bytes;
}

uint64_t Program::arenaLowerBound() const {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < countOf(tableOf(*this).arenas()); ++i)
    bytes += tableOf(*this).arenas()->Get(i)->lower_bound();
  return bytes;
}

std::vector<CommandCount> Program::commandCounts() const {
  std::vector<CommandCount> counts;
  auto *commands = tableOf(*this).commands();
  for (uint32_t i = 0; i < countOf(commands); ++i) {
    std::string kind = schema::EnumNameCommandBody(commands->Get(i)->body_type());
    auto found = std::ranges::find(counts, kind, &CommandCount::kind);
    if (found == counts.end())
      counts.push_back({kind, 1});
    else
      ++found->count;
  }
  return counts;
}

uint64_t Program::matmulFlops() const {
  uint64_t flops = 0;
  for (const CommandCost &cost : commandCosts(*this))
    flops += cost.kind == "Matmul" ? cost.flops : 0;
  return flops;
}

} // namespace segue::inline runtime
