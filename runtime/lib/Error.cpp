//===- Error.cpp - the one exception of the runtime -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Error.h"
#include "segue/runtime/HeldPointer.h"

namespace segue::inline runtime {

std::string_view errorCodeName(ErrorCode code) {
  switch (code) {
  case ErrorCode::InvalidArgument:
    return "INVALID_ARGUMENT";
  case ErrorCode::LayoutMismatch:
    return "LAYOUT_MISMATCH";
  case ErrorCode::NameUnknown:
    return "NAME_UNKNOWN";
  case ErrorCode::MissingInput:
    return "MISSING_INPUT";
  case ErrorCode::MissingWeight:
    return "MISSING_WEIGHT";
  case ErrorCode::IoFailed:
    return "IO_FAILED";
  case ErrorCode::FileCorrupt:
    return "FILE_CORRUPT";
  case ErrorCode::VersionUnsupported:
    return "VERSION_UNSUPPORTED";
  case ErrorCode::NativeCodeRefused:
    return "NATIVE_CODE_REFUSED";
  case ErrorCode::Unsupported:
    return "UNSUPPORTED";
  case ErrorCode::IndexOutOfRange:
    return "INDEX_OUT_OF_RANGE";
  case ErrorCode::NanLoss:
    return "NAN_LOSS";
  case ErrorCode::StateTorn:
    return "STATE_TORN";
  case ErrorCode::DeviceOom:
    return "DEVICE_OOM";
  case ErrorCode::ConfigInvalid:
    return "CONFIG_INVALID";
  case ErrorCode::TransferFailed:
    return "TRANSFER_FAILED";
  case ErrorCode::ChecksumMismatch:
    return "CHECKSUM_MISMATCH";
  case ErrorCode::UseAfterFree:
    return "USE_AFTER_FREE";
  case ErrorCode::StateTransition:
    return "STATE_TRANSITION";
  case ErrorCode::PhaseOrder:
    return "PHASE_ORDER";
  case ErrorCode::StepAborted:
    return "STEP_ABORTED";
  case ErrorCode::TokenInvalid:
    return "TOKEN_INVALID";
  case ErrorCode::SlabInvalid:
    return "SLAB_INVALID";
  case ErrorCode::SourceChanged:
    return "SOURCE_CHANGED";
  case ErrorCode::DtypeMismatch:
    return "DTYPE_MISMATCH";
  case ErrorCode::ShutDown:
    return "SHUT_DOWN";
  case ErrorCode::BudgetInfeasible:
    return "BUDGET_INFEASIBLE";
  case ErrorCode::NonFinite:
    return "NON_FINITE";
  case ErrorCode::DeviceLost:
    return "DEVICE_LOST";
  case ErrorCode::RankFailed:
    return "RANK_FAILED";
  }
  return "UNKNOWN";
}

ErrorDetails::~ErrorDetails() = default;

Error::Error(ErrorCode code, const std::string &message, std::shared_ptr<const ErrorDetails> details)
    : std::runtime_error(std::string(errorCodeName(code)) + ": " + message), code_(code), message_(message),
      details_(std::move(details)) {}

void failMovedFrom(const char *handle) {
  throw Error(ErrorCode::InvalidArgument,
              std::string(handle) + ": used after it was moved from; use the one that it was moved to");
}

Error Error::within(const std::string &context) const { return Error(code_, context + ": " + message_, details_); }

} // namespace segue::inline runtime
