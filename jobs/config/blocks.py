"""Blocks of a configuration: tasks, pruning, perturbation curves, chosen options, ablations, controls, report, Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from closelook.evaluation.benchmark.samples import UnitKind, Words
from closelook.evaluation.benchmark.sources.own import SAMPLES, settings_by_columns
from closelook.jobs.config.base import AtLeast0, AtLeast1, Embedding, Explanation, Frozen, Names, PartOfRun, Some
from closelook.jobs.config.models import Candidates, Name
from closelook.lrp_core.records.explained import NONE
from closelook.lrp_core.records.kinds import RESAMPLE, Kind
from closelook.lrp_core.records.types import Request

if TYPE_CHECKING:
    from closelook.evaluation.scoring.faithfulness.flips import Flips
    from closelook.evaluation.tasks.record import Output

Way = Literal["zero", "black", "mask", "delete", "resample"]
AblationWay = Literal["remove", "cut", "zero", "delete"]
PIXEL_STEPS = 64  # most points of a curve that removes pixels
Measure = Literal["areas", "shares"]


class TaskConfig(Frozen):
    """A task of the run: the source of its samples, and how their evidence is found."""

    source: str
    """source of the samples: published data, "demo", or "samples" for a file of your own; see `closelook tasks`"""
    path: str | None = None
    """a file, a folder or a pattern of files in the published layout, or its URL: s3://, gs://, hf://, see `hosts`"""
    hub: str | None = None
    """data set on the hub, which is read if `path` is not given"""
    revision: str | None = None
    """revision of the data set on the hub"""
    sha256: str | None = None
    """sha256 that the file at `path` must have"""
    optional: bool = False
    """true: leave the task out if `path` does not exist, instead of failing"""
    columns: dict[str, str] = Field(default_factory=dict)
    """For a file of your own: the file's name for each known column, as {text: review, id: case}."""
    output: Literal["label", "score"] | None = None
    """For a file of your own: models give each whole text a label or a score. Rows may lack the true one. Without this
    key, a column `label` or `score` of the file decides. null: models predict a word."""
    evidence: bool | None = None
    """For a file of your own: true if every row has evidence, false to ignore evidence. Without this key, the file's
    column `evidence` decides. null: true where a word is predicted, false where `output` is set."""
    limit: AtLeast1 | None = None
    """largest number of samples that are read; for the demo source, how many to generate"""
    spacy: Candidates = ()
    """spaCy models, or paths of them, that find evidence by parsing; the first that loads is used"""
    coref: str | None = None
    """fastcoref model that finds evidence by coreference"""
    truncate: bool = False
    """true: cut a text that is read whole and too long at its end, instead of rejecting it"""
    balance: bool = False
    """true, for BLiMP: draw samples in the singular with replacement until there are as many as in the plural, as
    NormXLogit does"""
    first_piece: bool = False
    """true: if an evidence word is several tokens, only the first is evidence, as in NormXLogit"""
    tokens: AtLeast1 | None = None
    """for texts without a slot: how many tokens of a text are read; null: as the task says"""
    explains: Literal["prediction", "true"] | None = None
    """for texts without a slot, the target: the token that the model predicts next, or the true one of the text"""
    words: Words | None = None
    """single: target and foil are one token each; first_difference: they may be several tokens, and the first that
    differ are explained (causal models); all: whole answers are explained; null: as the task says"""
    units: UnitKind | None = None
    """For tasks of whole answers: the parts of a prompt that are ablated: word, sentence, passage or turn. null: the
    sources that the samples name, or else sentences."""

    def completed_by_file(self) -> TaskConfig:
        """A copy with the settings that were not given and that the columns of the user's file decide."""
        lacking = {"output", "evidence"} - self.model_fields_set
        if self.source != SAMPLES.name or self.path is None or not lacking:
            return self
        settings = settings_by_columns(self.path, self.columns, self.output)
        return self.model_copy(update={name: value for name, value in settings.items() if name in lacking})


class PruneConfig(PartOfRun):
    """Head pruning: curves of accuracy as heads are removed, at the first precision of each model and task."""

    tasks: Names | None = None
    """tasks with pruning curves; null: all that `heads` names"""
    models: Names | None = None
    """models with pruning curves, by name; null: all"""
    methods: Names | None = None
    """methods by whose relevance heads are ordered; null: all that give relevance of heads"""
    poolings: Some[Literal["relu_dim", "relu_token", "none"]] = ("relu_dim", "relu_token", "none")
    """How a head's relevance is pooled into one number (Close Look, figure 3)."""
    orders: Some[Literal["least_first", "most_first"]] = ("least_first",)
    """which heads are removed first: the least or the most relevant"""
    random_runs: AtLeast0 = 10
    """number of curves that remove heads in random order, to compare with"""
    step: AtLeast1 = 1
    """heads removed from one point of a curve to the next"""


class BenchConfig(Frozen):
    """The benchmark of table 8 on the models of the run: the cost of a sample's backward pass (Close Look 5.4)."""

    task: Name = Field(json_schema_extra={"default": "the first task"})
    """task whose samples are timed"""
    samples: AtLeast1 = 1000
    """how many samples, the first of the task, are timed"""


class ReportConfig(Frozen):
    """The contents of the report beyond its tables."""

    samples: AtLeast0 = 12
    """how many samples of each task the report shows with heatmaps"""
    resamples: AtLeast0 = 1000
    """how many resamples the bootstrap draws"""


class NodesConfig(Frozen):
    """`count` nodes of a kind that an autoscaling cluster can start."""

    count: AtLeast1 = 1
    """number of such nodes"""
    gpus: float = Field(default=0, ge=0)
    """GPUs of one node"""
    cpus: float = Field(default=1, ge=0)
    """CPUs of one node"""
    labels: dict[str, str] = Field(default_factory=dict)
    """labels of the node, which models may ask for"""


class RayConfig(Frozen):
    """The use of Ray. No setting of this block changes a number."""

    address: str | None = None
    """address of the cluster; null: RAY_ADDRESS (set for submitted jobs), else a local Ray inside this process"""
    nodes: tuple[NodesConfig, ...] | None = None
    """nodes to which an autoscaling cluster can grow; null: the nodes that the cluster has now"""
    no_progress_timeout_s: AtLeast1 = 1800
    """seconds that a batch may take; then its process is ended, and the rows of its unit are computed one by one"""


class PerturbConfig(PartOfRun):
    """Deletion and insertion curves (AttnLRP B.2, NormXLogit 5), at the first precision of each model and task."""

    tasks: Names | None = None
    """tasks with curves; null: all"""
    methods: Names | None = None
    """methods with curves; null: all"""
    explanations: tuple[Explanation, ...] | None = None
    """explanations with curves, of those that the run computes; null: all of them"""
    embeddings: tuple[Embedding, ...] | None = None
    """embeddings with curves, of those that the run computes; null: all of them"""
    measures: Some[Measure] | None = None
    """areas: the area under the logit as tokens are removed one after the other. shares: the change of the probability
    (for a score, of the correlation with gold scores) without the top 10, ..., 90 % of the tokens, and with these
    alone. null: areas where a word is predicted and for images, shares for labels and scores of texts."""
    ways: Some[Way] | None = None
    """How a token is removed: zero (its embedding is set to 0), mask (replaced by the mask token; masked models),
    delete (left out; causal models), or resample (replaced by tokens that follow its left neighbour elsewhere in the
    task). For images: zero (a patch's pixels are 0 as the model gets them) or black (0 before they are normalised). A
    model takes those of the list that apply to its kind. null: zero for areas, mask or delete for shares."""
    draws: AtLeast1 = 3
    """for resample: how many draws of replacing tokens a curve is the mean of"""
    samples: AtLeast1 | None = None
    """samples of a task, drawn at random, the same for all methods; null: all"""
    steps: AtLeast1 = 100
    """points of a curve; in texts of no more tokens than this, each point removes one token"""
    flip_special: bool | None = None
    """true: special tokens that the tokenizer adds are removed too, but never resampled. null: true for areas, false
    for shares."""
    pixels: bool = False
    """for images: remove single pixels, in at most 64 steps, instead of whole patches"""
    paper: bool = False
    """shares as in NormXLogit's notebooks: shares of all tokens, of which all but the first may be removed"""

    @property
    def area_ways(self) -> tuple[Way, ...]:
        """The ways in which tokens are removed where areas are measured."""
        return self.ways or ("zero",)

    def flips_of(self, kind: Kind, output: Output, seed: int) -> tuple[Flips, ...]:
        """The settings of every curve of a model of this kind that predicts `output`: one for each measure and way.

        The mask token, and the values that replace pixels, are filled in once the model is open. `seed` decides the
        order of tokens with equal relevance.
        """
        from closelook.evaluation.scoring.faithfulness.flips import AREAS, SHARES, SHARES_OF_TOKENS, Flips

        pixels = kind.images and self.pixels
        default = AREAS if output == "token" or kind.images else SHARES_OF_TOKENS
        flips = []
        for measure in self.measures or (default,):
            is_area = measure == AREAS
            special = is_area if self.flip_special is None else self.flip_special
            steps = self.steps if is_area else len(SHARES)
            if is_area and pixels:
                steps = min(steps, PIXEL_STEPS)
            paper = self.paper and measure == SHARES_OF_TOKENS
            ways = self.area_ways if is_area or kind.images else self.ways or ("mask", "delete")
            for way in ways:
                draws = self.draws if way == RESAMPLE else 1
                flip_special = special and not kind.images and way != RESAMPLE
                if way in kind.perturbations:
                    flips.append(Flips(way, steps, flip_special, seed, None, measure, paper, pixels, draws=draws))
        return tuple(flips)

    def asks(self, request: Request) -> bool:
        """True if there are curves of this explanation and embedding. NONE (of methods without variants) passes."""
        explanations = self.explanations or (request.explanation,)
        embeddings = self.embeddings or (request.embedding,)
        return request.explanation in (*explanations, NONE) and request.embedding in (*embeddings, NONE)


class SelectConfig(Frozen):
    """The choice among listed values of options: those with the largest faithfulness ΔA (AttnLRP B.2) are taken.

    A choice is made for every model, precision, task and method whose entry has a list. Curves are drawn as `perturb`
    says, by the first of its `ways` that applies to the model.
    """

    samples: AtLeast1 = 50
    """samples of a task on which options are compared, the same for all methods"""
    seed: AtLeast0 = 0
    """seed of the draw of these samples"""

    @property
    def draw(self) -> str:
        """The seed text of the draw of samples, so that it differs from the draw for curves with the same seed."""
        return f"select:{self.seed}"


class AblationsConfig(PartOfRun):
    """Ablation of sources, at the first precision of each model and task that explains whole answers."""

    tasks: Names | None = None
    """tasks whose sources are ablated; null: all that explain whole answers"""
    models: Names | None = None
    """models that are run on ablated prompts, by name; null: all"""
    methods: Names | None = None
    """methods that are judged; null: all that explain answers"""
    ways: Some[AblationWay] = ("remove",)
    """How a unit is ablated: the prompt is written again without it (remove), its keys are hidden from every query in
    every layer while positions stay (cut), the embeddings of its tokens are set to 0 (zero), or its tokens are deleted
    (delete)."""
    samples: AtLeast1 | None = 100
    """samples of a task, drawn at random, the same for all methods; null: all"""
    fit: AtLeast1 = 128
    """most ablated prompts of a sample that methods are fitted to; smaller budgets take the first of them"""
    judge: AtLeast1 = 64
    """ablated prompts of a sample by which methods are judged"""
    shapley: AtLeast0 = 128
    """sets of units that are ablated for Shapley values, if a method computes them"""
    shown: AtLeast0 = 12
    """samples of a task whose answers the report shows, explained sentence by sentence"""
    pool: Literal["sum", "mean", "max"] = "sum"
    """how the relevance of a unit's tokens is pooled into that of the unit"""


class ControlsConfig(PartOfRun):
    """Controls of methods, at the first precision of each model and task. Planted methods are controlled too."""

    tasks: Names | None = None
    """tasks with controls; null: all"""
    models: Names | None = None
    """models with controls, by name; null: all"""
    methods: Names | None = None
    """methods that are controlled; null: all"""
    explanation: Explanation | None = None
    """explanation that is controlled; null: the first of the run's that every sample has"""
    samples: AtLeast1 = 30
    """samples of a task, drawn at random, the same for all methods"""
    depths: AtLeast1 | None = None
    """number of depths to which weights are randomised, spread evenly from the head alone to all; null: every depth"""
