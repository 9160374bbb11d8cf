# ===- selection.py - places in sorted rows, medians, modes ---------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Places in sorted rows, medians and modes."""

from __future__ import annotations

import torch
from torch.types import Number

from .table import Attempt, writes

aten = torch.ops.aten


@writes(aten.searchsorted.Tensor)
def searchsorted(sequence: torch.Tensor, values: torch.Tensor, *, out_int32: bool = False, right: bool = False,
                 side: str | None = None, sorter: torch.Tensor | None = None) -> torch.Tensor:
    right = right or side == "right"
    if sorter is not None:
        sequence = sequence.gather(-1, sorter)
    dtype = torch.promote_types(sequence.dtype, values.dtype)
    sequence, count = sequence.to(dtype), sequence.shape[-1]
    rows = values.to(dtype) if sequence.dim() > 1 else values.to(dtype).reshape(-1)
    place = torch.zeros(rows.shape, dtype=torch.int64, device=values.device)
    step = 1 << count.bit_length()
    while step > 1 and count:
        step //= 2
        candidate = place + step  # so many elements come before the value, if the last of them does
        last = sequence.gather(-1, candidate.clamp(max=count) - 1)
        before = ~(last > rows if right else last >= rows)  # NaN is behind all numbers
        place = torch.where((candidate <= count) & before, candidate, place)
    return place.reshape(values.shape).to(torch.int32 if out_int32 else torch.int64)


@writes(aten.searchsorted.Scalar)
def searchsorted_of_number(sequence: torch.Tensor, value: Number, *, out_int32: bool = False, right: bool = False,
                           side: str | None = None, sorter: torch.Tensor | None = None) -> torch.Tensor:
    return searchsorted(sequence, torch.full((), value, device=sequence.device), out_int32=out_int32, right=right, side=side, sorter=sorter)


@writes(aten.bucketize.Tensor)
def bucketize(x: torch.Tensor, boundaries: torch.Tensor, *, out_int32: bool = False,
              right: bool = False) -> torch.Tensor:
    return searchsorted(boundaries, x, out_int32=out_int32, right=right)


@writes(aten.bucketize.Scalar)
def bucketize_of_number(x: Number, boundaries: torch.Tensor, *, out_int32: bool = False,
                        right: bool = False) -> torch.Tensor:
    return searchsorted_of_number(boundaries, x, out_int32=out_int32, right=right)


# --- medians -----------------------------------------------------------------------------


def _median(x: torch.Tensor, dim: int, keepdim: bool, skips_nan: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The lower of two in the middle, and where it is; NaN counts, or does not."""
    if not x.dim():
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    count = x.shape[dim]
    if not (skips_nan and x.is_floating_point()):
        places = torch.kthvalue(x, (count - 1) // 2 + 1, dim, keepdim=True).indices
        if x.is_floating_point():  # the first NaN, where there are some
            no_number = x.isnan()
            places = torch.where(no_number.any(dim, keepdim=True), no_number.to(torch.int8).argmax(dim, keepdim=True), places)
    else:
        numbers = (~x.isnan()).sum(dim, keepdim=True)  # NaN come last: the first of them is chosen where all are NaN
        middle = torch.floor((numbers - 1).clamp(min=0) * 0.5).to(torch.int64)
        places = torch.sort(x, dim=dim, stable=True).indices.gather(dim, middle)
    values = x.gather(dim, places)
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


@writes(aten.median.dim)
def median_along(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return _median(x, dim, keepdim, skips_nan=False)


@writes(aten.nanmedian.dim)
def nanmedian_along(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return _median(x, dim, keepdim, skips_nan=True)


@writes(aten.median.default)
def median(x: torch.Tensor) -> Attempt[torch.Tensor]:
    return _median(x.reshape(-1), 0, False, skips_nan=False)[0] if x.numel() else NotImplemented


@writes(aten.nanmedian.default)
def nanmedian(x: torch.Tensor) -> Attempt[torch.Tensor]:
    return _median(x.reshape(-1), 0, False, skips_nan=True)[0] if x.numel() else NotImplemented


@writes(aten.mode.default)
def mode(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The least of the values that come most often, and the last place where it is."""
    if not x.dim():
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    rows, count = x.movedim(dim, -1), x.shape[dim]
    places = torch.sort(rows, dim=-1, stable=True).indices
    ordered = rows.gather(-1, places)
    last, this = ordered[..., :-1], ordered[..., 1:]
    begins = last != this
    if x.is_floating_point():
        begins = begins & ~(last.isnan() & this.isnan())
    # How far each element is from the first of its equals. The first of those that are farthest is the last of the least
    # value that comes most often.
    at = torch.arange(count, device=x.device).expand(rows.shape)
    first = torch.cummax(torch.nn.functional.pad(torch.where(begins, at[..., 1:], 0), (1, 0)), -1).values
    place = places.gather(-1, (at - first).argmax(-1, keepdim=True))
    value = rows.gather(-1, place)
    found = value.movedim(-1, dim), place.movedim(-1, dim)
    return found if keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))
