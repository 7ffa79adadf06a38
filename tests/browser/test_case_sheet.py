"""A case prints on one sheet of paper, however long its text and however many methods explain it."""

import subprocess

import pytest

from closelook.evaluation.explained.sheet import Case, Word, sheets
from closelook.evaluation.report.page import Provenance
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.browser


def long_case(words: int, methods: int) -> Case:
    """A text of long words, explained by so many methods."""
    start, text = 0, []
    for number in range(words):
        name = f"considerable{number}"
        text.append(Word(name, "text", start, start + len(name), False))
        start += len(name) + 1
    values = [(number * 37 % 101 - 50) / 10 for number in range(words)]
    relevance = {f"method_{number}": values for number in range(methods)}
    return Case("A-17", "model", "positive", "negative", 0.9, text, relevance)


@pytest.mark.parametrize(("words", "methods", "cases"), [(8, 1, 1), (3000, 8, 1), (8, 1, 2)])
def test_a_case_prints_on_one_sheet(words, methods, cases, tmp_path, chromium_programs):
    (tmp_path / "case.html").write_text(
        sheets([long_case(words, methods)] * cases, Provenance("rows", "", {"closelook": "0"}))
    )
    printed = tmp_path / "case.pdf"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer", f"--print-to-pdf={printed}"]
    command = [chromium_programs[0], *options, (tmp_path / "case.html").as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    assert printed.read_bytes().count(b"/Type /Page\n") == cases
