"""The report's figures of a search among composites, and of rules that are unstable, from what a run has stored."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from closelook.evaluation.scoring.faithfulness.scores import ROUNDING
from closelook.jobs.methods import METHODS
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Run
from closelook.jobs.stages.report.parts.faithfulness import composites_part
from closelook.jobs.stages.report.parts.methods import _extremes, extremes_part
from closelook.jobs.stages.report.reported import Reported
from closelook.jobs.stages.report.results import results_of
from closelook.jobs.store import Ledger
from closelook.lrp_core import Batch, Request, load_model
from tests.jobs.small import config_of, prepared, rows_of
from tests.stages import attribute, select

pytestmark = pytest.mark.drawn

GRID = {"linear": ["epsilon", {"gamma": 0.5}], "softmax": ["epsilon", "zplus", "constant"]}
RUN = {
    "methods": [{"attnlrp": {"composite": "grid"}}, "lrp", "lrp_identity_softmax"],
    "composites": {"grid": GRID},
    "select": {"samples": 3},
    "explanations": ["target"],
    "embeddings": ["full"],
    "neurons": {"tasks": {"sva": None}, "knockout": None},
}


def test_figures_are_of_the_trials_and_of_the_relevance_that_is_stored(tmp_path, model, inline):
    config = config_of(tmp_path / "run", model, **RUN)
    store = prepared(config, rows_of(4))
    assert select(config, store).complete
    assert attribute(config, store).complete
    plan, ledger = make_plan(config, store), Ledger(store)
    results = results_of(Run(config, plan, Ledger(store)))

    part = composites_part(Reported(Run(config, plan, ledger), results))
    assert [figure.name for figure in part.figures] == ["composites_softmax", "composites_linear"]
    assert "AttnLRP's figure 12" in part.figures[0].caption
    assert [part.figures[0].svg.count(f">{rule}</text>") for rule in GRID["softmax"]] == [1, 1, 1]
    assert ">gamma 0.5</text>" in part.figures[1].svg
    [choice] = plan.models[0].choices
    deltas = [trial["delta_area"] for trial in choice.record["trials"]]
    first = next(at for at, delta in enumerate(deltas) if delta >= max(deltas) - ROUNDING)
    composite = choice.options[first]["composite"]
    [table] = part.tables
    rules = {row.labels[1]: row.cells[0].state for row in table.rows}
    assert rules["linear"] == ("gamma 0.5" if "linear gamma 0.5" in composite else "epsilon")
    assert rules["softmax"] == next((rule for rule in ("zplus", "constant") if rule in composite), "epsilon")
    assert (rules["convolution"], rules["norm"]) == ("epsilon", "identity")

    part = extremes_part(Reported(Run(config, plan, ledger), results))
    [figure], [table] = part.figures, part.tables
    assert {row.labels[1] for row in table.rows} == {results.label(name) for name in results.methods}
    [rival] = [row for row in table.rows if row.labels[1] == results.label("lrp_identity_softmax")]
    view, largest, error = load_model(model), [], []
    for row in rows_of(4):
        relevance = METHODS["lrp_identity_softmax"](
            view, Batch.collate([row], 0), explanation="target", boundaries=True
        )
        unit = abs(float(relevance.explained[0]))
        largest.append(float(relevance.tokens.abs().max()) / unit)
        error.append(abs(float(relevance.tokens.sum() - relevance.explained[0])) / unit)
    values = [cell.value for cell in rival.cells[:4]]
    expected = [np.median(largest), np.max(largest), np.median(error), np.max(error)]
    assert values == pytest.approx(expected, rel=1e-3, abs=2e-6)  # errors are differences of numbers near 1
    assert [cell.value for cell in rival.cells[4:]] == [4, 0]
    assert results.label("lrp_identity_softmax") in figure.svg


def test_samples_whose_relevance_overflows_are_left_out_and_counted():
    row = {"explanation": "target", "embedding": "full", "explained": 2.0, "residual": 0.5}
    values = ([1.0, -4.0], [np.inf, 1.0], [np.nan, 1.0])
    rows = [row | {"sample_id": str(at), "relevance": relevance} for at, relevance in enumerate(values)]
    ledger = SimpleNamespace(read=lambda *_: pa.Table.from_pylist(rows))
    at = SimpleNamespace(model="gpt2", task="sva", dtype="float32", method="lrp")
    request = Request("lrp", "target", "full")
    cell = _extremes(ledger, SimpleNamespace(artifact=at, requests=[request], samples=3))
    assert (cell.largest.tolist(), cell.error.tolist(), cell.left_out) == ([2.0], [0.25], 2)


def test_a_run_without_a_search_or_unstable_rules_has_neither_figure(tmp_path, model):
    config = config_of(tmp_path / "run", model, methods=["lrp"])
    store = prepared(config, rows_of(2))
    plan = make_plan(config, store)
    results = results_of(Run(config, plan, Ledger(store)))
    reported = Reported(Run(config, plan, Ledger(store)), results)
    assert composites_part(reported).is_empty
    assert extremes_part(reported).is_empty
