"""The settings of a run as pydantic records, which YAML files and ``--set`` fill in and the root keeps.

A configuration is data only: no field can name code to run, a folder outside ``root`` to write to, or a credential.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from closelook.evaluation.benchmark.samples import Beginning
from closelook.evaluation.benchmark.sources.base import Source
from closelook.evaluation.tasks import Task
from closelook.jobs.config.base import AtLeast0, AtLeast1, Embedding, Explanation, Frozen, Names, PartOfRun
from closelook.jobs.config.blocks import (
    AblationsConfig,
    BenchConfig,
    ControlsConfig,
    PerturbConfig,
    PruneConfig,
    RayConfig,
    ReportConfig,
    SelectConfig,
    TaskConfig,
)
from closelook.jobs.config.file import ConfigError
from closelook.jobs.config.models import MethodConfig, ModelConfig, Name, composed
from closelook.jobs.config.neurons import NeuronsConfig
from closelook.jobs.tasks import configured
from closelook.jobs.tasks import sources as known_sources
from closelook.jobs.tasks import tasks as known_tasks
from closelook.lrp_core.records.explained import LINEAR
from closelook.lrp_core.records.types import nearest

if TYPE_CHECKING:
    from closelook.evaluation.scoring.intervals import Resampling

Sizes = dict[str, int | None]  # task -> number of samples; None: all of them
#: Keys that ask for relevance finer than that of tokens, each for a number of samples by task.
FINER_KEYS = ("heads", "layers", "labels", "neurons")
#: Keys of sections that may be limited to some tasks, models or methods; sections of `neurons` may be, too.
PARTS = ("prune", "perturb", "ablations", "controls")


def _root(value: str) -> str:
    """`value` unchanged. Raises ValueError for a URL of an unsupported scheme, or with a user or password in it."""
    if re.match(r"[a-z0-9]+://[^/]*@", value):
        raise ValueError("the URL of the root contains credentials: set them in the environment instead")
    scheme, separator, _ = value.partition("://")
    if separator and scheme not in ("file", "s3", "gs"):
        raise ValueError(f"{scheme}:// is not supported; use a path, file://, s3:// or gs://")
    return value


class Settings(Frozen):
    """All settings of a run."""

    name: Name
    """name of the run in reports and plans"""
    root: Annotated[str, AfterValidator(_root)]
    """where everything is stored: a folder, s3:// or gs://"""
    data: str | None = None
    """folder of published data, which replaces {data} in the file's paths"""
    assets: str | None = None
    """folder of tokenizers and parsers, which replaces {assets} in the file's paths"""
    left_out: tuple[str, ...] = ()
    """settings that were dropped because their folder or data is missing; not for you to set"""
    seed: AtLeast0 = 0
    """seed of random weights, draws of samples and random relevance"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: GPUs if the cluster has any"""
    hosts: Names = ()
    """web servers from which http:// and https:// paths may be downloaded"""
    tasks: dict[Name, TaskConfig]
    """Tasks by name: a name of `closelook tasks` or, with `source: samples`, a name of your own."""
    models: tuple[ModelConfig, ...] = Field(min_length=1)
    """models to explain; they are started in this order"""
    methods: tuple[MethodConfig, ...] = Field(min_length=1)
    """Methods, each as NAME, {NAME: {option: value}} or {name: ..., method: NAME, option: value}."""
    explanations: tuple[Explanation, ...] = LINEAR
    """numbers to explain: contrastive (target minus foil), target or log_prob"""
    embeddings: tuple[Embedding, ...] = ("full", "partial")
    """Relevance of the whole input of the first layer (full), or of word embeddings without positions (partial)."""
    heads: Sizes | None = None
    """task -> number of samples with relevance of heads, by which heads are pruned (null there: all); null: none"""
    layers: Sizes | None = None
    """task -> number of samples with relevance by layer (null there: all); null: none"""
    labels: Sizes | None = None
    """task of classifiers -> number of samples with relevance for every label (null there: all); null: none"""
    neurons: NeuronsConfig | None = None
    """relevance of neurons; null: none"""
    prune: PruneConfig | None = None
    """head pruning; null: none"""
    composites: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    """composites of your own by name, each with a rule, or a list of rules to choose from, for each group of layers"""
    select: SelectConfig | None = None
    """choice among the values that `methods` lists for an option; null: no option may have a list"""
    perturb: PerturbConfig | None = None
    """deletion and insertion curves; null: none"""
    ablations: AblationsConfig | None = None
    """answers after prompts without some of their sources; null: none"""
    controls: ControlsConfig | None = None
    """tests of whether the relevance of methods depends on the model (controls); null: none"""
    bench: BenchConfig | None = None
    """benchmark of the backward pass; null: none"""
    report: ReportConfig = ReportConfig()
    """contents of the report beyond its tables"""
    ray: RayConfig = RayConfig()
    """use of Ray; changes no number"""
    token_budget: AtLeast1 = 4096
    """largest number of tokens in a batch, padding included"""
    shard_rows: AtLeast1 = 512
    """rows of a shard; a worker that is killed loses no more than one shard"""
    max_attempts: AtLeast1 = 3
    """how many workers may die in a unit before its rows are computed one by one"""
    max_failed_share: float = Field(default=0.05, ge=0, le=1)
    """An artifact is complete if at most this share of its rows, or at most three rows, failed."""
    byte_budget: AtLeast1 | None = None
    """bytes of working memory for ALTI; null: what the device has free"""

    @property
    def resampling(self) -> Resampling:
        """The draws of the report's bootstrap and tests."""
        from closelook.evaluation.scoring.intervals import Resampling

        return Resampling(self.report.resamples, self.seed)

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, raw: Any) -> Any:
        """The raw keys with named composites written out, and the first task for a `bench` that names none."""
        if not isinstance(raw, dict):
            return raw
        raw = composed(raw)
        bench, tasks = raw.get("bench"), raw.get("tasks")
        if isinstance(bench, dict) and isinstance(tasks, dict):
            return raw | {"bench": {"task": next(iter(tasks), None)} | bench}
        return raw

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Raise ValueError for duplicate names, unknown tasks, and a task of the user's own data without a `path`."""
        _check_unique("models", [model.name for model in self.models])
        for listed in (self.methods, *(model.methods or () for model in self.models)):
            _check_unique("methods", [method.name for method in listed])
        methods: dict[str, MethodConfig] = {}
        for method in self._all_methods():
            if methods.setdefault(method.name, method) != method:
                raise ValueError(f"two different methods are named {method.name!r}: give each a name of its own")
        for name, settings in self.tasks.items():
            source = known_sources().get(settings.source)
            if isinstance(source, Source) and source.is_users and settings.path is None:
                raise ValueError(f"config key 'tasks.{name}.path': set it to the file of {source.title}")
        for key, tasks in self._tasks_named():
            for task in tasks or ():
                if task not in self.tasks and task not in known_tasks():
                    raise ValueError(f"{key}: no task {task!r}{nearest(task, self.tasks)}")
        return self

    def _tasks_named(self) -> Iterator[tuple[str, Iterable[str] | None]]:
        """(config key, names of tasks) for every config key that names tasks of the run."""
        for model in self.models:
            yield f"models.{model.name}.tasks", model.tasks
            yield f"models.{model.name}.dtypes", model.dtypes  # a mapping by task
        for key in FINER_KEYS:
            yield key, self.finer(key)  # a mapping by task
        for key, part in self.parts():
            yield f"{key}.tasks", part.names("tasks")
        if self.bench is not None:
            yield "bench.task", (self.bench.task,)

    def parts(self) -> Iterator[tuple[str, PartOfRun]]:
        """(config key, section) for every section that may be limited to some tasks, models or methods, and is set."""
        parts: dict[str, PartOfRun | None] = {name: getattr(self, name) for name in PARTS}
        if self.neurons is not None:
            parts |= {"neurons.knockout": self.neurons.knockout, "neurons.corpus": self.neurons.corpus}
        for key, part in parts.items():
            if part is not None:
                yield key, part

    def methods_of(self, model: ModelConfig) -> tuple[MethodConfig, ...]:
        """The methods for a model: its own list, with bare names looked up among the run's methods, else the run's."""
        if model.methods is None:
            return self.methods
        of_run = {method.name: method for method in self.methods}
        return tuple(of_run.get(method.name, method) if method.is_bare else method for method in model.methods)

    def _all_methods(self) -> Iterator[MethodConfig]:
        """The methods of the run, then those of each model, repeated where models share them."""
        return chain(self.methods, *map(self.methods_of, self.models))

    def every_method(self) -> tuple[MethodConfig, ...]:
        """Every method of the run once, by name: the run's own, then those that only some models have."""
        return tuple({method.name: method for method in self._all_methods()}.values())

    def finer(self, product: str) -> Sizes:
        """The number of samples by task (None: all) with the finer relevance `product`, one of FINER_KEYS."""
        setting = getattr(self, product)
        return (setting.tasks if isinstance(setting, NeuronsConfig) else setting) or {}

    def task(self, name: str) -> Task:
        """The record of one of the run's tasks, changed as its settings say. Raises UserError for an unknown source."""
        settings = self.tasks[name]
        record = configured(name, settings.source)
        if record.beginning is not None:
            tokens = settings.tokens or record.beginning.tokens
            explains = settings.explains or record.beginning.explains
            record = replace(record, beginning=Beginning(tokens, explains))
        if settings.output is not None:
            record = replace(record, output=settings.output, evidence="source" if settings.evidence else None)
        elif settings.evidence is False:
            record = replace(record, evidence=None)
        return record if settings.words is None else replace(record, words=settings.words)

    def tasks_for(self, model: ModelConfig) -> list[str]:
        """The tasks that the configuration gives the model: those that it names, else all of the run."""
        return [task for task in self.tasks if model.tasks is None or task in model.tasks]

    def benchmark(self) -> BenchConfig:
        """The settings of the benchmark: those of the run, or the defaults with its first task."""
        return self.bench or BenchConfig(task=next(iter(self.tasks)))

    def model(self, name: str) -> ModelConfig:
        """The settings of the model with this name. Raises ConfigError, with the nearest name, if there is none."""
        models = {model.name: model for model in self.models}
        if name not in models:
            raise ConfigError(f"no model {name!r} in config {self.name!r}{nearest(name, models)}")
        return models[name]


def _check_unique(kind: str, names: Sequence[str]) -> None:
    """Raise ValueError if a name occurs twice; `kind` ("models" or "methods") is for the message."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two {kind} are named {name!r}: give each a name of its own")
