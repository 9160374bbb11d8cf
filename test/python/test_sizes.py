# ===- test_sizes.py - batches of other extents in a trainer ----------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""A last batch with fewer rows, and other lengths, train and are evaluated as in PyTorch."""

import copy

import pytest
import torch
import torch.nn.functional as F
from compare import assert_close, losses_close
from test_trainer import Back, Front, Regression, data, trainer_of
from torch import nn

import segue


def test_partial_batches_train_as_in_torch(caplog):
    """Two stitched modules: what the first gives has other extents, too."""
    front, back = Front(), Back()
    reference = copy.deepcopy((front, back))
    (x, y), = data(1)
    adamw = segue.AdamW(lr=1e-2, weight_decay=0.1)
    trainer = segue.Trainer({"front": segue.compile(front, x), "back": segue.compile(back, (torch.zeros(8, 6), y))},
                            optimizer=adamw, clip_grad_norm=0.5)
    parameters = [p for m in reference for p in m.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)
    batches = [data(1, rows, seed)[0] for seed, rows in enumerate((8, 8, 3, 8, 8, 3, 1))]
    losses = trainer.fit({"x": x, "y": y} for x, y in batches)
    expected = []
    for x, y in batches:
        loss = reference[1](reference[0](x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    losses_close(losses, expected)
    for actual, wanted in zip((p for m in (front, back) for p in m.parameters()), parameters):
        assert_close(actual, wanted)
    assert caplog.text.count("compiling one more variant") == 4  # 3 rows and 1 row, two modules; each once
    (x, y), = data(1, 5)
    assert_close(trainer.evaluate(x=x, y=y)["loss"], reference[1](reference[0](x), y))
    loss, gradients = trainer.gradients(x=x, y=y)
    total = reference[1](reference[0](x), y)
    total.backward()
    assert loss == pytest.approx(total.item(), rel=1e-5)
    assert_close(gradients["front.h.weight"], reference[0].h.weight.grad)


class Lengths(nn.Module):

    def __init__(self):
        super().__init__()
        self.table, self.drop = nn.Embedding(11, 8), nn.Dropout(0.5)

    def forward(self, tokens, targets):
        h = self.table(tokens)
        h = F.scaled_dot_product_attention(h, h, h, is_causal=True)
        return F.cross_entropy((self.drop(h) @ self.table.weight.T).flatten(0, 1), targets.flatten())


def test_lengths_in_micro_batches():
    """Other lengths and rows in both micro-batches; dropout drops as when the module was compiled."""

    def batch(rows, length):
        return {"tokens": torch.randint(0, 11, (rows, length)), "targets": torch.randint(0, 11, (rows, length))}

    model = Lengths()
    compiled = segue.compile(model, batch(2, 6))
    trainer = segue.Trainer([compiled], optimizer=segue.SGD(lr=0.5), grad_accumulation=2)
    trainer.step(**batch(4, 6))
    model.eval()
    given = batch(6, 9)
    first, second = (trainer.gradients(**{n: t[:3] for n, t in given.items()})[0] for _ in range(2))
    assert first == second  # of one step, so of one mask
    dropped = [trainer.step(lr=0.0, **given) for _ in range(2)]
    assert dropped[0] != dropped[1] and abs(dropped[0] - model(**given).item()) > 1e-3
    assert trainer.evaluate(**batch(3, 4))["loss"].isfinite()
    state = trainer.state_dict()
    losses = [trainer.step(**given), trainer.step(**batch(4, 6))]
    trainer.load_state_dict(state)
    assert trainer.step(**given) == losses[0]


def test_what_is_refused(tmp_path):
    trainer = trainer_of(Regression(), device="sim:dram=8MiB,pinned=8MiB,link=4GB/s,latency=2us",
                         config={"memory": {"conductor": {"vram_cap_mb": 4}, "stagehand": {"telemetry_enabled": False, "vram_high_watermark_mb": 2, "vram_low_watermark_mb": 1}}})
    (x, y), (few, few_y) = data(1)[0], data(1, 3)[0]
    trainer.step(x=x, y=y)
    with pytest.raises(segue.Error, match="memory services know the programs of one set of extents"):
        trainer.step(x=few, y=few_y)
    trainer.step(x=x, y=y)

    compiled = segue.compile(Regression(), (x, y), max_variants=2)
    trainer = segue.Trainer([compiled], optimizer=segue.SGD(lr=0.1))
    trainer.step(x=few, y=few_y)
    trainer.step(x=x, y=y)
    with pytest.raises(segue.InvalidArgumentError, match=r"x: \[2, 4\], y: \[2, 2\]: the modules are there for 2 sets"):
        trainer.step(x=few[:2], y=few_y[:2])
    with pytest.raises(segue.LayoutMismatchError):  # the model refuses it
        trainer_of(Regression()).step(x=x[:, :3], y=y)
    compiled.save(tmp_path / "m.segue", weights=True)
    loaded = segue.load(tmp_path / "m.segue", tmp_path / "m.safetensors", allow_native_kernels=True)
    assert loaded(x, y).isfinite()
