//===- Products.cpp - products on a GPU by cuBLASLt -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The library counts columns first: its D = A B is our c read as [n, m], its A is our b
// read as [n, k], its B is our a read as [k, m]. A bias, one number per column of c, is one
// per row of D there, which is what its epilogue adds.
//
//===----------------------------------------------------------------------===//

#include "Products.h"
#include <algorithm>
#include <limits>

namespace segue::inline runtime::cuda {

/// Tensors and arenas begin at multiples of 16 bytes; what lies in the midst of one, at those of an element.
static constexpr uint32_t usualAlignment = 16;

/// The library is asked for so many answers, best first: those after the first are for where memory is short.
static constexpr int wantedAnswers = 8;

static int blasType(ElementType type) {
  switch (type) {
  case ElementType::f64:
    return blasF64;
  case ElementType::f16:
    return blasF16;
  case ElementType::bf16:
    return blasBf16;
  case ElementType::i32:
    return blasI32;
  default:
    return blasF32;
  }
}

static int blasType(StorageType codes) {
  return codes == StorageType::Int8Row ? blasI8 : codes == StorageType::Fp8E4M3Row ? blasE4M3 : blasE5M2;
}

namespace {
/// The types of a product, by the library's numbers: of our operands, of the way to compute, and of its factors.
struct Types {
  int a, b, c, compute, scale;
  /// How logs call them.
  std::string_view name;
  /// True for codes that are multiplied as they are.
  bool areCodes = false;
};

/// A matrix as the library reads it: columns `lead` elements apart, transposed or not.
struct Stored {
  bool isTransposed = false;
  uint64_t rows = 0, columns = 0;
  int64_t lead = 0;
};

template <typename Opaque> using Described = std::unique_ptr<Opaque, cublasStatus_t (*)(Opaque *)>;
} // namespace

static Types typesOf(const MatmulSpec &spec, bool tf32) {
  bool isDouble = spec.a.element == ElementType::f64, isTf32 = spec.a.element == ElementType::f32 && tf32;
  int operand = blasType(spec.a.element);
  return {operand, operand, blasType(spec.c.element), isDouble ? computeF64 : isTf32 ? computeTf32 : computeF32,
          isDouble ? blasF64 : blasF32, isTf32 ? "tf32" : name(spec.a.element)};
}

static Types typesOfCodes(StorageType a, StorageType b) {
  if (a == StorageType::Int8Row)
    return {blasI8, blasI8, blasI32, computeI32, blasI32, "int8", true};
  return {blasType(a), blasType(b), blasF32, computeF32, blasF32, "fp8", true};
}

/// Returns how the library reads a matrix of ours, which it sees transposed; nothing if it cannot, with a stride
/// of 1 in neither direction, or with rows that overlap.
static std::optional<Stored> readAs(const MatrixView &view, int64_t rows, int64_t columns) {
  auto [batch, rowStride, columnStride] = view.strides;
  if ((columns == 1 || columnStride == 1) && (rows == 1 || rowStride >= columns))
    return Stored{false, uint64_t(columns), uint64_t(rows), rows == 1 ? columns : rowStride};
  if ((rows == 1 || rowStride == 1) && (columns == 1 || columnStride >= rows))
    return Stored{true, uint64_t(rows), uint64_t(columns), columns == 1 ? rows : columnStride};
  return std::nullopt;
}

//===----------------------------------------------------------------------===//
// Plans
//===----------------------------------------------------------------------===//

class Products::Plan final : public MatmulPlan, public EpiloguePlan {
public:
  /// Asks the library, which is open then, unless there is nothing to sum up. It can read the operands as they lie.
  Plan(Products &products, const MatmulSpec &spec, const Types &types, Epilogue epilogue = Epilogue::None);

  void run(const void *a, const void *b, void *c, const void *bias) const override { run(a, b, c, bias, nullptr); }
  void run(const void *a, const void *b, void *c, const void *bias, void *sums) const override;
  std::string describe() const override;

  /// Returns whether the library has an answer, without which a product of codes, or with an epilogue, is none.
  bool isAnswered() const { return !usual_.best->empty(); }
  /// Returns true where there is something to sum up.
  static bool hasSums(const MatmulSpec &spec) { return spec.batch && spec.m && spec.n && spec.k; }

private:
  enum class Bias { None, Epilogue, Copied };
  /// The answers of the library for one alignment, and what each lane has of them.
  struct Answers {
    std::optional<std::vector<BlasAnswer>> best;
    struct Choice {
      const BlasAlgorithm *algorithm = nullptr;
      Workspaces::Piece workspace;
    } choices[Workspaces::laneCount];
  };

  bool hasSumsBeside() const { return epilogue_ == Epilogue::GeluAndSums; }
  [[noreturn]] void refuse(const std::string &why) const {
    throw Error(ErrorCode::Unsupported, "device \"" + products_.device_ + "\": matmul: " + why);
  }
  Described<cublasLtMatrixLayoutOpaque_t> layout(int type, const MatrixView &view, const Stored &stored) const;
  template <typename T> void set(int attribute, T value) const {
    products_.check(blas_->descSet(desc_.get(), attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
  }
  std::vector<BlasAnswer> ask(bool isUsual) const;
  const Answers::Choice &choose(bool isUsual, size_t lane) const;
  template <typename Run> void forEachBlock(std::byte *c, Run run) const;
  void clear(CUstream stream, std::byte *c) const;
  void copyBias(CUstream stream, std::byte *c, const void *bias) const;

  Products &products_;
  const BlasApi *blas_;
  MatmulSpec spec_;
  Types types_;
  Epilogue epilogue_;
  Bias bias_ = Bias::None;
  Described<cublasLtMatmulDescOpaque_t> desc_{nullptr, nullptr};
  Described<cublasLtMatrixLayoutOpaque_t> a_{nullptr, nullptr}, b_{nullptr, nullptr}, c_{nullptr, nullptr};
  /// Guards what follows, and the descriptor, in which the bias of a run stands.
  mutable std::mutex mutex_;
  mutable Answers usual_, unusual_;
};

Products::Plan::Plan(Products &products, const MatmulSpec &spec, const Types &types, Epilogue epilogue)
    : products_(products), blas_(products.blas_), spec_(spec), types_(types), epilogue_(epilogue) {
  bool isDouble = spec.a.element == ElementType::f64;
  if (spec.hasBias)
    bias_ = isDouble || !hasSums(spec) ? Bias::Copied : Bias::Epilogue;
  if (bias_ == Bias::Copied && spec.accumulate)
    refuse(std::string(isDouble ? "f64" : "a product without depth") + " with a bias that is added to what the "
           "result holds is nothing that cuBLASLt does; add the bias on its own");
  if (!hasSums(spec))
    return;
  if (spec.batch > std::numeric_limits<int32_t>::max())
    refuse("cuBLASLt takes at most 2147483647 matrices, not " + std::to_string(spec.batch));
  Stored left = *readAs(spec.a, spec.m, spec.k), right = *readAs(spec.b, spec.k, spec.n);
  cublasLtMatmulDesc_t desc = nullptr;
  products.check(blas_->descCreate(&desc, types.compute, types.scale), "cublasLtMatmulDescCreate");
  desc_ = {desc, blas_->descDestroy};
  set(matmulTransposeA, int32_t(right.isTransposed));
  set(matmulTransposeB, int32_t(left.isTransposed));
  uint32_t kind = epilogue == Epilogue::Gelu ? epilogueGelu : hasSumsBeside() ? epilogueGeluAndSums : 0u;
  if (bias_ == Bias::Epilogue) {
    kind |= epilogueBias;
    set(matmulBiasType, int32_t(blasType(spec.bias)));
  }
  if (kind)
    set(matmulEpilogue, kind);
  if (hasSumsBeside())
    set(matmulSumsLead, spec.n);
  a_ = layout(types.b, spec.b, right);
  b_ = layout(types.a, spec.a, left);
  c_ = layout(types.c, spec.c, {false, uint64_t(spec.n), uint64_t(spec.m), spec.m == 1 ? spec.n : spec.c.strides[1]});
  usual_.best = ask(/*isUsual=*/true);
  bool mayBeNone = types.areCodes || epilogue != Epilogue::None;
  if (!isAnswered() && bias_ == Bias::Epilogue && !spec.accumulate && !mayBeNone) {
    bias_ = Bias::Copied;
    set(matmulEpilogue, epilogueNone);
    usual_.best = ask(/*isUsual=*/true);
  }
  if (isAnswered() || !mayBeNone)
    choose(/*isUsual=*/true, size_t(Queue::Compute));
}

Described<cublasLtMatrixLayoutOpaque_t> Products::Plan::layout(int type, const MatrixView &view,
                                                               const Stored &stored) const {
  cublasLtMatrixLayout_t made = nullptr;
  products_.check(blas_->layoutCreate(&made, type, stored.rows, stored.columns, stored.lead),
                  "cublasLtMatrixLayoutCreate");
  Described<cublasLtMatrixLayoutOpaque_t> layout(made, blas_->layoutDestroy);
  auto set = [&](int attribute, auto value) {
    products_.check(blas_->layoutSet(made, attribute, &value, sizeof(value)), "cublasLtMatrixLayoutSetAttribute");
  };
  if (spec_.batch > 1) {
    set(layoutBatchCount, int32_t(spec_.batch));
    set(layoutBatchStride, view.strides[0]);
  }
  return layout;
}

/// Asks for algorithms whose operands begin as usual, or at multiples of their elements. Empty if there is none.
std::vector<BlasAnswer> Products::Plan::ask(bool isUsual) const {
  uint64_t workspaceBytes = products_.options_.workspaceBytes;
  cublasLtMatmulPreference_t made = nullptr;
  products_.check(blas_->preferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  Described<cublasLtMatmulPreferenceOpaque_t> preference(made, blas_->preferenceDestroy);
  auto prefer = [&](int attribute, auto value) {
    products_.check(blas_->preferenceSet(made, attribute, &value, sizeof(value)),
                    "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(preferenceWorkspaceBytes, workspaceBytes);
  prefer(preferenceReductions, reductionInComputeType);
  uint32_t operand = isUsual ? usualAlignment : uint32_t(byteSize(spec_.a.element));
  uint32_t result = isUsual ? usualAlignment : uint32_t(byteSize(spec_.c.element));
  prefer(preferenceAlignmentA, operand);
  prefer(preferenceAlignmentB, operand);
  prefer(preferenceAlignmentC, result);
  prefer(preferenceAlignmentD, result);
  if (bias_ == Bias::Epilogue) // nothing reads there: the library looks at the alignment of the address
    set(matmulBiasPointer, uint64_t(result));
  if (hasSumsBeside())
    set(matmulSumsPointer, uint64_t(result));
  std::vector<BlasAnswer> answers(wantedAnswers);
  int count = 0;
  cublasStatus_t status = blas_->heuristic(products_.handle_, desc_.get(), a_.get(), b_.get(), c_.get(), c_.get(), made,
                                           wantedAnswers, answers.data(), &count);
  if (status == blasNotSupported)
    return {};
  products_.check(status, "cublasLtMatmulAlgoGetHeuristic");
  answers.resize(size_t(std::clamp(count, 0, wantedAnswers)));
  std::erase_if(answers, [&](const BlasAnswer &answer) {
    return answer.state != blasSuccess || answer.workspaceBytes > workspaceBytes;
  });
  return answers;
}

/// Returns what a lane runs: the best answer, with its workspace. May be called in the constructor, or locked.
const Products::Plan::Answers::Choice &Products::Plan::choose(bool isUsual, size_t lane) const {
  Answers &answers = isUsual ? usual_ : unusual_;
  Answers::Choice &choice = answers.choices[lane];
  if (choice.algorithm)
    return choice;
  if (!answers.best)
    answers.best = ask(isUsual);
  if (!answers.best->empty()) {
    // Another algorithm gives other bits: none is taken for want of room.
    const BlasAnswer &answer = answers.best->front();
    Workspaces::Piece workspace;
    if (answer.workspaceBytes)
      workspace = products_.workspaces_.tryTake(lane, products_.options_.workspaceBytes);
    if (answer.workspaceBytes && !workspace.data)
      throw Error(ErrorCode::DeviceOom, "device \"" + products_.device_ + "\": there is no memory for the workspace of " +
                                            "a product outside of the queue that computes, of " +
                                            std::to_string(products_.options_.workspaceBytes) +
                                            " bytes; give the device more, or a smaller workspace=");
    choice = {&answer.algorithm, {workspace.data, answer.workspaceBytes}};
    return choice;
  }
  auto text = [](int64_t extent) { return std::to_string(extent); };
  refuse("cuBLASLt has no algorithm for " + std::string(name(spec_.a.element)) + " [" + text(spec_.batch) + ", " +
         text(spec_.m) + ", " + text(spec_.k) + "] times [" + text(spec_.k) + ", " + text(spec_.n) + "] in " +
         std::string(name(spec_.c.element)) +
         (spec_.hasBias ? " with a bias" : "") + (isUsual ? "" : " where operands begin at no multiple of 16 bytes"));
}

std::string Products::Plan::describe() const {
  if (!hasSums(spec_))
    return "cublaslt: no sums";
  std::lock_guard lock(mutex_);
  return "cublaslt " + std::string(types_.name) +
         (bias_ == Bias::Copied ? ", bias copied" : "") + ", workspace " +
         std::to_string(usual_.choices[size_t(Queue::Compute)].workspace.bytes);
}

//===----------------------------------------------------------------------===//
// Runs
//===----------------------------------------------------------------------===//

/// Calls `run` with each part of c that is rows behind one another, and their number.
template <typename Run> void Products::Plan::forEachBlock(std::byte *c, Run run) const {
  auto [batchStride, rowStride, columnStride] = spec_.c.strides;
  auto size = int64_t(byteSize(spec_.c.element));
  bool isRows = spec_.m == 1 || rowStride == spec_.n;
  bool isWhole = isRows && (spec_.batch == 1 || batchStride == spec_.m * spec_.n);
  int64_t rows = isWhole ? spec_.batch * spec_.m : isRows ? spec_.m : 1;
  for (int64_t z = 0; z < (isWhole ? 1 : spec_.batch); ++z)
    for (int64_t i = 0; i < (isRows ? 1 : spec_.m); ++i)
      run(c + (z * batchStride + i * rowStride) * size, rows);
}

void Products::Plan::clear(CUstream stream, std::byte *c) const {
  uint64_t rowBytes = uint64_t(spec_.n) * byteSize(spec_.c.element);
  forEachBlock(c, [&](std::byte *block, int64_t rows) {
    products_.context_.check(products_.context_.api().fill8(reinterpret_cast<CUdeviceptr>(block), 0,
                                                            uint64_t(rows) * rowBytes, stream),
                             "cuMemsetD8Async");
  });
}

/// Makes each row of c the bias: once by a copy, then twice as many rows with each.
void Products::Plan::copyBias(CUstream stream, std::byte *c, const void *bias) const {
  uint64_t rowBytes = uint64_t(spec_.n) * byteSize(spec_.c.element);
  auto copy = [&](std::byte *target, const void *source, uint64_t bytes) {
    products_.context_.check(products_.context_.api().onDevice(reinterpret_cast<CUdeviceptr>(target),
                                                               reinterpret_cast<CUdeviceptr>(source), bytes, stream),
                             "cuMemcpyDtoDAsync");
  };
  forEachBlock(c, [&](std::byte *block, int64_t rows) {
    copy(block, bias, rowBytes);
    for (int64_t done = 1; done < rows; done *= 2)
      copy(block + uint64_t(done) * rowBytes, block, uint64_t(std::min(done, rows - done)) * rowBytes);
  });
}

void Products::Plan::run(const void *a, const void *b, void *c, const void *bias, void *sums) const {
  if (!spec_.batch || !spec_.m || !spec_.n)
    return;
  auto *result = static_cast<std::byte *>(c);
  Answers::Choice choice;
  if (hasSums(spec_)) {
    uintptr_t addresses = uintptr_t(a) | uintptr_t(b) | uintptr_t(c);
    if (bias_ == Bias::Epilogue)
      addresses |= uintptr_t(bias);
    products_.context_.throwIfLost();
    products_.context_.use();
    std::lock_guard lock(mutex_);
    choice = choose(addresses % usualAlignment == 0, products_.workspaces_.lane());
  }
  products_.streams_.give([&](CUstream stream) {
    if (bias_ == Bias::Copied)
      copyBias(stream, result, bias);
    else if (!hasSums(spec_) && !spec_.accumulate)
      clear(stream, result);
    if (!hasSums(spec_))
      return;
    bool isAdded = spec_.accumulate || bias_ == Bias::Copied;
    const double doubles[] = {1, double(isAdded)};
    const float floats[] = {1, float(isAdded)};
    const int32_t integers[] = {1, int32_t(isAdded)};
    auto scale = [&](int which) -> const void * {
      return types_.scale == blasF64   ? static_cast<const void *>(doubles + which)
             : types_.scale == blasI32 ? static_cast<const void *>(integers + which)
                                       : floats + which;
    };
    std::lock_guard lock(mutex_);
    if (bias_ == Bias::Epilogue)
      set(matmulBiasPointer, bias);
    if (hasSumsBeside())
      set(matmulSumsPointer, sums);
    products_.check(blas_->matmul(products_.handle_, desc_.get(), scale(0), b, a_.get(), a, b_.get(), scale(1), c,
                                  c_.get(), c, c_.get(), choice.algorithm, choice.workspace.data,
                                  choice.workspace.bytes, stream),
                    "cublasLtMatmul");
  });
}

//===----------------------------------------------------------------------===//
// The library of a device
//===----------------------------------------------------------------------===//

Products::~Products() {
  if (!handle_)
    return;
  context_.use();
  (void)blas_->destroy(handle_);
}

void Products::open() {
  context_.throwIfLost();
  context_.use();
  if (handle_)
    return;
  blas_ = &BlasApi::open(device_);
  check(blas_->create(&handle_), "cublasLtCreate");
}

/// Opens the library and takes the workspace.
void Products::prepare() {
  open();
  if (options_.workspaceBytes)
    workspaces_.takeForPlans(options_.workspaceBytes);
}

std::shared_ptr<const MatmulPlan> Products::make(const MatmulSpec &spec) {
  CopiedProduct::Copied copied;
  if (Plan::hasSums(spec)) {
    prepare();
    copied.a = !readAs(spec.a, spec.m, spec.k);
    copied.b = !readAs(spec.b, spec.k, spec.n);
  }
  copied.c = spec.hasBias && spec.bias != spec.c.element && spec.batch && spec.m && spec.n;
  if (!copied.any())
    return std::make_shared<const Plan>(*this, spec, typesOf(spec, options_.tf32));
  MatmulSpec copies = CopiedProduct::specOfCopies(spec, copied).batchAsRows();
  auto product = std::make_shared<const Plan>(*this, copies, typesOf(copies, options_.tf32));
  return std::make_shared<const CopiedProduct>(spec, copied, std::move(product), kernels_, copies_);
}

std::shared_ptr<const MatmulPlan> Products::planCodes(const MatmulSpec &spec, StorageType a, StorageType b) {
  std::lock_guard lock(mutex_);
  prepare();
  auto plan = std::make_shared<const Plan>(*this, spec, typesOfCodes(a, b));
  return plan->isAnswered() ? plan : nullptr;
}

std::shared_ptr<const EpiloguePlan> Products::planEpilogue(const MatmulSpec &spec, Epilogue epilogue) {
  if (!Plan::hasSums(spec))
    return nullptr;
  std::lock_guard lock(mutex_);
  prepare();
  auto plan = std::make_shared<const Plan>(*this, spec, typesOf(spec, options_.tf32), epilogue);
  return plan->isAnswered() ? plan : nullptr;
}

std::shared_ptr<const MatmulPlan> Products::plan(const MatmulSpec &given) {
  MatmulSpec spec = given.batchAsRows();
  std::lock_guard lock(mutex_);
  return plans_.findOrMake(spec, [&] { return make(spec); });
}

/// Throws unless the call succeeded.
void Products::check(cublasStatus_t status, const char *call) const {
  if (status == blasSuccess)
    return;
  // The library does not tell what ended the device: the driver does.
  size_t free = 0, total = 0;
  (void)context_.succeeded(context_.api().memInfo(&free, &total), "cuMemGetInfo");
  context_.throwIfLost();
  throw Error(status == blasAllocFailed ? ErrorCode::DeviceOom : ErrorCode::Unsupported,
              "device \"" + device_ + "\": " + call + " gives " + blas_->describe(status));
}

} // namespace segue::inline runtime::cuda
