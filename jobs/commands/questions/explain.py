"""`closelook explain`: explains predictions for a text in the terminal, as an HTML page and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from closelook.evaluation.report.heatmaps.markup import matrices, shares_table
from closelook.evaluation.report.page import Provenance, explain_page
from closelook.jobs.commands.questions.answers import Answer, answers, finer_arguments, is_matrix, titled
from closelook.jobs.commands.questions.export import exported, shares_of_all
from closelook.jobs.commands.questions.opened import Opened
from closelook.jobs.commands.questions.question import Question
from closelook.jobs.commands.questions.showing import show_all, show_layers
from closelook.lrp_core.methods.record import Method
from closelook.progress import shown
from closelook.terminal import as_json, write_file
from closelook.versions import versions


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
    """Explain a question and print the tokens coloured by relevance, one line for each method.

    A terminal without colours gets numbers. `by_word` joins the tokens of a word, `layers` also prints the sums of
    relevance at every layer, and `checkpoint` saves memory for long texts. `html` and `json_file` are files to write.
    Raises UserError for a question that does not fit the model or a method, and for a file that cannot be written.
    """
    with shown():
        answered = list(answers(question, opened, methods, **finer_arguments(layers, checkpoint)))
    show_all(answered, by_word)
    if layers:
        show_layers(answered)
    if html is not None:
        write_file(html, page([answered], by_word))
    if json_file is not None:
        write_file(json_file, as_json(exported(question, opened, answered)))


def page(texts: Sequence[Sequence[Answer]], by_word: bool = False) -> str:
    """The explained predictions of one or more texts as an HTML page.

    Above several predictions of a single text stands a matrix, or a table of shares for an answer.
    """
    answers = texts[0]
    opened = answers[0].opened
    provenance = Provenance("explain", "", versions(), models=[(opened.id, opened.resolved.identity)])
    entries, above = [answer.entry(by_word) for answers in texts for answer in answers], None
    if len(texts) > 1:
        numbers = [at for at, answers in enumerate(texts, start=1) for _ in answers]
        for at, entry in zip(numbers, entries, strict=True):
            entry["sample_id"] = f"text {at}, {entry['sample_id']}"
        return explain_page(entries, f"{opened.id}: {len(texts):,} texts", provenance)
    if is_matrix(answers):
        above = matrices(entries, "what each predicted token owes to each token before it")
    elif answers[0].said is not None:
        above = shares_table(shares_of_all(answers))
    return explain_page(entries, titled(answers), provenance, above)
