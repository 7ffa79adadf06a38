"""The store's scores as the report reads them: which planned cells have them, and comparisons over their samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.report.papers import close_look
from evaluation.report.results import CellKey, Results, Score, Size, Variant
from evaluation.report.table import DONE, MISSING, PARTIAL
from evaluation.schema import SCORES, SCORES_SAMPLES, VIEW
from evaluation.scoring.chance import ChanceLevel
from evaluation.scoring.means import summarise
from evaluation.scoring.metrics import METRICS, Metric, applicable
from evaluation.scoring.samples import VARIANT, VIEW_COLUMNS, Masks
from evaluation.scoring.statistics import Comparison, compare
from jobs.config import ModelConfig, RunConfig
from jobs.config.methods import configured, tuned_label
from jobs.plan.choices import in_words
from jobs.plan.clusters import clusters_of
from jobs.plan.models import architecture
from jobs.plan.node import Cell, Plan, Run
from jobs.products.scores import SCORES as SCORED
from jobs.products.scores import scores_of
from jobs.store import Artifact, Ledger, Store
from lrp_core.methods.record import Method

#: Where the models of Close Look are published, besides the hub's old names without an owner.
_OWNERS = ("openai-community", "google-bert", "meta-llama")


def results_of(config: RunConfig, plan: Plan, store: Store) -> Results:
    """Scores and states of every planned relevance cell, and comparisons of methods in their default setting.

    Raises SchemaMismatch for scores of another schema version.
    """
    states = _states(config, plan, Ledger(store))
    scores: dict[tuple[CellKey, Variant, str], Score] = {}
    for cell_key, cell in ((cell_key_of(planned.artifact), planned.artifact) for planned in relevance_cells(plan)):
        if states[cell_key] == DONE:
            scores |= dict(_scores(store, cell_key, cell))
    tuned_on = dict(_tuned_on(plan))
    results = Results(
        models=tuple(model.name for model in config.models),
        tasks={name: config.task(name) for name in of_tokens(config)},
        methods=_methods(config, plan),
        dtypes=_dtypes(config, plan),
        states=_unplanned(config, plan) | states,
        scores=scores,
        published=_published(config),
        sizes={model.name: _size(model.resolved.config) for model in plan.models},
        floors=dict(_floors(config, plan, store)),
        tuned_on=tuned_on,
        clusters={task: clusters_of(Ledger(store), task) for task in of_tokens(config)},
        seeds=_seeds(config),
        undefined=frozenset(plan.undefined),
    )
    for cell_key in tuned_on:
        if states.get(cell_key) == DONE:
            scores |= _scores_but_for_tuning(store, results, cell_key)
    results = replace(results, scores=scores | dict(_scores_of_chance(store, results)))
    groups: dict[tuple[str, str, str], list[CellKey]] = defaultdict(list)
    for cell_key in results.defaults:  # done, and not empty; rows that are printed as noise count in no test
        if cell_key.dtype == results.dtypes[cell_key.model, cell_key.task][0] and not results.is_noise(cell_key):
            groups[cell_key[:3]].append(cell_key)
    comparisons = {}
    for key, places in groups.items():
        comparison = _compare(config, store, results, places)
        if comparison is not None:
            comparisons[key] = comparison
    return replace(results, comparisons=comparisons)


def _floors(config: RunConfig, plan: Plan, store: Store) -> Iterator[tuple[tuple[str, str], ChanceLevel]]:
    for model in plan.models:
        for task, inputs in model.inputs.items():
            if config.task(task).evidence is not None and not inputs.of_answers:
                masks = Masks.of(store.read(inputs.paths, VIEW, VIEW_COLUMNS))
                yield (model.name, task), ChanceLevel(masks, config.seed)


def _seeds(config: RunConfig) -> dict[str, tuple[str, ...]]:
    seeds: dict[str, tuple[str, ...]] = {}
    for model in config.models:
        if model.seed_of is not None:
            seeds[model.seed_of] = (*seeds.get(model.seed_of, ()), model.name)
    return seeds


def _tuned_on(plan: Plan) -> Iterator[tuple[CellKey, frozenset[str]]]:
    """The samples by which options were chosen, of every choice that is made."""
    for model in plan.models:
        for choice in model.choices:
            if choice.chosen is not None:
                ids = model.inputs[choice.artifact.task].ids.take(pa.array(choice.rows))
                yield cell_key_of(choice.artifact), frozenset(ids.to_pylist())


def _scores_but_for_tuning(
    store: Store, results: Results, cell_key: CellKey
) -> dict[tuple[CellKey, Variant, str], Score]:
    """The means of metrics over the samples that did not choose the method's options."""
    metrics = applicable(results.tasks[cell_key.task])
    samples = store.read(_samples_path(cell_key), SCORES_SAMPLES, [*VARIANT, "sample_id", "correct", *metrics])
    means = summarise(results.without_tuning(cell_key, samples), metrics).to_pylist()
    return {
        (cell_key, Variant(*(row[name] for name in VARIANT)), row["metric"]): Score(row["value"], row["n"])
        for row in means
    }


def _samples_path(cell_key: CellKey) -> str:
    """The file of the scores of every sample of a cell."""
    scores = Artifact("scores", *cell_key)
    return f"{scores.folders[1]}/{scores.shard()}"


def _scores_of_chance(store: Store, results: Results) -> Iterator[tuple[tuple[CellKey, Variant, str], Score]]:
    """The means of chance, over the samples and in the settings of which random relevance has scores."""
    drawn = [key for key in results.scores if key[0].method == results.baseline and key[0][:2] in results.floors]
    for cell_key, variant in {(cell_key, variant): None for cell_key, variant, metric in drawn if metric in METRICS}:
        samples = samples_of_variant(store, results, cell_key, variant)
        samples = samples.filter(samples["correct"])
        for name, metric in applicable(results.tasks[cell_key.task]).items():
            if len(samples):
                mean = metric.scale * float(samples[name].to_numpy().mean())
                yield (cell_key, variant, name), Score(mean, len(samples))


def of_tokens(config: RunConfig) -> list[str]:
    """The tasks whose tokens are scored: of whole answers it is the units of their prompts (see `parts.sources`)."""
    return [name for name in config.tasks if not config.task(name).explains_answers]


def relevance_cells(plan: Plan) -> Iterator[Cell]:
    """The cells of relevance whose tokens are scored."""
    for model in plan.models:
        for cell in model.cells:
            if cell.artifact.product == "relevance" and not model.inputs[cell.artifact.task].of_answers:
                yield cell


def cell_key_of(cell: Artifact) -> CellKey:
    return CellKey(cell.model, cell.task, cell.dtype, cell.method)


def _states(config: RunConfig, plan: Plan, ledger: Ledger) -> dict[CellKey, str]:
    """The state of each cell: done only if it is complete and scored by the present metrics, else missing."""
    names = {"done": DONE, "partial": PARTIAL, "damaged": PARTIAL, "missing": MISSING}
    states = {cell_key_of(planned.artifact): names[ledger.state(planned.artifact)] for planned in relevance_cells(plan)}
    for node in SCORED.nodes(Run(config, plan, ledger)):
        if node.state(ledger) != "done" and states[cell_key_of(node.artifact)] == DONE:
            states[cell_key_of(node.artifact)] = MISSING
    return states


def default_samples(store: Store, results: Results, cell_key: CellKey) -> pa.Table:
    """sample_id, correct and every metric of the place's task, of its default variant, by sample_id."""
    return samples_of_variant(store, results, cell_key, results.defaults[cell_key])


def samples_of_variant(store: Store, results: Results, cell_key: CellKey, variant: Variant) -> pa.Table:
    """The columns of `default_samples`, of another variant, but for samples that chose the method's options.

    Random relevance has its chance in place of one draw.
    """
    metrics, floor = applicable(results.tasks[cell_key.task]), results.floors.get((cell_key.model, cell_key.task))
    table = store.read(_samples_path(cell_key), SCORES_SAMPLES, [*VARIANT, "sample_id", "correct", *metrics])
    table = results.without_tuning(cell_key, table)
    for name, part in zip(VARIANT, variant, strict=True):
        table = table.filter(pc.field(name) == part)
    table = table.drop_columns(VARIANT)
    if floor is not None and cell_key.method == results.baseline:
        return floor.replace_scores(table, variant.tokens, variant.scope, metrics)
    return table


def _scores(store: Store, cell_key: CellKey, cell: Artifact) -> Iterator[tuple[tuple[CellKey, Variant, str], Score]]:
    scores = scores_of(cell)
    for row in store.read(f"{scores.folder}/{scores.shard()}", SCORES).to_pylist():
        variant = Variant(*(row[name] for name in VARIANT))
        yield (cell_key, variant, row["metric"]), Score(row["value"], row["n"])


def _compare(config: RunConfig, store: Store, results: Results, places: list[CellKey]) -> Comparison | None:
    """Methods on the correctly predicted samples that all of them have."""
    tables = []
    for cell_key in places:
        table = default_samples(store, results, cell_key)
        tables.append(table.filter(table["correct"]).drop_columns("correct").combine_chunks())
    common = set.intersection(*(set(table["sample_id"].to_pylist()) for table in tables))
    ids = pa.array(sorted(common), pa.string())
    of_task = applicable(results.tasks[places[0].task])
    measured = {name: metric for name, metric in of_task.items() if metric.is_compared}
    if not measured or not len(ids):
        return None
    values = []
    for table in tables:
        rows = table.take(pc.index_in(ids, value_set=pa.concat_arrays(table["sample_id"].chunks)))
        values.append(np.stack([rows[name].to_numpy() for name in measured], axis=1))  # [N, K]
    methods = tuple(cell_key.method for cell_key in places)
    stacked = np.stack(values, axis=1)  # [N, M, K]
    scale, shares = scale_of(measured.values())
    drawing = (config.report.resamples, config.seed)
    clusters = results.clusters_of(places[0].task, ids.to_pylist())
    return compare(stacked, methods, tuple(measured), *drawing, scale, shares, clusters)


def scale_of(metrics: Iterable[Metric]) -> tuple[np.ndarray, np.ndarray]:
    """Of each metric the factor that turns its numbers into its unit, and whether they are shares."""
    every = list(metrics)
    return np.array([metric.scale for metric in every]), np.array([metric.unit == "%" for metric in every])


def _methods(config: RunConfig, plan: Plan) -> dict[str, Method]:
    """Methods by name. A label says which options were chosen, if they are the same wherever they were."""
    methods = configured(config)
    for entry in config.every_method():
        choices = [c for model in plan.models for c in model.choices if c.artifact.method == entry.name]
        words = {in_words(choice.chosen or {}) for choice in choices}
        if len(words) == 1 and "" not in words:
            methods[entry.name] = replace(methods[entry.name], label=tuned_label(entry, f"{words.pop()}, tuned"))
    return methods


def _dtypes(config: RunConfig, plan: Plan) -> dict[tuple[str, str], tuple[str, ...]]:
    scored = of_tokens(config)
    taken = ((model, task) for model in config.models for task in plan.tasks_of(config, model))
    pairs = [(model, task) for model, task in taken if task in scored]
    return {(model.name, task): model.dtypes_for(task) for model, task in pairs}


def _unplanned(config: RunConfig, plan: Plan) -> dict[CellKey, str]:
    """Missing cells of models that are out of reach, of tasks that are not prepared, of options not chosen."""
    lost = {(name, task) for name in plan.failures for task in of_tokens(config)} | set(plan.unprepared)
    undefined, places = set(plan.undefined), [cell_key_of(choice.artifact) for choice in plan.undecided]
    for (model, task), dtypes in _dtypes(config, plan).items():
        for entry in config.every_method() if (model, task) in lost else ():
            if (model, entry.name) not in undefined:
                places += [CellKey(model, task, dtype, entry.name) for dtype in dtypes]
    return dict.fromkeys(places, MISSING)


def _size(model: ModelConfig) -> Size:
    """The size of the model, which needs no weights: parameters that are tied count once."""
    from lrp_core import random_model

    config = architecture(model)
    weights = random_model(config, device="meta", family=model.family).model.parameters()
    parameters = sum(parameter.numel() for parameter in weights)
    return Size(parameters, config.num_hidden_layers, config.num_attention_heads, config.hidden_size)


def _published(config: RunConfig) -> dict[tuple[str, str], str]:
    """Models of Close Look under their published ids, on published data."""
    names = {key[3] for key in close_look()}
    tasks = [task for task, feed in config.tasks.items() if config.task(task).is_published(feed.source)]
    published: dict[tuple[str, str], str] = {}
    for model in config.models:
        owner, _, name = model.id.rpartition("/")
        if name in names and (owner in _OWNERS or not owner):
            published |= {(model.name, task): name for task in tasks}
    return published
