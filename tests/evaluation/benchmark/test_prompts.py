"""Prompts before a slot: every character of the text but one ordinary space, which belongs to the target."""

import hashlib
import json

import pytest
from transformers import AutoTokenizer

from closelook.evaluation.benchmark.demo import ANSWERING, HEADS, MODELS, TASKS, generate, model_dir
from closelook.evaluation.benchmark.encoding import encode
from closelook.evaluation.benchmark.samples import Prompt, sample, with_evidence
from closelook.evaluation.benchmark.views import tokenise
from closelook.jobs.tasks import tasks
from closelook.lrp_core.records import kinds

TEXT = "The keys to the cabinet"
#: What stands before the slot, what is read of it, and what the target brings along.
ENDS = [
    (TEXT, TEXT, " "),
    (f"{TEXT} ", TEXT, " "),
    (f"{TEXT}  ", f"{TEXT} ", " "),
    (f"{TEXT}\n", f"{TEXT}\n", ""),
    (f"{TEXT}\n\n", f"{TEXT}\n\n", ""),
    (f"{TEXT}\n ", f"{TEXT}\n", " "),
    (f"{TEXT}\t", f"{TEXT}\t", ""),
    (f"{TEXT}\u00a0", f"{TEXT}\u00a0", ""),
    (f" {TEXT}", f" {TEXT}", " "),
    (f"{TEXT} (", f"{TEXT} (", ""),
    (f'{TEXT} "', f'{TEXT} "', ""),
    (f'{TEXT} "of" "', f'{TEXT} "of" "', ""),
    (f'"{TEXT}"', f'"{TEXT}"', " "),
    (f"{TEXT} self-", f"{TEXT} self-", ""),
    (f"{TEXT} -", f"{TEXT} -", " "),
    (f"{TEXT}.", f"{TEXT}.", " "),
    (f"{TEXT} 我喜欢", f"{TEXT} 我喜欢", ""),
    (f"{TEXT} ฉันรัก", f"{TEXT} ฉันรัก", ""),
]
#: How words follow TEXT, and TEXT with a space behind it.
FOLLOWING = [("are", " are", " are"), (".", ".", " ."), ("'s", "'s", " 's"), (")", ")", " )"), ("猫", "猫", " 猫")]
#: The views of samples of the demo by its tokenizers, as they were before prompts were left as they are.
SHIPPED = "8295a4b195bfd71229acc65f4cc9bf82b63dd41b18d6ff4666b2513a7166e013"
COLUMNS = ("sample_id", "input_ids", "decoder_input_ids", "position", "target_id", "foil_id", "special_mask")
KIND_OF = {"bert": kinds.MASKED, "gpt2": kinds.CAUSAL, "llama": kinds.CAUSAL, "t5": kinds.ENCODER_DECODER}
KIND_OF |= {name: kinds.CAUSAL_CLASSIFIER if name.startswith("gpt2") else kinds.CLASSIFIER for name in HEADS}


def asked(before, after="", target="are", foil="the"):
    """A sample with a slot behind `before`."""
    row = sample("t", before + after, len(before), target, foil)
    start = before.index("keys")
    return with_evidence(row, [(start, start + len("keys"))])


def view_of(tokenizer, row, kind=kinds.CAUSAL):
    [view], rejects = tokenise([row], tokenizer, kind=kind, max_length=1000, words="first_difference")
    assert not rejects
    return view


@pytest.mark.parametrize(("before", "read", "space"), ENDS)
def test_one_ordinary_space_before_the_slot_belongs_to_the_target_and_every_other_character_is_read(
    before, read, space
):
    assert Prompt.of(before)[:2] == (read, space)
    assert Prompt.of(before, has_spaces=False) == (read, "", False)


@pytest.mark.parametrize(("word", "after_text", "after_space"), FOLLOWING)
def test_a_word_follows_as_texts_are_written_unless_the_text_has_the_space(word, after_text, after_space):
    assert Prompt.of(TEXT).with_target(word) == TEXT + after_text
    assert Prompt.of(f"{TEXT} ").with_target(word) == TEXT + after_space


@pytest.mark.parametrize("kind", ["bpe", "bpe_bos"])
@pytest.mark.parametrize(("before", "read", "space"), ENDS)
def test_causal_models_read_the_tokens_that_the_tokenizer_makes_of_the_unchanged_text(
    tokenizers, kind, before, read, space
):
    tokenizer = tokenizers[kind]
    view = view_of(tokenizer, asked(before))
    assert view["input_ids"] == tokenizer(read)["input_ids"]
    assert tokenizer.decode([view["target_id"]]) in ({" are", " a"} if space else {"are", "a"})
    marked = [token for token, marked in zip(view["input_ids"], view["evidence_mask"], strict=True) if marked]
    assert tokenizer.decode(marked).strip() == "keys"


def test_a_masked_model_is_asked_for_the_word_as_it_stands_behind_its_own_white_space(tokenizers):
    tokenizer = tokenizers["roberta"]
    for between, word in ((" ", " t"), ("", " t"), ("\n", "t")):
        view = view_of(tokenizer, asked(TEXT + between, " old .", "t", "o"), kinds.MASKED)
        assert tokenizer.decode([view["target_id"]]) == word


def test_a_tokenizer_without_spaces_is_asked_for_the_target_itself(shared):
    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "g2p-bart")
    row = with_evidence(sample("t", "cab", 3, "i", "n"), [(0, 1)])
    view = view_of(tokenizer, row)
    assert [*view["input_ids"], view["target_id"]] == tokenizer("cabi")["input_ids"][:-1]


@pytest.mark.parametrize(("kind", "opening"), [("bpe_bos", "<s>"), ("roberta", "<s>")])
def test_a_text_that_begins_with_bos_gets_no_second_one(tokenizers, kind, opening):
    tokenizer = tokenizers[kind]
    [encoding] = encode(tokenizer, [opening + TEXT])
    [plain] = encode(tokenizer, [TEXT])
    assert encoding.ids == plain.ids
    assert encoding.special.tolist() == plain.special.tolist()
    assert (encoding.offsets[1:-1] == plain.offsets[1:-1] + len(opening)).all()
    view = view_of(tokenizer, asked(opening + TEXT))
    assert view["input_ids"] == tokenizer(opening + TEXT, add_special_tokens=False)["input_ids"]


def test_a_pair_that_begins_with_the_templates_first_token_gets_no_second_one():
    tokenizer = AutoTokenizer.from_pretrained(model_dir("bert-score"))
    pair, bare = (encode(tokenizer, [text], seconds=["the dogs"])[0] for text in ("[CLS] the cats", "the cats"))
    assert (pair.ids, pair.types) == (bare.ids, bare.types)
    assert pair.sequence.tolist() == bare.sequence.tolist()


def test_special_tokens_elsewhere_in_a_text_are_rejected_still(tokenizers):
    for kind, text in (("bpe_bos", f"<s><s>{TEXT}"), ("bpe_bos", f"{TEXT}<s>"), ("wordpiece", f"{TEXT} [MASK] to")):
        views, rejects = tokenise([asked(text)], tokenizers[kind], kind=kinds.CAUSAL, max_length=100)
        assert (views, rejects[0]["reason"]) == ([], "a special token of the tokenizer in the text")


OLDER_HEADS = ("bert-sentiment", "gpt2-sentiment", "bert-score")  # those that there were when SHIPPED was made


def test_shipped_tasks_have_the_tokens_that_they_had():
    digest = hashlib.sha256()
    for task in TASKS:
        record = tasks()[task]
        if record.image:
            continue
        rows = list(generate(task, 20, 0))
        for name in (*MODELS, *ANSWERING, *OLDER_HEADS):
            tokenizer = AutoTokenizer.from_pretrained(model_dir(name))
            options = {"answers": record.answer, "words": record.words, "beginning": record.beginning}
            views, rejects = tokenise(rows, tokenizer, kind=KIND_OF[name], max_length=128, **options)
            ids = [[view.get(column) for column in COLUMNS] for view in views]
            digest.update(json.dumps([task, name, ids, [reject["sample_id"] for reject in rejects]]).encode())
    assert digest.hexdigest() == SHIPPED
