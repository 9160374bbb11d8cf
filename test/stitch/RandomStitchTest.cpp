//===- RandomStitchTest.cpp - any cut, layout and order, the same bits ----===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A random stitching: a random model, cut into two to six modules that are
// compiled apart (some in processes of their own), with layouts of its own in
// every signature; several instances of it under way at once on a simulated
// discrete device that does everything in any order it may; every edge brought
// to some other layout in between; backward programs as soon as they can run.
// All outputs and gradients have the bits of the joined program, which runs by
// itself on the cpu with the same kernels (CompilePieces.h says how).
//
// Some devices also lose copies and run out of memory. Then a submit throws and
// leaves its inputs as they were, or fails what it should have written: both are
// tried again, and the bits are the same.
//
//   SEGUE_STITCHINGS=1000 SegueRandomStitchTests         more of them
//   SEGUE_STITCHING=17 SegueRandomStitchTests            this one
//   SEGUE_STITCH_ORDERS=20 SegueRandomStitchTests        each in more orders
//
//===----------------------------------------------------------------------===//

#include "CompilePieces.h"
#include "RandomModel.h"
#include "Sample.h"
#include "StitchDevices.h"
#include "StoredPieces.h"
#include "segue/runtime/Runtime.h"
#include "segue/runtime/Layout/RowStorage.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <cmath>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <set>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace segue;
using namespace segue::test;
using Random = std::mt19937_64;

extern char **environ;

static int64_t below(Random &random, int64_t limit) { return int64_t(random() % uint64_t(limit)); }

template <typename Choices> static auto oneOf(Random &random, const Choices &choices) {
  return std::begin(choices)[below(random, int64_t(std::size(choices)))];
}

static std::span<const std::byte> bytesOf(const std::string &text) { return std::as_bytes(std::span(text)); }

/// A thousand lines of text are no message.
static std::string shortened(std::string text) {
  if (text.size() > 6000)
    text.resize(6000);
  return text;
}

//===----------------------------------------------------------------------===//
// Compilation in other processes
//===----------------------------------------------------------------------===//

#ifdef SEGUE_COMPILE
/// Not where the answers are stored for a build that cannot.
static bool mayCompileInProcesses() { return !storedPieces(); }

/// A process per module, all at once.
static std::vector<std::string> compileInProcesses(const std::vector<std::string> &modules, bool training) {
  auto folder = std::filesystem::temp_directory_path() / ("segue-stitch-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  std::vector<std::pair<pid_t, std::filesystem::path>> runs;
  for (const std::string &module : modules) {
    auto source = folder / (std::to_string(runs.size()) + ".mlir"), file = source;
    file.replace_extension(".segue");
    std::ofstream(source) << module;
    std::vector<std::string> words = {SEGUE_COMPILE, source, "-o", file, "--optimizer=none"};
    for (const std::string &word : targetWords())
      words.push_back(word);
    if (!training)
      words.push_back("--inference-only");
    std::vector<char *> arguments;
    for (std::string &word : words)
      arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_t pid = 0;
    if (posix_spawn(&pid, SEGUE_COMPILE, nullptr, nullptr, arguments.data(), environ) != 0)
      throw std::runtime_error("cannot start " SEGUE_COMPILE);
    runs.emplace_back(pid, file);
  }
  std::vector<std::string> files;
  bool compiled = true;
  for (const auto &[pid, file] : runs) {
    int status = 0;
    compiled &= waitpid(pid, &status, 0) == pid && status == 0;
    std::ifstream is(file, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(is), std::istreambuf_iterator<char>());
  }
  std::filesystem::remove_all(folder);
  if (!compiled)
    throw std::runtime_error("segue-compile failed");
  return files;
}
#else
static bool mayCompileInProcesses() { return false; }
static std::vector<std::string> compileInProcesses(const std::vector<std::string> &, bool) { return {}; }
#endif

//===----------------------------------------------------------------------===//
// Random layouts
//===----------------------------------------------------------------------===//

static ElementType elementOf(const ModelValue &value) {
  return value.element == "f32" ? ElementType::f32 : value.element == "bf16" ? ElementType::bf16 : ElementType::i64;
}

/// Strides in some order of the dimensions, with or without gaps.
static std::vector<int64_t> randomStrides(Random &random, const Shape &shape, const std::vector<uint32_t> &tile) {
  std::vector<size_t> order(shape.size());
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  std::vector<int64_t> strides(shape.size());
  int64_t step = 1, untiled = int64_t(shape.size() - tile.size());
  for (uint32_t extent : tile)
    step *= extent;
  for (size_t dim : order) {
    int64_t extent = int64_t(dim) < untiled ? 1 : tile[dim - size_t(untiled)];
    strides[dim] = step;
    int64_t gap = below(random, 3);
    step = step * ((shape[dim] + extent - 1) / extent) + gap * below(random, 2);
  }
  return strides;
}

/// Draws a layout that a tensor laid as `given` may be brought to without a loss.
static TensorDesc randomDesc(Random &random, const Device &device, const TensorDesc &given) {
  TensorDesc desc = given;
  desc.layout.offset = 0;
  desc.layout.tile.clear();
  desc.layout.strides.clear();
  do {
    desc.layout.space = Space(below(random, 4));
  } while (!device.hasSpace(desc.layout.space));
  desc.layout.alignment = oneOf(random, std::to_array<uint32_t>({64, 64, 128, 512, 4096}));
  if (below(random, 3) == 0)
    for (int64_t rank = below(random, int64_t(desc.shape.size()) + 1); rank-- > 0;)
      desc.layout.tile.push_back(oneOf(random, std::to_array<uint32_t>({1, 2, 3, 4, 8})));
  if (below(random, 2))
    desc.layout.strides = randomStrides(random, desc.shape, desc.layout.tile);
  if (isRowStorage(desc.layout.storage) && below(random, 2))
    desc.layout.zeroPoints = true;
  return desc;
}

/// A layout that a signature may declare, in the words of the compiler; or "".
static std::string randomDeclaration(Random &random, bool hasL1, bool strided, const ModelValue &value) {
  if (below(random, 5) < 3)
    return "";
  std::string text = "#segue.layout<space = ";
  text += hasL1 && below(random, 2) ? "device_l1" : "device_dram";
  if (strided && !value.shape.empty() && below(random, 2)) {
    text += ", strides = [";
    for (const char *comma = ""; int64_t stride : randomStrides(random, value.shape, {}))
      text += std::exchange(comma, ", ") + std::to_string(stride);
    text += "]";
  }
  return text + ", alignment = " + std::to_string(oneOf(random, std::to_array({64, 128, 512}))) + ">";
}

//===----------------------------------------------------------------------===//
// A stitching
//===----------------------------------------------------------------------===//

namespace {
/// Counts of all stitchings of a run.
struct Totals {
  uint64_t stitchings = 0, training = 0, faulty = 0, pieces = 0, inProcesses = 0, plain = 0, redrawn = 0, relaid = 0,
           retries = 0, restarts = 0;
  uint64_t submits = 0, elided = 0, converted = 0, cacheHits = 0, donations = 0, bounces = 0, compared = 0;
};

/// The file of a module that adds, by type: compiled once per process.
const std::string &adderFile(const Shape &shape, const std::string &element) {
  static std::map<std::string, std::string> files;
  std::string &file = files[tensorType(shape, element)];
  if (file.empty())
    file = compileModule(sumText(shape, element), false);
  return file;
}

class Stitching {
public:
  Stitching(uint64_t seed, Totals &totals) : totals(totals), random(seed) {
    training = seed % 2;
    devices = drawDevices(random, seed);
    device = Device::open(devices.spec);
    joinedDevice = Device::open(devices.joinedSpec);
    do {
      model = RandomModel::make(random);
      pieces.clear();
      for (size_t begin = 0; size_t end : model.cut(random, size_t(2 + below(random, 5)))) {
        pieces.emplace_back(model, begin, end);
        begin = end;
      }
    } while (!compileWithOneSetOfCalls(seed));
    ++totals.stitchings;
    totals.inProcesses += seed % 25 == 0 && mayCompileInProcesses();
    totals.training += training;
    totals.faulty += devices.isFaulty;
    totals.pieces += pieces.size();
  }

  void run(uint64_t orders) {
    instances.resize(size_t(1 + below(random, 3)));
    for (size_t value = 0; value < model.values.size(); ++value)
      if (model.values[value].kind == ModelValue::Kind::Parameter)
        parameters[valueName(value)] = makeOuter(model.values[value]);
    for (Instance &instance : instances) {
      for (size_t value = 0; value < model.values.size(); ++value)
        if (model.values[value].kind == ModelValue::Kind::Input)
          instance.outer[valueName(value)] = makeOuter(model.values[value]);
      if (training)
        for (size_t output : model.outputs)
          instance.outer["grad." + valueName(output)] = makeOuter(model.values[output], /*isGradient=*/true);
    }
    runJoined();
    // From the second time on plans, kept storages and cached parameters are there.
    for (uint64_t pass = 0; pass < orders; ++pass) {
      beginOrder(devices, pass);
      for (Instance &instance : instances)
        instance.restart();
      play();
      for (Instance &instance : instances)
        compare(instance);
    }
    release();
  }

  std::string describe() const {
    std::string text = "on " + devices.spec + (training ? ", forward and backward" : ", forward") + ", cut into " +
                       std::to_string(pieces.size()) + ":\n";
    for (const std::string &module : texts)
      text += module;
    return text;
  }

private:
  /// A value that enters: as the joined program and as the stitched ones get it.
  struct Outer {
    Tensor dense, given;
  };

  struct Instance {
    std::map<std::string, Outer> outer;
    std::map<std::string, Tensor> expected;

    std::map<std::string, Tensor> values;
    std::map<std::pair<size_t, std::string>, Tensor> saved;
    /// Gradients of each value, as each module's backward gave them.
    std::map<std::string, std::map<size_t, Tensor, std::greater<>>> gradients;
    std::set<size_t> wentForward, wentBackward;
    int restarts = 0;

    void restart() {
      values.clear();
      saved.clear();
      gradients.clear();
      wentForward.clear();
      wentBackward.clear();
    }
  };

  /// A library call that reads other strides is another kernel. Where the joined program makes such a call, strides
  /// are not declared; where it still does (it reads through a transpose that a module writes out), another model is
  /// drawn.
  bool compileWithOneSetOfCalls(uint64_t seed) {
    if (compileAll(seed, /*strided=*/true))
      return true;
    ++totals.plain;
    if (compileAll(seed, /*strided=*/false))
      return true;
    ++totals.redrawn;
    return false;
  }

  /// True if the joined program calls libraries as the modules do.
  bool compileAll(uint64_t seed, bool strided) {
    texts.clear();
    for (const ModelPiece &piece : pieces) {
      std::map<size_t, std::string> layouts;
      for (const auto *values : {&piece.arguments, &piece.results})
        for (size_t value : *values)
          if (std::string layout =
                  randomDeclaration(random, device->hasSpace(Space::DeviceL1), strided, model.values[value]);
              !layout.empty())
            layouts[value] = layout;
      texts.push_back(piece.text(model, layouts));
    }
    std::vector<std::string> files, outputs;
    if (seed % 25 == 0 && mayCompileInProcesses())
      files = compileInProcesses(texts, training);
    else
      for (const std::string &text : texts)
        files.push_back(compileModule(text, training));
    for (size_t output : model.outputs)
      outputs.push_back(valueName(output));
    joined = compileJoined(texts, outputs, training);
    std::set<std::string> calls;
    for (const std::string &file : files)
      calls.merge(libraryCalls(file));
    std::set<std::string> joinedCalls = libraryCalls(joined);
    binaries.clear();
    for (const std::string &file : files)
      binaries.push_back(Binary::fromMemory(bytesOf(file)));
    return std::ranges::includes(calls, joinedCalls);
  }

  //===--------------------------------------------------------------------===//
  // Values
  //===--------------------------------------------------------------------===//

  /// A random value; one in four that may is stored in rows, and its elements
  /// are what the codes mean.
  Outer makeOuter(const ModelValue &value, bool isGradient = false) {
    ElementType element = elementOf(value);
    Tensor dense = Tensor::onHost(joinedDevice, value.shape, element);
    int64_t count = int64_t(dense.elementCount());
    auto unit = [&] { return float(below(random, 4001) - 2000) / 2000; };
    if (element == ElementType::i64) {
      for (int64_t i = 0; i < count; ++i)
        dense.data<int64_t>()[i] = below(random, value.bound);
    } else if (element == ElementType::bf16) {
      for (int64_t i = 0; i < count; ++i)
        dense.data<uint16_t>()[i] = floatToBf16(unit());
    } else {
      for (int64_t i = 0; i < count; ++i)
        dense.data<float>()[i] = unit();
    }
    Tensor host;
    if (element == ElementType::f32 && !isGradient && !value.shape.empty() && below(random, 4) == 0) {
      TensorDesc rows(value.shape, element,
                      Layout{.space = Space::Host,
                             .storage = StorageType(1 + below(random, 3)),
                             .zeroPoints = below(random, 2) != 0});
      host = Tensor::empty(device, rows);
      LayoutParts parts = rows.parts();
      std::memset(host.bytes(), 0, parts.bytes);
      float scale = 1.0f / largestCode(rows.layout.storage);
      for (int64_t row = 0; row < parts.rows; ++row) {
        float scaleOfRow = scale * float(1 + below(random, 100)) / 100, zeroPoint = float(below(random, 5) - 2);
        std::memcpy(host.bytes() + parts.scales + row * 4, &scaleOfRow, 4);
        if (rows.layout.zeroPoints)
          std::memcpy(host.bytes() + parts.zeroPoints + row * 4, &zeroPoint, 4);
        for (int64_t i = row * count / parts.rows; i < (row + 1) * count / parts.rows; ++i) {
          uint8_t code = floatToCode(unit() * largestCode(rows.layout.storage), rows.layout.storage);
          host.bytes()[i] = std::byte(code);
          float number = codeToFloat(code, rows.layout.storage) - (rows.layout.zeroPoints ? zeroPoint : 0.0f);
          dense.data<float>()[i] = number * scaleOfRow;
        }
      }
    } else {
      host = Tensor::onHost(device, value.shape, element);
      std::memcpy(host.bytes(), dense.bytes(), dense.desc().spanBytes());
    }
    return {dense, host};
  }

  /// The tensor somewhere else and laid in another way, or as it is.
  Tensor relay(const Tensor &tensor) {
    if (below(random, 5) < 2)
      return tensor;
    ++totals.relaid;
    return untilItWorks([&] { return toLayout(device, tensor, randomDesc(random, *device, tensor.desc())); });
  }

  /// Memory may be short for a while.
  template <typename Call> auto untilItWorks(const Call &call) -> decltype(call()) {
    for (int tries = 0;; ++tries)
      try {
        return call();
      } catch (const Error &error) {
        if (!devices.isFaulty || error.code() != ErrorCode::DeviceOom || tries > 1000)
          throw;
        ++totals.retries;
      }
  }

  //===--------------------------------------------------------------------===//
  // The joined program
  //===--------------------------------------------------------------------===//

  /// The module that adds two tensors of a type.
  const Binary &adder(const TensorDesc &desc) {
    std::string element(name(desc.element)), key = tensorType(desc.shape, element);
    auto found = adders.find(key);
    if (found == adders.end())
      found = adders.emplace(key, Binary::fromMemory(bytesOf(adderFile(desc.shape, element)))).first;
    return found->second;
  }

  void runJoined() {
    Binary binary = Binary::fromMemory(bytesOf(joined));
    // The same kernels, by the hash of what they do: all of its kernels are kernels of a module or of a sum.
    std::set<uint64_t> known;
    for (const Binary &piece : binaries)
      for (const KernelInfo &kernel : piece.kernels())
        known.insert(kernel.hash);
    const Program &program = binary.program("forward");
    for (const Value &value : program.inputs())
      for (const KernelInfo &kernel : adder(value.desc()).kernels())
        known.insert(kernel.hash);
    for (size_t value = 0; value < model.values.size(); ++value)
      if (training && model.values[value].element != "i64")
        for (const KernelInfo &kernel :
             adder(TensorDesc(model.values[value].shape, elementOf(model.values[value]))).kernels())
          known.insert(kernel.hash);
    for (const KernelInfo &kernel : binary.kernels())
      ASSERT_TRUE(known.contains(kernel.hash)) << "kernel " << kernel.name << " of the joined program is of no module";

    for (Instance &instance : instances) {
      std::vector<Tensor> inputs;
      for (const Value &value : program.inputs()) {
        auto parameter = parameters.find(value.name);
        inputs.push_back((parameter != parameters.end() ? parameter->second : instance.outer.at(value.name)).dense);
      }
      std::vector<Tensor> results = submit(joinedDevice, program, inputs);
      for (size_t i = 0; i < results.size(); ++i)
        instance.expected[program.output(i).name] = toHost(results[i]);
    }
  }

  //===--------------------------------------------------------------------===//
  // Playing
  //===--------------------------------------------------------------------===//

  bool mayGoForward(const Instance &instance, size_t piece) const {
    return !instance.wentForward.contains(piece) && std::ranges::all_of(pieces[piece].arguments, [&](size_t value) {
      return model.values[value].kind != ModelValue::Kind::Result || instance.values.contains(valueName(value));
    });
  }

  /// Everything that reads its results has gone backward.
  bool mayGoBackward(const Instance &instance, size_t piece) const {
    if (!training || !instance.wentForward.contains(piece) || instance.wentBackward.contains(piece))
      return false;
    for (size_t reader = piece + 1; reader < pieces.size(); ++reader)
      for (size_t value : pieces[piece].results)
        if (std::ranges::count(pieces[reader].arguments, value) && !instance.wentBackward.contains(reader))
          return false;
    return true;
  }

  /// All instances at once, in any order that their values allow.
  void play() {
    while (true) {
      struct Task {
        Instance *instance;
        size_t piece;
        bool backward;
      };
      std::vector<Task> tasks;
      for (Instance &instance : instances)
        for (size_t piece = 0; piece < pieces.size(); ++piece) {
          if (mayGoForward(instance, piece))
            tasks.push_back({&instance, piece, false});
          if (mayGoBackward(instance, piece))
            tasks.push_back({&instance, piece, true});
        }
      if (tasks.empty())
        return;
      Task task = oneOf(random, tasks);
      try {
        task.backward ? goBackward(*task.instance, task.piece) : goForward(*task.instance, task.piece);
        if (below(random, 8) == 0 && !task.instance->values.empty())
          wait(std::next(task.instance->values.begin(), below(random, int64_t(task.instance->values.size())))->second);
      } catch (const Error &error) {
        abandon(*task.instance, error);
      }
    }
  }

  /// A copy failed twice: what depends on it is void, and the instance begins anew.
  void abandon(Instance &instance, const Error &error) {
    if (!devices.isFaulty || error.code() != ErrorCode::TransferFailed || ++instance.restarts > 100)
      throw error;
    ++totals.restarts;
    instance.restart();
  }

  std::vector<Tensor> submitSomehow(const Program &program, std::vector<Tensor> &&inputs) {
    std::vector<Tensor> outputs;
    int64_t manner = below(random, 3);
    untilItWorks([&] {
      if (manner == 0) {
        outputs = submit(device, program, inputs);
      } else if (manner == 1) {
        outputs.resize(program.outputs().size());
        Executor(device, program).run(std::span(inputs), std::span(outputs));
      } else {
        try {
          outputs = submit(device, program, std::move(inputs));
        } catch (const Error &) {
          for (const Tensor &input : inputs)
            if (!input)
              throw std::runtime_error("a submit that was refused took its inputs");
          throw;
        }
      }
    });
    return outputs;
  }

  void goForward(Instance &instance, size_t piece) {
    const Program &program = binaries[piece].program("forward");
    std::vector<Tensor> inputs;
    for (const Value &value : program.inputs())
      inputs.push_back(valueOf(instance, value.name));
    std::vector<Tensor> outputs = submitSomehow(program, std::move(inputs));
    for (size_t i = 0; i < outputs.size(); ++i) {
      const std::string &name = program.output(i).name;
      (program.output(i).role == Role::Saved ? instance.saved[{piece, name}] : instance.values[name]) =
          relay(outputs[i]);
    }
    instance.wentForward.insert(piece);
  }

  void goBackward(Instance &instance, size_t piece) {
    instance.wentBackward.insert(piece);
    if (!binaries[piece].hasProgram("backward"))
      return;
    const Program &program = binaries[piece].program("backward");
    std::vector<Tensor> inputs;
    for (const Value &value : program.inputs()) {
      auto saved = instance.saved.find({piece, value.name});
      if (value.role == Role::Gradient)
        inputs.push_back(gradientOf(instance, value.of, value.desc()));
      else if (saved != instance.saved.end())
        inputs.push_back(std::move(instance.saved.extract(saved).mapped()));
      else
        inputs.push_back(valueOf(instance, value.name));
    }
    std::vector<Tensor> outputs = submitSomehow(program, std::move(inputs));
    for (size_t i = 0; i < outputs.size(); ++i)
      instance.gradients[program.output(i).of][piece] = relay(outputs[i]);
  }

  Tensor valueOf(Instance &instance, const std::string &name) {
    if (auto found = instance.values.find(name); found != instance.values.end())
      return relay(found->second);
    if (auto found = instance.outer.find(name); found != instance.outer.end())
      return relay(found->second.given);
    // The same tensor for all, so that copies may be kept; sometimes another.
    Outer &parameter = parameters.at(name);
    return below(random, 3) ? parameter.given : relay(parameter.given);
  }

  /// The gradient of a value that arrived in parts, later modules first.
  Tensor gradientOf(Instance &instance, const std::string &name, const TensorDesc &desc) {
    std::vector<Tensor> parts;
    if (auto seed = instance.outer.find("grad." + name); seed != instance.outer.end())
      parts.push_back(seed->second.given);
    for (auto &[piece, part] : instance.gradients[name])
      parts.push_back(part);
    if (parts.empty())
      return untilItWorks([&] { return Tensor::zeros(device, TensorDesc(desc.shape, desc.element)); });
    Tensor sum = relay(parts[0]);
    for (size_t i = 1; i < parts.size(); ++i)
      sum = relay(submitSomehow(adder(desc).program("forward"), {sum, relay(parts[i])})[0]);
    return sum;
  }

  //===--------------------------------------------------------------------===//
  // What came out
  //===--------------------------------------------------------------------===//

  void compare(Instance &instance) {
    for (const auto &[name, expected] : instance.expected) {
      Tensor found;
      while (true)
        try {
          bool isGradient = name.starts_with("grad.");
          found = untilItWorks([&] {
            return toHost(isGradient ? gradientOf(instance, name.substr(5), expected.desc())
                                     : instance.values.at(name));
          });
          break;
        } catch (const Error &error) {
          abandon(instance, error);
          play();
        }
      ++totals.compared;
      ASSERT_EQ(found.shape(), expected.shape()) << name;
      ASSERT_EQ(std::memcmp(found.bytes(), expected.bytes(), expected.desc().spanBytes()), 0)
          << name << " differs" << firstDifference(found, expected);
    }
  }

  static std::string firstDifference(const Tensor &found, const Tensor &expected) {
    if (found.element() != ElementType::f32)
      return "";
    uint64_t different = 0, first = 0;
    for (uint64_t i = expected.elementCount(); i-- > 0;)
      if (found.data<float>()[i] != expected.data<float>()[i]) {
        ++different;
        first = i;
      }
    return ": " + std::to_string(different) + " of " + std::to_string(expected.elementCount()) + ", at " +
           std::to_string(first) + " " + std::to_string(found.data<float>()[first]) + ", not " +
           std::to_string(expected.data<float>()[first]);
  }

  /// Nothing is left on the device when nobody holds anything.
  void release() {
    TransferCounters &counters = device->transfer().counters();
    totals.submits += counters.submits;
    totals.elided += counters.inputsElided;
    totals.converted += counters.inputsConverted;
    totals.cacheHits += counters.cacheHits;
    totals.donations += counters.donations;
    totals.bounces += counters.bounces;
    EXPECT_EQ(counters.inputs, counters.inputsElided + counters.inputsConverted + counters.cacheHits);
    instances.clear();
    parameters.clear();
    binaries.clear();
    device->drain();
    // The adders stay ready with outputs for the next run, in L1 where their readers wanted them: whoever needs all
    // of it gets all of it.
    if (device->hasSpace(Space::DeviceL1))
      untilItWorks(
          [&] { return Storage::allocate(device, Space::DeviceL1, device->memory().budget(Space::DeviceL1), 64); });
    for (Space space : {Space::HostPinned, Space::DeviceL1})
      EXPECT_EQ(device->hasSpace(space) ? device->memory().liveBytes(space) : 0, 0u)
          << device->memory().holdersTable(space);
    EXPECT_EQ(device->transfer().derivedBytes(), 0u);
  }

  Totals &totals;
  Random random;
  bool training = false;
  StitchDevices devices;
  DeviceRef device, joinedDevice;
  RandomModel model;
  std::vector<ModelPiece> pieces;
  std::vector<std::string> texts;
  std::vector<Binary> binaries;
  std::map<std::string, Binary> adders;
  std::string joined;
  std::map<std::string, Outer> parameters;
  std::vector<Instance> instances;
};

constexpr uint64_t shards = 8;
class RandomStitchTest : public testing::TestWithParam<uint64_t> {};
} // namespace

INSTANTIATE_TEST_SUITE_P(Shard, RandomStitchTest, testing::Range(uint64_t(0), shards));

TEST_P(RandomStitchTest, HasTheBitsOfTheJoinedProgram) {
  auto number = [](const char *name, uint64_t absent) {
    const char *text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 10) : absent;
  };
  uint64_t count = number("SEGUE_STITCHINGS", usualStitchings), only = number("SEGUE_STITCHING", UINT64_MAX);
  uint64_t orders = number("SEGUE_STITCH_ORDERS", usualOrders);
  Totals totals;
  for (uint64_t seed = GetParam(); seed < std::max(count, only == UINT64_MAX ? 0 : only + 1); seed += shards) {
    bool isAsked = only != UINT64_MAX ? seed == only : std::getenv("SEGUE_STITCHINGS") || isDrawn(seed / shards, 2);
    if (!isAsked)
      continue;
    std::string text;
    try {
      Stitching stitching(seed, totals);
      text = stitching.describe();
      stitching.run(orders);
    } catch (const std::exception &error) {
      ADD_FAILURE() << error.what();
    }
    ASSERT_FALSE(HasFailure()) << "SEGUE_STITCHING=" << seed << " " << shortened(text);
  }
  if (totals.stitchings == 0)
    return;
  std::printf("%lu stitchings in %lu orders each of %lu modules, %lu compiled by processes of their own, %lu tried "
              "without strides in signatures, %lu models drawn again; "
              "%lu with backward, %lu on devices that fail: %lu submits tried again, %lu instances begun anew\n",
              totals.stitchings, orders, totals.pieces, totals.inProcesses, totals.plain, totals.redrawn,
              totals.training, totals.faulty, totals.retries, totals.restarts);
  std::printf("%lu submits, inputs: %lu in place, %lu converted, %lu from the cache; %lu tensors brought elsewhere "
              "between them, %lu bounces, %lu donations; %lu tensors equal to the bit\n",
              totals.submits, totals.elided, totals.converted, totals.cacheHits, totals.relaid, totals.bounces,
              totals.donations, totals.compared);
  EXPECT_GT(totals.compared, 0u);
}
