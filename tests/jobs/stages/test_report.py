"""The report shows what the store holds and says what it does not."""

import re
from dataclasses import replace
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest

from closelook.evaluation.schema import PRUNING, RUNTIME, SCORES
from closelook.jobs.bench.record import Results
from closelook.jobs.bench.storage import write as write_bench
from closelook.jobs.config import PruneConfig, RunConfig
from closelook.jobs.plan.node import Cell, Plan, Run
from closelook.jobs.products.pruning import pruning_of
from closelook.jobs.stages import report
from closelook.jobs.stages.report import results
from closelook.jobs.stages.report import samples as explorer
from closelook.jobs.store import Artifact, Ledger, StoreError
from closelook.lrp_core.records.types import Request
from tests.leaves import first_leaf
from tests.shown import numbers_of
from tests.stages import score_plan
from tests.synthetic import CONFIG, a_cell, relevance_rows, write_benchmark, write_cell, write_store

pytestmark = pytest.mark.drawn

DEFAULT = ("contrastive", "full")


class Words:
    """A tokenizer of numbers."""

    def decode(self, ids):
        return " ".join(f"w{token}" for token in ids)


@pytest.fixture(autouse=True)
def no_tokenizers(monkeypatch):
    monkeypatch.setattr(explorer, "load_tokenizer", lambda model: Words())


QUICK = CONFIG.model_copy(update={"report": CONFIG.report.model_copy(update={"resamples": 50, "samples": 3})})


def written(tmp_path, config=QUICK, **options):
    store, plan = write_store(tmp_path, **{"samples": 8} | options)
    score_plan(config, plan, store)
    return store, plan, report.write_report(config, plan, store)


def text(store, name="index.html"):
    return store.read_bytes(f"report/{name}").decode()


def test_a_configured_method_stands_under_its_own_label(tmp_path):
    methods = ["attnlrp", {"name": "alone", "method": "alti_logit", "initial": False}]
    config = RunConfig.model_validate(CONFIG.model_dump() | {"methods": methods})
    result = results.results_of(Run(config, Plan(()), Ledger(write_store(tmp_path, samples=1)[0])))
    assert list(result.methods) == ["attnlrp", "alone"]
    assert result.label("alone") == "ALTI-Logit (initial=false)"
    assert result.groups() == [("alone",), ("attnlrp",)]


def samples_of(store):
    return first_leaf(text(store, "samples.html"), "samples")


def test_a_complete_store_becomes_a_site(tmp_path):
    store, _, summary = written(tmp_path)
    assert summary.complete
    assert summary.lines == (f"open {tmp_path}/report/index.html",)
    assert numbers_of(store, "table1_random", model="gpt2", method="AttnLRP")
    assert "cells are not complete" not in text(store)
    assert not store.exists("report/curves.html"), "pages without content are left out"


def test_a_second_report_does_nothing_until_something_changes(tmp_path, undrawn):
    store, plan, _ = written(tmp_path, tasks=("sva",))
    assert report.write_report(QUICK, plan, store).skipped == 1
    store.delete("report/index.html")
    assert report.write_report(QUICK, plan, store).computed == 1, "pages that somebody deleted are written again"
    cell = a_cell(method="random")
    write_cell(store, cell, relevance_rows(write_benchmark(store, "sva", 8), "random", seed=3), state="partial")
    score_plan(QUICK, plan, store)
    assert report.write_report(QUICK, plan, store).computed == 1


def test_missing_and_partial_cells_are_marked_and_no_mean_is_shown(tmp_path, undrawn):
    store, plan = write_store(tmp_path, tasks=("sva",), samples=8)
    write_cell(store, a_cell(method="random"), [], state="partial")
    score_plan(QUICK, plan, store)
    store.delete(f"manifest/{a_cell(method='attnlrp').name}.json")
    store.delete(f"{a_cell(method='attnlrp').folder}/{a_cell().key[:12]}-00000.parquet")
    store.delete(f"{a_cell(method='attnlrp').folder}/{a_cell().key[:12]}-00016.parquet")
    report.write_report(QUICK, plan, store)
    states = {row["method"]: row["state"] for row in numbers_of(store, "table1_random", label="%", side="")}
    assert (states["Random"], states["AttnLRP"]) == ("partial", "missing")
    assert "2 of 4 cells are not complete" in text(store)


def test_a_model_out_of_reach_is_named_and_its_cells_are_missing(tmp_path, undrawn):
    store, plan = write_store(tmp_path, tasks=("sva",), samples=8)
    score_plan(QUICK, plan, store)
    lost = Plan(
        plan.models,
        failures={"llama": "model llama: no weights in there"},
        undefined=(("llama", "random"),),
        unprepared=(("gpt2", "qa"),),
    )
    report.write_report(QUICK, lost, store)
    assert "qa is not prepared for gpt2" in text(store)
    assert "model llama: no weights in there" in text(store)
    assert {row["state"] for row in numbers_of(store, "table1_random", model="llama", label="%")} == {"missing"}
    assert not numbers_of(store, "table1_random", model="llama", method="Random"), "it is not defined"


def test_samples_come_with_every_model_method_and_explanation(tmp_path, undrawn):
    store, _, _ = written(tmp_path, tasks=("sva",), models=("gpt2", "llama"))
    entries = samples_of(store)
    assert len(entries) == 3 * 2
    assert {(row["label"], row["explanation"]) for row in entries[0]["rows"]} == {
        ("AttnLRP", "contrastive"), ("AttnLRP", "target"), ("Gradient l2", "contrastive"), ("Gradient l2", "target"),
        ("AttnRollout", "none"), ("Random", "none"),
    }  # fmt: skip
    assert any(not entry["correct"] for entry in entries)
    assert {entry["attractors"] for entry in entries} <= {0, 1, 2}
    assert all(0 <= entry["disagreement"] <= 1 for entry in entries)


def test_a_script_in_a_sample_stays_text(tmp_path, undrawn):
    attack = "</script><script>document.title='broken'</script>"
    store, _, _ = written(tmp_path, tasks=("sva",), text=attack)
    assert samples_of(store)[0]["text"] == attack
    assert "<script>document" not in text(store, "samples.html")


def test_defects_are_told(tmp_path, undrawn):
    store, plan = write_store(tmp_path, tasks=("sva",), samples=8)
    rows = list(relevance_rows(write_benchmark(store, "sva", 8), "random"))
    rows[0]["relevance"] = [float("nan")] * len(rows[0]["relevance"])
    write_cell(store, a_cell(method="random"), rows)
    score_plan(QUICK, plan, store)
    report.write_report(QUICK, plan, store)
    assert "gpt2 · sva · float32 · random: 2 times relevance that is not finite, counted as wrong." in text(store)


def test_pruning_and_runtime_are_drawn_when_they_are_there(tmp_path):
    store, plan = write_store(tmp_path, tasks=("sva",), samples=8)
    score_plan(QUICK, plan, store)
    point = {"method": "attnlrp", "pooling": "relu_token", "order": "least_first", "seed": None, "n": 8, "area": 0.8}
    points = [point | {"step": at, "pruned_heads": [0] * at, "accuracy": 1 - at / 4} for at in (0, 1)]
    points[0] |= {"samples": [str(at) for at in range(8)], "areas": [0.9, 0.8] * 4}
    for key in ("aaaaaaaaaaaa", "bbbbbbbbbbbb"):  # the second has no manifest
        path = f"pruning/model=gpt2/task=sva/dtype=float32/attnlrp-{key}-000.parquet"
        store.write_shard(path, pa.Table.from_pylist(points, PRUNING), PRUNING)
        points = [row | {"accuracy": 0.0} for row in points]
    heads = Cell(
        artifact=Artifact("heads", "gpt2", "sva", "float32", "attnlrp", "k"),
        requests=(Request("attnlrp", *DEFAULT),),
        samples=8,
    )
    plan = Plan((replace(plan.models[0], cells=(*plan.models[0].cells, heads)),))
    ranked, drawn_at_random = pruning_of(Run(QUICK, plan, Ledger(store)), PruneConfig(), plan.models[0])
    Ledger(store).commit(ranked.artifact, {"shards": ["attnlrp-aaaaaaaaaaaa-000.parquet"]})
    assert not Ledger(store).is_done(drawn_at_random.artifact)
    timing = {"batch_id": "b", "method": "gradients", "stage": "method", "length": 9, "batch": 2, "wall_s": 0.1,
              "peak_bytes": None, "planned_bytes": None, "chunk": None, "device": "cpu"}  # fmt: skip
    path = f"{store.runtime('gpt2', 'sva', 'float32')}/0.parquet"
    store.write_shard(path, pa.Table.from_pylist([timing], RUNTIME), RUNTIME)
    report.write_report(QUICK, plan, store)
    assert "1 of 2 results are not computed" in text(store, "curves.html")
    paper, halves = numbers_of(store, "pruning_area", method="AttnLRP")
    assert [float(paper[name]) for name in ("value", "low", "high")] == pytest.approx([85, 61.7, 96.9], abs=0.05)
    assert halves["state"] == "undefined"
    assert not numbers_of(store, "pruning_area", method="Random")
    [whole] = numbers_of(store, "runtime", precision="float32", tokens="≤ 16", label="all", **{"pass": "gradients"})
    assert float(whole["value"]) == pytest.approx(50)
    shown = re.findall(r'src="(figures/[^"]+)"', text(store, "curves.html"))
    assert "figures/pruning_sva_least_first_main.svg" in shown
    assert all(store.exists(f"report/{name}") for name in shown)


def test_a_store_of_another_schema_version_is_refused_with_both(tmp_path, monkeypatch, undrawn):
    store, plan, _ = written(tmp_path, tasks=("sva",))
    path = store.files("scores")[0]
    old = SCORES.with_metadata({b"closelook.schema": b"scores", b"closelook.version": b"0"})
    shard = store.read_committed(path, SCORES)
    store.write_shard(path, shard.table, old, None, shard.origin)  # of as many bytes
    store.delete("manifest/report.json")
    monkeypatch.setattr(report, "make_plan", lambda config, store: plan)
    with pytest.raises(StoreError, match="holds schema scores v0, this version of closelook reads scores v2"):
        report.report(QUICK, store)


def test_chosen_samples_hold_disagreement_and_wrong_predictions():
    def scored(hits, right):
        names = [f"s{at}" for at in range(6)]
        return pa.table({"sample_id": names, "correct": [at not in right for at in range(6)], "pg": hits})

    tables = [scored([1, 1, 1, 1, 0, 0], {4}), scored([1, 1, 0, 1, 0, 0], {4})]
    assert explorer.choose(tables, 3) == ["s2", "s4", "s0"]
    assert explorer.choose(tables, 0) == []


def test_samples_over_which_methods_disagree_alike_come_by_name_whichever_methods_are_right():
    """In floating point, the variance of 1, 0, 0, 0, 0 depends on where the 1 stands."""
    for first, second in combinations(range(5), 2):
        for right in [(first, second), (second, first)]:
            hits = np.eye(5)[list(right)]  # of two samples by five methods
            tables = [
                pa.table({"sample_id": ["s0", "s1"], "correct": [True, True], "pg": of.tolist()}) for of in hits.T
            ]
            assert explorer.choose(tables, 1) == ["s0"]


def test_a_report_shows_what_was_measured_into_its_store_and_no_other_measurement(tmp_path, undrawn):
    bench = Results("lrp", "a CPU")
    bench.row(part="table_8", geometry="gpt2", method="attnlrp", backward_ms=12.5)
    store, plan = write_store(tmp_path / "store", tasks=("sva",), methods=("random",), samples=8)
    score_plan(QUICK, plan, store)
    report.write_report(QUICK, plan, store)
    frame = text(store, "numbers.csv")
    assert not [name for name in ("table8", "by_length", "largest_batches", "Xeon") if name in frame]
    write_bench(bench.result(), store)
    report.write_report(QUICK, plan, store)
    rows = numbers_of(store, "table8", source="ours")
    assert {(row["model"], row["device"]) for row in rows} == {("random/gpt2", "a CPU")}
    assert [row["value"] for row in rows] == ["", "", "12.5", ""]


def test_the_papers_models_on_published_data_are_recognised_and_the_demos_are_not():
    paper = RunConfig.load("paper", overrides=["data=/somewhere"])
    assert set(results._published(paper).values()) == {model.name for model in paper.models}
    assert len(results._published(paper)) == 27
    assert results._published(RunConfig.load("demo")) == {}
    assert results._published(RunConfig.load("smoke", overrides=["tasks.sva.source=lgd"])) == {}
