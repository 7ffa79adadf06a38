"""Results of `closelook.explain`: relevance with its tokens, as a heat map, a data frame, a matrix or plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from evaluation.report.heatmaps.inline import heatmaps, matrices
from jobs.commands.questions.answers import Answer, is_matrix, titled
from jobs.commands.questions.export import exported
from jobs.commands.questions.opened import Opened
from jobs.commands.questions.question import Question
from jobs.commands.questions.shares import shares_of_all
from jobs.commands.terminal import as_json, fit_for_json, say
from lrp_core.methods.record import Method
from lrp_core.records.types import Relevance, UserError, nearest

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from torch import Tensor

    from evaluation.report.heatmaps.plotted import Plot


@dataclass(frozen=True, repr=False)
class Explanation:
    """The explanation of a text by one or more methods.

    It has several answers if several tokens were explained in turn.
    """

    question: Question
    opened: Opened
    methods: tuple[Method, ...]
    answers: tuple[Answer, ...]

    @property
    def text(self) -> str:
        return self.question.sentence

    @property
    def target(self) -> str:
        """The explained target; of several tokens, one after the other."""
        return " ".join(answer.target for answer in self.answers)

    @property
    def foil(self) -> str | None:
        return self.answers[0].foil

    @property
    def answer(self) -> str | None:
        """The text of the answer whose spans are explained; None for single predictions."""
        answer = self.answers[0].said
        return None if answer is None else answer.text

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The characters [start, end) of `answer` that each of `answers` explains; empty for single predictions."""
        spans = [answer.row["said"] for answer in self.answers if answer.said is not None]
        return [(span.start, span.end) for span in spans]

    def shares(self) -> pd.DataFrame:
        """The share of each part of the input in the explanation of each span of an answer; a row for each part.

        Parts are the prompt, or the messages of a chat by role, the template, the first token, the answer's own earlier
        tokens and the residual, where the method has one (`biases` under rules, else `rest`). `relevance` is their
        sum, `share` is of magnitudes, and `share_without_first` of those without the first token's. Raises UserError
        for predictions that are no spans of an answer.
        """
        import pandas as pd

        if self.answer is None:
            raise UserError("shares are of an answer: explain one, by `answer` or by `generate` and `spans`")
        return pd.DataFrame(shares_of_all(self.answers))

    @property
    def tokens(self) -> list[str]:
        """The input tokens of the last answer; tokens at the start of a word include the space before it."""
        return self.answers[-1].tokens

    def __getitem__(self, method: str) -> Tensor:
        """Relevance of every token under a method [T], or, of several answers, [N, T] with NaN for tokens not yet read.

        Raises UserError for a method that was not asked for.
        """
        import torch

        rows = [relevance.tokens[0] for relevance in self.relevance(method)]
        if len(rows) == 1:
            return rows[0]
        matrix = torch.full((len(rows), len(rows[-1])), torch.nan, dtype=rows[0].dtype)
        for line, row in zip(matrix, rows, strict=True):
            line[: len(row)] = row
        return matrix

    def relevance(self, method: str) -> list[Relevance]:
        """All that the method gave, a batch of one for each answer. Raises UserError as `[...]` does."""
        known = self.answers[0].relevance
        if method not in known:
            raise UserError(f"{method!r} was not asked for{nearest(method, known)}")
        return [answer.relevance[method] for answer in self.answers]

    def to_frame(self) -> pd.DataFrame:
        """A row for each answer, method and token.

        `side` is "text" of what the model reads and, of encoder-decoders, "decoder" of what the decoder has seen, where
        the method speaks of it; `at` counts the tokens of a side, the decoder's from its start token on.
        """
        import pandas as pd

        rows = []
        for at, answer in enumerate(self.answers):
            for name, relevance in answer.relevance.items():
                facts = {"answer": at, "target": answer.target, "foil": answer.foil, "method": name}
                facts["explained"] = float(relevance.explained[0])
                for side, tokens in _sides(answer, relevance):
                    for index, (token, special, value) in enumerate(tokens):
                        cells = {"at": index, "token": token, "special": special, "relevance": value}
                        rows.append({**facts, "side": side, **cells})
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """The record of `closelook explain --json`; numbers that are not finite are None."""
        return fit_for_json(exported(self.question, self.opened, self.answers))

    def show(self, by_word: bool = False, console: Console | None = None) -> None:
        """Print it as `closelook explain` does, or on `console`; `by_word` joins the pieces of a word.

        A word has the sum of its pieces' relevance, or their mean under methods whose sums mean nothing.
        """
        from jobs.commands import terminal
        from jobs.commands.questions.conservation import show_layers
        from jobs.commands.questions.showing import show_all

        screen = terminal.console
        terminal.console = console or screen
        try:
            show_all(self.answers, by_word)
            if next(iter(self.answers[0].relevance.values())).boundaries is not None:
                show_layers(self.answers)
        finally:
            terminal.console = screen

    def plot(self, by_word: bool = False) -> Plot:
        """A figure of matplotlib: rows of coloured tokens; several predictions as a matrix; of an image, its maps.

        `by_word` as for `show`.
        """
        from evaluation.report.heatmaps.plotted import plotted

        return plotted(self._entries(by_word), titled(self.answers), is_matrix(self.answers))

    def save(self, path: str | PathLike[str], by_word: bool = False) -> None:
        """Write it as the suffix of `path` says: .pdf, .svg or .png (`plot`), .tex, .html (a page) or .json.

        `by_word` as for `show`, but of .json, which has every token. Raises UserError for another suffix, and for files
        that cannot be written.
        """
        file = Path(path)
        kind = file.suffix.lower()
        try:
            if kind in (".pdf", ".svg", ".png"):
                from evaluation.report.heatmaps.plotted import saved

                saved(self.plot(by_word), file)
            elif kind in _WRITERS:
                file.write_text(_WRITERS[kind](self, by_word), encoding="utf-8")
            else:
                known = ", ".join((".pdf", ".svg", ".png", *_WRITERS))
                raise UserError(f"a file of an explanation ends in one of {known}, not {file.name!r}")
        except OSError as error:
            raise UserError(f"cannot write {file}: {error.strerror}") from None

    def __repr__(self) -> str:
        explained = self.answers[0].what if len(self.answers) == 1 else self.target
        methods = ", ".join(info.name for info in self.methods)
        return f"<Explanation of {_short(explained)} by {self.opened.id}: {methods}>"

    def _repr_html_(self) -> str:
        show = matrices if is_matrix(self.answers) else heatmaps
        return str(show(self._entries(), titled(self.answers)))

    def _entries(self, by_word: bool = False) -> list[dict[str, Any]]:
        return [answer.entry(by_word) for answer in self.answers]


def _short(explained: str, most: int = 60) -> str:
    """The explained text in quotes, shortened to `most` characters."""
    return repr(explained if len(explained) <= most else f"{explained[: most - 1]}…")


def _tex(explanation: Explanation, by_word: bool) -> str:
    from evaluation.report.heatmaps.latex import latex

    return latex(explanation._entries(by_word), titled(explanation.answers))


def _html(explanation: Explanation, by_word: bool) -> str:
    from jobs.commands.questions.explain import page

    return page(explanation.answers, by_word)


_WRITERS: dict[str, Callable[[Explanation, bool], str]] = {
    ".tex": _tex,
    ".html": _html,
    ".json": lambda explanation, _: as_json(explanation.to_dict()),
}


def _sides(answer: Answer, relevance: Relevance) -> Iterator[tuple[str, Iterator[tuple[str, bool, float]]]]:
    """The name of each side, and its tokens, whether each is special, and their relevance."""
    read = relevance.tokens[0].tolist()
    yield "text", zip(answer.tokens, answer.row["special_mask"], read, strict=True)
    if answer.decoder is not None and relevance.decoder_tokens is not None:
        started = [True] + [False] * (len(answer.decoder) - 1)
        yield "decoder", zip(answer.decoder, started, relevance.decoder_tokens[0].tolist(), strict=True)


@dataclass(frozen=True, repr=False)
class NotExplained:
    """An entry of a list that could not be explained, and the error that says why."""

    text: Any  # as it was given
    error: UserError

    def __getitem__(self, method: str) -> Tensor:
        """Raises the error."""
        raise self.error

    def to_dict(self) -> dict[str, Any]:
        return {"text": self.text, "error": str(self.error)}

    def show(self, by_word: bool = False) -> None:
        """Print the error."""
        say(repr(self))

    def __repr__(self) -> str:
        return f"<NotExplained {self.text!r:.60}: {self.error}>"

    def _repr_html_(self) -> str:
        return str(Markup("<p>{}</p>").format(repr(self)))


class Explanations(tuple[Explanation | NotExplained, ...]):
    """Explanations of several texts, in their order."""

    @property
    def errors(self) -> dict[int, UserError]:
        """The errors of texts that could not be explained, by the number of the text."""
        return {at: entry.error for at, entry in enumerate(self) if isinstance(entry, NotExplained)}

    def to_frame(self) -> pd.DataFrame:
        """The rows of all explained texts, with the number of the text."""
        import pandas as pd

        frames = [entry.to_frame().assign(text=at) for at, entry in enumerate(self) if isinstance(entry, Explanation)]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def to_dict(self) -> list[dict[str, Any]]:
        return [entry.to_dict() for entry in self]

    def show(self, by_word: bool = False) -> None:
        for entry in self:
            entry.show(by_word)

    def __repr__(self) -> str:
        errors = self.errors
        first = f", {len(errors)} not: text {min(errors)}: {errors[min(errors)]}" if errors else ""
        return f"<Explanations of {len(self) - len(errors)} texts{first}>"

    def _repr_html_(self) -> str:
        return "".join(entry._repr_html_() for entry in self)
