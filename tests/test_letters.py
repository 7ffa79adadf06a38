"""On a trained model that spells words to sounds, relevance falls on the letter that a sound is spelled with."""

import pytest

from lrp_core import load_model
from tests import letters


@pytest.fixture(scope="module")
def shares():
    if not (letters.MODEL / "model.safetensors").is_file() or not letters.TEXTS.is_file():
        pytest.skip(f"needs {letters.MODEL} and {letters.TEXTS}: set CLOSELOOK_SHARED")
    view = load_model(letters.MODEL)
    words = letters.spelled(view)
    assert len(words) == letters.WORDS
    return letters.scores(view, words, ["attnlrp", "lrp", "attention_rollout", "random"])


def test_relevance_finds_letters_more_often_than_attention_does(shares):
    assert shares["attnlrp"] > shares[letters.CROSS_ATTENTION] + 2
    assert shares["lrp"] > shares[letters.CROSS_ATTENTION]
    assert shares["attnlrp"] > shares["attention_rollout"] + 5


def test_random_relevance_finds_a_letter_by_chance_alone(shares):
    assert shares["random"] < 30 < 80 < shares["attention_rollout"]


def test_alignment_is_monotone_and_finds_what_only_one_letter_can_say():
    pairs = [("ab", [1, 2]), ("ba", [2, 1]), ("aab", [1, 2]), ("bc", [2, 3]), ("ca", [3, 1])]
    paths, likelihood = letters.align(pairs)
    assert paths[0] == [0, 1]
    assert paths[1] == [0, 1]
    assert paths[2][1] == 2
    assert paths[3:] == [[0, 1], [0, 1]]
    assert all(path == sorted(path) for path in paths)
    assert (likelihood < 0).all()
