"""The answers of a run with the relevance of their sources, as a table or as an explorer in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

from evaluation.report.leaves import Entry
from evaluation.report.page import Provenance, answers_page
from jobs.config import RunConfig
from jobs.config.methods import configured
from jobs.plan.cells import make_plan
from jobs.plan.node import Run
from jobs.stages.report.answers import answer_entries
from jobs.store import Ledger, Store
from jobs.versions import versions

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ("sample_id", "model", "task", "way", "sentence", "method", "source", "relevance", "text")
_PIXELS = 640  # the height of the explorer in a notebook


def answers_of(config: RunConfig, store: Store) -> Answers:
    """The answers that the report of a run shows, `ablations.shown` of each task and model, of complete artifacts."""
    run = Run(config, make_plan(config, store, trust_known=True), Ledger(store))
    return Answers(list(answer_entries(run, configured(config))), store.root)


@dataclass(frozen=True)
class Answers:
    """Answers of a run under `root`; `entries` hold prompt, sources, sentences, and relevance by method."""

    entries: list[Entry]
    root: str

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row for each sentence of an answer, method and source: the relevance of the source for the sentence.

        Where a method explains only the answer as a whole, there is one row for each source, with the whole answer.
        """
        for entry in self.entries:
            facts = {name: entry[name] for name in _COLUMNS[:4]}
            for method in entry["rows"]:
                for (start, end), values in sentences_of(entry, method):
                    of_sentence = facts | {"sentence": entry["answer"][start:end], "method": method["label"]}
                    for source, ((low, high), value) in enumerate(zip(entry["units"], values, strict=True), start=1):
                        text = entry["prompt"][low:high]
                        yield {**of_sentence, "source": source, "relevance": value, "text": text}

    def to_frame(self) -> pd.DataFrame:
        """The rows of `rows` as a pandas frame."""
        import pandas as pd

        return pd.DataFrame(list(self.rows()), columns=list(_COLUMNS))

    @cached_property
    def page(self) -> str:
        """The report's explorer of answers as an HTML page of its own."""
        return answers_page(self.entries, "Sources of answers", Provenance(self.root, "", versions()))

    def __repr__(self) -> str:
        return f"<Answers: {len(self.entries)} of {self.root}>"

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.page)}" style="width:100%;height:{_PIXELS}px;border:0"></iframe>'


def sentences_of(entry: Entry, method: Mapping[str, Any]) -> list[tuple[tuple[int, int], list[float]]]:
    """((start, end), relevance of every source) of each sentence of an answer; of all of it if there are no sentences.

    (start, end) are the characters of the sentence in `entry["answer"]`.
    """
    if not method["parts"]:
        return [((0, len(entry["answer"])), method["whole"])]
    return [((start, end), part) for (start, end), part in zip(entry["sentences"], method["parts"], strict=True)]
