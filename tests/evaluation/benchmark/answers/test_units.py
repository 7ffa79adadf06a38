import numpy as np
import pytest
from transformers import AutoTokenizer

from closelook.evaluation.benchmark.answers.prompts import (
    NO_UNIT,
    sentences_in,
    units_of,
    units_of_tokens,
    without_units,
    words_in,
)
from closelook.evaluation.benchmark.demo import model_dir
from closelook.evaluation.benchmark.encoding import encode
from closelook.evaluation.benchmark.samples import Malformed

PROMPT = "Ann sleeps. Bob runs! Who runs?"


def test_sources_are_the_units_by_default_and_else_sentences_but_for_the_last():
    assert units_of(PROMPT, {"sources": [[0, 11], [12, 21]]}, None) == [(0, 11), (12, 21)]
    assert units_of(PROMPT, {}, None) == [(0, 11), (12, 21)]


def test_words_and_sentences_are_those_of_sources():
    meta = {"sources": [[0, 11], [12, 21]]}
    assert units_of(PROMPT, meta, "word") == [(0, 3), (4, 11), (12, 15), (16, 21)]
    assert units_of("One. Two. Three. Why?", {"sources": [[0, 9], [10, 16]]}, "sentence") == [(0, 4), (5, 9), (10, 16)]


def test_turns_of_a_chat_are_units_but_for_the_last_message():
    turns = [["user", 0, 11], ["assistant", 12, 21], ["user", 22, 31]]
    assert units_of(PROMPT, {"turns": turns}, "turn") == [(0, 11), (12, 21)]
    assert units_of(PROMPT, {"turns": turns}, "word") == words_in(PROMPT[:21])


def test_units_that_a_sample_gives_count_whatever_the_task_asks_for():
    assert units_of(PROMPT, {"units": [[16, 20], [0, 3]]}, "sentence") == [(0, 3), (16, 20)]


@pytest.mark.parametrize(
    ("meta", "kind", "message"),
    [
        ({"units": [[0, 8], [4, 11]]}, None, r"overlapping units: \[0, 8\) and \[4, 11\)"),
        ({"units": [[0, 8], [20, 99]]}, None, r"unit outside of the prompt: \[20, 99\) of 31 characters"),
        ({"units": [[0, 8], [9, 9]]}, None, r"unit outside of the prompt: \[9, 9\)"),
        ({"units": [[0, 8], [11, 12]]}, None, r"empty unit: \[11, 12\)"),
        ({"units": [[0, 8]]}, None, "fewer than two sources: 1"),
        ({"sources": [[0, 11]]}, None, "fewer than two sources: 1: a choice among sources takes two at least"),
        ({}, "passage", "fewer than two sources: 0"),
        ({}, "turn", "fewer than two sources: 0"),
    ],
)
def test_bad_units_are_told_in_a_line(meta, kind, message):
    with pytest.raises(Malformed, match=message):
        units_of(PROMPT, meta, kind)


def numbers(text, offsets, units):
    return units_of_tokens(np.array(offsets), np.zeros(len(offsets), bool), text, units).tolist()


def test_a_token_that_straddles_units_belongs_to_the_one_with_more_of_its_characters():
    assert numbers("abcdefgh", [[0, 5], [5, 8]], [[0, 3], [3, 8]]) == [0, 1]
    assert numbers("abcdefgh", [[0, 5], [5, 8]], [[0, 2], [2, 8]]) == [1, 1]


def test_of_equal_shares_the_earlier_unit_has_the_token():
    assert numbers("abcdef", [[0, 4], [4, 6]], [[0, 2], [2, 6]]) == [0, 1]
    assert numbers("abcdef", [[0, 4]], [[2, 6]]) == [NO_UNIT], "text of no unit is the earlier"
    assert numbers("abcdef", [[2, 6]], [[0, 4]]) == [0]


def test_white_space_counts_only_in_tokens_of_nothing_else():
    assert numbers("a b c", [[0, 1], [1, 3], [3, 5]], [[0, 1], [2, 3]]) == [0, 1, NO_UNIT]
    assert numbers("a \n\n b", [[0, 1], [1, 4], [4, 6]], [[0, 6]]) == [0, 0, 0]
    assert numbers("a \n\n b", [[0, 1], [1, 4], [4, 6]], [[0, 1], [5, 6]]) == [0, NO_UNIT, 1]


def test_white_space_that_offsets_leave_out_belongs_to_the_unit_around_it():
    text = "The  keys. Are  they?"
    tokenizer = AutoTokenizer.from_pretrained(model_dir("gpt2"))
    [encoding] = encode(tokenizer, [text])
    alone = [at for at, token in enumerate(encoding.ids) if tokenizer.decode([token]) == " "]
    assert len(alone) == 2
    assert all(start == end for start, end in encoding.offsets[alone]), "else this test tries nothing"
    assert [numbers(text, encoding.offsets, [[0, 10], [11, 21]])[at] for at in alone] == [0, 1]
    assert numbers("a  b", [[0, 1], [2, 2], [3, 4]], [[0, 1], [3, 4]]) == [0, NO_UNIT, 1]


def test_special_tokens_belong_to_no_unit():
    offsets, special = np.array([[0, 0], [0, 3]]), np.array([True, False])
    assert units_of_tokens(offsets, special, "abc", [[0, 3]]).tolist() == [NO_UNIT, 0]


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        ([1, 1, 1], "Context: A b. C d.\n\nE f. Why?"),
        ([0, 1, 1], "Context: C d.\n\nE f. Why?"),
        ([1, 0, 1], "Context: A b.\n\nE f. Why?"),
        ([1, 1, 0], "Context: A b. C d. Why?"),
        ([0, 0, 0], "Context: Why?"),
    ],
)
def test_the_separator_before_a_unit_goes_with_it(kept, text):
    prompt = "Context: A b. C d.\n\nE f. Why?"
    assert without_units(prompt, [(9, 13), (14, 18), (20, 24)], kept) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("我喜欢猫。你呢？好的！", ["我喜欢猫。", "你呢？", "好的！"]),
        ("彼は「はい。」と言った。「本当？」", ["彼は「はい。」", "と言った。", "「本当？」"]),
        (
            " Dr. Smith paid at 5 p.m. in the U.S. yesterday. He left.",
            ["Dr. Smith paid at 5 p.m. in the U.S. yesterday.", "He left."],
        ),
        (
            'He said "No." It costs 3.5, e.g. here. Really?! J. Li.',
            ['He said "No."', "It costs 3.5, e.g. here.", "Really?!", "J. Li."],
        ),
        ("they came . he saw it. why? i left.", ["they came .", "he saw it.", "why?", "i left."]),
    ],
)
def test_sentences_end_at_marks_of_all_scripts_and_not_at_abbreviations(text, expected):
    assert [text[start:end] for start, end in sentences_in(text)] == expected
