//===- SealedSessionTest.cpp - checkpoints of what lies on a disk ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A sealed checkpoint writes what is in memory alone, gives back the bits of its step
// whatever was trained since, and is refused where anything of it was changed.
//
//===----------------------------------------------------------------------===//

#include "../../runtime/lib/Hash.h"
#include "../../runtime/lib/Session/CheckpointHashes.h"
#include "../../runtime/lib/Session/SealedCheckpoint.h"
#include "DiskRig.h"
#include "ErrorOf.h"
#include "Session/ExpectError.h"
#include "Session/TemporaryFolder.h"
#include <future>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace segue;
using namespace segue::test;

namespace {
/// A spill folder and a checkpoint, on a cpu, or, with options of a `sim`, on a device whose host has memory above the
/// disk.
class SealedRig {
protected:
  /// `way`: more of those options, which say in what order things happen.
  explicit SealedRig(std::string sim = "", std::string way = "")
      : path(folder / "checkpoint"), sim(std::move(sim)), way(std::move(way)) {
    // A spill file lies on a disk, where a folder for temporary files may be memory.
    std::string pattern = (std::filesystem::current_path() / "segue-sealed-XXXXXX").string();
    if (!::mkdtemp(pattern.data()))
      throw std::runtime_error("no folder for spill files");
    spill = pattern;
  }
  ~SealedRig() { std::filesystem::remove_all(spill); }

  DeviceRef open(uint64_t budget, const SpillSeam *seam = nullptr, const char *capacity = "16MiB") {
    return deviceOf(budget, capacity, seam, sim + way, spill);
  }
  /// A session whose device is closed when it ends.
  Session sessionOn(const DeviceRef &device) const { return makeSession(device, newModel(layers)); }
  std::vector<std::string> spillFiles() const {
    std::vector<std::string> names;
    for (const auto &entry : std::filesystem::directory_iterator(spill))
      names.push_back(entry.path().filename().string());
    return names;
  }
  /// The losses and parameters of a new session that goes on from the checkpoint, on a device of that budget.
  std::vector<float> resumed(uint64_t budget, int64_t atStep) {
    Session session = sessionOn(open(budget));
    session.load(path);
    EXPECT_EQ(session.stepCount(), atStep);
    return train(session);
  }
  /// The end of what a whole run has, after so many steps.
  std::vector<float> expectedFrom(int64_t step) const {
    return {expected(layers).begin() + step, expected(layers).end()};
  }
  /// A checkpoint of one step, sealed, whose run has ended.
  void sealOne() {
    Session session = sessionOn(open(budget));
    session.sealAt(path);
    lossOfStep(session, 0);
    session.seal();
  }

  TemporaryFolder folder;
  std::filesystem::path path, spill;
  std::string sim, way;
  /// A host of 256 KiB has no room for the weights and moments of twice as many.
  int64_t layers = sim.find("256KiB") == std::string::npos ? usualLayers : 2 * usualLayers;
  uint64_t budget = smallestBudget(sim, layers) * 5 / 4;
};

/// Seals after two steps, and goes on from the second seal.
class SealedBelow : public SealedRig {
public:
  SealedBelow(std::string sim, std::string way) : SealedRig(std::move(sim), std::move(way)) {}
  void sealsAndResumes() {
    {
      DeviceRef device = open(budget);
      Session session = sessionOn(device);
      session.sealAt(path);
      SpillFile &file = diskTier(*device)->file();
      for (int step = 0; step < 2; ++step) {
        lossOfStep(session, step);
        uint64_t before = file.readTraffic().bytes;
        EXPECT_GT(session.seal().sealedBytes, 0u);
        EXPECT_EQ(file.readTraffic().bytes, before) << "hashes are known from when it left";
      }
      lossOfStep(session, 2);
      EXPECT_LE(device->memory().peakBytes(Space::HostPinned), 256u << 10);
    }
    EXPECT_TRUE(sameBits(resumed(budget, 2), expectedFrom(2)));
  }
};

class SealedSession : public SealedRig, public testing::Test {};
class SealedDevices : public SealedRig, public testing::TestWithParam<std::string> {
protected:
  SealedDevices() : SealedRig(GetParam()) {}
};
std::string nameOf(const testing::TestParamInfo<std::string> &info) {
  return info.param.empty() ? "cpu" : info.index == 1 ? "disk" : "host";
}
/// A host with room for a part of what leaves, and one with room for all.
INSTANTIATE_TEST_SUITE_P(All, SealedDevices, testing::Values("", "host=256KiB,latency=0s", "host=8MiB,latency=0s"),
                         nameOf);
} // namespace

TEST_P(SealedDevices, GivesBackTheBitsOfItsStep) {
  uint64_t all = 3 * uint64_t(layers) * 64 * 64 * 4; // weights and two moments
  std::vector<uint64_t> budgets{budget};
  if (sim.empty())
    budgets = {smallestBudget(), budget, budget * 2};
  for (uint64_t each : budgets) {
    SCOPED_TRACE(each);
    {
      Session session = sessionOn(open(each));
      session.sealAt(path);
      std::vector<float> losses{lossOfStep(session, 0)};
      Session::SealFigures figures = session.seal();
      bool isAllOnDisk = sim.empty(), isSomeOnDisk = sim.find("256KiB") != std::string::npos;
      EXPECT_EQ(figures.sealedBytes == all, isAllOnDisk);
      EXPECT_EQ(figures.sealedBytes > 0, isAllOnDisk || isSomeOnDisk);
      EXPECT_GE(figures.sealedBytes + figures.fileBytes, all) << "what is in memory is in the file";
      losses.push_back(lossOfStep(session, 1)); // over what is sealed
      EXPECT_EQ(spillFiles().size(), 1u) << "the file of the run before is gone";
      losses.push_back(lossOfStep(session, 2));
      std::vector<float> parameters = parametersOf(session);
      losses.insert(losses.end(), parameters.begin(), parameters.end());
      EXPECT_TRUE(sameBits(losses, expected(layers))) << "sealing changes nothing";
    }
    EXPECT_TRUE(sameBits(resumed(each, 1), expectedFrom(1)));
    EXPECT_TRUE(sameBits(resumed(budget * 4, 1), expectedFrom(1)));
  }
  // Without a disk, and as a file that holds everything.
  DeviceRef memory = Device::open("sim:dram=64MiB,threads=1,latency=0s");
  SessionOptions options;
  options.maxGradNorm = 0.01;
  Session session(memory, {{"deep", newModel(layers)}}, std::move(options));
  session.allocateParameters();
  session.load(path);
  EXPECT_TRUE(sameBits(train(session), expectedFrom(1)));
  saveCheckpoint(folder / "whole", loadCheckpoint(memory, path));
  session.load(folder / "whole");
  EXPECT_TRUE(sameBits(train(session), expectedFrom(1)));
  EXPECT_ERROR(session.loadWeights(path), InvalidArgument, "its tensors lie in");
}

TEST_F(SealedSession, WritesWhatIsInMemoryAlone) {
  DeviceRef device = open(budget);
  Session session = sessionOn(device);
  session.sealAt(path);
  SpillFile &file = diskTier(*device)->file();
  for (int step = 0; step < steps; ++step) {
    lossOfStep(session, step);
    uint64_t inMemory = device->memory().liveBytes(Space::DeviceDram), before = file.writeTraffic().bytes;
    Session::SealFigures figures = session.seal();
    EXPECT_EQ(figures.writtenBytes, file.writeTraffic().bytes - before);
    EXPECT_LE(figures.writtenBytes, inMemory);
    EXPECT_EQ(figures.fileBytes, std::filesystem::file_size(path));
    EXPECT_LT(figures.fileBytes, 64u << 10) << "the tensors are not in it";
    // A second seal writes nothing again, and reads nothing.
    uint64_t readBefore = file.readTraffic().bytes;
    EXPECT_EQ(session.seal().writtenBytes, 0u);
    EXPECT_EQ(file.readTraffic().bytes, readBefore);
  }
}

TEST_P(SealedDevices, ARunGoesBackToItsOwnSeal) {
  Session session = sessionOn(open(budget));
  session.sealAt(path);
  lossOfStep(session, 0);
  session.seal();
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(sameBits(train(session), expectedFrom(1)));
    session.load(path);
    EXPECT_EQ(session.stepCount(), 1);
    session.seal();
  }
}

TEST_F(SealedSession, ADiskSealsAtOnePath) {
  DeviceRef device = open(budget);
  for (int i = 0; i < 2; ++i) { // one session after the other
    Session session = sessionOn(device);
    EXPECT_ERROR(session.sealAt(folder / "none" / "sealed"), IoFailed, "cannot be opened for writing");
    session.sealAt(path);
    lossOfStep(session, 0);
    session.seal();
    EXPECT_ERROR(session.sealAt(folder / "other"), InvalidArgument, "has sealed a checkpoint at another path");
    session.load(path);
    EXPECT_TRUE(sameBits(train(session), expectedFrom(1)));
  }
  EXPECT_EQ(spillFiles().size(), 1u);
  EXPECT_ERROR(sessionOn(device).seal(), InvalidArgument, "call sealAt first");
}

// A relative path names one checkpoint before its file is there and after: runs know the spill files of each other by it.
TEST_F(SealedSession, ARelativePathIsOnePath) {
  struct Within {
    std::filesystem::path before = std::filesystem::current_path();
    explicit Within(const std::filesystem::path &folder) { std::filesystem::current_path(folder); }
    ~Within() { std::filesystem::current_path(before); }
  } within(path.parent_path());
  std::set<std::string> owners;
  for (int run = 0; run < 2; ++run) {
    Session session = sessionOn(open(budget));
    if (run)
      session.load(path);
    session.sealAt(path.filename());
    lossOfStep(session, run);
    session.seal();
    ASSERT_EQ(spillFiles().size(), 1u);
    owners.insert(spillFiles()[0].substr(0, spillFiles()[0].rfind('-')));
  }
  EXPECT_EQ(owners.size(), 1u);
}

TEST_F(SealedSession, AnotherRunWaitsUntilThisOneEnds) {
  std::optional<Session> session(sessionOn(open(budget)));
  session->sealAt(path);
  lossOfStep(*session, 0);
  session->seal();
  EXPECT_ERROR(loadCheckpoint(Device::open("cpu"), path), IoFailed, "the run that sealed it is still at work");
  // Whoever waits for it has what it sealed last, whatever was there when the waiting began.
  std::future<int64_t> loaded =
      std::async(std::launch::async, [&] { return loadCheckpoint(Device::open("cpu"), path).step; });
  for (int step : {1, 2}) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    lossOfStep(*session, step);
    session->seal();
  }
  session.reset();
  EXPECT_EQ(loaded.get(), 3);
}

TEST_P(SealedDevices, ASealThatFailsLeavesTheOneBefore) {
  FailingDisk disk;
  int64_t sealed = 1;
  {
    Session session = sessionOn(open(budget, &disk.seam));
    session.sealAt(path);
    lossOfStep(session, 0);
    session.seal();
    lossOfStep(session, 1);
    if (sim.find("8MiB") == std::string::npos) {
      disk.fail(0, INT64_MAX / 2, ENOSPC); // while it writes what is in memory
      bool hasFailed = false;
      try {
        session.seal();
      } catch (const Error &) {
        hasFailed = true;
      }
      EXPECT_EQ(hasFailed, disk.failed > 0);
      // Below a small host all may be on the disk by then, as it was in one run beside other work.
      EXPECT_TRUE(hasFailed || sim.find("256KiB") != std::string::npos);
      sealed = hasFailed ? 1 : 2;
      disk.fail(INT64_MAX, 0);
    }
    std::filesystem::create_directory(path.string() + ".partial"); // in the file that says where all is
    EXPECT_ERROR(session.seal(), IoFailed, "checkpoint");
    lossOfStep(session, 2);
    EXPECT_TRUE(sameBits(parametersOf(session), expectedFrom(steps)));
  }
  EXPECT_TRUE(sameBits(resumed(budget, sealed), expectedFrom(sealed)));
  std::filesystem::remove(path.string() + ".partial");
}

TEST_F(SealedSession, RoomForItIsThereBeforeTheFirstStepOrNever) {
  for (const char *capacity : {"16MiB", "1MiB", "400KiB", "384KiB", "380KiB", "300KiB"}) {
    SCOPED_TRACE(capacity);
    DeviceRef device = open(budget, nullptr, capacity);
    Session session = sessionOn(device);
    uint64_t free = device->memory().budget(Space::Disk) - device->memory().liveBytes(Space::Disk);
    bool hasRoom = free >= 3u * 4 * 64 * 64 * 4;
    try {
      session.sealAt(path);
      EXPECT_TRUE(hasRoom);
    } catch (const Error &error) {
      EXPECT_FALSE(hasRoom);
      EXPECT_EQ(error.code(), ErrorCode::DeviceOom);
      EXPECT_NE(std::string(error.what()).find("give it a capacity of"), std::string::npos) << error.what();
      EXPECT_EQ(device->memory().budget(Space::Disk), diskTier(*device)->file().capacity()) << "nothing is taken";
      continue;
    }
    // A plan that begins keeps to what is left.
    try {
      for (int step = 0; step < steps; ++step) {
        lossOfStep(session, step);
        session.seal();
      }
    } catch (const Error &error) {
      EXPECT_EQ(session.stepCount(), 0) << error.what();
    }
  }
  EXPECT_ERROR(sessionOn(Device::open("sim:dram=64MiB")).sealAt(path), Unsupported, "no disk");
}

// Copies that pass the host come in any order that fences allow, and fail at times.
TEST(SealedBelowHost, HasTheBitsOfItsStepInAnyOrder) {
  for (std::string way : {",streams,adversarial=8", ",adversarial=5,fail-copy=0.002"}) {
    SCOPED_TRACE(way);
    SealedBelow("host=256KiB,latency=0s", way).sealsAndResumes();
  }
}

// Making a plan takes more of the disk, as all leaves that can, than the plan in force does.
TEST_F(SealedSession, ALaterPlanWithoutRoomLeavesTheOneInForce) {
  DeviceRef device = open(budget);
  std::vector<std::string> said;
  Session session = makeSession(device, model(), [&](const std::string &text) { said.push_back(text); });
  std::vector<float> losses{lossOfStep(session, 0)};
  DeviceMemory &memory = device->memory();
  memory.resetPeak();
  losses.push_back(lossOfStep(session, 1));
  // A load that puts everything back may take more for seals, for one.
  diskTier(*device)->require({.spareBytes = memory.budget(Space::Disk) - memory.peakBytes(Space::Disk)});
  losses.push_back(lossOfStep(session, 2));
  std::vector<float> parameters = parametersOf(session);
  losses.insert(losses.end(), parameters.begin(), parameters.end());
  EXPECT_TRUE(sameBits(losses, expected()));
  for (int step = steps; step < 8; ++step)
    lossOfStep(session, step);
  auto isKept = [](const std::string &text) { return text.find("the plan in force") != std::string::npos; };
  EXPECT_EQ(std::ranges::count_if(said, isKept), 1) << "nobody tried to plan again";
}

// So does a step that is aborted, behind which a plan is begun again, and made anew where that finds other room.
TEST_F(SealedSession, AStepThatIsAbortedEndsNoRunWithoutRoomForAnotherPlan) {
  std::vector<float> free = expected();
  for (bool holds : {false, true}) {
    SCOPED_TRACE(holds);
    DeviceRef device = open(budget);
    Session session = makeSession(device, model(), [](const std::string &) {});
    std::vector<float> losses{lossOfStep(session, 0)};
    DeviceMemory &memory = device->memory();
    memory.resetPeak();
    losses.push_back(lossOfStep(session, 1));
    diskTier(*device)->require({.spareBytes = memory.budget(Space::Disk) - memory.peakBytes(Space::Disk)});
    Tensor held = holds ? Tensor::zeros(device, TensorDesc({256}, ElementType::f32)) : Tensor(); // other room
    TensorMap batch{{"x", Tensor::onHost(device, {256, 64}, ElementType::f32)}};
    std::fill_n(batch["x"].data<float>(), batch["x"].elementCount(), std::numeric_limits<float>::quiet_NaN());
    EXPECT_EQ(errorOf([&] { session.step(batch, 1e-3); }).first, ErrorCode::NanLoss);
    losses.push_back(lossOfStep(session, 2));
    std::vector<float> parameters = parametersOf(session);
    losses.insert(losses.end(), parameters.begin(), parameters.end());
    EXPECT_TRUE(sameBits(losses, free));
  }
}

TEST_F(SealedSession, SpillFilesThatNobodyCanNameAreRemoved) {
  sealOne();
  std::vector<std::string> first = spillFiles();
  ASSERT_EQ(first.size(), 1u);
  // Three more files lie there: another checkpoint's, one of a run that was killed before it had any, and somebody else's.
  std::string others = first[0];
  others[8] = others[8] == '0' ? '1' : '0';
  std::string mine = first[0];
  mine[30] = mine[30] == '0' ? '1' : '0';
  for (const std::string &name : {others, mine, std::string("segue-notes.sealed")})
    writeText(spill / name, "text");
  std::filesystem::permissions(spill / mine, std::filesystem::perms::owner_all);
  sealOne();
  std::vector<std::string> names = spillFiles();
  EXPECT_EQ(names.size(), 3u);
  EXPECT_EQ(std::ranges::count(names, first[0]) + std::ranges::count(names, mine), 0);
  EXPECT_EQ(std::ranges::count(names, others) + std::ranges::count(names, std::string("segue-notes.sealed")), 2);
  std::filesystem::remove(spill / others);
  std::filesystem::remove(spill / "segue-notes.sealed");
  // A whole checkpoint in its place needs none.
  {
    Session session = sessionOn(open(budget));
    session.load(path);
    session.sealAt(path);
    session.seal();
    session.save(path);
    EXPECT_TRUE(sealedFileOf(path).empty());
  }
  EXPECT_EQ(spillFiles().size(), 0u);
  EXPECT_TRUE(sameBits(resumed(budget, 1), expectedFrom(1)));
}

// A checkpoint that is written over names its spill file no more, even if the run is killed before the file goes; and still
// does where it was not written over.
TEST_F(SealedSession, AKilledRunLeavesNoFileOfTheCheckpointThatItReplaced) {
  auto has = [&](const std::string &name) { return std::ranges::count(spillFiles(), name) == 1; };
  sealOne();
  std::string first = spillFiles().at(0);
  { ReplacedSeal failed(path); }
  std::filesystem::rename(path, folder / "moved");
  sealOne();
  EXPECT_TRUE(has(first)) << "a checkpoint that was moved names it";
  std::string second = sealedFileOf(path).filename();
  ASSERT_TRUE(has(second));
  pid_t killed = ::fork();
  if (killed == 0) {
    ReplacedSeal replaced(path);
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(killed, nullptr, 0), killed);
  std::filesystem::remove(path); // another one lies there now
  sealOne();
  EXPECT_FALSE(has(second));
  EXPECT_TRUE(has(first));
}

TEST_F(SealedSession, DamageIsRefusedAndNamed) {
  sealOne();
  std::filesystem::path file = sealedFileOf(path);
  DeviceRef device = Device::open("cpu");
  const std::string manifest = readText(path), bytes = readText(file);
  for (size_t size : {size_t(0), size_t(7), size_t(100), manifest.size() / 2, manifest.size() - 1}) {
    writeText(path, manifest.substr(0, size));
    EXPECT_ERROR(loadCheckpoint(device, path), FileCorrupt, "checkpoint");
  }
  for (size_t at = 8; at < manifest.size(); at += 13) {
    std::string changed = manifest;
    changed[at] ^= 1;
    writeText(path, changed);
    EXPECT_THROW(loadCheckpoint(device, path), Error) << at;
  }
  writeText(path, manifest);
  SafetensorsFile source = SafetensorsFile::open(path);
  size_t tensors = 0;
  for (const auto &[key, value] : source.metadata()) {
    std::string prefix = "segue.sealed.tensor.";
    if (!key.starts_with(prefix))
      continue;
    std::string changed = bytes;
    changed[nlohmann::json::parse(value)["extents"][0][0].get<size_t>()] ^= 4;
    writeText(file, changed);
    EXPECT_ERROR(loadCheckpoint(device, path), FileCorrupt,
                 "tensor \"" + key.substr(prefix.size()) + "\" does not match its hash");
    ++tensors;
  }
  EXPECT_GT(tensors, 6u);
  writeText(file, bytes.substr(0, bytes.size() - 1));
  EXPECT_ERROR(loadCheckpoint(device, path), FileCorrupt, "bytes, and ");
  std::filesystem::remove(file);
  EXPECT_ERROR(loadCheckpoint(device, path), IoFailed, "is not there");
  writeText(file, bytes);
  EXPECT_TRUE(sameBits(resumed(budget, 1), expectedFrom(1)));
}

TEST_F(SealedSession, ATensorInSeveralPlacesIsGathered) {
  std::string name = "segue-0123456789abcdef-0123456789abcdef0123456789abcdef.sealed", bytes(12288, 0), wanted;
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = char(i * 7 + i / 4096);
  writeText(spill / name, bytes);
  wanted = bytes.substr(8192) + bytes.substr(0, 3000);
  saveSealedCheckpoint(path, {}, {{"segue.sealed.file", spill / name},
                                  {"segue.sealed.bytes", "12288"},
                                  {"segue.sealed.tensor.w", R"({"element":"f32","shape":[2,887],"hash":")" +
                                                                hashText(hashOf(wanted.data(), wanted.size())) +
                                                                R"(","extents":[[8192,4096],[0,4096]]})"}});
  Checkpoint read = loadCheckpoint(Device::open("cpu"), path);
  const Tensor &tensor = read.parameters.at("w");
  EXPECT_EQ(tensor.shape(), (Shape{2, 887}));
  EXPECT_EQ(std::memcmp(tensor.bytes(), wanted.data(), wanted.size()), 0);
  // A file that is cut while it is read ends in an error, and not in a signal.
  std::filesystem::resize_file(spill / name, 4096);
  EXPECT_EQ(tensor.bytes()[0], std::byte());
  EXPECT_ERROR(read.checkSource(), SourceChanged, name);
}

// These files have hashes that are right: somebody has made them to do harm.
TEST_F(SealedSession, HostileFilesAreRefused) {
  DeviceRef device = Device::open("cpu");
  std::string name = "segue-0123456789abcdef-0123456789abcdef0123456789abcdef.sealed";
  writeText(spill / name, std::string(8192, 'x'));
  using Fields = std::map<std::string, std::string>;
  auto refusal = [&](const Fields &fields) {
    Metadata metadata(fields.begin(), fields.end());
    saveSealedCheckpoint(path, {}, metadata);
    try {
      loadCheckpoint(device, path);
      return std::string();
    } catch (const Error &error) {
      EXPECT_TRUE(error.code() == ErrorCode::FileCorrupt || error.code() == ErrorCode::IoFailed) << error.what();
      return std::string(error.what());
    }
  };
  auto ofTensor = [&](const std::string &text) {
    return refusal(
        {{"segue.sealed.file", spill / name}, {"segue.sealed.bytes", "8192"}, {"segue.sealed.tensor.w", text}});
  };
  auto expect = [](const std::string &said, const std::string &part) {
    EXPECT_NE(said.find(part), std::string::npos) << (said.empty() ? "accepted" : said);
  };
  expect(refusal({}), "without \"segue.sealed.file\"");
  for (const char *file : {"", "/etc/passwd", "segue-0123456789abcdef-0123456789abcdef0123456789abcdef.sealed",
                           "/tmp/../etc/segue-.sealed", "/dev/zero", "/tmp/segue-0123456789abcdef-/etc/passwd.sealed"})
    expect(refusal({{"segue.sealed.file", file}, {"segue.sealed.bytes", "1"}}), "is no name of a spill file");
  expect(refusal({{"segue.sealed.file", "/nowhere/" + name}, {"segue.sealed.bytes", "8192"}}), "is not there");
  expect(refusal({{"segue.sealed.file", spill / name}}), "without \"segue.sealed.bytes\"");
  for (const char *size : {"", "-1", "8192 ", "99999999999999999999999"})
    expect(refusal({{"segue.sealed.file", spill / name}, {"segue.sealed.bytes", size}}), "is no size");
  expect(refusal({{"segue.sealed.file", spill / name}, {"segue.sealed.bytes", "4096"}}), "8192 bytes, and 4096");
  for (const char *text : {"", "[]", "7", "{", R"({"element":1,"shape":[],"hash":"","extents":[]})",
                           R"({"element":"f32","shape":4,"hash":"","extents":[]})"})
    expect(ofTensor(text), "sealed tensor \"w\"");
  std::string rest = R"(,"hash":"0000000000000000","extents":[[0,4096]]})";
  expect(ofTensor(R"({"element":"f99","shape":[4])" + rest), "unknown element type");
  for (const char *shape : {"[-1]", "[1.5]", "[18446744073709551615]", "[\"4\"]"})
    expect(ofTensor(std::string(R"({"element":"f32","shape":)") + shape + rest), "not a number from 0 on");
  for (const char *shape : {"[0]", "[4294967296,4294967296,4294967296]", "[9223372036854775807]", "[1000000]"})
    expect(ofTensor(std::string(R"({"element":"f32","shape":)") + shape + rest), "does not fit");
  for (const char *extents : {"[[0,4096],[4096,4096]]", "[[8192,4096]]", "[[1,4096]]", "[[0,4095]]", "[[0,0]]",
                              "[[18446744073709547520,4096]]", "[[0,18446744073709547520]]", "[[0]]", "[7]",
                              "[[-4096,4096]]"})
    expect(ofTensor(R"({"element":"f32","shape":[4],"hash":"0000000000000000","extents":)" + std::string(extents) +
                    "}"),
           "extent");
  expect(ofTensor(R"({"element":"f32","shape":[4],"hash":"0000000000000000","extents":[]})"), "fewer bytes");
  expect(ofTensor(R"({"element":"f32","shape":[4])" + rest), "does not match its hash");
  // No name of a checkpoint makes anybody remove a file of another.
  saveSealedCheckpoint(path, {}, {{"segue.sealed.file", spill / name}, {"segue.sealed.bytes", "8192"}});
  ReplacedSeal(path).remove();
  EXPECT_EQ(spillFiles().size(), 1u);
}
