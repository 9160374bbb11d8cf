# ===- browser.py - pages in a headless Chromium ----------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Shows pages of files in a headless Chromium: for tests of pages and for their pictures.

    with Browser() as browser:
        browser.show(Path("run.html"), width=380, dark=True)
        browser.ask("document.documentElement.scrollWidth")
        browser.picture(Path("run.png"))
        browser.complaints                          # what pages wrote to the console, and what they asked the network for

It speaks the DevTools protocol over a pair of pipes, so that nothing listens on a port and no package is needed.
Debian: apt-get install --no-install-recommends chromium-headless-shell (64 MB to fetch, 18 s to install).
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium-headless-shell")


class Browser:
    """A browser with one page, which ends with the `with` block."""

    def __init__(self, limit_s: float = 20):  # for an answer or a page
        if PROGRAM is None:
            raise SystemExit("there is no chromium-headless-shell; apt-get install --no-install-recommends chromium-headless-shell")
        self._limit_s = limit_s
        self._profile = tempfile.TemporaryDirectory(prefix="segue-browser-", ignore_cleanup_errors=True)
        self._number, self._received, self._loaded = 0, b"", False
        self.complaints: list[str] = []
        its_in, self._out = os.pipe()
        self._in, its_out = os.pipe()
        # The browser reads file descriptor 3 and writes 4, which are not to be overwritten before they are copied.
        both = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (its_in, its_out)]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec 3<&{both[0]} 4>&{both[1]}; exec "$@"', "browser", PROGRAM, "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
             "--hide-scrollbars", "--disable-background-networking", f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=both, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        for end in (its_in, its_out, *both):
            os.close(end)
        page = next(t for t in self._call("Target.getTargets", session=None)["targetInfos"] if t["type"] == "page")
        self._session = self._call("Target.attachToTarget", session=None, targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: Any) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def _message(self, until: float) -> dict:
        while b"\0" not in self._received:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._in], [], [], left)[0]:
                raise TimeoutError("the browser did not answer in time")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise ConnectionError("the browser has ended")
            self._received += part
        text, self._received = self._received.split(b"\0", 1)
        return json.loads(text)

    def _note(self, message: dict) -> None:
        what, params = message.get("method"), message.get("params", {})
        if what == "Page.loadEventFired":
            self._loaded = True
        elif what == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif what == "Runtime.consoleAPICalled":
            self.complaints.append(f"console.{params['type']}: {params['args']}")
        elif what == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif what == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "about:")):
            self.complaints.append(f"asked for {params['request']['url'][:200]}")

    def _call(self, method: str, session: str | None = "page", **params: Any) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = self._session
        until = time.monotonic() + self._limit_s
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message(until)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer)

    def show(self, page: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Loads a file into a window of `width` by `height` pixels."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self._loaded = False
        self._call("Page.navigate", url=page.resolve().as_uri())
        until = time.monotonic() + self._limit_s
        while not self._loaded:
            self._note(self._message(until))

    def ask(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression in the page, or of a promise."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", expression))
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key)

    def picture(self, path: Path, height: int | None = None) -> None:
        """Writes what the page shows as a PNG: the whole page, or its first `height` pixels."""
        whole = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": whole["width"], "height": min(height or whole["height"], whole["height"]), "scale": 1}
        data = self._call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))
