//===- TrainingSetup.cpp - what a training run begins with ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "TrainingSetup.h"
#include "Binaries.h"
#include "TensorText.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Session/StepTwin.h"
#include "segue/runtime/Services/PrecisionService.h"
#include "segue/runtime/Services/SquareQ/SlabServer.h"
#include <algorithm>
#include <cstdio>

namespace segue::tool {

/// The config of a run whose frozen weights come from a slab by their blocks.
static Config withSlab(const std::optional<Config> &given, const std::string &slab) {
  Json root = given ? given->json("") : Json::object();
  Json &stagehand = root["memory"]["stagehand"];
  if (stagehand.is_object() && stagehand.contains("squareq_slab_path"))
    throw Error(ErrorCode::InvalidArgument, "--slab " + slab + ": the config names a slab, too "
                                            "(memory.stagehand.squareq_slab_path); give one of them");
  if (!stagehand.contains("telemetry_enabled"))
    stagehand["telemetry_enabled"] = false; // a flag asks for no file in this folder
  stagehand["squareq_slab_path"] = slab;
  stagehand["squareq_manifest_path"] = manifestPathOf(slab).string();
  return Config::parse(root.dump(), "the config with its slab");
}

static NameAliases aliasesOf(const std::vector<std::string> &arguments) {
  NameAliases aliases;
  for (const std::string &argument : arguments) {
    size_t equals = argument.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == argument.size())
      throw Error(ErrorCode::InvalidArgument, "--alias " + argument + ": write name=name, as fc.base=fc");
    aliases.emplace_back(argument.substr(0, equals), argument.substr(equals + 1));
  }
  return aliases;
}

static Session makeSession(const DeviceRef &device, const TrainOptions &options, SessionOptions session) {
  std::vector<SessionModule> modules = loadModules(options.files, options);
  session.maxGradNorm = options.clip;
  session.seed = options.seed;
  session.makePrecision = precisionService();
  session.openSlab = openSlab;
  session.aliases = aliasesOf(options.aliases);
  if (!options.slab.empty())
    session.config = withSlab(session.config, options.slab);
  addTiesAndWires(session, modules, options.tied, options.wires);
  return Session(device, std::move(modules), std::move(session));
}

/// A file of another model may have any number of them.
static void warnOfUnused(const std::vector<std::string> &unused, const std::string &file) {
  constexpr size_t most = 5;
  for (size_t i = 0; i < std::min(most, unused.size()); ++i)
    std::fprintf(stderr, "segue-run: %s: no module has a parameter \"%s\"\n", file.c_str(), unused[i].c_str());
  if (unused.size() > most)
    std::fprintf(stderr, "segue-run: %s: nor one of the names of %zu other tensors\n", file.c_str(),
                 unused.size() - most);
}

static void setValues(Session &session, const TrainOptions &options) {
  if (!session.device()->hasBytes())
    session.allocateParameters();
  if (!options.weights.empty()) {
    std::vector<std::filesystem::path> files(options.weights.begin(), options.weights.end());
    std::vector<std::vector<std::string>> unused = session.loadWeights(files);
    for (size_t i = 0; i < files.size(); ++i)
      warnOfUnused(unused[i], options.weights[i]);
  }
  for (const std::string &argument : options.parameters) {
    NamedText named = splitName(argument);
    session.setParameter(named.name, parseTensor(session.device(), named.text));
  }
  if (!options.resume.empty())
    session.load(options.resume);
}

static std::vector<Wire> wiresOf(const Session &session, const TrainOptions &options) {
  std::vector<SessionModule> modules;
  for (const Module &module : session.modules())
    modules.push_back({.name = module.name(), .binary = module.binary()});
  SessionOptions given;
  addTiesAndWires(given, modules, {}, options.wires);
  return given.wires;
}

TrainingTextRef openTrainingData(const TrainOptions &options) {
  return options.data.empty() ? nullptr : std::make_shared<const TrainingText>(options.data);
}

TrainingSetup::TrainingSetup(const DeviceRef &device, const TrainOptions &options, TrainingTextRef text,
                             SessionOptions given)
    : session(makeSession(device, options, given)), accumulate_(options.accumulate) {
  if (given.collectives && given.sharding != Sharding::Modules) { // where all have the same batches
    rank_ = given.collectives->rank();
    ranks_ = given.collectives->ranks();
  }
  setValues(session, options);
  for (const std::string &argument : options.inputs) {
    NamedText named = splitName(argument);
    if (named.name.empty())
      throw Error(ErrorCode::InvalidArgument, "--input " + argument + ": training binds by name; write name=tensor");
    fixed_[named.name] = parseTensor(device, named.text);
  }
  if (!device->hasBytes())
    fixed_ = batchWithoutValues(device, session.modules(), wiresOf(session, options));
  if (text)
    windows_.emplace(session, std::move(text), options.tokens, options.targets);
}

int64_t TrainingSetup::rowsPerStep() const {
  int64_t rows = 0;
  for (const auto &[name, tensor] : fixed_) {
    if (tensor.shape().empty())
      continue;
    if (rows && tensor.shape()[0] != rows)
      return 0;
    rows = tensor.shape()[0];
  }
  return rows * accumulate_ * ranks_;
}

std::vector<TensorMap> TrainingSetup::batchesOf(int64_t step) const {
  std::vector<TensorMap> batches(size_t(accumulate_), fixed_);
  if (windows_)
    for (size_t part = 0; part < batches.size(); ++part)
      windows_->fill(batches[part], session.seed(), step, int64_t(part) * ranks_ + rank_);
  return batches;
}

std::vector<TensorMap> TrainingSetup::batches() const { return batchesOf(session.stepCount()); }

std::vector<TensorMap> TrainingSetup::upcoming(int64_t count) const {
  std::vector<TensorMap> all;
  for (int64_t step = session.stepCount(); int64_t(all.size()) < count; ++step)
    for (TensorMap &batch : batchesOf(step))
      all.push_back(std::move(batch));
  all.resize(size_t(count));
  return all;
}

} // namespace segue::tool
