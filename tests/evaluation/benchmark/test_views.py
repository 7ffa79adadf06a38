import ast
import re

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from closelook.evaluation.benchmark.samples import sample
from closelook.evaluation.benchmark.views import tokenise
from closelook.lrp_core.records import kinds
from closelook.lrp_core.records.types import UserError
from tests.evaluation.benchmark.conftest import KINDS, MASKED, kind_of

KEYS = sample("t", "The keys to the cabinet  on the table .", 24, "are", "the", evidence=[(4, 8)])
REFLEXIVE = sample("t", "Some teachers admired", 21, "themselves", "herself", evidence=[(5, 13)])
CONTEXT = "Rollo was the leader of the Normans in the 10th century. Some teachers admired Rollo ."
QUESTION = sample(
    "t",
    f"Context: {CONTEXT}\nQuestion: Who led the Normans?\nAnswer:",
    len(CONTEXT) + 48,
    "Rollo was",
    "the leader",
    evidence=[(9, 14)],
    scope=[(9, 9 + len(CONTEXT))],
)

WORD = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=8)
LATIN = st.text("abcdefghijklmnopqrstuvwxyzABCÀÉÜñçø.,'", min_size=1, max_size=8)
ANSWER = st.text("abtw0189.,' ", min_size=1, max_size=8).filter(str.strip)
ANSWERS = {"answers": True, "words": "first_difference"}  # as the task of questions says
unhealthy = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def views_of(tokenizers, tokenizer, *rows, **options):
    options = {
        "kind": kind_of(tokenizer),
        "max_length": 10_000,
        **(ANSWERS if rows[0]["scope"] else {}),
    } | options
    return tokenise(rows, tokenizers[tokenizer], **options)


def one(tokenizers, tokenizer, row, **options):
    views, rejects = views_of(tokenizers, tokenizer, row, **options)
    assert not rejects
    return views[0]


def reason(tokenizers, tokenizer, row, **options):
    views, rejects = views_of(tokenizers, tokenizer, row, **options)
    assert not views
    assert rejects[0]["sample_id"] == row["sample_id"]
    return rejects[0]["reason"]


def evidence_of(view, tokenizer):
    ids = [token for token, chosen in zip(view["input_ids"], view["evidence_mask"], strict=True) if chosen]
    return tokenizer.decode(ids)


@pytest.mark.parametrize("kind", MASKED)
def test_masked_models_read_the_mask_in_the_slot_and_what_follows(tokenizers, kind):
    tokenizer = tokenizers[kind]
    view = one(tokenizers, kind, KEYS)
    assert view["input_ids"].index(tokenizer.mask_token_id) == view["position"]
    after = tokenizer.decode(view["input_ids"][view["position"] + 1 :], skip_special_tokens=True)
    assert after.strip().startswith("on the table")


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(MASKED)))
def test_causal_models_read_up_to_the_slot_without_a_trailing_space(tokenizers, kind):
    tokenizer = tokenizers[kind]
    view = one(tokenizers, kind, KEYS)
    assert view["position"] == view["length"] - 1 == len(view["input_ids"]) - 1
    assert tokenizer.decode(view["input_ids"], skip_special_tokens=True).strip() == "The keys to the cabinet"
    assert tokenizer.convert_ids_to_tokens(view["target_id"])[0] in "Ġ▁"


@pytest.mark.parametrize("kind", MASKED)
def test_the_target_is_the_one_token_that_would_replace_the_mask(tokenizers, kind):
    row = sample("t", "The keys to the cabinet are  the table .", 28, "on", "to", evidence=[(4, 8)])
    view = one(tokenizers, kind, row)
    replaced = tokenizers[kind]("The keys to the cabinet are on the table .")["input_ids"]
    assert replaced[view["position"]] == view["target_id"]


@pytest.mark.parametrize(("kind", "special"), [("wordpiece", 2), ("roberta", 2), ("bpe", 0), ("bpe_bos", 1)])
def test_special_is_what_the_template_adds_and_the_mask_is_ordinary(tokenizers, kind, special):
    view = one(tokenizers, kind, KEYS)
    assert sum(view["special_mask"]) == special
    assert not view["special_mask"][view["position"]]


def test_a_template_that_ends_with_a_special_token_does_not_move_the_prediction(tokenizers):
    view = one(tokenizers, "roberta", REFLEXIVE, kind=kinds.CAUSAL)
    assert view["special_mask"] == [True] + [False] * (view["length"] - 1)
    assert tokenizers["roberta"].decode(view["input_ids"][-1:]).strip() in "admired"


@pytest.mark.parametrize("kind", KINDS)
def test_repeated_words_are_told_apart(tokenizers, kind):
    row = sample("t", "the old bridge the old bridge  the table", 30, "are", "have", evidence=[(19, 22)])
    view = one(tokenizers, kind, row)
    chosen = [i for i, marked in enumerate(view["evidence_mask"]) if marked]
    others = [i for i, token in enumerate(view["input_ids"]) if token == view["input_ids"][chosen[0]]]
    assert others[1] == chosen[0]


@pytest.mark.parametrize("kind", KINDS)
def test_answers_count_by_their_first_token(tokenizers, kind):
    view = one(tokenizers, kind, QUESTION)
    assert "rollo".startswith(tokenizers[kind].decode([view["target_id"]]).strip().lower())
    scope = [token for token, inside in zip(view["input_ids"], view["scope_mask"], strict=True) if inside]
    assert tokenizers[kind].decode(scope).lower().split()[0] == "rollo"
    assert all(inside for inside, marked in zip(view["scope_mask"], view["evidence_mask"], strict=True) if marked)


def asked(target, foil=None, context="The keys to the cabinet"):
    """A question with this answer."""
    return sample("t", context, len(context), target, foil, evidence=[(4, 8)], scope=[(0, len(context))])


@pytest.mark.parametrize("kind", ["bpe_bos", "spaced"])
@pytest.mark.parametrize("foil", [None, "1066", "1995", "Rollo"])
def test_a_year_is_explained_where_it_differs_from_the_foil(tokenizers, kind, foil):
    tokenizer = tokenizers[kind]
    view = one(tokenizers, kind, asked("1998", foil, "The keys were old in"))
    added = {
        ("bpe_bos", None): (" ", "199", None),
        ("bpe_bos", "1066"): (" ", "199", "106"),
        ("bpe_bos", "1995"): (" 199", "8", "5"),
        ("bpe_bos", "Rollo"): ("", " ", " Rollo"),
        ("spaced", None): (" ", "1998", None),
        ("spaced", "1066"): (" ", "1998", "1066"),
        ("spaced", "1995"): (" ", "1998", "1995"),
        ("spaced", "Rollo"): (" ", "1998", "Rollo"),
    }[kind, foil]
    read = tokenizer.decode(view["input_ids"], skip_special_tokens=True)
    predicted = [None if view[name] is None else tokenizer.decode([view[name]]) for name in ("target_id", "foil_id")]
    assert (read, *predicted) == ("The keys were old in" + added[0], *added[1:])
    assert view["position"] == view["length"] - 1
    assert {len(view[name]) for name in ("input_ids", "evidence_mask", "special_mask", "scope_mask")} == {
        view["length"]
    }
    assert evidence_of(view, tokenizer).strip() == "keys"


def check_continuation(tokenizer, row):
    """Text, target and foil as the tokenizer reads them together begin with the view and the explained token.

    Beside punctuation a word may follow without a space, as `'s` does.
    """
    views, rejects = tokenise([row], tokenizer, kind=kinds.CAUSAL, max_length=10_000, **ANSWERS)
    assert len(views) + len(rejects) == 1
    for view in views:
        explained = [(row[name], view[f"{name}_id"]) for name in ("target", "foil") if row[name] is not None]
        for word, token in explained:
            expected = [*view["input_ids"], token]
            text, word = row["text"].rstrip(), word.strip()
            spaces = (" ",) if text[-1].isalnum() and word[0].isalnum() else (" ", "")
            readings = [tokenizer(f"{text}{space}{word}")["input_ids"] for space in spaces]
            assert expected in [reading[: len(expected)] for reading in readings]
        assert view["target_id"] != view["foil_id"]
    return bool(views)


@pytest.mark.parametrize("kind", [*sorted(set(KINDS) - set(MASKED)), "spaced"])
@settings(max_examples=60, deadline=None, suppress_health_check=unhealthy)
@given(words=st.lists(LATIN, min_size=2, max_size=5), target=ANSWER, foil=st.none() | ANSWER)
def test_what_is_read_and_explained_is_what_the_tokenizer_makes_of_text_and_answer(
    tokenizers, kind, words, target, foil
):
    assume(foil is None or target.split() != foil.split())
    check_continuation(tokenizers[kind], asked(target, foil, f"The keys {' '.join(words)}"))


@pytest.mark.parametrize("kind", ["gpt2", "letters"])
@pytest.mark.parametrize(("target", "foil"), [("1998", "1995"), ("Rollo was", "Rollo the"), ("1998", None)])
def test_published_vocabularies_read_what_the_answers_share(published, kind, target, foil):
    assert check_continuation(published[kind], asked(target, foil))


def test_every_letter_that_target_and_foil_share_is_read(published):
    [view], _ = tokenise([asked("were", "was")], published["letters"], kind=kinds.CAUSAL, max_length=10_000, **ANSWERS)
    assert published["letters"].decode(view["input_ids"]).endswith("cabinet w")
    assert [published["letters"].decode([view[name]]) for name in ("target_id", "foil_id")] == ["e", "a"]


def test_a_space_of_its_own_is_read_before_one_word(tokenizers):
    view = one(tokenizers, "spaced", REFLEXIVE | {"target": "themselves", "foil": "herself"})
    assert tokenizers["spaced"].decode(view["input_ids"]) == "Some teachers admired "
    assert tokenizers["spaced"].decode([view["target_id"], view["foil_id"]]) == "themselvesherself"
    view = one(tokenizers, "spaced", KEYS | {"foil": None})
    assert tokenizers["spaced"].decode([view["input_ids"][-1], view["target_id"]]) == " are"
    row = sample("t", "The keys", 8, "199", "are", evidence=[(4, 8)])
    _, [rejected] = views_of(tokenizers, "bpe_bos", row)
    assert rejected["detail"] == "the space before '199' is a token of its own, unlike that before the other word"


def test_what_target_and_foil_share_counts_towards_the_length(tokenizers):
    row = asked("1998", "1995", CONTEXT) | {"evidence": [(9, 14)]}
    length = one(tokenizers, "bpe_bos", row)["length"]
    assert one(tokenizers, "bpe_bos", row, max_length=length)["length"] == length
    assert reason(tokenizers, "bpe_bos", row, max_length=length - 1) == "too long"


@pytest.mark.parametrize(
    ("kind", "word"), [("bpe", "xylophones"), ("wordpiece", "xylophones"), ("bpe_bos", "1998"), ("metaspace", "bébé")]
)
@pytest.mark.parametrize("name", ["target", "foil"])
def test_words_of_several_tokens_are_rejected_outside_qa_with_their_pieces(tokenizers, kind, word, name):
    row = sample("t", "The keys", 8, *((word, "are") if name == "target" else ("are", word)), evidence=[(4, 8)])
    views, [rejected] = views_of(tokenizers, kind, row)
    assert not views
    assert rejected["reason"] == "target or foil is not one token"
    shown, pieces = rejected["detail"].split(" is split into ")
    assert shown == repr(word)
    assert len(pieces.split(", ")) > 1
    assert kind != "bpe_bos" or pieces == "'199', '8'"
    assert kind == "metaspace" or "".join(map(ast.literal_eval, pieces.split(", "))) == word


@pytest.mark.parametrize("kind", ["bpe", "bpe_bos", "spaced"])
def test_words_of_several_tokens_are_explained_at_the_first_difference_where_the_task_says_so(tokenizers, kind):
    row = sample("t", "The keys", 8, "xylophones", "xylograph", evidence=[(4, 8)])
    assert reason(tokenizers, kind, row) == "target or foil is not one token"
    view = one(tokenizers, kind, row, words="first_difference")
    read = tokenizers[kind].decode(view["input_ids"], skip_special_tokens=True)
    assert read.startswith("The keys xylo")
    added = [tokenizers[kind].decode([view[name]]) for name in ("target_id", "foil_id")]
    assert "The keys xylophones".startswith(read + added[0])
    assert "The keys xylograph".startswith(read + added[1])
    assert check_continuation(tokenizers[kind], row)


@pytest.mark.parametrize("answer", ["xylophones", "xylophones are"])
@pytest.mark.parametrize("name", ["target", "foil"])
def test_a_masked_model_is_not_asked_for_a_word_of_several_pieces(tokenizers, answer, name):
    row = QUESTION | {name: answer}
    assert reason(tokenizers, "wordpiece", row) == "target or foil is not one token"
    assert one(tokenizers, "wordpiece", QUESTION | {name: "keys, xylophones"})


def test_answers_that_differ_in_no_token_are_rejected(tokenizers):
    for answers in ({"foil": "Rollo was the leader"}, {"target": "Rollo was here", "foil": "Rollo was"}):
        assert reason(tokenizers, "bpe", QUESTION | answers) == "target or foil begins with the other"
    assert reason(tokenizers, "wordpiece", QUESTION | {"foil": "Rollo the"}) == "target and foil have the same token"


def test_words_unknown_to_the_tokenizer_are_rejected(tokenizers):
    row = sample("t", "The keys", 8, "ключ", "are", evidence=[(4, 8)])
    assert reason(tokenizers, "wordpiece", row) == "target or foil is unknown to the tokenizer"


def test_evidence_after_the_slot_is_rejected_for_causal_models_only(tokenizers):
    row = sample("t", "There  the keys", 6, "are", "have", evidence=[(11, 15)])
    assert reason(tokenizers, "bpe", row) == "evidence after the slot"
    assert evidence_of(one(tokenizers, "wordpiece", row), tokenizers["wordpiece"]) == "keys"


def test_a_sample_without_evidence_has_no_mask_of_it_and_one_without_text_is_rejected(tokenizers):
    assert one(tokenizers, "bpe", KEYS | {"evidence": []})["evidence_mask"] is None
    row = sample("t", " are the keys", 0, "the", "are", evidence=[(9, 13)])
    assert reason(tokenizers, "bpe", row | {"evidence": []}) == "no text before the slot"


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_with_a_slot_that_is_too_long_is_rejected_and_never_cut(tokenizers, kind):
    length = one(tokenizers, kind, QUESTION)["length"]
    for truncate in (False, True):
        assert reason(tokenizers, kind, QUESTION, max_length=length - 4, truncate=truncate) == "too long"


def test_tokenizers_that_do_not_fit_are_refused(tokenizers):
    with pytest.raises(UserError, match="no mask token"):
        tokenise([], tokenizers["bpe"], kind=kinds.MASKED, max_length=10)


def check_evidence_of_words(tokenizer, masked, words, data):
    """Any run of words as evidence, decoded from its tokens, is the run again. True if there was a view to check."""
    first = data.draw(st.integers(0, len(words) - 1), "first")
    last = data.draw(st.integers(first, len(words) - 1), "last")
    starts = [sum(len(word) + 1 for word in words[:i]) for i in range(len(words))]
    text = " ".join(words)
    span = (starts[first], starts[last] + len(words[last]))
    row = sample("t", f"{text} ", len(text) + 1, "are", "the", evidence=[span])
    views, rejects = tokenise([row], tokenizer, kind=kinds.MASKED if masked else kinds.CAUSAL, max_length=10_000)
    assert len(views) + len(rejects) == 1
    for view in views:
        assert view["length"] == len(view["input_ids"]) == len(view["evidence_mask"]) == len(view["special_mask"])
        ids = [token for token, marked in zip(view["input_ids"], view["evidence_mask"], strict=True) if marked]
        if tokenizer.unk_token_id is None or tokenizer.unk_token_id not in ids:
            assert bare(tokenizer.decode(ids), tokenizer) == bare(text[slice(*span)], tokenizer)


def bare(text, tokenizer):
    """Up to the tokenizer's normalisation, and spaces."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    return re.sub(r"\s", "", normalizer.normalize_str(text) if normalizer else text)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None, suppress_health_check=unhealthy)
@given(data=st.data())
def test_decoding_the_evidence_of_any_text_gives_the_evidence_back(tokenizers, kind, data):
    words = data.draw(st.lists(LATIN if kind == "wordpiece" else WORD, min_size=2, max_size=7), "words")
    check_evidence_of_words(tokenizers[kind], kind in MASKED, words, data)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
@settings(max_examples=100, deadline=None, suppress_health_check=unhealthy)
@given(words=st.lists(WORD, min_size=2, max_size=7), data=st.data())
def test_decoding_the_evidence_gives_it_back_with_published_vocabularies(published, kind, words, data):
    check_evidence_of_words(published[kind], kind == "bert", words, data)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None, suppress_health_check=unhealthy)
@given(before=st.text(max_size=20), inside=st.text(min_size=1, max_size=6), after=st.text(max_size=20))
def test_any_text_gives_a_view_with_its_evidence_or_a_reject(tokenizers, kind, before, inside, after):
    text = before + inside + after
    assume(text.strip())
    tokenizer = tokenizers[kind]
    row = sample("t", text, len(text), "are", "the", evidence=[(len(before), len(before) + len(inside))])
    views, rejects = views_of(tokenizers, kind, row)
    assert len(views) + len(rejects) == 1
    for view in views:
        ids = [token for token, marked in zip(view["input_ids"], view["evidence_mask"], strict=True) if marked]
        if tokenizer.unk_token_id is None or tokenizer.unk_token_id not in ids:
            assert bare(inside, tokenizer) in bare(tokenizer.decode(ids), tokenizer)
        assert not any(s and e for s, e in zip(view["special_mask"], view["evidence_mask"], strict=True))


@pytest.mark.parametrize("tokenizer", ["bpe"])
def test_decoder_reads_what_target_and_foil_begin_with_alike_and_the_encoder_the_whole_text(tokenizers, tokenizer):
    row = {**QUESTION, "target": "Rollo was", "foil": "Rollo is"}
    view = one(tokenizers, tokenizer, row, kind=kinds.ENCODER_DECODER)
    decode = tokenizers[tokenizer].decode
    assert decode(view["input_ids"]).endswith("Answer:")
    assert decode(view["decoder_input_ids"]).strip() == "Rollo"
    assert view["position"] == len(view["decoder_input_ids"])  # behind the start token, which the model brings
    assert decode([view["target_id"]]).strip() == "was"
    assert view["foil_id"] not in (None, view["target_id"])
    assert len(view["evidence_mask"]) == len(view["scope_mask"]) == view["length"] == len(view["input_ids"])
    other = one(tokenizers, tokenizer, QUESTION, kind=kinds.ENCODER_DECODER)
    assert other["decoder_input_ids"] == []
    assert other["position"] == 0


def test_text_without_a_slot_is_no_question_for_an_encoder_decoder(tokenizers):
    row = sample("t", "An article that goes on.", None, None, None)
    assert "no slot" in reason(tokenizers, "bpe", row, kind=kinds.ENCODER_DECODER)


def test_evidence_without_a_token_is_rejected(tokenizers):
    row = QUESTION | {"evidence": [(14, 15)]}  # a space, which WordPiece drops
    assert reason(tokenizers, "wordpiece", row) == "the evidence has no token"
