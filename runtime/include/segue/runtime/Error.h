//===- Error.h - the one exception of the runtime ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Every failure that a caller can meet is a segue::Error: a code to branch on
// and a sentence that says what was found, where, and what to do. What is
// normal (an input that needs no conversion) is a value, never an Error.
//
// The names live in the inline namespace `runtime`, so that a program may link
// the compiler too, whose dialect has enums of the same names.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_ERROR_H
#define SEGUE_RUNTIME_ERROR_H

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace segue::inline runtime {

/// The kind of an error, for code that branches on it.
enum class ErrorCode {
  /// A call breaks its contract: a null tensor, a bad spec, a wrong order.
  InvalidArgument,
  /// A tensor has another shape, element type or device than was declared.
  LayoutMismatch,
  /// There is no tensor, input, parameter or program of that name.
  NameUnknown,
  /// A program input was given no tensor.
  MissingInput,
  /// A parameter has no value yet, or a checkpoint lacks it.
  MissingWeight,
  /// A file cannot be opened, read or written.
  IoFailed,
  /// A file is truncated, was changed, or breaks a rule of its format.
  FileCorrupt,
  /// A file is of another major version or of a later layout vocabulary.
  VersionUnsupported,
  /// The file holds native code and the caller did not allow it.
  NativeCodeRefused,
  /// This device or this CPU cannot do what the program asks for.
  Unsupported,
  /// A kernel met an index outside of its table, or a divisor of whole numbers that is 0.
  IndexOutOfRange,
  /// The loss or the gradient norm is NaN or infinite.
  NanLoss,
  /// An optimizer failed midway: parameters are between two steps. Fatal for
  /// the session until it loads a checkpoint.
  StateTorn,
  /// The device has no memory for an allocation.
  DeviceOom,
  /// A configuration has an unknown key or a value out of its range. Nothing
  /// was constructed.
  ConfigInvalid,
  /// A copy failed after its retries. Its source is whole.
  TransferFailed,
  /// Bytes that came back are not those that left; they were not used.
  ChecksumMismatch,
  /// A tensor was used after it was freed.
  UseAfterFree,
  /// A record or block was asked for a move that its state does not allow.
  StateTransition,
  /// A phase was entered out of order; the old one stands.
  PhaseOrder,
  /// A step was aborted; what waited for it is told so.
  StepAborted,
  /// A transfer token was given back by somebody who does not hold it.
  TokenInvalid,
  /// A quantised slab or its manifest breaks a rule; nothing was loaded.
  SlabInvalid,
  /// A file that weights are read from was changed while in use.
  SourceChanged,
  /// A stored element type is not the declared one.
  DtypeMismatch,
  /// A pool was shut down while somebody waited for it.
  ShutDown,
  /// A memory budget is below what the programs need at least.
  BudgetInfeasible,
  /// A value that is to be quantised is NaN or infinite.
  NonFinite,
  /// A device has failed for good: nothing runs on it any more, often in no other session
  /// of this process either. What lies in the host's memory is whole.
  DeviceLost,
  /// Another rank has failed, hangs, or is at another place than this one.
  RankFailed,
};

/// Returns "LAYOUT_MISMATCH" and so on: the word that starts each message.
std::string_view errorCodeName(ErrorCode code);

/// Details that some errors have besides their sentence, for code that goes by them. They belong to the error and not
/// to the class of the exception, so that they stay when an error is copied or put within another sentence.
class __attribute__((visibility("default"))) ErrorDetails {
public:
  virtual ~ErrorDetails();
};

/// The exception that everything in the runtime throws. what() is "CODE: sentence".
class __attribute__((visibility("default"))) Error : public std::runtime_error {
public:
  Error(ErrorCode code, const std::string &message, std::shared_ptr<const ErrorDetails> details = nullptr);

  ErrorCode code() const { return code_; }

  /// Returns what the error knows of this kind, or null; it lives as long as the error or a copy of it.
  template <typename Details> const Details *details() const {
    return dynamic_cast<const Details *>(details_.get());
  }

  /// Returns this error with `context` put before its sentence; the code and the details stay.
  Error within(const std::string &context) const;

private:
  ErrorCode code_;
  std::string message_;
  std::shared_ptr<const ErrorDetails> details_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_ERROR_H
