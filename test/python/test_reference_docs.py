"""The generated reference pages in docs/reference are those that the current TableGen files give."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"


@pytest.fixture(scope="module")
def generated():
    subprocess.run(["cmake", "--build", BUILD, "--target", "segue-doc"], check=True, capture_output=True, timeout=300)
    return {page.name: page.read_text() for page in (BUILD / "docs").glob("*.md")}


def test_every_page_is_kept(generated):
    kept = {page.name for page in (ROOT / "docs" / "reference").glob("*.md")}
    assert kept == set(generated), "run `make docs`"


def test_pages_are_in_step(generated):
    stale = [name for name, text in generated.items() if (ROOT / "docs" / "reference" / name).read_text() != text]
    assert not stale, f"run `make docs`: {stale}"
