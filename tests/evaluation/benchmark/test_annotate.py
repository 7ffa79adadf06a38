import json

import pytest
import spacy

from closelook.evaluation.benchmark import reading
from closelook.evaluation.benchmark.annotate import Annotator, identity, pipeline
from closelook.evaluation.benchmark.samples import Filled, is_reject, sample
from closelook.lrp_core.records.types import UserError


@pytest.fixture(scope="module")
def annotator(shared):
    return Annotator(str(shared / "models" / "en_ud_ewt_sm"))


def annotated(annotator, shared, task, source, kind, n):
    survey = reading.survey(reading.Origin(task, source, path=str(shared / "data" / task), limit=n))
    rows = [row for row in reading.read(survey) if not is_reject(row)]
    result = annotator.annotate(rows, kind)
    assert len(result) == len(rows)
    return result


def evidence(row):
    return [row["text"][start:end] for start, end in row["evidence"]]


def test_subjects_are_the_noted_heads_and_agree_in_number_with_the_verb_in_nine_of_ten(annotator, shared):
    rows = annotated(annotator, shared, "sva", "lgd", "subject", 600)
    accepted = [row for row in rows if not is_reject(row)]
    notes = [json.loads(row["meta"]) for row in accepted]
    assert len(accepted) > 0.75 * len(rows)
    assert sum(meta["agrees"] is True for meta in notes) >= 0.9 * len(accepted)
    assert [evidence(row) for row in accepted] == [[meta["head"]] for meta in notes]
    assert {meta["annotator"] for meta in notes} == {"en_ud_ewt_sm 1.0.0"}


def test_antecedents_by_the_parse_alone(annotator, shared):
    rows = annotated(annotator, shared, "ra", "blimp", "antecedent", 300)
    accepted = [row for row in rows if not is_reject(row)]
    assert len(accepted) > 0.9 * len(rows)
    assert all(row["evidence"][0][1] <= row["slot"] for row in accepted)


def test_what_has_no_subject_is_a_reject_with_its_sample(annotator):
    row = sample("t", "the big red ", 12, "house", "houses")
    [annotated] = annotator.annotate([row], "subject")
    assert (annotated["stage"], annotated["sample_id"]) == ("annotate", row["sample_id"])


def test_coreference_decides_where_a_model_is_given(shared, tiny_coref):
    annotator = Annotator(str(shared / "models" / "en_ud_ewt_sm"), tiny_coref)
    rows = annotated(annotator, shared, "ra", "blimp", "antecedent", 40)
    assert {row["reason"] for row in rows if is_reject(row)} <= {"no antecedent by coreference"}
    accepted = [row for row in rows if not is_reject(row)]
    assert all(json.loads(row["meta"])["annotator"] == f"{tiny_coref}, en_ud_ewt_sm 1.0.0" for row in accepted)


def test_the_first_pipeline_that_is_there_is_taken(shared):
    installed = str(shared / "models" / "en_ud_ewt_sm")
    assert pipeline(["en_no_such_pipeline", installed]) == installed


def test_a_missing_pipeline_is_one_line_naming_the_install_command():
    with pytest.raises(UserError, match="python -m spacy download en_core_web_sm") as error:
        pipeline(["some/dir", "en_core_web_trf", "en_core_web_sm"])
    assert "\n" not in str(error.value)


def test_a_pipeline_without_a_parser_is_refused(tmp_path):
    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(UserError, match="has no parser"):
        identity(str(tmp_path / "blank"), None)


@pytest.mark.parametrize(
    ("text", "slot", "full", "word"),
    [
        ("the keys  old", 9, "the keys are old", (9, 12)),
        ("the keys old", 9, "the keys are old", (9, 12)),
        ("the keys", 8, "the keys are", (9, 12)),
        ("keys .", 5, "keys are.", (5, 8)),
        ("old", 0, "are old", (0, 3)),
    ],
)
def test_a_filled_text_reads_as_a_sentence(text, slot, full, word):
    filled = Filled.of(text, slot, "are")
    assert (filled.text, filled.word) == (full, word)
    for start in range(len(text)):
        if start >= slot or start + 1 <= slot:
            placed = filled.shifted((start, start + 1))
            assert filled.text[slice(*placed)] == text[start]
            assert filled.origin(placed) == (start, start + 1)
