# ===- many_pads.py - a sum of many pads, as IR ------------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Writes a function that adds up pads of four elements each, those at even places first, with so many zeros between neighbours."""

import argparse

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--count", type=int, required=True)
parser.add_argument("--gap", type=int, required=True)
given = parser.parse_args()
step = 4 + given.gap
extent = given.count * step - given.gap
whole = f"tensor<{extent}xf32>"
print(f"func.func @forward(%x: tensor<4xf32>) -> {whole} {{")
for number, place in enumerate([*range(0, given.count, 2), *range(1, given.count, 2)]):
    low = place * step
    print(f"  %p{number} = segue.pad %x low [{low}] high [{extent - 4 - low}] interior [0] value 0.0 : f32 : tensor<4xf32> -> {whole}")
for number in range(1, given.count):
    print(f"  %s{number} = segue.add %{'p0' if number == 1 else f's{number - 1}'}, %p{number} : {whole}")
print(f"  return %s{given.count - 1} : {whole}\n}}")
