"""The store's scores as the report reads them: the state of planned cells, and comparisons over their samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.report.results import CellKey, Results, Score, Size, Variant, close_look
from closelook.evaluation.report.table import DONE, MISSING, PARTIAL
from closelook.evaluation.schema import SCORES, SCORES_SAMPLES, VIEW
from closelook.evaluation.scoring.chance import ChanceLevel
from closelook.evaluation.scoring.means import summarise
from closelook.evaluation.scoring.metrics import METRICS, Metric, applicable
from closelook.evaluation.scoring.samples import VARIANT, VIEW_COLUMNS, Masks
from closelook.evaluation.scoring.statistics import Comparison, compare
from closelook.jobs.config import ModelConfig, RunConfig, configured
from closelook.jobs.config.methods import tuned_label
from closelook.jobs.plan.checkpoints import ModelUnavailable
from closelook.jobs.plan.choices import in_words
from closelook.jobs.plan.clusters import clusters_of
from closelook.jobs.plan.models import architecture
from closelook.jobs.plan.node import Cell, Plan, Run
from closelook.jobs.products.scores import SCORES as SCORED
from closelook.jobs.store import Artifact, Store
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.types import UserError

#: The hub's owners of the models of Close Look, whose old ids have no owner.
_OWNERS = ("openai-community", "google-bert", "meta-llama")


def results_of(run: Run) -> Results:
    """The scores and states of all planned cells of relevance, and comparisons of methods by their default variant.

    Raises SchemaMismatch for scores of another schema version.
    """
    config, plan, store = run.config, run.plan, run.store
    states = _states(run)
    scores: dict[tuple[CellKey, Variant, str], Score] = {}
    for cell_key, state in states.items():
        if state == DONE:
            scores |= dict(_by_variant(cell_key, store.read(_path(cell_key, 0), SCORES)))
    tuned_on = dict(_tuned_on(plan))
    tasks = {name: config.task(name) for name in of_tokens(config)}
    sizes = {model.name: size for model in plan.models if (size := _size(model.resolved.config)) is not None}
    clusters = {task: clusters_of(run.ledger, task) for task in tasks}
    results = Results(
        models=tuple(model.name for model in config.models),
        tasks=tasks,
        methods=_methods(run),
        dtypes=_dtypes(run),
        states=_unplanned(run) | states,
        scores=scores,
        published=_published(config),
        sizes=sizes,
        floors=dict(_floors(run)),
        tuned_on=tuned_on,
        clusters=clusters,
        seeds=_seeds(config),
    )
    for cell_key in tuned_on:
        if states.get(cell_key) == DONE:
            metrics = applicable(results.tasks[cell_key.task])
            means = summarise(_samples(store, results, cell_key), metrics)  # but for those that chose its options
            scores |= dict(_by_variant(cell_key, means))
    results = replace(results, scores=scores | dict(_scores_of_chance(store, results)))
    groups: dict[tuple[str, str, str], list[CellKey]] = defaultdict(list)
    for cell_key in shown_cell_keys(results):
        if results.noise(cell_key) is None:
            groups[cell_key[:3]].append(cell_key)
    comparisons = {}
    for key, cell_keys in groups.items():
        comparison = _compare(run, results, cell_keys)
        if comparison is not None:
            comparisons[key] = comparison
    return replace(results, comparisons=comparisons)


def _floors(run: Run) -> Iterator[tuple[tuple[str, str], ChanceLevel]]:
    """Yield ((model, task), the scores of random relevance by chance) for tasks with evidence."""
    for model in run.plan.models:
        for task, inputs in model.inputs.items():
            if run.config.task(task).evidence is not None and not inputs.of_answers:
                masks = Masks.of(run.store.read(inputs.paths, VIEW, VIEW_COLUMNS))
                yield (model.name, task), ChanceLevel(masks, run.config.seed)


def _seeds(config: RunConfig) -> dict[str, tuple[str, ...]]:
    """By model, the models that differ from it only in their training seed."""
    seeds: dict[str, tuple[str, ...]] = {}
    for model in config.models:
        if model.seed_of is not None:
            seeds[model.seed_of] = (*seeds.get(model.seed_of, ()), model.name)
    return seeds


def _tuned_on(plan: Plan) -> Iterator[tuple[CellKey, frozenset[str]]]:
    """Yield (cell key, ids of the samples by which options were chosen) for every choice that is made."""
    for model in plan.models:
        for choice in model.choices:
            if choice.chosen is not None:
                ids = model.inputs[choice.artifact.task].ids(choice.rows)
                yield cell_key_of(choice.artifact), frozenset(ids)


def _by_variant(cell_key: CellKey, means: pa.Table) -> Iterator[tuple[tuple[CellKey, Variant, str], Score]]:
    """Yield ((cell key, variant, metric), score) for each row of mean scores of a cell."""
    for row in means.to_pylist():
        variant = Variant(*(row[name] for name in VARIANT))
        yield (cell_key, variant, row["metric"]), Score(row["value"], row["n"])


def _samples(store: Store, results: Results, cell_key: CellKey) -> pa.Table:
    """The scores of every sample of a cell by the metrics of its task, without samples that chose its options."""
    columns = [*VARIANT, "sample_id", "correct", *applicable(results.tasks[cell_key.task])]
    return results.without_tuning(cell_key, store.read(_path(cell_key, 1), SCORES_SAMPLES, columns))


def _path(cell_key: CellKey, folder: int) -> str:
    """The path of the mean scores of a cell (folder 0), or of the scores of its samples (folder 1)."""
    scores = Artifact("scores", *cell_key)
    return f"{scores.folders[folder]}/{scores.shard()}"


def _scores_of_chance(store: Store, results: Results) -> Iterator[tuple[tuple[CellKey, Variant, str], Score]]:
    """Yield the mean scores by chance, which replace those of random relevance as it was drawn."""
    drawn = [key for key in results.scores if key[0].method == results.baseline and key[0][:2] in results.floors]
    for cell_key, variant in {(cell_key, variant): None for cell_key, variant, metric in drawn if metric in METRICS}:
        samples = samples_of_variant(store, results, cell_key, variant)
        samples = samples.filter(samples["correct"])
        for name, metric in applicable(results.tasks[cell_key.task]).items():
            if len(samples):
                mean = metric.scale * float(samples[name].to_numpy().mean())
                yield (cell_key, variant, name), Score(mean, len(samples))


def of_tokens(config: RunConfig) -> list[str]:
    """The tasks whose tokens are scored. Tasks of whole answers are not: there, units of prompts are scored."""
    return [name for name in config.tasks if not config.task(name).explains_answers]


def relevance_cells(plan: Plan) -> Iterator[Cell]:
    """Yield the cells of relevance whose tokens are scored."""
    for model in plan.models:
        for cell in model.cells:
            if cell.artifact.product == "relevance" and not model.inputs[cell.artifact.task].of_answers:
                yield cell


def relevance_artifacts(plan: Plan) -> dict[CellKey, Artifact]:
    """The artifacts of `relevance_cells`, by their cell key."""
    return {cell_key_of(planned.artifact): planned.artifact for planned in relevance_cells(plan)}


def shown_cell_keys(results: Results) -> Iterator[CellKey]:
    """Yield the keys of cells with scores in the first precision of their model and task, which is the one shown."""
    for cell_key in results.defaults:
        if cell_key.dtype == results.dtypes[cell_key.model, cell_key.task][0]:
            yield cell_key


def cell_key_of(cell: Artifact) -> CellKey:
    """The key (model, task, precision, method) of a cell in the results."""
    return CellKey(*cell.columns)


def _states(run: Run) -> dict[CellKey, str]:
    """The state of each cell. Done means complete and scored by the present metrics; unscored cells are missing."""
    names = {"done": DONE, "partial": PARTIAL, "damaged": PARTIAL, "missing": MISSING}
    cells = relevance_artifacts(run.plan)
    states = {cell_key: names[run.ledger.state(cell)] for cell_key, cell in cells.items()}
    for node in SCORED.nodes(run):
        if node.state(run.ledger) != "done" and states[cell_key_of(node.artifact)] == DONE:
            states[cell_key_of(node.artifact)] = MISSING
    return states


def default_samples(store: Store, results: Results, cell_key: CellKey) -> pa.Table:
    """A table of sample_id, correct and every metric of the task, for the default variant of a cell."""
    return samples_of_variant(store, results, cell_key, results.defaults[cell_key])


def samples_of_variant(store: Store, results: Results, cell_key: CellKey, variant: Variant) -> pa.Table:
    """A table of sample_id, correct and every metric of the task, for one variant of a cell.

    Samples that were used to choose options are left out. Random relevance has the expected scores of chance instead of
    those of one draw.
    """
    chance, table = results.floors.get((cell_key.model, cell_key.task)), _samples(store, results, cell_key)
    for name, part in zip(VARIANT, variant, strict=True):
        table = table.filter(pc.field(name) == part)
    table = table.drop_columns(VARIANT)
    if chance is not None and cell_key.method == results.baseline:
        metrics = applicable(results.tasks[cell_key.task])
        return chance.replace_scores(table, variant.tokens, variant.scope, metrics)
    return table


def _compare(run: Run, results: Results, cell_keys: list[CellKey]) -> Comparison | None:
    """The comparison of the methods of these cells on the samples that all have and that are predicted rightly."""
    tables = []
    for cell_key in cell_keys:
        table = default_samples(run.store, results, cell_key)
        tables.append(table.filter(table["correct"]).drop_columns("correct").combine_chunks())
    common = set.intersection(*(set(table["sample_id"].to_pylist()) for table in tables))
    ids = pa.array(sorted(common), pa.string())
    of_task = applicable(results.tasks[cell_keys[0].task])
    measured = {name: metric for name, metric in of_task.items() if metric.is_compared}
    if not measured or not len(ids):
        return None
    values = []
    for table in tables:
        rows = table.take(pc.index_in(ids, value_set=pa.concat_arrays(table["sample_id"].chunks)))
        values.append(np.stack([rows[name].to_numpy() for name in measured], axis=1))  # [N, K]
    methods = tuple(cell_key.method for cell_key in cell_keys)
    stacked = np.stack(values, axis=1)  # [N, M, K]
    scale, shares = scale_of(measured.values())
    drawn = run.config.resampling.within(results.clusters_of(cell_keys[0].task, ids.to_pylist()))
    return compare(stacked, methods, tuple(measured), drawn, scale, shares, chance=results.baseline)


def scale_of(metrics: Iterable[Metric]) -> tuple[np.ndarray, np.ndarray]:
    """For each metric: the factor from its numbers to its unit, and True if they are shares."""
    every = list(metrics)
    return np.array([metric.scale for metric in every]), np.array([metric.unit == "%" for metric in every])


def _methods(run: Run) -> dict[str, Method]:
    """Methods by name. Labels have the chosen options if these are the same on all models and tasks."""
    methods = configured(run.config)
    for entry in run.config.every_method():
        choices = [c for model in run.plan.models for c in model.choices if c.artifact.method == entry.name]
        words = {in_words(choice.chosen or {}) for choice in choices}
        if len(words) == 1 and "" not in words:
            methods[entry.name] = replace(methods[entry.name], label=tuned_label(entry, f"{words.pop()}, tuned"))
    return methods


def _dtypes(run: Run) -> dict[tuple[str, str], tuple[str, ...]]:
    """The precisions of each (model, task) whose tokens are scored."""
    config, scored = run.config, of_tokens(run.config)
    taken = ((model, task) for model in config.models for task in run.plan.tasks_of(config, model))
    pairs = [(model, task) for model, task in taken if task in scored]
    return {(model.name, task): model.dtypes_for(task) for model, task in pairs}


def _unplanned(run: Run) -> dict[CellKey, str]:
    """The cells that have no place in the plan, all missing."""
    plan = run.plan
    lost = {(name, task) for name in plan.failures for task in of_tokens(run.config)} | set(plan.unprepared)
    undefined, cell_keys = set(plan.undefined), [cell_key_of(choice.artifact) for choice in plan.undecided]
    for (model, task), dtypes in _dtypes(run).items():
        for entry in run.config.every_method() if (model, task) in lost else ():
            if (model, entry.name) not in undefined:
                cell_keys += [CellKey(model, task, dtype, entry.name) for dtype in dtypes]
    return dict.fromkeys(cell_keys, MISSING)


def _size(model: ModelConfig) -> Size | None:
    """The size of a model, from its architecture alone, tied parameters once; None for one that cannot be made."""
    from closelook.lrp_core.opening.checkpoint import without_numbers

    try:
        config = architecture(model)
        parameters = sum(parameter.numel() for parameter in without_numbers(config, model.family).parameters())
    except (UserError, ModelUnavailable):
        return None
    return Size(parameters, config.num_hidden_layers, config.num_attention_heads, config.hidden_size)


def _published(config: RunConfig) -> dict[tuple[str, str], str]:
    """The models of Close Look, by their published ids, on published data: the paper's name by (model, task)."""
    names = {key[3] for key in close_look()}
    tasks = [task for task, feed in config.tasks.items() if config.task(task).is_published(feed.source)]
    published: dict[tuple[str, str], str] = {}
    for model in config.models:
        owner, _, name = model.id.rpartition("/")
        if name in names and (owner in _OWNERS or not owner):
            published |= {(model.name, task): name for task in tasks}
    return published
