"""Five paradigms of BLiMP: the slot inside the sentence, evidence on either side of it, balanced draws."""

import json
from collections import Counter
from dataclasses import replace

import datasets
import pyarrow as pa
import pytest

from closelook.evaluation.benchmark import audit, reading
from closelook.evaluation.benchmark.annotate import Annotator
from closelook.evaluation.benchmark.reading import Origin
from closelook.evaluation.benchmark.samples import is_reject, meta_of, sample, with_evidence
from closelook.evaluation.benchmark.sources.agreement import PARADIGMS, parse_inside, written_out
from closelook.evaluation.benchmark.views import tokenise
from closelook.evaluation.schema import GENERIC, VIEW
from closelook.lrp_core.records import kinds
from closelook.lrp_core.records.types import UserError
from tests.evaluation.benchmark.conftest import KINDS, MASKED, kind_of

SENTENCES = {
    "anaphor_number_agreement": ("Many girls admired {}.", "themselves", "herself", "Many girls admired ."),
    "determiner_noun_agreement_2": ("Tom sees {} keys.", "these", "this", "Tom sees  keys."),
    "determiner_noun_agreement_with_adj_2": ("Tom sees {} old keys.", "these", "this", "Tom sees  old keys."),
    "distractor_agreement_relational_noun": (
        "A niece of most men {}n't left.", "has", "have", "A niece of most men  not left."
    ),
    "regular_plural_subject_verb_agreement_1": ("Tom {}.", "waits", "wait", "Tom ."),
}  # fmt: skip
DETERMINER = with_evidence(
    sample("t", "Tom sees  old keys.", 9, "the", "old", meta={"paradigm": "dnaa", "evidence": "noun"}), [(14, 18)]
)


def record(uid, sentence=None, good=None, bad=None):
    pair = SENTENCES[uid]
    sentence, good, bad = sentence or pair[0], good or pair[1], bad or pair[2]
    return {"UID": uid, "sentence_good": sentence.format(good), "sentence_bad": sentence.format(bad)}


def balanced(tmp_path, singular, plural, **options):
    """The generic rows and the survey of so many sentences of rpsv, and two of other paradigms."""
    uid = "regular_plural_subject_verb_agreement_1"
    rows = [record(uid, f"Tom {i} {{}}.", "waits", "wait") for i in range(singular)]
    rows += [record(uid, f"Men {i} {{}}.", "wait", "waits") for i in range(plural)]
    rows += [record(uid) for uid in list(PARADIGMS)[:2]]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, options.pop("order", list)(rows))))
    survey = reading.survey(Origin("blimp5", "blimp5", str(tmp_path / "data.jsonl"), balance=True, **options))
    return list(reading.read(survey)), survey


@pytest.mark.parametrize("uid", PARADIGMS)
def test_the_slot_is_inside_the_sentence_and_what_follows_is_kept(uid):
    row = parse_inside(record(uid))
    _, good, bad, text = SENTENCES[uid]
    assert (row["text"], row["target"], row["foil"]) == (text, good, bad)
    before = SENTENCES[uid][0].split("{}")[0]
    assert row["text"][: row["slot"]] == before
    assert meta_of(row) == dict(zip(("paradigm", "evidence"), PARADIGMS[uid], strict=True))


@pytest.mark.parametrize(
    ("short", "full"),
    [("hasn't", "has not"), ("can't", "cannot"), ("Won't", "Will not"), ("couldn't.", "could not."), ("ant", "ant")],
)
def test_negative_contractions_are_written_out(short, full):
    assert written_out(f"He {short}") == f"He {full}"


def test_another_paradigm_is_a_reject_with_its_name(tmp_path):
    other = record("determiner_noun_agreement_2") | {"UID": "wh_island"}
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(r) for r in (record("anaphor_number_agreement"), other)))
    rows = list(reading.read(reading.survey(Origin("blimp5", "blimp5", str(tmp_path)))))
    assert [(r["reason"], r["detail"]) for r in rows if is_reject(r)] == [
        ("not one of the five paradigms", "wh_island")
    ]


@pytest.mark.parametrize(("singular", "plural"), [(40, 15), (10, 30)])
def test_a_balanced_draw_has_as_many_singulars_as_plurals_and_every_row_is_accounted_for(tmp_path, singular, plural):
    rows, survey = balanced(tmp_path, singular, plural)
    accepted, rejects = [r for r in rows if not is_reject(r)], [r for r in rows if is_reject(r)]
    assert Counter(r["target"] for r in accepted) == {"waits": plural, "wait": plural, "themselves": 1, "these": 1}
    assert {r["reason"] for r in rejects} <= {"not drawn to balance singular and plural"}
    assert len({r["sample_id"] for r in rows}) == len(rows) == survey.read == survey.drawn + survey.rejected
    distinct = {r["text"] for r in accepted if r["target"] == "waits"}
    assert len(distinct) + len(rejects) == singular
    copies = [r for r in accepted if "copy" in meta_of(r)]
    assert len(copies) == plural - len(distinct)
    assert len(copies) > 0  # with replacement


def test_a_balanced_draw_is_decided_by_ids_and_seed_alone(tmp_path):
    _, first = balanced(tmp_path, 20, 20)
    assert balanced(tmp_path, 20, 20, order=lambda rows: rows[::-1])[1].digest == first.digest
    assert balanced(tmp_path, 20, 20, seed=1)[1].digest != first.digest


def test_a_survey_counts_the_rows_of_each_part(tmp_path):
    _, result = balanced(tmp_path, 10, 30)
    again = reading.survey(result.origin, "paradigm")
    assert again.parts == {"ana": 1, "dna": 1, "rpsv": 60}
    assert replace(again, parts={}) == result


@pytest.mark.parametrize("source", ["blimp", "demo"])
def test_a_source_with_nothing_to_balance_says_so(source):
    with pytest.raises(UserError, match=rf"tasks.ra.balance: the {source} source has nothing to balance; leave it out"):
        reading.survey(Origin("ra", source, balance=True))


def test_a_hub_data_set_gives_all_its_paradigms(tmp_path):
    configs = ""
    for uid in PARADIGMS:
        (tmp_path / uid).mkdir()
        datasets.Dataset.from_list([record(uid)]).to_parquet(tmp_path / uid / "train.parquet")
        configs += f"- config_name: {uid}\n  data_files: {uid}/train.parquet\n"
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    survey = reading.survey(Origin("blimp5", "blimp5", hub=str(tmp_path)))
    assert {meta_of(row)["paradigm"] for row in reading.read(survey)} == {name for name, _ in PARADIGMS.values()}


@pytest.mark.parametrize("kind", MASKED)
def test_a_masked_model_sees_the_noun_behind_its_determiner(tokenizers, kind):
    [view], _ = tokenise([DETERMINER], tokenizers[kind], kind=kinds.MASKED, max_length=64)
    chosen = [i for i, marked in enumerate(view["evidence_mask"]) if marked]
    assert min(chosen) > view["position"]
    assert tokenizers[kind].decode([view["input_ids"][i] for i in chosen]).strip() == "keys"


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(MASKED)))
def test_a_determiner_is_no_sample_for_a_causal_model(tokenizers, kind):
    views, [refused] = tokenise([DETERMINER], tokenizers[kind], kind=kinds.CAUSAL, max_length=64)
    assert not views
    assert refused["reason"] == "evidence after the slot"


@pytest.mark.parametrize("kind", KINDS)
def test_of_an_evidence_word_in_pieces_all_count_or_the_first(tokenizers, kind):
    text = "The unteachable keys to Normanorum  on the table."
    row = sample("t", text, 35, "are", "the", evidence=[(4, 15), (24, 34)])
    both = [
        tokenise([row], tokenizers[kind], kind=kind_of(kind), max_length=99, first_piece=first)[0][0]["evidence_mask"]
        for first in (False, True)
    ]
    starts = [i for i, marked in enumerate(both[0]) if marked and not both[0][i - 1]]
    assert sum(both[0]) > len(starts) == 2
    assert [i for i, marked in enumerate(both[1]) if marked] == starts


def test_the_audit_tells_the_paradigms_apart(tokenizers):
    rows = [DETERMINER, parse_inside(record("anaphor_number_agreement"))]
    rows[1] = with_evidence(rows[1], [(5, 10)])
    views, rejects = tokenise(rows, tokenizers["bpe"], kind=kinds.CAUSAL, max_length=64)
    assert (len(views), len(rejects)) == (1, 1)
    parts = audit.members([_table(rows, audit.GENERIC_COLUMNS)], "paradigm")
    figures = audit.of_parts([_table(views, audit.VIEW_COLUMNS)], parts, {"ana": 4, "rpsv": 2})
    assert {part: (figure["samples"], figure["accepted"]) for part, figure in figures.items()} == {
        "ana": (1, 1),
        "dnaa": (1, 0),
        "rpsv": (0, 0),
    }
    share = 100 * sum(views[0]["evidence_mask"]) / views[0]["length"]
    assert figures["ana"]["evidence_share"] == pytest.approx(share)
    assert figures["dnaa"]["evidence_share"] is None
    empty = {"rows_in": 2, "accepted": 1, "rejects": {}, "paper_share": None, "agreement": None, "attractors": {}}
    lines = audit.table({"blimp5": {"bpe": empty | audit.of_views([_table(views, audit.VIEW_COLUMNS)])}})
    assert not any("dnaa" in line for line in lines)
    whole = empty | audit.of_views([_table(views, audit.VIEW_COLUMNS)]) | {"parts": figures}
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in audit.table({"blimp5": {"bpe": whole}})]
    assert cells[-3][:7] == ["blimp5", "ana", "4", "1", "25.0", "bpe", "1"]
    assert cells[-2:] == [
        ["blimp5", "dnaa", "", "1", "", "bpe", "0", "", ""],
        ["blimp5", "rpsv", "2", "0", "0.0", "bpe", "0", "", ""],
    ]


def _table(rows, columns):
    schema = VIEW if "length" in rows[0] else GENERIC
    return pa.Table.from_pylist(rows, schema).select(columns)


def test_published_paradigms_have_their_evidence_and_agree(shared):
    """Parts of the published files: the whole of ana, 500 of each of the others."""
    origin = Origin("blimp5", "blimp5", str(shared / "data" / "*" / "*_agreement*.jsonl"))
    rows = list(reading.read(reading.survey(origin)))
    accepted = [row for row in rows if not is_reject(row)]
    counts = Counter(meta_of(row)["paradigm"] for row in accepted)
    assert counts == {"ana": 1000, "dna": 500, "dnaa": 500, "darn": 500, "rpsv": 500}
    some = [row for row in accepted if row["sample_id"] < "1"]  # a sixteenth
    annotator = Annotator(str(shared / "models" / "en_ud_ewt_sm"))
    annotated = [row for row in annotator.annotate(some, "sample") if not is_reject(row)]
    assert len(annotated) > 0.8 * len(some)
    assert sum(meta_of(row)["agrees"] is True for row in annotated) > 0.9 * len(annotated)
    for row in annotated:
        follows = row["evidence"][0][0] >= row["slot"]
        assert follows == (meta_of(row)["evidence"] == "noun")
