"""SquareQ slabs against the formulas of the format in numpy (f32 arithmetic)
and against the file that the safetensors package writes."""

import hashlib
import json
import os
import resource
import signal
import subprocess
import time
import zlib

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

SEGUE_RUN = os.environ.get("SEGUE_RUN") or os.path.join(os.path.dirname(__file__), "../../build/bin/segue-run")


def run(*arguments):
    return subprocess.run([SEGUE_RUN, "quantize", *map(str, arguments)], capture_output=True, text=True, timeout=120)


def quantize(weight, pad_k=64):
    """qweight, scale and zero_point as SquareQ v2 defines them."""
    flat = weight.reshape(weight.shape[0], -1).astype(np.float32)
    flat = np.pad(flat, ((0, 0), (0, -flat.shape[1] % pad_k)))
    scale = np.maximum(np.abs(flat).max(1) / np.float32(127), np.float32(1e-8))
    inverse = np.float32(1) / scale
    q = np.clip(np.rint(flat * inverse[:, None]), -127, 127).astype(np.int8)
    return q, scale, np.zeros_like(scale)


def reference(model, pad_k=64):
    """The tensors of a slab of all of `model` that --max-ratio 1 lets in."""
    tensors = {}
    for name, weight in model.items():
        layer = name.removesuffix(".weight")
        if name.endswith(".weight") and weight.ndim >= 2:
            stored = dict(zip(("qweight", "scale", "zero_point"), quantize(weight, pad_k)))
            if f"{layer}.bias" in model:
                stored["bias"] = model[f"{layer}.bias"].astype(np.float32)
            if sum(value.nbytes for value in stored.values()) <= 2 * weight.size:
                tensors.update({f"{layer}.{key}": value for key, value in stored.items()})
    return tensors


def random_model(seed):
    random = np.random.default_rng(seed)
    model = {}
    for i in range(6):
        out, width = (int(v) for v in random.integers(20, 200, 2))
        kind = (np.float32, np.float16)[i % 2]
        model[f"b.{i}.fc.weight"] = (random.standard_normal((out, width)) * 10.0 ** random.integers(-6, 3)).astype(kind)
        if i % 3 == 0:
            model[f"b.{i}.fc.bias"] = random.standard_normal(out).astype(kind)
    model["conv.weight"] = random.standard_normal((32, 16, 3, 3)).astype(np.float32)
    model["b.0.fc.weight"][3] = 0
    return model


@pytest.mark.parametrize("pad_k", [1, 16, 64])
@pytest.mark.parametrize("seed", range(5))
def test_slab_is_the_file_that_v2_writes(tmp_path, seed, pad_k):
    model = random_model(seed)
    save_file(model, tmp_path / "model.safetensors")
    # Only layers that padding makes larger than bf16 are kept.
    done = run(tmp_path / "model.safetensors", "-o", tmp_path / "slab", "--pad-k", pad_k, "--max-ratio", 1,
               "--keep-bf16", "none")
    assert done.returncode == 0, done.stderr
    expected = reference(model, pad_k)
    found = load_file(tmp_path / "slab.safetensors")
    assert found.keys() == expected.keys()
    for key in expected:
        assert found[key].dtype == expected[key].dtype and found[key].shape == expected[key].shape, key
        assert found[key].tobytes() == expected[key].tobytes(), key
    save_file(expected, tmp_path / "v2.safetensors")
    assert (tmp_path / "slab.safetensors").read_bytes() == (tmp_path / "v2.safetensors").read_bytes()

    manifest = json.loads((tmp_path / "slab.manifest.json").read_text())
    assert manifest["layer_count"] == len(manifest["layers"]) == sum(".qweight" in key for key in expected) >= 5
    assert len(manifest["kept_bf16"]) == 7 - manifest["layer_count"]
    assert manifest["total_qweight_bytes"] == sum(v.nbytes for k, v in expected.items() if k.endswith(".qweight"))
    assert manifest["source_sha256"] == hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    for layer in manifest["layers"]:
        for key, digest in layer["sha256"].items():
            assert digest == hashlib.sha256(expected[key].tobytes()).hexdigest()
            assert layer["crc32"][key] == f"{zlib.crc32(expected[key].tobytes()):08x}"
    lines = sorted(f"{n[:-7]}:{w.shape[1]}:{w.shape[0]}:{n[:-6] + 'bias' in model}"
                   for n, w in model.items() if n.endswith(".weight") and w.ndim == 2)
    assert manifest["model_signature"] == hashlib.sha256("|".join(lines).encode()).hexdigest()[:16]


def test_manifest_has_the_keys_of_v2_in_their_order(tmp_path):
    save_file({"fc.weight": np.ones((64, 64), np.float32)}, tmp_path / "m.safetensors")
    assert run(tmp_path / "m.safetensors", "-o", tmp_path / "s").returncode == 0
    text = (tmp_path / "s.manifest.json").read_text()
    manifest = json.loads(text)
    assert list(manifest) == ["model_signature", "architecture_id", "quant_version", "kernel_abi_version",
                              "min_runtime_version", "layer_count", "total_qweight_bytes", "layers",
                              "source_sha256", "tool_version", "kept_bf16", "manifest_sha256"]
    hashed = json.dumps({key: value for key, value in manifest.items() if key != "manifest_sha256"}, separators=(",", ":"))
    assert manifest["manifest_sha256"] == hashlib.sha256(hashed.encode()).hexdigest()
    assert list(manifest["layers"][0]) == [
        "canonical_name", "qweight_key", "scale_key", "zero_point_key", "bias_key", "orig_shape", "packed_shape",
        "pad_k", "quant_bits", "quant_scheme", "quant_axis", "dtype_qweight", "dtype_scale", "dtype_zero_point",
        "block_id", "sha256", "crc32"]
    assert text == json.dumps(manifest, indent=2)


def test_gaussian_weights_keep_their_direction(tmp_path):
    weight = (np.random.default_rng(1).standard_normal((512, 768)) * 0.02).astype(np.float32)
    save_file({"fc.weight": weight}, tmp_path / "m.safetensors")
    done = run(tmp_path / "m.safetensors", "-o", tmp_path / "s", "--json")
    report = json.loads(done.stdout)
    slab = load_file(tmp_path / "s.safetensors")
    back = slab["fc.qweight"].astype(np.float32) * slab["fc.scale"][:, None]
    a, b = weight.ravel().astype(float), back.ravel().astype(float)
    cosine = a @ b / np.sqrt((a @ a) * (b @ b))
    assert cosine >= 0.9996
    assert report["min_cosine"] == pytest.approx(cosine, abs=1e-12)
    rmse = np.sqrt(((a - b) ** 2).sum() / (a ** 2).sum())
    assert rmse < 0.05 and report["max_rel_rmse"] == pytest.approx(rmse, rel=1e-9)
    assert (np.abs(a - b).reshape(weight.shape) <= slab["fc.scale"][:, None] * (0.5 + 2.0**-14)).all()


def test_int4_groups(tmp_path):
    torch = pytest.importorskip("torch")
    weight = np.random.default_rng(2).standard_normal((96, 130)).astype(np.float32)
    save_file({"fc.weight": weight}, tmp_path / "m.safetensors")
    assert run(tmp_path / "m.safetensors", "-o", tmp_path / "s", "--scheme", "int4_group").returncode == 0
    from safetensors.torch import load_file as load_torch
    slab = load_torch(tmp_path / "s.safetensors")
    padded = torch.nn.functional.pad(torch.from_numpy(weight), (0, 62)).view(96, 3, 64)
    scale = (padded.abs().amax(2) / 7).to(torch.bfloat16)
    q = torch.round(padded / scale.float()[:, :, None]).clamp(-8, 7).to(torch.int32).view(96, 192) & 15
    assert torch.equal(slab["fc.wscales"], scale.t().contiguous())
    assert torch.equal(slab["fc.qweight"], (q[:, 0::2] | q[:, 1::2] << 4).to(torch.uint8))


def test_a_trained_checkpoint(tmp_path):
    """A small torch model with every kind of parameter, in bf16."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    torch.manual_seed(0)
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(128, 4, 256), 2).to(torch.bfloat16)
    save_torch(dict(model.state_dict()), tmp_path / "m.safetensors")
    done = run(tmp_path / "m.safetensors", "-o", tmp_path / "s", "--json")
    assert done.returncode == 0, done.stderr
    names = {n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    report = json.loads(done.stdout)
    assert {layer["name"] for layer in report["per_layer"]} == names
    assert report["min_cosine"] > 0.9996
    slab = load_file(tmp_path / "s.safetensors")
    for name in names:
        q, scale, _ = quantize(model.get_submodule(name).weight.detach().float().numpy())
        assert slab[f"{name}.qweight"].tobytes() == q.tobytes()
        assert slab[f"{name}.scale"].tobytes() == scale.tobytes()


# --- the command as people call it -----------------------------------------------------


def linear_model(layers=16, out=256, width=1024):
    random = np.random.default_rng(7)
    return {f"h.{i}.fc.weight": random.standard_normal((out, width)).astype(np.float32) for i in range(layers)}


def files(folder, name):
    return [(folder / f"{name}{end}").read_bytes() for end in (".safetensors", ".manifest.json", ".report.json")]


def test_killed_at_random_moments_it_goes_on(tmp_path):
    save_file(linear_model(), tmp_path / "m.safetensors")
    begin = time.perf_counter()
    assert run(tmp_path / "m.safetensors", "-o", tmp_path / "whole", "--threads", 1).returncode == 0
    seconds = time.perf_counter() - begin
    random = np.random.default_rng(seed := 20261121)
    print("seed", seed)
    command = [SEGUE_RUN, "quantize", tmp_path / "m.safetensors", "-o", tmp_path / "slab", "--threads", "1"]
    kills, resumed = 0, False
    for attempt in range(40):
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            # The first ten are cut short, so that there are kills to survive.
            _, errors = process.communicate(timeout=seconds * (random.uniform(0.1, 0.9) if attempt < 10 else 20))
        except subprocess.TimeoutExpired:
            process.kill()  # SIGKILL
            process.communicate()
            kills += 1
            # A half-written slab never has the slab's name.
            assert (tmp_path / "slab.safetensors").exists() or not (tmp_path / "slab.manifest.json").exists()
            continue
        assert process.returncode == 0, errors
        if not kills and attempt < 10:  # faster than the first: that was the time of a cold machine
            seconds = time.perf_counter() - begin
            for file in tmp_path.glob("slab.*"):
                file.unlink()
            continue
        resumed = "going on" in errors
        break
    else:
        pytest.fail("no build came through")
    assert kills > 0 and (resumed or kills < 10)
    assert files(tmp_path, "slab") == files(tmp_path, "whole")
    assert not list(tmp_path.glob("slab.*.partial")) and not list(tmp_path.glob("*.building"))


def test_a_full_disk_is_an_error_that_leaves_no_slab(tmp_path):
    save_file(linear_model(4), tmp_path / "m.safetensors")

    def limit():  # stands in for the size of the disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    done = subprocess.run([SEGUE_RUN, "quantize", tmp_path / "m.safetensors", "-o", tmp_path / "slab"],
                          capture_output=True, text=True, timeout=60, preexec_fn=limit)
    assert done.returncode == 1 and "IO_FAILED" in done.stderr and "slab.safetensors" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.safetensors"]
    assert run(tmp_path / "m.safetensors", "-o", tmp_path / "slab").returncode == 0


def test_mse_takes_the_scale_with_the_least_error(tmp_path):
    # A row with an outlier, whose other values gain from clamping it.
    weight = np.random.default_rng(3).standard_normal((8, 64)).astype(np.float32)
    weight[0, 0] = 4.2
    save_file({"fc.weight": weight}, tmp_path / "m.safetensors")
    assert run(tmp_path / "m.safetensors", "-o", tmp_path / "s", "--scale-search", "mse").returncode == 0
    slab = load_file(tmp_path / "s.safetensors")
    for row, q, scale in zip(weight, slab["fc.qweight"], slab["fc.scale"]):
        base, errors = np.float32(np.abs(row).max()) / np.float32(127), []
        for factor in (0.85, 0.88, 0.91, 0.94, 0.97, 1.0):
            tried = base * np.float32(factor)
            codes = np.clip(np.rint(row * (np.float32(1) / tried)), -127, 127).astype(np.float32)
            errors.append((((row.astype(float) - (codes * tried).astype(float)) ** 2).sum(), tried, codes))
        least = min(range(6), key=lambda i: errors[i][0])  # the first minimum wins
        assert scale == errors[least][1]
        assert (q[:64] == errors[least][2]).all()


def test_flags_go_over_the_config_file(tmp_path):
    save_file(linear_model(3, 64, 96), tmp_path / "m.safetensors")
    config = {"memory": {"stagehand": {"squareq": {"pad_k": 32, "keep_bf16": ["h.1.*"], "scheme": "fp8_e4m3_row"}}}}
    (tmp_path / "c.json").write_text(json.dumps(config))
    assert run(tmp_path / "m.safetensors", "-o", tmp_path / "a", "--config", tmp_path / "c.json").returncode == 0
    a = json.loads((tmp_path / "a.manifest.json").read_text())
    assert [(layer["canonical_name"], layer["quant_scheme"], layer["pad_k"]) for layer in a["layers"]] == [
        ("h.0.fc", "fp8_e4m3_row", 32), ("h.2.fc", "fp8_e4m3_row", 32)]
    assert a["kept_bf16"] == {"h.1.fc": 'keep_bf16 "h.1.*"'}
    done = run(tmp_path / "m.safetensors", "-o", tmp_path / "b", "--config", tmp_path / "c.json", "--scheme",
               "per_row_symmetric", "--pad_k", "64", "--keep-bf16", "rmse>0.02", "--keep-bf16", "h.0.*")
    assert done.returncode == 0, done.stderr
    b = json.loads((tmp_path / "b.manifest.json").read_text())
    assert [(layer["canonical_name"], layer["quant_scheme"], layer["pad_k"]) for layer in b["layers"]] == [
        ("h.1.fc", "per_row_symmetric", 64), ("h.2.fc", "per_row_symmetric", 64)]
    (tmp_path / "c.json").write_text(json.dumps({"memory": {"stagehand": {"squareq": {"pad_kk": 32}}}}))
    done = run(tmp_path / "m.safetensors", "-o", tmp_path / "d", "--config", tmp_path / "c.json")
    assert done.returncode == 1 and "CONFIG_INVALID" in done.stderr and "pad_k" in done.stderr


def test_the_report_is_what_numpy_measures(tmp_path):
    weight = np.random.default_rng(5).standard_normal((64, 200)).astype(np.float32)
    save_file({"fc.weight": weight}, tmp_path / "m.safetensors")
    assert run(tmp_path / "m.safetensors", "-o", tmp_path / "s", "--scheme", "fp8_e4m3_row").returncode == 0
    report = json.loads((tmp_path / "s.report.json").read_text())
    assert list(report)[:7] == ["layers", "kept_bf16", "bytes_in", "bytes_out", "floored_rows", "max_rel_rmse", "min_cosine"]
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch

    slab = load_torch(tmp_path / "s.safetensors")
    back = (slab["fc.qweight"].to(torch.float32) * slab["fc.scale"][:, None])[:, :200].double().numpy()
    assert report["max_rel_rmse"] == pytest.approx(np.sqrt(((weight - back) ** 2).sum() / (weight.astype(float) ** 2).sum()))
    assert (np.abs(weight - back) <= np.maximum(2.0**-4 * np.abs(weight), 2.0**-10 * slab["fc.scale"].numpy()[:, None])).all()
    assert report["per_layer"][0]["slab_bytes"] == 64 * 256 + 4 * 64
