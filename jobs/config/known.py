"""Checks that the names in a configuration exist: sources, metrics, methods, model families. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from evaluation.benchmark.corpus import Corpus, source_for
from evaluation.benchmark.sources.base import Generated
from evaluation.benchmark.sources.own import KNOWN, SAMPLES, has_foils
from evaluation.benchmark.sources.remote import SCHEMES, WEB, scheme_of
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
from lrp_core.families import FAMILIES, describing
from lrp_core.methods import METHODS as OWN_METHODS
from lrp_core.records.explained import needs_foil
from lrp_core.records.kinds import RESAMPLE
from lrp_core.records.types import UserError, nearest


def check(config: Settings) -> None:
    """Raise ConfigError naming every key whose value neither closelook nor an installed package defines.

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

    for key, path in _paths(config):
        with checking(key):
            _check_url(path, config.hosts)
    if problems:  # what must not be read is not looked into below
        raise ConfigError("; ".join(problems))
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
    with checking("ablations"):
        _check_ablations(config)
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


def _paths(config: Settings) -> Iterator[tuple[str, str]]:
    """(config key, path) of all data that the configuration names."""
    paths = {f"tasks.{name}.path": task.path for name, task in config.tasks.items()}
    if config.neurons is not None and config.neurons.corpus is not None:
        paths["neurons.corpus.path"] = config.neurons.corpus.path
    yield from ((key, path) for key, path in paths.items() if path is not None)


def _check_url(path: str, hosts: Collection[str]) -> None:
    """Raises UserError for a URL that must not be read: of a server that nobody named, or with credentials in it."""
    scheme = scheme_of(path)
    if not scheme:
        return
    if scheme not in SCHEMES:
        raise UserError(f"{scheme}:// is not supported; give a path, or a URL of {', '.join(SCHEMES)}")
    parts = urlsplit(path)
    if parts.username is not None or parts.password is not None:
        raise UserError("credentials belong in the environment, not in a URL")
    if scheme in WEB and parts.hostname not in hosts:
        raise UserError(f"it is on the web server {parts.hostname}: add `hosts: [{parts.hostname}]` to load it")


def _check_known(kind: str, name: str, known: Collection[str], of_run: str = "") -> None:
    if name not in known:
        raise UserError(f"no {kind} {name!r}{of_run}{nearest(name, known)}")


def _check_method(config: Settings, entry: MethodConfig) -> None:
    """Raises UserError for an entry that cannot be bound, that leaves options open which nothing chooses, or that is
    about what the run does not have.
    """
    record, answers = bound(entry), _of_answers(config)
    lacking = not answers and not config.left_out  # a task that was left out may be one of answers
    if "tokens" not in record.given and (config.ablations is None or lacking):
        raise UserError(
            f"{entry.name} is made of answers without some of their sources, and needs `ablations: {{}}` and a task "
            "that explains whole answers"
        )
    alternatives = left_open(entry)
    if alternatives and answers:
        raise UserError(f"{entry.name} leaves options open, which nothing chooses for task {answers[0]}: give values")
    if alternatives and config.select is None:
        names = " and ".join(map(repr, alternatives[0]))
        raise UserError(f"{entry.name} lists values for {names}: add `select: {{}}` to choose one, or give one value")


def _check_ablations(config: Settings) -> None:
    """Raises UserError where sources are to be ablated and the run has no answers, unless a task was left out."""
    if config.ablations is not None and not _of_answers(config) and not config.left_out:
        raise UserError("no task of the run explains whole answers: add one, or leave out `ablations`")


def _of_answers(config: Settings) -> list[str]:
    """The tasks of the run that explain whole answers, of those that exist."""
    answers = []
    for name in config.tasks:
        with suppress(UserError):
            answers += [name] if config.task(name).explains_answers else []
    return answers


def _check_task(config: Settings, name: str, record: Task) -> None:
    """Raises UserError where the settings of a task do not fit its texts."""
    settings = config.tasks[name]
    if settings.output is not None and (settings.source != SAMPLES.name or name in known_tasks()):
        raise UserError("what it asks for is known: leave out `output`, which is for samples of your own")
    if settings.source != SAMPLES.name and (settings.evidence is not None or settings.columns):
        name = "columns" if settings.columns else "evidence"
        raise UserError(f"`{name}` is for samples of your own: what others have is known")
    for column in settings.columns:
        if column not in KNOWN:
            raise UserError(f"`columns` gives a column of the file to each of {', '.join(KNOWN)}, not to {column!r}")
    if not record.explains_answers and settings.units is not None:
        raise UserError("it explains single tokens: leave out `units`, or say `words: all`")
    if record.explains_answers:
        _check_answers(config, name)
        return
    if record.beginning is None and (settings.tokens or settings.explains):
        raise UserError("its texts have a slot: leave out `tokens` and `explains`")
    if all(map(needs_foil, config.explanations)) and _is_without_foils(config, name):
        raise UserError("it has no foils to contrast with: add 'target' to `explanations`")


def _check_answers(config: Settings, name: str) -> None:
    """Raise UserError if a task of whole answers is combined with options for single tokens."""
    settings = config.tasks[name]
    unfit = [key for key in ("truncate", "first_piece", "balance", "tokens", "explains") if getattr(settings, key)]
    if unfit:
        raise UserError(f"it explains whole answers: leave out `{unfit[0]}`")
    for key in ("heads", "layers", "labels", "neurons"):
        if name in config.finer(key):
            raise UserError(f"it explains whole answers, of which `{key}` keeps nothing: leave it out there")
    for key, part in config.parts():
        if key in ("prune", "perturb") and name in (part.names("tasks") or ()):
            raise UserError(f"it explains whole answers: leave it out of `{key}.tasks`; `ablations` takes sources away")


def _is_without_foils(config: Settings, task: str) -> bool:
    """True where the prediction has no alternative: the next word of a text, a score, words without foils."""
    record, settings = config.task(task), config.tasks[task]
    if record.beginning is not None or record.output == "score":
        return True
    if settings.source != SAMPLES.name or record.output != "token" or settings.path is None:
        return False
    return not has_foils(settings.path, settings.columns)


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
        if config.task(task).explains_answers:
            continue  # it has no curves
        if all(map(needs_foil, asked)) and _is_without_foils(config, task):
            raise UserError(f"task {task} has no foils to contrast with: add 'target' here or name other `tasks`")
