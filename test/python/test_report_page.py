# ===- test_report_page.py - the page of a run in a browser ---------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""report.html as people see it: on phones and screens, light and dark, by keyboard, with hostile names, and while the run goes on."""

import json
import re
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import matplotlib.image
import pytest
import segue

from test_report import ROOT, precision_line, report, run

sys.path.insert(0, str(ROOT / "tools"))

import browser as headless  # noqa: E402

pytestmark = pytest.mark.skipif(headless.PROGRAM is None, reason="chromium-headless-shell draws the page (see docs/guides/testing.md)")

# What is wrong with a page, as sentences. Colours are those that the browser computes.
FAULTS = r"""(() => {
  const faults = [];
  const say = (what, node) => faults.push(`${what}: <${node.tagName}> ${(node.textContent || "").slice(0, 60)}`);
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) faults.push(`the page is ${root.scrollWidth} pixels wide in a window of ${root.clientWidth}`);
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = color => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const behind = node => { for (let at = node; at; at = at.parentElement) { const c = rgb(getComputedStyle(at).backgroundColor); if (c[3] > 250) return c; } return rgb(getComputedStyle(root).colorScheme.includes("dark") && matchMedia("(prefers-color-scheme: dark)").matches ? "#000" : "#fff"); };
  for (const node of document.body.querySelectorAll("*")) {
    const style = getComputedStyle(node), box = node.getBoundingClientRect(), isShown = node.checkVisibility() && box.width > 0;
    const text = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
    if (!isShown || !text || node.closest("script, style, noscript, title")) continue;
    const inSvg = node.closest("svg"), needed = contrast(rgb(inSvg ? style.fill : style.color), behind(node));
    if (needed < 4.5) say(`contrast of ${needed.toFixed(2)}`, node);
    if (parseFloat(style.fontSize) < 12) say(`letters of ${style.fontSize}`, node);
    if (inSvg) {
      const frame = inSvg.getBoundingClientRect();
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1) say("cut by its chart", node);
    } else if (!node.closest(".table, pre") && node.scrollWidth > node.clientWidth + 1 && style.display !== "inline") say("wider than its place", node);
  }
  for (const svg of document.querySelectorAll("svg")) {
    if (!svg.querySelector("polyline, polygon, rect")) say("an empty chart", svg);
    if (!(svg.getAttribute("aria-label") || "").trim() || svg.getAttribute("role") !== "img") say("a chart that says nothing to who cannot see it", svg);
    const lines = [...svg.querySelectorAll("polyline")].map(line => line.getAttribute("points"));
    if (new Set(lines).size < lines.length) say("curves that hide each other", svg.parentElement);
    for (const mark of svg.querySelectorAll("polyline, polygon:not([opacity])")) {
      const style = getComputedStyle(mark), color = style.fill === "none" ? style.stroke : style.fill, found = contrast(rgb(color), behind(svg));
      if (found < 3) say(`a curve with a contrast of ${found.toFixed(2)}`, svg.parentElement);
    }
    if (/NaN|Infinity|undefined/.test(svg.outerHTML)) say("no number in a chart", svg.parentElement);
    const texts = [...svg.querySelectorAll("text")].filter(t => !t.classList.contains("over")).map(t => t.getBoundingClientRect());
    texts.forEach((a, i) => texts.slice(i + 1).forEach(b => { if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2) say("labels over each other", svg.parentElement); }));
  }
  if (document.querySelectorAll("h1").length !== 1) faults.push("one h1 is wanted");
  return faults;
})()"""


@pytest.fixture(scope="module")
def browser():
    with headless.Browser() as one:
        yield one


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page of a run with a plan, and that of files alone, with precision, ranks' figures left out, and no trace."""
    folder = tmp_path_factory.mktemp("pages")
    run(folder, "planned", "sim:dram=32MiB,pinned=32MiB,link=4GB/s,latency=4us", steps=8)
    (folder / "p.jsonl").write_text("".join(json.dumps(precision_line(i)) + "\n" for i in (0, 10)))
    log = [{"step": step, "loss": 4 / step + 1} for step in range(1, 31)]
    for step in (30, 20, 10):
        log.insert(step, {"step": step, "eval_loss": {10: 2.5, 20: 1.75, 30: 2.25}[step]})
    (folder / "losses.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    done = report("--telemetry", folder, "-o", folder / "files.html")
    assert done.returncode == 0, done.stderr
    return folder


def changed(page, path, change):
    """Another page: of the same run, with its data changed."""
    text = page.read_text()
    found = re.search(r'(<script type="application/json" id="data">)(.*?)(</script>)', text, re.S)
    data = json.loads(found[2])
    change(data)
    path.write_text(text[: found.start(2)] + json.dumps(data).replace("<", "\\u003c") + text[found.end(2) :])
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [380, 800, 1400])
@pytest.mark.parametrize("name", ["run", "files"])
def test_the_page_reads_well(browser, pages, tmp_path, name, width, dark):
    browser.complaints.clear()
    browser.show(pages / f"{name}.html", width=width, dark=dark)
    assert browser.ask(FAULTS) == []
    browser.ask("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.ask(FAULTS) == []
    assert browser.complaints == []
    if name == "run":
        assert browser.ask("document.querySelectorAll('svg').length") >= 9
        browser.picture(tmp_path / "page.png", height=900)
        brightness = matplotlib.image.imread(tmp_path / "page.png")[..., :3].mean()
        assert (brightness < 0.25) if dark else (brightness > 0.8)
    else:
        assert browser.ask("document.querySelector('#inside').textContent") == ""
        assert browser.ask("[...document.querySelectorAll('#precision svg > text')].map(t => t.textContent.slice(0, 2))") == ["h."] * 4


def test_charts_fit_a_window_that_changes(browser, pages):
    browser.show(pages / "run.html", width=1400)
    browser._call("Emulation.setDeviceMetricsOverride", width=400, height=900, deviceScaleFactor=1, mobile=False)
    browser.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))")
    assert browser.ask(FAULTS) == []
    assert browser.ask("[...document.querySelectorAll('svg')].every(s => s.viewBox.baseVal.width === Math.round(s.getBoundingClientRect().width))")


def test_the_head_and_the_words(browser, pages):
    browser.show(pages / "run.html")
    text = browser.ask("document.body.innerText")
    assert "Net" in text and "parameters" in text and "8 steps" in text and f"Segue {segue.__version__}" in text
    assert "of the cap of" in text and "Each was used where it lay" in text and "as they lay" not in text
    facts = browser.ask("document.querySelector('#facts').textContent")
    assert "AdamW" in facts and "processor" in facts and "sim:dram=32MiB" in facts
    # A steady step is shown, with who holds the most in it.
    assert browser.ask("document.querySelector('select').selectedOptions[0].text") == "8"
    rows = browser.ask("[...document.querySelectorAll('.held')[0].rows].map(r => r.innerText)")
    assert "line of the model" in rows[0] and any(re.search(r"nets\.py:\d+$", row.strip()) for row in rows[1:])
    browser.ask("(s => { s.value = 0; s.dispatchEvent(new Event('change')); })(document.querySelector('select'))")
    assert browser.ask("location.hash") == "#step=1"
    # By keyboard, a chart says its figures.
    browser.ask("document.querySelector('#over svg').focus()")
    browser.press("ArrowRight")
    assert browser.ask("document.querySelector('#over figcaption span').textContent").startswith("step 1: ")


def test_evaluations_are_a_curve_beside_the_losses(browser, pages):
    browser.show(pages / "files.html")
    assert "2.25\nloss on held-out data after step 30; the least was 1.75, after step 20" in browser.ask("document.querySelector('#tiles').innerText")
    figure = "[...document.querySelectorAll('#over figure')].find(f => f.querySelector('h3').textContent === 'Loss')"
    key = f"{figure}.querySelector('.key').innerText"
    assert browser.ask(f"[...{figure}.querySelectorAll('polyline')].map(line => line.getAttribute('points').split(' ').length)") == [30, 3]
    assert "in training" in browser.ask(key) and "on held-out data" in browser.ask(key)
    # Between two evaluations the last one holds.
    browser.ask(f"{figure}.querySelector('svg').focus()")
    for _ in range(16):
        browser.press("ArrowRight")
    assert browser.ask(f"{figure}.querySelector('figcaption span').textContent").startswith("step 16")
    assert re.search(r"in training 1\.25\s*on held-out data 2\.5", browser.ask(key))


def test_names_run_nothing(browser, pages, tmp_path):
    hostile = ['<img src=x onerror="window.bad=1">', "</script><script>window.bad=1</script>", "javascript:window.bad=1", "<!--<script>", "x" * 300]

    def spoil(data):
        data["head"].update(model=hostile[0], failure=hostile[1], settings={hostile[0]: hostile[1]}, machine=hostile[4], config={hostile[0]: hostile[4]})
        data["device"] = hostile[1] + hostile[4]
        for holder, name in zip(data["timelines"][-1]["peak"]["held"], hostile * 3):
            holder.update(value=name, location=f"/{name}.py:1:1 ({name})", program=name, block=name)
        data["timelines"][-1]["phases"][1]["name"] = hostile[0]
        end = {"binary": hostile[0], "program": hostile[1], "output": hostile[4], "input": hostile[4]}
        data["seams"].update(converted=1, edges=[{"producer": end, "consumer": end, "converted": 1, "converted_bytes": 1}])
        data["precision"] = {"step": [1], "blocks": {name: ["bf16"] for name in hostile}}

    browser.complaints.clear()
    browser.show(changed(pages / "run.html", tmp_path / "hostile.html", spoil), width=380)
    assert browser.ask("[window.bad === undefined, document.querySelectorAll('main img, script').length, document.querySelector('h1').textContent]") == [True, 2, hostile[0]]
    assert browser.complaints == []
    assert [fault for fault in browser.ask(FAULTS) if "pixels wide" in fault] == []


def test_the_page_follows_a_run(browser, pages, tmp_path):
    """It loads itself again while the run goes on, and no more when that has ended."""
    page = tmp_path / "live.html"
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    browser.show(changed(pages / "run.html", page, lambda data: data["head"].update(refresh_seconds=0.2, written=now)))
    assert browser.ask("document.querySelector('#state').textContent") == "running"
    page.write_text((pages / "run.html").read_text())
    until = time.monotonic() + 30
    while browser.ask("document.querySelector('#state')?.textContent") != "ended":
        assert time.monotonic() < until
        time.sleep(0.1)
    browser.ask("window.same = 1")
    time.sleep(0.5)
    assert browser.ask("window.same") == 1
    # One that was killed hours ago is asked for seldom.
    browser.show(changed(pages / "run.html", page, lambda data: data["head"].update(refresh_seconds=0.2, written="2026-01-01T00:00:00Z")))
    assert browser.ask("document.querySelector('#state').textContent").startswith("running; nothing new for ")
    browser.ask("window.same = 1")
    time.sleep(0.5)
    assert browser.ask("window.same") == 1
