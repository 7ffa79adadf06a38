"""One frozen run configuration: what the YAML files, ``--set`` and the run record share.

A configuration is data only: no field can name code to run, a place outside ``root`` to write to, or a credential.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    PositiveFloat,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from evaluation.benchmark.samples import Beginning, Words
from evaluation.benchmark.sources.own import SAMPLES
from evaluation.tasks import Task
from jobs.config.base import Embedding, Explanation, Frozen, PartOfRun
from jobs.config.composites import composed
from jobs.config.file import ConfigError, describe, nearest, read
from jobs.config.known import check
from jobs.config.models import Candidates, Dtype, MethodConfig, ModelConfig, Name
from jobs.config.neurons import NeuronsConfig
from jobs.config.perturb import PerturbConfig
from jobs.config.select import SelectConfig
from jobs.tasks import configured
from jobs.tasks import tasks as known_tasks
from lrp_core.explained import LINEAR


def _root(value: str) -> str:
    if re.match(r"[a-z0-9]+://[^/]*@", value):
        raise ValueError("credentials belong in the environment, not in the root")
    if "://" in value and value.split("://")[0] not in ("file", "s3", "gs"):
        raise ValueError(f"{value.split('://')[0]}:// is not supported; use a path, file://, s3:// or gs://")
    return value


class TaskConfig(Frozen):
    """Where the samples of one task come from and how their evidence is found."""

    source: str  # of the tasks' records: published data, "demo", or "samples", a file of the user's own
    path: str | None = None  # a file, a folder or a pattern of files in the published layout
    hub: str | None = None  # a data set on the hub, when `path` is not given
    revision: str | None = None  # of the data set on the hub
    sha256: str | None = None  # of the file at `path`
    optional: bool = False  # a missing `path` drops the task instead of failing
    output: Literal["label", "score"] | None = None  # of the user's own file, where its samples have these and no words
    evidence: bool = False  # of samples with `output`: whether all of them have evidence
    limit: int | None = Field(default=None, ge=1)  # samples; for the demo source, how many to generate
    spacy: Candidates = ()  # spaCy models that find evidence by parse, or a path; the first that loads is used
    coref: str | None = None  # a fastcoref model
    truncate: bool = False  # cut the context of a text that is too long around its evidence, rather than reject it
    balance: bool = False  # draw singulars with replacement until there are as many as plurals, as NormXLogit does
    first_piece: bool = False  # of an evidence word that is several tokens only the first counts, as in NormXLogit
    tokens: int | None = Field(default=None, ge=1)  # how much of a text is read that has no slot; null: the task's own
    explains: Literal["prediction", "true"] | None = None  # there: the model's own next token, or the one that follows
    words: Words | None = None  # first_difference: a causal model may be asked for words of several tokens


class PruneConfig(PartOfRun):
    """Head pruning: which curves to draw, at the first precision of each model and task."""

    tasks: tuple[str, ...] | None = None  # null: all that `heads` names
    models: tuple[str, ...] | None = None  # by name; null: all
    methods: tuple[str, ...] | None = None  # null: all that give relevance of heads
    # How a head's relevance becomes one number (Close Look, figure 3).
    poolings: tuple[Literal["relu_dim", "relu_token", "none"], ...] = ("relu_dim", "relu_token", "none")
    orders: tuple[Literal["least_first", "most_first"], ...] = ("least_first",)  # which heads go first
    random_runs: int = Field(default=10, ge=0)  # curves of heads in random order, to compare with
    step: int = Field(default=1, ge=1)  # heads removed at a time


class BenchConfig(Frozen):
    """Table 8 of the run's own models: the cost of one sample's backward pass (Close Look 5.4)."""

    task: Name  # where none is given: the first of the run
    samples: int = Field(default=1000, ge=1)  # the first of the task


class ReportConfig(Frozen):
    """What the report shows beyond its tables."""

    samples: int = Field(default=12, ge=0)  # heatmaps per task
    resamples: int = Field(default=1000, ge=0)  # of the bootstrap
    close_look: bool = False  # the paper's numbers in Markdown and LaTeX too; pages and CSV always have them


class NodesConfig(Frozen):
    """`count` nodes of a kind that an autoscaling cluster can start."""

    count: int = Field(default=1, ge=1)  # how many such nodes
    gpus: float = Field(default=0, ge=0)  # of one node
    cpus: float = Field(default=1, ge=0)  # of one node
    labels: dict[str, str] = Field(default_factory=dict)  # of the node, which models and precisions may ask for
    tflops: dict[Dtype, PositiveFloat] = Field(default_factory=dict)  # one GPU's, where plans should not assume them


class RayConfig(Frozen):
    """How to use Ray; nothing here changes a number."""

    address: str | None = None  # null: RAY_ADDRESS (set for submitted jobs), else a local Ray inside this process
    nodes: tuple[NodesConfig, ...] | None = None  # what an autoscaling cluster may grow to; null: what it shows
    # precision -> labels of the nodes that it needs beside the model's, as float64: {float64: fast}
    precisions: dict[Dtype, dict[str, str]] = Field(default_factory=dict)
    max_models: int | None = Field(default=None, ge=1)  # at once; null: as many as fit
    no_progress_timeout_s: int = Field(default=1800, ge=1)  # seconds without a finished batch until a model is given up

    def needs(self, dtypes: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """Labels, with values, of nodes where workers run in these precisions."""
        wanted = set(dtypes)
        return tuple(
            sorted({pair for dtype, labels in self.precisions.items() if dtype in wanted for pair in labels.items()})
        )


class RunConfig(Frozen):
    """A whole run. Order matters in `models`: they start in this order."""

    name: Name  # what reports and plans call the run
    root: Annotated[str, AfterValidator(_root)]  # where everything is kept: a folder, s3:// or gs://
    data: str | None = None  # fills in {data} in paths of the file
    assets: str | None = None  # fills in {assets} there, the place of tokenizers and parsers
    left_out: tuple[str, ...] = ()  # what of the file needs data that is not there; filled in when it is read
    seed: int = Field(default=0, ge=0)  # of random weights, draws of samples and random relevance
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU where there is one
    # What is predicted, by names of `closelook tasks` or, with source samples, of your own.
    tasks: dict[Name, TaskConfig]
    models: tuple[ModelConfig, ...] = Field(min_length=1)  # they start in this order
    # NAME, {NAME: {option: value}} or {name: ..., method: NAME, option: value}.
    methods: tuple[MethodConfig, ...] = Field(min_length=1)
    explanations: tuple[Explanation, ...] = LINEAR  # contrastive (target minus foil), target or log_prob
    # Whose relevance: with positions and segments, or words alone.
    embeddings: tuple[Embedding, ...] = ("full", "partial")
    heads: dict[str, int | None] | None = None  # task -> size of the pruning subset; null: every sample
    layers: dict[str, int | None] | None = None  # task -> samples of which relevance by layer is kept; null: every one
    # Task -> samples of which relevance for every label of classifiers is kept; null: every one.
    labels: dict[str, int | None] | None = None
    neurons: NeuronsConfig | None = None  # null: no relevance of neurons
    prune: PruneConfig | None = None  # null: no pruning
    composites: dict[Name, dict[str, Any]] = Field(
        default_factory=dict
    )  # a rule for each group of layers, or a list of them
    select: SelectConfig | None = None  # chooses among the options that `methods` lists; without lists, nothing
    perturb: PerturbConfig | None = None  # null: no curves of perturbed inputs
    bench: BenchConfig | None = None  # null: nothing is benchmarked
    report: ReportConfig = ReportConfig()  # what the report shows beyond its tables
    ray: RayConfig = RayConfig()  # how to use Ray; nothing there changes a number
    token_budget: int = Field(default=4096, ge=1)  # tokens of a batch, padding included
    shard_rows: int = Field(default=512, ge=1)  # rows of one file, which is what a killed worker loses at most
    max_attempts: int = Field(default=3, ge=1)  # deaths of a worker in one batch before its rows run one by one
    # A cell is complete while no more than this share of its rows, or no more than three, failed while being explained.
    max_failed_share: float = Field(default=0.05, ge=0, le=1)
    byte_budget: int | None = Field(default=None, ge=1)  # working memory of ALTI; null: what the device has free
    _lacking: tuple[str, ...] = PrivateAttr(default=())

    @property
    def lacking(self) -> tuple[str, ...]:
        """Records that the configuration of a root names and no installed package brings; its keys are without them."""
        return self._lacking

    def without(self, lacking: Iterable[str]) -> RunConfig:
        """The same, lacking these records."""
        own = self.model_copy()
        own._lacking = tuple(lacking)
        return own

    @model_validator(mode="before")
    @classmethod
    def _composed(cls, raw: Any) -> Any:
        """Composites in place of their names."""
        return composed(raw) if isinstance(raw, dict) else raw

    @model_validator(mode="before")
    @classmethod
    def _benched(cls, raw: Any) -> Any:
        """The benchmark's task where the raw configuration leaves it open."""
        if isinstance(raw, dict) and isinstance(raw.get("bench"), dict) and isinstance(raw.get("tasks"), dict):
            return raw | {"bench": {"task": next(iter(raw["tasks"]), None)} | raw["bench"]}
        return raw

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        names = [model.name for model in self.models]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two models are named {name!r}; names are unique")
        for listed in (self.methods, *(model.methods or () for model in self.models)):
            names = [method.name for method in listed]
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"two methods are named {name!r}; names are unique")
        methods: dict[str, MethodConfig] = {}
        for method in (*self.methods, *(method for model in self.models for method in self.methods_of(model))):
            if methods.setdefault(method.name, method) != method:
                raise ValueError(f"two methods are named {method.name!r} and differ; names are unique")
        for task, settings in self.tasks.items():
            if settings.source == SAMPLES.name and settings.path is None:
                raise ValueError(f"config key 'tasks.{task}.path': {SAMPLES.title} need the path of their file")
        known = set(self.tasks)
        mentioned = [(f"models.{m.name}.tasks", task) for m in self.models for task in m.tasks or ()]
        mentioned += [(f"models.{m.name}.dtypes", task) for m in self.models for task in m.dtypes]
        mentioned += [(key, task) for key in ("heads", "layers", "labels", "neurons") for task in self.finer(key)]
        mentioned += [
            (f"{key}.tasks", task) for key, part in self.parts() for task in getattr(part, "tasks", None) or ()
        ]
        mentioned += [("bench.task", self.bench.task)] if self.bench else []
        for where, task in mentioned:
            if task not in known and task not in known_tasks():
                raise ValueError(f"{where}: no task {task!r}{nearest(task, known)}")
        return self

    def parts(self) -> Iterator[tuple[str, PartOfRun]]:
        """(config key, record) of what names some of the run's tasks, models or methods."""
        parts: dict[str, PartOfRun | None] = {"prune": self.prune, "perturb": self.perturb}
        if self.neurons is not None:
            parts |= {"neurons.knockout": self.neurons.knockout, "neurons.corpus": self.neurons.corpus}
        yield from ((key, part) for key, part in parts.items() if part is not None)

    @classmethod
    def load(
        cls, source: str | Path | dict[str, Any], root: str | None = None, overrides: Sequence[str] = ()
    ) -> RunConfig:
        """The configuration `source`: a name in ``jobs/conf``, a path or raw keys, after ``key=value`` overrides.

        Raises ConfigError with one line that names the key at fault, or the keys that ask for what does not exist.
        """
        raw = read(source, root, overrides)
        try:
            config = cls.model_validate(raw)
        except ValidationError as error:
            raise ConfigError(describe(error, raw, cls)) from None
        check(config)
        return config

    def methods_of(self, model: ModelConfig) -> tuple[MethodConfig, ...]:
        """The methods of one of the run's models."""
        if model.methods is None:
            return self.methods
        own = {method.name: method for method in self.methods}
        return tuple(own.get(method.name, method) if method.is_bare else method for method in model.methods)

    def every_method(self) -> tuple[MethodConfig, ...]:
        """The methods of the run, then what its models have beside them."""
        every = (*self.methods, *(method for model in self.models for method in self.methods_of(model)))
        return tuple({method.name: method for method in every}.values())

    def finer(self, product: str) -> Mapping[str, int | None]:
        """How many samples of which tasks keep relevance of `product` beside that of tokens; None is all."""
        neurons = self.neurons and self.neurons.tasks
        asked = {"heads": self.heads, "layers": self.layers, "labels": self.labels, "neurons": neurons}
        return asked[product] or {}

    def task(self, name: str) -> Task:
        """The record of one of the run's tasks, with its options."""
        settings = self.tasks[name]
        record = configured(name, settings.source)
        if record.beginning is not None:
            own = Beginning(settings.tokens or record.beginning.tokens, settings.explains or record.beginning.explains)
            record = replace(record, beginning=own)
        if settings.output is not None:
            record = replace(record, output=settings.output, evidence="source" if settings.evidence else None)
        return record if settings.words is None else replace(record, words=settings.words)

    def tasks_for(self, model: ModelConfig) -> list[str]:
        """The tasks that the config gives the model: those it names, else all."""
        return [task for task in self.tasks if model.tasks is None or task in model.tasks]

    def benchmark(self) -> BenchConfig:
        """What `closelook bench` measures, whether the run does or not."""
        return self.bench or BenchConfig(task=next(iter(self.tasks)))

    def together(self, dtypes: Iterable[str]) -> list[tuple[str, ...]]:
        """Precisions that need the same nodes, and so share workers; on CPUs, all of them."""
        groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for dtype in sorted(set(dtypes)):
            groups.setdefault(() if self.device == "cpu" else self.ray.needs((dtype,)), []).append(dtype)
        return [tuple(group) for group in groups.values()]

    def pool_name(self, model: ModelConfig, dtypes: Sequence[str]) -> str:
        """What progress and failures call the workers of a model in these precisions: all of them, or some."""
        shared = self.together(dtype for task in self.tasks_for(model) for dtype in model.dtypes_for(task))
        return f"{model.name} {'+'.join(dtypes)}" if len(shared) > 1 else model.name

    def model(self, name: str) -> ModelConfig:
        for model in self.models:
            if model.name == name:
                return model
        raise ConfigError(f"no model {name!r} in config {self.name!r}{nearest(name, [m.name for m in self.models])}")
