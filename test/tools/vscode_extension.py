"""The extension for VS Code: files that package.json names are there, its scripts are JavaScript, and its grammar finds what it should."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

folder = Path(sys.argv[1])
package = json.loads((folder / "package.json").read_text())
for field in ("name", "publisher", "version", "engines", "main", "contributes", "activationEvents"):
    assert package.get(field), field
assert re.fullmatch(r"[a-z0-9-]+", package["name"]) and re.fullmatch(r"\d+\.\d+\.\d+", package["version"])
contributes = package["contributes"]
named = [package["main"], *(each["configuration"] for each in contributes["languages"]), *(each["path"] for each in contributes["grammars"])]
for path in named:
    assert (folder / path).is_file(), path
source = (folder / package["main"]).read_text()
for module in re.findall(r'require\("([^"]+)"\)', source):
    assert module == "vscode" or module.split("/")[0] in package["dependencies"], module
for command in contributes["commands"]:
    assert f'"{command["command"]}"' in source, command
for setting in contributes["configuration"]["properties"]:
    section, _, key = setting.partition(".")
    assert f'getConfiguration("{section}").get("{key}")' in source, setting
languages = {each["id"] for each in contributes["languages"]}
assert all(f"onLanguage:{each}" in package["activationEvents"] for each in languages)
if node := shutil.which("node"):
    subprocess.run([node, "--check", str(folder / package["main"])], check=True, timeout=30)

configuration = json.loads((folder / contributes["languages"][0]["configuration"]).read_text())
assert re.fullmatch(configuration["wordPattern"], "#segue.layout") and configuration["comments"]["lineComment"] == "//"
grammar = json.loads((folder / contributes["grammars"][0]["path"]).read_text())
assert grammar["scopeName"] == contributes["grammars"][0]["scopeName"]
line = '  %y = segue.gather %x[%i] {segue.block = "h.0"} : tensor<16x8xf32, #segue.layout<alignment = 64>> // rows'


def scope_of(text):
    """The first rule that matches there, as an editor takes the one that begins first."""
    at = line.index(text)
    for rule in grammar["patterns"]:
        for found in re.finditer(rule.get("match") or rule["begin"], line):
            if found.start() == at:
                return rule["name"]
    return None


expected = {"%y": "variable", "segue.gather": "support.function.segue", "segue.block": "entity.other.attribute-name", '"h.0"': "string",
            "tensor": "storage.type", "f32": "storage.type", "#segue": "support.type.attribute", "// rows": "comment", "64": "constant.numeric"}
for text, scope in expected.items():
    assert (scope_of(text) or "").startswith(scope), (text, scope_of(text))
print("the extension is whole")
