"""Labelled texts of users' own, and labels, tasks and models that do not fit each other."""

import json

import numpy as np
import pytest

import closelook
from closelook.evaluation.schema import GENERIC, SCORES
from closelook.evaluation.scoring.metrics import METRICS
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan, validate
from closelook.jobs.stages.prepare import prepare
from closelook.jobs.store import Store
from closelook.lrp_core.records.types import UserError
from tests.jobs.labelled import SST2, curves_of, run_of, save, views_of, write_folders
from tests.jobs.small import relevance_of
from tests.stages import attribute, evaluate, perturb


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return write_folders(tmp_path_factory.mktemp("labels"))


def own_file(path, task, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"mine": {"source": "samples", "path": str(path), "output": "label", **task}}


@pytest.mark.parametrize(
    ("models", "changes", "message"),
    [
        (("score",), {}, "task sst2 asks for labels, which no model of the run predicts"),
        (("sentiment", "score"), {"explanations": ["contrastive"]}, "stsb': the task has no foils to contrast with"),
    ],
)
def test_what_does_not_fit_is_an_error_in_one_line(folders, tmp_path, models, changes, message):
    with pytest.raises(UserError, match=message):
        validate(run_of(folders, tmp_path, models, **changes))


def test_a_model_that_is_given_a_task_it_does_not_answer_is_an_error(folders, tmp_path):
    config = run_of(folders, tmp_path)

    def config_with(name, task, **model):
        settings = {"name": name, "id": str(folders / name), "tasks": [task], **model}
        return run_of(folders, tmp_path, [settings], tasks={task: config.tasks[task].model_dump()})

    with pytest.raises(UserError, match="model score predicts a score, and task sst2 asks for labels"):
        validate(config_with("score", "sst2"))
    with pytest.raises(UserError, match="model sentiment predicts labels, and task stsb asks for a score"):
        validate(config_with("sentiment", "stsb"))
    words = "the labels of task sst2 (negative, positive) are not those of model sentiment (good, bad): set"
    with pytest.raises(UserError) as error:
        validate(config_with("sentiment", "sst2", classes=["good", "bad"]))
    assert str(error.value).startswith(words)
    with pytest.raises(UserError, match="`classes` names 3 labels, and the model has 2: NEGATIVE, Positive"):
        validate(config_with("sentiment", "sst2", classes=["negative", "neutral", "positive"]))
    validate(config_with("sentiment", "sst2", classes=["positive", "negative"]))


def test_pairs_need_a_tokenizer_that_separates_them(folders, tmp_path):
    save(tmp_path / "joined", "gpt2", labels=("score",), separator=False)
    config = run_of(folders, tmp_path / "root")
    joined = {"name": "joined", "id": str(tmp_path / "joined")}
    tasks = {"stsb": config.tasks["stsb"].model_dump()}
    config = run_of(folders, tmp_path / "root", [joined], tasks=tasks)
    store = Store(config.root)
    store.create()
    with pytest.raises(UserError, match="task stsb has pairs of texts, and the tokenizer of model joined puts nothing"):
        prepare(config, store)
    assert not store.files("benchmark")


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
    unsaid = run_of(
        folders, tmp_path / "unsaid", ["sentiment"], tasks=own_file(tmp_path / "mine.jsonl", {"evidence": None}, *rows)
    )
    Store(unsaid.root).create()
    lines = prepare(unsaid, Store(unsaid.root)).lines
    assert "mine: 5 rows = 1 samples + 4 rejected (4 evidence)" in lines
    advice = "left out: mine.jsonl:1: evidence: set `evidence: true` for the task to score it, or false to ignore it"
    assert any(line.strip() == advice for line in lines)
    with pytest.raises(UserError, match="leave out `evidence`: it is for samples of your own"):
        run_of(folders, tmp_path / "other", ["sentiment"], tasks={"sst2": {"source": "sst2", "evidence": True}})


def test_own_pairs_are_rejects_where_nothing_separates_them(folders, tmp_path, inline):
    rows = [{"text": "a b", "second": "c", "label": "positive"}, {"text": "a b d", "label": "negative"}]
    tasks = own_file(tmp_path / "pairs.jsonl", {}, *rows)
    config = run_of(folders, tmp_path / "root", ["causal"], tasks=tasks)
    Store(config.root).create()
    [line] = [line for line in prepare(config, Store(config.root)).lines if "views" in line]
    assert line.endswith("2 samples = 1 views + 1 rejected (1 the tokenizer puts nothing between two texts)")


def test_texts_that_are_too_long_are_rejected_or_cut_and_counted(folders, tmp_path, inline):
    lines = [" ".join("abcdefgh"[i % 8] for i in range(length)) for length in (40, 31, 30, 4)]
    (tmp_path / "long.tsv").write_text("sentence\tlabel\n" + "".join(f"{line}\t0\n" for line in lines))
    task = {"source": "sst2", "path": str(tmp_path / "long.tsv")}
    for truncate, counts in (
        (False, "2 views + 2 rejected (2 too long)"),
        (True, "4 views (2 cut to fit) + 0 rejected"),
    ):
        tasks = {"sst2": {**task, "truncate": truncate}}
        config = run_of(folders, tmp_path / str(truncate), ["sentiment"], tasks=tasks)
        store = Store(config.root)
        store.create()
        assert any(f"4 samples = {counts}" in line for line in prepare(config, store).lines)
        _, views = views_of(config, store, "sst2")
        assert sorted(view["length"] for view in views)[-1] == 32
        assert all(view["input_ids"][-1] == 3 for view in views), "the separator stays"


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
    with pytest.raises(UserError, match=r"tasks\.sst2': the output of this task is fixed: leave out `output`"):
        run_of(folders, tmp_path, tasks={"sst2": {"source": "sst2", "path": "x", "output": "label"}})


def test_a_model_without_segments_is_explained_though_its_tokenizer_gives_token_types(closelook, tmp_path):
    folder = save(tmp_path / "distilbert", "distilbert")
    code, out, err = closelook("explain", "--model", str(folder), "--method", "lrp", "a b c")
    assert (code, err) == (0, "")
    assert "[CLS]" in out


def test_a_gold_label_of_own_samples_that_a_model_lacks_is_told_when_views_are_read(folders, tmp_path, inline):
    file = tmp_path / "own.jsonl"
    file.write_text('{"text": "a b", "label": "positive"}\n{"text": "c d", "label": "mixed"}\n')
    tasks = {"own": {"source": "samples", "path": str(file), "output": "label"}}
    config = run_of(folders, tmp_path / "root", ["sentiment"], tasks=tasks)
    other = {"name": "other", "id": str(folders / "sentiment"), "classes": ["mixed", "positive"]}
    store = Store(config.root)
    store.create()
    prepare(run_of(folders, tmp_path / "root", [other], tasks=tasks), store)
    with pytest.raises(UserError, match="labelled 'mixed', and its labels are NEGATIVE, Positive: set its `classes`"):
        make_plan(config, store)


def test_texts_without_labels_are_explained_for_the_models_own_decision_in_every_stage(folders, tmp_path, inline):
    content = "case;review;stars\nA;a b c;\nB;d e;1\nC;f g;negative\nD;a b c;\nE;k l m;\n"
    (tmp_path / "own.csv").write_text(content)
    columns = {"text": "review", "id": "case", "label": "stars"}
    task = {"source": "samples", "path": str(tmp_path / "own.csv"), "output": "label", "columns": columns}
    config = run_of(folders, tmp_path / "root", ["sentiment"], tasks={"mine": task})
    store = Store(config.root)
    store.create()
    validate(config)
    accounts = "mine: 5 rows = 4 samples (2 without a label or score) + 0 rejected + 1 of the same content"
    assert accounts in prepare(config, store).lines
    for stage in (attribute, evaluate, perturb):
        assert stage(config, store).complete
    [table] = {tuple(sorted(table["sample_id"].to_pylist())) for table in relevance_of(config, store).values()}
    assert len(table) == 4
    model, views = views_of(config, store, "mine")
    assert sorted(filter(None, (view["label"] for view in views))) == ["1", "negative"]
    for rows in curves_of(config, store, "mine").values():
        first = [row["correct"][0] for row in rows if row["sample_id"] in unlabelled(views)]
        assert all(first), "before anything goes, the model says what it says"
    [again] = [line for line in prepare(config, store).lines if line.startswith("mine: ")]
    assert again == accounts
    samples = store.read(store.files("benchmark/generic", recursive=True), GENERIC).to_pylist()
    named = {row["text"]: json.loads(row["meta"]) for row in samples}
    assert named["a b c"] == {"columns": {"id": "A"}, "repeated": [{"id": "D"}]}
    frame = closelook.load(config.root).relevance(tokens=False, method="random")
    rows_of_file = [tuple(line.split(";")[:2]) for line in content.splitlines()[1:]]
    assert sorted(zip(frame["id"], frame["text"], strict=True)) == rows_of_file
    gold = {view["label"]: model.resolved.label_id(view["label"]) for view in views if view["label"]}
    assert gold == {"1": 1, "negative": 0}


def unlabelled(views):
    return {view["sample_id"] for view in views if view["label"] is None}


def test_a_label_by_its_number_is_refused_where_models_number_labels_in_two_ways(folders, tmp_path, inline):
    tasks = own_file(tmp_path / "mine.jsonl", {}, {"text": "a b", "label": 1}, {"text": "c", "label": "positive"})
    other = {"name": "other", "id": str(folders / "sentiment"), "classes": ["positive", "negative"]}
    config = run_of(folders, tmp_path / "root", ["sentiment", other], tasks=tasks)
    store = Store(config.root)
    store.create()
    lines = prepare(config, store).lines
    assert "mine: 2 rows = 1 samples + 1 rejected (1 a label by its number)" in lines


def test_words_without_evidence_have_curves_and_no_scores_against_evidence(tmp_path, inline):
    rows = [{"text": f"The {noun} ___ old.", "target": "are", "foil": "is"} for noun in ("keys", "teachers", "cats")]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "name": "words",
        "root": str(tmp_path / "root"),
        "tasks": {"mine": {"source": "samples", "path": str(tmp_path / "mine.jsonl"), "evidence": False}},
        "models": [{"name": "gpt2", "id": "demo/gpt2"}, {"name": "bert", "id": "demo/bert"}],
        "methods": ["lrp", "random"],
        "perturb": {},
    }
    config = RunConfig.load(settings)
    store = Store(config.root)
    store.create()
    validate(config)
    assert prepare(config, store).complete
    for stage in (attribute, evaluate, perturb):
        assert stage(config, store).complete
    scores = store.read(store.files("scores"), SCORES).to_pylist()
    scored = {row["metric"] for row in scores if row["n"]}
    assert "accuracy" in scored
    assert not any(METRICS[name].needs_evidence for name in scored - {"accuracy", "peak"})
    assert len(curves_of(config, store, "mine")["lrp"]) > 0
    with pytest.raises(UserError, match="leave out `columns`: it is for samples of your own"):
        RunConfig.load(settings | {"tasks": {"sva": {"source": "demo", "columns": {"text": "x"}}}})
    with pytest.raises(UserError, match=r"`columns` has the key .txt"):
        RunConfig.load(settings | {"tasks": {"mine": {**settings["tasks"]["mine"], "columns": {"txt": "x"}}}})
