"""The compiler of Segue. Use segue.compile instead."""

from collections.abc import Mapping

def compile(text: str, training: bool = True, optimizer: str = "", constants: Mapping[str, float] = ...) -> bytes:
    """The bytes of a .segue file from a module of the segue dialect.

    Raises CompileError with the diagnostics.
    """
