"""docs/tour.ipynb runs as it stands, and what it shows of numbers and words is what comes out."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.jobs.small import REPOSITORY
from tests.patience import PATIENCE_S

NOTEBOOK = REPOSITORY / "docs" / "tour.ipynb"


def shown(notebook) -> tuple[str, list[str]]:
    """What its cells print, and the text form of what they show; warnings aside."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    return printed, [output.data["text/plain"] for output in outputs if "data" in output]


def data_of(notebook, kind: str) -> list[str]:
    every = [output.data for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    return [data[kind] for data in every if kind in data]


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # sockets of the kernel's client
def test_the_notebook_shows_what_comes_out(tmp_path, monkeypatch, closelook, inline):
    monkeypatch.chdir(tmp_path)
    code, out, err = closelook("run", "--config", "smoke")
    assert code == 0, out + err
    written = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(written)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "jobs" / "front"))))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    ran = nbformat.from_dict(written)
    for cell in ran.cells:
        cell.pop("outputs", None)
        if cell.cell_type == "code":
            cell["outputs"] = []
    NotebookClient(ran, timeout=int(PATIENCE_S), resources={"metadata": {"path": str(Path.cwd())}}).execute()
    assert shown(ran) == shown(written)
    pages, pictures = (data_of(ran, kind) for kind in ("text/html", "image/png"))
    assert len(pages) == len(pictures) == 1
    assert pages[0].count(">et</span>") == 3, "a row for each method"
