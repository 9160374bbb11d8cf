"""Pages of a run have the evaluations that its log has: that of `train --report` and that of `report --telemetry LOG`."""

import json
import re
import sys
from pathlib import Path

log, *pages = map(Path, sys.argv[1:])
lines = [json.loads(line) for line in log.read_text().splitlines()]
losses, evaluations = [line for line in lines if "loss" in line], [line for line in lines if "eval_loss" in line]
for page in pages:
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.S)[1])
    assert data["steps"]["step"] == [line["step"] for line in losses]
    assert data["evaluations"]["step"] == [line["step"] for line in evaluations], page
    assert data["evaluations"]["columns"]["eval_loss"]["mean"] == [line["eval_loss"] for line in evaluations], page
print(f"{len(pages)} pages with {len(losses)} steps and {len(evaluations)} evaluations")
