import pyarrow as pa
import pytest
import yaml

from closelook.evaluation.benchmark import audit
from closelook.evaluation.benchmark.audit import card, export
from closelook.evaluation.benchmark.samples import sample, with_evidence
from closelook.evaluation.schema import GENERIC, VIEW
from closelook.evaluation.tasks import TASKS
from closelook.lrp_core.records.types import UserError


def view(evidence, special, scope=None):
    length = len(evidence)
    masks = {"evidence_mask": evidence, "special_mask": special, "scope_mask": scope}
    ids = {"sample_id": "s", "input_ids": [0] * length, "position": 0, "target_id": 1, "foil_id": 2}
    return {**ids, **{name: mask and [bool(x) for x in mask] for name, mask in masks.items()}, "length": length}


def of_views(*shards):
    return audit.of_views(pa.Table.from_pylist(rows, VIEW).select(audit.VIEW_COLUMNS) for rows in shards)


KEYS = with_evidence(
    sample("lgd", "the keys  old", 9, "are", "is", meta={"attractors": 1}),
    [(4, 8)],
    annotator="a parser",
    agrees=True,
    head="keys",
)
CABINET = with_evidence(KEYS, [(0, 3)], agrees=False)
UNKNOWN = with_evidence(KEYS, [(0, 3)], agrees=None)
FOUND = {
    "rows_in": 5, "accepted": 3, "rejects": {"too long": 2}, "length_min": 2, "length_mean": 3.5, "length_max": 9,
    "evidence_share": 4.56, "paper_share": "5", "agreement": 91.2, "attractors": {"1": 3},
}  # fmt: skip
RECORD = {
    "origin": {"source": "lgd", "sha256": "abc", "hub": None, "revision": None},
    "annotator": "a parser",
}


def test_shares_are_means_over_samples_of_evidence_among_ordinary_tokens():
    figures = of_views([view([0, 1, 0, 0], [1, 0, 0, 1])], [view([1, 1, 0, 0], [0, 0, 0, 0]), view([0, 1], [1, 0])])
    assert figures["evidence_share"] == pytest.approx(100 * (1 / 2 + 2 / 4 + 1) / 3)
    assert figures["evidence_share_full"] == figures["evidence_share"]
    assert (figures["accepted"], figures["length_min"], figures["length_max"]) == (3, 2, 4)
    assert figures["length_mean"] == pytest.approx(10 / 3)


def test_with_a_scope_the_share_is_of_the_scope():
    figures = of_views([view([0, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0, 1, 1, 0, 0])])
    assert figures["evidence_share"] == pytest.approx(50)
    assert figures["evidence_share_full"] == pytest.approx(25)


def test_samples_without_evidence_do_not_hide_the_shares_of_those_beside_them():
    without = view([0, 0], [1, 0]) | {"evidence_mask": None}
    figures = of_views([without, view([0, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0, 1, 1, 0, 0]), view([0, 1, 0], [1, 0, 0])])
    assert (figures["accepted"], figures["evidence_share"], figures["evidence_share_full"]) == (3, 50, 37.5)


def test_nothing_accepted_has_no_shares():
    assert of_views([])["evidence_share"] is None
    assert of_views([], [])["accepted"] == 0


def test_agreement_counts_undecided_samples_as_not_agreeing():
    table = pa.Table.from_pylist([KEYS, KEYS, CABINET, UNKNOWN], GENERIC).select(audit.GENERIC_COLUMNS)
    figures = audit.of_samples([table])
    assert figures["agreement"] == 50
    assert figures["agrees"] == {"yes": 2, "no": 1, "unknown": 1}
    assert figures["attractors"] == {"1": 4}


def test_the_table_holds_the_paper_beside_the_figures():
    lines = audit.table({"sva": {"bert-00": FOUND}})
    assert [cell.strip() for cell in lines[2].strip("|").split("|")] == [
        "sva", "bert-00", "5", "3", "2", "2 / 3.5 / 9", "4.6", "5", "91.2", "1: 3",
    ]  # fmt: skip
    assert audit.reasons({"sva": {"bert-00": FOUND}}) == ["sva, bert-00: 2 rejected (2 too long)"]


def test_sentences_are_coloured_where_the_evidence_is():
    text = audit.marked(CABINET, colours=True)
    assert text.plain == "the keys are old  not: is  numbers differ"
    assert {(span.start, span.end): str(span.style) for span in text.spans}[0, 3] == "black on green"
    assert {(span.start, span.end): str(span.style) for span in text.spans}[9, 12] == "bold yellow"


def test_without_colours_marks_say_what_is_evidence_and_what_is_predicted():
    assert audit.marked(CABINET, colours=False).plain == "[the] keys *are* old  not: is  numbers differ"
    behind = with_evidence(KEYS, [(0, 3), (10, 13)])  # one on either side of the slot
    assert audit.marked(behind, colours=False).plain == "[the] keys *are* [old]  not: is"
    praise = sample("own", "a fine film", None, None, None, label="positive", evidence=[(2, 6)])
    assert audit.marked(praise, colours=False).plain == "a [fine] film"
    overlapping = praise | {"evidence": [[0, 6], [2, 4], [2, 11]]}
    assert audit.marked(overlapping, colours=False).plain == "[a fine][ film]"


def test_the_card_tells_sources_licences_choices_noise_and_figures():
    text = card({"sva": RECORD}, {"sva": {"bert-00": FOUND}}, TASKS)
    _, front, body = text.split("---\n", 2)
    assert yaml.safe_load(front)["configs"] == [{"config_name": "sva", "data_files": "sva/*.parquet"}]
    for part in ("Apache 2.0", "`abc`", "Evidence by a parser", "## Choices", "## Known noise", "| sva  | bert-00"):
        assert part in body


def test_an_export_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to"):
        export({"sva": []}, {"sva": RECORD}, {"sva": {"bert-00": FOUND}}, tmp_path / "file" / "out", TASKS)
