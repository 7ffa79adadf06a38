"""`closelook.load`: a root is read as its manifests say."""

import pandas as pd
import pytest

import closelook
from closelook.jobs import results
from closelook.jobs.store import Store
from tests.synthetic import VARIANTS, Words, a_cell, relevance_rows, write_cell, write_run


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A scored store of made-up relevance that keeps its configuration."""
    monkeypatch.setattr(results, "load_tokenizer", lambda model: Words())
    write_run(tmp_path)
    return tmp_path


def test_relevance_of_a_root_stands_beside_its_tokens_and_texts(root):
    run = closelook.load(str(root))
    relevance = run.relevance(task="sva", method="attnlrp")
    assert len(relevance) == 8 * len(VARIANTS["attnlrp"])
    assert set(relevance["model"]) == {"gpt2"}
    for _, row in relevance.iterrows():
        assert len(row["relevance"]) == len(row["tokens"]) == len(row["evidence_mask"]) == len(row["input_ids"])
    texts = dict(zip(*(run.samples(task="sva")[name] for name in ("sample_id", "text")), strict=True))
    assert all(texts[row["sample_id"]] == row["text"] for _, row in relevance.iterrows())
    assert run.tokenizers == {"gpt2": "words-0000"}


def test_scores_of_a_root_are_those_of_its_files(root):
    scores = closelook.load(str(root)).scores(task="sva")
    store = Store(str(root))
    assert set(scores["method"]) == set(VARIANTS)
    kept = sum(len(pd.read_parquet(f"{root}/{path}")) for path in store.files("scores") if ".sva." in path)
    assert len(scores) == kept
    samples = closelook.load(str(root)).scores_of_samples(task="sva", method="random")
    assert set(samples["sample_id"]) <= {f"sva{at:05d}" for at in range(8)}


def test_what_no_manifest_vouches_for_is_not_read_and_the_latest_counts(root):
    store = Store(str(root))
    cell = a_cell("sva", "random", key="fedcba9876543210")
    views = closelook.load(str(root)).views("arrow", task="sva").to_pylist()
    before = closelook.load(str(root)).relevance(task="sva", method="random", tokens=False)
    write_cell(store, cell, relevance_rows(views, "random", seed=9))
    record = store.manifest(cell.name)
    store.delete(f"manifest/{cell.name}.json")
    again = closelook.load(str(root)).relevance(task="sva", method="random", tokens=False)
    assert again["relevance"].map(list).tolist() == before["relevance"].map(list).tolist()
    newer = {"inputs": {"tokenizer": "words-0000"}, "written": "2025-02-01T00:00:00Z"}
    store.write_manifest(cell.name, record | newer)
    latest = closelook.load(str(root)).relevance(task="sva", method="random", tokens=False)
    assert len(latest) == len(before)
    assert latest["relevance"].map(list).tolist() != before["relevance"].map(list).tolist()


def test_relevance_of_models_in_two_precisions_is_read_together(root):
    store, run = Store(str(root)), closelook.load(str(root))
    views, before = run.views("arrow", task="sva").to_pylist(), run.relevance(task="sva", method="random", tokens=False)
    cell = a_cell("sva", "random", dtype="float64", key="fedcba9876543210")
    write_cell(store, cell, relevance_rows(views, "random"))
    fields = {"inputs": {"tokenizer": "words-0000"}, "written": "2025-02-01T00:00:00Z"}
    store.write_manifest(cell.name, store.manifest(cell.name) | fields)
    both = closelook.load(str(root)).relevance(task="sva", method="random", tokens=False)
    assert both["dtype"].value_counts().to_dict() == {"float32": len(before), "float64": len(before)}
    assert {len(row) for row in both["relevance"]} == {len(row) for row in before["relevance"]}


def test_tables_come_as_arrow_and_as_a_data_set(root):
    run = closelook.load(str(root))
    frame, arrow, data = (run.scores(form) for form in ("pandas", "arrow", "datasets"))
    assert len(frame) == arrow.num_rows == len(data)
    assert list(frame.columns) == arrow.column_names == data.column_names


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda run: run.relevance(method="attnlpr"),
            "holds no relevance of method 'attnlpr' (did you mean 'attnlrp'?)",
        ),
        (lambda run: run.relevance(metod="attnlrp"), "picked by model, task, dtype, method, tokenizer, not by 'metod'"),
        (lambda run: run.views(model="gpt3"), "did you mean 'gpt2'?"),
        (lambda run: run.curves(), "holds no complete curves"),
        (lambda run: run.curves(model="gpt2"), "holds no complete curves"),
        (lambda run: run.scores("panda"), "no form 'panda' (did you mean 'pandas'?)"),
    ],
)
def test_what_a_root_does_not_hold_is_one_line(root, ask, message):
    with pytest.raises(closelook.UserError) as caught:
        ask(closelook.load(str(root)))
    assert message in str(caught.value)


def test_an_empty_root_says_how_to_fill_it(tmp_path):
    with pytest.raises(closelook.UserError, match="closelook run --root"):
        closelook.load(str(tmp_path))
