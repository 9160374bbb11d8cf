"""Speaks with a language server as an editor does, and prints what an editor would show.

A document has one `|` where the cursor stands, which is not sent.
"""

import json
import subprocess
import sys

WRONG_VERSION = 'module attributes {prog.version = "1"} {\n}\n'
WRONG_LAYOUTS = "func.func private @zero(tensor<4x4xf32, #segue.layout<tile = [0]>>)\n"
WRONG_KEY = "func.func private @key(tensor<4x4xf32, #segue.layout<tille = [2]>>)\n"
WRONG_PROGRAM = """prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  prog.block "" {
  }
}
"""
OF_WINDOWS = 'func.func @f(%x: tensor<4xf32>) {\r\n  return\r\n}\r\n"\r\n'
FUNCTION = "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
HOVERS = {
    "an operation": FUNCTION + "  %y = segue.re|lu %x : tensor<4xf32>\n  return %y : tensor<4xf32>\n}\n",
    "a value": FUNCTION + "  %|y = segue.relu %x : tensor<4xf32>\n  return %y : tensor<4xf32>\n}\n",
    "an operation of a broken text behind a letter of two units": "// 𝕏 is the input\n  /* é𝕏 */ %y = segue.redu|ce\n",
    "an attribute": "func.func private @f(tensor<4xf32, #segue.lay|out<alignment = 64>>)\n",
    "an operation of another dialect": "func.func private @f(tensor<4xf32>)\nfunc.fu|nc private @g(tensor<4xf32>)\n",
}
COMPLETIONS = {
    "operations": FUNCTION + "  %y = segue.|",
    "operations of programs": "prog.|",
    "attributes of an operation": FUNCTION + "  %y = segue.reduce sum %x dims [0] {|",
    "a word that the assembly begins with": FUNCTION + "  %y = segue.reduce m|",
    "what an argument carries": 'func.func @f(%x: tensor<4xf32> {segue.name = "x", |',
    "what a module carries": "module attributes {|",
    "attributes of the dialect": "func.func @f(%x: tensor<4xf32, #segue.|",
    "the words of an attribute": "func.func @f(%x: tensor<4xf32> {segue.role = #segue.role<|",
    "values": FUNCTION + "  %y = segue.relu %|",
}

messages = []


def send(method, params, number=None):
    body = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if number is None else {"id": number})
    text = json.dumps(body, ensure_ascii=False).encode()
    messages.append(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))


def open_document(name, text):
    send("textDocument/didOpen", {"textDocument": {"uri": f"file:///{name}.mlir", "languageId": "mlir", "version": 1, "text": text}})


def place(name, text):
    before = text.split("|")[0].split("\n")
    column = len(before[-1].encode("utf-16-le")) // 2
    return {"textDocument": {"uri": f"file:///{name}.mlir"}, "position": {"line": len(before) - 1, "character": column}}


asked = {}
send("initialize", {"processId": None, "capabilities": {}, "trace": "off"}, 0)
for name, text in (("version", WRONG_VERSION), ("layouts", WRONG_LAYOUTS), ("key", WRONG_KEY), ("program", WRONG_PROGRAM), ("windows", OF_WINDOWS)):
    open_document(name, text)
for method, documents in (("hover", HOVERS), ("completion", COMPLETIONS)):
    for what, text in documents.items():
        number = len(asked) + 1
        asked[number] = f"{method} on {what}"
        open_document(f"d{number}", "" if what == "values" else text.replace("|", ""))
        if what == "values":  # as it is after the user has typed
            send("textDocument/didChange", {"textDocument": {"uri": f"file:///d{number}.mlir", "version": 2}, "contentChanges": [{"text": text.replace("|", "")}]})
        send(f"textDocument/{method}", place(f"d{number}", text), number)
send("shutdown", {}, 1000)
send("exit", {})
done = subprocess.run([sys.argv[1]], input=b"".join(messages), capture_output=True, timeout=60, check=False)
rest = done.stdout
while rest:
    head, rest = rest.split(b"\r\n\r\n", 1)
    size = int(head.split(b":")[1])
    message, rest = json.loads(rest[:size]), rest[size:]
    if message.get("id") == 0:
        print("server:", message["result"]["serverInfo"])
    elif message.get("id") in asked:
        print(f"== {asked[message['id']]}")
        result = message["result"]
        for item in sorted((result or {}).get("items", []), key=lambda item: item["label"]):
            print("item:", item["label"], "-", item.get("detail"), "+ page" if "documentation" in item else "")
        if result and "contents" in result:
            print(result["contents"]["value"])
    elif message.get("method") == "textDocument/publishDiagnostics":
        for each in message["params"]["diagnostics"]:
            start = each["range"]["start"]
            print(f"{message['params']['uri']}:{start['line']}:{start['character']}: {each['message']}",
                  [other["message"] for other in each.get("relatedInformation", [])])
print("status", done.returncode)
