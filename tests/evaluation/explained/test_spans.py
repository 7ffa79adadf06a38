"""The characters of a text that tokens stand for."""

import pytest
from transformers import AutoTokenizer

from closelook.evaluation.benchmark.demo import model_dir
from closelook.evaluation.benchmark.encoding import encode, pieces
from closelook.evaluation.benchmark.samples import Filled
from closelook.evaluation.explained.rows import ReadText, TokenLocation, locate

TEXT = "The keys, (two) to the  cabinet\nare not old!"


@pytest.fixture(params=["bert", "gpt2", "llama", "t5"])
def tokenizer(request):
    return AutoTokenizer.from_pretrained(model_dir(request.param))


def shown(text, locations):
    return ["" if location.start is None else text[location.start : location.end] for location in locations]


def test_the_characters_of_a_token_are_its_text(tokenizer):
    [encoding] = encode(tokenizer, [TEXT])
    [locations] = locate(tokenizer, [ReadText(TEXT)], [encoding.ids])
    spelled = [piece.strip() for piece in pieces(tokenizer, encoding.ids)]
    for piece, special, part in zip(spelled, encoding.special, shown(TEXT, locations), strict=True):
        assert part.casefold() == ("" if special else piece.casefold()) or piece in ("�", "[UNK]", "<unk>")
    assert "".join(shown(TEXT, locations)) == "".join(TEXT.split())


def test_a_text_that_lost_its_end_or_its_beginning_keeps_its_places(tokenizer):
    [encoding] = encode(tokenizer, [TEXT])
    ordinary = [at for at, special in enumerate(encoding.special) if not special]
    [whole] = locate(tokenizer, [ReadText(TEXT)], [encoding.ids])
    for gone, from_start in ((ordinary[-4:], False), (ordinary[:4], True)):
        kept = [at for at in range(len(encoding)) if at not in gone]
        ids = [encoding.ids[at] for at in kept]
        [locations] = locate(tokenizer, [ReadText(TEXT, from_start=from_start)], [ids])
        assert locations == [whole[at] for at in kept]


def test_equal_tokens_at_the_cut_are_not_taken_for_each_other():
    tokenizer = AutoTokenizer.from_pretrained(model_dir("gpt2"))
    text = " the the the the keys"
    [encoding] = encode(tokenizer, [text])
    assert encoding.ids[1] == encoding.ids[2], "the same token stands in place of what was cut"
    [locations] = locate(tokenizer, [ReadText(text, from_start=True)], [encoding.ids[1:]])
    assert locations[0] == TokenLocation("text", 5, 8)


def test_tokens_that_the_text_does_not_have_have_no_place():
    tokenizer = AutoTokenizer.from_pretrained(model_dir("gpt2"))
    [encoding] = encode(tokenizer, ["The keys"])
    [locations] = locate(tokenizer, [ReadText("The keys")], [[*encoding.ids, 7]])
    assert locations[-1] == TokenLocation("text")
    assert locations[0] == TokenLocation("text", 0, 3)


def test_a_mask_has_no_characters_and_what_follows_it_is_told_in_the_text_as_written():
    tokenizer = AutoTokenizer.from_pretrained(model_dir("bert"))
    written = "The keys ___ old."
    filled = Filled.of("The keys  old.", 9, tokenizer.mask_token)
    [encoding] = encode(tokenizer, [filled.text])
    read = ReadText(filled.text, filled=filled, mark=3)
    [locations] = locate(tokenizer, [read], [encoding.ids])
    assert shown(written, locations) == ["", "The", "keys", "", "old", ".", ""]


def test_the_tokens_of_a_pair_tell_their_side_also_where_both_were_cut():
    tokenizer = AutoTokenizer.from_pretrained(model_dir("bert-score"))
    first, second = "the cats walk and walk and walk", "the dogs walk"
    for length in (None, 13):
        [encoding] = encode(tokenizer, [first], seconds=[second], max_length=length)
        [locations] = locate(tokenizer, [ReadText(first, second)], [encoding.ids])
        assert [location.side for location in locations] == [
            "text" if at <= encoding.ids.index(tokenizer.sep_token_id) else "second" for at in range(len(locations))
        ]
        of_second = [location for location in locations if location.side == "second"]
        assert second.replace(" ", "").startswith("".join(shown(second, of_second)))
        assert (of_second[0].start, of_second[-1].start) == (0, None)


def test_many_rows_have_the_places_that_each_has_alone(tokenizer):
    texts = [TEXT, "are old", "The keys"]
    ids = [encoding.ids for encoding in encode(tokenizer, texts)]
    reads = [ReadText(text) for text in texts]
    assert locate(tokenizer, reads, ids) == [locate(tokenizer, [r], [i])[0] for r, i in zip(reads, ids, strict=True)]
