"""docs/tour.ipynb runs as it stands, and what it shows of numbers and words is what comes out."""

import ast
import io
import os
from base64 import b64encode
from contextlib import redirect_stdout
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_output

from tests.jobs.small import REPOSITORY
from tests.patience import PATIENCE_S

NOTEBOOK = REPOSITORY / "docs" / "tour.ipynb"


def shown(notebook) -> tuple[str, list[str]]:
    """The printed text of the notebook's cells, and the text form of their results, without warnings."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    return printed, [output.data["text/plain"] for output in outputs if "data" in output]


def data_of(notebook, kind: str) -> list[str]:
    every = [output.data for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    return [data[kind] for data in every if kind in data]


def in_a_kernel(notebook):
    folder = Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "src"))))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        NotebookClient(notebook, timeout=int(PATIENCE_S), resources={"metadata": {"path": str(folder)}}).execute()


def in_this_process(notebook):
    """As a kernel does: what a cell prints, the figures that it shows and its last value are its outputs."""
    names = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell["outputs"] = list(outputs_of(cell.source, names))


def outputs_of(source, names):
    tree, last = ast.parse(source), None
    if isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    figures = []
    with redirect_stdout(io.StringIO()) as printed, pytest.MonkeyPatch.context() as patch:
        patch.setattr(plt, "show", lambda: figures.append(plt.gcf()))
        exec(compile(tree, NOTEBOOK.name, "exec"), names)
        value = last and eval(compile(last, NOTEBOOK.name, "eval"), names)
    if printed.getvalue():
        yield new_output("stream", name="stdout", text=printed.getvalue())
    for figure in figures:
        picture = io.BytesIO()
        figure.savefig(picture, format="png")
        plt.close(figure)
        data = {"text/plain": repr(figure), "image/png": b64encode(picture.getvalue()).decode()}
        yield new_output("display_data", data=data)
    if value is not None:
        yield new_output("execute_result", data={"text/plain": repr(value), "text/html": value._repr_html_()})


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # sockets of the kernel's client
@pytest.mark.parametrize("carry_out", [in_this_process, pytest.param(in_a_kernel, marks=pytest.mark.nightly)])
def test_the_notebook_shows_what_comes_out(carry_out, tmp_path, monkeypatch, closelook, inline):
    monkeypatch.chdir(tmp_path)
    code, out, err = closelook("run", "--config", "smoke")
    assert code == 0, out + err
    written = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(written)
    ran = nbformat.from_dict(written)
    for cell in ran.cells:
        cell.pop("outputs", None)
        if cell.cell_type == "code":
            cell["outputs"] = []
    carry_out(ran)
    assert shown(ran) == shown(written)
    pages, pictures = (data_of(ran, kind) for kind in ("text/html", "image/png"))
    assert len(pages) == len(pictures) == 1
    assert pages[0].count(">et</span>") == 3, "a row for each method"
