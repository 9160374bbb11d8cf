# ===- test_frameworks.py - other ways to train, with Segue below ------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The examples with Hugging Face, Accelerate, Lightning, PEFT and timm: losses are those of eager mode, and all of it runs in Segue.

They run where their packages are (`pip install -r examples/frameworks/requirements.txt`).
"""

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest
import warm
from compare import losses_close

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "frameworks"
GUIDE = (ROOT / "docs" / "guides" / "frameworks.md").read_text()
#: By example the packages that it needs, and how near its losses are: bf16 keeps three digits.
NEEDS = {
    "hf_trainer": (("transformers", "accelerate"), 1e-4), "accelerate_loop": (("transformers", "accelerate"), 2e-3),
    "lightning_module": (("lightning",), 1e-4), "peft_lora": (("transformers", "peft"), 1e-4), "timm_models": (("timm", "torchvision"), 1e-4),
}
#: A torchvision that was built for another torch lacks its own operators, and transformers imports it where it is, as timm does. No
#: example calls one of them.
VISION = """
import sys, torch
try:
    import torchvision
except ImportError:
    pass
except RuntimeError:
    for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    lacking = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        lacking.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


@pytest.mark.parametrize("name", NEEDS)
def test_example(name):
    packages, tolerance = NEEDS[name]
    if missing := [p for p in packages if importlib.util.find_spec(p) is None]:
        pytest.skip(f"{' and '.join(missing)} not there: pip install -r examples/frameworks/requirements.txt")
    run = f"{VISION}\nimport runpy\nrunpy.run_path({str(EXAMPLES / name)!r} + '.py', run_name='__main__')"
    done = subprocess.run([warm.python(), "-c", run], capture_output=True, text=True, timeout=280, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    losses = {m[1]: [float(x) for x in m[2].split()] for m in re.finditer(r"^(eager|segue)((?: \d+\.\d+)+)$", done.stdout, re.M)}
    assert len(losses["eager"]) == 6 and len(set(losses["eager"])) == 6
    losses_close(losses["segue"], losses["eager"], tolerance)
    assert "in Segue: 100% of the operators, 100% of the time" in done.stdout and "FallbackWarning" not in done.stderr
    # The table of the guide says what these were.
    stated = re.search(rf"^\| \[.*\]\(.*{name}\.py\) \|.*\| ([\d., ]+) \|$", GUIDE, re.M)
    losses_close([float(x) for x in stated[1].split(",")], losses["segue"][-1:] + losses["eager"][-1:], 2e-2)


GENERATION = """
import sys, torch, segue, transformers
torch.manual_seed(0)
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=0)).eval()
ids = torch.randint(1, 64, (1, 5))
settings = dict(max_new_tokens=24, min_new_tokens=24, do_sample=False, disable_compile=True) | ({"cache_implementation": "static"} if sys.argv[1] == "static" else {})
expected = model.generate(ids, **settings)
model.forward = torch.compile(model.forward, backend="segue")
assert torch.equal(model.generate(ids, **settings), expected)
report = segue.backend_report()
print(sum(s.variants for s in report.segments), sum(s.forward_calls for s in report.segments), report.fallen_back)
"""


@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_generation_does_not_compile_each_length(cache):
    """A cache of one size: the prompt, and the tokens behind it. One that grows: no more than `max_variants`, others in PyTorch."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers not there: pip install -r examples/frameworks/requirements.txt")
    done = subprocess.run([warm.python(), "-c", VISION + GENERATION, cache], capture_output=True, text=True, timeout=280,
                          env=os.environ | {"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    programs, calls, fallen_back = map(int, done.stdout.split()[-3:])
    assert fallen_back == 0 and (programs, calls) == (2, 24) if cache == "static" else programs <= 10, done.stdout


def test_every_example_is_listed():
    """In the guide, here, and with its packages in the file that is to be installed."""
    assert {p.stem for p in EXAMPLES.glob("*.py")} == set(NEEDS)
    pinned = {line.split("==")[0] for line in (EXAMPLES / "requirements.txt").read_text().splitlines() if "==" in line}
    pinned |= {"timm", "torchvision"}  # which have to go with the torch that is there
    for name, (packages, _) in NEEDS.items():
        assert f"{name}.py" in GUIDE and pinned >= set(packages)
