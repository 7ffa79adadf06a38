"""Perturbation: every curve is drawn once, from the relevance of its key, whatever ends in between."""

import json

import numpy as np
import pyarrow as pa
import pytest

from closelook.evaluation.benchmark.samples import sample
from closelook.evaluation.schema import CURVES, GENERIC, RELEVANCE
from closelook.jobs.commands.roots.gc import garbage
from closelook.jobs.commands.roots.status import collect
from closelook.jobs.config import RunConfig
from closelook.jobs.config.file import ConfigError
from closelook.jobs.plan.cells import make_plan, validate
from closelook.jobs.plan.node import Run
from closelook.jobs.products import curves as stage
from closelook.jobs.products.curves import curves_of as curve_nodes
from closelook.jobs.stages.report import report
from closelook.jobs.store import Ledger
from closelook.jobs.store.artifacts import samples_of
from closelook.lrp_core import load_model
from closelook.lrp_core.records.types import UserError
from tests.jobs.products.test_perturb_compute import logit_of
from tests.jobs.small import config_of, prepared, rows_of, save_model
from tests.shown import numbers_of
from tests.stages import attribute, evaluate, perturb

ROWS = [*rows_of(11), {**rows_of(1, seed=1)[0], "sample_id": "s999", "foil_id": None}]
SETTINGS = {"ways": ["zero", "delete"], "explanations": ["target"]}
CELLS = ["attnlrp", "gradient_x_input", "random"]


@pytest.fixture
def small_units(monkeypatch):
    monkeypatch.setattr(stage, "UNIT_TOKENS", 400)


def run_of(root, model, rows=ROWS, **changes):
    config = config_of(root, model, **{"perturb": SETTINGS, **changes})
    return config, prepared(config, rows)


def write_relevance(config, store, lost=(), shards=2):
    """Complete relevance cells with random relevance, as the plan wants them; `lost` are samples without any."""
    [model] = make_plan(config, store).models
    view = load_model(model.resolved.location)
    logits = {row["sample_id"]: logit_of(view, row) for row in ROWS}
    for planned in model.cells:
        names = [planned.artifact.shard(str(part)) for part in range(shards)]
        for part, name in enumerate(names):
            rows = [
                {
                    "sample_id": row["sample_id"],
                    "explanation": request.explanation,
                    "embedding": request.embedding,
                    "relevance": np.random.default_rng(at).integers(-2, 3, row["length"]),
                    "explained": 0.0,
                    "residual": None,
                    "logit_target": logits[row["sample_id"]],
                    "logit_foil": None,
                }
                for at, row in enumerate(ROWS)
                if row["sample_id"] not in lost and at % shards == part
                for request in planned.requests
            ]
            table = pa.Table.from_pylist(rows, schema=RELEVANCE)
            store.write_shard(f"{planned.artifact.folder}/{name}", table, RELEVANCE)
        Ledger(store).commit(planned.artifact, {"shards": names, "rejects": {}})


def cells_of(config, store):
    [model] = make_plan(config, store).models
    return {node.artifact.method: node.artifact for node in curve_nodes(config, config.perturb, model)}


def curves_of(config, store):
    """Rows by method."""
    ledger = Ledger(store)
    return {method: ledger.read(cell, CURVES).to_pylist() for method, cell in cells_of(config, store).items()}


def bytes_of(config, store):
    ledger, cells = Ledger(store), cells_of(config, store)
    return {path: store.read_bytes(path) for cell in cells.values() for path in ledger.files(cell)}


def test_every_method_has_both_curves_of_every_sample_in_every_way(tmp_path, model, inline, small_units):
    config, store = run_of(tmp_path, model)
    write_relevance(config, store)
    summary = perturb(config, store)
    assert (summary.computed, summary.skipped, summary.failures) == (3, 0, ())
    drawn = curves_of(config, store)
    assert list(drawn) == CELLS
    for method, rows in drawn.items():
        variants = [("none", "none")] if method == "random" else [("target", "full"), ("target", "partial")]
        result = [
            tuple(row[n] for n in ("sample_id", "explanation", "embedding", "perturbation", "score", "order"))
            for row in rows
        ]
        assert sorted(result) == sorted(
            (row["sample_id"], *variant, way, score, order)
            for row in ROWS
            for variant in variants
            for way in SETTINGS["ways"]
            for score in (["target", "contrast"] if method == "random" and row["foil_id"] is not None else ["target"])
            for order in ("morf", "lerf")
        )
        assert all(row["removed"] == list(range(len(row["removed"]))) for row in rows)
    assert len(Ledger(store).files(cells_of(config, store)["random"])) > 2, "several units"


def test_a_second_run_draws_nothing(tmp_path, model, inline, monkeypatch):
    config, store = run_of(tmp_path, model)
    write_relevance(config, store)
    perturb(config, store)
    inline.before_unit = lambda index: pytest.fail("drawn again")
    summary = perturb(config, store)
    assert (summary.computed, summary.skipped) == (0, 3)


def test_other_settings_are_other_curves(tmp_path, model, inline):
    config, store = run_of(tmp_path, model)
    write_relevance(config, store)
    perturb(config, store)
    changes = ({"steps": 3}, {"samples": 5}, {"flip_special": False}, {"ways": ["zero"]}, {"embeddings": ["full"]})
    for change in changes:
        other = config.model_copy(update={"perturb": config.perturb.model_copy(update=change)})
        assert cells_of(other, store)["attnlrp"].key != cells_of(config, store)["attnlrp"].key
    few = config.model_copy(update={"perturb": config.perturb.model_copy(update={"samples": 5})})
    assert perturb(few, store).computed == 3
    names = {method: {row["sample_id"] for row in rows} for method, rows in curves_of(few, store).items()}
    assert len(names["lrp" if "lrp" in names else "random"]) == 5
    assert len({frozenset(ids) for ids in names.values()}) == 1, "the same samples for every method"


def test_curves_of_other_settings_are_garbage_and_status_counts_those_that_are_wanted(tmp_path, model, inline):
    config, store = run_of(tmp_path, model)
    write_relevance(config, store)
    perturb(config, store)
    old = set(bytes_of(config, store))
    other = config.model_copy(update={"perturb": config.perturb.model_copy(update={"steps": 3})})
    rows = collect(Run(other, make_plan(other, store), Ledger(store)))
    assert rows["gpt2", "sva", "float32", "curves"].states == {"missing": 3}
    perturb(other, store)
    [group] = [group for group in garbage(other, store) if "faithfulness" in group.why]
    assert group.why == "sets of faithfulness curves of other inputs, settings or versions"
    assert old < set(group.files)
    for path in group.files:
        store.delete(path)
    rows = collect(Run(other, make_plan(other, store), Ledger(store)))
    assert rows["gpt2", "sva", "float32", "curves"].states == {"done": 3}
    assert perturb(other, store).skipped == 3


def test_a_sample_that_a_method_rejected_is_a_reject_of_its_curves_and_the_cell_is_complete(tmp_path, model, inline):
    config, store = run_of(tmp_path, model)
    write_relevance(config, store, lost=("s001", "s002", "s003", "s004"))
    summary = perturb(config, store)
    assert summary.complete
    record = Ledger(store).record(cells_of(config, store)["random"])
    assert record["rejects"] == {"no_relevance": 4}
    assert any("4 no_relevance" in line for line in summary.lines)


def test_curves_wait_for_their_relevance_and_say_so(tmp_path, model, inline):
    config, store = run_of(tmp_path, model)
    summary = perturb(config, store)
    assert summary.failures[0] == "relevance gpt2/sva/float32/attnlrp is not complete: run `closelook attribute`"
    assert store.files("curves", recursive=True) == []


def test_the_models_own_prediction_is_followed_where_it_was_explained(tmp_path, model, inline):
    rows = [row | {"target_id": None, "foil_id": None} for row in ROWS]
    config, store = run_of(tmp_path, model, rows)
    assert attribute(config, store).complete
    assert perturb(config, store).complete
    for curve in curves_of(config, store)["attnlrp"]:
        assert curve["correct"][0], "it is what the model predicts"


def test_where_no_token_may_go_nothing_is_written(tmp_path, model, inline):
    rows = [row | {"scope_mask": [False] * row["length"]} for row in ROWS]
    config, store = run_of(tmp_path, model, rows)
    write_relevance(config, store)
    before = store.files("", "", recursive=True)
    message = "task sva on gpt2: no token of the scope may be removed in any sample: leave the task out"
    with pytest.raises(UserError, match=message):
        perturb(config, store)
    assert store.files("", "", recursive=True) == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "config key 'perturb.steps': Input should be greater than or equal to 1"),
        ({"ways": []}, "config key 'perturb.ways'"),
        (
            {"ways": ["erase"]},
            "config key 'perturb.ways.0': Input should be 'zero', 'black', 'mask', 'delete' or 'resample'",
        ),
        (
            {"methods": ["randm"]},
            "config key 'perturb.methods': no method 'randm' in this run (did you mean 'random'",
        ),
        ({"explanations": ["log_prob"]}, "config key 'perturb.explanations': the run does not compute 'log_prob': add"),
        ({"tasks": ["svb"]}, "perturb.tasks: no task 'svb' (did you mean 'sva'?)"),
    ],
)
def test_a_setting_that_cannot_be_is_one_line_that_names_it(settings, message):
    with pytest.raises(ConfigError) as caught:
        RunConfig.load("smoke", overrides=[f"perturb={json.dumps(settings)}"])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_contrast_is_refused_on_a_task_without_foils():
    contrast = "perturb={explanations: [contrastive]}"
    with pytest.raises(ConfigError, match="explanations': task next_word has no foils to contrast with"):
        RunConfig.load("smoke", overrides=["tasks.next_word.source=demo", contrast])
    RunConfig.load(
        "smoke", overrides=["tasks.next_word.source=demo", "perturb={explanations: [contrastive], tasks: [sva]}"]
    )


def test_a_model_without_a_mask_token_is_not_asked_to_mask(tmp_path, model):
    with pytest.raises(UserError, match="model gpt2 knows no perturbation 'mask'; add 'zero' or 'delete'"):
        validate(config_of(tmp_path, model, perturb={"ways": ["mask"]}))
    validate(config_of(tmp_path, model, perturb={"ways": ["mask", "delete"]}))
    masked = save_model(tmp_path / "bert", "bert")
    validate(config_of(tmp_path, masked, perturb={"ways": ["mask"]}))
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (path := masked / name).exists():
            path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "mask_token"}))
    with pytest.raises(UserError, match="the tokenizer of bert has no mask token: name other ways"):
        validate(config_of(tmp_path / "root", masked, perturb={"ways": ["zero", "mask"]}))


def test_the_report_shows_what_is_drawn_and_what_is_not(tmp_path, model, inline):
    config, store = run_of(tmp_path, model)
    texts = [sample("t", f"{row['sample_id']} says", 9, "yes", "no") | {"sample_id": row["sample_id"]} for row in ROWS]
    store.write_shard(f"{samples_of('sva').folder}/a.parquet", pa.Table.from_pylist(texts, schema=GENERIC), GENERIC)
    Ledger(store).commit(samples_of("sva"), {"shards": ["a.parquet"], "rows": len(texts)})
    assert attribute(config, store).complete
    assert evaluate(config, store).complete
    assert report(config, store).complete
    page = store.read_bytes("report/faithfulness.html").decode()
    assert "results are not computed: run <code>closelook run</code>" in page
    assert perturb(config, store).complete
    assert report(config, store).computed == 1, "new curves make a new report"
    page = store.read_bytes("report/faithfulness.html").decode()
    assert "are not computed" not in page
    assert "gpt2, zeroed" in page
    assert "gpt2, deleted" in page
    values = [float(row["value"]) for row in numbers_of(store, "faithfulness") if row["value"]]
    cell = cells_of(config, store)["attnlrp"]
    whole = Ledger(store).read(cell, CURVES).to_pylist()
    rows = [row for row in whole if (row["perturbation"], row["embedding"]) == ("zero", "partial")]
    areas = {order: np.mean([row["area"] for row in rows if row["order"] == order]) for order in ("morf", "lerf")}
    assert any(value == pytest.approx(areas["lerf"], rel=1e-8) for value in values)
    assert numbers_of(store, "evidence_faithfulness")
    assert_overlap_is_of_what_the_curves_follow(config, store)


def assert_overlap_is_of_what_the_curves_follow(config, store):
    """The first token is the evidence: its overlap is 1 where it has the largest relevance, and that is positive."""
    [cell] = [node.relevance for node in curve_nodes(config, config.perturb, make_plan(config, store).models[0])][:1]
    rows = Ledger(store).read(cell, RELEVANCE).to_pylist()
    hits = [
        float(np.argmax(row["relevance"]) == 0 and row["relevance"][0] > 0)
        for row in rows
        if (row["explanation"], row["embedding"]) == ("target", "partial")
        and row["logit_foil"] is not None
        and row["logit_target"] > row["logit_foil"]
    ]
    lines = numbers_of(store, "faithfulness_overview")
    overlaps = {row["method"]: row for row in lines if row["label"] == "IoU" and "zeroed" in row["group"]}
    assert float(overlaps["AttnLRP"]["value"]) == pytest.approx(np.mean(hits))
    assert int(overlaps["AttnLRP"]["n"]) == len(hits) > 0


def test_relevance_that_is_nothing_but_rounding_is_marked_beside_its_curves(tmp_path, inline):
    bert = save_model(tmp_path / "bert", "bert")
    config, store = run_of(tmp_path / "run", bert, methods=["gradient_x_input", "random"], embeddings=["full"])
    assert attribute(config, store).complete
    assert perturb(config, store).complete
    assert evaluate(config, store).complete
    assert report(config, store).complete
    lines = numbers_of(store, "faithfulness")
    states = {(row["method"], row["label"]): row["state"] for row in lines}
    assert states["Gradient×Input", "ΔA"] == "noise", "the norm of the embeddings undoes any scaling of its input"
    assert states["Random", "ΔA"] == "done"
    assert {row["line"] for row in numbers_of(store, "figures/faithfulness_sva_zero")} == {"Random"}


def test_a_run_whose_only_sample_is_a_single_token_predicted_wrongly_is_drawn_and_reported(tmp_path, model, inline):
    row = {**rows_of(1)[0], "input_ids": [7], "position": 0, "length": 1, "special_mask": [False]}
    row |= {"evidence_mask": [True], "scope_mask": None}
    view = load_model(str(model))
    worse, better = sorted((8, 9), key=lambda token: logit_of(view, row | {"target_id": token, "foil_id": None}))
    rows = [row | {"target_id": worse, "foil_id": better}]
    config, store = run_of(tmp_path, model, rows, report={"samples": 0, "resamples": 0})
    for stage_of_run in (attribute, evaluate, perturb, report):
        assert stage_of_run(config, store).complete
    for curve in curves_of(config, store)["attnlrp"]:
        assert (curve["removed"], len(curve["logit"])) == ([0, 1], 2)
        assert curve["correct"][0] is False
    assert "nan" not in {row["value"] for row in numbers_of(store, "faithfulness")}
    foilless = [row | {"target_id": worse, "foil_id": None}]
    config, store = run_of(tmp_path / "all", model, foilless, perturb={}, explanations=["contrastive"])
    assert all(stage_of_run(config, store).complete for stage_of_run in (attribute, evaluate, perturb))
    assert not curves_of(config, store)["attnlrp"]
    assert report(config, store).complete, "of a method that has no relevance, as contrasts without foils"
