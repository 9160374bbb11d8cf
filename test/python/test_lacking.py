# ===- test_lacking.py - complex numbers, Fourier transforms and LAPACK -----------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What Segue leaves to PyTorch for good is named by operator, module and line, and its neighbours stay in Segue."""

import re

import pytest
import torch
from in_pieces import check
from torch import nn

import segue


@pytest.fixture(autouse=True)
def no_segment_of_another_test():
    torch.compiler.reset()


class Filter(nn.Module):
    """A filter over frequencies, as in spectral layers."""

    def __init__(self):
        super().__init__()
        self.gains = nn.Parameter(torch.linspace(0.5, 1.5, 5))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x, dim=-1) * self.gains, n=8, dim=-1)


class Spectrogram(nn.Module):

    def forward(self, x):
        return torch.stft(x, 8, 4, window=torch.hann_window(8), return_complex=True).abs().flatten(1)[:, :8]


class Rotation(nn.Module):
    """Positions as Llama's own code has them."""

    def forward(self, x):
        turns = torch.polar(torch.ones(4, 4), torch.arange(16.0).view(4, 4))
        return torch.view_as_real(torch.view_as_complex(x.view(4, 4, 2)) * turns).flatten(1)


class Products(nn.Module):
    """Complex numbers that are made of two halves and taken apart again."""

    def forward(self, x):
        c = torch.complex(x, x * 2)
        c = c * c.conj() + c.exp()
        return c.real + c.imag + c.abs()


class Solve(nn.Module):
    """A Gaussian process: factors, a triangular system, an inverse, a determinant."""

    def forward(self, x):
        k = x @ x.mT / 8 + torch.eye(4)
        factor = torch.linalg.cholesky(k)
        return torch.linalg.solve_triangular(factor, x, upper=False) + torch.linalg.inv(k) @ x * torch.linalg.slogdet(k)[1]


class Spectrum(nn.Module):

    def forward(self, x):
        values, vectors = torch.linalg.eigh(x @ x.mT / 8 + torch.diag(torch.arange(4.0)))
        u, s, v = torch.linalg.svd(x[:, :4] + torch.diag(torch.arange(4.0)), full_matrices=False)
        return (vectors * values) @ vectors.mT @ x + ((u * s.sqrt()) @ v @ x)


class Around(nn.Module):

    def __init__(self, middle):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, 8), middle, nn.Linear(8, 8)

    def forward(self, x):
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


@pytest.mark.parametrize("middle, operators, why", [
    (Filter, ["_fft_r2c"], "a Fourier transform"), (Spectrogram, ["_fft_r2c"], "a Fourier transform"),
    (Rotation, ["polar", "view_as_complex"], "complex numbers"), (Products, ["complex"], "complex numbers"),
    (Solve, ["linalg_cholesky_ex", "linalg_solve_triangular", "linalg_inv_ex", "_linalg_slogdet"], "LAPACK"),
    (Spectrum, ["_linalg_eigh", "_linalg_svd"], "LAPACK")])
def test_the_operators_are_named_and_the_neighbours_stay(middle, operators, why):
    torch.manual_seed(0)
    first = ["torch"] * (middle is Rotation)  # what depends on no parameter
    result = check(Around(middle()), torch.randn(4, 8), pieces=first + ["segue", "torch", "segue"], tolerance=1e-4,
                   named=r"operator aten\.\w+\.\w+ in module 'middle' at \S*test_lacking\.py:\d+ is not supported")
    said = "\n".join(reason for s in result.segments for reason in s.reasons)
    assert set(operators) <= set(re.findall(r"operator aten\.(\w+)", said)) and why in said, said


def test_they_are_errors_by_name_where_nothing_falls_back():
    model, x = Around(Filter()), torch.randn(4, 8)
    with pytest.raises(Exception, match="aten._fft_r2c.default in module 'middle'.*a Fourier transform"):
        torch.compile(model, backend="segue", options={"fallback": "error"})(x)
    with pytest.raises(segue.UnsupportedOpError, match="aten.fft_rfft.default in module 'middle'.*a Fourier transform"):
        segue.compile(model, (x,))
