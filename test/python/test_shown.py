# ===- test_shown.py - what prompts and notebooks show of our objects --------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Objects at a prompt are a line, in a notebook a table; both say what is so, and no text of a user becomes HTML."""

import html.parser
import re

import pytest
import torch
from torch import nn

import segue


class Page(html.parser.HTMLParser):
    """The texts of a page by tag; what is opened must be closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        assert tag in ("p", "table", "caption", "thead", "tbody", "tr", "th", "td") and not attributes, tag
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2), nn.Flatten(0))
    module = segue.compile(Loss(model), torch.randn(8, 4), name="<b>net</b>", optimizer=segue.SGD())
    trainer = segue.Trainer([module], optimizer=segue.SGD(lr=0.25))
    trainer.step(torch.randn(8, 4))
    return trainer


class Loss(nn.Module):

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).square().mean()


def found(trained):
    module = trained.modules["0"]
    profile = trained.profile([torch.randn(8, 4)], steps=1)
    memory = module.memory("1MiB", device="sim:dram=16MiB,link=16GB/s")
    table = segue.fit_table(module._source, torch.randn(8, 4), batch_sizes=[2, 4], optimizer=segue.SGD())
    last = trained.last
    return {
        "trainer": (trained, r"Trainer\(<b>net</b>; SGD, 58 trained parameters, step \d+, on 'cpu'\)",
                    ["<b>net</b>", "SGD, lr 0.25", "58 elements of 4 parameters", "cpu", f"{last.loss:.6g}"]),
        "last": (last, rf"StepResult\(step={last.step}, loss={last.loss:.6g}, grad_norm={last.grad_norm:.6g}\)",
                 [f"step {last.step}", f"{last.loss:.6g}", f"{last.grad_norm:.6g}"]),
        "module": (module, r"Module\(\n  compiled for cpu, x: f32\[8,4\]\n[\s\S]*", ["<b>net</b>, compiled", "cpu", "x: f32[8,4]", "58", "backward"]),
        "memory": (memory, rf"Memory\(fits in 1.0 MiB: .* takes [\d.]+ \w+, smallest budget [\d.]+ \w+\)", ["unconstrained", "smallest budget", memory.held[0][0]]),
        "step": (memory.unconstrained, r"Step\(unconstrained: peak [\d.]+ \w+, [\d.e-]+ ms, out [\d.]+ \w+, in [\d.]+ \w+\)", None),
        "table": (table, r"sim:virtual[\s\S]*within[\s\S]*batch[\s\S]*smallest[\s\S]*yes[\s\S]*", ["batch", "smallest", "yes", "2", "4"]),
        "program": (module.binary.programs[0], r"<program \w+: \d+ inputs, \d+ outputs, \d+ commands, arena of \d+ bytes>", ["program forward", "4 parameter"]),
        "binary": (module.binary, r"<binary <b>net</b>: \d+ programs, \d+ bytes>", ["forward", "backward", "optimizer"]),
        "variant": (module._primary, r"<variant of <b>net</b> for x: f32\[8,4\]>", None),
        "device": (module._device, "<device cpu>", None),
        "stitching": (trained.stitch_report(), r"StitchReport\(\d+ steps, \d+ edges, \d+ inputs converted\)", None),
        "operators": (segue.supported_ops("aten.sort"), r"Operators\(\d+: \d+ lowered, \d+ decomposed, \d+ lacking\)", ["aten.sort.default", "lowered"]),
        "profile": (profile, r"cpu, \d+ threads[\s\S]*", ["share", "backward: "]),
    }


NAMES = ("trainer", "last", "module", "memory", "step", "table", "program", "binary", "variant", "device", "stitching", "operators", "profile")


def test_what_is_shown_is_short_and_true(trained):
    objects = found(trained)
    assert tuple(objects) == NAMES
    for name, (shown, pattern, words) in objects.items():
        assert re.fullmatch(pattern, repr(shown)), (name, repr(shown))
        if name not in ("module", "table", "profile"):
            assert "\n" not in repr(shown) and len(repr(shown)) < 200, name
        if words is None:
            assert not hasattr(shown, "_repr_html_"), name
            continue
        page = Page(shown._repr_html_())
        for word in words:
            assert any(word in text for text in ["".join(page.texts), *page.texts]), (name, word, page.texts)


def test_a_memory_that_does_not_fit_says_why():
    found = segue.fit(Loss(nn.Linear(64, 64)), torch.randn(8, 64), budget="10KiB", optimizer=segue.SGD())
    assert not found.fits and found.why
    assert repr(found).startswith("Memory(does not fit in 10.0 KiB: ") and found.why in repr(found)
    assert any(found.why in text for text in Page(found._repr_html_()).texts)


def test_a_module_is_shown_without_compiling_it():
    module = segue.compile(Loss(nn.Linear(4, 2)), torch.randn(3, 4))
    assert "x: f32[3,4]" in module._repr_html_() and "x: f32[3,4]" in repr(module)
    assert not module._primary.made()
    module(torch.randn(5, 4))
    assert "and 1 more" in repr(module) and "x: f32[5,4]" in module._repr_html_()


def test_a_trainer_is_shown_before_its_first_step():
    trainer = segue.Trainer([segue.compile(Loss(nn.Linear(4, 2)), torch.randn(3, 4))], optimizer=segue.SGD())
    assert "loss" not in trainer._repr_html_() and "step 0" in repr(trainer)


def test_a_loss_is_a_number(trained):
    """In a notebook it shows itself; what else a step has found is in `last`."""
    loss = trained.step(torch.randn(8, 4))
    assert type(loss) is float and loss == trained.last.loss
