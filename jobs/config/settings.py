"""The settings of a run: what the YAML files, ``--set`` and the run record share.

A configuration is data only: no field can name code to run, a folder outside ``root`` to write to, or a credential.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PositiveFloat, model_validator

from evaluation.benchmark.samples import Beginning, UnitKind, Words
from evaluation.benchmark.sources.base import Source
from evaluation.tasks import Task
from jobs.config.ablations import AblationsConfig
from jobs.config.base import AtLeast0, AtLeast1, Embedding, Explanation, Frozen, Names, PartOfRun
from jobs.config.composites import composed
from jobs.config.controls import ControlsConfig
from jobs.config.file import ConfigError, nearest
from jobs.config.models import Candidates, Dtype, MethodConfig, ModelConfig, Name
from jobs.config.neurons import NeuronsConfig
from jobs.config.perturb import PerturbConfig, SelectConfig
from jobs.tasks import configured
from jobs.tasks import sources as known_sources
from jobs.tasks import tasks as known_tasks
from lrp_core.records.explained import LINEAR

Sizes = dict[str, int | None]
#: Keys under which relevance beside that of tokens is kept, for so many samples of a task.
FINER_KEYS = ("heads", "layers", "labels", "neurons")


def _root(value: str) -> str:
    if re.match(r"[a-z0-9]+://[^/]*@", value):
        raise ValueError("credentials belong in the environment, not in the root")
    scheme, separator, _ = value.partition("://")
    if separator and scheme not in ("file", "s3", "gs"):
        raise ValueError(f"{scheme}:// is not supported; use a path, file://, s3:// or gs://")
    return value


class TaskConfig(Frozen):
    """The source of the samples of a task, and how their evidence is found."""

    source: str
    """of the tasks' records: published data, "demo", or "samples", a file of the user's own"""
    path: str | None = None
    """a file, a folder or a pattern of files in the published layout; or its URL: s3://, gs://, hf://, see `hosts`"""
    hub: str | None = None
    """a data set on the hub, when `path` is not given"""
    revision: str | None = None
    """of the data set on the hub"""
    sha256: str | None = None
    """of the file at `path`"""
    optional: bool = False
    """a missing `path` drops the task instead of failing"""
    columns: dict[str, str] = Field(default_factory=dict)
    """Of the user's own file, its name of each known column, as {text: review, id: case}."""
    output: Literal["label", "score"] | None = None
    """Of the user's own file, where whole texts are judged: what models say of them. Rows may lack a label or score."""
    evidence: bool | None = None
    """Of the user's own file: whether all rows have evidence, or (false) none that counts. null: all where a word is
    predicted, none where `output` is."""
    limit: AtLeast1 | None = None
    """samples; for the demo source, how many to generate"""
    spacy: Candidates = ()
    """spaCy models that find evidence by parse, or a path; the first that loads is used"""
    coref: str | None = None
    """a fastcoref model"""
    truncate: bool = False
    """cut the context of a text that is too long around its evidence, rather than reject it"""
    balance: bool = False
    """draw singulars with replacement until there are as many as plurals, as NormXLogit does"""
    first_piece: bool = False
    """of an evidence word that is several tokens only the first counts, as in NormXLogit"""
    tokens: AtLeast1 | None = None
    """how much of a text is read that has no slot; null: the task's own"""
    explains: Literal["prediction", "true"] | None = None
    """there: the model's own next token, or the one that follows"""
    words: Words | None = None
    """first_difference: a causal model may be asked for words of several tokens; all: for whole answers"""
    units: UnitKind | None = None
    """Of whole answers, the parts of a prompt that may go: word, sentence, passage or turn; null: what the samples
    name, their sources, or else sentences."""


class PruneConfig(PartOfRun):
    """Head pruning: which curves to draw, at the first precision of each model and task."""

    tasks: Names | None = None
    """null: all that `heads` names"""
    models: Names | None = None
    """by name; null: all"""
    methods: Names | None = None
    """null: all that give relevance of heads"""
    poolings: tuple[Literal["relu_dim", "relu_token", "none"], ...] = ("relu_dim", "relu_token", "none")
    """How a head's relevance becomes one number (Close Look, figure 3)."""
    orders: tuple[Literal["least_first", "most_first"], ...] = ("least_first",)
    """which heads go first"""
    random_runs: AtLeast0 = 10
    """curves of heads in random order, to compare with"""
    step: AtLeast1 = 1
    """heads removed at a time"""


class BenchConfig(Frozen):
    """Table 8 for the models of the run: the cost of the backward pass of a sample (Close Look 5.4)."""

    task: Name
    """where none is given: the first of the run"""
    samples: AtLeast1 = 1000
    """the first of the task"""


class ReportConfig(Frozen):
    """The contents of the report beyond its tables."""

    samples: AtLeast0 = 12
    """heatmaps per task"""
    resamples: AtLeast0 = 1000
    """of the bootstrap"""
    close_look: bool = False
    """the paper's numbers in Markdown and LaTeX too; pages and CSV always have them"""


class NodesConfig(Frozen):
    """`count` nodes of a kind that an autoscaling cluster can start."""

    count: AtLeast1 = 1
    """how many such nodes"""
    gpus: float = Field(default=0, ge=0)
    """of one node"""
    cpus: float = Field(default=1, ge=0)
    """of one node"""
    labels: dict[str, str] = Field(default_factory=dict)
    """of the node, which models and precisions may ask for"""
    tflops: dict[Dtype, PositiveFloat] = Field(default_factory=dict)
    """one GPU's, where plans should not assume them"""


class RayConfig(Frozen):
    """The use of Ray; nothing here changes a number."""

    address: str | None = None
    """null: RAY_ADDRESS (set for submitted jobs), else a local Ray inside this process"""
    nodes: tuple[NodesConfig, ...] | None = None
    """what an autoscaling cluster may grow to; null: what it shows"""
    precisions: dict[Dtype, dict[str, str]] = Field(default_factory=dict)
    """precision -> labels of the nodes that it needs beside the model's, as float64: {float64: fast}"""
    max_models: AtLeast1 | None = None
    """at once; null: as many as fit"""
    no_progress_timeout_s: AtLeast1 = 1800
    """seconds that a batch may take: then its process ends, and its rows run one by one"""

    def needs(self, dtypes: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """Labels, with values, of nodes where workers run in these precisions."""
        labels = [labels.items() for dtype, labels in self.precisions.items() if dtype in set(dtypes)]
        return tuple(sorted(set(chain.from_iterable(labels))))


class Settings(Frozen):
    """A whole run. Order matters in `models`: they start in this order."""

    name: Name
    """what reports and plans call the run"""
    root: Annotated[str, AfterValidator(_root)]
    """where everything is kept: a folder, s3:// or gs://"""
    data: str | None = None
    """fills in {data} in paths of the file"""
    assets: str | None = None
    """fills in {assets} there, the place of tokenizers and parsers"""
    left_out: tuple[str, ...] = ()
    """what of the file needs data that is not there; filled in when it is read"""
    seed: AtLeast0 = 0
    """of random weights, draws of samples and random relevance"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU where there is one"""
    hosts: Names = ()
    """web servers from which files may be downloaded that paths name by http:// or https://"""
    tasks: dict[Name, TaskConfig]
    """What is predicted, by names of `closelook tasks` or, with source samples, of your own."""
    models: tuple[ModelConfig, ...] = Field(min_length=1)
    """they start in this order"""
    methods: tuple[MethodConfig, ...] = Field(min_length=1)
    """NAME, {NAME: {option: value}} or {name: ..., method: NAME, option: value}."""
    explanations: tuple[Explanation, ...] = LINEAR
    """contrastive (target minus foil), target or log_prob"""
    embeddings: tuple[Embedding, ...] = ("full", "partial")
    """Whose relevance: with positions and segments, or words alone."""
    heads: Sizes | None = None
    """task -> size of the pruning subset; null: every sample"""
    layers: Sizes | None = None
    """task -> samples of which relevance by layer is kept; null: every one"""
    labels: Sizes | None = None
    """Task -> samples of which relevance for every label of classifiers is kept; null: every one."""
    neurons: NeuronsConfig | None = None
    """null: no relevance of neurons"""
    prune: PruneConfig | None = None
    """null: no pruning"""
    composites: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    """a rule for each group of layers, or a list of them"""
    select: SelectConfig | None = None
    """chooses among the options that `methods` lists; without lists, nothing"""
    perturb: PerturbConfig | None = None
    """null: no curves of perturbed inputs"""
    ablations: AblationsConfig | None = None
    """null: no prompts without some of their sources"""
    controls: ControlsConfig | None = None
    """null: methods are held against no controls"""
    bench: BenchConfig | None = None
    """null: nothing is benchmarked"""
    report: ReportConfig = ReportConfig()
    """what the report shows beyond its tables"""
    ray: RayConfig = RayConfig()
    """how to use Ray; nothing there changes a number"""
    token_budget: AtLeast1 = 4096
    """tokens of a batch, padding included"""
    shard_rows: AtLeast1 = 512
    """rows of one file, which is what a killed worker loses at most"""
    max_attempts: AtLeast1 = 3
    """deaths of a worker in one batch before its rows run one by one"""
    max_failed_share: float = Field(default=0.05, ge=0, le=1)
    """A cell is complete while no more than this share of its rows, or no more than three, failed while being
    explained."""
    byte_budget: AtLeast1 | None = None
    """working memory of ALTI; null: what the device has free"""
    _lacking: Names = ()

    @property
    def lacking(self) -> Names:
        """Records that the configuration of a root names and no installed package brings; its keys are without them."""
        return self._lacking

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, raw: Any) -> Any:
        """Raw keys with composites in place of their names, and with a task for the benchmark where none is named."""
        if not isinstance(raw, dict):
            return raw
        raw = composed(raw)
        bench, tasks = raw.get("bench"), raw.get("tasks")
        if isinstance(bench, dict) and isinstance(tasks, dict):
            return raw | {"bench": {"task": next(iter(tasks), None)} | bench}
        return raw

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_unique("models", [model.name for model in self.models])
        for listed in (self.methods, *(model.methods or () for model in self.models)):
            _check_unique("methods", [method.name for method in listed])
        methods: dict[str, MethodConfig] = {}
        for method in self._all_methods():
            if methods.setdefault(method.name, method) != method:
                raise ValueError(f"two methods are named {method.name!r} and differ; names are unique")
        for name, settings in self.tasks.items():
            source = known_sources().get(settings.source)
            if isinstance(source, Source) and source.is_users and settings.path is None:
                raise ValueError(f"config key 'tasks.{name}.path': {source.title} need the path of their file")
        for key, tasks in self._tasks_named():
            for task in tasks or ():
                if task not in self.tasks and task not in known_tasks():
                    raise ValueError(f"{key}: no task {task!r}{nearest(task, self.tasks)}")
        return self

    def _tasks_named(self) -> Iterator[tuple[str, Iterable[str] | None]]:
        """(config key, tasks) for every key that names tasks of the run."""
        for model in self.models:
            yield f"models.{model.name}.tasks", model.tasks
            yield f"models.{model.name}.dtypes", model.dtypes
        for key in FINER_KEYS:
            yield key, self.finer(key)
        for key, part in self.parts():
            yield f"{key}.tasks", part.names("tasks")
        if self.bench is not None:
            yield "bench.task", (self.bench.task,)

    def parts(self) -> Iterator[tuple[str, PartOfRun]]:
        """(config key, record) for every record that names some of the run's tasks, models or methods."""
        names = ("prune", "perturb", "ablations", "controls")
        parts: dict[str, PartOfRun | None] = {name: getattr(self, name) for name in names}
        if self.neurons is not None:
            parts |= {"neurons.knockout": self.neurons.knockout, "neurons.corpus": self.neurons.corpus}
        for key, part in parts.items():
            if part is not None:
                yield key, part

    def methods_of(self, model: ModelConfig) -> tuple[MethodConfig, ...]:
        """The methods of one of the run's models."""
        if model.methods is None:
            return self.methods
        of_run = {method.name: method for method in self.methods}
        return tuple(of_run.get(method.name, method) if method.is_bare else method for method in model.methods)

    def _all_methods(self) -> Iterator[MethodConfig]:
        """The methods of the run, then those of each model."""
        return chain(self.methods, *map(self.methods_of, self.models))

    def every_method(self) -> tuple[MethodConfig, ...]:
        """The methods of the run, then those that only some of its models have."""
        return tuple({method.name: method for method in self._all_methods()}.values())

    def finer(self, product: str) -> Sizes:
        """The number of samples, by task, that keep relevance of `product` beside that of tokens; None is all."""
        asked = getattr(self, product)
        return (asked.tasks if isinstance(asked, NeuronsConfig) else asked) or {}

    def task(self, name: str) -> Task:
        """The record of one of the run's tasks, with its options."""
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
        """The tasks that the configuration gives the model: those it names, else all."""
        return [task for task in self.tasks if model.tasks is None or task in model.tasks]

    def benchmark(self) -> BenchConfig:
        """The settings of `closelook bench`, whether the run benchmarks or not."""
        return self.bench or BenchConfig(task=next(iter(self.tasks)))

    def together(self, dtypes: Iterable[str]) -> list[tuple[str, ...]]:
        """Groups of precisions that need the same nodes, and so share workers; on CPUs, all of them."""
        groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for dtype in sorted(set(dtypes)):
            needs = () if self.device == "cpu" else self.ray.needs((dtype,))
            groups.setdefault(needs, []).append(dtype)
        return list(map(tuple, groups.values()))

    def pool_name(self, model: ModelConfig, dtypes: Sequence[str]) -> str:
        """The name, in progress and failures, of the workers of a model in these precisions: all of them, or some."""
        every = chain.from_iterable(model.dtypes_for(task) for task in self.tasks_for(model))
        return f"{model.name} {'+'.join(dtypes)}" if len(self.together(every)) > 1 else model.name

    def model(self, name: str) -> ModelConfig:
        """The model of this name. Raises ConfigError with the nearest name for an unknown one."""
        models = {model.name: model for model in self.models}
        if name not in models:
            raise ConfigError(f"no model {name!r} in config {self.name!r}{nearest(name, models)}")
        return models[name]


def _check_unique(kind: str, names: Sequence[str]) -> None:
    """Raises ValueError for a name that stands twice among the names of models or methods."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two {kind} are named {name!r}; names are unique")
