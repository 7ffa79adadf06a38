"""Checks that the names in a configuration exist and that its settings fit each other. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

from closelook.evaluation.benchmark.corpus import Corpus, source_for
from closelook.evaluation.benchmark.sources.base import Generated
from closelook.evaluation.benchmark.sources.own import KNOWN, SAMPLES, has_foils
from closelook.evaluation.benchmark.sources.remote import SCHEMES, WEB, scheme_of
from closelook.evaluation.tasks import Task
from closelook.jobs.config.blocks import PerturbConfig
from closelook.jobs.config.file import ConfigError
from closelook.jobs.config.methods import bound, left_open
from closelook.jobs.config.models import MethodConfig
from closelook.jobs.config.neurons import CorpusConfig
from closelook.jobs.config.settings import FINER_KEYS, Settings
from closelook.jobs.methods import METHODS
from closelook.jobs.tasks import sources
from closelook.jobs.tasks import tasks as known_tasks
from closelook.lrp_core.families import FAMILIES, check_type
from closelook.lrp_core.methods import METHODS as OWN_METHODS
from closelook.lrp_core.records.explained import needs_foil
from closelook.lrp_core.records.kinds import RESAMPLE
from closelook.lrp_core.records.types import UserError, nearest


class _Problems:
    """The faults of a configuration that were found so far, each with its key."""

    def __init__(self) -> None:
        self._found: list[str] = []

    @contextmanager
    def of(self, key: str) -> Iterator[None]:
        """Note a UserError that is raised inside the block, as one of this key."""
        try:
            yield
        except UserError as error:
            self._found.append(f"config key {key!r}: {error}")

    def tell(self) -> None:
        """Raise a ConfigError that names all faults, if there are any."""
        if self._found:
            raise ConfigError("; ".join(self._found))


def check(config: Settings) -> None:
    """Raise one ConfigError that names every key whose value is unknown or does not fit the others.

    Raises UserError, naming the package, if an installed package cannot be imported.
    """
    from closelook.evaluation.scoring.metrics import METRICS  # imports numpy, which takes longer than parsing YAML

    for table in (METHODS, sources(), METRICS, FAMILIES):
        len(table)  # imports what packages add: an error in a package is raised here and blamed on no key
    check_paths(config)  # some checks below read files, and must not read those of refused paths
    problems = _Problems()
    _check_tasks(config, problems)
    _check_models(config, problems)
    _check_products(config, problems)
    _check_names(config, problems)
    _check_methods(config, problems)
    problems.tell()


def check_paths(config: Settings) -> None:
    """Raise one ConfigError that names every path or URL of data that must not be read."""
    problems = _Problems()
    for key, path in _paths(config):
        with problems.of(key):
            _check_url(path, config.hosts)
    problems.tell()


def _check_tasks(config: Settings, problems: _Problems) -> None:
    from closelook.evaluation.scoring.metrics import applicable

    with problems.of("tasks"):
        if not config.tasks:
            raise UserError("a run needs at least one task: add one, as in `tasks: {sva: {source: demo}}`")
    for task in config.tasks:
        record = None
        with problems.of(f"tasks.{task}.source"):
            record = config.task(task)
            applicable(record)  # raises UserError if a metric cannot be applied
        with problems.of(f"tasks.{task}"):
            if record is not None:
                _check_task(config, task, record)


def _check_models(config: Settings, problems: _Problems) -> None:
    for model in config.models:
        with problems.of(f"models.{model.name}.id"):
            family = type_in(model.id)
            if family is not None and model.family is None:
                check_type(family)
        with problems.of(f"models.{model.name}.seed_of"):
            if model.seed_of is not None:
                _check_known("model", model.seed_of, [other.name for other in config.models if other is not model])


def _check_products(config: Settings, problems: _Problems) -> None:
    """Check the blocks of single products: `prune`, `ablations`, `perturb`, `controls`, `labels` and `neurons`."""
    with problems.of("prune"):
        heads = config.finer("heads")
        is_empty = config.prune is not None and not any(config.prune.takes(task=task) for task in heads)
        if is_empty and not config.left_out:
            raise UserError(
                "heads are removed by their relevance: name tasks of it in `heads`, as {sva: 100}, or leave out `prune`"
            )
    with problems.of("ablations"):
        if config.ablations is not None and not _of_answers(config) and not config.left_out:
            raise UserError("no task of the run explains whole answers: add one, or leave out `ablations`")
    if config.perturb is not None:
        with problems.of("perturb.explanations"):
            _check_curves(config, config.perturb)
        with problems.of("perturb.paper"):
            if config.perturb.paper and RESAMPLE in (config.perturb.ways or ()):
                raise UserError(f"it removes special tokens, which {RESAMPLE!r} never replaces: leave one of both out")
    if config.controls is not None and config.controls.explanation not in (None, *config.explanations):
        with problems.of("controls.explanation"):
            explanation = config.controls.explanation
            raise UserError(f"the run does not compute {explanation!r}: add it to `explanations`, or leave it out here")
    for task in config.labels or ():
        with problems.of(f"labels.{task}"):
            if task in config.tasks and config.task(task).output != "label":
                raise UserError(f"task {task!r} predicts no labels: name tasks of classifiers")
    corpus = None if config.neurons is None else config.neurons.corpus
    if corpus is not None:
        with problems.of("neurons.corpus"):
            _check_corpus(corpus)
        with problems.of("neurons.corpus.explain"):
            if corpus.explain is not None:
                by_gradients = [method.name for method in OWN_METHODS.values() if method.rules is not None]
                _check_known("gradient method", corpus.explain, by_gradients)


def _check_names(config: Settings, problems: _Problems) -> None:
    """Check that blocks of the configuration name models and methods of the run, and that no two cells share files."""
    places: dict[str, tuple[str, str]] = {}
    for model, task in product((model.name for model in config.models), config.tasks):
        first = places.setdefault(f"{model}.{task}", (model, task))
        with problems.of("tasks"):
            if first != (model, task):
                other = f"task {first[1]} of model {first[0]}"
                raise UserError(f"task {task} of model {model} and {other} would share files: rename one")
    known = {"model": [model.name for model in config.models], "method": [m.name for m in config.every_method()]}
    for key, part in config.parts():
        for kind in known:
            with problems.of(f"{key}.{kind}s"):
                for name in part.names(f"{kind}s") or ():
                    _check_known(kind, name, known[kind], " in this run")


def _check_methods(config: Settings, problems: _Problems) -> None:
    for entry in config.methods:
        with problems.of("methods"):
            _check_method(config, entry)
    for model in config.models:
        for entry in config.methods_of(model):
            if entry not in config.methods:
                with problems.of(f"models.{model.name}.methods"):
                    _check_method(config, entry)


def type_in(model_id: str) -> str | None:
    """The `model_type` in the config.json of a model's folder; None if `model_id` is no folder with a valid one."""
    try:
        described = json.loads((Path(model_id).expanduser() / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    family = described.get("model_type") if isinstance(described, dict) else None
    return family if isinstance(family, str) else None


def _paths(config: Settings) -> Iterator[tuple[str, str]]:
    """(config key, path or URL) of all data that the configuration names."""
    paths = {f"tasks.{name}.path": task.path for name, task in config.tasks.items()}
    if config.neurons is not None and config.neurons.corpus is not None:
        paths["neurons.corpus.path"] = config.neurons.corpus.path
    yield from ((key, path) for key, path in paths.items() if path is not None)


def _check_url(path: str, hosts: Collection[str]) -> None:
    """Raise UserError for a URL that must not be read: of an unsupported scheme, a web server not in `hosts`, or with
    credentials in it.
    """
    scheme = scheme_of(path)
    if not scheme:
        return
    if scheme not in SCHEMES:
        raise UserError(f"{scheme}:// is not supported; give a path, or a URL of {', '.join(SCHEMES)}")
    parts = urlsplit(path)
    if parts.username is not None or parts.password is not None:
        raise UserError("the URL contains credentials: set them in the environment instead")
    if scheme in WEB and parts.hostname not in hosts:
        raise UserError(f"it is on the web server {parts.hostname}: add `hosts: [{parts.hostname}]` to load it")


def _check_known(kind: str, name: str, known: Collection[str], of_run: str = "") -> None:
    """Raise UserError, with the nearest known name, if `name` is not among the `known` names of this `kind`."""
    if name not in known:
        raise UserError(f"no {kind} {name!r}{of_run}{nearest(name, known)}")


def _check_method(config: Settings, entry: MethodConfig) -> None:
    """Raise UserError for an entry of `methods` that this run cannot compute."""
    record, answers = bound(entry), _of_answers(config)
    lacking = not answers and not config.left_out  # a task that was left out may be one of whole answers
    if "tokens" not in record.given and (config.ablations is None or lacking):
        raise UserError(
            f"{entry.name} explains from which sources an answer comes: add `ablations: {{}}` and a task that explains "
            "whole answers (`words: all`)"
        )
    alternatives = left_open(entry)
    if alternatives and answers:
        raise UserError(
            f"{entry.name} lists several values for an option, but `select` chooses none for task {answers[0]}, which "
            "explains whole answers: give one value"
        )
    if alternatives and config.select is None:
        names = " and ".join(map(repr, alternatives[0]))
        raise UserError(f"{entry.name} lists values for {names}: add `select: {{}}` to choose one, or give one value")


def _of_answers(config: Settings) -> list[str]:
    """The names of the run's tasks that explain whole answers; tasks with an unknown source are skipped."""
    answers = []
    for name in config.tasks:
        with suppress(UserError):
            answers += [name] if config.task(name).explains_answers else []
    return answers


def _check_task(config: Settings, name: str, record: Task) -> None:
    """Raise UserError if the settings of the task `name` do not fit its texts."""
    settings = config.tasks[name]
    if settings.output is not None and (settings.source != SAMPLES.name or name in known_tasks()):
        raise UserError("the output of this task is fixed: leave out `output`, which is for samples of your own")
    if settings.source != SAMPLES.name and (settings.evidence is not None or settings.columns):
        name = "columns" if settings.columns else "evidence"
        raise UserError(f"leave out `{name}`: it is for samples of your own (`source: samples`)")
    for column in settings.columns:
        if column not in KNOWN:
            raise UserError(f"`columns` has the key {column!r}: its keys must be among {', '.join(KNOWN)}")
    if not record.explains_answers and settings.units is not None:
        raise UserError("the task explains single tokens: leave out `units`, or add `words: all`")
    if record.explains_answers:
        _check_answers(config, name)
        return
    if record.beginning is None and (settings.tokens or settings.explains):
        raise UserError("the task's texts have a slot: leave out `tokens` and `explains`")
    if all(map(needs_foil, config.explanations)) and _is_without_foils(config, name):
        raise UserError("the task has no foils to contrast with: add 'target' to `explanations`")


def _check_answers(config: Settings, name: str) -> None:
    """Raise UserError if a task of whole answers has, or is named by, settings that are for tasks of single tokens."""
    settings = config.tasks[name]
    unfit = [key for key in ("truncate", "first_piece", "balance", "tokens", "explains") if getattr(settings, key)]
    if unfit:
        raise UserError(f"the task explains whole answers: leave out `{unfit[0]}`")
    for key in FINER_KEYS:
        if name in config.finer(key):
            raise UserError(f"the task explains whole answers, of which `{key}` keeps nothing: remove it from `{key}`")
    for key, part in config.parts():
        if key in ("prune", "perturb") and name in (part.names("tasks") or ()):
            raise UserError(f"the task explains whole answers: remove it from `{key}.tasks` and use `ablations`")


def _is_without_foils(config: Settings, task: str) -> bool:
    """True if the samples of the task have no foils: for the next token of a text, a score, and a user's file of words
    without foils, which is read.
    """
    record, settings = config.task(task), config.tasks[task]
    if record.beginning is not None or record.output == "score":
        return True
    if settings.source != SAMPLES.name or record.output != "token" or settings.path is None:
        return False
    return not has_foils(settings.path, settings.columns)


def _check_corpus(settings: CorpusConfig) -> None:
    """Raise UserError for a corpus whose source is unknown, has no texts, or generates texts without a `limit`."""
    _check_known("source", settings.source, sources())
    source_for(Corpus(settings.source, settings.path, settings.hub, settings.subset, settings.split))
    if isinstance(sources()[settings.source], Generated) and settings.limit is None:
        raise UserError(f"the {settings.source} source generates texts without end: set `limit` to the number of texts")


def _check_curves(config: Settings, settings: PerturbConfig) -> None:
    """Raise UserError if the run does not compute an explanation of its curves, or a task has no foils for them."""
    explanations = settings.explanations or config.explanations
    for name in explanations:
        if name not in config.explanations:
            raise UserError(f"the run does not compute {name!r}: add it to `explanations`, or leave it out here")
    for task in set(settings.tasks or config.tasks).intersection(config.tasks):
        if config.task(task).explains_answers:
            continue  # tasks of whole answers have no curves
        if all(map(needs_foil, explanations)) and _is_without_foils(config, task):
            raise UserError(f"task {task} has no foils to contrast with: add 'target' here or name other `tasks`")
