"""Progress of a long stage on the screen: rows, speed and time left of every model, as bars or as lines."""

import io
import re
import threading

from rich.console import Console

from closelook.jobs.cluster import recorder as module
from closelook.jobs.cluster.recorder import Progress


def shown(terminal: bool, monkeypatch) -> str:
    """The screen after half of one model's rows and all of the other's."""
    monkeypatch.setattr(module, "LINE_EVERY_S", 0.0)
    screen = Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)
    with Progress({"gpt2": 16, "bert": 4}, screen) as progress:
        for model, rows in (("gpt2", 8), ("bert", 4)):
            progress.begin(model)
            progress.advance(model, rows, tokens=10 * rows)
        progress._bars.refresh()
    return screen.file.getvalue()


def test_lines_tell_rows_speed_and_time_left_of_every_model(monkeypatch):
    last = shown(False, monkeypatch).splitlines()[-1]
    half, done = last.removeprefix("attribute: ").split("; ")
    assert re.fullmatch(r"gpt2 8/16 rows, [\d,]+ tokens/s, \d+ s left", half)
    assert re.fullmatch(r"bert 4/4 rows, [\d,]+ tokens/s", done)


def test_a_terminal_gets_a_bar_a_model(monkeypatch):
    screen = shown(True, monkeypatch)
    assert re.search(r"gpt2 \S+ +8/16 +[\d,]+ tokens/s +[-\d]+:[-\d]+:[-\d]+", screen)
    assert re.search(r"bert \S+ +4/4 +[\d,]+ tokens/s", screen)


def test_lines_come_at_most_once_a_minute():
    screen = Console(file=io.StringIO(), force_terminal=False)
    with Progress({"gpt2": 16}, screen) as progress:
        progress.begin("gpt2")
        progress.advance("gpt2", 8, tokens=80)
    assert screen.file.getvalue() == ""


def test_models_that_wait_or_load_are_told_of_though_no_unit_ends(monkeypatch):
    monkeypatch.setattr(module, "LINE_EVERY_S", 0.0)
    output, enough = io.StringIO(), threading.Event()
    screen = Console(file=output, force_terminal=False)
    monkeypatch.setattr(screen, "print", lambda line, **options: (output.write(f"{line}\n"), enough.set()))
    with Progress({"gpt2": 16, "bert": 4, "llama": 2}, screen, slots="GPUs") as progress:
        for model in ("gpt2", "llama"):
            progress.begin(model)
        progress.end("llama")
        enough.clear()
        assert enough.wait(30), "nothing was committed, and yet there is a line"
        enough.clear()
        assert enough.wait(30), "a line that began after the last change"
    told = "attribute: gpt2 loading, or computing its first unit, since 0 s, 16 rows to do; bert waiting for GPUs"
    assert output.getvalue().splitlines()[-1] == told
