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

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.fx import Node


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

    def __init__(self, message: str, *, code: str | None = None, report: dict[str, Any] | None = None):
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
    node: "Node | None" = None  # of the graph that was translated; for who cuts the graph there


class CompileError(Error):
    """The compiler refused the module. The report has ``diagnostics``."""

    code = "COMPILE_FAILED"


class ValuesDifferError(Error, ArithmeticError):
    """A kernel gives something else than the reference interpreter, with ``SEGUE_VERIFY=values``.

    The message and ``report["difference"]`` name the kernel, the op, its place in the source and the worst element.
    """

    code = "VALUES_DIFFER"


class LayoutMismatchError(Error, ValueError):
    """A tensor has another shape or element type than the program declares."""

    code = "LAYOUT_MISMATCH"


class NameUnknownError(Error, LookupError):
    """No tensor, input, parameter or program has the name that was given."""

    code = "NAME_UNKNOWN"


class MissingInputError(Error, LookupError):
    """An input of a program was given no tensor."""

    code = "MISSING_INPUT"


class MissingWeightError(Error, LookupError):
    """A parameter or buffer has no value. From Python, the report has ``names``."""

    code = "MISSING_WEIGHT"


class FileError(Error, OSError):
    """A file cannot be opened, read or written."""

    code = "IO_FAILED"

    def __str__(self) -> str:  # OSError would show its own fields
        return str(self.args[0])


class CorruptFileError(Error):
    """A file is truncated, was changed, or breaks a rule of its format."""

    code = "FILE_CORRUPT"


class VersionError(Error):
    """A file of another major version, or of a later layout vocabulary."""

    code = "VERSION_UNSUPPORTED"


class NativeCodeRefusedError(Error, PermissionError):
    """The file holds machine code that this user has not signed, and the caller did not allow it (`segue.load`)."""

    code = "NATIVE_CODE_REFUSED"

    def __str__(self) -> str:
        return str(self.args[0])


class UnsupportedError(Error, NotImplementedError):
    """This device or this CPU cannot do what the program asks for."""

    code = "UNSUPPORTED"


class IndexOutOfRangeError(Error, IndexError):
    """A lookup or a cross entropy met an index outside of its table, or whole numbers were divided by 0."""

    code = "INDEX_OUT_OF_RANGE"


class NanLossError(Error, ArithmeticError):
    """The loss or the gradient norm is not finite; the state of the last finished step is kept."""

    code = "NAN_LOSS"


class StateTornError(Error):
    """An optimizer program failed halfway; load a checkpoint to go on."""

    code = "STATE_TORN"


class RankFailedError(Error, ConnectionError):
    """Another rank has failed, ended or does something else; the message names it, and says whether parameters are those of the last finished step."""

    code = "RANK_FAILED"

    def __str__(self) -> str:
        return str(self.args[0])


class OutOfMemoryError(Error, MemoryError):
    """A device ran out of memory."""

    code = "DEVICE_OOM"


class ConfigError(Error, ValueError):
    """The config file has an unknown key or a value that its service refuses; the message has its path."""

    code = "CONFIG_INVALID"


class BudgetInfeasibleError(Error, MemoryError):
    """No plan keeps to this budget. Nothing has run.

    From `memory`, the report has ``smallest_budget_bytes``, ``set_by`` (the event of the step) and ``held``: who holds
    how many bytes there.
    """

    code = "BUDGET_INFEASIBLE"


class FallbackWarning(UserWarning):
    """A piece of a program given to `torch.compile` runs in PyTorch; the text names operator, module and line."""


_BY_CODE: dict[str, type[Error]] = {
    value.code: value for value in list(globals().values()) if isinstance(value, type) and issubclass(value, Error)
}


def from_code(code: str, message: str, report: dict[str, Any] | None = None) -> Error:
    """Make the exception for an error code of the runtime.

    A code without a class of its own becomes a plain `Error` that keeps the code.
    """
    return _BY_CODE.get(code, Error)(message, code=code, report=report)
