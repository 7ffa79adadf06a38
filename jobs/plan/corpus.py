"""The corpus of a run for max-activating examples: its texts, and which models read it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from closelook.evaluation.benchmark.corpus import Corpus, CorpusSurvey, stamps, survey
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.models import ResolvedModel
from closelook.jobs.store import Ledger
from closelook.lrp_core.records.capabilities import NEURONS
from closelook.lrp_core.records.types import UserError

PRODUCT = "contexts"  # the product whose manifests hold surveys
UNIT_CHARACTERS = 1 << 20  # of the texts of a unit, about 250,000 tokens of English


@dataclass(frozen=True)
class Surveyed:
    """The corpus of a run, with what a first look through it found."""

    corpus: Corpus
    stamps: list[list[str | int]]
    survey: CorpusSurvey
    characters: int  # of the texts of a unit

    def record(self) -> dict[str, Any]:
        """The survey as an entry of a manifest."""
        return {
            "asked": asdict(self.corpus),
            "stamps": self.stamps,
            "survey": asdict(self.survey),
            "unit": self.characters,
        }


def corpus_of(config: RunConfig) -> Corpus:
    """The corpus of a run that has one."""
    assert config.neurons is not None
    settings = config.neurons.corpus
    names = ("source", "path", "hub", "subset", "split", "revision", "sha256", "column", "limit")
    return Corpus(**{name: getattr(settings, name) for name in names}, seed=config.seed)


def surveyed(config: RunConfig, ledger: Ledger) -> Surveyed:
    """The survey of the run's corpus.

    A manifest's survey is taken if the files are the same, or cannot be found now. Raises UserError if the corpus
    cannot be read or holds no text.
    """
    corpus, missing = corpus_of(config), None
    try:
        now = stamps(corpus)
    except UserError as error:
        now, missing = [], error
    for _, record in ledger.records(PRODUCT):
        known = record["corpus"]
        same = known["asked"] == asdict(corpus) and known["unit"] == UNIT_CHARACTERS
        if same and (missing or known["stamps"] == now):
            return Surveyed(corpus, known["stamps"], CorpusSurvey(**known["survey"]), UNIT_CHARACTERS)
    if missing is not None:
        raise UserError(f"config key 'neurons.corpus': {missing}")
    name = ("corpus", json.dumps([asdict(corpus), UNIT_CHARACTERS]))
    result = ledger.store.kept(name, now, lambda: survey(corpus, UNIT_CHARACTERS))
    return Surveyed(corpus, now, result, UNIT_CHARACTERS)


def reads_texts(model: ResolvedModel) -> bool:
    """True if the model can read a corpus: it reads text, and closelook knows its neurons."""
    return NEURONS in model.capabilities and not model.kind.images


def check_models(config: RunConfig, model: ResolvedModel) -> None:
    """Raises UserError for a model that the config names for the corpus and that cannot read it."""
    settings = config.neurons.corpus if config.neurons else None
    if settings is not None and model.config.name in (settings.models or ()) and not reads_texts(model):
        why = "reads images" if model.kind.images else f"lacks {NEURONS.says}"
        raise UserError(f"config key 'neurons.corpus.models': model {model.config.name} {why}: leave it out")
