//===- segue-run.cpp - inspects, runs and trains .segue files -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The command line. What the commands do is in files of their names.
//
//===----------------------------------------------------------------------===//

#include "Commands.h"
#include "Completion.h"
#include "NumberOptions.h"
#include "RateOptions.h"
#include "segue/runtime/Cuda/CudaDriver.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/NearestName.h"
#include "segue/runtime/Services/SquareQ/SlabManifest.h"
#include "segue/runtime/Services/SquareQ/SquareQConfig.h"
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>

using namespace segue;
using namespace segue::tool;

// Ranges of numbers that several commands take.
static constexpr int64_t mostRuns = 1'000'000'000, mostSteps = 1'000'000'000'000, mostBatches = 65536, mostThreads = 1024;
static constexpr double greatestTolerance = 1e6;

/// Returns the names of the values of an enumeration, for CLI::IsMember.
static std::vector<std::string> namesOf(const auto &values) {
  std::vector<std::string> names;
  for (auto value : values)
    names.emplace_back(name(value));
  return names;
}

static void addCommon(CLI::App *command, CommonOptions &options) {
  command->add_option("--device", options.device, "device spec")->capture_default_str();
  CLI::Option *allow =
      command->add_flag("--allow-native", options.allowNative, "run machine code of files that you have not signed");
  command->add_flag("--no-native", options.noNative, "run no machine code of the files")->excludes(allow);
  command->add_flag("--json", options.json, "machine-readable results");
}

static void addInspect(CLI::App &app, InspectOptions &options) {
  CLI::App *command = app.add_subcommand("inspect", "Says what a .segue file holds");
  command->add_option("files", options.files, ".segue files; - is stdin")->required();
  command->add_flag("--all", options.all, "every value, kernel and save point");
  addCommon(command, options);
  command->footer("Example: segue-run inspect gpt.segue");
}

static void addRun(CLI::App &app, RunOptions &options) {
  CLI::App *command = app.add_subcommand("run", "Runs one program of a .segue file");
  command->add_option("file", options.file, ".segue file; - is stdin")->required();
  command->add_option("--program", options.program, "program to run")->capture_default_str();
  command
      ->add_option("--input", options.inputs, "[name=]2x3xf32=1,2,... or [name=]@file.npy, in the order of the program")
      ->allow_extra_args(false);
  command->add_option("--weights", options.weights, "safetensors file for inputs that are not given, by name");
  command->add_option("--output", options.outputs, "[name=]@file.npy; other outputs go to stdout")
      ->allow_extra_args(false);
  command->add_option("--expect", options.expected, "[name=]tensor that an output must equal; status 4 if not")
      ->allow_extra_args(false);
  addReal(command, "--tolerance", options.tolerance, 0, greatestTolerance, "allowed |x - y| / (1 + |y|)")
      ->capture_default_str();
  addWhole(command, "--repeat", options.repeat, 1, mostRuns, "run so often; times on stderr");
  command->add_flag("--profile", options.profile, "time of each command beside its limit, on stderr");
  addCommon(command, options);
  command->footer("Example: segue-run run mlp.segue --program inference --weights mlp.safetensors\n"
                  "           --input x=2x3xf32=1,2,3,4,5,6 --expect y=@y.npy");
}

static void addQuantize(CLI::App &app, QuantizeOptions &options) {
  CLI::App *command = app.add_subcommand("quantize", "Makes a SquareQ slab of the linear layers of a checkpoint");
  command->add_option("source", options.source, "safetensors file; with --check, a slab")->required();
  command->add_option("-o,--output", options.slab, "slab: <slab>.safetensors, .manifest.json and .report.json");
  command->add_flag("--check", options.check, "compare every byte of a slab with the hashes of its manifest, make nothing");
  command->add_option("--config", options.config, "config file; flags go over its memory.stagehand.squareq");
  addWhole(command, "--pad-k", options.padK, 1, 1024, "columns are padded to a multiple; 64");
  command->add_option("--scheme", options.scheme, "how codes and their scales lie")->check(CLI::IsMember(namesOf(allSlabSchemes)));
  command->add_option("--group", options.group, "columns per scale of int4_group")->check(CLI::IsMember(std::vector<int64_t>{32, 64}))->type_name("number");
  command->add_option("--rotation", options.rotation, "of int4_group layers whose columns are a multiple of 256")
      ->check(CLI::IsMember(std::vector<std::string>{"none", std::string(rotationName)}));
  addWhole(command, "--rank", options.rank, 0, 1024, "of a bf16 product beside the codes of int4_group; 0");
  command->add_option("--include-prefixes", options.includePrefixes, "only layers named so")
      ->allow_extra_args(false);
  command
      ->add_option("--keep-bf16", options.keepBf16,
                   "glob of layers that stay bf16, or rmse>0.02, or cosine<0.999; replaces the default list, "
                   "which is called default")
      ->allow_extra_args(false);
  command->add_option("--scale-search", options.scaleSearch, "how a scale is chosen: by the greatest magnitude, or for the least error")
      ->check(CLI::IsMember(namesOf(allScaleSearches)));
  addReal(command, "--max-ratio", options.maxRatio, 0, 1, "layers above this part of bf16 stay bf16; 0.9");
  command->add_option("--architecture-id", options.architectureId, "noted in the manifest")->capture_default_str();
  command->add_flag("--keep-nonfinite-bf16", options.keepNonfiniteBf16, "leave out layers with NaN or infinity");
  addWhole(command, "--threads", options.threads, 0, mostThreads, "0: as many as the machine has");
  command->add_flag("--json", options.json, "machine-readable results");
  command->callback([&options] {
    if (options.check != options.slab.empty())
      throw CLI::ValidationError(options.check ? "--check makes no slab: leave out -o" : "-o names the slab to make");
  });
  command->footer("Example: segue-run quantize model.safetensors -o slab --keep-bf16 default --keep-bf16 'rmse>0.02'\n"
                  "         segue-run quantize slab --check");
}

static void addBench(CLI::App &app, BenchOptions &options) {
  CLI::App *command = app.add_subcommand("bench", "Measures one program of a .segue file");
  command->add_option("file", options.file, ".segue file; - is stdin")->required();
  command->add_option("--program", options.program, "program to run")->capture_default_str();
  command->add_option("--input", options.inputs, "[name=]tensor; what is not given is made up")
      ->allow_extra_args(false);
  addWhole(command, "--repeat", options.repeat, 1, mostRuns, "submits to time")->capture_default_str();
  command->add_flag("--roofline", options.roofline,
                    "each command beside its limit, by the speeds of the device, which are measured for a second or come from profile=");
  addCommon(command, options);
  command->footer("Example: segue-run bench gpt.segue --program inference --device cpu:threads=2 --repeat 20\n"
                  "         segue-run bench gpt.segue --program backward --roofline --device cpu:profile=laptop.json\n"
                  "Time per submit and the bytes of inputs and outputs over it; then time per command, on stderr.");
}

static void addRecompute(CLI::App &app, RecomputeOptions &options) {
  CLI::App *command = app.add_subcommand("recompute", "Computes what forward saves again, and compares all bits");
  command->add_option("files", options.files, ".segue files; - is stdin")->required();
  command->add_option("--input", options.inputs, "[name=]tensor for forward; what is not given is made up")
      ->allow_extra_args(false);
  addWhole(command, "--repeat", options.repeat, 1, mostRuns, "runs to time")->capture_default_str();
  addCommon(command, options);
  command->footer("Example: segue-run recompute gpt.segue --device cpu:threads=2\n"
                  "A line per saved value: what makes it again and in which time. Status 4 if a bit differs.");
}

static void addStitch(CLI::App &app, StitchCommand &options) {
  CLI::App *command = app.add_subcommand("stitch", "Runs programs compiled apart, outputs of one feeding the next");
  command->add_option("programs", options.programs, "file.segue[:program], forward by default; - is stdin")->required();
  command->add_option("--input", options.inputs, "[part.]name=2x3xf32=1,2,... or [part.]name=@file.npy")
      ->allow_extra_args(false);
  command->add_option("--weights", options.weights, "safetensors file for inputs that are not given, by name");
  command->add_option("--wire", options.wires, "part.input=part.output")->allow_extra_args(false);
  command->add_option("--schedule", options.schedule, "parts in the order of their submits: a,b,a");
  addWhole(command, "--repeat", options.repeat, 1, mostRuns, "run the schedule so often; each time is a step");
  command->add_flag("--prepare", options.prepare, "bring inputs to their layouts before the first submit");
  command->add_option("--output", options.outputs, "[part.][name=]@file.npy; the rest of the last part goes to stdout")
      ->allow_extra_args(false);
  command->add_option("--expect", options.expected, "[part.][name=]tensor that an output must equal; status 4 if not")
      ->allow_extra_args(false);
  addReal(command, "--tolerance", options.tolerance, 0, greatestTolerance, "allowed |x - y| / (1 + |y|)")
      ->capture_default_str();
  command->add_flag("--report", options.report, "what was copied between which programs, on stdout");
  command->add_option("--hints", options.hints, "stitch_hints.json for the compiler");
  addCommon(command, options);
  command->footer("A part is called by its file, front for out/front.segue, or front:backward for what else of\n"
                  "the file is stitched. An input is fed by a wire, a tensor of its name, a program before it of the\n"
                  "same file that has the name, or the next output of the part before it.\n"
                  "Example: segue-run stitch front.segue back.segue --weights mlp.safetensors --input x=@x.npy\n"
                  "           --expect y=@y.npy --repeat 3 --report --device sim");
}

/// Adds what ties parameters of modules, and wires their inputs to outputs.
static void addJoins(CLI::App *command, std::vector<std::string> &tied, std::vector<std::string> &wires) {
  command->add_option("--tie", tied, "module.parameter=module.parameter")->allow_extra_args(false);
  command->add_option("--wire", wires, "module.input=module.output")->allow_extra_args(false);
}

static CLI::Option *addStages(CLI::App *command, std::vector<size_t> &stages) {
  const char *help = "of a pipeline: how many of the files each rank has, as 2,3,2; so that stages take equally long";
  return addChecked(command->add_option("--stages", stages, help), wholeNumber(1, 1000000))
      ->delimiter(',')
      ->allow_extra_args(false);
}

/// Returns the sentence of an error without its code: what a wrong command line is told.
static std::string sentenceOf(const Error &error) {
  return std::string(error.what()).substr(errorCodeName(error.code()).size() + 2);
}

/// Checks a form that --lr-schedule names; the kinds are its description.
static CLI::Validator rateForm() {
  auto check = [](std::string &text) {
    try {
      RateForm form(text);
      return std::string();
    } catch (const Error &error) {
      return sentenceOf(error);
    }
  };
  return CLI::Validator(check, RateForm::grammar());
}

static void addTrain(CLI::App &app, TrainOptions &options) {
  CLI::App *command = app.add_subcommand("train", "Trains .segue files, stitched in their order");
  command->add_option("files", options.files, ".segue files; - is stdin")->required();
  command->add_option("--weights", options.weights, "safetensors file with every parameter; several have them between them")
      ->allow_extra_args(false);
  command->add_option("--slab", options.slab, "SquareQ slab that frozen weights come from, block by block")
      ->check(CLI::ExistingFile);
  command->add_option("--alias", options.aliases, "name=name in the weights and the slab, as fc.base=fc")
      ->allow_extra_args(false);
  command->add_option("--parameter", options.parameters, "key=tensor, over the weights")->allow_extra_args(false);
  command->add_option("--data", options.data, "bytes to learn; - is stdin");
  CLI::Option *evalData = command->add_option("--eval-data", options.evalData, "bytes that are not learnt: their mean loss is taken at the end")
                              ->check(CLI::ExistingFile);
  addWhole(command, "--eval-every", options.evalEvery, 1, mostSteps, "steps of the whole training after which it is taken, too")
      ->needs(evalData);
  command->add_option("--tokens", options.tokens, "input for windows of the data")->capture_default_str();
  command->add_option("--targets", options.targets, "input for the bytes that follow")->capture_default_str();
  command->add_option("--input", options.inputs, "name=tensor, the same in every step")->allow_extra_args(false);
  addJoins(command, options.tied, options.wires);
  addWhole(command, "--steps", options.steps, 1, mostSteps, "steps to train")->capture_default_str();
  addReal(command, "--lr", options.lr, 0, 1e6, "learning rate; again for each group of parameters with its own")
      ->allow_extra_args(false)
      ->capture_default_str();
  CLI::Option *schedule =
      command->add_option("--lr-schedule", options.schedule,
                          "how each rate changes over the whole training, as cosine, linear:final=1e-5, one-cycle:rise=0.3, "
                          "step-decay:every=1000,factor=0.5, step-decay:at=500,at=800")
          ->check(rateForm());
  CLI::Option *warmup =
      addWhole(command, "--warmup", options.warmup, 0, mostSteps, "steps over which each rate rises to what --lr says");
  addReal(command, "--clip", options.clip, 0, 1e30, "greatest norm of the gradients; 0: any")->capture_default_str();
  addWhole(command, "--accumulate", options.accumulate, 1, mostBatches, "batches per step");
  CLI::Option *ranks =
      command->add_option("--ranks", options.ranks, "how ranks that train together reach each other, started by mpirun: mpi")
          ->check(CLI::IsMember({"mpi"}));
  command->add_flag("--add-in-order", options.addsInOrder, "add up gradients one rank after the other, for the same bits as one rank")
      ->needs(ranks);
  command->add_option("--messages", options.messages, "how tensors go from rank to rank: nccl, from GPU to GPU; host, in the host's memory; auto, by nccl where every rank has a GPU of its own")
      ->check(CLI::IsMember({"auto", "host", "nccl"}))
      ->needs(ranks)
      ->capture_default_str();
  command->add_option("--strategy", options.strategy, "what a rank has: ddp, all; zero1, optimizer states of some parameters, which it updates for all; zero2, and their gradients; zero3, and these parameters; pipeline, some of the files, run one behind the other")
      ->check(CLI::IsMember(namesOf(shardings)))
      ->needs(ranks)
      ->capture_default_str();
  addStages(command, options.stages)->needs(ranks);
  addWhole(command, "--ranks-timeout", options.ranksTimeout, 1, 1000000, "seconds that a rank waits for the others")
      ->needs(ranks)
      ->capture_default_str();
  addWhole(command, "--seed", options.seed, INT64_MIN, INT64_MAX, "of batches and random ops")->capture_default_str();
  command->add_option("--trace", options.trace,
                      "trace of the run for ui.perfetto.dev: of its first steps, up to 50 MiB of memory, which\n"
                      "come beside a budget");
  command->add_option("--report", options.report, "HTML page of the run: memory, link, stalls, losses");
  addWhole(command, "--until", options.until, 1, mostSteps,
           "train up to this step of the whole training instead of --steps");
  command->add_option("--resume", options.resume, "checkpoint to go on from");
  CLI::Option *save = command->add_option(
      "--save", options.save, "checkpoint to write at the end; a folder, or FOLDER/, gets a file of each rank");
  addWhole(command, "--save-every", options.saveEvery, 1, mostSteps, "steps after which --save is written, too")
      ->needs(save);
  command->add_flag("--profile", options.profile, "time of each command beside its limit, on stderr");
  command->add_option("--config", options.config, "JSON file that enables memory services")->check(CLI::ExistingFile);
  command->add_option("--record-events", options.recordEvents, "folder for logs of the services, for segue-run replay")
      ->check(CLI::ExistingDirectory);
  CLI::Option *budget = addBytes(command, "--budget", options.budget,
                                 "memory that the run may compute with, as 2GiB; a plan decides what leaves it");
  CLI::Option *spill =
      command->add_option("--spill-dir", options.spillDir, "folder on a disk for what has no room in the budget, on cpu")
          ->needs(budget)
          ->check(CLI::ExistingDirectory);
  addBytes(command, "--spill-capacity", options.spillCapacity,
           "what the run may take there, as 20GiB; without it, half of what is free")
      ->needs(spill);
  CLI::Option *verify =
      command->add_flag("--verify-invariance", options.verifyInvariance,
                        "train with and without memory services under several caps; status 1 if a bit differs")
          ->excludes(schedule)
          ->excludes(warmup)
          ->excludes(evalData);
  addWhole(command, "--caps", options.caps, 1, 100,
           "for --verify-invariance, in percent of the peak without services")
      ->delimiter(',')
      ->needs(verify)
      ->capture_default_str();
  addCommon(command, options);
  command->callback([&options] {
    try {
      RateForm(options.schedule).checkWarmup(options.warmup);
    } catch (const Error &error) {
      throw CLI::ValidationError(sentenceOf(error));
    }
  });
  command->footer("Example: segue-run train front.segue back.segue --weights init.safetensors\n"
                  "           --data text.txt --steps 20 --lr 3e-4 --save checkpoint.safetensors\n"
                  "         segue-run train gpt.segue --weights init.safetensors --data text.txt --until 1000\n"
                  "           --lr 3e-4 --lr-schedule cosine --warmup 100 --eval-data held-out.txt --eval-every 100\n"
                  "SIGINT or SIGTERM ends it after the step in progress, with --save, --trace and --report\n"
                  "written and status 130 or 143; a second one ends it at once.\n"
                  "On a device of virtual time, sim:virtual,..., the run is rehearsed without weights and\n"
                  "batches: seconds and peak of each step.");
}

static void addExport(CLI::App &app, ExportOptions &options) {
  CLI::App *command = app.add_subcommand("export", "Makes a checkpoint that holds everything of a sealed one");
  command->add_option("checkpoint", options.checkpoint, "checkpoint whose tensors lie on the disk of its run")
      ->required();
  command->add_option("output", options.output, "safetensors file to write")->required();
  command->footer("Such checkpoints are what train --spill-dir --save-every writes before the last step.\n"
                  "Example: segue-run export checkpoint.safetensors whole.safetensors");
}

static void addFit(CLI::App &app, FitOptions &options) {
  CLI::App *command = app.add_subcommand("fit", "Says whether training fits, what a step holds and what a budget costs");
  command->add_option("files", options.files, ".segue files; - is stdin")->required();
  addBytes(command, "--budget", options.budgets,
           "of the device's memory, as 512MiB; may be given again; all that the device has");
  addWhole(command, "--accumulate", options.accumulate, 1, mostBatches, "batches per step");
  command->add_flag("--seal", options.seal,
                    "count the room on the disk for sealed checkpoints, as of train --spill-dir --save-every");
  command->add_option("--config", options.config, "JSON file of a run: what each of its services would do")
      ->check(CLI::ExistingFile);
  addJoins(command, options.tied, options.wires);
  addCommon(command, options);
  command->footer("Runs nothing of the files, and opens no device but a GPU, which says what it takes for programs: a\n"
                  "step is played in virtual time, by the figures of the device's spec. No weights are needed.\n"
                  "Example: segue-run fit front.segue back.segue --budget 512MiB\n"
                  "           --device sim:virtual,dram=24GiB,pinned=16GiB,link=16GB/s,flops=80TFLOP/s\n"
                  "         segue-run fit gpt.segue --budget 2GiB --device cpu:profile=laptop.json\n"
                  "On cpu, what leaves goes to a disk, as for train --spill-dir; disk=FOLDER checks that it has room.\n"
                  "Status 1 if it does not fit.");
}

static void addPlan(CLI::App &app, PlanOptions &options) {
  CLI::App *command = app.add_subcommand("plan", "Says what a step takes of each of several ranks, before any is started");
  command->add_option("files", options.files, ".segue files, one that is given several times as several modules; - is stdin")
      ->required();
  addWhole(command, "--ranks", options.ranks, 1, 65536, "that train together")->capture_default_str();
  command->add_option("--interconnect", options.interconnect, "between ranks: bandwidth of one direction, latency of a message")
      ->capture_default_str();
  std::vector<std::string> strategies = namesOf(shardings);
  strategies.push_back("search");
  command->add_option("--strategy", options.strategy, "as in train; search: the fastest that fits")
      ->check(CLI::IsMember(strategies))
      ->capture_default_str();
  addStages(command, options.stages);
  addBytes(command, "--budget", options.budget, "of each rank's device memory, as 24GiB; all that the device has");
  addWhole(command, "--accumulate", options.accumulate, 1, mostBatches, "batches of each rank per step; a pipeline takes those of all");
  addJoins(command, options.tied, options.wires);
  addCommon(command, options);
  command->footer("Plays the session that would train, in virtual time, with messages that take the time of the\n"
                  "interconnect. Runs nothing of the files, opens no device but a GPU, and takes no memory of the\n"
                  "model's size: of a model of equal layers, one may be compiled and given as often as there are.\n"
                  "Example: segue-run plan gpt.segue --ranks 8 --interconnect 50GB/s,latency=5us --strategy ddp\n"
                  "           --device sim:virtual,dram=24GiB,pinned=64GiB,link=25GB/s,flops=80TFLOP/s\n"
                  "Status 1 if nothing fits.");
}

static void addProfileDevice(CLI::App &app, ProfileDeviceOptions &options) {
  CLI::App *command = app.add_subcommand("profile-device", "Measures how fast this machine, a GPU or a disk of it are, for fit");
  command->add_option("--device", options.device, "cpu, cpu:threads=4, cpu:disk=FOLDER, cuda:0, cuda:0,tf32=on,disk=FOLDER")->capture_default_str();
  command->add_option("-o,--output", options.output, "the profile; stdout");
  addReal(command, "--seconds", options.seconds, 0.1, 3600, "about how long it may take")->capture_default_str();
  addBytes(command, "--disk-bytes", options.diskBytes, "that are reserved on the disk meanwhile; 256MiB");
  command->footer("Example: segue-run profile-device --device cpu:disk=/mnt/ssd -o laptop.json\n"
                  "         segue-run fit gpt.segue --budget 2GiB --device cpu:profile=laptop.json\n"
                  "         segue-run profile-device --device cuda:0 -o card.json\n"
                  "         segue-run fit gpt.segue --budget 2GiB --device sim:virtual,profile=card.json");
}

static void addDevices(CLI::App &app) {
  CLI::App *command = app.add_subcommand("devices", "Says what this machine could train on");
  command->footer("GPUs are those that the CUDA driver finds; none is opened.\n"
                  "Example: segue-run devices");
}

static void addTrust(CLI::App &app, TrustOptions &options) {
  CLI::App *command = app.add_subcommand("trust", "Signs .segue files whose machine code you trust");
  command->add_option("files", options.files, ".segue files; - is stdin")->required();
  command->footer("A .segue file holds machine code, which runs with all your rights. Files that you compile are\n"
                  "signed with a key of yours; any other runs only after this, or with --allow-native. The\n"
                  "signature is for the bytes of the file, wherever it lies; removing the folder of the key,\n"
                  "$XDG_DATA_HOME/segue or ~/.local/share/segue, takes all trust back.\n"
                  "Example: segue-run trust gpt.segue");
}

static void addReplay(CLI::App &app, ReplayOptions &options) {
  CLI::App *command = app.add_subcommand("replay", "Feeds a log of events to the policy of a memory service");
  command->add_option("file", options.file, "log; - is stdin")->required();
  command->add_flag("--check", options.check, "compare with the events' expectations; status 1 if one differs");
  command->footer("Example: segue-run replay conductor-caps.json --check\n"
                  "Prints one JSON object per event. Status 2 if the log is malformed.");
}

static void addReport(CLI::App &app, ReportOptions &options) {
  CLI::App *command = app.add_subcommand("report", "Makes an HTML page of what a run left");
  command->add_option("--telemetry", options.telemetry, "folder with .jsonl files, or one such file")
      ->required()
      ->check(CLI::ExistingPath)
      ->allow_extra_args(false);
  command->add_option("-o,--output", options.output, "the page")->required();
  command->add_option("--trace", options.trace, "trace of the run, as segue-run train --trace writes it; - is stdin");
  command->add_option("--device", options.device, "where it ran, for the limit of the link");
  addBytes(command, "--cap", options.cap, "of device memory that it had, as 512MiB");
  command->footer("Lines of `segue-run train --json` in a .jsonl file bring the losses.\n"
                  "Example: segue-run report --telemetry logs --trace trace.json -o report.html");
}

static void addCompletion(CLI::App &app, std::string &shell) {
  CLI::App *command = app.add_subcommand("completion", "Writes what makes a shell complete commands, options and values");
  command->add_option("shell", shell, "the shell")->required()->check(CLI::IsMember(completedShells));
  command->footer("Example: eval \"$(segue-run completion bash)\"       in ~/.bashrc\n"
                  "         eval \"$(segue-run completion zsh)\"        in ~/.zshrc, after compinit\n"
                  "         segue-run completion fish | source          in ~/.config/fish/config.fish");
}

/// What is said of a command or an option that nobody knows, with the nearest that is known; empty for other mistakes.
static std::string misnamed(const CLI::App &app, int argc, char **argv) {
  std::vector<std::string> known;
  std::string what, given;
  if (std::vector<CLI::App *> commands = app.get_subcommands(); commands.empty()) {
    if (argc < 2 || argv[1][0] == '-')
      return "";
    what = "command", given = argv[1];
    for (const CLI::App *command : app.get_subcommands([](const CLI::App *) { return true; }))
      known.push_back(command->get_name());
  } else {
    std::vector<std::string> extras = commands.front()->remaining();
    if (extras.empty() || !extras.front().starts_with("--"))
      return "";
    what = "option", given = extras.front().substr(0, extras.front().find('='));
    for (const CLI::Option *option : commands.front()->get_options())
      for (const std::string &name : option->get_lnames())
        known.push_back("--" + name);
  }
  return "there is no " + what + " \"" + given + "\"" + nearestHint(given, std::vector<std::string_view>(known.begin(), known.end()));
}

/// Lets whoever knows an option as a key of configs or an argument of Python's write it so: --spill_dir is --spill-dir.
static void takeUnderscores(int argc, char **argv) {
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i)
    if (std::string_view(argv[i]).starts_with("--"))
      for (char *at = argv[i]; *at && *at != '='; ++at)
        if (*at == '_')
          *at = '-';
}

int main(int argc, char **argv) {
  takeUnderscores(argc, argv);
  segue::useCuda();
  CLI::App app("Inspects, runs and trains .segue files.", "segue-run");
  app.require_subcommand(1);
  app.set_version_flag("--version", "segue-run " SEGUE_VERSION);
  app.footer("Machine code of a .segue file runs if you compiled the file here, or trust it (segue-run trust), or say\n"
             "--allow-native or SEGUE_ALLOW_NATIVE=1. inspect, export, fit, replay, report, quantize and devices of\n"
             "virtual time (sim:virtual) run none and need no trust: SECURITY.md.\n"
             "Exit status: 0 done, 1 failed, 2 wrong usage, 3 loss not finite, 4 output not as expected;\n"
             "130 or 143: train was told to end by SIGINT or SIGTERM, and did after the step in progress.");
  std::signal(SIGXFSZ, SIG_IGN); // a file that may not grow is an error of the write, with its path
  InspectOptions inspectOptions;
  RunOptions runOptions;
  ReplayOptions replayOptions;
  ReportOptions reportOptions;
  QuantizeOptions quantizeOptions;
  ExportOptions exportOptions;
  FitOptions fitOptions;
  PlanOptions planOptions;
  ProfileDeviceOptions profileDeviceOptions;
  BenchOptions benchOptions;
  RecomputeOptions recomputeOptions;
  StitchCommand stitchOptions;
  TrainOptions trainOptions;
  TrustOptions trustOptions;
  std::string shell;
  addInspect(app, inspectOptions);
  addRun(app, runOptions);
  addExport(app, exportOptions);
  addFit(app, fitOptions);
  addPlan(app, planOptions);
  addProfileDevice(app, profileDeviceOptions);
  addDevices(app);
  addReplay(app, replayOptions);
  addReport(app, reportOptions);
  addQuantize(app, quantizeOptions);
  addBench(app, benchOptions);
  addRecompute(app, recomputeOptions);
  addStitch(app, stitchOptions);
  addTrain(app, trainOptions);
  addTrust(app, trustOptions);
  addCompletion(app, shell);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError &error) {
    if (std::string text = error.get_exit_code() ? misnamed(app, argc, argv) : ""; !text.empty()) {
      std::fprintf(stderr, "segue-run: %s\nRun with --help for more information.\n", text.c_str());
      return WrongUsage;
    }
    return app.exit(error) == 0 ? Done : WrongUsage;
  }
  auto perform = [&] {
    if (app.got_subcommand("inspect"))
      return inspect(inspectOptions);
    if (app.got_subcommand("run"))
      return run(runOptions);
    if (app.got_subcommand("profile-device"))
      return profileDevice(profileDeviceOptions);
    if (app.got_subcommand("devices"))
      return listDevices();
    if (app.got_subcommand("completion")) {
      std::fputs(completionScript(completedProgram(app), shell).c_str(), stdout);
      return int(Done);
    }
    if (app.got_subcommand("export"))
      return exportCheckpoint(exportOptions);
    if (app.got_subcommand("fit"))
      return fit(fitOptions);
    if (app.got_subcommand("plan"))
      return plan(planOptions);
    if (app.got_subcommand("replay"))
      return replay(replayOptions);
    if (app.got_subcommand("report"))
      return report(reportOptions);
    if (app.got_subcommand("quantize"))
      return quantizeOptions.check ? checkSlab(quantizeOptions) : quantize(quantizeOptions);
    if (app.got_subcommand("bench"))
      return bench(benchOptions);
    if (app.got_subcommand("recompute"))
      return recompute(recomputeOptions);
    if (app.got_subcommand("stitch"))
      return stitch(stitchOptions);
    if (app.got_subcommand("trust"))
      return trust(trustOptions);
    return train(trainOptions);
  };
  try {
    int status = perform();
    // Results that nobody gets are no success.
    if ((std::fflush(stdout) != 0 || std::ferror(stdout)) && status == Done)
      throw Error(ErrorCode::IoFailed, "stdout: results could not be written, as to a disk that is full or a file that is closed");
    return status;
  } catch (const Error &error) {
    std::fprintf(stderr, "segue-run: %s\n", error.what());
    return error.code() == ErrorCode::NanLoss ? NotFinite : Failed;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "segue-run: %s\n", error.what());
    return Failed;
  }
}
