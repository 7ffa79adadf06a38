"""Pruning on a real local Ray: every curve is drawn once, from the heads of its key, on the same samples."""

from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial
from hashlib import sha256
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

from closelook.evaluation.benchmark.samples import sample
from closelook.evaluation.schema import GENERIC, HEADS, PRUNING, VIEW
from closelook.evaluation.scoring.head_orders import RemovalOrder, half_of, ranked_curves
from closelook.evaluation.scoring.pruning import Sweep
from closelook.jobs.cluster.reports import reports_in
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.inputs import UNIT_COLUMNS, Selected
from closelook.jobs.plan.models import resolve
from closelook.jobs.plan.node import Part, Run
from closelook.jobs.plan.units import Unit, WorkerOptions
from closelook.jobs.products import pruning as stage
from closelook.jobs.products.pruning import PruningNode
from closelook.jobs.products.record import Opened
from closelook.jobs.runner.rows import that_fits
from closelook.jobs.runner.worker import Worker
from closelook.jobs.store import Artifact, Ledger
from closelook.jobs.store.artifacts import samples_of
from closelook.lrp_core import POOLINGS, Batch, load_model
from closelook.lrp_core.readers.predictions import rows_for
from closelook.lrp_core.records.types import UserError
from tests.jobs.small import config_of, prepared, rows_of
from tests.oracles.rules import pruned_alone
from tests.stages import prune
from tests.tiny import ragged_rows, tiny_model

ROWS = [*rows_of(11), {**rows_of(1, seed=1)[0], "sample_id": "s999", "foil_id": None}]
SETTINGS = {"orders": ["least_first", "most_first"], "random_runs": 2}
HEADS_OF_MODEL = 2


def run_of(root, model, **changes):
    config = config_of(root, model, **{"heads": {"sva": None}, "prune": SETTINGS, **changes})
    return config, prepared(config, ROWS)


def write_heads(config, store, seed=0, rows=ROWS):
    """Complete heads cells with random relevance, as the plan wants them."""
    for planned in make_plan(config, store).cells():
        if planned.artifact.product == "heads":
            write_cell(store, planned.artifact, seed, rows)


def write_cell(store, cell: Artifact, seed=0, rows=ROWS):
    draw = np.random.default_rng(seed)
    rows = [
        {
            "sample_id": row["sample_id"],
            "explanation": explanation,
            "pooling": pooling,
            "relevance": draw.normal(size=HEADS_OF_MODEL).astype(np.float32),
        }
        for row in rows
        for explanation in ("contrastive", "target")
        for pooling in POOLINGS
    ]
    store.write_shard(f"{cell.folder}/part.parquet", pa.Table.from_pylist(rows, schema=HEADS), HEADS)
    Ledger(store).commit(cell, {"shards": ["part.parquet"]})


def points(store):
    return store.read("pruning/model=gpt2/task=sva/dtype=float32", PRUNING).to_pylist()


@pytest.fixture(scope="module")
def finished(tmp_path_factory, model, local_ray):
    config, store = run_of(tmp_path_factory.mktemp("root"), model)
    write_heads(config, store)
    assert prune(config, store).failures == ()
    return config, store


@pytest.mark.ray
def test_every_curve_is_drawn_once_on_the_samples_with_a_foil(finished):
    _, store = finished
    rows = points(store)
    per_curve = Counter((row["method"], row["pooling"], row["order"], row["seed"], row["half"]) for row in rows)
    ranked = {
        (method, pooling, order, None, half)
        for half in (None, 0, 1)
        for method in ("attnlrp", "gradient_x_input")
        for pooling in POOLINGS
        for order in SETTINGS["orders"]
    }
    assert per_curve == dict.fromkeys(ranked | {("random", "none", "random", seed, None) for seed in (0, 1)}, 3)
    assert {row["n"] for row in rows if row["half"] is None} == {11}
    assert sum({row["half"]: row["n"] for row in rows if row["half"] is not None}.values()) == 11
    assert all(len(row["pruned_heads"]) == min(row["step"], 1) for row in rows)
    assert len({row["accuracy"] for row in rows if row["step"] == 0 and row["half"] is None}) == 1


@pytest.mark.ray
def test_a_half_ranks_the_heads_and_the_other_is_evaluated_sample_by_sample(finished, model):
    _, store = finished
    relevance = {
        row["sample_id"]: row["relevance"]
        for cell in store.files("heads/model=gpt2/task=sva/dtype=float32/method=attnlrp")
        for row in store.read(cell, HEADS).to_pylist()
        if row["explanation"] == "contrastive" and row["pooling"] == "none"
    }
    curves = defaultdict(list)
    for row in points(store):
        if row["method"] == "attnlrp" and row["pooling"] == "none":
            curves[row["order"], row["half"]].append(row)
    view = load_model(model)
    for (order, half), rows in curves.items():
        ranks = [values for name, values in relevance.items() if half is None or half_of(name, 0) == half]
        heads = np.argsort(np.mean(ranks, axis=0)).tolist()
        assert [head for row in rows for head in row["pruned_heads"]] == (
            heads if order == "least_first" else heads[::-1]
        )
        samples, areas = rows[0]["samples"], rows[0]["areas"]
        assert samples == [r["sample_id"] for r in ROWS[:11] if half is None or half_of(r["sample_id"], 0) != half]
        for name, area in zip(samples, areas, strict=True):
            [row] = [row for row in ROWS if row["sample_id"] == name]
            removed = [rows[k]["pruned_heads"] for k in range(len(rows))]
            right = []
            for k in range(len(rows)):
                gone = {head for part in removed[: k + 1] for head in part}
                right.append(float(margin(view, row, gone) > 0))
            assert area == pytest.approx(np.trapezoid(right, [0, 0.5, 1]))
        assert rows[0]["area"] == pytest.approx(np.mean(areas))


LENGTHS = (5, 8, 6, 9, 4, 7, 6, 5)
SEED = 3  # halves 8 samples into 4 and 4
HALVES = [sha256(f"halves:{SEED}:s{at}".encode()).digest()[0] % 2 for at in range(len(LENGTHS))]


def areas_of_samples(view, rows, relevance):
    """The area of every sample's curve by (order, sample), when halves rank and when all samples do."""
    curves = ranked_curves({("lrp", "none"): relevance}, SETTINGS["orders"], np.array(HALVES))
    node = PruningNode(artifact=Artifact("pruning", "gpt2", "sva", "float64", "lrp", "0" * 64), step=3)
    part = Part(node, "000", tuple(curves))
    opened = Opened(loaded=view, token_budget=64, of_run=SimpleNamespace(seed=SEED))
    batches = [stage.compute(opened, [part], batch)[part] for batch in (rows[:5], rows[5:])]
    halves, paper = {}, {}
    for row in stage.combine(opened, part, batches).table.to_pylist():
        for name, area in zip(row["samples"] or (), row["areas"] or (), strict=True):
            side = paper if row["half"] is None else halves
            assert (row["order"], name) not in side, "evaluated once"
            side[row["order"], name] = area
    return halves, paper


@pytest.fixture(scope="module")
def in_double():
    """A model in double precision, samples, and their relevance of heads."""
    view = tiny_model("gpt2")
    rows = [row | {"sample_id": f"s{at}"} for at, row in enumerate(ragged_rows(view, lengths=LENGTHS))]
    return view, rows, np.random.default_rng(1).normal(size=(len(rows), view.n_layers * view.n_heads))


def test_halves_are_those_of_an_oracle_that_takes_a_sample_at_a_time(in_double):
    """The heads of one sample are zeroed by hooks, in the order of the others' half."""
    view, rows, relevance = in_double
    expected = {}
    for at, row in enumerate(rows):
        ranking = sum(values for values, half in zip(relevance, HALVES, strict=True) if half != HALVES[at])
        for order, sign in (("least_first", 1), ("most_first", -1)):
            heads = sorted(range(len(ranking)), key=lambda head: sign * ranking[head])
            right = [pruned_alone(view, row, heads[:count]) > 0 for count in (0, 3, 6, 8)]
            widths = (3 / 8, 3 / 8, 2 / 8)
            area = sum(width * (right[k] + right[k + 1]) / 2 for k, width in enumerate(widths))
            expected[order, row["sample_id"]] = area
    assert areas_of_samples(view, rows, relevance)[0] == pytest.approx(expected)
    assert len({*expected.values()}) > 2


def test_no_sample_ranks_the_heads_under_which_it_is_evaluated(in_double):
    """Relevance of one sample, negated and a thousandfold, changes curves of others; in the paper's way its own."""
    view, rows, relevance = in_double
    before, paper_before = areas_of_samples(view, rows, relevance)
    others_changed, paper_changed = 0, 0
    for at, row in enumerate(rows):
        other = relevance.copy()
        other[at] *= -1000
        after, paper_after = areas_of_samples(view, rows, other)
        for order in SETTINGS["orders"]:
            key = (order, row["sample_id"])
            assert after[key] == before[key]
            paper_changed += paper_after[key] != paper_before[key]
        others_changed += after != before
    assert min(others_changed, paper_changed) > 2


def margin(view, row, gone):
    """The target's logit minus the foil's with these heads gone, of one sample by itself."""
    order = RemovalOrder("", "", "", None, (*gone, *(set(range(HEADS_OF_MODEL)) - gone)))
    sweep = Sweep(view, [order], shared=False)
    batch = Batch.collate([row], pad_id=0)
    return float(sweep.margins(batch, 10**6)[sweep.points[0, len(gone)]])


def test_a_half_without_samples_to_evaluate_has_no_curves(tmp_path, model, inline, monkeypatch):
    """Of the second half the only sample has relevance of heads and no foil."""
    without_foil = ROWS[-1]
    other = [row for row in ROWS[:11] if half_of(row["sample_id"], 0) != half_of(without_foil["sample_id"], 0)]
    config = config_of(tmp_path, model, heads={"sva": None}, prune=SETTINGS)
    store = prepared(config, [*other, without_foil])
    write_heads(config, store, rows=[*other, without_foil])
    monkeypatch.setattr(stage, "UNIT_TOKENS", 1)  # a curve a shard
    assert prune(config, store).failures == ()
    (half,) = {row["half"] for row in points(store)} - {None}
    assert half == half_of(without_foil["sample_id"], 0), "it ranks, and is not evaluated"
    assert {row["n"] for row in points(store)} == {len(other)}


def test_a_unit_of_one_halfs_curves_rejects_no_sample_of_the_other(tmp_path, model, inline, monkeypatch):
    drawn = []
    for root, tokens in (("together", stage.UNIT_TOKENS), ("alone", 1)):
        monkeypatch.setattr(stage, "UNIT_TOKENS", tokens)
        config, store = run_of(tmp_path / root, model)
        write_heads(config, store)
        assert prune(config, store).failures == ()
        folder = "pruning/model=gpt2/task=sva/dtype=float32"
        assert [row for path in store.files(folder) for row in store.read_shard(path, PRUNING)[1]] == []
        drawn.append(sorted(points(store), key=str))
    assert drawn[0] == drawn[1]


def test_halves_part_no_cluster_and_its_samples_decide_the_key(tmp_path, model, inline):
    config, store = run_of(tmp_path, model)
    write_heads(config, store)
    write_clusters(store, None)
    before = {node.artifact.method: node.artifact.key for node in nodes_of(config, store)}
    write_clusters(store, 4)
    after = {node.artifact.method: node.artifact.key for node in nodes_of(config, store)}
    assert {name for name in before if before[name] != after[name]} == {"attnlrp", "gradient_x_input"}
    assert prune(config, store).failures == ()
    halves = defaultdict(set)
    for row in points(store):
        if row["half"] is not None and row["samples"] is not None:
            for name in row["samples"]:
                halves[[r["sample_id"] for r in ROWS].index(name) % 4].add(1 - row["half"])
    assert halves == {at: {half_of(f"article {at}", 0)} for at in range(4)}
    assert len({*map(tuple, halves.values())}) == 2, "both halves have clusters"


def nodes_of(config, store):
    plan = make_plan(config, store)
    return stage.pruning_of(Run(config, plan, Ledger(store)), config.prune, plan.models[0])


def write_clusters(store, count):
    """Samples in `count` clusters, one after the other; with None in none."""
    clusters = {row["sample_id"]: None if count is None else f"article {at % count}" for at, row in enumerate(ROWS)}
    texts = [
        sample("t", f"{name} says", 9, "yes", "no") | {"sample_id": name, "cluster": cluster}
        for name, cluster in clusters.items()
    ]
    store.write_shard(f"{samples_of('sva').folder}/a.parquet", pa.Table.from_pylist(texts, schema=GENERIC), GENERIC)
    Ledger(store).commit(samples_of("sva"), {"shards": ["a.parquet"], "rows": len(texts)})


@pytest.mark.ray
def test_curves_agree_with_a_sweep_of_their_order(finished, model):
    _, store = finished
    rows = [row for row in points(store) if (row["method"], row["pooling"], row["half"]) == ("attnlrp", "none", None)]
    relevance = np.array(
        [
            row["relevance"]
            for cell in store.files("heads/model=gpt2/task=sva/dtype=float32/method=attnlrp")
            for row in store.read(cell, HEADS).to_pylist()
            if row["explanation"] == "contrastive" and row["pooling"] == "none"
        ]
    )
    least = [head for row in rows if row["order"] == "least_first" for head in row["pruned_heads"]]
    assert least == np.argsort(relevance.mean(axis=0)).tolist()
    most = [head for row in rows if row["order"] == "most_first" for head in row["pruned_heads"]]
    assert most == least[::-1]
    for order in SETTINGS["orders"]:
        accuracy = [row["accuracy"] for row in rows if row["order"] == order]
        (area,) = {row["area"] for row in rows if row["order"] == order}
        assert area == pytest.approx(np.trapezoid(accuracy, [0, 0.5, 1]))


def test_curves_of_all_methods_are_drawn_together_up_to_a_limit(tmp_path, model, inline, monkeypatch):
    drawn = []
    whole_unit = stage._unit
    monkeypatch.setattr(stage, "_unit", lambda parts, *rest: drawn.append(list(parts)) or whole_unit(parts, *rest))
    config, store = run_of(tmp_path / "one", model)
    write_heads(config, store)
    prune(config, store)
    assert [len(parts) for parts in drawn] == [3], "two methods and random orders"
    whole = points(store)
    curves = max(len(part.inputs) for part in drawn.pop())
    lengths = sum(len(row["input_ids"]) for row in ROWS)
    monkeypatch.setattr(stage, "UNIT_TOKENS", curves * lengths * (HEADS_OF_MODEL + 1))
    config, store = run_of(tmp_path / "several", model)
    write_heads(config, store)
    prune(config, store)
    assert [len(parts) for parts in drawn] == [1, 2], (
        "12 curves of a method are of half the samples; random orders fit in"
    )
    assert points(store) == whole


def test_curves_of_new_heads_replace_the_old_ones(tmp_path, model, inline):
    config, store = run_of(tmp_path, model)
    write_heads(config, store)
    prune(config, store)
    before = points(store)
    other = config.model_copy(update={"prune": config.prune.model_copy(update={"orders": ("least_first",)})})
    assert prune(other, store).computed == 2
    after = points(store)
    assert [row for row in after if row["method"] == "random"] == [row for row in before if row["method"] == "random"]
    assert after == [row for row in before if row["order"] != "most_first"]
    assert prune(config, store).computed == 2
    assert points(store) == before


def test_curves_wait_for_their_heads_and_say_so(tmp_path, model):
    config, store = run_of(tmp_path, model)
    summary = prune(config, store)
    assert not summary.complete
    assert summary.failures[0] == "heads gpt2/sva/float32/attnlrp is not complete: run `closelook attribute`"
    assert store.files("pruning", recursive=True) == []


def test_a_run_without_relevance_of_heads_is_told_what_to_set(tmp_path, model):
    config, store = run_of(tmp_path, model, heads=None)
    with pytest.raises(UserError, match=r"config key 'heads' is not set: .* as heads=\{sva: 100\}"):
        prune(config, store)


@pytest.fixture
def sweep(model):
    curves = stage.random_curves(HEADS_OF_MODEL, runs=3, seed=0)
    return Sweep(load_model(str(model)), curves)


def test_out_of_memory_halves_the_token_budget(sweep, monkeypatch):
    rows, run, budgets = ROWS[:2], sweep.right, []

    def scarce(rows, token_budget):
        budgets.append(token_budget)
        if token_budget > 20:
            raise torch.OutOfMemoryError("no")
        return run(rows, token_budget)

    monkeypatch.setattr(sweep, "right", scarce)
    right, splits = that_fits(partial(sweep.right, rows), 64)
    assert budgets == [64, 32, 16]
    assert splits == 2
    for ours, expected in zip(right, run(rows, 64), strict=True):
        np.testing.assert_array_equal(ours, expected)


def unit_of(config, store, sweep):
    """A unit of all curves of the sweep on two samples, and the path of its shard."""
    node = PruningNode(artifact=Artifact("pruning", "gpt2", "sva", "float32", "random", "0" * 64), step=1)
    part = Part(node, "000", tuple(sweep.curves))
    samples = Selected(pa.Table.from_pylist(ROWS[:2], schema=VIEW).select(UNIT_COLUMNS))
    return Unit("000", (part,), samples, tokens=64, token_budget=64, size=len(sweep.curves)), part.paths[0]


def worker_of(config, store):
    model = config.models[0]
    options = replace(WorkerOptions.of(config, model), max_attempts=2, run="run")
    return Worker(store, resolve(model), options)


def test_a_row_that_raises_is_a_reject_and_the_curves_are_of_the_others(tmp_path, model, sweep):
    config, store = run_of(tmp_path, model)
    unit, path = unit_of(config, store, sweep)
    rows = unit.rows.table.to_pylist()
    rows[1]["input_ids"] = [10_000] * len(rows[1]["input_ids"])
    samples = Selected(pa.Table.from_pylist(rows, schema=unit.rows.table.schema))
    (report,) = reports_in(worker_of(config, store)(replace(unit, rows=samples).to_table()))
    assert (report.error, report.rejects) == ("", 1)
    table, (reject,) = store.read_shard(path, PRUNING)
    assert (reject["sample_id"], reject["reason"]) == (ROWS[1]["sample_id"], "model_error")
    alone, _ = sweep.right(rows_for(sweep.view, [{**ROWS[0], "gold_id": None}]), 64)
    assert table["accuracy"].to_pylist() == alone[:, :, 0].ravel().astype(float).tolist()
