import json
from dataclasses import replace
from pathlib import Path

import pytest

from closelook import terminal
from closelook.evaluation.schema import GENERIC, REJECT, VIEW
from closelook.jobs.commands.roots.audit import audit, export
from closelook.jobs.config import RunConfig
from closelook.jobs.stages import prepare as module
from closelook.jobs.stages.audit import audit_table
from closelook.jobs.stages.prepare import prepare
from closelook.jobs.store import Ledger, Store
from closelook.jobs.store.artifacts import samples_of, views_of
from closelook.lrp_core.records.types import UserError
from tests.external import SHARED
from tests.jobs.small import save_model

OLD_VIEW = VIEW.with_metadata({b"closelook.schema": b"view", b"closelook.version": b"1"})
LGD = "{n}\tthe keys {i} are old\tthe keys {i} ***mask*** old\tare\tis"


def config_of(tmp_path, task=None, **changes) -> RunConfig:
    settings = {
        "name": "small",
        "root": str(tmp_path / "root"),
        "tasks": {"sva": {"source": "demo", "limit": 30} | (task or {})},
        "models": [{"name": "gpt2", "id": "demo/gpt2"}, {"name": "bert", "id": "demo/bert"}],
        "methods": ["random"],
        "shard_rows": 8,
        "ray": {"no_progress_timeout_s": 120},
    }
    return RunConfig.model_validate(settings | changes)


def run(config):
    store = Store(config.root)
    return prepare(config, store), store


def contents(store):
    """Every file of the benchmark with its bytes."""
    paths = store.files("benchmark", recursive=True)
    return {path: store.read_bytes(path) for path in paths}


def squad(tmp_path, rows):
    """A file of `rows` questions over several paragraphs, in the published layout."""
    answers = ["Rollo", "Paris", "845", "Normans", "Seine"]
    context = "Rollo went to Paris in 845 with Normans on Seine"
    asked = [
        {"question": f"{i}?", "answers": [{"text": answers[i % 5], "answer_start": context.index(answers[i % 5])}]}
        for i in range(rows)
    ]
    file = tmp_path / "squad.json"
    file.write_text(json.dumps({"data": [{"title": "A", "paragraphs": [{"context": context, "qas": asked}]}]}))
    return file


def test_every_row_comes_out_or_is_rejected_for_every_tokenizer(tmp_path):
    summary, store = run(config_of(tmp_path))
    assert summary.complete
    assert store.read(samples_of("sva").folder, GENERIC).num_rows == 30
    views = [record for name, record in Ledger(store).records("views")]
    assert len(views) == 2
    for view in views:
        rows = store.read(views_of(view["tokenizer"], "sva").folder, VIEW).num_rows
        assert rows == view["rows"] == 30 - sum(view["rejects"].values())
    assert summary.lines[0] == "sva: 30 rows = 30 samples + 0 rejected"


def test_a_second_run_does_nothing(tmp_path):
    config = config_of(tmp_path)
    _, store = run(config)
    before = contents(store), dict(Ledger(store).records())
    summary, _ = run(config)
    assert (summary.computed, summary.skipped) == (0, 3)
    assert (contents(store), dict(Ledger(store).records())) == before


def test_another_root_gets_the_same_bytes(tmp_path):
    _, first = run(config_of(tmp_path))
    _, second = run(config_of(tmp_path, root=str(tmp_path / "other")))
    assert contents(first) == contents(second)


def test_an_interrupted_run_continues_with_what_is_missing(tmp_path, monkeypatch):
    config = config_of(tmp_path)
    _, store = run(config_of(tmp_path, root=str(tmp_path / "whole")))
    whole = contents(store)
    commit, made = module.PartWorker.commit, []

    def fail_third(worker, part):
        if part.number == 2 and not made:
            made.append(part)
            raise KeyboardInterrupt
        return commit(worker, part)

    monkeypatch.setattr(module.PartWorker, "commit", fail_third)
    with pytest.raises(KeyboardInterrupt):
        run(config)
    store = Store(config.root)
    half = contents(store)
    assert 0 < len(half) < len(whole)
    assert not list(Ledger(store).records())
    summary, _ = run(config)
    assert summary.complete
    assert contents(store) == whole


def test_a_file_in_another_order_leaves_no_sample_out_of_what_is_completed(tmp_path):
    rows = [{"text": f"The {word} ___ old.", "target": "are", "evidence": word} for word in "abcdefghijkl"]
    file = tmp_path / "mine.jsonl"
    config = config_of(tmp_path, tasks={"mine": {"source": "samples", "path": str(file)}}, shard_rows=4)
    file.write_text("\n".join(map(json.dumps, rows)))
    _, store = run(config)
    whole = contents(store)
    store.delete(store.files(samples_of("mine").folder)[0])
    file.write_text("\n".join(map(json.dumps, rows[::-1])))
    run(config)
    names = store.read(samples_of("mine").folder, GENERIC)["sample_id"].to_pylist()
    assert len(set(names)) == len(names) == len(rows)
    assert contents(store).keys() == whole.keys()


def test_views_of_an_older_version_are_not_used_and_made_again(tmp_path, closelook):
    config = config_of(tmp_path, models=[{"name": "gpt2", "id": "demo/gpt2"}])
    _, store = run(config)
    whole = contents(store)
    (tmp_path / "small.yaml").write_text(config.model_dump_json())
    [(_, record)] = Ledger(store).records("views")
    views = replace(views_of(record["tokenizer"], "sva"), key="0" * 64)
    for path in store.files(views.folder):
        table = store.read(path, VIEW)
        store.write_shard(path.replace(record["key"][:12], "0" * 12), table, OLD_VIEW)
        store.delete(path)
    shards = [path.rpartition("/")[2] for path in store.files(views.folder)]
    kept = {entry: record[entry] for entry in ("tokenizer", "rows", "rejects", "benchmark")}
    Ledger(store).commit(views, {**kept, "shards": shards})
    code, _, err = closelook("attribute", "--config", str(tmp_path / "small.yaml"))
    assert (code, err.strip()) == (1, "gpt2: sva is not prepared: run `closelook prepare`")
    assert run(config)[0].computed == 1
    assert contents(store) == whole


def test_another_limit_replaces_the_samples(tmp_path):
    run(config_of(tmp_path))
    _, store = run(config_of(tmp_path, task={"limit": 10}))
    assert store.read(samples_of("sva").folder, GENERIC).num_rows == 10
    assert all(
        store.read(views_of(record["tokenizer"], "sva").folder, VIEW).num_rows == 10
        for _, record in Ledger(store).records("views")
    )


def test_another_model_adds_its_views_and_leaves_the_rest(tmp_path):
    config = config_of(tmp_path, models=[{"name": "gpt2", "id": "demo/gpt2"}])
    _, store = run(config)
    before = contents(store)
    summary, _ = run(config_of(tmp_path))
    assert summary.computed == 1
    after = contents(store)
    assert {path: after[path] for path in before} == before
    assert len(after) == 3 * len(before) / 2


@pytest.mark.ray
def test_ray_and_the_driver_commit_the_same_bytes(tmp_path, monkeypatch, local_ray):
    file = squad(tmp_path, 40)
    tasks = {"sva": {"source": "demo", "limit": 20}, "qa": {"source": "squad", "path": str(file)}}
    if SHARED.is_dir():  # with what has a parser to load
        parser = SHARED / "models" / "en_ud_ewt_sm"
        tasks["ra"] = {"source": "blimp", "path": str(SHARED / "data" / "ra"), "limit": 20, "spacy": [str(parser)]}
    _, alone = run(config_of(tmp_path, tasks=tasks))
    monkeypatch.setattr(module, "DRIVER_ROWS", 0)
    summary, streamed = run(config_of(tmp_path, tasks=tasks, root=str(tmp_path / "ray")))
    assert summary.complete
    assert contents(streamed) == contents(alone)


def test_a_store_that_fills_up_fails_the_task_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    write = Store.write_shard

    def full(store, path, *rest, **options):
        if "task=qa" in path:
            raise OSError(28, "no space left")
        return write(store, path, *rest, **options)

    monkeypatch.setattr(Store, "write_shard", full)
    tasks = {"sva": {"source": "demo", "limit": 8}, "qa": {"source": "demo", "limit": 8}}
    summary, store = run(config_of(tmp_path, tasks=tasks))
    assert [failure.split(":")[0] for failure in summary.failures] == ["qa"]
    assert "no space left" in summary.failures[0]
    assert store.manifest("benchmark.sva") is not None
    assert store.manifest("benchmark.qa") is None


@pytest.mark.parametrize(("lossy", "rows"), [("_annotated", "sva: 8"), ("_read", "sva for ")])
def test_a_task_whose_rows_do_not_add_up_is_not_complete(lossy, rows, tmp_path, monkeypatch):
    whole = getattr(module.PartWorker, lossy)

    def losing(worker, *arguments):
        accepted, rejects = whole(worker, *arguments)
        return accepted[1:], rejects

    monkeypatch.setattr(module.PartWorker, lossy, losing)
    summary, store = run(config_of(tmp_path, task={"limit": 8}))
    assert summary.failures
    assert all(failure.startswith(rows) and "rows in, " in failure for failure in summary.failures)
    assert [name for name, _ in Ledger(store).records("views")] == []


BAD = [
    ({"source": "squad", "path": "nowhere"}, r"no \.json file at"),
    ({"source": "lgd", "path": "lgd.tsv", "sha256": "0" * 64, "spacy": "pipeline"}, ", not 000"),
    ({"source": "lgd", "path": "broken.tsv", "spacy": "pipeline"}, r"no usable row .* broken\.tsv:1: not five columns"),
    ({"source": "lgd", "path": "lgd.tsv", "spacy": "en_no_such"}, "python -m spacy download en_no_such"),
]


@pytest.mark.parametrize(("task", "message"), BAD)
def test_bad_input_stops_with_one_line_before_anything_is_written(tmp_path, monkeypatch, task, message):
    monkeypatch.chdir(tmp_path)
    Path("lgd.tsv").write_text(LGD.format(n=1, i=0))
    Path("broken.tsv").write_text("a\tb\nc\n")
    Path("pipeline").mkdir()
    Path("pipeline/meta.json").write_text('{"pipeline": ["parser"], "lang": "en", "name": "x", "version": "1"}')
    with pytest.raises(UserError, match=message) as error:
        run(config_of(tmp_path, task={"limit": None} | task))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "root").exists()


def test_a_changed_file_is_noticed_on_the_next_run(tmp_path):
    file = squad(tmp_path, 10)
    config = config_of(tmp_path, tasks={"qa": {"source": "squad", "path": str(file)}})
    run(config)
    squad(tmp_path, 20)
    summary, store = run(config)
    assert summary.computed == 3
    assert store.read(samples_of("qa").folder, GENERIC).num_rows == 20


def test_evidence_that_moved_is_noticed_though_the_text_is_the_same(tmp_path):
    file = tmp_path / "squad.json"
    config = config_of(tmp_path, tasks={"qa": {"source": "squad", "path": str(file)}})
    samples = []
    for start in (0, 10):
        asked = [("Who?", "Rollo", start), ("Where?", "Paris", 19)]
        questions = [{"question": q, "answers": [{"text": a, "answer_start": s}]} for q, a, s in asked]
        paragraph = {"context": "Rollo met Rollo in Paris", "qas": questions}
        file.write_text(json.dumps({"data": [{"title": "A", "paragraphs": [paragraph]}]}))
        _, store = run(config)
        samples.append(store.read(samples_of("qa").folder, GENERIC))
    assert samples[0]["sample_id"] == samples[1]["sample_id"]
    assert [table["evidence"][0].as_py() for table in samples] == [[[9, 14]], [[19, 24]]]


def test_a_file_is_counted_again_that_an_older_version_read(tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"text": "The keys ___", "target": "are", "evidence": "keys"}\n')
    config = config_of(tmp_path, tasks={"mine": {"source": "samples", "path": str(tmp_path / "mine.jsonl")}})
    _, store = run(config)
    [(name, record)] = Ledger(store).records("benchmark")
    older = record | {"key": "0" * 64, "survey": record["survey"] | {"drawn": 0, "rejected": 1}}
    del older["version"]
    store.write_manifest(name, older)
    assert run(config)[0].complete
    assert Ledger(store).latest(samples_of("mine"))["survey"] == record["survey"]


def test_a_bad_row_that_is_bad_for_another_reason_now_is_told_so(tmp_path):
    file = tmp_path / "mine.jsonl"
    config = config_of(tmp_path, tasks={"mine": {"source": "samples", "path": str(file)}})
    row = {"text": "The keys ___", "target": "are", "evidence": "keys"}
    for evidence, reason in (("kyes", "evidence is not in the text: kyes"), ("", "no evidence: give the words")):
        file.write_text("\n".join(map(json.dumps, (row, row | {"target": "is", "evidence": evidence}))))
        assert f"left out: mine.jsonl:2: {reason}" in "".join(run(config)[0].lines)


def test_source_rejects_are_kept_with_their_place(tmp_path):
    file = squad(tmp_path, 10)
    broken = json.loads(file.read_text())
    broken["data"][0]["paragraphs"][0]["qas"][3]["answers"][0]["answer_start"] += 1
    file.write_text(json.dumps(broken))
    summary, store = run(config_of(tmp_path, tasks={"qa": {"source": "squad", "path": str(file)}}))
    rejects = store.read("benchmark/generic/rejects/task=qa", REJECT).to_pylist()
    assert [row["where"] for row in rejects] == ["squad.json:data[0].paragraphs[0].qas[3]"]
    assert summary.lines[0].startswith("qa: 10 rows = 9 samples + 1 rejected (1 answer_start")


def test_masked_and_causal_models_cannot_share_a_tokenizer(tmp_path):
    models = [{"name": name, "id": str(save_model(tmp_path / name, name))} for name in ("gpt2", "bert")]
    with pytest.raises(UserError, match="share a tokenizer"):
        run(config_of(tmp_path, models=models))


def test_a_model_out_of_reach_costs_no_other_its_views(tmp_path):
    models = [{"name": "far", "id": "openai-community/gpt2"}, {"name": "bert", "id": "demo/bert"}]
    summary, store = run(config_of(tmp_path, models=models))
    assert summary.complete
    assert len(list(Ledger(store).records("views"))) == 1
    assert any(line.startswith("no views for far") for line in summary.lines)


def test_audit_adds_up_and_comes_as_json(tmp_path):
    config = config_of(tmp_path)
    _, store = run(config)
    audit(config, store, json_file=tmp_path / "audit.json")
    written = json.loads((tmp_path / "audit.json").read_text())
    assert written == audit_table(config, store, ["sva"])
    with pytest.raises(UserError, match="cannot write"):
        audit(config, store, json_file=tmp_path / "missing" / "audit.json")
    for figures in written["sva"].values():
        assert figures["rows_in"] == figures["accepted"] + sum(figures["rejects"].values())
        assert 0 < figures["evidence_share"] < 100


def test_audit_prints_the_same_sentences_every_time(tmp_path):
    config = config_of(tmp_path)
    _, store = run(config)
    shown = []
    for _ in range(2):
        with terminal.console.capture() as captured:
            audit(config, store, task="sva", n=4)
        shown.append(captured.get())
    assert shown[0] == shown[1]
    assert len(shown[0].splitlines()) == 4


def test_audit_of_what_is_not_there_is_an_error(tmp_path):
    config = config_of(tmp_path)
    with pytest.raises(UserError, match="closelook prepare"):
        audit(config, Store(config.root))
    with pytest.raises(UserError, match="no task 'svo'"):
        audit(config, Store(config.root), task="svo")
    with pytest.raises(UserError, match=r"add --task NAME, and how many \(--n NUMBER\)"):
        audit(config, Store(config.root), task="sva", part="ana")
    _, store = run(config)
    with pytest.raises(UserError, match="task sva has no part 'ana': it has no parts"):
        audit(config, store, task="sva", part="ana", n=2)


def test_the_export_loads_with_datasets(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    config = config_of(tmp_path)
    _, store = run(config)
    written = export(config, store, tmp_path / "out")
    assert written[-1].name == "README.md"
    loaded = datasets.load_dataset("parquet", data_files=str(tmp_path / "out" / "sva" / "*.parquet"), split="train")
    assert loaded.to_list() == store.read(samples_of("sva").folder, GENERIC).to_pylist()
    assert datasets.load_dataset(str(tmp_path / "out"), "sva", split="train").num_rows == 30
    with pytest.raises(UserError, match="not empty"):
        export(config, store, tmp_path / "out")


def test_real_data_give_the_shares_of_close_look(tmp_path, shared, monkeypatch):
    monkeypatch.setattr(module, "DRIVER_ROWS", 10**6)  # all of them: Ray commits the same bytes
    data, assets = shared / "data", shared / "models"
    parsed = {"spacy": [str(assets / "en_ud_ewt_sm")]}
    paradigms = str(data / "*" / "*_agreement*.jsonl")
    tasks = {
        "ra": {"source": "blimp", "path": str(data / "ra"), **parsed},
        "sva": {"source": "lgd", "path": str(data / "sva"), "limit": 700, **parsed},
        "qa": {"source": "squad", "path": str(data / "qa"), "limit": 100},
        "blimp5": {"source": "blimp5", "path": paradigms, "balance": True, **parsed},
    }
    models = [
        {"name": "bert", "id": "random/bert-base", "tokenizer": str(assets / "bert-wordpiece")},
        {"name": "gpt2", "id": "random/gpt2", "tokenizer": str(assets / "gpt2-bpe")},
    ]
    settings = {"name": "shares", "root": str(tmp_path / "root"), "tasks": tasks, "models": models}
    config = RunConfig.model_validate({**settings, "methods": ["random"]})
    store = Store(config.root)
    assert prepare(config, store).complete
    result = audit_table(config, store, list(config.tasks))
    share = {
        (task, tokenizer.split("-")[0]): figures["evidence_share"]
        for task, tokenizers in result.items()
        for tokenizer, figures in tokenizers.items()
    }
    assert 22 <= share["ra", "bert"] <= 24
    assert 35 <= share["ra", "gpt2"] <= 37
    assert 4.3 <= share["sva", "bert"] <= 5.5
    assert 13 <= share["sva", "gpt2"] <= 16.5
    assert result["sva"][next(iter(result["sva"]))]["agreement"] >= 90
    parts = next(iter(result["blimp5"].values()))["parts"]
    assert {name: part["rows_in"] for name, part in parts.items() if name != "rpsv"} == {
        "ana": 1000, "darn": 500, "dna": 500, "dnaa": 500,
    }  # fmt: skip
    assert all(0.8 * part["rows_in"] < part["samples"] < part["rows_in"] for part in parts.values())
    with terminal.console.capture() as shown:
        audit(config, store, task="blimp5", n=2)
    lines = shown.get().splitlines()
    assert len(lines) == 3 * len(parts)
    assert lines[::3] == [f"blimp5, {name}: 2 of {part['samples']}" for name, part in parts.items()]
    with terminal.console.capture() as shown:
        audit(config, store, task="blimp5", part="dna", n=2)
    assert shown.get().splitlines() == lines[6:9]
