"""Results of `closelook.explain`: relevance of tokens, as a heat map, data frame, tensor, figure or plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from markupsafe import Markup

from closelook.evaluation.report.heatmaps.markup import heatmaps
from closelook.evaluation.report.spreadsheet import as_text
from closelook.explaining.explained import Explained, Side
from closelook.explaining.heatmap import entry_of, page, sum_by_word, titled
from closelook.explaining.opening import Model
from closelook.explaining.record import prediction, shares_of_all
from closelook.explaining.showing import show_all
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.types import Relevance, UserError, nearest
from closelook.terminal import as_json, fit_for_json, say

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from closelook.evaluation.report.heatmaps.plotted import Plot

By = Literal["token", "word"]
_FIGURES = (".pdf", ".svg", ".png")


@dataclass(frozen=True, repr=False)
class Explanation:
    """The explanation of a text by one or more methods."""

    model: Model
    text: str  # with `___` if the caller marked the target's place; for an image, its path
    prompt: str | None  # the string that the tokenizer got; None for models that predict labels
    answers: tuple[Explained, ...]  # the explained predictions in turn, or the spans of an answer; often one

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods."""
        return self.answers[0].methods

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
        answer = self.answers[0].answer
        return None if answer is None else answer.text

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The characters [start, end) of `answer` that each entry of `answers` explains; [] for single predictions."""
        spans = [answer.span for answer in self.answers if answer.span is not None]
        return [(span.start, span.end) for span in spans]

    def shares(self) -> pd.DataFrame:
        """The share of each span's relevance that each part of the input has: one row for each span, method and part.

        `relevance` is the sum over a part's tokens, `share` the part's fraction of the sum of magnitudes,
        `share_without_first` the same without the first token in the divisor. Parts are in docs/answers.md. Raises
        UserError for predictions that are not spans of an answer.
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
                facts = {"answer": at, "target": answer.target, "foil": answer.foil, "method": method.name}
                facts["explained"] = float(answer.relevance[method.name].explained[0])
                rows += [facts | row for row in _rows(answer, method, by)]
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """The record of `closelook explain --json`; numbers that are not finite are None."""
        record: dict[str, Any] = {**self.model.facts, "text": self.text}
        if self.answer is not None:
            record["answer"] = self.answer
        if self.prompt is not None:
            record["prompt"] = self.prompt
        record["predictions"] = [prediction(answer) for answer in self.answers]
        return fit_for_json(record)  # type: ignore[no-any-return]

    def show(self, by_word: bool = False) -> None:
        """Print the explanation on the screen, as `closelook explain` does.

        `by_word` joins the tokens of a word, whose relevance is their sum; their mean for methods that do not conserve.
        """
        show_all(self.answers, self.model.dtype, by_word)

    def plot(self, by_word: bool | None = None) -> Plot:
        """A figure of matplotlib: coloured words, or maps over an image.

        `by_word` is as for `show`; by default, a figure has whole words.
        """
        from closelook.evaluation.report.heatmaps.plotted import plotted

        if by_word is None:
            by_word = self.answers[0].images is None
        return plotted(self._entries(by_word), titled(self.answers))

    def save(self, path: str | PathLike[str], by_word: bool | None = None) -> None:
        """Write the explanation in the format of the suffix of `path`: .pdf, .svg or .png (a plot), .html, .json.

        `by_word` is as for `plot` or, of text, as for `show`, but a .json file always has every token. Raises UserError
        for another suffix, and for a file that cannot be written.
        """
        file = Path(path)
        kind = _suffix(file, (*_FIGURES, ".html", ".json"))
        with _writing(file):
            if kind in _FIGURES:
                from closelook.evaluation.report.heatmaps.plotted import saved

                saved(self.plot(by_word), file)
            elif kind == ".html":
                file.write_text(self.page(bool(by_word)), encoding="utf-8")
            else:
                file.write_text(as_json(self.to_dict()), encoding="utf-8")

    def page(self, by_word: bool = False) -> str:
        """The HTML page of `closelook explain --html`."""
        return page([self.answers], self.model.identity, by_word)

    def __repr__(self) -> str:
        explained = self.answers[0].why if len(self.answers) == 1 else self.target
        methods = ", ".join(info.name for info in self.methods)
        short = explained if len(explained) <= 60 else f"{explained[:59]}…"
        return f"<Explanation of {short!r} by {self.model.id}: {methods}>"

    def _repr_html_(self) -> str:
        return str(heatmaps(self._entries(), titled(self.answers)))

    def _entries(self, by_word: bool = False) -> list[dict[str, Any]]:
        """The entry of a heat map for each of `answers`."""
        return [entry_of(answer, by_word) for answer in self.answers]


def _rows(answer: Explained, method: Method, by: By) -> Iterator[dict[str, Any]]:
    """The rows of a frame for one answer and method."""
    relevance, adds_up = answer.relevance[method.name], answer.adds_up(method)
    sides = [(answer.text, relevance.tokens)]
    if answer.decoder is not None and relevance.decoder_tokens is not None:
        sides.append((answer.decoder, relevance.decoder_tokens))
    for side, values in sides:
        for at, (text, special, value) in enumerate(_cells(side, values[0].tolist(), by, adds_up)):
            row: dict[str, Any] = {"summed": adds_up} if by == "word" else {}
            yield {**row, "side": side.name, "at": at, by: text, "special": special, "relevance": value}


def _cells(side: Side, values: list[float], by: By, adds_up: bool) -> Iterator[tuple[str, bool, float]]:
    """Yield (text, is special, relevance) of each token or word of a side."""
    if by == "token":
        yield from zip(side.shown, side.special, values, strict=True)
        return
    groups = [word.tokens for word in side.words]
    for word, value in zip(side.words, sum_by_word(values, groups, adds_up), strict=True):
        yield word.text.strip(), side.special[word.tokens[0]], value


def _suffix(file: Path, known: Sequence[str], several: str = "") -> str:
    """The suffix of a file. Raises UserError unless it is among the `known` ones."""
    suffix = file.suffix.lower()
    if suffix not in known:
        raise UserError(f"the name of the file must end in one of {', '.join(known)}{several}, not {file.name!r}")
    return suffix


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    """Raise UserError in place of an OSError inside the block."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from None


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
        file, every = Path(path), list(self.explained.values())
        kind = _suffix(file, (".pdf", ".html", ".json", ".csv"), " for several texts")
        if not every:
            raise UserError("no text could be explained: nothing to save")
        with _writing(file):
            if kind == ".pdf":
                from closelook.evaluation.report.heatmaps.plotted import saved_as_sheets

                saved_as_sheets((entry.plot(by_word) for entry in every), file)
            elif kind == ".json":
                file.write_text(as_json(self.to_dict()), encoding="utf-8")
            elif kind == ".csv":
                frame = self.to_frame("word" if by_word else "token").map(as_text)
                file.write_text(frame.to_csv(index=False), encoding="utf-8")
            else:
                texts = [entry.answers for entry in every]
                file.write_text(page(texts, every[0].model.identity, bool(by_word)), encoding="utf-8")

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
