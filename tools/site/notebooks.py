# ===- notebooks.py - runs the notebooks, and makes pages of them -----------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Runs examples/notebooks/*.ipynb and keeps what they print outside of the repository.

    tools/site/notebooks.py build        # writes build/notebooks/*.ipynb

In git a notebook has no outputs: they would change with every run and machine. `make docs` runs them first, and the site shows that run; where none was made,
it shows the cells alone.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "notebooks"


def run(path: Path, out: Path, limit_s: int = 120) -> None:
    """Runs a notebook in a folder of its own, below `out`, and writes it there with what it has printed. An exception of a cell is one here."""
    import nbclient
    import nbformat
    from jupyter_client import AsyncKernelManager

    notebook = nbformat.read(path, as_version=4)
    place = out / path.stem
    place.mkdir(parents=True, exist_ok=True)
    # Files of Jupyter and IPython, as those of connections, lie in a folder that goes with the kernel.
    with tempfile.TemporaryDirectory(prefix="nb-") as own:
        os.environ |= {"JUPYTER_RUNTIME_DIR": own, "IPYTHONDIR": own}
        # By sockets that are files: ports are open to all users of the machine.
        kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{own}/kernel")
        nbclient.NotebookClient(notebook, km=kernel, timeout=limit_s, resources={"metadata": {"path": str(place)}}).execute()
    nbformat.write(notebook, out / path.name)


def pages(root: Path, build: Path):
    """Name, Markdown and pictures of each notebook, as it ran last or, where it has not run as it is, without outputs."""
    import nbformat
    from nbconvert import MarkdownExporter

    for path in sorted((root / "examples" / "notebooks").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        ran = build / "notebooks" / path.name
        if ran.is_file():
            with_outputs = nbformat.read(ran, as_version=4)
            if [cell.source for cell in with_outputs.cells] == [cell.source for cell in notebook.cells]:
                notebook = with_outputs
        resources = {"unique_key": path.stem, "output_files_dir": f"{path.stem}_files"}
        text, found = MarkdownExporter().from_notebook_node(notebook, resources=resources)
        yield path.stem, text, found["outputs"]


if __name__ == "__main__":
    folder = Path(sys.argv[1]) / "notebooks"
    folder.mkdir(parents=True, exist_ok=True)
    for notebook in sorted(FOLDER.glob("*.ipynb")):
        run(notebook, folder)
