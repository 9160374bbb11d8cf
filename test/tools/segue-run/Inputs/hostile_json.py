"""JSON that kills a careless reader, wherever the tools read JSON.

    hostile_json.py FOLDER    deep.json, keys.json, ours.json, twins.json; deep.safetensors, keys.safetensors; a slab whose manifest is deep
"""

import json
import pathlib
import sys

COUNT = 200_000


def safetensors(header):
    header = header.encode()
    return len(header).to_bytes(8, "little") + header


folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
deep = "[" * COUNT
keys = "{" + ",".join(f'"key{i}": 0' for i in range(COUNT)) + "}"
entry = '{"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}'
(folder / "deep.json").write_text('{"memory": ' + deep)
(folder / "deep.jsonl").write_text('{"step": ' + deep + "\n{}\n")
(folder / "closed.json").write_text('{"memory": ' + deep + "]" * COUNT + "}")
(folder / "keys.json").write_text(keys)
(folder / "ours.json").write_text('{"memory": {"stagehand": ' + keys + "}}")
(folder / "twins.json").write_text('{"memory": {"stagehand": {}, "stagehand": {}}}')
(folder / "deep.safetensors").write_bytes(safetensors('{"w": ' + deep))
(folder / "keys.safetensors").write_bytes(safetensors("{" + ",".join(f'"t{i}": {entry}' for i in range(COUNT)) + "}"))
(folder / "slab.safetensors").write_bytes(safetensors("{}"))
(folder / "slab.manifest.json").write_text('{"layers": ' + deep)
(folder / "serve.json").write_text(json.dumps({"memory": {"stagehand": {
    "stagehand_enabled": True, "squareq": {}, "squareq_slab_path": str(folder / "slab.safetensors"),
    "squareq_manifest_path": str(folder / "slab.manifest.json")}}}))
