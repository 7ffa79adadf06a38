"""Results of `closelook.explain`: relevance with its tokens, as a heat map, a data frame, a matrix or plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from evaluation.report.inline import heatmaps
from jobs.commands.answers import Answer, exported
from jobs.commands.opened import Opened
from jobs.commands.question import Question
from jobs.commands.terminal import fit_for_json
from lrp_core.method import Method
from lrp_core.types import Relevance, UserError, nearest

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
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
        """The explained target; of several tokens, one after the other."""
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
        """Print it as `closelook explain` does, or on `console`; `by_word` sums the relevance of a word's pieces."""
        from jobs.commands import terminal
        from jobs.commands.explain import show

        screen = terminal.console
        terminal.console = console or screen
        try:
            for answer in self.answers:
                show(answer, by_word)
        finally:
            terminal.console = screen

    def __repr__(self) -> str:
        explained = self.answers[0].what if len(self.answers) == 1 else self.target
        return f"<Explanation of {explained!r} by {self.opened.id}: {', '.join(info.name for info in self.methods)}>"

    def _repr_html_(self) -> str:
        explained = " ".join(answer.what + answer.space for answer in self.answers)
        return str(heatmaps(self._entries, f"{self.opened.id}: why {explained}"))

    @cached_property
    def _entries(self) -> list[dict[str, Any]]:
        return [answer.entry() for answer in self.answers]


def _sides(answer: Answer, relevance: Relevance) -> Iterator[tuple[str, Iterator[tuple[str, bool, float]]]]:
    """The name of each side, and its tokens, whether each is special, and their relevance."""
    read = relevance.tokens[0].tolist()
    yield "text", zip(answer.tokens, answer.row["special_mask"], read, strict=True)
    if answer.decoder is not None and relevance.decoder_tokens is not None:
        started = [True] + [False] * (len(answer.decoder) - 1)
        yield "decoder", zip(answer.decoder, started, relevance.decoder_tokens[0].tolist(), strict=True)


class Explanations(tuple[Explanation, ...]):
    """Explanations of several texts, in their order."""

    def to_frame(self) -> pd.DataFrame:
        """The rows of all, with the number of the text."""
        import pandas as pd

        frames = [explanation.to_frame().assign(text=at) for at, explanation in enumerate(self)]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def to_dict(self) -> list[dict[str, Any]]:
        return [explanation.to_dict() for explanation in self]

    def show(self, by_word: bool = False) -> None:
        for explanation in self:
            explanation.show(by_word)

    def _repr_html_(self) -> str:
        return "".join(explanation._repr_html_() for explanation in self)
