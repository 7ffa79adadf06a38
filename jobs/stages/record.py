"""The stages of a run, in order, and the summary that each returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line asks for the stages' names before it imports what a store needs
    from closelook.jobs.store import Artifact


@dataclass(frozen=True)
class StageSummary:
    """The result of a stage: how many artifacts it computed or found complete, and a line for each failure."""

    stage: str
    computed: int = 0
    skipped: int = 0
    failures: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()  # to print, one fact a line
    made: tuple[Artifact, ...] = ()  # the artifacts that it computed

    @property
    def complete(self) -> bool:
        """True if nothing failed."""
        return not self.failures


@dataclass(frozen=True)
class Stage:
    """A stage of a run, and the command of its name. It computes its products with workers, or each by its `make`."""

    name: str
    about: str  # what its command does, for `--help`
    setting: str | None = None  # config key: a whole run skips the stage if it is not set; None: never
    own_command: bool = False  # True if the command line defines the command itself, with options of its own
    planned: bool = False  # True if `closelook plan` estimates its cost
    counts: str = "samples"  # what its progress counts
    alone: bool = False  # computes for one model at a time, so that models do not disturb each other's timing
    of_complete: bool = False  # skips incomplete inputs without counting them as failures


#: In the order of a run.
STAGES = {
    stage.name: stage
    for stage in (
        Stage("prepare", "Read the sources, annotate evidence, tokenise."),
        Stage(
            "select",
            "Choose among the options that the config leaves open, by faithfulness.",
            setting="select",
            planned=True,
        ),
        Stage("attribute", "Compute the relevance that is missing.", planned=True, counts="rows"),
        Stage("evaluate", "Score complete relevance against the evidence.", of_complete=True),
        Stage("prune", "Compute head pruning curves.", setting="prune", counts="curves"),
        Stage(
            "perturb",
            "Compute deletion and insertion curves: a model's score while tokens are removed.",
            setting="perturb",
            planned=True,
        ),
        Stage(
            "ablations",
            "Run prompts again without some of their sources, and judge methods by the answers.",
            setting="ablations",
        ),
        Stage(
            "controls",
            "Test by controls whether the relevance of methods depends on the model.",
            setting="controls",
        ),
        Stage(
            "neurons",
            "Ablate the neurons that methods rank first, and measure the effect.",
            setting="neurons",
            own_command=True,
        ),
        Stage("bench", "Measure the run's own models.", setting="bench", own_command=True, alone=True),
        Stage("report", "Write tables, figures and pages."),
    )
}
