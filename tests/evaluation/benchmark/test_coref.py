import json

import pytest
import spacy
from spacy.tokens import Doc

from closelook.evaluation.benchmark.annotate import Coreference, antecedent, check
from closelook.evaluation.benchmark.samples import Malformed
from closelook.lrp_core.records.types import UserError

VOCAB = spacy.blank("en").vocab
SENTENCE = Doc(
    VOCAB,
    ["Susan", "and", "most", "girls", "hurt", "themselves"],
    deps=["nsubj", "cc", "amod", "conj", "ROOT", "obj"],
    heads=[4, 3, 3, 0, 4, 4],
)


def test_fastcoref_gives_clusters_in_the_words_of_the_parse(tiny_coref):
    documents = Coreference(tiny_coref).clusters([SENTENCE] * 3 + [SENTENCE[:3].as_doc()])
    assert len(documents) == 4
    assert documents[0] == documents[1] == documents[2]
    for clusters, length in zip(documents, (6, 6, 6, 3), strict=True):
        assert all(0 <= start < end <= length for cluster in clusters for start, end in cluster)


def test_no_documents_no_clusters(tiny_coref):
    assert Coreference(tiny_coref).clusters([]) == []


def test_the_antecedent_is_the_head_of_the_nearest_mention_before():
    clusters = [[(1, 2), (4, 5)], [(0, 4), (2, 4), (5, 6)]]
    assert antecedent(SENTENCE, SENTENCE[5], clusters).text == "Susan"
    assert antecedent(SENTENCE, SENTENCE[5], [[(2, 4), (5, 6)]]).text == "girls"


@pytest.mark.parametrize("clusters", [[], [[(0, 1), (1, 2)]], [[(5, 6)]]])
def test_a_reflexive_without_a_mention_before_is_no_guess(clusters):
    with pytest.raises(Malformed, match="no antecedent by coreference"):
        antecedent(SENTENCE, SENTENCE[5], clusters)


def test_a_missing_model_is_one_line_that_says_how_to_get_it():
    with pytest.raises(UserError, match="hf download biu-nlp/f-coref") as error:
        check("biu-nlp/f-coref")
    assert "\n" not in str(error.value)


def test_another_kind_of_model_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    with pytest.raises(UserError, match="no coref_head: give the id or folder of one, or set `coref: null`"):
        check(str(tmp_path))
