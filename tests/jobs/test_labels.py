"""Classifiers and regressors in a run: labels by name, the model's own prediction, shares of tokens taken away."""

import json
from collections import defaultdict
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from evaluation.schema import CURVES, PRUNING, SCORES, VIEW
from evaluation.scoring.shares import shares_of
from jobs.config import RunConfig
from jobs.plan.cells import make_plan, validate
from jobs.plan.products.curves import wanted_cells
from jobs.plan.products.pruning import wanted_curves
from jobs.stages.attribute import attribute
from jobs.stages.evaluate import evaluate
from jobs.stages.perturb import perturb
from jobs.stages.prepare import prepare
from jobs.stages.prune import prune
from jobs.stages.report import report
from jobs.stages.select import select
from jobs.store import Ledger, Store
from lrp_core import load_model
from lrp_core.types import UserError
from tests.jobs.inline import without_ray
from tests.jobs.small import relevance_of
from tests.tiny import tiny_classifier

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "g",
    "h",
    "i",
    "j",
    "k",
    "l",
    "m",
    "n",
]
METHODS = ["gradient_l2", "normxlogit", "random"]  # not gradient x input: rounding, in BERT
SST2 = [
    ("a b c d e f g h i j k l", 1),
    ("b d f", 0),
    ("k k a c", 1),
    ("l m n a", 0),
    ("c d e f g h", 1),
]
STS = [("a b c", "c d", 1.5), ("d", "d e f", 4.0), ("g h i j", "k", 0.25), ("a c e", "b", 3.0)]


def save(folder, family="bert", labels=("NEGATIVE", "Positive"), separator=True):
    """A classifier with a whitespace tokenizer, a regressor where it has one label."""
    view = tiny_classifier(family, len(labels), vocab_size=len(WORDS))
    if len(labels) > 1:
        view.model.config.id2label = dict(enumerate(labels))
        view.model.config.label2id = {label: at for at, label in enumerate(labels)}
    view.model.float().save_pretrained(folder)
    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    if separator:
        ends = [("[CLS]", 2), ("[SEP]", 3)]
        words.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
        )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    specials = {"unk_token": "[UNK]", "mask_token": "[MASK]", "pad_token": "[PAD]"}
    PreTrainedTokenizerFast(tokenizer_object=words, model_input_names=names, **specials).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("labels")
    lines = "".join(f"{text}\t{label}\n" for text, label in SST2)
    (root / "sst2.tsv").write_text("sentence\tlabel\n" + lines)
    (root / "sts.csv").write_text("".join(f"{one},{other},{score}\n" for one, other, score in STS))
    save(root / "sentiment")
    save(root / "causal", "gpt2", separator=False)
    save(root / "score", labels=("score",))
    return root


@pytest.fixture
def inline(monkeypatch):
    return without_ray(monkeypatch.setattr)


def run_of(folders, root, models=("sentiment", "score"), **changes) -> RunConfig:
    settings = {
        "name": "labels",
        "root": str(root),
        "tasks": {
            "sst2": {"source": "sst2", "path": str(folders / "sst2.tsv")},
            "stsb": {"source": "stsb", "path": str(folders / "sts.csv")},
        },
        "models": [{"name": one, "id": str(folders / one)} if isinstance(one, str) else one for one in models],
        "methods": METHODS,
        "explanations": ["target"],
        "embeddings": ["full"],
        "perturb": {},
        "report": {"samples": 2, "resamples": 20},
    }
    return RunConfig.load(settings | changes)


@pytest.fixture(scope="module")
def done(folders, tmp_path_factory):
    """A whole run: (config, store)."""
    config = run_of(folders, tmp_path_factory.mktemp("root"))
    with pytest.MonkeyPatch.context() as patch:
        without_ray(patch.setattr)
        store = Store(config.root)
        store.create()
        validate(config)
        for stage in (prepare, attribute, evaluate, perturb, report):
            assert not stage(config, store).failures
    return config, store


def views_of(config, store, task):
    model = next(model for model in make_plan(config, store).models if task in model.inputs)
    return model, store.read(model.inputs[task].folder, VIEW).to_pylist()


def curves_of(config, store, task):
    model, _ = views_of(config, store, task)
    cells = [one.artifact for one in wanted_cells(config, config.perturb, model) if one.artifact.task == task]
    return {cell.method: Ledger(store).read(cell, CURVES).to_pylist() for cell in cells}


def test_views_of_labels_have_the_gold_label_and_pairs_their_token_types(done):
    _, views = views_of(*done, "sst2")
    assert {view["label"] for view in views} == {"negative", "positive"}
    assert {(view["target_id"], view["position"], view["score"]) for view in views} == {(None, 0, None)}
    _, views = views_of(*done, "stsb")
    assert sorted(view["score"] for view in views) == sorted(score for *_, score in STS)
    for view in views:
        first = view["input_ids"].index(3) + 1
        assert view["token_type_ids"] == [0] * first + [1] * (view["length"] - first)
        assert view["special_mask"] == [token in (2, 3) for token in view["input_ids"]]
        assert (view["target_id"], view["evidence_mask"]) == (0, None)


loaded = cache(load_model)


def logits(folder, ids, types=None):
    view = loaded(folder)
    types = None if types is None else torch.tensor([types])
    return view.model(input_ids=torch.tensor([ids]), token_type_ids=types).logits[0].double().numpy()


def test_relevance_is_of_the_label_that_the_model_predicts(done, folders):
    _, views = views_of(*done, "sst2")
    stock = {view["sample_id"]: logits(folders / "sentiment", view["input_ids"]) for view in views}
    tables = {name: table for name, table in relevance_of(*done).items() if "sst2" in name}
    assert len(tables) == len(METHODS)
    for table in tables.values():
        for row in table.to_pylist():
            own = stock[row["sample_id"]]
            assert row["predicted_id"] == own.argmax()
            assert row["logit_target"] == pytest.approx(own.max(), abs=1e-5)
            assert row["logit_foil"] == pytest.approx(own.min(), abs=1e-5)


@pytest.mark.parametrize("task", ["sst2", "stsb"])
def test_shares_of_the_top_tokens_are_masked_and_all_others(done, folders, task):
    model, views = views_of(*done, task)
    relevance = {cell.split("/")[-1]: table.to_pylist() for cell, table in relevance_of(*done).items() if task in cell}
    measured = curves_of(*done, task)
    assert set(measured) == set(relevance) == set(METHODS)
    for method, curves in measured.items():
        assert len(curves) == 2 * len(views)
        for curve in curves:
            view = next(view for view in views if view["sample_id"] == curve["sample_id"])
            [said] = [row["relevance"] for row in relevance[method] if row["sample_id"] == curve["sample_id"]]
            free = [at for at, special in enumerate(view["special_mask"]) if not special]
            order = sorted(free, key=lambda at: -said[at])
            assert (curve["percent"], curve["perturbation"]) == ([0, *range(10, 100, 10)], "mask")
            for at, percent in enumerate(curve["percent"]):
                top = order[: percent * len(free) // 100]
                gone = top if curve["order"] == "without_top" or percent == 0 else [t for t in free if t not in top]
                assert curve["removed"][at] == len(gone)
                ids = [4 if position in gone else token for position, token in enumerate(view["input_ids"])]
                own = logits(folders / model.name, ids, view["token_type_ids"])
                assert curve["logit"][at] == pytest.approx(own[curve["target_id"]], abs=1e-5)
                if task == "stsb":
                    assert (curve["probability"], curve["correct"]) == (None, None)
                    continue
                probabilities = np.exp(own) / np.exp(own).sum()
                assert curve["probability"][at] == pytest.approx(probabilities[curve["target_id"]], abs=1e-5)
                gold = ["negative", "positive"].index(view["label"])
                assert curve["correct"][at] == (own.argmax() == gold)


@pytest.mark.parametrize(
    ("models", "changes", "message"),
    [
        (("score",), {}, "task sst2 asks for labels, which no model of the run predicts"),
        (("sentiment", "score"), {"explanations": ["contrastive"]}, "stsb': it has no foils to contrast with"),
    ],
)
def test_what_does_not_fit_is_an_error_in_one_line(folders, tmp_path, models, changes, message):
    with pytest.raises(UserError, match=message):
        validate(run_of(folders, tmp_path, models, **changes))


def test_a_model_that_is_given_a_task_it_does_not_answer_is_an_error(folders, tmp_path):
    config = run_of(folders, tmp_path)

    def given(name, task, **model):
        own = {"name": name, "id": str(folders / name), "tasks": [task], **model}
        return run_of(folders, tmp_path, [own], tasks={task: config.tasks[task].model_dump()})

    with pytest.raises(UserError, match="model score predicts a score, and task sst2 asks for labels"):
        validate(given("score", "sst2"))
    with pytest.raises(UserError, match="model sentiment predicts labels, and task stsb asks for a score"):
        validate(given("sentiment", "stsb"))
    words = "the labels of task sst2 (negative, positive) are not those of model sentiment (good, bad): say"
    with pytest.raises(UserError) as error:
        validate(given("sentiment", "sst2", classes=["good", "bad"]))
    assert str(error.value).startswith(words)
    with pytest.raises(UserError, match="`classes` names 3 labels, and the model has 2: NEGATIVE, Positive"):
        validate(given("sentiment", "sst2", classes=["negative", "neutral", "positive"]))
    validate(given("sentiment", "sst2", classes=["positive", "negative"]))


def test_pairs_need_a_tokenizer_that_separates_them(folders, tmp_path):
    save(tmp_path / "joined", "gpt2", labels=("score",), separator=False)
    config = run_of(folders, tmp_path / "root")
    own = {"name": "joined", "id": str(tmp_path / "joined")}
    tasks = {"stsb": config.tasks["stsb"].model_dump()}
    config = run_of(folders, tmp_path / "root", [own], tasks=tasks)
    store = Store(config.root)
    store.create()
    with pytest.raises(UserError, match="task stsb has pairs of texts, and the tokenizer of model joined puts nothing"):
        prepare(config, store)
    assert not store.files("benchmark")


def own_file(path, task, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"mine": {"source": "samples", "path": str(path), "output": "label", **task}}


def test_evidence_of_ones_own_labelled_texts_is_scored(folders, tmp_path, inline):
    rows = [{"text": text, "label": ("negative", "positive")[label], "evidence": [0, 1]} for text, label in SST2[:4]]
    rows.append({"text": "a b", "label": "positive"})
    tasks = own_file(tmp_path / "mine.jsonl", {"evidence": True}, *rows)
    config = run_of(folders, tmp_path / "root", ["sentiment"], tasks=tasks)
    store = Store(config.root)
    store.create()
    validate(config)
    summary = prepare(config, store)
    assert "mine: 5 rows = 4 samples + 1 rejected (1 no evidence)" in summary.lines
    assert all(stage(config, store).complete for stage in (attribute, evaluate))
    _, views = views_of(config, store, "mine")
    for view in views:
        assert view["evidence_mask"] == [at == 1 for at in range(view["length"])], "the first word"
    tables = {name.split("/")[-1]: table.to_pylist() for name, table in relevance_of(config, store).items()}
    for method, relevance in tables.items():
        scores = store.read(f"scores/sentiment.mine.float32.{method}.parquet", SCORES).to_pylist()
        [pg] = [row for row in scores if (row["metric"], row["tokens"], row["scope"]) == ("pg", "non_special", "full")]
        gold = {view["sample_id"]: ["negative", "positive"].index(view["label"]) for view in views}
        right = [row["relevance"][1:-1] for row in relevance if row["predicted_id"] == gold[row["sample_id"]]]
        assert pg["n"] == len(right)
        if right:
            assert pg["value"] == pytest.approx(100 * np.mean([np.argmax(values) == 0 for values in right]))
    unsaid = run_of(folders, tmp_path / "unsaid", ["sentiment"], tasks=own_file(tmp_path / "mine.jsonl", {}, *rows))
    Store(unsaid.root).create()
    lines = prepare(unsaid, Store(unsaid.root)).lines
    assert "mine: 5 rows = 1 samples + 4 rejected (4 evidence: say `evidence: true` of its task)" in lines
    with pytest.raises(UserError, match="`evidence` is for samples of your own with `output`"):
        run_of(folders, tmp_path / "other", ["sentiment"], tasks={"sst2": {"source": "sst2", "evidence": True}})


def test_own_pairs_are_rejects_where_nothing_separates_them(folders, tmp_path, inline):
    rows = [{"text": "a b", "second": "c", "label": "positive"}, {"text": "a b d", "label": "negative"}]
    tasks = own_file(tmp_path / "pairs.jsonl", {}, *rows)
    config = run_of(folders, tmp_path / "root", ["causal"], tasks=tasks)
    Store(config.root).create()
    [told] = [line for line in prepare(config, Store(config.root)).lines if "views" in line]
    assert told.endswith("2 samples = 1 views + 1 rejected (1 the tokenizer puts nothing between two texts)")


def test_options_are_chosen_by_the_area_under_the_label_or_the_score(folders, tmp_path, inline):
    fixed = {"method": "smoothgrad", "samples": 2, "reduce": "l2"}
    settings = {"perturb": {"measures": ["areas"]}}
    config = run_of(folders, tmp_path / "run", methods=[{**fixed, "sigma": [2.0, 0.1]}], select={}, **settings)
    each = [{**fixed, "name": f"smoothgrad-{sigma}", "sigma": sigma} for sigma in (2.0, 0.1)]
    other = run_of(folders, tmp_path / "other", methods=each, **settings)
    for one, stages in ((config, (prepare, select, attribute)), (other, (prepare, attribute, perturb))):
        Store(one.root).create()
        assert not [failure for stage in stages for failure in stage(one, Store(one.root)).failures]
    drawn = {model.name: model for model in make_plan(other, Store(other.root)).models}
    for model in make_plan(config, Store(config.root)).models:
        [choice] = model.choices
        means = []
        for cell in wanted_cells(other, other.perturb, drawn[model.name]):
            rows = Ledger(Store(other.root)).read(cell.artifact, CURVES).to_pylist()
            area = {order: [row["area"] for row in rows if row["order"] == order] for order in ("morf", "lerf")}
            means.append(np.mean(area["lerf"]) - np.mean(area["morf"]))
        assert [trial["delta_area"] for trial in choice.record["trials"]] == pytest.approx(means, abs=1e-5)
        assert choice.chosen == {"sigma": (2.0, 0.1)[int(np.argmax(means))]}


@pytest.mark.parametrize("task", ["sst2", "stsb"])
def test_aopc_sufficiency_accuracy_and_correlation_are_those_of_their_formulas(done, task):
    _, views = views_of(*done, task)
    gold = {view["sample_id"]: view["score"] for view in views}
    tables = {name: pa.Table.from_pylist(rows, CURVES) for name, rows in curves_of(*done, task).items()}
    measured = shares_of(tables, gold, "mask", 20, 0)
    for method, table in tables.items():
        expected = defaultdict(list)
        columns = defaultdict(list)
        for row in table.to_pylist():
            columns[row["order"]].append((gold[row["sample_id"]], row["logit"][1:]))
            if task == "sst2":
                prefix = "" if row["order"] == "without_top" else "sufficiency_"
                drop = [row["probability"][0] - value for value in row["probability"][1:]]
                expected["aopc" if not prefix else "sufficiency"].append(drop)
                expected[f"{prefix}accuracy"].append(row["correct"][1:])
        if task == "stsb":
            for order, name in (("without_top", "pearson"), ("top_only", "sufficiency_pearson")):
                scores, predictions = zip(*columns[order], strict=True)
                expected[name] = [[np.corrcoef(scores, np.array(predictions)[:, k])[0, 1] for k in range(9)]]
        assert set(measured.measures) == set(expected)
        for name, values in expected.items():
            summary = measured.summaries[method, name]
            assert summary.value == pytest.approx(np.mean(values), abs=1e-6)
            assert (summary.n, summary.left_out) == (len(views), 0)
            curve = measured.curves[method, name]
            assert (curve.mean, curve.n) == (pytest.approx(np.mean(values, axis=0), abs=1e-6), len(views))
            assert (curve.low <= curve.high + 1e-9).all()


def test_the_report_has_every_measure_and_the_papers_numbers(done):
    _, store = done
    page = store.read_bytes("report/faithfulness.html").decode()
    for text in (
        "AOPC",
        "Sufficiency",
        "Pearson r",
        "NormXLogit: sst2 · bert-base-uncased",
        "0.423",
        "too high by a ninth",
        "probability lost without the top tokens; higher is better",
    ):
        assert text in page
    for name, panel in (("sst2_mask_aopc", "sentiment · Sufficiency"), ("stsb_mask_pearson", "score · Pearson r")):
        assert panel in store.read_bytes(f"report/figures/shares_{name}.svg").decode()
    samples = store.read_bytes("report/samples.html").decode()
    assert "(gold: " in samples


def test_texts_that_are_too_long_are_rejected_or_cut_and_counted(folders, tmp_path, inline):
    lines = [" ".join("abcdefgh"[i % 8] for i in range(length)) for length in (40, 31, 30, 4)]
    (tmp_path / "long.tsv").write_text("sentence\tlabel\n" + "".join(f"{line}\t0\n" for line in lines))
    task = {"source": "sst2", "path": str(tmp_path / "long.tsv")}
    for truncate, told in ((False, "2 views + 2 rejected (2 too long)"), (True, "4 views (2 cut to fit) + 0 rejected")):
        tasks = {"sst2": {**task, "truncate": truncate}}
        config = run_of(folders, tmp_path / str(truncate), ["sentiment"], tasks=tasks)
        store = Store(config.root)
        store.create()
        assert any(f"4 samples = {told}" in line for line in prepare(config, store).lines)
        _, views = views_of(config, store, "sst2")
        assert sorted(view["length"] for view in views)[-1] == 32
        assert all(view["input_ids"][-1] == 3 for view in views), "the separator stays"


def test_a_causal_classifier_reads_the_last_token_and_loses_tokens_by_deletion(folders, tmp_path, inline):
    tasks = {"sst2": run_of(folders, tmp_path).tasks["sst2"].model_dump()}
    config = run_of(folders, tmp_path, ["causal"], tasks=tasks)
    store = Store(config.root)
    store.create()
    for stage in (prepare, attribute, perturb):
        assert not stage(config, store).failures
    _, views = views_of(config, store, "sst2")
    relevance = {cell.split("/")[-1]: table.to_pylist() for cell, table in relevance_of(config, store).items()}
    for method, curves in curves_of(config, store, "sst2").items():
        for curve in curves:
            view = next(view for view in views if view["sample_id"] == curve["sample_id"])
            assert view["position"] == view["length"] - 1
            [said] = [row["relevance"] for row in relevance[method] if row["sample_id"] == curve["sample_id"]]
            order = sorted(range(view["length"]), key=lambda at: -said[at])
            for at, percent in enumerate(curve["percent"]):
                count = percent * view["length"] // 100
                gone = order[:count] if curve["order"] == "without_top" or not percent else order[max(count, 1) :]
                left = [token for position, token in enumerate(view["input_ids"]) if position not in gone]
                own = logits(folders / "causal", left)
                assert curve["perturbation"] == "delete"
                assert curve["logit"][at] == pytest.approx(own[curve["target_id"]], abs=1e-5)


def test_heads_of_a_classifier_are_pruned_against_the_gold_labels(folders, tmp_path, inline):
    heads = {"heads": {"sst2": None}, "prune": {"poolings": ["none"], "random_runs": 1}, "perturb": None}
    tasks = {"sst2": run_of(folders, tmp_path).tasks["sst2"].model_dump()}
    config = run_of(
        folders, tmp_path, ["sentiment"], tasks=tasks, methods=["lrp"], explanations=["contrastive"], **heads
    )
    store = Store(config.root)
    store.create()
    for stage in (prepare, attribute, prune):
        assert not stage(config, store).failures
    _, views = views_of(config, store, "sst2")
    gold = [["negative", "positive"].index(view["label"]) for view in views]
    whole = [logits(folders / "sentiment", view["input_ids"]).argmax() for view in views]
    [model] = make_plan(config, store).models
    ledger = Ledger(store)
    drawn = [curves.artifact for curves in wanted_curves(config, config.prune, model)]
    points = [row for artifact in drawn for row in ledger.read(artifact, PRUNING).to_pylist()]
    assert {row["method"] for row in points} == {"lrp", "random"}
    assert {(row["accuracy"], row["n"]) for row in points if row["step"] == 0} == {
        (np.mean(np.equal(gold, whole)), len(views))
    }


def test_users_own_samples_have_labels_or_scores(folders, tmp_path, inline):
    rows = [
        {"text": "a b c", "label": "Negative"},
        {"text": "d e", "label": "positive"},
        {"text": "f", "score": "high"},
    ]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = [("a", "b", 2.5), ("c", " ", 1), ("d", "e", 4)]
    pairs = [dict(zip(("text", "second", "score"), row, strict=True)) for row in pairs]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    tasks = {
        "mine": {"source": "samples", "path": str(tmp_path / "own.jsonl"), "output": "label"},
        "alike": {"source": "samples", "path": str(tmp_path / "pairs.jsonl"), "output": "score"},
    }
    config = run_of(folders, tmp_path / "root", tasks=tasks, methods=["random"])
    store = Store(config.root)
    store.create()
    validate(config)
    lines = prepare(config, store).lines
    assert any("2 samples + 1 rejected (1 the score is no number)" in line for line in lines)
    assert any("2 samples + 1 rejected (1 empty second text)" in line for line in lines)
    for stage in (attribute, evaluate, perturb):
        assert not stage(config, store).failures
    assert {row["label"] for row in views_of(config, store, "mine")[1]} == {"Negative", "positive"}
    assert all(curve["correct"] is not None for curve in curves_of(config, store, "mine")["random"])
    with pytest.raises(UserError, match=r"tasks\.sst2': what it asks for is known: leave out `output`"):
        run_of(folders, tmp_path, tasks={"sst2": {"source": "sst2", "path": "x", "output": "label"}})


def test_a_model_without_segments_is_explained_though_its_tokenizer_gives_token_types(closelook, tmp_path):
    folder = save(tmp_path / "distilbert", "distilbert")
    code, out, err = closelook("explain", "--model", str(folder), "--method", "lrp", "a b c")
    assert (code, err) == (0, "")
    assert "[CLS]" in out


def test_a_gold_label_of_own_samples_that_a_model_lacks_is_told_when_views_are_read(folders, tmp_path, inline):
    own = tmp_path / "own.jsonl"
    own.write_text('{"text": "a b", "label": "positive"}\n{"text": "c d", "label": "mixed"}\n')
    config = run_of(
        folders,
        tmp_path / "root",
        ["sentiment"],
        tasks={"own": {"source": "samples", "path": str(own), "output": "label"}},
    )
    store = Store(config.root)
    store.create()
    prepare(config, store)
    with pytest.raises(
        UserError, match="labelled 'mixed', and its labels are NEGATIVE, Positive: say as its `classes`"
    ):
        make_plan(config, store)
