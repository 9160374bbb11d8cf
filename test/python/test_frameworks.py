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


def test_every_example_is_listed():
    """In the guide, here, and with its packages in the file that is to be installed."""
    assert {p.stem for p in EXAMPLES.glob("*.py")} == set(NEEDS)
    pinned = {line.split("==")[0] for line in (EXAMPLES / "requirements.txt").read_text().splitlines() if "==" in line}
    pinned |= {"timm", "torchvision"}  # which have to go with the torch that is there
    for name, (packages, _) in NEEDS.items():
        assert f"{name}.py" in GUIDE and pinned >= set(packages)
