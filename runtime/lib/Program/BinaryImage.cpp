//===- BinaryImage.cpp - the bytes and tables of a .segue file ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "BinaryImage.h"
#include "PreparedProgram.h"
#include "SignatureHash.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Signatures.h"
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace segue::inline runtime {

//===----------------------------------------------------------------------===//
// Bytes
//===----------------------------------------------------------------------===//

/// Allocates bytes as aligned as a mapped file, so that segments keep their alignment.
static std::byte *allocate(size_t bytes) {
  auto *data = static_cast<std::byte *>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
  if (!data && bytes)
    throw Error(ErrorCode::DeviceOom, "no memory for a file of " + std::to_string(bytes) + " bytes");
  return data;
}

FileBytes FileBytes::read(const std::filesystem::path &path) {
  struct File {
    int descriptor;
    ~File() { close(descriptor); }
  } file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  auto fail = [&](const char *what) -> Error {
    return Error(ErrorCode::IoFailed, path.string() + ": " + what + ": " + std::strerror(errno));
  };
  if (file.descriptor < 0)
    throw fail("cannot open");
  struct stat status;
  if (fstat(file.descriptor, &status) != 0 || S_ISDIR(status.st_mode)) {
    if (S_ISDIR(status.st_mode))
      errno = EISDIR;
    throw fail("cannot read");
  }
  FileBytes bytes;
  bytes.size_ = size_t(status.st_size);
  bytes.data_ = allocate(bytes.size_);
  for (size_t from = 0; from < bytes.size_;) {
    ssize_t count = ::read(file.descriptor, bytes.data_ + from, bytes.size_ - from);
    if (count < 0 && errno == EINTR)
      continue;
    if (count < 0)
      throw fail("cannot read");
    if (count == 0)
      throw Error(ErrorCode::SourceChanged, path.string() + ": was cut short while it was read; load it again");
    from += size_t(count);
  }
  return bytes;
}

FileBytes FileBytes::copy(std::span<const std::byte> source) {
  FileBytes bytes;
  bytes.size_ = source.size();
  bytes.data_ = allocate(bytes.size_);
  if (!source.empty())
    std::memcpy(bytes.data_, source.data(), source.size());
  return bytes;
}

FileBytes::FileBytes(FileBytes &&other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

FileBytes::~FileBytes() { std::free(data_); }

//===----------------------------------------------------------------------===//
// Tables
//===----------------------------------------------------------------------===//

Layout readLayout(const schema::Layout &table) {
  auto strides = numbers(table.strides());
  auto tile = numbers(table.tile());
  Layout layout;
  // Programs compute in memory: a file that names a disk names no space.
  layout.space = table.space() > schema::Space::device_l1 ? Space(INT8_MAX) : Space(table.space());
  layout.strides.assign(strides.begin(), strides.end());
  layout.tile.assign(tile.begin(), tile.end());
  layout.storage = StorageType(table.storage());
  layout.offset = table.offset();
  layout.alignment = table.alignment();
  layout.zeroPoints = table.zero_points();
  return layout;
}

TensorDesc readTensorDesc(const schema::TensorDesc &table) {
  TensorDesc desc;
  auto shape = numbers(table.shape());
  desc.shape.assign(shape.begin(), shape.end());
  desc.element = ElementType(table.element());
  if (table.layout())
    desc.layout = readLayout(*table.layout());
  desc.validate();
  return desc;
}

static std::string text(const flatbuffers::String *string) { return string ? string->str() : std::string(); }

BinaryImage::BinaryImage(FileBytes bytes, std::string name, const LoadOptions &options)
    : bytes_(std::move(bytes)), name_(std::move(name)), options_(options) {
  root_ = verifyFile(bytes_.span(), name_);
  try {
    verifyTables(*root_, bytes_.span(), name_);
    verifyNames(*root_, name_);
  } catch (const Misaligned &) {
    throw Error(ErrorCode::FileCorrupt, name_ + ": its FlatBuffer has numbers that are not aligned to their size");
  }

  auto readValues = [&](const auto *tables) {
    std::vector<Value> values;
    for (uint32_t i = 0; i < countOf(tables); ++i) {
      const schema::Value &table = *tables->Get(i);
      values.push_back({table.name()->str(),
                        Role(table.role()),
                        std::make_shared<const TensorDesc>(readTensorDesc(*table.desc())),
                        text(table.of()),
                        location(table.location()),
                        {}});
      for (uint32_t k = 0; k < countOf(table.alternatives()); ++k)
        values.back().alternatives.push_back(std::make_shared<const TensorDesc>(
            values.back().desc().shape, values.back().desc().element, readLayout(*table.alternatives()->Get(k))));
    }
    return values;
  };
  for (uint32_t i = 0; i < countOf(root_->programs()); ++i) {
    const schema::Program &table = *root_->programs()->Get(i);
    ProgramInfo info;
    info.name = table.name()->str();
    info.inputs = readValues(table.inputs());
    info.outputs = readValues(table.outputs());
    for (uint32_t k = 0; k < countOf(table.aliases()); ++k) {
      const schema::Alias &alias = *table.aliases()->Get(k);
      info.aliases.push_back({alias.input(), alias.output(), alias.required()});
    }
    for (uint32_t k = 0; k < countOf(table.save_points()); ++k) {
      const schema::SavePoint &point = *table.save_points()->Get(k);
      info.savePoints.push_back({point.value(), point.aliases_input(), point.backward_input(), point.backward_order(),
                                 point.bytes(), point.recompute_flops(), text(point.block()), point.recompute_program(),
                                 point.recompute_output()});
    }
    for (uint32_t k = 0; k < countOf(table.commands()); ++k)
      if (const schema::SetPhase *set = table.commands()->Get(k)->body_as_SetPhase()) {
        info.beginsWithPhase |= k == 0;
        info.phases.push_back(Phase(set->phase()));
      }
    info.interfaceHash = schema::interfaceHash(table); // files of 0.1 do not have it
    info.table = &table;
    programs_.push_back(std::move(info));
  }
}

BinaryImage::~BinaryImage() = default;

std::span<const std::byte> BinaryImage::segment(uint32_t index) const {
  const schema::Segment &segment = *root_->segments()->Get(index);
  return bytes_.span().subspan(segment.offset(), segment.length());
}

std::string BinaryImage::location(int32_t index) const {
  if (index < 0)
    return "";
  const schema::Location &location = *root_->locations()->Get(uint32_t(index));
  std::string result;
  if (location.file() && location.file()->size()) {
    result = location.file()->str();
    if (location.line())
      result += ":" + std::to_string(location.line());
    if (location.column())
      result += ":" + std::to_string(location.column());
  }
  if (location.name() && location.name()->size())
    result += (result.empty() ? "" : " (") + location.name()->str() + (result.empty() ? "" : ")");
  return result;
}

static NativeCodeLeave findLeave(NativeCode asked, std::span<const std::byte> file) {
  if (asked == NativeCode::Allow)
    return {true, "whoever loaded it allowed that"};
  if (asked == NativeCode::Refuse)
    return {false, "whoever loaded it refused that"};
  const char *variable = ::secure_getenv("SEGUE_ALLOW_NATIVE");
  if (variable && std::string_view(variable) == "1")
    return {true, "SEGUE_ALLOW_NATIVE is 1"};
  SignatureCheck check = Signatures::ofUser().check(file);
  return {check.isSigned, std::move(check.reason)};
}

const NativeCodeLeave &BinaryImage::nativeCodeLeave() const {
  std::call_once(leaveOnce_, [&] { leave_ = findLeave(options_.nativeCode, bytes_.span()); });
  return leave_;
}

void BinaryImage::takeLeaveOf(const BinaryImage &other) {
  std::call_once(leaveOnce_, [&] { leave_ = other.nativeCodeLeave(); });
}

static KernelIsa isaOf(schema::Isa isa) {
  switch (isa) {
  case schema::Isa::x86_64_v3:
    return KernelIsa::X86_64_V3;
  case schema::Isa::x86_64_v4:
    return KernelIsa::X86_64_V4;
  case schema::Isa::ptx:
    return KernelIsa::Ptx;
  case schema::Isa::cubin:
    break;
  }
  return KernelIsa::Cubin;
}

KernelSource BinaryImage::kernelSource(uint32_t index) const {
  if (!nativeCodeLeave().isGiven)
    throw Error(ErrorCode::NativeCodeRefused,
                name_ + " holds machine code, which does not run: " + leave_.reason +
                    ". If you trust where the file comes from, sign it with `segue-run trust FILE`, or allow it this "
                    "time: --allow-native, allow_native_kernels=True in Python, NativeCode::Allow in C++, or "
                    "SEGUE_ALLOW_NATIVE=1. It can be inspected and planned without");
  const schema::Kernel &kernel = *root_->kernels()->Get(index);
  KernelSource source{.file = name_, .kernel = kernel.name()->str(), .variants = {}};
  for (uint32_t i = 0; i < countOf(kernel.variants()); ++i) {
    const schema::KernelVariant &variant = *kernel.variants()->Get(i);
    source.variants.push_back(
        {isaOf(variant.isa()), variant.segment(), segment(variant.segment()), variant.symbol()->str(), variant.blocks(),
         root_->segments()->Get(variant.segment())->capability()});
  }
  return source;
}

std::shared_ptr<PreparedProgram> BinaryImage::prepared(const DeviceRef &device, size_t program) const {
  {
    std::lock_guard lock(mutex_);
    auto [entry, end] = prepared_.equal_range(program);
    for (; entry != end; ++entry)
      if (entry->second.device == device.get()) {
        entry->second.lastAsked = ++asked_;
        return entry->second.program;
      }
  }
  auto made = std::make_shared<PreparedProgram>(device, *this, program);
  std::vector<std::shared_ptr<PreparedProgram>> dropped; // outside of the lock, with a device perhaps
  std::lock_guard lock(mutex_);
  while (prepared_.count(program) >= mostPreparedDevices) {
    // One that is at work would be waited for, on the thread of another device, which that work may wait for.
    auto [first, end] = prepared_.equal_range(program);
    auto oldest = end;
    for (auto entry = first; entry != end; ++entry)
      if ((oldest == end || entry->second.lastAsked < oldest->second.lastAsked) &&
          entry->second.program.use_count() == 1 && entry->second.program->isIdle())
        oldest = entry;
    if (oldest == end)
      break;
    dropped.push_back(std::move(oldest->second.program));
    prepared_.erase(oldest);
  }
  prepared_.emplace(program, PreparedEntry{device.get(), made, ++asked_});
  return made;
}

void BinaryImage::forget(const Device &device) const {
  std::vector<std::shared_ptr<PreparedProgram>> dropped; // outside of the lock: their work is waited for
  std::lock_guard lock(mutex_);
  std::erase_if(prepared_, [&](auto &entry) {
    if (entry.second.device != &device)
      return false;
    dropped.push_back(std::move(entry.second.program));
    return true;
  });
}

} // namespace segue::inline runtime
