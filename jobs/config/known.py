"""Whether there is what a configuration asks for: sources, metrics, methods, model families. No torch here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from evaluation.benchmark.corpus import Corpus, source_for
from evaluation.benchmark.sources.base import Generated
from evaluation.benchmark.sources.own import SAMPLES, has_foils
from jobs.config.file import ConfigError
from jobs.methods import METHODS, bound, left_open
from jobs.tasks import sources
from jobs.tasks import tasks as known_tasks
from lrp_core.explained import needs_foil
from lrp_core.families import FAMILIES, describing
from lrp_core.methods import METHODS as OWN_METHODS
from lrp_core.types import UserError, nearest

if TYPE_CHECKING:
    from jobs.config.models import MethodConfig, ModelConfig
    from jobs.config.neurons import CorpusConfig
    from jobs.config.perturb import PerturbConfig
    from jobs.config.run import RunConfig


def check(config: RunConfig) -> None:
    """Raises ConfigError naming every key that asks for what neither closelook nor an installed package has.

    Raises UserError, naming the package, where the records of one cannot be had.
    """
    from evaluation.scoring.metrics import METRICS  # with numpy, which a mistyped key need not wait for

    for table in (METHODS, sources(), METRICS, FAMILIES):
        len(table)  # packages are asked now, so that what is wrong with them is no key's fault
    problems = []
    for key, look_up in _look_ups(config):
        try:
            look_up()
        except UserError as error:
            problems.append(f"config key {key!r}: {error}")
    if problems:
        raise ConfigError("; ".join(problems))


def _look_ups(config: RunConfig) -> Iterator[tuple[str, Callable[[], object]]]:
    """(config key, what raises UserError if there is nothing of the kind)."""
    for task in config.tasks:
        yield f"tasks.{task}.source", partial(_scored, config, task)
        yield f"tasks.{task}", partial(_read, config, task)
    for model in config.models:
        yield f"models.{model.name}.id", partial(_described, model)
        if model.shape is not None:
            yield f"models.{model.name}.shape", partial(_shaped, model.shape)
    if config.perturb is not None:
        yield "perturb.explanations", partial(_explained, config, config.perturb)
    for task in config.labels or ():
        if task in config.tasks:
            yield f"labels.{task}", partial(_labelled, config, task)
    if config.neurons is not None and config.neurons.corpus is not None:
        yield "neurons.corpus", partial(_texts, config.neurons.corpus)
        yield "neurons.corpus.explain", partial(_explains, config.neurons.corpus)
    models = [model.name for model in config.models]
    methods = [entry.name for entry in config.every_method()]
    for key, part in config.parts():
        for kind, known in (("model", models), ("method", methods)):
            yield f"{key}.{kind}s", partial(_named, kind, getattr(part, f"{kind}s", None) or (), known)
    for entry in config.methods:
        yield "methods", partial(_bound, config, entry)
    for model in config.models:
        for entry in config.methods_of(model):
            if entry not in config.methods:
                yield f"models.{model.name}.methods", partial(_bound, config, entry)


def _bound(config: RunConfig, entry: MethodConfig) -> None:
    bound(entry)
    alternatives = left_open(entry)
    if alternatives and config.select is None:
        names = " and ".join(map(repr, alternatives[0]))
        raise UserError(f"{entry.name} lists values for {names}: add `select: {{}}` to choose one, or give one value")


def _scored(config: RunConfig, task: str) -> None:
    from evaluation.scoring.metrics import applicable

    applicable(config.task(task))


def _read(config: RunConfig, task: str) -> None:
    """Whether what is asked of the task's texts can be asked; a task that does not exist has had its turn."""
    try:
        record = config.task(task)
    except UserError:
        return
    if config.tasks[task].output is not None and (config.tasks[task].source != SAMPLES.name or task in known_tasks()):
        raise UserError("what it asks for is known: leave out `output`, which is for samples of your own")
    if config.tasks[task].evidence and config.tasks[task].output is None:
        raise UserError("`evidence` is for samples of your own with `output`: what evidence others have is known")
    if record.beginning is None and (config.tasks[task].tokens or config.tasks[task].explains):
        raise UserError("its texts have a slot: leave out `tokens` and `explains`")
    if all(map(needs_foil, config.explanations)) and _is_without_foils(config, task):
        raise UserError("it has no foils to contrast with: add 'target' to `explanations`")


def _is_without_foils(config: RunConfig, task: str) -> bool:
    """Whether nothing stands beside what is predicted: the next word of a text, a score, words without foils."""
    record, settings = config.task(task), config.tasks[task]
    if record.beginning is not None or record.output == "score":
        return True
    own = settings.source == SAMPLES.name and record.output == "token"
    return own and settings.path is not None and not has_foils(settings.path)


def _texts(settings: CorpusConfig) -> None:
    if settings.source not in sources():
        raise UserError(f"no source {settings.source!r}{nearest(settings.source, sources())}")
    source_for(Corpus(settings.source, settings.path, settings.hub, settings.subset, settings.split))
    if isinstance(sources()[settings.source], Generated) and settings.limit is None:
        raise UserError(f"the {settings.source} source makes as many texts as are asked for: give a `limit`")


def _named(kind: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise UserError(f"no {kind} {name!r} in this run{nearest(name, known)}")


def _explains(settings: CorpusConfig) -> None:
    names = [method.name for method in OWN_METHODS.values() if method.rules is not None]
    if settings.explain is not None and settings.explain not in names:
        raise UserError(f"no gradient method {settings.explain!r}{nearest(settings.explain, names)}")


def _labelled(config: RunConfig, task: str) -> None:
    if config.task(task).output != "label":
        raise UserError("no labels are predicted there: name tasks of classifiers")


def _explained(config: RunConfig, settings: PerturbConfig) -> None:
    """Whether the run computes what curves are to be drawn of, on every task that they are drawn on."""
    asked = settings.explanations or config.explanations
    for name in asked:
        if name not in config.explanations:
            raise UserError(f"the run does not compute {name!r}: add it to `explanations`, or leave it out here")
    for task in set(settings.tasks or config.tasks).intersection(config.tasks):
        if all(map(needs_foil, asked)) and _is_without_foils(config, task):
            raise UserError(f"task {task} has no foils to contrast with: add 'target' here or name other `tasks`")


def _shaped(shape: str) -> None:
    from jobs.plan.geometries import GEOMETRIES

    if shape not in GEOMETRIES:
        raise UserError(f"no geometry {shape!r}{nearest(shape, GEOMETRIES)}")


def _described(model: ModelConfig) -> None:
    """Looks at the config.json of a model's folder; other models, and broken folders, wait for their turn."""
    try:
        described = json.loads((Path(model.id).expanduser() / "config.json").read_bytes())
    except (OSError, ValueError):
        return
    known = isinstance(described, dict) and isinstance(described.get("model_type"), str)
    if known and model.family is None:
        describing(described["model_type"])
