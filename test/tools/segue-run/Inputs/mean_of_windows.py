"""The mean loss of a table of logits over whole batches of 4 windows of 16 bytes, by numpy, is what segue-run says."""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

table = load_file(sys.argv[1])["table"].astype(np.float64)
text = np.frombuffer(Path(sys.argv[2]).read_bytes(), np.uint8)
said = json.loads(Path(sys.argv[3]).read_text())["eval_loss"]
batches = (len(text) - 1) // 64
tokens, targets = text[: batches * 64], text[1 : batches * 64 + 1]
logits = table[tokens]
expected = (np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(tokens)), targets]).mean()
assert abs(said - expected) < 1e-5, (said, expected)
print(f"the mean of {batches} batches")
