"""The stages of a run, in order, and the summary that each returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line asks for the stages' names before it imports what a store needs
    from jobs.store import Artifact


@dataclass(frozen=True)
class StageSummary:
    """The result of a stage: artifacts that it computed and that were complete before, and a line for each failure."""

    stage: str
    computed: int = 0
    skipped: int = 0
    failures: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()  # what the screen shows, one fact a line
    made: tuple[Artifact, ...] = ()  # the artifacts that it computed

    @property
    def complete(self) -> bool:
        return not self.failures


@dataclass(frozen=True)
class Stage:
    """A command that makes the products of its name, each by its `make` or by workers."""

    name: str
    about: str  # what its command does
    setting: str | None = None  # key of the config without which a whole run leaves it out
    own_command: bool = False  # the command line has a function for it, with options of its own
    planned: bool = False  # `closelook plan` says what it will cost
    counts: str = "samples"  # what the progress of its workers counts
    of_complete: bool = False  # it makes what it can of what is complete: what is not is no failure of the stage


#: In the order of a run.
STAGES = {
    stage.name: stage
    for stage in (
        Stage("prepare", "Read the sources, annotate evidence, tokenise."),
        Stage(
            "select",
            "Choose the options that lists leave open, by faithfulness.",
            setting="select",
            planned=True,
        ),
        Stage("attribute", "Compute the relevance that is missing.", planned=True, counts="rows"),
        Stage("evaluate", "Score complete relevance against the evidence.", of_complete=True),
        Stage("prune", "Draw the head pruning curves.", setting="prune", counts="curves"),
        Stage(
            "perturb",
            "Draw the faithfulness curves: what models say as tokens go.",
            setting="perturb",
            planned=True,
        ),
        Stage(
            "ablations",
            "Ask for answers again without some of their sources, and judge methods by it.",
            setting="ablations",
        ),
        Stage(
            "controls",
            "Hold methods against controls: is what they say about the model at all?",
            setting="controls",
        ),
        Stage(
            "neurons",
            "Knock neurons out, by what methods say of them.",
            setting="neurons",
            own_command=True,
        ),
        Stage("bench", "Measure the run's own models.", setting="bench", own_command=True),
        Stage("report", "Write tables, figures and pages."),
    )
}
