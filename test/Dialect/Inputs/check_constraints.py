"""Checks that a test of errors meets every constraint of the ops of a generated reference page.

    check_constraints.py PAGE.md ERRORS.mlir

A constraint is a label such as (C2) in the description of an op. The test names it in a function (`@gather_c2`,
`@gather_c2_element`) or in a comment above the case (`// prog.view C2: ...`).
"""

import re
import sys
from pathlib import Path


def ops(page: str) -> dict[str, set[str]]:
    """Op -> numbers of its constraints."""
    sections = re.split(r"^### `(\w+\.\w+)`", page[: page.index("\n## Attributes")], flags=re.M)[1:]
    return {op: set(re.findall(r"\(C(\d+)\)", text)) for op, text in zip(sections[::2], sections[1::2])}


def main() -> int:
    page, errors = (Path(name).read_text() for name in sys.argv[1:])
    found = ops(page)
    wrong, constraints = [], 0
    for op, numbers in found.items():
        function = op.partition(".")[2]
        for number in sorted(numbers, key=int):
            constraints += 1
            if not re.search(rf"@{function}_(c\d+_)*c{number}(_|\b)|// {re.escape(op)}\b.*\bC{number}\b", errors):
                wrong.append(f"{op}: no case breaks (C{number}): add a function @{function}_c{number} with the error to {sys.argv[2]}")
    if not constraints:
        wrong.append("the page has no constraint")
    print("\n".join(wrong) or f"{constraints} constraints are met")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
