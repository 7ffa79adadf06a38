"""Ablations of answers and the sources that methods name, from a file of samples to the tables, against slow loops."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from closelook.evaluation.ablations.masks import masks_of
from closelook.evaluation.schema import ABLATIONS, RELEVANCE, SOURCES
from closelook.jobs.methods import METHODS
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Run
from closelook.jobs.products.answers import ablations as product
from closelook.jobs.products.answers import sources
from closelook.jobs.stages.report import write_report
from closelook.jobs.stages.report.answers import answer_entries
from closelook.jobs.store import Ledger
from tests.jobs.answering import answering_model, computed, log_rows, run_of
from tests.oracles import sources as oracles

ROWS = log_rows()


@pytest.fixture(scope="module", params=["llama", "t5"])
def done(request, tmp_path_factory):
    """(config, store) of a run whose sources are computed in two ways."""
    folder = tmp_path_factory.mktemp("sources")
    model = answering_model(folder / request.param, request.param)
    config = run_of(
        folder, model, ROWS, ablations={"fit": 40, "judge": 20, "shapley": 30, "ways": ["remove", "cut"], "shown": 2}
    )
    return config, computed(config)


def nodes_of(config, store, of=product):
    return list(of.nodes(Run(config, make_plan(config, store), Ledger(store))))


def rows_of(config, store):
    """View rows by sample."""
    [inputs] = make_plan(config, store).models[0].inputs.values()
    rows = inputs.select(range(len(inputs.table))).rows(store)
    return {row["sample_id"]: row for row in rows}


def ablated(config, store, way):
    [node] = [node for node in nodes_of(config, store) if node.artifact.method == way]
    return {row["sample_id"]: row for row in Ledger(store).read(node.artifact, ABLATIONS).to_pylist()}


def entries_of(config, store, method):
    [node] = [node for node in nodes_of(config, store, sources) if node.artifact.method == method]
    return Ledger(store).read(node.artifact, SOURCES).to_pylist()


def plain(config, prompt, answer, gone=None):
    """f and l [G] of an answer by a forward of the stock model; of tokens that are `gone` it attends to no key."""
    path = config.models[0].id
    kind = AutoModelForSeq2SeqLM if path.endswith("t5") else AutoModelForCausalLM
    model = kind.from_pretrained(path, attn_implementation="eager").eval()
    seen = (
        torch.ones(1, len(prompt), dtype=torch.int64) if gone is None else torch.tensor([(~gone).astype(int).tolist()])
    )
    with torch.no_grad():
        if kind is AutoModelForSeq2SeqLM:
            read = torch.tensor([[0, *answer[:-1]]])
            logits = model(torch.tensor([prompt]), attention_mask=seen, decoder_input_ids=read).logits[0]
        else:
            mask = torch.nn.functional.pad(seen, (0, len(answer) - 1), value=1)
            places = torch.arange(mask.shape[1])[None]
            ids = torch.tensor([[*prompt, *answer[:-1]]])
            logits = model(ids, attention_mask=mask, position_ids=places).logits[0, len(prompt) - 1 :]
    f, odds = [], []
    for row, token in zip(logits.double(), answer, strict=True):
        f.append(float(row[token]))
        odds.append(float(row[token] - torch.cat([row[:token], row[token + 1 :]]).logsumexp(0)))
    return np.array(f), np.array(odds)


def prompt_of(config, row):
    """(token ids of the prompt, its units)."""
    length = len(row["input_ids"]) - (0 if config.models[0].id.endswith("t5") else len(row["answer_ids"]) - 1)
    return row["input_ids"][:length], np.array(row["units"][:length])


@pytest.mark.parametrize("way", ["remove", "cut"])
def test_the_answer_after_every_mask_is_that_of_a_plain_forward(done, way):
    config, store = done
    rows, records = rows_of(config, store), ablated(config, store, way)
    for sample, record in list(records.items())[:2]:
        row = rows[sample]
        ids, units = prompt_of(config, row)
        for at in (record["full"], *record["without"][:2], *record["fit"][:4], *record["judge"][:4]):
            kept = np.array(record["kept"][at])
            gone = np.isin(units, np.flatnonzero(~kept))
            if way == "remove":
                expected = plain(
                    config, [token for token, lost in zip(ids, gone, strict=True) if not lost], row["answer_ids"]
                )
            else:
                expected = plain(config, ids, row["answer_ids"], gone)
            np.testing.assert_allclose(record["logits"][at], expected[0], atol=2e-5)
            np.testing.assert_allclose(record["log_odds"][at], expected[1], atol=2e-5)


def test_masks_are_the_samples_own_and_the_same_in_every_way(done):
    config, store = done
    removed, cut = ablated(config, store, "remove"), ablated(config, store, "cut")
    for sample, record in removed.items():
        masks = masks_of(sample, len(record["without"]), 0, product.Sizes(40, 20, 30))
        np.testing.assert_array_equal(record["kept"], masks.kept)
        assert record["kept"] == cut[sample]["kept"]


def relevance_of(config, store, method, sample, explanation):
    """Relevance of a sample's tokens."""
    [cell] = [cell for cell in make_plan(config, store).cells() if cell.artifact.method == method]
    rows = Ledger(store).read(cell.artifact, RELEVANCE).to_pylist()
    [row] = [
        r for r in rows if (r["sample_id"], r["explanation"]) == (sample, explanation) and r["embedding"] != "full"
    ]
    return np.array(row["relevance"])


@pytest.mark.parametrize("explanation", ["target", "log_prob"])
def test_relevance_of_units_and_its_numbers_are_those_of_slow_loops(done, explanation):
    config, store = done
    records = {way: ablated(config, store, way) for way in ("remove", "cut")}
    rows = rows_of(config, store)
    for entry in entries_of(config, store, "lrp"):
        if entry["screened"] or entry["explanation"] != explanation:
            continue
        sample = entry["sample_id"]
        record, units = records[entry["way"]][sample], np.array(rows[sample]["units"])
        tokens = relevance_of(config, store, "lrp", sample, explanation)
        expected = [sum(tokens[units == unit]) for unit in range(len(record["without"]))]
        np.testing.assert_allclose(entry["relevance"], expected, rtol=1e-6, atol=1e-9)
        log_prob = np.array([oracles.log_probability(odds) for odds in record["log_odds"]])
        logits = np.array(record["logits"]).sum(axis=1)
        folds = [record["judge"], record["fit"]] if record["swapped"] else [record["judge"]]
        for name, worth in (("l", log_prob), ("f", logits)):
            kept = [np.array(record["kept"])[fold] for fold in folds]
            scores = [oracles.lds(expected, masks, worth[fold]) for masks, fold in zip(kept, folds, strict=True)]
            assert entry[f"lds_{name}"] == pytest.approx(np.mean(scores), abs=0.02), "but for equal ranks by rounding"
            full = worth[record["full"]]
            lost = [
                oracles.infidelity(expected, masks, worth[fold], full) for masks, fold in zip(kept, folds, strict=True)
            ]
            assert entry[f"infidelity_{name}"] == pytest.approx(np.mean(lost), abs=1e-6)
        best = int(np.argmax(expected))
        assert entry["drop_l"][0] == pytest.approx(
            log_prob[record["full"]] - log_prob[record["without"][best]], abs=1e-9
        )
        assert entry["pg"] == float(best == 0), "the first passage is evidence"


def test_drops_are_those_of_prompts_without_the_units_of_highest_relevance(done):
    config, store = done
    rows = rows_of(config, store)
    entry = next(entry for entry in entries_of(config, store, "contextcite") if len(entry["drop_l"]) == 3)
    row = rows[entry["sample_id"]]
    ids, units = prompt_of(config, row)
    order = np.argsort(-np.array(entry["relevance"]), kind="stable")
    values = np.array(entry["relevance"])[order]
    full = oracles.log_probability(plain(config, ids, row["answer_ids"])[1])
    for count, drop in zip((1, 3, 5), entry["drop_l"], strict=True):
        if count < len(values) and values[count - 1] == values[count]:
            continue  # of equal ones it is not known which go
        left = [token for token, unit in zip(ids, units, strict=True) if unit not in order[:count]]
        without = oracles.log_probability(plain(config, left, row["answer_ids"])[1])
        assert drop == pytest.approx(full - without, abs=1e-4)


def test_methods_made_of_ablations_speak_of_y_and_leave_one_out_has_the_largest_drop_of_one_unit(done):
    config, store = done
    records = ablated(config, store, "remove")
    every = {method: entries_of(config, store, method) for method in ("leave_one_out", "lrp", "contextcite", "random")}
    for entry in every["leave_one_out"]:
        if entry["way"] != "remove":
            continue
        record = records[entry["sample_id"]]
        odds = [oracles.answer_odds(values) for values in record["log_odds"]]
        expected = [odds[record["full"]] - odds[at] for at in record["without"]]
        np.testing.assert_allclose(entry["relevance"], expected, atol=1e-9)
        others = [
            e
            for entries in every.values()
            for e in entries
            if (e["sample_id"], e["way"]) == (entry["sample_id"], "remove")
        ]
        assert entry["drop_y"][0] >= max(other["drop_y"][0] for other in others if other["drop_y"]) - 1e-9


def test_smaller_budgets_of_contextcite_are_held_to_the_same_judging_masks(done):
    config, store = done
    entries = [entry for entry in entries_of(config, store, "contextcite") if entry["way"] == "remove"]
    of_many = [entry for entry in entries if len(entry["relevance"]) > 8]
    assert {entry["ablated"] for entry in of_many} == {32, 40}
    assert all((entry["drop_l"] == []) == (entry["ablated"] == 32) for entry in of_many)


def test_random_relevance_has_the_numbers_that_are_expected_of_it(done):
    config, store = done
    records = ablated(config, store, "remove")
    for entry in entries_of(config, store, "random"):
        units = len(entry["relevance"])
        assert entry["lds_l"] in (0.0, None)
        assert entry["pg"] == pytest.approx(1 / units)
        if entry["way"] == "remove":
            record = records[entry["sample_id"]]
            log_prob = np.array([oracles.log_probability(odds) for odds in record["log_odds"]])
            expected = log_prob[record["full"]] - log_prob[record["without"]].mean()
            assert entry["drop_l"][0] == pytest.approx(expected, abs=1e-9)


def test_screened_leave_one_out_knows_the_units_that_the_method_finds_most_relevant(done):
    config, store = done
    exact = {
        entry["sample_id"]: entry for entry in entries_of(config, store, "leave_one_out") if entry["way"] == "remove"
    }
    entries = [e for e in entries_of(config, store, "lrp") if e["way"] == "remove" and e["explanation"] == "log_prob"]
    whole = {entry["sample_id"]: np.array(entry["relevance"]) for entry in entries if not entry["screened"]}
    for entry in entries:
        if entry["screened"]:
            count, drops = entry["ablated"] - 1, np.array(exact[entry["sample_id"]]["relevance"])
            top = np.argsort(-whole[entry["sample_id"]])[:count]
            expected = np.where(np.isin(np.arange(len(drops)), top), drops, 0.0)
            np.testing.assert_allclose(entry["relevance"], expected)


def test_the_report_shows_every_answer_sentence_by_sentence_and_judges_every_method(done):
    config, store = done
    summary = write_report(config, make_plan(config, store), store)
    assert summary.failures == ()
    page = store.read_bytes("report/sources.html").decode()
    assert len(page) < 1e6
    for text in ("Kernel SHAP (units=true) of log p", "Attention", "Screened: the 1, 2,", ">evidence<"):
        assert text in page
    entries = list(answer_entries(Run(config, make_plan(config, store), Ledger(store)), METHODS))
    assert [entry["way"] for entry in entries].count("cut") == 2, "`ablations.shown` answers of each way"
    records = {(entry["sample_id"], entry["way"]): entry for entry in entries}
    for (sample, way), entry in records.items():
        row = rows_of(config, store)[sample]
        sentences = [entry["answer"][start:end] for start, end in entry["sentences"]]
        assert len(sentences) == 2
        assert f" {' '.join(sentences)}" == entry["answer"]
        assert entry["evidence"] == row["unit_evidence"]
        by_label = {method["label"]: method for method in entry["rows"]}
        claims = [
            claim for claim in entries_of(config, store, "lrp") if (claim["sample_id"], claim["way"]) == (sample, way)
        ]
        [claim] = [claim for claim in claims if claim["explanation"] == "target" and not claim["screened"]]
        np.testing.assert_allclose(by_label["LRP of logits"]["whole"], claim["relevance"], rtol=1e-3)
        parts = np.array(by_label["LRP of logits"]["parts"])
        np.testing.assert_allclose(parts.sum(axis=0), claim["relevance"], atol=1e-3 * np.abs(parts).max())
        first, second = (entry["rows"][number] for number in entry["pair"])
        assert (first["label"], second["label"]) == ("LRP of log p", "ContextCite")


def test_a_sample_of_two_sources_is_a_reject_of_the_methods_that_cannot_be_fitted_to_it(tmp_path):
    model = answering_model(tmp_path / "llama", "llama")
    rows = [{**row, "sources": row["sources"][:2]} if at == 1 else row for at, row in enumerate(ROWS[:2])]
    methods = ["contextcite", "leave_one_out"]
    config = run_of(tmp_path, model, rows, methods=methods, ablations={"fit": 4, "judge": 4, "shapley": 0})
    store = computed(config)
    counts = {}
    for node in nodes_of(config, store, sources):
        record = Ledger(store).record(node.artifact)
        counts[node.artifact.method] = (record["state"], record["explained"], record["rejects"])
    single, both = ("complete", 1, {"no_ablations": 1}), ("complete", 2, {})
    assert counts == {"leave_one_out": both, "contextcite": single}
