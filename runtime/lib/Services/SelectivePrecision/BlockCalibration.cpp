//===- BlockCalibration.cpp - what a block's low forms change -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "BlockCalibration.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Program/BlockUses.h"
#include "segue/runtime/Transfer/ToLayout.h"

namespace segue::inline runtime {

static std::string pieceName(size_t number) { return "segment." + std::to_string(number); }

const Module *BlockCalibration::lacksSegments(const std::vector<Module> &modules) {
  for (const Module &module : modules)
    if (!module.find(pieceName(0)))
      return &module;
  return nullptr;
}

BlockCalibration::BlockCalibration(const std::vector<Module> &modules, const PrecisionPlan &plan,
                                   std::set<UnitForm> wanted)
    : modules_(modules), plan_(plan), wanted_(std::move(wanted)), pieces_(modules.size()) {
  for (size_t m = 0; m < modules.size(); ++m)
    while (const Program *program = modules[m].find(pieceName(pieces_[m].size()))) {
      BlockUses uses = blockUses(*program);
      pieces_[m].push_back({*program, uses.blocks.empty() ? std::string() : uses.blocks.front().name});
    }
}

void BlockCalibration::sample(const Values &values) {
  Errors errors;
  std::vector<std::vector<Tensor>> outputs(modules_.size());
  for (size_t m = 0; m < modules_.size(); ++m)
    playModule(m, values, outputs, errors);
  ++samples_;
  for (const auto &[which, error] : errors)
    sums_[which] += error.value();
}

static std::vector<float> floatsOf(const Tensor &tensor) {
  TensorDesc desc(tensor.shape(), ElementType::f32, Layout{.space = Space::Host});
  Tensor host = toLayout(tensor.device(), tensor, desc);
  wait(host);
  return {host.data<float>(), host.data<float>() + host.elementCount()};
}

void BlockCalibration::playModule(size_t module, const Values &values, std::vector<std::vector<Tensor>> &outputs,
                                  Errors &errors) {
  const std::vector<Piece> &pieces = pieces_[module];
  Module::Lookup lookup = values(module, outputs);
  std::map<std::string, size_t, std::less<>> lastReader, lastOfBlock;
  for (size_t k = 0; k < pieces.size(); ++k) {
    for (const Value &input : pieces[k].program.inputs())
      lastReader[input.name] = k;
    lastOfBlock[pieces[k].block] = k;
  }
  for (const Value &output : modules_[module].outputs())
    lastReader[output.name] = pieces.size();

  TensorMap high;
  std::map<UnitForm, TensorMap> low; // of blocks that go on later
  for (size_t k = 0; k < pieces.size(); ++k) {
    const Piece &piece = pieces[k];
    std::vector<Tensor> results = submit(modules_[module].device(), piece.program, gather(piece, lookup, high, {}));
    std::map<size_t, std::vector<float>> compared; // by output
    for (const UnitForm &which : wanted_) {
      const UnitPlan &unit = plan_.units[which.first];
      if (unit.module != modules_[module].name() || unit.block != piece.block || failures_.contains(which.first))
        continue;
      std::vector<Tensor> lowResults = runLow(piece, which, gather(piece, lookup, high, low[which]));
      for (size_t i = 0; i < lowResults.size(); ++i) {
        if (lastOfBlock[piece.block] > k)
          low[which][piece.program.outputs()[i].name] = lowResults[i];
        if (!isFloat(lowResults[i].element()))
          continue;
        auto [kept, isNew] = compared.try_emplace(i);
        if (isNew)
          kept->second = floatsOf(results[i]);
        errors[which].add(kept->second, floatsOf(lowResults[i]));
      }
    }
    for (size_t i = 0; i < results.size(); ++i)
      high[piece.program.outputs()[i].name] = std::move(results[i]);
    std::erase_if(high, [&](const auto &item) { return lastReader[item.first] <= k; });
  }
  for (const Value &output : modules_[module].outputs()) {
    auto found = high.find(output.name);
    outputs[module].push_back(found == high.end() ? lookup(output) : found->second);
  }
}

std::vector<Tensor> BlockCalibration::gather(const Piece &piece, const Module::Lookup &values, const TensorMap &high,
                                             const TensorMap &low) const {
  std::vector<Tensor> inputs;
  for (const Value &input : piece.program.inputs()) {
    auto inLow = low.find(input.name);
    auto inHigh = high.find(input.name);
    bool isValue = input.role == Role::Input;
    inputs.push_back(isValue && inLow != low.end()     ? inLow->second
                     : isValue && inHigh != high.end() ? inHigh->second
                                                       : values(input));
  }
  return inputs;
}

/// Runs a piece in a low form; returns nothing if a weight of the unit cannot be read.
std::vector<Tensor> BlockCalibration::runLow(const Piece &piece, UnitForm which, std::vector<Tensor> inputs) {
  auto [unit, form] = which;
  try {
    for (const UnitWeight &weight : plan_.units[unit].weights)
      for (size_t i = 0; i < inputs.size(); ++i) {
        const Value &input = piece.program.inputs()[i];
        auto slab = weight.forms.find(form);
        bool isWeight = input.role == Role::Frozen && input.name == weight.parameter.name;
        if (isWeight && slab != weight.forms.end())
          inputs[i] = slab->second->serve(input.name, input.sharedDesc);
      }
  } catch (const Error &error) {
    if (error.code() == ErrorCode::DeviceOom)
      throw;
    failures_.emplace(unit, error);
    return {};
  }
  DeviceRef device = modules_.front().device();
  return submit(device, piece.program, std::move(inputs));
}

std::vector<std::optional<double>> BlockCalibration::errors(Precision form) const {
  std::vector<std::optional<double>> result(plan_.units.size());
  for (const auto &[which, sum] : sums_)
    if (which.second == form && !failures_.contains(which.first))
      result[which.first] = sum / double(samples_);
  return result;
}

} // namespace segue::inline runtime
