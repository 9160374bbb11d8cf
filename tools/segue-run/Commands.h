//===- Commands.h - the commands of segue-run -------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One per file of the same name. Each writes results to stdout, talk to
// stderr, returns an exit status, and throws segue::Error for what fails.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_COMMANDS_H
#define SEGUE_TOOLS_SEGUERUN_COMMANDS_H

#include "Binaries.h"
#include "ExitStatus.h"
#include "StitchParts.h"

namespace segue::tool {

struct InspectOptions : CommonOptions {
  std::vector<std::string> files;
  /// Every value, kernel and save point, not one screen.
  bool all = false;
};

struct RunOptions : CommonOptions {
  std::string file;
  std::string program = "forward";
  /// `[name=]tensor`; without a name, the next input that has none yet.
  std::vector<std::string> inputs;
  /// Values by name for the inputs that are not given.
  std::string weights;
  /// `[name=]@file.npy`; outputs without a file go to stdout.
  std::vector<std::string> outputs;
  /// `[name=]tensor`.
  std::vector<std::string> expected;
  double tolerance = 1e-5;
  int64_t repeat = 1;
  bool profile = false;
};

struct BenchOptions : CommonOptions {
  std::string file;
  std::string program = "forward";
  /// `[name=]tensor`; inputs that are not given hold small numbers.
  std::vector<std::string> inputs;
  int64_t repeat = 100;
  /// Each command beside its limit.
  bool roofline = false;
};

struct RecomputeOptions : CommonOptions {
  std::vector<std::string> files;
  /// `[name=]tensor` for forward; inputs that are not given hold small numbers.
  std::vector<std::string> inputs;
  int64_t repeat = 5;
};

struct StitchCommand : StitchArguments {
  /// Names of parts in the order of their submits, "a,b,a"; empty: each once.
  std::string schedule;
  /// Times that the schedule is run.
  int64_t repeat = 1;
  /// `[part.][name=]@file.npy`; other outputs of the last part go to stdout.
  std::vector<std::string> outputs;
  /// `[part.][name=]tensor`.
  std::vector<std::string> expected;
  double tolerance = 1e-5;
  /// The table of edges, on stdout.
  bool report = false;
  /// The path to which stitch_hints.json is written.
  std::string hints;
};

struct TrainOptions : CommonOptions {
  std::vector<std::string> files;
  /// safetensors files that have all parameters between them.
  std::vector<std::string> weights;
  /// The SquareQ slab that frozen weights come from, and `name=name` of what has another there.
  std::string slab;
  std::vector<std::string> aliases;
  /// `key=tensor`, over the weights.
  std::vector<std::string> parameters;
  /// The bytes to learn, and the inputs that windows of them go to.
  std::string data;
  std::string tokens = "tokens", targets = "targets";
  /// `name=tensor`, the same in every step.
  std::vector<std::string> inputs;
  /// `module.name=module.name`, and `module.input=module.output`.
  std::vector<std::string> tied, wires;
  int64_t steps = 10;
  /// The last step of the whole training, in place of `steps`; 0 for none.
  int64_t until = 0;
  /// A checkpoint is saved after so many steps; 0 for one at the end alone.
  int64_t saveEvery = 0;
  std::string trace;
  /// A page of the run.
  std::string report;
  /// The learning rate of the optimizer, then those of the groups of parameters that have one of their own.
  std::vector<double> lr = {1e-3};
  /// How they change, as RateForm reads it; empty: they do not. `warmup` steps come before.
  std::string schedule;
  int64_t warmup = 0;
  /// Bytes that are not learnt, and after how many steps their mean loss is taken; 0 for once, at the end.
  std::string evalData;
  int64_t evalEvery = 0;
  double clip = 0;
  int64_t accumulate = 1;
  /// How ranks that train together reach each other: "mpi"; empty: there is one. With `addsInOrder`, sums over ranks
  /// have the bits of one rank after the other.
  std::string ranks;
  bool addsInOrder = false;
  /// How their tensors go: "auto", "host" or "nccl".
  std::string messages = "host";
  /// Each rank has all of the model with "ddp", the states of some parameters alone with "zero1", of parameters
  /// those alone with "zero3", and some of the files alone with "pipeline": `stages` says how many, if it is not empty.
  std::string strategy = "ddp";
  std::vector<size_t> stages;
  /// How many seconds a rank waits for the others.
  int64_t ranksTimeout = 600;
  int64_t seed = 0;
  std::string resume, save;
  bool profile = false;
  /// File with the memory services' config; folder for the logs of their decisions.
  std::string config, recordEvents;
  /// The bytes of device memory, 0 for what the device has; and the folder that what leaves goes to.
  uint64_t budget = 0;
  std::string spillDir;
  /// The bytes that it may take there; 0 for half of what is free.
  uint64_t spillCapacity = 0;
  /// With true, runs with and without services instead, and compares, under caps of so many
  /// percent of the peak.
  bool verifyInvariance = false;
  std::vector<int> caps = {100, 80, 60, 40};
};

struct ExportOptions {
  std::string checkpoint, output;
};

struct FitOptions : CommonOptions {
  std::vector<std::string> files;
  /// `module.name=module.name`, and `module.input=module.output`.
  std::vector<std::string> tied, wires;
  /// The bytes of device_dram; none for what the device has.
  std::vector<uint64_t> budgets;
  int64_t accumulate = 1;
  /// True for a run that seals its checkpoints on the disk.
  bool seal = false;
  /// The config of a run whose services are described; empty for none.
  std::string config;
};

struct PlanOptions : CommonOptions {
  std::vector<std::string> files;
  /// `module.name=module.name`, and `module.input=module.output`.
  std::vector<std::string> tied, wires;
  int64_t ranks = 2;
  /// "50GB/s,latency=5us".
  std::string interconnect = "50GB/s,latency=5us";
  /// The name of a strategy, or "search" for the fastest that fits.
  std::string strategy = "search";
  /// How many of the files each rank of a pipeline has; empty: so that stages take equally long.
  std::vector<size_t> stages;
  /// The bytes of device_dram of each rank; 0 for what the device has.
  uint64_t budget = 0;
  int64_t accumulate = 1;
};

struct ProfileDeviceOptions {
  std::string device = "cpu";
  /// The profile; empty: stdout.
  std::string output;
  double seconds = 5;
  uint64_t diskBytes = 256 << 20;
};

struct ReportOptions {
  /// Folders with telemetry, or files of it.
  std::vector<std::string> telemetry;
  std::string trace, output;
  /// The device of the run, for the limit of its link; empty if it is not known.
  std::string device;
  /// The bytes of device_dram; 0 if they are not known.
  uint64_t cap = 0;
};

struct TrustOptions {
  std::vector<std::string> files;
};

struct ReplayOptions {
  /// A log of events; - is stdin.
  std::string file;
  /// With true, compares the answers with the `expect` of the events.
  bool check = false;
};

struct QuantizeOptions {
  std::string source, slab;
  /// A config file whose section memory.stagehand.squareq is the default.
  std::string config;
  /// The keys of that section; what is not given is not there.
  std::optional<int64_t> padK, group, rank;
  std::string scheme, rotation, scaleSearch;
  std::vector<std::string> includePrefixes, keepBf16;
  std::optional<double> maxRatio;
  std::string architectureId = "unknown";
  bool keepNonfiniteBf16 = false;
  /// With true, `source` is a slab: its bytes are compared with its hashes, and nothing is made.
  bool check = false;
  int64_t threads = 0;
  bool json = false;
};

int bench(const BenchOptions &options);
int checkSlab(const QuantizeOptions &options);
int exportCheckpoint(const ExportOptions &options);
int fit(const FitOptions &options);
int inspect(const InspectOptions &options);
int plan(const PlanOptions &options);
int profileDevice(const ProfileDeviceOptions &options);
int listDevices();
int quantize(const QuantizeOptions &options);
int recompute(const RecomputeOptions &options);
int replay(const ReplayOptions &options);
int report(const ReportOptions &options);
int run(const RunOptions &options);
int stitch(const StitchCommand &options);
int train(const TrainOptions &options);
int trust(const TrustOptions &options);
int verifyInvariance(const TrainOptions &options);

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_COMMANDS_H
