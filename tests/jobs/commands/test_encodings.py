"""What commands print on a screen, or into a pipe, that is not UTF-8."""

import sys
from io import BytesIO, TextIOWrapper

import pytest
from rich.console import Console

import closelook
import closelook.jobs.__main__ as cli
from closelook import terminal

MODEL = "demo/gpt2"
TWO_SPACES = "The keys  to"  # a space alone is printed as a sign that few encodings have
SIGN = "\\u2423"


def printed(encoding):
    """A stream of this encoding, which refuses other characters, and its bytes."""
    content = BytesIO()
    return TextIOWrapper(content, encoding=encoding, write_through=True), content


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp932"])
def test_a_command_escapes_what_the_encoding_of_its_output_lacks(monkeypatch, encoding):
    stream, content = printed(encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(terminal, "console", Console(highlight=False, soft_wrap=True, width=200))
    monkeypatch.setattr(sys, "argv", ["closelook", "explain", "--model", MODEL, TWO_SPACES])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    assert SIGN in content.getvalue().decode(encoding)


def test_shown_explanations_escape_what_the_encoding_lacks_and_leave_the_stream_as_it_was(monkeypatch):
    stream, content = printed("ascii")
    monkeypatch.setattr(terminal, "console", Console(file=stream, width=200))
    closelook.explain(TWO_SPACES, model=MODEL).show()
    assert SIGN in content.getvalue().decode("ascii")
    assert stream.errors == "strict"
