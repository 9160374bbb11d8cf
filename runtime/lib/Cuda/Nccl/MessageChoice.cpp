//===- MessageChoice.cpp - whether ranks use NCCL -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "MessageChoice.h"
#include "../GpuHolder.h"
#include "NcclCollectives.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Json.h"
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

static constexpr std::string_view wayNames[] = {"auto", "host", "nccl"};

MessageWay parseMessageWay(std::string_view text) {
  for (size_t i = 0; i < std::size(wayNames); ++i)
    if (text == wayNames[i])
      return MessageWay(i);
  throw Error(ErrorCode::InvalidArgument, "messages of ranks go by \"" + std::string(text) +
                                              "\"; there are auto, host and nccl");
}

namespace cuda {

std::string MessageWord::text() const { return Json::array({int(way), gpu, nccl, lack, hostFor}).dump(); }

MessageWord MessageWord::parse(const std::string &text) {
  Json told = Json::parse(text);
  return {MessageWay(told[0].get<int>()), told[1], told[2], told[3], told[4]};
}

static std::string nameOf(size_t rank) { return "rank " + std::to_string(rank); }

/// Returns why the ranks cannot use NCCL; empty: they can.
static std::string whyNot(std::span<const MessageWord> words) {
  for (size_t rank = 0; rank < words.size(); ++rank) {
    if (!words[rank].hostFor.empty())
      return words[rank].hostFor;
    if (words[rank].gpu.empty())
      return nameOf(rank) + " has no GPU (device cuda:N)";
    for (size_t other = 0; other < rank; ++other)
      if (words[other].gpu == words[rank].gpu)
        return nameOf(other) + " and " + nameOf(rank) +
               " have one GPU between them, and NCCL wants one for each; give each rank a device of its own";
    if (!words[rank].nccl)
      return nameOf(rank) + ": " + words[rank].lack;
    if (words[rank].nccl != words[0].nccl)
      return "rank 0 has NCCL " + std::to_string(words[0].nccl) + ", and " + nameOf(rank) + " " +
             std::to_string(words[rank].nccl) + "; every rank needs the same";
  }
  return "";
}

MessageChoice chooseMessages(std::span<const MessageWord> words) {
  auto first = [&](MessageWay way) {
    return size_t(std::ranges::find(words, way, &MessageWord::way) - words.begin());
  };
  size_t host = first(MessageWay::Host), nccl = first(MessageWay::Nccl);
  if (host < words.size() && nccl < words.size())
    throw Error(ErrorCode::RankFailed, nameOf(host) + " was asked to send by way of the host, and " + nameOf(nccl) +
                                           " by NCCL; every rank is asked for the same");
  if (host < words.size() || (words.size() == 1 && nccl == words.size()))
    return {}; // nothing else was asked for, or there is nobody to send to
  bool hasGpu = std::ranges::any_of(words, [](const MessageWord &word) { return !word.gpu.empty(); });
  std::string why = whyNot(words);
  if (why.empty())
    return {true, "messages between ranks go by NCCL " + std::to_string(words[0].nccl) + ", from GPU to GPU"};
  if (nccl < words.size())
    throw Error(ErrorCode::Unsupported, "messages between ranks cannot go by NCCL, which " + nameOf(nccl) +
                                            " was asked for: " + why);
  return {false, hasGpu ? "messages between ranks go by way of the host: " + why : std::string()};
}

/// Returns what this rank has.
static MessageWord wordOf(Device &device, const MessageOptions &options) {
  MessageWord word{.way = options.way};
  if (options.isPipeline)
    word.hostFor = "ranks of a pipeline send without waiting for who receives, which NCCL does not";
  else if (options.collectives.addsInOrder)
    word.hostFor = "sums are to be added in the order of ranks";
  auto *gpu = dynamic_cast<GpuHolder *>(&device);
  if (!gpu)
    return word;
  try {
    word.gpu = gpu->context()->uuid();
    if (options.way != MessageWay::Host && word.hostFor.empty())
      word.nccl = NcclApi::open().versionCode;
  } catch (const Error &error) {
    word.lack = error.what();
  }
  return word;
}

} // namespace cuda

std::shared_ptr<Collectives> joinRanks(DeviceRef device, std::shared_ptr<Transport> transport,
                                       MessageOptions options) {
  std::shared_ptr<Collectives> host = makeCollectives(device, transport, options.collectives);
  cuda::MessageWord own = cuda::wordOf(*device, options);
  std::vector<cuda::MessageWord> words;
  for (const std::string &text : host->exchange("how messages go", own.text()))
    words.push_back(cuda::MessageWord::parse(text));
  cuda::MessageChoice choice = cuda::chooseMessages(words);
  if (options.log && !choice.why.empty())
    options.log(choice.why);
  if (!choice.usesNccl)
    return host;
  try {
    const cuda::NcclApi &api = cuda::NcclApi::open();
    cuda::NcclId id;
    if (transport->rank() == 0)
      if (cuda::ncclResult_t result = api.uniqueId(&id))
        throw Error(ErrorCode::RankFailed, "NCCL says of ncclGetUniqueId: " + api.describe(result, nullptr));
    std::string told = host->exchange("where NCCL meets", std::string(id.bytes, sizeof(id.bytes)))[0];
    std::memcpy(id.bytes, told.data(), sizeof(id.bytes));
    host = nullptr;
    return cuda::ncclCollectives(api, device, transport, options.collectives, id);
  } catch (const std::exception &error) { // others wait for this rank
    transport->abandon(error.what());
    throw;
  }
}

} // namespace segue::inline runtime
