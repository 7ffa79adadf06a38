"""An encoder-decoder through the whole job, against forwards of single samples of the stock model."""

import json

import numpy as np
import pyarrow as pa
import pytest
import torch

from closelook.evaluation.schema import CURVES, PRUNING, RELEVANCE, VIEW
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.models import load_tokenizer
from closelook.jobs.plan.node import Run
from closelook.jobs.products.curves import curves_of
from closelook.jobs.products.pruning import pruning_of
from closelook.jobs.stages.prepare import prepare
from closelook.jobs.stages.report.results import results_of
from closelook.jobs.stages.report.samples import entries as shown_entries
from closelook.jobs.store import Ledger, Store
from closelook.lrp_core import METHODS, Batch, load_model
from closelook.lrp_core.readers.predictions import rows_for
from tests.jobs.inline import without_ray
from tests.oracles import faithfulness as oracle
from tests.stages import attribute, evaluate, perturb, prune

MINE = [
    {"text": "Anna met a doctor in Rome. Where? ___", "target": "Rome Lima", "foil": "Rome Oslo", "evidence": "Rome"},
    {"text": "When was dawn in Oslo? ___", "target": "Lima dawn", "foil": "Oslo dawn", "evidence": "dawn"},
]
WAYS = ("zero", "delete", "resample")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    root = tmp_path_factory.mktemp("both")
    (root / "mine.jsonl").write_text("\n".join(map(json.dumps, MINE)))
    mine = {"source": "samples", "path": str(root / "mine.jsonl"), "words": "first_difference"}
    settings = {
        "name": "both",
        "root": str(root / "run"),
        "tasks": {"qa": {"source": "demo", "limit": 4}, "mine": mine},
        "models": [{"name": "t5", "id": "demo/t5"}],
        "methods": ["attnlrp", "atman", "random"],
        "token_budget": 128,
        "heads": {"qa": None},
        "prune": {"orders": ["most_first"], "random_runs": 1},
        "perturb": {"tasks": ["qa"], "ways": WAYS, "steps": 3, "explanations": ["target"], "embeddings": ["full"]},
        "report": {"samples": 9, "resamples": 20},
    }
    return RunConfig.model_validate(settings)


@pytest.fixture(scope="module")
def store(config):
    """Everything of the run but the report."""
    result = Store(config.root)
    with without_ray():
        for stage in (prepare, attribute, evaluate, prune, perturb):
            assert stage(config, result).complete
    return result


@pytest.fixture(scope="module")
def plan(config, store):
    return make_plan(config, store)


@pytest.fixture(scope="module")
def view():
    return load_model("evaluation/benchmark/demo/models/t5")


@pytest.fixture(scope="module")
def rows(store, plan, view):
    """By task and sample, what the model reads, the start token included."""
    [model] = plan.models
    collected = {}
    for task, inputs in model.inputs.items():
        table = pa.concat_tables([store.read(path, VIEW) for path in store.files(inputs.folder)])
        collected[task] = {row["sample_id"]: row for row in rows_for(view, table.to_pylist())}
    return collected


def rows_of(store, plan, method):
    """(task, row) of the stored relevance."""
    for planned in plan.cells():
        if planned.artifact.product == "relevance" and planned.artifact.method == method:
            for row in Ledger(store).read(planned.artifact, RELEVANCE).to_pylist():
                yield planned.artifact.task, row


def stock(view, row, ids=None, embedded=None):
    """The logits of the stock model where `row` is predicted, of other `ids` or of their embeddings."""
    read = {"input_ids": torch.tensor([row["input_ids"] if ids is None else ids])}
    read = read if embedded is None else {"inputs_embeds": embedded[None]}
    with torch.no_grad():
        decoder_ids = torch.tensor([row["decoder_input_ids"]])
        return view.model(**read, decoder_input_ids=decoder_ids).logits[0, row["position"]]


def test_relevance_of_both_sides_is_that_of_single_samples(store, plan, view, rows):
    lengths = set()
    for task, stored in rows_of(store, plan, "attnlrp"):
        row, request = rows[task][stored["sample_id"]], (stored["explanation"], stored["embedding"])
        alone = METHODS["attnlrp"](view, Batch.collate([row], 0), explanation=request[0], embedding=request[1])
        assert stored["relevance"] == pytest.approx(alone.tokens[0].tolist(), abs=1e-4)
        assert stored["decoder_relevance"] == pytest.approx(alone.decoder_tokens[0].tolist(), abs=1e-4)
        total = sum(stored["relevance"]) + sum(stored["decoder_relevance"])
        assert stored["residual"] == pytest.approx(total - stored["explained"], abs=1e-4)
        logits = stock(view, row)[[row["target_id"], row["foil_id"]]].tolist()
        assert [stored["logit_target"], stored["logit_foil"]] == pytest.approx(logits, abs=1e-3)
        lengths.add((task, len(stored["decoder_relevance"])))
    assert lengths == {("qa", 1), ("mine", 1), ("mine", 2)}, "where target and foil begin alike the decoder has seen it"


def test_a_method_that_does_not_speak_of_the_decoder_has_null_there(store, plan):
    assert {row["decoder_relevance"] for _, row in rows_of(store, plan, "atman")} == {None}


def test_heads_of_encoder_decoder_and_cross_attention_are_pruned(config, store, plan, view, rows):
    """Two layers each, four heads a layer: half of all heads are gone after twelve."""
    [model] = plan.models
    collected = {}
    for artifact in [node.artifact for node in pruning_of(Run(config, plan, Ledger(store)), config.prune, model)]:
        for point in Ledger(store).read(artifact, PRUNING).to_pylist():
            collected.setdefault((point["method"], point["pooling"], point["seed"]), []).append(point)
    assert {name for name, *_ in collected} == {"attnlrp", "random"}
    checked = []
    for points in collected.values():
        gone = [head for point in points for head in point["pruned_heads"]]
        assert sorted(gone) == list(range(24))
        half = next(p for at, p in enumerate(points) if sum(len(q["pruned_heads"]) for q in points[: at + 1]) == 12)
        checked.append(half["accuracy"])
        assert half["accuracy"] == accuracy_slowly(view, rows["qa"].values(), gone[:12])
    assert len(set(checked)) > 1


def accuracy_slowly(view, rows, gone):
    """With the columns of removed heads zero in the output projections of a copy."""
    import copy

    model = copy.deepcopy(view.model)
    outputs = [block.layer[0].SelfAttention.o for block in (*model.encoder.block, *model.decoder.block)]
    outputs += [block.layer[1].EncDecAttention.o for block in model.decoder.block]
    for head in gone:
        layer, at = divmod(head, 4)
        outputs[layer].weight.data[:, 12 * at : 12 * (at + 1)] = 0
    right = []
    for row in rows:
        decoder_ids = torch.tensor([row["decoder_input_ids"]])
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row["input_ids"]]), decoder_input_ids=decoder_ids).logits[0, -1]
        right.append(bool(logits[row["target_id"]] > logits[row["foil_id"]]))
    return sum(right) / len(right)


@pytest.mark.parametrize("way", WAYS)
def test_curves_take_tokens_of_the_passage_from_the_encoder(config, store, plan, view, rows, way):
    [model] = plan.models
    relevance = {
        row["sample_id"]: row["relevance"]
        for _, row in rows_of(store, plan, "attnlrp")
        if (row["explanation"], row["embedding"]) == ("target", "full")
    }
    [artifact] = [c.artifact for c in curves_of(config, config.perturb, model) if c.artifact.method == "attnlrp"]
    drawn = [curve for curve in Ledger(store).read(artifact, CURVES).to_pylist() if curve["perturbation"] == way]
    assert len(drawn) == 2 * 4
    texts = [(row["input_ids"], row["special_mask"]) for row in rows["qa"].values()]
    kept = load_tokenizer(config.models[0]).all_special_ids
    for curve in drawn:
        row, values = rows["qa"][curve["sample_id"]], relevance[curve["sample_id"]]
        passage = np.flatnonzero(row["scope_mask"])
        order = sorted(passage, key=lambda at: -values[at])
        order = order if curve["order"] == "morf" else order[::-1]
        assert curve["removed"][-1] == len(passage) < len(values)
        replaced = oracle.replacements(texts, kept, row["input_ids"], row["special_mask"], 3, config.seed)
        for count, logit in zip(curve["removed"], curve["logit"], strict=True):
            gone = order[:count]
            left = [token for at, token in enumerate(row["input_ids"]) if at not in gone]
            embedded = view.token_embedding(torch.tensor(row["input_ids"])).clone()
            embedded[gone] = 0
            if way == "resample":
                read = [[drawn[at] if at in gone else t for at, t in enumerate(row["input_ids"])] for drawn in replaced]
                logits = sum(stock(view, row, ids=ids) for ids in read) / len(read)
            else:
                logits = stock(view, row, ids=left) if way == "delete" else stock(view, row, embedded=embedded)
            assert logit == pytest.approx(float(logits[row["target_id"]]), abs=1e-3)


def test_samples_are_shown_with_what_the_decoder_has_seen(config, store, plan):
    run = Run(config, plan, Ledger(store))
    shown = list(shown_entries(run, results_of(run)))
    decoders = {entry["task"]: [] for entry in shown}
    for entry in shown:
        decoders[entry["task"]].append(entry["decoder"])
        assert entry["position"] is None, "the prediction is read in the decoder"
        lines = {line["label"]: line for line in entry["rows"]}
        assert len(lines["AttnLRP"]["decoder"]) == len(entry["decoder"])
        assert "decoder" not in lines["AtMan"]
    assert decoders["qa"] == [["‹start›"]] * 4
    assert sorted(decoders["mine"]) == [["‹start›"], ["‹start›", "Rome"]]
