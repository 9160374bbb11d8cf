//===- FakeCublasLt.cpp - cuBLASLt without a GPU --------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A library in the place of libcublasLt.so.13 on the fake driver, with whose streams and
// memory it works: a product is an operation of a stream, in whatever order that may run.
// It does what cublasLt.h documents for strided batches of real floats, matrices by columns
// or by rows, no epilogue or a bias; gelu for one matrix by columns; and
// for INT8 in int32 and FP8 in floats, transposed A times B by columns. More of it is
// NOT_SUPPORTED. A sum that does not fit into int32 is told.
//
// It answers as a library may at its worst. Where the preferences let it, the best
// algorithm splits the depth: sums of its halves lie in the workspace until a second
// operation adds them, so that other workspaces give other bits. Where they let halves be
// added in the result, those come in another order at each run. f64 knows no bias.
//
// Misuse that the library would not notice, or that would end a GPU, is told as the
// driver's is: what was destroyed, an algorithm of another product, operands less aligned
// than was told, memory that overlaps, and so on.
//
//===----------------------------------------------------------------------===//

#include "../../lib/Cuda/BlasApi.h"
#include "../../lib/Tensor/ElementCasts.h"
#include "FakeGpu.h"
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace segue::inline runtime::cuda {
struct cublasLtContext {
  fakecuda::Device *device = nullptr;
};
struct cublasLtMatmulDescOpaque_t {
  int compute = 0, scale = 0;
  int32_t pointerMode = 0, transposeA = 0, transposeB = 0, biasType = -1;
  uint32_t epilogue = epilogueNone;
  uint64_t bias = 0;
  int64_t biasStride = 0;
  uint64_t sums = 0;
  int64_t sumsLead = 0;

  bool hasBias() const { return epilogue != epilogueNone && epilogue & epilogueBias; }
  /// The epilogue without its bias, or 0.
  uint32_t function() const { return epilogue == epilogueNone ? 0 : epilogue & ~uint32_t(epilogueBias); }
  bool hasSums() const { return function() == epilogueGeluAndSums; }
};
struct cublasLtMatrixLayoutOpaque_t {
  int type = 0;
  uint64_t rows = 0, columns = 0;
  int64_t lead = 0;
  int32_t order = orderColumns, batch = 1;
  int64_t batchStride = 0;
};
struct cublasLtMatmulPreferenceOpaque_t {
  uint64_t workspaceBytes = 0;
  uint32_t reductions = 7;
  uint32_t alignments[4] = {256, 256, 256, 256};
};
} // namespace segue::inline runtime::cuda

using namespace fakecuda;
using Desc = cublasLtMatmulDescOpaque_t;
using Layout = cublasLtMatrixLayoutOpaque_t;
using Preference = cublasLtMatmulPreferenceOpaque_t;

static constexpr uint64_t workspaceAlignment = 256;
static constexpr uint32_t reductionInPlace = 1, reductionInOutputType = 4;

/// What has been made and not destroyed. Nothing is ever deleted, so that no address comes twice.
static auto &living = *new std::set<const void *>;

template <typename T> static cublasStatus_t made(T **place, T value) {
  *place = new T(value);
  living.insert(*place);
  return blasSuccess;
}

/// False, and told, for what was destroyed or never made.
static bool lives(const void *object, const char *call) {
  if (living.contains(object))
    return true;
  misdeeds += std::string(call) + " of something destroyed\n";
  return false;
}

static cublasStatus_t destroyed(const void *object, const char *call) {
  if (!lives(object, call))
    return blasInvalidValue;
  living.erase(object);
  return blasSuccess;
}

static cublasStatus_t misused(const std::string &what) {
  misdeeds += what + "\n";
  return blasInvalidValue;
}

/// The result of a call that fails because a test says so or because the GPU is lost, or nothing.
static std::optional<cublasStatus_t> failure(const char *call, bool needsContext = false) {
  std::optional<CUresult> failed = enter(call, needsContext);
  if (failed && current && *failed == current->ended)
    return blasInternalError;
  return failed;
}

#define ENTER(call, ...)                                                                                               \
  std::unique_lock held(lock);                                                                                         \
  if (auto failed = failure(#call __VA_OPT__(, ) __VA_ARGS__))                                                         \
  return *failed

/// Stores an attribute if it has the size of `place`.
template <typename T> static cublasStatus_t store(T &place, const void *value, size_t bytes) {
  if (!value || bytes != sizeof(T))
    return blasInvalidValue;
  std::memcpy(&place, value, bytes);
  return blasSuccess;
}

//===----------------------------------------------------------------------===//
// Matrices
//===----------------------------------------------------------------------===//

static bool isFp8(int type) { return type == blasE4M3 || type == blasE5M2; }

static uint64_t elementBytes(int type) {
  return type == blasF64 ? 8 : type == blasF32 || type == blasI32 ? 4 : type == blasI8 || isFp8(type) ? 1 : 2;
}

static int64_t placeOf(const Layout &layout, uint64_t row, uint64_t column) {
  return layout.order == orderColumns ? int64_t(row) + int64_t(column) * layout.lead
                                      : int64_t(row) * layout.lead + int64_t(column);
}

/// The bytes from the first to behind the last element of a batch without gaps before the first.
static uint64_t spanBytes(const Layout &layout) {
  int64_t last = placeOf(layout, layout.rows - 1, layout.columns - 1) + (layout.batch - 1) * layout.batchStride;
  return uint64_t(last + 1) * elementBytes(layout.type);
}

static double load(int type, const std::byte *data, int64_t index) {
  const std::byte *at = data + index * int64_t(elementBytes(type));
  auto read = [&]<typename T>(T value) {
    std::memcpy(&value, at, sizeof(T));
    return value;
  };
  switch (type) {
  case blasF64:
    return read(double());
  case blasF16:
    return double(read(_Float16()));
  case blasI8:
    return read(int8_t());
  case blasI32:
    return read(int32_t());
  case blasE4M3:
    return double(segue::elements::E4M3Code::value(read(uint8_t())));
  case blasE5M2:
    return double(segue::elements::E5M2Code::value(read(uint8_t())));
  case blasBf16: {
    uint32_t bits = uint32_t(read(uint16_t())) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  default:
    return read(float());
  }
}

static void save(int type, std::byte *data, int64_t index, double value) {
  std::byte *at = data + index * int64_t(elementBytes(type));
  auto write = [&](auto number) { std::memcpy(at, &number, sizeof(number)); };
  if (type == blasF64)
    return write(value);
  if (type == blasI32)
    return write(int32_t(value));
  if (type == blasF16)
    return write(_Float16(float(value)));
  auto single = float(value);
  if (type == blasF32)
    return write(single);
  uint32_t bits;
  std::memcpy(&bits, &single, sizeof(bits));
  if (single != single)
    return write(uint16_t(0x7fff));
  write(uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)); // to the nearest, ties to even
}

/// f32 with 10 bits behind the point.
static float inTf32(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7f800000) == 0x7f800000)
    return value;
  bits = (bits + 0x1000) & ~uint32_t(0x1fff);
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// Ranges of bytes that matrices lie in, a row or column each.
static void addRanges(std::vector<std::pair<uint64_t, uint64_t>> &ranges, uint64_t address, const Layout &layout) {
  bool byColumns = layout.order == orderColumns;
  uint64_t lines = byColumns ? layout.columns : layout.rows, length = byColumns ? layout.rows : layout.columns;
  uint64_t size = elementBytes(layout.type);
  for (int64_t z = 0; z < layout.batch; ++z)
    for (uint64_t line = 0; line < lines; ++line) {
      uint64_t begin = address + uint64_t(z * layout.batchStride + int64_t(line) * layout.lead) * size;
      ranges.emplace_back(begin, begin + length * size);
    }
}

/// True if an element of `written` is one of `read`.
static bool overlap(uint64_t written, const Layout &writtenLayout, uint64_t read, const Layout &readLayout) {
  if (written + spanBytes(writtenLayout) <= read || read + spanBytes(readLayout) <= written)
    return false;
  std::vector<std::pair<uint64_t, uint64_t>> outputs, inputs;
  addRanges(outputs, written, writtenLayout);
  addRanges(inputs, read, readLayout);
  std::ranges::sort(outputs);
  for (auto [begin, end] : inputs) {
    auto next = std::ranges::lower_bound(outputs, begin, {}, &std::pair<uint64_t, uint64_t>::first);
    if ((next != outputs.end() && next->first < end) || (next != outputs.begin() && std::prev(next)->second > begin))
      return true;
  }
  return false;
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

namespace {
/// A product without its memory.
struct Product {
  Desc desc;
  Layout a, b, c, d;
  uint64_t depth() const { return desc.transposeA ? a.rows : a.columns; }
};

enum class Split : uint64_t { None, InWorkspace, InResult };

/// What stands in a BlasAlgorithm.
struct Algorithm {
  uint64_t product, workspaceBytes;
  Split split;
  uint64_t alignments[4], biasAlignment;
};
static_assert(sizeof(Algorithm) == sizeof(BlasAlgorithm));

struct Operands {
  uint64_t a, b, c, d, workspace;
};
} // namespace

/// A number that differs for products that an algorithm may not be exchanged between.
static uint64_t signature(const Product &product) {
  uint64_t hash = 1469598103934665603u;
  auto add = [&](auto... values) { ((hash = (hash ^ uint64_t(values)) * 1099511628211u), ...); };
  const Desc &desc = product.desc;
  add(desc.compute, desc.scale, desc.transposeA, desc.transposeB, desc.biasType, desc.epilogue, desc.biasStride,
      desc.sumsLead);
  for (const Layout *each : {&product.a, &product.b, &product.c, &product.d})
    add(each->type, each->rows, each->columns, each->lead, each->order, each->batch, each->batchStride);
  return hash;
}

/// The same for a product of codes, whose extents fit together.
static cublasStatus_t findProblemOfCodes(const Product &product, int scale) {
  const auto &[desc, a, b, c, d] = product;
  bool isInteger = desc.compute == computeI32;
  bool isKnown = isInteger ? a.type == blasI8 && b.type == blasI8 && d.type == blasI32
                           : desc.compute == computeF32 && isFp8(a.type) && isFp8(b.type) &&
                                 (a.type == blasE4M3 || b.type == blasE4M3) &&
                                 (d.type == blasF32 || d.type == blasBf16 || d.type == blasF16) &&
                                 capability() >= 89;
  bool isTransposed = desc.transposeA && !desc.transposeB;
  for (const Layout *each : {&a, &b, &d})
    isTransposed &= each->order == orderColumns;
  // INT8 counts in multiples of four, FP8 in 16 bytes.
  int64_t multiple = isInteger ? 4 : 16;
  auto isEven = [&](const Layout &layout, int64_t extent) {
    return extent * int64_t(isInteger ? 1 : elementBytes(layout.type)) % multiple == 0;
  };
  bool fits = isEven(d, int64_t(d.rows)) && isEven(a, int64_t(a.rows)) && isEven(a, a.lead) && isEven(b, b.lead) &&
              isEven(d, d.lead);
  return isKnown && isTransposed && fits && desc.scale == scale && desc.epilogue == epilogueNone ? blasSuccess
                                                                                                 : blasNotSupported;
}

/// Why there is no such product: INVALID_VALUE, or NOT_SUPPORTED; or success.
static cublasStatus_t findProblem(const Product &product) {
  const auto &[desc, a, b, c, d] = product;
  for (const Layout *each : {&a, &b, &c, &d}) {
    uint64_t length = each->order == orderColumns ? each->rows : each->columns;
    if (!each->rows || !each->columns || each->batch < 1)
      return misused("a matrix without elements");
    if (each->lead < int64_t(length))
      return misused("a leading dimension of " + std::to_string(each->lead) + " where " + std::to_string(length) +
                     " is the least");
    if (each->batch != d.batch)
      return misused("matrices with different batches");
  }
  auto rows = [](const Layout &layout, bool isTransposed) { return isTransposed ? layout.columns : layout.rows; };
  if (rows(a, desc.transposeA) != d.rows || rows(b, !desc.transposeB) != d.columns ||
      rows(a, !desc.transposeA) != rows(b, desc.transposeB) || c.rows != d.rows || c.columns != d.columns)
    return misused("matrices whose extents do not fit together");
  if (desc.pointerMode || c.type != d.type || c.order != d.order)
    return blasNotSupported;
  bool isDouble = desc.compute == computeF64, isInteger = desc.compute == computeI32;
  int scale = isDouble ? blasF64 : isInteger ? blasI32 : blasF32;
  if (isInteger || isFp8(a.type) || isFp8(b.type))
    return findProblemOfCodes(product, scale);
  bool isHalf = a.type == blasF16 || a.type == blasBf16;
  bool isKnown = desc.scale == scale && a.type == b.type &&
                 (isDouble                       ? a.type == blasF64 && d.type == blasF64
                  : desc.compute == computeTf32 ? a.type == blasF32 && d.type == blasF32
                  : desc.compute == computeF32
                      ? a.type != blasF64 && (d.type == blasF32 || (isHalf && d.type == a.type))
                      : false);
  if (!isKnown)
    return blasNotSupported;
  if (desc.epilogue == epilogueNone)
    return blasSuccess;
  int biasType = desc.biasType < 0 ? d.type : desc.biasType;
  uint32_t function = desc.function();
  if (isDouble || (desc.hasBias() && biasType != d.type))
    return blasNotSupported;
  if (function && function != epilogueGelu && !desc.hasSums())
    return blasNotSupported;
  if (function && (d.batch != 1 || d.order != orderColumns))
    return blasNotSupported;
  if (desc.hasSums() && (desc.sumsLead % 8 || desc.sumsLead < int64_t(d.rows)))
    return blasNotSupported;
  return (desc.hasBias() && !desc.bias) || (desc.hasSums() && !desc.sums) ? blasInvalidValue : blasSuccess;
}

/// One matrix, its element (i, j) at i + j * rows.
template <typename T>
static std::vector<T> unpack(const Layout &layout, const std::byte *data, bool isTransposed, bool isTf32) {
  uint64_t rows = isTransposed ? layout.columns : layout.rows, columns = isTransposed ? layout.rows : layout.columns;
  std::vector<T> values(rows * columns);
  for (uint64_t j = 0; j < columns; ++j)
    for (uint64_t i = 0; i < rows; ++i) {
      auto value = T(load(layout.type, data, isTransposed ? placeOf(layout, j, i) : placeOf(layout, i, j)));
      values[j * rows + i] = isTf32 ? T(inTf32(float(value))) : value;
    }
  return values;
}

/// Gelu tanh, as the library has it.
static double gelu(double x) { return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

namespace {
/// What the GPU does for a call, on its thread, with sums of type T.
template <typename T> struct Multiplication {
  Product product;
  Operands at;
  Algorithm algorithm;
  T alpha, beta;
  /// Parts of the depth are added the last first.
  bool isBackward;

  uint64_t sumCount() const { return product.d.rows * product.d.columns; }
  /// The depth at which it is split.
  uint64_t half() const { return algorithm.split == Split::None ? product.depth() : (product.depth() + 1) / 2; }
  /// The sums of a half of the depth of an item are there, in the workspace.
  std::byte *part(int64_t z, int64_t which) const {
    uint64_t bytes = sumCount() * sizeof(T);
    return static_cast<std::byte *>(fakecuda::at(at.workspace + uint64_t(2 * z + which) * bytes, bytes));
  }
  static std::byte *matrix(uint64_t address, const Layout &layout, int64_t z) {
    auto *first = static_cast<std::byte *>(fakecuda::at(address, spanBytes(layout)));
    return first + z * layout.batchStride * int64_t(elementBytes(layout.type));
  }

  /// Adds to the sums of an item those over the depths from `begin` to `end`.
  void addUp(int64_t z, uint64_t begin, uint64_t end, std::vector<T> &sums) const {
    bool isTf32 = product.desc.compute == computeTf32;
    auto left = unpack<T>(product.a, matrix(at.a, product.a, z), product.desc.transposeA, isTf32);
    auto right = unpack<T>(product.b, matrix(at.b, product.b, z), product.desc.transposeB, isTf32);
    uint64_t rows = product.d.rows, depth = product.depth();
    for (uint64_t j = 0; j < product.d.columns; ++j)
      for (uint64_t l = begin; l < end; ++l) {
        T factor = right[j * depth + l];
        const T *column = left.data() + l * rows;
        T *sum = sums.data() + j * rows;
        for (uint64_t i = 0; i < rows; ++i)
          if constexpr (std::is_integral_v<T>) {
            if (__builtin_add_overflow(sum[i], column[i] * factor, &sum[i]))
              misdeeds += "a sum of INT8 that int32 does not hold\n";
          } else {
            sum[i] += column[i] * factor;
          }
      }
  }

  /// The first step of a product that is split by way of the workspace.
  void writeParts() const {
    for (int64_t z = 0; z < product.d.batch; ++z)
      for (int64_t which : {0, 1}) {
        std::vector<T> sums(sumCount());
        addUp(z, which ? half() : 0, which ? product.depth() : half(), sums);
        std::memcpy(part(z, which), sums.data(), sums.size() * sizeof(T));
      }
  }

  std::vector<T> sumsOf(int64_t z) const {
    std::vector<T> sums(sumCount());
    if (algorithm.split != Split::InWorkspace) {
      addUp(z, isBackward ? half() : 0, isBackward ? product.depth() : half(), sums);
      addUp(z, isBackward ? 0 : half(), isBackward ? half() : product.depth(), sums);
      return sums;
    }
    std::vector<T> second(sumCount());
    std::memcpy(sums.data(), part(z, 0), sums.size() * sizeof(T));
    std::memcpy(second.data(), part(z, 1), sums.size() * sizeof(T));
    for (size_t i = 0; i < sums.size(); ++i)
      sums[i] += second[i];
    return sums;
  }

  /// The last step, or the only one.
  void writeResult() const {
    const auto &[desc, a, b, c, d] = product;
    const std::byte *bias = nullptr;
    Layout beside{d.type, d.rows, d.columns, desc.sumsLead};
    std::byte *besideData = nullptr;
    if (desc.hasSums())
      besideData = static_cast<std::byte *>(fakecuda::at(desc.sums, spanBytes(beside)));
    if (desc.hasBias())
      bias = static_cast<std::byte *>(fakecuda::at(
          desc.bias, uint64_t((d.batch - 1) * desc.biasStride + int64_t(d.rows)) * elementBytes(d.type)));
    for (int64_t z = 0; z < d.batch; ++z) {
      std::vector<T> sums = sumsOf(z);
      std::byte *result = matrix(at.d, d, z), *before = beta == 0 ? nullptr : matrix(at.c, c, z);
      for (uint64_t j = 0; j < d.columns; ++j)
        for (uint64_t i = 0; i < d.rows; ++i) {
          T value = alpha * sums[j * d.rows + i];
          if (before)
            value += beta * T(load(c.type, before, placeOf(c, i, j)));
          if (bias)
            value += T(load(d.type, bias, z * desc.biasStride + int64_t(i)));
          if (desc.function() == epilogueGeluAndSums)
            save(d.type, besideData, placeOf(beside, i, j), double(value));
          if (desc.function())
            value = T(gelu(double(value)));
          save(d.type, result, placeOf(d, i, j), double(value));
        }
    }
    if (algorithm.workspaceBytes)
      std::memset(fakecuda::at(at.workspace, algorithm.workspaceBytes), 0xee, algorithm.workspaceBytes);
  }
};
} // namespace

/// Gives a product to a stream; in two operations where the second adds what the first has written.
template <typename T> static void giveProduct(CUstream stream, const Multiplication<T> &multiplication) {
  const Operands &at = multiplication.at;
  using enum Access::Kind;
  std::vector<Access> accesses = {{WasGiven, at.a, 1}, {WasGiven, at.b, 1}, {Writes, at.d, 1}};
  const Desc &desc = multiplication.product.desc;
  if (desc.hasSums())
    accesses.push_back({Writes, desc.sums, 1});
  if (multiplication.algorithm.workspaceBytes)
    accesses.push_back({Writes, at.workspace, multiplication.algorithm.workspaceBytes});
  if (multiplication.algorithm.split == Split::InWorkspace)
    give(stream, {.run = [=] { multiplication.writeParts(); }, .call = "cublasLtMatmul", .accesses = accesses});
  give(stream, {.run = [=] { multiplication.writeResult(); }, .call = "cublasLtMatmul", .accesses = accesses});
}

/// What no library checks: returns true if it was as it must be.
static bool isUsedWell(const Product &product, const Operands &at, const Algorithm &algorithm, bool readsC) {
  std::string before = misdeeds;
  struct {
    const char *name;
    uint64_t address;
    const Layout &layout;
    uint64_t alignment;
  } matrices[] = {{"A", at.a, product.a, algorithm.alignments[0]},
                  {"B", at.b, product.b, algorithm.alignments[1]},
                  {"C", at.c, product.c, algorithm.alignments[2]},
                  {"D", at.d, product.d, algorithm.alignments[3]}};
  Layout scratch{blasF16, algorithm.workspaceBytes / 2, 1, int64_t(algorithm.workspaceBytes / 2)};
  for (const auto &[name, address, layout, alignment] : matrices) {
    if (address % alignment)
      misdeeds += std::string(name) + " is less aligned than the heuristic was told\n";
    bool isInput = *name == 'A' || *name == 'B' || (*name == 'C' && readsC);
    bool isResult = *name == 'C' && address == at.d && layout.lead == product.d.lead &&
                    layout.batchStride == product.d.batchStride;
    if (isInput && !isResult && overlap(at.d, product.d, address, layout))
      misdeeds += std::string(name) + " and D overlap\n";
    if (scratch.rows && (isInput || *name == 'D') && overlap(at.workspace, scratch, address, layout))
      misdeeds += std::string(name) + " lies in the workspace\n";
  }
  if (product.desc.hasSums() && product.desc.sums % 16)
    misdeeds += "sums beside a result begin at no multiple of 16\n";
  Layout beside{product.d.type, product.d.rows, product.d.columns, product.desc.sumsLead};
  if (product.desc.hasSums() && overlap(at.d, product.d, product.desc.sums, beside))
    misdeeds += "sums and D overlap\n";
  if (product.desc.hasBias() && product.desc.bias % algorithm.biasAlignment)
    misdeeds += "the bias is less aligned than the heuristic was told\n";
  if (algorithm.workspaceBytes && at.workspace % workspaceAlignment)
    misdeeds += "the workspace begins at no multiple of 256\n";
  return misdeeds == before;
}

//===----------------------------------------------------------------------===//
// The library's functions
//===----------------------------------------------------------------------===//

#pragma GCC visibility push(default)
extern "C" {

size_t cublasLtGetVersion() {
  return size_t(numberOf("FAKE_CUBLASLT_VERSION", 130100));
}

const char *cublasLtGetStatusName(cublasStatus_t status) {
  static const std::map<cublasStatus_t, const char *> names = {{blasSuccess, "CUBLAS_STATUS_SUCCESS"},
                                                               {blasNotInitialized, "CUBLAS_STATUS_NOT_INITIALIZED"},
                                                               {blasAllocFailed, "CUBLAS_STATUS_ALLOC_FAILED"},
                                                               {blasInvalidValue, "CUBLAS_STATUS_INVALID_VALUE"},
                                                               {blasExecutionFailed, "CUBLAS_STATUS_EXECUTION_FAILED"},
                                                               {blasInternalError, "CUBLAS_STATUS_INTERNAL_ERROR"},
                                                               {blasNotSupported, "CUBLAS_STATUS_NOT_SUPPORTED"}};
  auto found = names.find(status);
  return found == names.end() ? "CUBLAS_STATUS_UNKNOWN" : found->second;
}

const char *cublasLtGetStatusString(cublasStatus_t) { return "a status of the fake library"; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  ENTER(cublasLtCreate, /*needsContext=*/true);
  return made(handle, {current});
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  ENTER(cublasLtDestroy);
  return destroyed(handle, "cublasLtDestroy");
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, int compute, int scale) {
  ENTER(cublasLtMatmulDescCreate);
  return made(desc, {compute, scale});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  ENTER(cublasLtMatmulDescDestroy);
  return destroyed(desc, "cublasLtMatmulDescDestroy");
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, int attribute, const void *value,
                                              size_t bytes) {
  ENTER(cublasLtMatmulDescSetAttribute);
  if (!lives(desc, "cublasLtMatmulDescSetAttribute"))
    return blasInvalidValue;
  switch (attribute) {
  case matmulPointerMode:
    return store(desc->pointerMode, value, bytes);
  case matmulTransposeA:
    return store(desc->transposeA, value, bytes);
  case matmulTransposeB:
    return store(desc->transposeB, value, bytes);
  case matmulEpilogue:
    return store(desc->epilogue, value, bytes);
  case matmulBiasPointer:
    return store(desc->bias, value, bytes);
  case matmulBiasBatchStride:
    return store(desc->biasStride, value, bytes);
  case matmulBiasType:
    return store(desc->biasType, value, bytes);
  case matmulSumsPointer:
    return store(desc->sums, value, bytes);
  case matmulSumsLead:
    return store(desc->sumsLead, value, bytes);
  default:
    return blasNotSupported;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, int type, uint64_t rows, uint64_t columns,
                                          int64_t lead) {
  ENTER(cublasLtMatrixLayoutCreate);
  return made(layout, {type, rows, columns, lead});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  ENTER(cublasLtMatrixLayoutDestroy);
  return destroyed(layout, "cublasLtMatrixLayoutDestroy");
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, int attribute, const void *value,
                                                size_t bytes) {
  ENTER(cublasLtMatrixLayoutSetAttribute);
  if (!lives(layout, "cublasLtMatrixLayoutSetAttribute"))
    return blasInvalidValue;
  switch (attribute) {
  case layoutOrder:
    return store(layout->order, value, bytes);
  case layoutBatchCount:
    return store(layout->batch, value, bytes);
  case layoutBatchStride:
    return store(layout->batchStride, value, bytes);
  default:
    return blasNotSupported;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
  ENTER(cublasLtMatmulPreferenceCreate);
  return made(preference, {});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  ENTER(cublasLtMatmulPreferenceDestroy);
  return destroyed(preference, "cublasLtMatmulPreferenceDestroy");
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference, int attribute,
                                                    const void *value, size_t bytes) {
  ENTER(cublasLtMatmulPreferenceSetAttribute);
  if (!lives(preference, "cublasLtMatmulPreferenceSetAttribute"))
    return blasInvalidValue;
  switch (attribute) {
  case preferenceWorkspaceBytes:
    return store(preference->workspaceBytes, value, bytes);
  case preferenceReductions:
    return store(preference->reductions, value, bytes);
  case preferenceAlignmentA:
  case preferenceAlignmentB:
  case preferenceAlignmentC:
  case preferenceAlignmentD:
    return store(preference->alignments[attribute - preferenceAlignmentA], value, bytes);
  default:
    return blasNotSupported;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted, BlasAnswer *answers,
                                              int *count) {
  ENTER(cublasLtMatmulAlgoGetHeuristic, /*needsContext=*/true);
  *count = 0;
  for (const void *each : {(const void *)handle, (const void *)desc, (const void *)a, (const void *)b, (const void *)c,
                           (const void *)d, (const void *)preference})
    if (!lives(each, "cublasLtMatmulAlgoGetHeuristic"))
      return blasInvalidValue;
  if (handle->device != current)
    return misused("a handle of another GPU");
  if (wanted < 1)
    return blasInvalidValue;
  Product product{*desc, *a, *b, *c, *d};
  if (cublasStatus_t problem = findProblem(product))
    return problem;
  uint32_t least = isFp8(a->type) ? 16 : a->type == blasI8 ? 4 : 1;
  if (*std::ranges::min_element(preference->alignments) < least)
    return blasNotSupported;
  Algorithm algorithm{.product = signature(product), .biasAlignment = desc->bias & -desc->bias};
  std::copy_n(preference->alignments, 4, algorithm.alignments);
  auto answer = [&](Split split, uint64_t workspaceBytes) {
    if (*count == wanted || workspaceBytes > preference->workspaceBytes)
      return;
    algorithm.split = split;
    algorithm.workspaceBytes = workspaceBytes;
    BlasAnswer &next = answers[(*count)++];
    next = {{}, workspaceBytes, blasSuccess, 1, {}};
    std::memcpy(&next.algorithm, &algorithm, sizeof(algorithm));
  };
  if (wanted > 1) // of which nothing but the state is valid
    answers[(*count)++] = {{{~uint64_t(0)}}, 1, blasNotSupported, 0, {}};
  uint64_t sums = d->rows * d->columns * uint64_t(d->batch) * elementBytes(desc->scale);
  if (preference->reductions & (reductionInPlace | reductionInOutputType))
    answer(Split::InResult, 4);
  if (product.depth() >= 32 && preference->reductions & reductionInComputeType)
    answer(Split::InWorkspace, 2 * sums);
  answer(Split::None, algorithm.product % 3 ? 131 * (algorithm.product % 3) : 0);
  answer(Split::None, 0);
  return blasSuccess;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t aLayout, const void *b, cublasLtMatrixLayout_t bLayout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t cLayout, void *d,
                              cublasLtMatrixLayout_t dLayout, const BlasAlgorithm *chosen, void *workspace,
                              size_t workspaceBytes, CUstream stream) {
  ENTER(cublasLtMatmul, /*needsContext=*/true);
  for (const void *each : {(const void *)handle, (const void *)desc, (const void *)aLayout, (const void *)bLayout,
                           (const void *)cLayout, (const void *)dLayout})
    if (!lives(each, "cublasLtMatmul"))
      return blasInvalidValue;
  Product product{*desc, *aLayout, *bLayout, *cLayout, *dLayout};
  if (cublasStatus_t problem = findProblem(product))
    return problem;
  if (!chosen)
    return misused("a product without an algorithm");
  Algorithm algorithm;
  std::memcpy(&algorithm, chosen, sizeof(algorithm));
  if (algorithm.product != signature(product))
    return misused("an algorithm of another product");
  if (handle->device != current || reinterpret_cast<Stream *>(stream)->device != current)
    return misused("a handle or a stream of another GPU");
  if (workspaceBytes < algorithm.workspaceBytes || (algorithm.workspaceBytes && !workspace))
    return misused("a workspace that is too small");
  auto address = [](const void *data) { return reinterpret_cast<uint64_t>(data); };
  Operands operands{address(a), address(b), address(c), address(d), address(workspace)};
  bool isDouble = desc->scale == blasF64, isInteger = desc->scale == blasI32;
  auto scale = [&](const void *value) {
    return isDouble    ? *static_cast<const double *>(value)
           : isInteger ? double(*static_cast<const int32_t *>(value))
                       : double(*static_cast<const float *>(value));
  };
  double factor = scale(alpha), added = scale(beta);
  if (!isUsedWell(product, operands, algorithm, added != 0))
    return blasInvalidValue;
  bool isBackward = algorithm.split == Split::InResult && current->random() % 2;
  if (isDouble)
    giveProduct<double>(stream, {product, operands, algorithm, factor, added, isBackward});
  else if (isInteger)
    giveProduct<int32_t>(stream, {product, operands, algorithm, int32_t(factor), int32_t(added), isBackward});
  else
    giveProduct<float>(stream, {product, operands, algorithm, float(factor), float(added), isBackward});
  return blasSuccess;
}
} // extern "C"
#pragma GCC visibility pop
