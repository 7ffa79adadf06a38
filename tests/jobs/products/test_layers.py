"""Relevance by layer: stored as the methods give it, scored layer by layer, computed once, drawn in the report."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from closelook.evaluation.schema import LAYER_SCORES, LAYER_SCORES_SAMPLES, LAYERS
from closelook.jobs.commands.roots.status import collect
from closelook.jobs.methods import METHODS
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Run
from closelook.jobs.stages.report.parts.layers import layers_part
from closelook.jobs.stages.report.reported import Reported
from closelook.jobs.stages.report.results import results_of
from closelook.jobs.store import Ledger
from closelook.lrp_core import Batch, Method, load_model
from tests.jobs.small import config_of, prepared, rows_of, save_model
from tests.oracles import metrics as oracles_metrics
from tests.stages import attribute, evaluate

pytestmark = pytest.mark.drawn

OTHER_WORD = {"name": "logat_w7", "method": "logat", "word": "w7"}
METHODS_OF_RUN = ["normxlogit", "value_zeroing", "alti", "embedding_norm", OTHER_WORD]
NAMES = [method if isinstance(method, str) else method["name"] for method in METHODS_OF_RUN]


@pytest.fixture
def run(tmp_path, inline):
    directory = save_model(tmp_path / "bert", "bert")
    config = config_of(
        tmp_path / "root", directory, methods=METHODS_OF_RUN, layers={"sva": None}, explanations=["target"]
    )
    return config, prepared(config, rows_of(6)), directory


def test_relevance_by_layer_is_stored_scored_and_done_once(run):
    config, store, directory = run
    assert attribute(config, store).complete
    plan, ledger = make_plan(config, store), Ledger(store)
    cells = {
        planned.artifact.method: planned.artifact for planned in plan.cells() if planned.artifact.product == "layers"
    }
    assert set(cells) == set(NAMES)
    view, rows = load_model(directory), {row["sample_id"]: row for row in rows_of(6)}
    stored = {name: ledger.read(cell, LAYERS).to_pylist() for name, cell in cells.items()}
    for name, entries in stored.items():
        assert len(entries) == len(rows) * view.n_layers
        for entry in entries:
            row = rows[entry["sample_id"]]
            expected = _method(name)(view, Batch.collate([row], 0), layers=True, **_asked(name)).layers
            assert expected is not None
            relevance = torch.tensor(entry["relevance"])
            torch.testing.assert_close(relevance, expected[0, entry["layer"] - 1], rtol=1e-4, atol=1e-5)
    summary = evaluate(config, store)
    assert (summary.computed, summary.failures) == (len(NAMES) + len(cells), ())
    assert f"{len(NAMES)} scores by layer made, 0 were up to date" in summary.lines
    for name, entries in stored.items():
        scores = store.read(f"layer_scores/bert.sva.float32.{name}.parquet", LAYER_SCORES).to_pylist()
        assert {row["metric"] for row in scores} == {"ap", "dot", "dot_softmax"}
        for score in scores:
            right = [e for e in entries if e["layer"] == score["layer"] and e["logit_target"] > e["logit_foil"]]
            assert score["n"] == len(right)
            if right:
                oracle = getattr(oracles_metrics, score["metric"])
                values = [oracle(*_but_the_slot(e["relevance"], rows[e["sample_id"]])) for e in right]
                assert score["value"] == pytest.approx(100 * np.mean(values), rel=1e-4)
        samples = store.read(f"layer_scores_samples/bert.sva.float32.{name}.parquet", LAYER_SCORES_SAMPLES, ["correct"])
        assert len(samples) == len(entries) * 2, "special tokens count, or do not"
    results = results_of(Run(config, plan, Ledger(store)))
    part = layers_part(Reported(Run(config, plan, Ledger(store)), results))
    (figure,), (table,) = part.figures, part.details
    assert not part.note
    best = store.read("layer_scores/bert.sva.float32.alti.parquet", LAYER_SCORES).to_pylist()
    (ap,) = (row["value"] for row in best if (row["metric"], row["tokens"], row["layer"]) == ("ap", "all", 1))
    assert f">{ap:.1f}<" in figure.svg
    assert figure.svg.count("; stroke: #ffffff") == len(cells) * 3 * view.n_layers
    column = next(at for at, c in enumerate(table.columns) if (c.group, c.label) == ("ALTI", "AP"))
    (cell,) = [row.cells[column] for row in table.rows]
    assert cell.value == ap
    assert cell.low <= ap <= cell.high
    assert_means_leave_out_samples_that_chose_options(Run(config, plan, Ledger(store)), results, table)
    again = attribute(config, store), evaluate(config, store)
    assert [summary.computed for summary in again] == [0, 0]
    states = collect(Run(config, make_plan(config, store), Ledger(store)))
    for product in ("layers", "layer_scores"):
        assert states["bert", "sva", "float32", product].states == {"done": len(NAMES)}


def assert_means_leave_out_samples_that_chose_options(run, results, table):
    """Without any such sample the means are those that are stored; with one they are over the others."""
    [cell_key] = [cell_key for cell_key in results.defaults if cell_key.method == "alti"]
    values = {}
    for chose in (frozenset(), frozenset({"s001"})):
        part = layers_part(Reported(run, replace(results, tuned_on={cell_key: chose})))
        column = next(at for at, c in enumerate(table.columns) if (c.group, c.label) == ("ALTI", "AP"))
        [values[chose]] = [row.cells[column] for row in part.details[0].rows]
    [stored] = [row.cells[column] for row in table.rows]
    whole, less = values.values()
    assert whole.value == pytest.approx(stored.value)
    assert (whole.n, less.n) == (stored.n, stored.n - 1)


def _method(name: str) -> Method:
    return METHODS["logat"].configured(word="w7") if name == OTHER_WORD["name"] else METHODS[name]


def _asked(name: str) -> dict:
    return {"explanation": "target"} if name in ("normxlogit", OTHER_WORD["name"]) else {}


def _but_the_slot(relevance: list[float], row: dict) -> list[np.ndarray]:
    """NormXLogit's code: relevance and evidence without the place where a masked model predicts."""
    return [np.delete(np.array(values), row["position"]) for values in (relevance, row["evidence_mask"])]


def test_layers_that_are_not_asked_for_are_not_computed_and_an_unknown_task_is_named(run):
    config, store, _ = run
    plan = make_plan(config, store)
    run = Run(config, plan, Ledger(store))
    part = layers_part(Reported(run, results_of(run)))
    assert part.note.startswith(f"{len(NAMES)} of ")
    without = config.model_copy(update={"layers": None})
    assert {planned.artifact.product for planned in make_plan(without, store).cells()} == {"relevance"}
    with pytest.raises(ValueError, match="layers: no task 'sv'"):
        type(config).model_validate(config.model_dump(mode="json") | {"layers": {"sv": 3}})
    few = config.model_copy(update={"layers": {"sva": 2}})
    assert {planned.samples for planned in make_plan(few, store).cells() if planned.artifact.product == "layers"} == {2}
