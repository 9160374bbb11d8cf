"""Weights, data and the training of the stitched MLP in numpy, in float64.

    mlp_reference.py write FOLDER        weights.safetensors, x.npy, t.npy
    mlp_reference.py check FOLDER LOG    a --json log of `segue-run train`
    mlp_reference.py gradients FOLDER    grad.w1.npy and grad.w2.npy of `segue-run stitch`

The optimizer is AdamW with the options that the RUN line of train.test gives to segue-compile.
"""

import json
import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

LR, BETA1, BETA2, EPS, DECAY, CLIP = 0.05, 0.9, 0.95, 1e-8, 0.1, 1.0


def write(folder):
    rng = np.random.default_rng(7)
    shapes = {"w1": (5, 7), "front.bias": (7,), "w2": (7, 3), "back.bias": (3,)}
    save_file({k: rng.normal(size=s).astype(np.float32) * np.float32(0.5) for k, s in shapes.items()},
              folder / "weights.safetensors")
    np.save(folder / "x.npy", rng.normal(size=(6, 5)).astype(np.float32))
    np.save(folder / "t.npy", rng.normal(size=(6, 3)).astype(np.float32))


def read(folder):
    p = {k: v.astype(np.float64) for k, v in load_file(folder / "weights.safetensors").items()}
    return p, *(np.load(folder / f"{n}.npy").astype(np.float64) for n in "xt")


def gradients(p, x, t):
    h = np.tanh(x @ p["w1"] + p["front.bias"])
    d = 2 * (h @ p["w2"] + p["back.bias"] - t)
    dh = (d @ p["w2"].T) * (1 - h * h)
    return d, {"w1": x.T @ dh, "front.bias": dh.sum(0), "w2": h.T @ d, "back.bias": d.sum(0)}


def losses(folder, steps):
    p, x, t = read(folder)
    m, v = ({k: np.zeros_like(a) for k, a in p.items()} for _ in range(2))
    for step in range(1, steps + 1):
        d, g = gradients(p, x, t)
        norm = np.sqrt(sum((a * a).sum() for a in g.values()))
        yield (d * d).sum() / 4, norm
        for k in p:
            a = g[k] * min(1, CLIP / (norm + 1e-6))
            m[k] = BETA1 * m[k] + (1 - BETA1) * a
            v[k] = BETA2 * v[k] + (1 - BETA2) * a * a
            p[k] *= 1 - LR * DECAY
            p[k] -= LR * m[k] / (1 - BETA1**step) / (np.sqrt(v[k] / (1 - BETA2**step)) + EPS)


def check(folder, log):
    given = [json.loads(line) for line in log.read_text().splitlines()]
    for line, (loss, norm) in zip(given, losses(folder, len(given)), strict=True):
        for what, value, expected in (("loss", line["loss"], loss), ("grad_norm", line["grad_norm"], norm)):
            if not abs(value - expected) <= 1e-4 * abs(expected):
                sys.exit(f"step {line['step']}: {what} {value}, expected {expected}")
    print(f"{len(given)} steps as expected, loss {given[0]['loss']:.4f} to {given[-1]['loss']:.4f}")


def check_gradients(folder):
    _, expected = gradients(*read(folder))
    for name in ("w1", "w2"):
        np.testing.assert_allclose(np.load(folder / f"grad.{name}.npy"), expected[name], rtol=1e-4, atol=1e-5)
    print("gradients as expected")


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(pathlib.Path(sys.argv[2]))
    elif sys.argv[1] == "gradients":
        check_gradients(pathlib.Path(sys.argv[2]))
    else:
        check(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
