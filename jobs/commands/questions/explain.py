"""The explanation of a text, of one prediction or several in turn: in the terminal, as a page and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evaluation.report.heatmaps.inline import matrices, shares_table
from evaluation.report.page import Provenance, explain_page
from jobs.commands.progress import shown
from jobs.commands.questions.answers import Answer, answers, is_matrix, titled
from jobs.commands.questions.conservation import show_layers
from jobs.commands.questions.export import exported
from jobs.commands.questions.opened import Opened
from jobs.commands.questions.question import Question
from jobs.commands.questions.shares import shares_of_all
from jobs.commands.questions.showing import show_all
from jobs.commands.terminal import as_json, write_file
from jobs.versions import versions
from lrp_core.methods.record import Method


def explain(
    question: Question,
    opened: Opened,
    methods: Sequence[Method],
    by_word: bool = False,
    layers: bool = False,
    checkpoint: bool = False,
    html: Path | None = None,
    json_file: Path | None = None,
) -> None:
    """Print the tokens coloured by their relevance for the target (rather than the foil), a line a method.

    Without colours the numbers are printed; `by_word` sums the relevance of a word's pieces, `layers` also prints the
    sums of relevance layer by layer, and `checkpoint` holds less in memory for long texts. Raises UserError for words
    that are not one token of the model's, for questions that a model or method has no answer to, and for files that
    cannot be written.
    """
    finer = {name: True for name, asked in (("boundaries", layers), ("checkpoint", checkpoint)) if asked}
    with shown():
        answered = list(answers(question, opened, methods, **finer))
    show_all(answered, by_word)
    if layers:
        show_layers(answered)
    if html is not None:
        write_file(html, page(answered, by_word))
    if json_file is not None:
        write_file(json_file, as_json(exported(question, opened, answered)))


def page(answers: Sequence[Answer], by_word: bool = False) -> str:
    """The explanation of a text as an HTML page: its predictions, and above several of them a matrix of all."""
    opened = answers[0].opened
    provenance = Provenance("explain", "", versions(), models=[(opened.id, opened.resolved.identity)])
    title, entries, above = titled(answers), [answer.entry(by_word) for answer in answers], None
    if is_matrix(answers):
        above = matrices(entries, "what each predicted token owes to each token before it")
    elif answers[0].said is not None:
        above = shares_table(shares_of_all(answers))
    return explain_page(entries, title, provenance, above)
