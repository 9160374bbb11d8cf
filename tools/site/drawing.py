# ===- drawing.py - boxes, texts and lines as an SVG -----------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What pictures of the documentation are drawn with. GitHub and the site show them as images; colours follow the reader's light or dark theme."""

from __future__ import annotations

#: The first rules of a picture's style.
COLOURS = """
    svg { --ink: #1f2430; --faint: #8a90a0; --ground: #ffffff; --f: #c7d7f5; --b: #f6d2c4; --o: #d3ead0; --e: #e7e8ee; --line: #3b5bdb; --cap: #c92a2a; --area: #dbe4ff; }
    @media (prefers-color-scheme: dark) {
      svg { --ink: #e3e6ee; --faint: #8a90a0; --ground: #1e2129; --f: #34456f; --b: #6d4436; --o: #375a38; --e: #3a3d49; --line: #91a7ff; --cap: #ff8787; --area: #2b3350; } }
    text { font-family: system-ui, sans-serif; fill: var(--ink); } .label { font-size: 13px; } .small { font-size: 11.5px; }
    .ground { fill: var(--ground); }"""


class Drawing:
    def __init__(self) -> None:
        self.parts: list[str] = []

    def box(self, x0, y0, x1, y1, style, label="", small=False):
        self.parts.append(f'<rect class="{style}" x="{x0:.1f}" y="{y0:.1f}" width="{x1 - x0:.1f}" height="{y1 - y0:.1f}" rx="3"/>')
        if label:
            self.text((x0 + x1) / 2, (y0 + y1) / 2 + 4, label, "small" if small else "label", "middle")

    def text(self, x0, y0, label, style="label", anchor="start"):
        self.parts.append(f'<text class="{style}" x="{x0:.1f}" y="{y0:.1f}" text-anchor="{anchor}">{label}</text>')

    def line(self, points, style):
        self.parts.append(f'<polyline class="{style}" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}"/>')

    def svg(self, width, height, title, style):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"><title>{title}</title><style>{style}</style>\n'
                f'<rect class="ground" width="{width}" height="{height}" rx="8"/>\n' + "\n".join(self.parts) + "\n</svg>\n")
