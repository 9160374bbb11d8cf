# ===- test_profiling.py - where training steps go -----------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`Trainer.profile`: every command with its costs and limit, in every mode; it trains as `step` does, and refuses what is none; and its guide."""

import contextlib
import copy
import io
import json
import re
from pathlib import Path

import pytest
import torch
from test_trainer import Back, Front, Regression, data, trainer_of

import segue

FILE = {"version": 1, "flops": "10GFLOP/s", "membw": "2GB/s"}


@pytest.fixture
def spec(tmp_path):
    """A device whose speeds are those of a file, so that no test measures."""
    path = tmp_path / "here.json"
    path.write_text(json.dumps(FILE))
    return f"cpu:threads=1,profile={path}"


def pair(**options):
    return [segue.compile(Front(), (data(1)[0][0],), name="front"), segue.compile(Back(), (torch.zeros(8, 6), data(1)[0][1]), name="back")]


def weights(trainer):
    trainer.sync()
    return {key: value.clone() for key, value in trainer.state_dict().items() if isinstance(value, torch.Tensor)}


def test_the_table_has_every_command_beside_its_limit(spec):
    trainer = trainer_of(Regression(), optimizer=segue.AdamW(lr=0.1), device=spec)
    found = trainer.profile(data(4), steps=3)
    assert (found.steps, len(found.losses), trainer.step_count) == (2, 3, 3)  # the first one warms up
    assert (found.device, found.threads, found.flops_per_second, found.bytes_per_second) == (spec, 1, 10e9, 2e9)
    assert spec.endswith(found.speed_from)
    assert {row.program for row in found.rows} == {"forward", "backward", "grad_norm", "optimizer"}
    for row in found.rows:
        assert row.calls == 2 and row.seconds > 0 and row.bytes > 0
        assert row.limit_seconds == pytest.approx(max(row.flops / 10e9, row.bytes / 2e9))
        assert row.reached == pytest.approx(row.limit_seconds / row.seconds)
        assert row.bound_by == ("products" if row.flops / 10e9 > row.bytes / 2e9 else "memory")
    assert [row.seconds for row in found.rows] == sorted((row.seconds for row in found.rows), reverse=True)
    product = next(row for row in found.rows if row.kind == "Matmul" and row.program == "forward")
    batch, rows, summed, columns = map(int, product.label.removeprefix("matmul ").split("x"))
    assert product.flops == 2 * 2 * batch * rows * summed * columns
    assert "test_trainer.py:" in product.location
    assert sum(row.seconds for row in found.rows) + found.between_seconds == pytest.approx(found.seconds)
    assert found.product_share + found.other_share + found.between_share == pytest.approx(1)
    assert sum(kind.calls for kind in found.kinds) == sum(row.calls for row in found.rows)


def test_it_is_shown_as_text_html_and_json(spec):
    trainer = trainer_of(Regression(), optimizer=segue.SGD(lr=0.1), device=spec)
    found = trainer.profile(data(1), steps=1)  # the only step counts
    assert found.steps == 1
    text, page = repr(found), found._repr_html_()
    assert text.startswith(f"{spec}, 1 thread: products 10.0 GFLOP/s, memory 2.0 GB/s (") and "\n1 step of " in text
    assert "limit ms  bound by  reached  command" in text and re.search(r"between commands [\d.]+%: [\d.]+ ms per step", text.splitlines()[-1])
    assert page.count("<tr>") == len(found.rows) + 1 and "<script" not in page and "between commands" in page
    again = json.loads(found.to_json())
    assert again["losses"] == found.losses and len(again["commands"]) == len(found.rows) and "text" not in again


def test_html_is_escaped(spec):
    trainer = trainer_of(Regression(), optimizer=segue.SGD(lr=0.1), device=spec)
    found = trainer.profile(data(1), steps=1)
    object.__setattr__(found.rows[0], "location", "<b>&")
    assert "&lt;b&gt;&amp;" in found._repr_html_() and "<b>" not in found._repr_html_()


@pytest.mark.parametrize("options", [
    {}, {"device": "sim:dram=64MiB,link=16GB/s"}, {"device": "sim:streams,dram=64MiB,pinned=1MiB,adversarial=4"}, {"grad_accumulation": 2, "clip_grad_norm": 1.0},
], ids=["cpu", "sim", "streams", "accumulated"])
def test_a_profile_trains_as_steps_do(options):
    model = Regression()
    twin = copy.deepcopy(model)
    batches = data(5, 16)
    rows = 16 // options.get("grad_accumulation", 1)
    make = lambda m: trainer_of(m, optimizer=segue.AdamW(lr=0.05), rows=rows, **options)  # noqa: E731
    profiled, plain = make(model), make(twin)
    found = profiled.profile(iter(batches[:4]), steps=4)
    losses = [plain.step(x=x, y=y) for x, y in batches[:4]]
    assert found.losses == losses and found.steps == 3
    # Behind it, too.
    assert profiled.step(*batches[4]) == plain.step(*batches[4])
    one, other = weights(profiled), weights(plain)
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_modules_have_names_and_batches_that_are_few_are_no_error(spec):
    front, back = pair()
    trainer = segue.Trainer([front, back], optimizer=segue.SGD(lr=0.1), device=spec)
    trainer.step(x=data(1)[0][0], y=data(1)[0][1])
    found = trainer.profile([{"x": x, "y": y, "text": "left out"} for x, y in data(2)], steps=30)
    assert found.steps == 2 and {"front.forward", "back.backward"} <= {row.program for row in found.rows}
    assert trainer.profile(["ab"], steps=1, to_batch=lambda _: data(1)[0]).steps == 1


@pytest.mark.parametrize("batches, options, said", [
    ([], {}, "no batch"),
    (iter([]), {}, "no batch"),
    (data(1), {"steps": 0}, "steps is 0"),
    (data(1), {"steps": True}, "steps is True"),
    (data(1), {"steps": 1.5}, "steps is 1.5"),
    (dict(zip("xy", data(1)[0])), {}, "a dict was given"),
    (data(1)[0][0], {}, "a Tensor was given"),
    (3, {}, "a int was given"),
])
def test_what_is_no_profile_is_refused(spec, batches, options, said):
    trainer = trainer_of(Regression(), optimizer=segue.SGD(lr=0.1), device=spec)
    with pytest.raises(segue.InvalidArgumentError, match=said):
        trainer.profile(batches, **options)
    assert trainer.step_count == 0


def test_an_error_ends_the_profile_and_the_next_one_begins_anew(spec):
    trainer = trainer_of(Regression(), optimizer=segue.SGD(lr=0.1), device=spec)
    trainer.step(*data(1)[0])
    with pytest.raises(segue.Error):
        trainer.profile([data(1)[0], {"x": torch.zeros(8, 3), "y": data(1)[0][1]}])
    assert trainer.step_count == 2
    assert all(row.calls == 1 for row in trainer.profile(data(1), steps=1).rows)


def test_one_profile_at_a_time(spec):
    trainer = trainer_of(Regression(), optimizer=segue.SGD(lr=0.1), device=spec)
    trainer.step(*data(1)[0])
    errors = []

    def again(batch):
        with pytest.raises(segue.InvalidArgumentError, match="timed already") as caught:
            trainer.profile(data(1), steps=1)
        errors.append(caught)
        return batch

    trainer.profile(data(2), steps=2, to_batch=again)
    assert len(errors) == 2


def test_a_profile_that_is_no_file_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(segue.FileError, match="none.json"):
        trainer_of(Regression(), optimizer=segue.SGD(lr=0.1), device=f"cpu:profile={tmp_path / 'none.json'}")


def test_speeds_are_measured_where_none_are_given():
    trainer = trainer_of(Regression(), optimizer=segue.SGD(lr=0.1))
    found = trainer.profile(data(1), steps=1)
    assert found.speed_from.endswith(", measured in 1 s") and found.flops_per_second > 1e8 and found.bytes_per_second > 1e8


def test_the_guide_runs():
    guide = (Path(__file__).parents[2] / "docs/guides/profiling.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", guide, re.S)
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(compile(code, "profiling.md", "exec"), {"__name__": "guide"})
    assert "between commands" in shown.getvalue() and "of its limit, by" in shown.getvalue()
