# ===- together.py - cases of op_cases.py that are compiled a dozen at a time ----------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Compiles a dozen cases as one function, and compares each by itself with PyTorch.

Tracing a function of one operator costs ten times what the operator adds to it. So the first test of a group has the group compiled
and run, and each test compares the values and gradients of its own case. If a group cannot be compiled or run, each of its cases is
compiled alone, so that the test that fails is that of the case at fault.
"""

import torch
from compare import Expected, flat, leaves, weighted_sum
from op_cases import Case

TOGETHER = 12


def joined(group):
    """One case of several: all inputs, and all results in their order."""
    functions = [(case.function, len(case.inputs)) for case in group]

    def function(*tensors):
        results = []
        for each, count in functions:
            results += flat(each(*tensors[:count]))
            tensors = tensors[count:]
        return tuple(results)

    return Case(", ".join(case.name for case in group), function, tuple(maker for case in group for maker in case.inputs), group[0].tolerance)


def dozens(cases):
    return [cases[i : i + TOGETHER] for i in range(0, len(cases), TOGETHER)]


class Together:
    """Groups of `cases`. `make(function, inputs)` compiles a function of tensors; with `inference`, it is called without gradients, too."""

    def __init__(self, cases, make, inference=False):
        self.cases, self.make, self.inference = cases, make, inference
        self.expected, self.group_of, self.found = {}, {}, {}

    def _divide(self):
        """Into groups which have gradients or have none, as the one way to call a function is not the other."""
        self.expected = {case.name: Expected(case, case.make()) for case in self.cases}
        for has_gradients in (False, True):
            chosen = [case for case in self.cases if self.expected[case.name].has_gradients == has_gradients]
            self.group_of |= {case.name: group for group in dozens(chosen) for case in group}

    def _run(self, group):
        """By case: its inputs with their gradients, its outputs, and its outputs of inference or None."""
        inputs = {case.name: leaves(case.make()) for case in group}
        def parts(results):
            results, divided = flat(results), {}
            for case in group:
                count = len(self.expected[case.name].outputs)
                divided[case.name], results = results[:count], results[count:]
            assert not results
            return divided

        given = [x for case in group for x in inputs[case.name]]
        compiled, inferred = self.make(joined(group).function, given), {}
        if self.inference:
            with torch.no_grad():
                inferred = parts(compiled(*given))
        outputs = parts(compiled(*given))
        total = sum(weighted_sum(outputs[name], self.expected[name].outputs) for name in outputs)
        if isinstance(total, torch.Tensor):
            total.backward()
        return {name: (inputs[name], outputs[name], inferred.get(name)) for name in outputs}

    def check(self, case):
        """Fails unless values and gradients of `case` are PyTorch's."""
        if not self.expected:
            self._divide()
        if case.name not in self.found:
            group = self.group_of[case.name]
            try:
                self.found |= self._run(group)
            except Exception:
                if len(group) == 1:
                    raise
                self.group_of |= {each.name: [each] for each in group}
                self.found |= self._run([case])
        inputs, outputs, inferred = self.found.pop(case.name)
        expected = self.expected[case.name]
        if inferred is not None:
            expected.assert_values(inferred, "inference")
        expected.assert_values(outputs)
        expected.assert_gradients(inputs)
