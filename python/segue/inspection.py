# ===- inspection.py - what a binary contains, for people ---------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What a binary contains, as a short text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import _runtime


def describe_binary(binary: "_runtime.Binary") -> str:
    """A few lines: programs with their signature, memory and commands, then kernels and sizes."""
    lines = [f"{binary.name}: {size_text(binary.bytes)}, {len(binary.kernels)} kernels"
             + "".join(f", {kind} {size_text(size)}" for kind, size in binary.segments)]
    if binary.kernels:
        may_run, reason = binary.native_code_leave
        lines.append(f"  machine code {'is trusted' if may_run else 'does not run'}: {reason}")
    for program in binary.programs:
        if program.name.startswith("recompute."):
            continue  # parts of forward, for the runtime
        saved = sum(point.bytes for point in program.save_points if not point.aliases_input)
        lines.append(f"  {program.name}: {inputs_text(program)}")
        lines.append(f"    commands: {command_text(program)}")
        lines.append(f"    arena {size_text(program.arena_bytes)} (at least {size_text(program.arena_lower_bound)})"
                     + (f", keeps {size_text(saved)} for backward" if saved else "")
                     + (f", matmuls {program.matmul_flops / 1e9:.2f} GFLOP" if program.matmul_flops else ""))
    return "\n".join(lines)


def inputs_text(program: "_runtime.Program") -> str:
    """The inputs by role: ``4 parameter (160 B), 1 input (80 B)``."""
    roles: dict[str, list[int]] = {}
    for value in program.inputs:
        roles.setdefault(value.role, []).append(value.bytes)
    return ", ".join(f"{len(sizes)} {role} ({size_text(sum(sizes))})" for role, sizes in roles.items())


def command_text(program: "_runtime.Program") -> str:
    """How many commands there are of each kind: ``3 launch, 2 matmul``."""
    return ", ".join(f"{count} {kind}" for kind, count in program.command_counts.items()) or "none"


def size_text(count: float) -> str:
    """Bytes for people: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"
