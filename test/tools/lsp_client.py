"""Opens one malformed document in an MLIR language server, prints its diagnostics."""

import json
import subprocess
import sys

TEXT = """module attributes {prog.version = "1"} {
}
"""


def message(method, params, number=None):
    body = {"jsonrpc": "2.0", "method": method, "params": params}
    if number is not None:
        body["id"] = number
    text = json.dumps(body)
    return f"Content-Length: {len(text)}\r\n\r\n{text}"


document = {"uri": "file:///tmp/f.mlir", "languageId": "mlir", "version": 1, "text": TEXT}
session = "".join([
    message("initialize", {"processId": None, "capabilities": {}, "trace": "off"}, 0),
    message("textDocument/didOpen", {"textDocument": document}),
    message("shutdown", {}, 1),
    message("exit", {}),
])
answer = subprocess.run([sys.argv[1]], input=session, capture_output=True, text=True, timeout=30, check=False)
print(answer.stdout)
