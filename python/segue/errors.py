# ===- errors.py - one exception per cause ----------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""One exception class per cause, each carrying its report.

Errors of the C++ runtime and of the compiler arrive here through one function,
`from_code`, which the native modules call; Python code raises the classes
directly. Every class derives from `segue.Error`.
"""

from __future__ import annotations


class Error(RuntimeError):
    """Base of all errors of Segue.

    Attributes
    ----------
    code : str
        The cause, as in the runtime's `segue::ErrorCode`, e.g. ``LAYOUT_MISMATCH``.
    report : dict
        What else is known about the failure; the keys depend on the cause.
    """

    code = "INTERNAL"

    def __init__(self, message: str, *, code: str | None = None, report: dict | None = None):
        super().__init__(message)
        if code is not None:
            self.code = code
        self.report = dict(report or {})


class InvalidArgumentError(Error, ValueError):
    """A value given by the caller breaks a rule that the message names."""

    code = "INVALID_ARGUMENT"


class ExportError(Error):
    """`torch.export` could not capture the module; the cause is chained."""

    code = "EXPORT_FAILED"


class UnsupportedOpError(Error, NotImplementedError):
    """The module uses an operator that the frontend does not know.

    The report has ``op``, ``module`` (path in the model) and ``source`` (file and line).
    """

    code = "UNSUPPORTED_OP"


class CompileError(Error):
    """The compiler refused the module. The report has ``diagnostics``."""

    code = "COMPILE_FAILED"


class LayoutMismatchError(Error, ValueError):
    """A tensor has another shape or element type than the program declares."""

    code = "LAYOUT_MISMATCH"


class InvalidBinaryError(Error):
    """A `.segue` file is truncated, damaged, or asks for what it must not."""

    code = "INVALID_BINARY"


class MissingWeightError(Error, KeyError):
    """A parameter or buffer of the program was not given. The report has ``names``."""

    code = "MISSING_WEIGHT"

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0])


class IndexOutOfRangeError(Error, IndexError):
    """A gather, scatter or cross entropy met an index outside of its table."""

    code = "INDEX_OUT_OF_RANGE"


class NumericError(Error, ArithmeticError):
    """The loss is not a number; the state of the last finished step is kept."""

    code = "NUMERIC"


class OutOfMemoryError(Error, MemoryError):
    """A device ran out of memory. The report says who holds what."""

    code = "DEVICE_OOM"


class IoError(Error, OSError):
    """A file could not be read or written."""

    code = "IO"

    def __str__(self) -> str:
        return str(self.args[0])


_BY_CODE: dict[str, type[Error]] = {
    cls.code: cls
    for cls in (
        Error, InvalidArgumentError, ExportError, UnsupportedOpError, CompileError, LayoutMismatchError,
        InvalidBinaryError, MissingWeightError, IndexOutOfRangeError, NumericError, OutOfMemoryError, IoError,
    )
}


def from_code(code: str, message: str, report: dict | None = None) -> Error:
    """Make the exception for an error code of the runtime.

    A code without a class of its own becomes a plain `Error` that keeps the code.
    """
    return _BY_CODE.get(code, Error)(message, code=code, report=report)
