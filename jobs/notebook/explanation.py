"""Results of `closelook.explain`: relevance of tokens, as a heat map, data frame, tensor, figure or plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from markupsafe import Markup

from closelook.evaluation.benchmark.encoding import START, Word, named
from closelook.evaluation.report.heatmaps.markup import heatmaps, matrices
from closelook.evaluation.report.spreadsheet import as_text
from closelook.jobs.commands.questions.answers import Answer, is_matrix, of_words, titled
from closelook.jobs.commands.questions.export import exported, shares_of_all
from closelook.jobs.commands.questions.opened import Opened
from closelook.jobs.commands.questions.question import Question
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.types import Relevance, UserError, nearest
from closelook.terminal import as_json, fit_for_json, say

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from torch import Tensor

    from closelook.evaluation.report.heatmaps.plotted import Plot

By = Literal["token", "word"]
_LIST_KINDS = (".pdf", ".html", ".json", ".csv")  # of files with several explanations


@dataclass(frozen=True, repr=False)
class Explanation:
    """The explanation of a text by one or more methods."""

    question: Question
    opened: Opened  # the model
    methods: tuple[Method, ...]
    answers: tuple[Answer, ...]  # the explained predictions in turn, or the spans of an answer; often one

    @property
    def text(self) -> str:
        """The explained text, with `___` if the caller marked the target's place; for an image, its path."""
        return self.question.sentence

    @property
    def target(self) -> str:
        """The explained target; several explained tokens are joined by spaces."""
        return " ".join(answer.target for answer in self.answers)

    @property
    def foil(self) -> str | None:
        """The foil of the first answer; None if it has none."""
        return self.answers[0].foil

    @property
    def answer(self) -> str | None:
        """The text of the answer whose spans are explained; None for single predictions."""
        answer = self.answers[0].said
        return None if answer is None else answer.text

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The characters [start, end) of `answer` that each entry of `answers` explains; [] for single predictions."""
        spans = [answer.row["said"] for answer in self.answers if answer.said is not None]
        return [(span.start, span.end) for span in spans]

    def shares(self) -> pd.DataFrame:
        """The share of each span's relevance that each part of the input has: one row for each span, method and part.

        Parts are the prompt, or the messages of a chat by role, the template, the first token, the earlier tokens of
        the answer, and what no token has, if the method promises a sum: what `biases` and the softmax of `attention`
        keep in the layers, where the method tells it, and the `rest`. `relevance` is the sum over a part's tokens,
        `share` the part's fraction of the sum of magnitudes, `share_without_first` the same without the first token in
        the divisor. Raises UserError for predictions that are not spans of an answer.
        """
        import pandas as pd

        if self.answer is None:
            raise UserError("only an answer has shares: explain one, with `answer`, or with `generate` and `spans`")
        return pd.DataFrame(shares_of_all(self.answers))

    @property
    def tokens(self) -> list[str]:
        """The input tokens of the answer that read most; tokens at the start of a word include the space before it."""
        return max((answer.tokens for answer in self.answers), key=len)

    def __getitem__(self, method: str) -> Tensor:
        """Relevance of each of `tokens` by a method: [T], or [N, T] for N > 1 answers.

        NaN marks tokens that the model had not read yet. Raises UserError for a method that is not in it.
        """
        import torch

        rows = [relevance.tokens[0] for relevance in self.relevance(method)]
        if len(rows) == 1:
            return rows[0]
        matrix = torch.full((len(rows), len(self.tokens)), torch.nan, dtype=rows[0].dtype)
        for line, row in zip(matrix, rows, strict=True):
            line[: len(row)] = row
        return matrix

    def relevance(self, method: str) -> list[Relevance]:
        """The method's Relevance, a batch of one sample, for each of `answers`. Raises UserError as `[...]` does."""
        known = self.answers[0].relevance
        if method not in known:
            raise UserError(
                f"this explanation has no method {method!r}{nearest(method, known)}; to get it, add it to `method` of "
                "closelook.explain"
            )
        return [answer.relevance[method] for answer in self.answers]

    def to_frame(self, by: By = "token") -> pd.DataFrame:
        """One row for each answer, method and token, or with `by="word"` for each answer, method and word.

        `side` is "text" for tokens of the text, or "decoder" for tokens that the decoder of an encoder-decoder has
        read, if the method gives their relevance. `at` is the index of the token or word on its side; the decoder's
        first is its start token. The relevance of a word is the sum over its tokens, or their mean where `summed` is
        False, because the method promises no sum. Raises UserError for another `by`, and for words of an image.
        """
        import pandas as pd

        if by not in ("token", "word"):
            raise UserError(f"`by` is 'token' or 'word', not {by!r}")
        rows = []
        for at, answer in enumerate(self.answers):
            if by == "word" and answer.images is not None:
                raise UserError("an image has no words: its rows are by token")
            for method in answer.methods:
                relevance, adds_up = answer.relevance[method.name], answer.adds_up(method)
                facts = {"answer": at, "target": answer.target, "foil": answer.foil, "method": method.name}
                facts["explained"] = float(relevance.explained[0])
                if by == "word":
                    facts["summed"] = adds_up
                for side in _sides(answer, relevance):
                    if by == "word":
                        side = side.by_words(answer.words if side.name == "text" else answer.decoder_words, adds_up)
                    cells = zip(side.texts, side.special, side.values, strict=True)
                    for index, (text, special, value) in enumerate(cells):
                        of_row = {"at": index, by: text, "special": special, "relevance": value}
                        rows.append({**facts, "side": side.name, **of_row})
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """The record of `closelook explain --json`; numbers that are not finite are None."""
        return fit_for_json(exported(self.question, self.opened, self.answers))

    def show(self, by_word: bool = False, console: Console | None = None) -> None:
        """Print the explanation on the screen, or on `console`, as `closelook explain` does.

        `by_word` joins the tokens of a word, whose relevance is their sum; their mean for methods that do not conserve.
        """
        from closelook import terminal
        from closelook.jobs.commands.questions.showing import show_all, show_layers

        screen = terminal.console
        terminal.console = console or screen
        try:
            show_all(self.answers, by_word)
            if next(iter(self.answers[0].relevance.values())).boundaries is not None:
                show_layers(self.answers)
        finally:
            terminal.console = screen

    def plot(self, by_word: bool | None = None) -> Plot:
        """A figure of matplotlib: coloured words, a matrix for several predictions, or maps over an image.

        `by_word` is as for `show`; by default, a figure has whole words, and a matrix tokens.
        """
        from closelook.evaluation.report.heatmaps.plotted import plotted

        if by_word is None:
            by_word = self.answers[0].images is None and not is_matrix(self.answers)
        return plotted(self._entries(by_word), titled(self.answers), is_matrix(self.answers))

    def save(self, path: str | PathLike[str], by_word: bool | None = None) -> None:
        """Write the explanation in the format of the suffix of `path`: .pdf, .svg or .png (a plot), .html, .json.

        `by_word` is as for `plot` or, of text, as for `show`, but a .json file always has every token. Raises UserError
        for another suffix, and for a file that cannot be written.
        """
        file = Path(path)
        kind = file.suffix.lower()
        with _writing(file):
            if kind in (".pdf", ".svg", ".png"):
                from closelook.evaluation.report.heatmaps.plotted import saved

                saved(self.plot(by_word), file)
            elif kind in _WRITERS:
                file.write_text(_WRITERS[kind](self, bool(by_word)), encoding="utf-8")
            else:
                known = ", ".join((".pdf", ".svg", ".png", *_WRITERS))
                raise UserError(f"the name of the file must end in one of {known}, not {file.name!r}")

    def __repr__(self) -> str:
        explained = self.answers[0].what if len(self.answers) == 1 else self.target
        methods = ", ".join(info.name for info in self.methods)
        return f"<Explanation of {_short(explained)} by {self.opened.id}: {methods}>"

    def _repr_html_(self) -> str:
        show = matrices if is_matrix(self.answers) else heatmaps
        return str(show(self._entries(), titled(self.answers)))

    def _entries(self, by_word: bool = False) -> list[dict[str, Any]]:
        """The entry of a heat map for each of `answers`."""
        return [answer.entry(by_word) for answer in self.answers]


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    """Raise UserError in place of an OSError inside the block."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from None


def _short(explained: str, most: int = 60) -> str:
    """The explained target in quotes, shortened to `most` characters."""
    return repr(explained if len(explained) <= most else f"{explained[: most - 1]}…")


def _html(explanation: Explanation, by_word: bool) -> str:
    """The explanation as an HTML page."""
    from closelook.jobs.commands.questions.explain import page

    return page([explanation.answers], by_word)


def _json(explanation: Explanation, by_word: bool) -> str:
    """The numbers of the explanation, by token, as JSON."""
    return as_json(explanation.to_dict())


_WRITERS: dict[str, Callable[[Explanation, bool], str]] = {".html": _html, ".json": _json}


class _Side(NamedTuple):
    """The tokens or words of one side with their relevance; special tokens are marked."""

    name: str
    texts: list[str]
    special: list[bool]
    values: list[float]

    def by_words(self, words: Sequence[Word], adds_up: bool) -> _Side:
        """The `words` of these tokens."""
        texts = [word.text.strip() for word in words]
        special = [self.special[word.tokens[0]] for word in words]
        return _Side(self.name, texts, special, of_words(self.values, [word.tokens for word in words], adds_up))


def _sides(answer: Answer, relevance: Relevance) -> Iterator[_Side]:
    yield _Side("text", answer.named_tokens, list(answer.row["special_mask"]), relevance.tokens[0].tolist())
    if answer.decoder is not None and relevance.decoder_tokens is not None:
        started = [piece == START for piece in answer.decoder]
        ids = answer.row["decoder_input_ids"][: len(answer.decoder)]
        yield _Side("decoder", named(answer.decoder, ids), started, relevance.decoder_tokens[0].tolist())


@dataclass(frozen=True, repr=False)
class NotExplained:
    """A text of a list that could not be explained, with the error."""

    text: Any  # as the caller gave it
    error: UserError

    def __getitem__(self, method: str) -> Tensor:
        """Raise the error, as there is no relevance."""
        raise self.error

    def to_dict(self) -> dict[str, Any]:
        """The text and the message of the error."""
        return {"text": self.text, "error": str(self.error)}

    def show(self, by_word: bool = False) -> None:
        """Print the error."""
        say(repr(self))

    def __repr__(self) -> str:
        return f"<NotExplained {self.text!r:.60}: {self.error}>"

    def _repr_html_(self) -> str:
        return str(Markup("<p>{}</p>").format(repr(self)))


class Explanations(tuple[Explanation | NotExplained, ...]):
    """A tuple with the explanation of each text, in the order of the texts; NotExplained where there is none."""

    @property
    def errors(self) -> dict[int, UserError]:
        """The errors of texts that could not be explained, by the index of the text."""
        return {at: entry.error for at, entry in enumerate(self) if isinstance(entry, NotExplained)}

    @property
    def explained(self) -> dict[int, Explanation]:
        """The explanations of texts that could be explained, by the number of the text."""
        return {at: entry for at, entry in enumerate(self) if isinstance(entry, Explanation)}

    def to_frame(self, by: By = "token") -> pd.DataFrame:
        """The rows of all explained texts (`Explanation.to_frame`), with the number of the text."""
        import pandas as pd

        frames = [entry.to_frame(by).assign(text=at) for at, entry in self.explained.items()]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def save(self, path: str | PathLike[str], by_word: bool | None = None) -> None:
        """Write all explained texts as the suffix of `path` says, in their order.

        That is .pdf (a sheet for each), .html (one page), .json (`to_dict`, with the errors) or .csv
        (`to_frame`). `by_word` joins the pieces of words, but not in .json; by default, it does in .pdf. Raises
        UserError for another suffix, if no text could be explained, and for files that cannot be written.
        """
        file = Path(path)
        kind, every = file.suffix.lower(), list(self.explained.values())
        if kind not in _LIST_KINDS:
            raise UserError(
                f"the name of the file must end in one of {', '.join(_LIST_KINDS)} for several texts, not {file.name!r}"
            )
        if not every:
            raise UserError("no text could be explained: nothing to save")
        with _writing(file):
            if kind == ".pdf":
                from closelook.evaluation.report.heatmaps.plotted import saved_as_sheets

                saved_as_sheets((entry.plot(by_word) for entry in every), file)
            else:
                file.write_text(self._written(kind, every, bool(by_word)), encoding="utf-8")

    def _written(self, kind: str, every: Sequence[Explanation], by_word: bool) -> str:
        """The content of a file of this kind, which shows `every` explained text; .json has the errors too."""
        if kind == ".json":
            return as_json(self.to_dict())
        if kind == ".csv":
            return self.to_frame("word" if by_word else "token").map(as_text).to_csv(index=False)
        from closelook.jobs.commands.questions.explain import page

        return page([entry.answers for entry in every], by_word)

    def to_dict(self) -> list[dict[str, Any]]:
        """The record of each text, see `Explanation.to_dict` and `NotExplained.to_dict`."""
        return [entry.to_dict() for entry in self]

    def show(self, by_word: bool = False) -> None:
        """Print every explanation or error in turn, see `Explanation.show`."""
        for entry in self:
            entry.show(by_word)

    def __repr__(self) -> str:
        errors = self.errors
        first = f", {len(errors)} not: text {min(errors)}: {errors[min(errors)]}" if errors else ""
        return f"<Explanations of {len(self) - len(errors)} texts{first}>"

    def _repr_html_(self) -> str:
        return "".join(entry._repr_html_() for entry in self)
