"""Checks that every op of a generated reference page has an example that a test parses.

    check_examples.py PAGE.md TEST.mlir

Results may have other names in the test; everything after them must be equal,
but for white space.
"""

import re
import sys
from pathlib import Path


def squeeze(text: str) -> str:
    return " ".join(text.split())


def main() -> int:
    page, test = (Path(name).read_text() for name in sys.argv[1:])
    parsed = squeeze(test)
    sections = re.split(r"^### `(segue\.\w+)`", page, flags=re.M)[1:]
    errors = []
    for op, text in zip(sections[::2], sections[1::2]):
        example = re.search(r"Example: `([^`]*)`", text)
        if not example:
            errors.append(f"{op}: the description has no example")
            continue
        body = squeeze(re.sub(r"^(%\w+(, )?)+ = ", "", squeeze(example[1])))
        if body not in parsed:
            errors.append(f"{op}: the test does not contain `{body}`")
    if len(sections) < 2:
        errors.append("the page has no op")
    print("\n".join(errors) or f"{len(sections) // 2} examples")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
