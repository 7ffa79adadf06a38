"""On a trained model that spells words to sounds, relevance falls on the letter that a sound is spelled with."""

import pytest

from closelook.lrp_core import load_model
from tests import letters

NAMES = ["attnlrp", "lrp", "attention_rollout", "random"]


@pytest.fixture(scope="module")
def compared(shared):
    view = load_model(letters.MODEL)
    words = letters.spelled(view)
    assert len(words) == letters.WORDS
    return letters.compared(view, words, NAMES)


def test_relevance_finds_letters_more_often_than_attention_does(compared):
    first, *rest = compared.groups(letters.FOUND)
    assert first[0] == "attnlrp"
    assert letters.CROSS_ATTENTION not in first, "a test over words tells them apart"
    assert rest[-1] == ("random",)


def test_intervals_are_of_words_and_random_relevance_finds_a_letter_by_chance_alone(compared):
    columns = (compared.mean, compared.low, compared.high)
    means, low, high = (dict(zip(compared.methods, column[:, 0], strict=True)) for column in columns)
    assert means["random"] < 30 < 80 < means["attention_rollout"]
    assert all(low[name] < means[name] < high[name] for name in means)
    assert compared.clusters == letters.WORDS


def test_alignment_is_monotone_and_finds_what_only_one_letter_can_say():
    pairs = [("ab", [1, 2]), ("ba", [2, 1]), ("aab", [1, 2]), ("bc", [2, 3]), ("ca", [3, 1])]
    paths, likelihood = letters.align(pairs)
    assert paths[0] == [0, 1]
    assert paths[1] == [0, 1]
    assert paths[2][1] == 2
    assert paths[3:] == [[0, 1], [0, 1]]
    assert all(path == sorted(path) for path in paths)
    assert (likelihood < 0).all()
