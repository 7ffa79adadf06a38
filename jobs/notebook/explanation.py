"""What `closelook.explain` gives: relevance with its tokens, as a heat map, a data frame, a matrix or plain data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rich.console import Console

from evaluation.report.inline import heatmaps
from jobs.commands.answers import Answer, entry, exported
from jobs.commands.opened import Opened
from jobs.commands.question import Question
from jobs.commands.terminal import fit_for_json
from lrp_core.method import Method
from lrp_core.types import Relevance, UserError, nearest

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor


@dataclass(frozen=True, repr=False)
class Explanation:
    """One text under one or more methods. It has several answers where several tokens were explained in turn."""

    question: Question
    opened: Opened
    methods: tuple[Method, ...]
    answers: tuple[Answer, ...]

    @property
    def text(self) -> str:
        return self.question.sentence

    @property
    def target(self) -> str:
        """What was explained; of several tokens, one after the other."""
        return " ".join(answer.target for answer in self.answers)

    @property
    def foil(self) -> str | None:
        return self.answers[0].foil

    @property
    def tokens(self) -> list[str]:
        """The tokens that were read for the last answer; one that starts a word holds its leading space."""
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

        rows = [
            {
                "answer": at,
                "target": answer.target,
                "foil": answer.foil,
                "method": name,
                "explained": float(relevance.explained[0]),
                "side": side,
                "at": index,
                "token": token,
                "special": special,
                "relevance": value,
            }
            for at, answer in enumerate(self.answers)
            for name, relevance in answer.relevance.items()
            for side, tokens in _sides(answer, relevance)
            for index, (token, special, value) in enumerate(tokens)
        ]
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """What `closelook explain --json` writes; numbers that are not finite are None."""
        return fit_for_json(exported(self.question, self.opened, self.answers))

    def show(self, by_word: bool = False, console: Console | None = None) -> None:
        """Print it as `closelook explain` does; `by_word` sums the relevance of a word's pieces."""
        from jobs.commands.explain import show

        for answer in self.answers:
            show(answer, self.methods, self.opened, console or Console(highlight=False, soft_wrap=True), by_word)

    def __repr__(self) -> str:
        what = self.answers[0].what if len(self.answers) == 1 else self.target
        return f"<Explanation of {what!r} by {self.opened.id}: {', '.join(one.name for one in self.methods)}>"

    def _repr_html_(self) -> str:
        what = " ".join(answer.what + answer.told for answer in self.answers)
        return str(heatmaps(self._entries, f"{self.opened.id}: why {what}"))

    @cached_property
    def _entries(self) -> list[dict[str, Any]]:
        return [
            entry(answer, self.methods, self.question, self.opened.id, at=at) for at, answer in enumerate(self.answers)
        ]


def _sides(answer: Answer, relevance: Relevance) -> Iterator[tuple[str, Iterator[tuple[str, bool, float]]]]:
    """The name of each side, and its tokens, whether each is special, and their relevance."""
    read = relevance.tokens[0].tolist()
    yield "text", zip(answer.tokens, answer.row["special_mask"], read, strict=True)
    if answer.decoder is not None and relevance.decoder_tokens is not None:
        started = [True] + [False] * (len(answer.decoder) - 1)
        yield "decoder", zip(answer.decoder, started, relevance.decoder_tokens[0].tolist(), strict=True)


class Explanations(tuple[Explanation, ...]):
    """Explanations of several texts, in their order."""

    def __new__(cls, explanations: Iterable[Explanation]) -> Explanations:
        return super().__new__(cls, explanations)

    def to_frame(self) -> pd.DataFrame:
        """The rows of all, with the number of the text."""
        import pandas as pd

        frames = [one.to_frame().assign(text=at) for at, one in enumerate(self)]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def to_dict(self) -> list[dict[str, Any]]:
        return [one.to_dict() for one in self]

    def show(self, by_word: bool = False) -> None:
        for one in self:
            one.show(by_word)

    def _repr_html_(self) -> str:
        return "".join(one._repr_html_() for one in self)
