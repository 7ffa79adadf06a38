"""A model in half precision whose activations are too large for it: what is lost is told, and nothing else is."""

import json
import random
import re

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from closelook import explain, open_model
from closelook.evaluation.report.table import SMALLEST_ROW
from closelook.evaluation.schema import CURVES, PRUNING, RELEVANCE
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.products.curves import curves_of
from closelook.jobs.stages.report import report
from closelook.jobs.store import Ledger
from closelook.lrp_core import METHODS, Batch, load_model
from closelook.lrp_core.records.types import UnusableRows
from tests.jobs.small import VOCABULARY, config_of, prepared, rows_of, save_model
from tests.shown import numbers_of
from tests.stages import attribute, evaluate, neurons, perturb, prune

ROWS = rows_of(12)
LARGEST = torch.finfo(torch.float16).max


def activations(model, rows) -> list[float]:
    """The largest activation of the only feed-forward layer in each row, before its non-linearity."""
    seen = []
    with model.transformer.h[0].mlp.c_fc.register_forward_hook(lambda _, args, y: seen.append(float(y.abs().max()))):
        for row in rows:
            model(torch.tensor([row["input_ids"]]))
    return seen


def scaled(directory, largest_of):
    """A random model whose feed-forward layer is scaled until `largest_of(activations)` is what float16 can hold."""
    save_model(directory)
    model = AutoModelForCausalLM.from_pretrained(directory)
    with torch.no_grad():
        factor = LARGEST / largest_of(activations(model, ROWS))
        block = model.transformer.h[0]
        for parameter in (block.ln_2.weight, block.ln_2.bias, block.mlp.c_fc.weight):
            parameter *= factor**0.5  # no weight is too large on its own
        block.mlp.c_fc.bias *= factor
    model.save_pretrained(directory)
    return directory


@pytest.fixture
def half(tmp_path):
    """A model that cannot hold about half of the rows."""
    return scaled(tmp_path / "half", np.median)


def run_of(tmp_path, model):
    methods = ["attnlrp", {"integrated_gradients": {"steps": 2}}, "random"]
    changes = {"perturb": {"explanations": ["target"], "embeddings": ["full"]}, "max_failed_share": 1.0}
    model_in_half = {"name": model.name, "id": str(model), "dtype": "float16"}
    config = config_of(tmp_path / "root", models=[model_in_half], methods=methods, **changes)
    return config, prepared(config, ROWS)


def test_rows_that_overflow_are_rejects_and_the_report_says_what_it_leaves_out(tmp_path, half, inline):
    config, store = run_of(tmp_path, half)
    summary = attribute(config, store)
    evaluate(config, store)
    perturb(config, store)
    ledger, [planned] = Ledger(store), make_plan(config, store).models
    cells = {cell.artifact.method: cell.artifact for cell in planned.cells}
    relevance = ledger.read(cells["attnlrp"], RELEVANCE)
    assert np.isfinite(relevance["relevance"].combine_chunks().flatten().to_numpy()).all()
    lost = len(ROWS) - len(set(relevance["sample_id"].to_pylist()))
    assert 0 < lost < len(ROWS)
    [rejected] = [line for line in summary.lines if line.endswith("(attnlrp)")]
    reasons = re.findall(r"(\d+) (not_finite|logits_not_finite), as s\d+: .*? not finite in float16", rejected)
    assert sum(int(rows) for rows, _ in reasons) == lost
    # On the way from no input some activation is always too large: there is no such relevance of any row.
    assert not ledger.is_done(cells["integrated_gradients"])
    [failure] = [line for line in summary.failures if "integrated_gradients" in line]
    assert "every row of a unit failed" in failure
    assert failure.endswith("not finite in float16")
    report(config, store)
    shown = {(row["method"], row["label"]): row for row in numbers_of(store, "faithfulness")}
    drawn = {cell.artifact.method: cell.artifact for cell in curves_of(config, config.perturb, planned)}
    for method, label in (("attnlrp", "AttnLRP"), ("random", "Random")):
        areas = ledger.read(drawn[method], CURVES).to_pandas().groupby("sample_id")["area"]
        whole = int(areas.apply(lambda both: np.isfinite(both).all()).sum())
        assert int(shown[label, "ΔA"]["n"]) == whole > 0
        assert int(shown[label, "left out"]["value"]) == len(areas) - whole


def test_knock_outs_and_pruning_count_the_samples_that_they_use(tmp_path, inline):
    """A model that has no finite logits at the last position of the longest text."""
    folder = save_model(tmp_path / "broken")
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.transformer.wpe.weight[11] = torch.nan
    model.save_pretrained(folder)
    assert [row["length"] > 11 for row in ROWS].count(True) == 1
    settings = {"tasks": {"sva": 12}, "knockout": {"counts": [1, 3], "explanation": "target"}}
    changes = {"neurons": settings, "heads": {"sva": 12}, "prune": {}, "report": {"resamples": 50}}
    config = config_of(tmp_path / "root", folder, methods=["attnlrp", "random"], **changes)
    store = prepared(config, ROWS)
    for stage in (attribute, evaluate, neurons, prune, report):
        assert stage(config, store).failures == ()
    ledger = Ledger(store)
    for _, record in ledger.records("knockouts"):
        reason = "no_relevance" if record["artifact"]["method"] == "attnlrp" else "not_finite"
        assert (record["samples"], record["rejects"]) == (11, {reason: 1})
    view, whole = load_model(folder), [row for row in ROWS if row["length"] <= 11]
    margins = [view.logits(batch)[0] for batch in (Batch.collate([row], 0) for row in whole)]
    right = np.mean([float(target) > float(foil) for target, foil in margins])
    for artifact, record in ledger.records("pruning"):
        every = store.read(f"pruning/model=broken/task=sva/dtype=float32/{record['shards'][0]}", PRUNING).to_pylist()
        rows = [row for row in every if row["half"] is None]
        assert (record["samples"], {row["n"] for row in rows}) == (11, {11}), artifact
        assert [row["accuracy"] for row in rows if row["step"] == 0] == pytest.approx([right] * (len(rows) // 3))
    assert {row["n"] for row in numbers_of(store, "knockouts") if row["ranking"] != SMALLEST_ROW} == {"11"}


def test_relevance_that_overflows_is_said_and_not_printed_as_nan(tmp_path, half, closelook):
    view = load_model(str(half), dtype="float16")
    draw = random.Random(0)
    for _ in range(100):
        ids = draw.choices(range(40, VOCABULARY), k=8)  # no word of which holds the mask token's, w3
        row = {"input_ids": ids, "position": 7, "target_id": 10, "foil_id": None}
        try:
            relevance = METHODS["attnlrp"](view, Batch.collate([row], 0))
        except UnusableRows:
            continue
        if not relevance.tokens.isfinite().all():
            break
    else:
        pytest.fail("the relevance of some text overflows where its logits do not")
    question = ("--model", str(half), " ".join(f"w{i}" for i in ids), "--target", "w10")
    page, file = tmp_path / "page.html", tmp_path / "told.json"
    files = ("--html", str(page), "--json", str(file))
    code, out, err = closelook("explain", *question, "--dtype", "float16", "--method", "attnlrp,random", *files)
    assert code == 0, err
    assert re.search(r"^attnlrp +not finite in float16: try float32 or bfloat16$", out, re.M)
    assert re.search(r"^random +w\d+ [+-]\d", out, re.M)
    assert '"label":"attnlrp (not finite)"' in page.read_text()
    [prediction] = json.loads(file.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))[
        "predictions"
    ]
    [of_attnlrp, of_random] = prediction["methods"]
    assert None in of_attnlrp["relevance"]
    assert None not in of_random["relevance"]
    opened = open_model(half, "float16")
    record = explain(question[2], "w10", model=opened, method=["attnlrp", "random"]).to_dict()
    assert record["predictions"] == [prediction]
    code, _, err = closelook("neurons", *question, "--dtype", "float16")
    assert code == 2
    assert f"error: {half}: relevance of attnlrp is not finite in float16: try float32 or bfloat16\n" in err
