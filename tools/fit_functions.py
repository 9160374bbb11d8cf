#!/usr/bin/env python3
# ===- fit_functions.py - polynomials for the functions that have no kernel ------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Prints the polynomials of python/segue/frontend/decompositions/fits.py.

    .venv/bin/python tools/fit_functions.py > python/segue/frontend/decompositions/fits.py

Each is the Chebyshev interpolant of a smooth function over an interval, cut where it is exact to 1e-17, as powers of the
variable that runs from -1 to 1 there. mpmath, which PyTorch brings along, computes the functions.
"""

from mpmath import mp, mpf

mp.dps = 40
EXACT = mpf("2e-17")


def interpolant(function, low, high, count=48):
    """Chebyshev coefficients over [low, high], as few as are exact to EXACT of the largest."""
    low, high = mpf(low), mpf(high)
    nodes = [mp.cos(mp.pi * (k + mpf(1) / 2) / count) for k in range(count)]
    values = [function((high - low) / 2 * u + (high + low) / 2) for u in nodes]
    found = [2 * mp.fsum(v * mp.cos(mp.pi * j * (k + mpf(1) / 2) / count) for k, v in enumerate(values)) / count
             for j in range(count)]
    found[0] /= 2
    bound = EXACT * max(map(abs, values))
    while abs(found[-1]) < bound:
        found.pop()
    assert len(found) < count - 2, (function.__name__, len(found))
    return found


def powers(coefficients):
    """The same polynomial as coefficients of powers, from the constant one."""
    before, now = [mpf(1)], [mpf(0), mpf(1)]
    total = [mpf(0)] * len(coefficients)
    for c in coefficients:
        for i, p in enumerate(before):
            total[i] += c * p
        following = [mpf(0)] + [2 * p for p in now]
        for i, p in enumerate(before):
            following[i] -= p
        before, now = now, following
    return total


def atan(z):
    return mp.atan(mp.sqrt(z)) / mp.sqrt(z)


def erfcx(t):
    x = ERFCX_CENTRE * (1 + t) / (1 - t)
    value = mp.erfc(x) * mp.exp(x * x) if x < 100 else mp.nsum(
        lambda n: (-1) ** int(n) * mp.fac2(2 * int(n) - 1) / (2 * x * x) ** int(n), [0, 12]) / (x * mp.sqrt(mp.pi))
    return value * (1 + 2 * x)


ERFCX_CENTRE = mpf("3.75")


def erfinv_of_log(w):
    """erfinv(x) / x where w = -log(1 - x^2)."""
    if w == 0:
        return mp.sqrt(mp.pi) / 2
    x = mp.sqrt(-mp.expm1(-w))
    if w < 8:
        return mp.erfinv(x) / x
    q = mp.exp(-w) / (1 + x)
    y = mp.sqrt(-mp.log(q * mp.sqrt(-mp.log(q) * mp.pi)))
    for _ in range(60):  # Newton's, on the logarithm, with the continued fraction of erfc
        c = mp.erfc(y)
        step = (mp.log(c) - mp.log(q)) / (2 / mp.sqrt(mp.pi) * mp.exp(-y * y) / c)
        y += step
        if abs(step) < mpf("1e-36"):
            break
    return y / x


def lgamma(x):
    if abs(x - 1) < mpf("1e-15") or abs(x - 2) < mpf("1e-15"):
        x += mpf("1e-15")
    return mp.loggamma(x) / ((x - 1) * (x - 2))


def near_zero(order):
    """exp(-x) I(x) / x^order."""
    def function(x):
        return mp.exp(-x) * (mp.besseli(0, x) if order == 0 else mp.besseli(1, x) / x if x else mpf(1) / 2)
    return function


def far(order):
    """sqrt(x) exp(-x) I(x) by z = 1 / x."""
    return lambda z: mp.sqrt(1 / z) * mp.exp(-1 / z) * mp.besseli(order, 1 / z) if z else 1 / mp.sqrt(2 * mp.pi)


FITS = [
    ("ATAN", "atan(sqrt(z)) / sqrt(z)", atan, 0, mp.tan(mp.pi / 8) ** 2),
    ("ERFCX", "erfcx(x) (1 + 2 x) by t = (x - 3.75) / (x + 3.75)", lambda t: erfcx(t) if t < 1 else 2 / mp.sqrt(mp.pi), -1, 1),
    ("ERFINV_NEAR", "erfinv(x) / x by w = -log(1 - x^2)", erfinv_of_log, 0, mpf("6.25")),
    ("ERFINV_FAR", "erfinv(x) / x by sqrt(w)", lambda s: erfinv_of_log(s * s), mpf("2.5"), mpf("6.25")),
    ("ERFINV_FARTHEST", "erfinv(x) / x by sqrt(w)", lambda s: erfinv_of_log(s * s), mpf("6.25"), mpf("27.5")),
    ("LGAMMA", "lgamma(x) / ((x - 1) (x - 2))", lgamma, 1, 3),
    ("I0_NEAR", "exp(-x) I0(x)", near_zero(0), 0, 8),
    ("I0_FAR", "sqrt(x) exp(-x) I0(x) by 1 / x", far(0), 0, mpf(1) / 8),
    ("I1_NEAR", "exp(-x) I1(x) / x", near_zero(1), 0, 8),
    ("I1_FAR", "sqrt(x) exp(-x) I1(x) by 1 / x", far(1), 0, mpf(1) / 8),
]

HEADER = '''# ===- fits.py - polynomials for the functions that have no kernel ----------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Polynomials for the functions that have no kernel. tools/fit_functions.py writes this file; do not edit it."""

from .approximations import Fit
'''


def main():
    print(HEADER)
    for name, what, function, low, high in FITS:
        found = powers(interpolant(function, low, high))
        lines, line = [], "   "
        for number in (repr(float(c)) + "," for c in found):
            if len(line) + len(number) > 118:
                lines.append(line)
                line = "   "
            line += f" {number}"
        body = "\n".join([*lines, line])
        print(f"#: {what}\n{name} = Fit({float(low)!r}, {float(high)!r}, (\n{body}\n))")


if __name__ == "__main__":
    main()
