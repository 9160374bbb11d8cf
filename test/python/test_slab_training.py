"""Models whose frozen weights come from a slab; every command of the guide."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import warm
from safetensors.torch import load_file, save_file

import segue

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "examples"))
from models import GPT, GPTConfig, add_lora  # noqa: E402

BIN = ROOT / "build" / "bin"
SEGUE_RUN = os.environ.get("SEGUE_RUN") or str(BIN / "segue-run")
CONFIG = GPTConfig(layers=2, dim=128, heads=4, seq=64)
GUIDE = (ROOT / "docs" / "guides" / "squareq.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", GUIDE, re.M | re.S)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a checkpoint and its slab, and the model of the checkpoint."""
    folder = tmp_path_factory.mktemp("slab")
    torch.manual_seed(0)
    model = GPT(CONFIG)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module.bias is not None:
            torch.nn.init.normal_(module.bias)
    save_file(model.state_dict(), folder / "model.safetensors")
    subprocess.run([SEGUE_RUN, "quantize", folder / "model.safetensors", "-o", folder / "slab"], check=True, timeout=60)
    return folder, model


def dequantised(folder, name):
    slab = load_file(folder / "slab.safetensors")
    return slab[f"{name}.qweight"].float() * slab[f"{name}.scale"][:, None]


def test_loads_what_the_slab_holds_and_the_rest_from_the_checkpoint(made):
    folder, source = made
    model = GPT(CONFIG)
    report = segue.squareq.load(model, folder / "slab", checkpoint=folder / "model.safetensors")
    original = source.state_dict()
    layers = {layer["canonical_name"] for layer in json.loads((folder / "slab.manifest.json").read_text())["layers"]}
    assert len(layers) == 9 and report.unchanged == () and report.unused == () and report.notes == ()
    assert set(report.from_slab) == {f"{n}.{part}" for n in layers for part in ("weight", "bias")} - {"last.head.bias"}
    for name, value in model.state_dict().items():
        layer, part = name.rsplit(".", 1)
        expected = dequantised(folder, layer) if layer in layers and part == "weight" else original[name]
        assert torch.equal(value, expected), name


def test_parameters_of_sixteen_bits_are_rounded_once(made):
    folder, _ = made
    model = GPT(CONFIG).to(torch.bfloat16)
    segue.squareq.load(model, folder / "slab")
    name = "first.h.0.fc"
    assert torch.equal(model.state_dict()[f"{name}.weight"], dequantised(folder, name).to(torch.bfloat16))


def test_without_a_checkpoint_the_rest_stays(made):
    folder, _ = made
    model = GPT(CONFIG)
    before = model.first.wte.weight.detach().clone()
    report = segue.squareq.load(model, folder / "slab.safetensors")
    assert "first.wte.weight" in report.unchanged and report.from_checkpoint == ()
    assert torch.equal(model.first.wte.weight, before)


def test_another_model_is_refused_and_unchanged(made):
    folder, _ = made
    for config in (GPTConfig(layers=3, dim=128, heads=4, seq=64), GPTConfig(layers=2, dim=64, heads=4, seq=64)):
        model = GPT(config)
        before = {n: t.clone() for n, t in model.state_dict().items()}
        with pytest.raises(segue.Error, match="check 7 of the slab failed") as caught:
            segue.squareq.load(model, folder / "slab", checkpoint=folder / "model.safetensors")
        assert caught.value.code == "SLAB_INVALID"
        assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_a_checkpoint_that_lacks_something_is_refused(made, tmp_path):
    folder, source = made
    state = source.state_dict()
    del state["first.wpe.weight"]
    save_file(state, tmp_path / "less.safetensors")
    with pytest.raises(segue.MissingWeightError, match="first.wpe.weight: not there"):
        segue.squareq.load(GPT(CONFIG), folder / "slab", checkpoint=tmp_path / "less.safetensors")


def test_damaged_bytes_come_from_the_checkpoint_or_stop_the_load(made, tmp_path):
    folder, source = made
    for end in ("safetensors", "manifest.json"):
        (tmp_path / f"slab.{end}").write_bytes((folder / f"slab.{end}").read_bytes())
    from safetensors import safe_open

    with safe_open(tmp_path / "slab.safetensors", "pt") as file:
        codes = file.get_tensor("first.h.0.fc.qweight").numpy().tobytes()
    data = bytearray((tmp_path / "slab.safetensors").read_bytes())
    data[data.find(codes) + 7] ^= 1
    (tmp_path / "slab.safetensors").write_bytes(data)
    with pytest.raises(segue.Error, match="no checkpoint to serve it from") as caught:
        segue.squareq.load(GPT(CONFIG), tmp_path / "slab")
    assert caught.value.code == "CHECKSUM_MISMATCH"
    model = GPT(CONFIG)
    report = segue.squareq.load(model, tmp_path / "slab", checkpoint=folder / "model.safetensors")
    assert report.telemetry["crc_failures"] == 1
    assert torch.equal(model.first.h[0].fc.weight, source.first.h[0].fc.weight)
    with pytest.raises(segue.Error, match="first.h.0.fc.qweight"):
        segue.squareq.load(GPT(CONFIG), tmp_path / "slab", verify="full")
    with pytest.raises(segue.InvalidArgumentError, match='verify is "often"'):
        segue.squareq.load(GPT(CONFIG), tmp_path / "slab", verify="often")


# --- products of codes ---------------------------------------------------------------------


ADAPTED = ("qkv", "proj", "fc", "out")


def lora(folder):
    """Adapters on the base that the slab holds, dequantised; the same ones each time."""
    model = GPT(CONFIG)
    segue.squareq.load(model, folder / "slab", checkpoint=folder / "model.safetensors")
    torch.manual_seed(1)
    return add_lora(model, rank=4, names=ADAPTED)


def batches(count):
    generator = torch.Generator().manual_seed(2)
    for _ in range(count):
        tokens = torch.randint(0, CONFIG.vocab, (4, CONFIG.seq + 1), generator=generator)
        yield {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}


def trainer_of(model, slab=None, storage=None, device="cpu"):
    adamw, batch = segue.AdamW(lr=1e-2), next(batches(1))
    compiled = segue.compile(model, (batch["tokens"], batch["targets"]), optimizer=adamw, frozen_storage=storage, device=device)
    trainer = segue.Trainer([compiled], optimizer=adamw)
    taken = trainer.load_slab(slab, aliases=[(f"{name}.base", name) for name in ADAPTED]) if slab else []
    return trainer, taken


@pytest.mark.parametrize("device", ["cpu", "sim:dram=256MiB,link=16GB/s"])
def test_lora_trains_on_codes_as_on_the_dequantised_base(made, device):
    folder, _ = made
    steps = 8
    plain, _ = trainer_of(lora(folder))
    before = plain.fused_calls
    loss, gradients = plain.gradients(**next(batches(1)))
    expected = plain.fit(batches(steps))
    assert plain.fused_calls == before
    fused, taken = trainer_of(lora(folder), folder / "slab", "int8_row", device)
    assert len(taken) == 9 and any("qkv" in key for key in taken)
    before = fused.fused_calls
    other_loss, other_gradients = fused.gradients(**next(batches(1)))
    # Two blocks of four layers and the head, forward and backward; the first layer's x has no derivative but for its adapter.
    assert fused.fused_calls - before == 17
    assert other_loss == pytest.approx(loss, rel=1e-6)
    for key, gradient in gradients.items():
        assert (other_gradients[key] - gradient).norm() <= 2e-5 * gradient.norm(), key
    assert fused.fit(batches(steps)) == pytest.approx(expected, rel=2e-6)
    assert fused.fused_calls - before == 17 * (steps + 1)
    values, trained = fused.parameters(), {p.key for p in plain._session.parameters if p.trained}
    for key, value in plain.parameters().items():
        if key in trained:
            assert (values[key] - value).norm() <= 0.02 * value.norm(), key
        else:
            assert torch.equal(values[key], value), key  # W' to the bit


@pytest.mark.parametrize("scheme, storage", [("fp8_e4m3_row", "fp8_e4m3_row"), ("int4_group", "int4_group64")])
def test_lora_trains_on_other_codes(made, tmp_path, scheme, storage):
    folder, _ = made
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    subprocess.run([SEGUE_RUN, "quantize", tmp_path / "model.safetensors", "-o", tmp_path / "slab", "--scheme", scheme],
                   check=True, timeout=60)
    expected = trainer_of(lora(tmp_path))[0].fit(batches(8))
    fused, taken = trainer_of(lora(tmp_path), tmp_path / "slab", storage)
    before = fused.fused_calls
    assert fused.fit(batches(8)) == pytest.approx(expected, rel=2e-6)
    assert len(taken) == 9 and fused.fused_calls - before == 8 * 17


def streamed(folder, records, storage="int8_row", aliases=True, **squareq):
    adamw, batch = segue.AdamW(lr=1e-2), next(batches(1))
    compiled = segue.compile(lora(folder), (batch["tokens"], batch["targets"]), optimizer=adamw, frozen_storage=storage)
    stagehand = {"squareq_slab_path": str(folder / "slab.safetensors"), "squareq_manifest_path": str(folder / "slab.manifest.json"),
                 "prefetch_window_blocks": 1, "telemetry_file": str(records), "squareq": squareq}
    return segue.Trainer([compiled], optimizer=adamw, device="sim:dram=64MiB,pinned=64MiB,link=16GB/s",
                         config={"memory": {"stagehand": stagehand}},
                         aliases=[(f"{name}.base", name) for name in ADAPTED] if aliases else [])


def test_codes_are_streamed_from_the_slab_of_a_config(made, tmp_path):
    folder, _ = made
    resident, _ = trainer_of(lora(folder), folder / "slab", "int8_row")
    expected = resident.fit(batches(4))
    run = streamed(folder, tmp_path / "weights.jsonl", serve="fused")
    assert len(run._session.slab_parameters) == 9
    assert run.fit(batches(4)) == expected
    lines = [json.loads(line) for line in (tmp_path / "weights.jsonl").read_text().splitlines()]
    assert len(lines) == 4 and all(line["fused_calls"] > 0 for line in lines)
    # A block's codes, with a scale per row; the first step brings both blocks.
    codes = sum(rows * (columns + 4) for rows, columns in ((384, 128), (128, 128), (512, 128), (128, 512)))
    assert lines[0]["squareq_blocks_served"] == lines[0]["loads"] >= 2
    assert sum(line["squareq_bytes_h2d"] for line in lines[1:]) == codes * sum(line["loads"] for line in lines[1:])


def test_a_slab_that_does_not_fit_is_refused(made, tmp_path):
    folder, _ = made
    with pytest.raises(segue.Error, match='the program wants "first.h.0.fc.base.weight", which the slab does not hold') as caught:
        streamed(folder, tmp_path / "weights.jsonl", aliases=False)
    assert caught.value.code == "SLAB_INVALID"
    with pytest.raises(segue.ConfigError, match="serve: fused needs programs whose products read codes"):
        streamed(folder, tmp_path / "weights.jsonl", storage=None, serve="fused")
    # The same for one that is loaded.
    trainer, _ = trainer_of(lora(folder))
    before = trainer.parameters()["first.h.0.fc.base.weight"].clone()
    with pytest.raises(segue.Error, match='the slab holds "first.h.0.fc", which the program does not want') as caught:
        trainer.load_slab(folder / "slab")
    assert caught.value.code == "SLAB_INVALID"
    assert torch.equal(trainer.parameters()["first.h.0.fc.base.weight"], before)


def test_codes_are_for_a_trainer(made):
    folder, _ = made
    batch = next(batches(1))
    compiled = segue.compile(lora(folder), (batch["tokens"], batch["targets"]), frozen_storage="int8_row")
    with pytest.raises(segue.Error, match="int8_row"):
        compiled(batch["tokens"], batch["targets"])
    with pytest.raises(segue.Error, match="`frozen-storage` is `int7`"):
        segue.compile(lora(folder), (batch["tokens"], batch["targets"]), frozen_storage="int7").build()


# --- the example and the guide -------------------------------------------------------------


def environment():
    return os.environ | {
        "PATH": os.pathsep.join([str(Path(SEGUE_RUN).parent), str(Path(warm.python()).parent), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "examples"), *sys.path]),
        "SEGUE_RUN": SEGUE_RUN,
    }


def test_lora_on_a_slab(tmp_path):
    done = subprocess.run([warm.python(), ROOT / "examples" / "lora_slab.py", "--out", tmp_path, "--base-steps", "60", "--steps", "40",
                           "--dim", "64"], capture_output=True, text=True, timeout=300, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    base, quantised = map(float, re.search(r"loss of the base ([\d.]+), of the quantised base ([\d.]+)", done.stdout).groups())
    assert base != quantised and abs(base - quantised) < 0.02
    start, end = (float(re.search(pattern, done.stdout)[1]) for pattern in (r"at step 0: ([\d.]+), equal to the bit", r"after 40 steps: ([\d.]+)"))
    assert start == quantised and end < start - 0.05
    assert re.search(r"frozen tensors changed: 0 of \d+; slab as it was", done.stdout)
    adapters = load_file(tmp_path / "adapters.safetensors")
    assert len(adapters) == 16 and all(name.endswith((".a.weight", ".b.weight")) for name in adapters)
    assert all(tensor.abs().max() > 0 for tensor in adapters.values())


COMMANDS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines() if line]


def test_the_guide_has_commands():
    assert len(COMMANDS) >= 12 and COMMANDS[0] == "segue-run quantize model.safetensors -o slab"


def test_every_command_of_the_guide(made, tmp_path):
    folder, _ = made
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    for command in COMMANDS:
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", command.replace("{examples}", str(ROOT / "examples"))],
                              cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, command + "\n" + done.stdout + done.stderr
        if "replay" in command:
            assert json.loads(done.stdout)["qweight"] == [[127, -64, 32, 0]]
        if command.endswith("-o slab"):
            # The figures depend on the weights, the rest is what the guide shows.
            shown = next(text for kind, text in re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, re.M | re.S) if text.startswith("slab.safetensors"))
            figures = re.compile(r"\d[\d.]+")
            assert figures.sub("#", done.stdout) == figures.sub("#", shown)
    for text in [text for kind, text in BLOCKS if kind == "python"]:
        done = subprocess.run([warm.python(), "-c", text], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        assert "first.h.0.qkv.weight" in done.stdout


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)\)", GUIDE))
def test_link(link):
    assert (ROOT / "docs" / "guides" / link).exists()
