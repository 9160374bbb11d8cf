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
  for (const Module &module : modules) // of all ranks, so that none begins alone
    if (!module.binary().hasProgram(pieceName(0)))
      return &module;
  return nullptr;
}

BlockCalibration::BlockCalibration(PrecisionHost &host, const PrecisionPlan &plan, std::set<UnitForm> wanted)
    : host_(host), plan_(plan), wanted_(std::move(wanted)), pieces_(host.modules().size()) {
  for (auto [m, end] = host.ownModules(); m < end; ++m)
    while (const Program *program = host.modules()[m].find(pieceName(pieces_[m].size()))) {
      BlockUses uses = blockUses(*program);
      pieces_[m].push_back({*program, uses.blocks.empty() ? std::string() : uses.blocks.front().name});
    }
}

void BlockCalibration::sample(const TensorMap &batch) {
  Errors errors;
  host_.withBatch(batch, [&](const PrecisionHost::Values &values, PrecisionHost::Outputs &outputs) {
    std::exception_ptr failure; // what is left is gathered all the same, as other ranks wait for it
    for (auto [m, end] = host_.ownModules(); m < end; ++m) {
      std::optional<Course> course;
      auto go = [&](auto &&part) {
        try {
          if (!failure)
            part();
        } catch (const std::exception &) {
          failure = std::current_exception();
        }
      };
      go([&] { course = begin(m, values); });
      for (size_t k = 0; k < pieces_[m].size(); ++k) {
        TensorMap gathered = host_.gatherFor(m, pieces_[m][k].program);
        go([&] { play(*course, k, gathered, errors); });
      }
      go([&] { this->end(*course, outputs); });
    }
    if (failure)
      std::rethrow_exception(failure);
  });
  ++samples_;
  for (const auto &[which, error] : errors)
    sums_[which] += error.value();
}

void BlockCalibration::serve() {
  for (size_t m = 0; m < pieces_.size(); ++m)
    for (const Piece &piece : pieces_[m])
      host_.gatherFor(m, piece.program);
}

static std::vector<float> floatsOf(const Tensor &tensor) {
  TensorDesc desc(tensor.shape(), ElementType::f32, Layout{.space = Space::Host});
  Tensor host = toLayout(tensor.device(), tensor, desc);
  wait(host);
  return {host.data<float>(), host.data<float>() + host.elementCount()};
}

BlockCalibration::Course BlockCalibration::begin(size_t module, const PrecisionHost::Values &values) const {
  const std::vector<Piece> &pieces = pieces_[module];
  Course course{.module = module, .values = values(module)};
  for (size_t k = 0; k < pieces.size(); ++k) {
    for (const Value &input : pieces[k].program.inputs())
      course.lastReader[input.name] = k;
    course.lastOfBlock[pieces[k].block] = k;
  }
  for (const Value &output : host_.modules()[module].outputs())
    course.lastReader[output.name] = pieces.size();
  return course;
}

void BlockCalibration::play(Course &course, size_t k, const TensorMap &gathered, Errors &errors) {
  const Module &module = host_.modules()[course.module];
  const Piece &piece = pieces_[course.module][k];
  std::vector<Tensor> results = submit(module.device(), piece.program, inputsOf(piece, course, gathered, {}));
  std::map<size_t, std::vector<float>> compared; // by output
  for (const UnitForm &which : wanted_) {
    const UnitPlan &unit = plan_.units[which.first];
    if (unit.module != module.name() || unit.block != piece.block || failures_.contains(which.first))
      continue;
    TensorMap &low = course.low[which];
    std::vector<Tensor> lowResults = runLow(piece, which, inputsOf(piece, course, gathered, low));
    for (size_t i = 0; i < lowResults.size(); ++i) {
      if (course.lastOfBlock[piece.block] > k)
        low[piece.program.outputs()[i].name] = lowResults[i];
      if (!isFloat(lowResults[i].element()))
        continue;
      auto [kept, isNew] = compared.try_emplace(i);
      if (isNew)
        kept->second = floatsOf(results[i]);
      errors[which].add(kept->second, floatsOf(lowResults[i]));
    }
  }
  for (size_t i = 0; i < results.size(); ++i)
    course.high[piece.program.outputs()[i].name] = std::move(results[i]);
  std::erase_if(course.high, [&](const auto &item) { return course.lastReader[item.first] <= k; });
}

void BlockCalibration::end(Course &course, PrecisionHost::Outputs &outputs) const {
  for (const Value &output : host_.modules()[course.module].outputs()) {
    auto found = course.high.find(output.name);
    outputs[course.module].push_back(found == course.high.end() ? course.values(output) : found->second);
  }
}

std::vector<Tensor> BlockCalibration::inputsOf(const Piece &piece, const Course &course, const TensorMap &gathered,
                                               const TensorMap &low) const {
  std::vector<Tensor> inputs;
  auto has = [](const TensorMap &map, const Value &value) { return map.find(value.name) != map.end(); };
  for (const Value &input : piece.program.inputs()) {
    bool isValue = input.role == Role::Input, isParameter = input.role == Role::Parameter;
    const TensorMap *from = isParameter && has(gathered, input)    ? &gathered
                            : isValue && has(low, input)           ? &low
                            : isValue && has(course.high, input) ? &course.high
                                                                   : nullptr;
    inputs.push_back(from ? from->find(input.name)->second : course.values(input));
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
  DeviceRef device = host_.modules().front().device();
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
