"""Checks that everything a configuration asks for exists: sources, metrics, methods, model families. No torch here."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from evaluation.benchmark.corpus import Corpus, source_for
from evaluation.benchmark.sources.base import Generated
from evaluation.benchmark.sources.own import SAMPLES, has_foils
from evaluation.tasks import Task
from jobs.config.file import ConfigError
from jobs.config.methods import bound, left_open
from jobs.config.models import MethodConfig
from jobs.config.neurons import CorpusConfig
from jobs.config.perturb import PerturbConfig
from jobs.config.settings import Settings
from jobs.geometries import GEOMETRIES
from jobs.methods import METHODS
from jobs.tasks import sources
from jobs.tasks import tasks as known_tasks
from lrp_core.explained import needs_foil
from lrp_core.families import FAMILIES, describing
from lrp_core.kinds import RESAMPLE
from lrp_core.methods import METHODS as OWN_METHODS
from lrp_core.types import UserError, nearest


def check(config: Settings) -> None:
    """Raises ConfigError naming every key that asks for what neither closelook nor an installed package has.

    Raises UserError, naming the package, where the records of one cannot be had.
    """
    from evaluation.scoring.metrics import METRICS, applicable  # with numpy, which a mistyped key need not wait for

    for table in (METHODS, sources(), METRICS, FAMILIES):
        len(table)  # packages are asked now, so that what is wrong with them is no key's fault
    problems: list[str] = []

    @contextmanager
    def checking(key: str) -> Iterator[None]:
        """A UserError inside is a problem of this key."""
        try:
            yield
        except UserError as error:
            problems.append(f"config key {key!r}: {error}")

    for task in config.tasks:
        record = None
        with checking(f"tasks.{task}.source"):
            record = config.task(task)
            applicable(record)
        with checking(f"tasks.{task}"):
            if record is not None:
                _check_task(config, task, record)
    for model in config.models:
        with checking(f"models.{model.name}.id"):
            family = type_in(model.id)
            if family is not None and model.family is None:
                describing(family)
        with checking(f"models.{model.name}.shape"):
            if model.shape is not None:
                _check_known("geometry", model.shape, GEOMETRIES)
        with checking(f"models.{model.name}.seed_of"):
            if model.seed_of is not None:
                _check_known("model", model.seed_of, [other.name for other in config.models if other is not model])
    if config.perturb is not None:
        with checking("perturb.explanations"):
            _check_curves(config, config.perturb)
        with checking("perturb.paper"):
            if config.perturb.paper and RESAMPLE in (config.perturb.ways or ()):
                raise UserError(f"it takes special tokens away, which {RESAMPLE!r} never replaces: leave one out")
    if config.controls is not None and config.controls.explanation not in (None, *config.explanations):
        with checking("controls.explanation"):
            asked = config.controls.explanation
            raise UserError(f"the run does not compute {asked!r}: add it to `explanations`, or leave it out here")
    for task in config.labels or ():
        with checking(f"labels.{task}"):
            if task in config.tasks and config.task(task).output != "label":
                raise UserError("no labels are predicted there: name tasks of classifiers")
    corpus = None if config.neurons is None else config.neurons.corpus
    if corpus is not None:
        with checking("neurons.corpus"):
            _check_corpus(corpus)
        with checking("neurons.corpus.explain"):
            if corpus.explain is not None:
                by_gradients = [method.name for method in OWN_METHODS.values() if method.rules is not None]
                _check_known("gradient method", corpus.explain, by_gradients)
    known = {"model": [model.name for model in config.models], "method": [m.name for m in config.every_method()]}
    for key, part in config.parts():
        for kind in known:
            with checking(f"{key}.{kind}s"):
                for name in part.names(f"{kind}s") or ():
                    _check_known(kind, name, known[kind], " in this run")
    for entry in config.methods:
        with checking("methods"):
            _check_method(config, entry)
    for model in config.models:
        for entry in config.methods_of(model):
            if entry not in config.methods:
                with checking(f"models.{model.name}.methods"):
                    _check_method(config, entry)
    if problems:
        raise ConfigError("; ".join(problems))


def type_in(model_id: str) -> str | None:
    """The `model_type` in the config.json of a model's folder; None of other models and of broken folders."""
    try:
        described = json.loads((Path(model_id).expanduser() / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    family = described.get("model_type") if isinstance(described, dict) else None
    return family if isinstance(family, str) else None


def _check_known(kind: str, name: str, known: Collection[str], of_run: str = "") -> None:
    if name not in known:
        raise UserError(f"no {kind} {name!r}{of_run}{nearest(name, known)}")


def _check_method(config: Settings, entry: MethodConfig) -> None:
    """Raises UserError for an entry that cannot be bound, or that leaves options open without a `select` block."""
    bound(entry)
    alternatives = left_open(entry)
    if alternatives and config.select is None:
        names = " and ".join(map(repr, alternatives[0]))
        raise UserError(f"{entry.name} lists values for {names}: add `select: {{}}` to choose one, or give one value")


def _check_task(config: Settings, name: str, record: Task) -> None:
    """Raises UserError where the settings of a task do not fit its texts."""
    settings = config.tasks[name]
    if settings.output is not None and (settings.source != SAMPLES.name or name in known_tasks()):
        raise UserError("what it asks for is known: leave out `output`, which is for samples of your own")
    if settings.evidence and settings.output is None:
        raise UserError("`evidence` is for samples of your own with `output`: what evidence others have is known")
    if record.beginning is None and (settings.tokens or settings.explains):
        raise UserError("its texts have a slot: leave out `tokens` and `explains`")
    if all(map(needs_foil, config.explanations)) and _is_without_foils(config, name):
        raise UserError("it has no foils to contrast with: add 'target' to `explanations`")


def _is_without_foils(config: Settings, task: str) -> bool:
    """True where the prediction has no alternative: the next word of a text, a score, words without foils."""
    record, settings = config.task(task), config.tasks[task]
    if record.beginning is not None or record.output == "score":
        return True
    if settings.source != SAMPLES.name or record.output != "token" or settings.path is None:
        return False
    return not has_foils(settings.path)


def _check_corpus(settings: CorpusConfig) -> None:
    _check_known("source", settings.source, sources())
    source_for(Corpus(settings.source, settings.path, settings.hub, settings.subset, settings.split))
    if isinstance(sources()[settings.source], Generated) and settings.limit is None:
        raise UserError(f"the {settings.source} source makes as many texts as are asked for: give a `limit`")


def _check_curves(config: Settings, settings: PerturbConfig) -> None:
    """Raises UserError where the run does not compute the explanations of its curves on every task that has curves."""
    asked = settings.explanations or config.explanations
    for name in asked:
        if name not in config.explanations:
            raise UserError(f"the run does not compute {name!r}: add it to `explanations`, or leave it out here")
    for task in set(settings.tasks or config.tasks).intersection(config.tasks):
        if all(map(needs_foil, asked)) and _is_without_foils(config, task):
            raise UserError(f"task {task} has no foils to contrast with: add 'target' here or name other `tasks`")
