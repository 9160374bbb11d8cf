//===- NpyFile.cpp - numpy's array files ----------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html: six
// bytes of magic, two of version, the length of the header, and the header: a
// Python dict with descr, fortran_order and shape.
//
//===----------------------------------------------------------------------===//

#include "NpyFile.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/OutputFile.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>

namespace segue::tool {

static constexpr std::string_view magic = "\x93NUMPY";
/// The greatest length of a header: headers are short; a longer one is damage.
static constexpr uint64_t greatestHeader = 1 << 20;

struct Descr {
  std::string_view text;
  ElementType element;
};
static constexpr Descr descrs[] = {
    {"<f4", ElementType::f32}, {"<u2", ElementType::bf16}, {"<f2", ElementType::f16}, {"<i8", ElementType::i64},
    {"<i4", ElementType::i32}, {"|i1", ElementType::i8},   {"|b1", ElementType::i1},  {"<f8", ElementType::f64},
};

static Error corrupt(const std::filesystem::path &path, const std::string &what) {
  return Error(ErrorCode::FileCorrupt, path.string() + ": " + what + "; write it with numpy.save");
}

/// Returns what stands behind `'key':` in the header, without leading blanks.
static std::string_view valueOf(std::string_view header, std::string_view key, const std::filesystem::path &path) {
  size_t at = header.find("'" + std::string(key) + "'");
  at = at == header.npos ? at : header.find(':', at);
  at = at == header.npos ? at : header.find_first_not_of(' ', at + 1);
  if (at == header.npos)
    throw corrupt(path, "the header has no '" + std::string(key) + "'");
  return header.substr(at);
}

static Shape parseShape(std::string_view text, const std::filesystem::path &path) {
  size_t close = text.find(')');
  if (!text.starts_with('(') || close == text.npos)
    throw corrupt(path, "the shape in the header is not a tuple");
  Shape shape;
  const char *at = text.data() + 1, *end = text.data() + close;
  while (at != end) {
    if (*at == ' ' || *at == ',') {
      ++at;
      continue;
    }
    int64_t extent = 0;
    auto [next, error] = std::from_chars(at, end, extent);
    if (error != std::errc() || extent < 0)
      throw corrupt(path, "the shape in the header has an extent that is not a number from 0 on");
    shape.push_back(extent);
    at = next;
  }
  return shape;
}

Tensor readNpy(const DeviceRef &device, const std::filesystem::path &path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  uint64_t fileBytes = std::filesystem::file_size(path, error);
  if (!file || error)
    throw Error(ErrorCode::IoFailed,
                path.string() + ": cannot be opened: " + (error ? error.message() : std::string(std::strerror(errno))));
  char prefix[12] = {};
  file.read(prefix, 10);
  if (!file || std::string_view(prefix, 6) != magic)
    throw corrupt(path, "this is not an .npy file");
  uint64_t lengthBytes = prefix[6] == 1 ? 2 : 4;
  if (lengthBytes == 4)
    file.read(prefix + 10, 2);
  uint32_t headerBytes = 0;
  std::memcpy(&headerBytes, prefix + 8, lengthBytes);
  if (!file || headerBytes > greatestHeader || !rangeFits(8 + lengthBytes, headerBytes, fileBytes))
    throw corrupt(path, "the header is cut off");
  std::string header(headerBytes, 0);
  file.read(header.data(), headerBytes);

  std::string_view descr = valueOf(header, "descr", path);
  const Descr *known = nullptr;
  for (const Descr &each : descrs)
    if (descr.starts_with("'" + std::string(each.text) + "'"))
      known = &each;
  if (!known)
    throw Error(ErrorCode::Unsupported, path.string() + ": arrays of " + std::string(descr.substr(0, descr.find(','))) +
                                            " have no element type here; convert to float64, float32, float16, int64, int32, " +
                                            "int8, bool, or uint16 for bf16");
  TensorDesc desc(parseShape(valueOf(header, "shape", path), path), known->element, Layout{.space = Space::Host});
  std::optional<uint64_t> elements = checkedElementCount(desc.shape);
  std::optional<uint64_t> bytes = elements ? checkedMultiply(*elements, byteSize(desc.element)) : std::nullopt;
  uint64_t dataBegin = 8 + lengthBytes + headerBytes;
  if (!bytes || *bytes != fileBytes - dataBegin)
    throw corrupt(path, "the array should have " + (bytes ? std::to_string(*bytes) : "too many") +
                            " bytes, the file has " + std::to_string(fileBytes - dataBegin));
  if (valueOf(header, "fortran_order", path).starts_with("True") && *elements) {
    int64_t stride = 1;
    for (int64_t extent : desc.shape) {
      desc.layout.strides.push_back(stride);
      stride *= extent;
    }
  }
  Tensor tensor = Tensor::onHost(device, desc.shape, desc.element);
  tensor = Tensor::in(tensor.storage(), std::make_shared<const TensorDesc>(std::move(desc)));
  file.read(reinterpret_cast<char *>(tensor.bytes()), std::streamsize(*bytes));
  if (!file)
    throw Error(ErrorCode::IoFailed, path.string() + ": cannot be read");
  return tensor;
}

void writeNpy(OutputFile &file, const Tensor &tensor) {
  std::string_view descr;
  for (const Descr &each : descrs)
    if (each.element == tensor.element())
      descr = each.text;
  std::string shape;
  for (int64_t extent : tensor.shape())
    shape += std::to_string(extent) + ", ";
  std::string header = "{'descr': '" + std::string(descr) + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  header.resize((header.size() + 11 + 63) / 64 * 64 - 11, ' '); // data begins at a multiple of 64
  header += '\n';
  auto headerBytes = uint16_t(header.size());
  Tensor dense = toHost(tensor);
  file.write(magic);
  file.write(std::string_view("\x01\x00", 2));
  file.write(std::as_bytes(std::span(&headerBytes, 1)));
  file.write(header);
  file.write(std::span<const std::byte>(dense.bytes(), dense.elementCount() * byteSize(dense.element())));
}

void writeNpy(const std::filesystem::path &path, const Tensor &tensor) {
  OutputFile file(path);
  writeNpy(file, tensor);
  file.commit();
}

} // namespace segue::tool
