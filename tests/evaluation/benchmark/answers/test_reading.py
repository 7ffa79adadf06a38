"""Views of answers: their tokens, units and sentences, for causal models, chats and encoder-decoders."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from closelook.evaluation.ablations.running import removed
from closelook.evaluation.benchmark.answers.prompts import NO_UNIT
from closelook.evaluation.benchmark.demo import model_dir
from closelook.evaluation.benchmark.samples import sample
from closelook.evaluation.benchmark.sources.generations import parse
from closelook.evaluation.benchmark.sources.own import parse as own
from closelook.evaluation.benchmark.views import tokenise
from closelook.evaluation.schema import ANSWER_VIEW, VIEW, titled
from closelook.lrp_core.records.kinds import CAUSAL, ENCODER_DECODER

PROMPT = "Context: Alice opened a shop in Rome. Carl lost a ring on Monday. Question: Who opened a shop? Answer:"
PASSAGES = ["Alice opened a shop in Rome.", "Carl lost a ring on Monday."]
ROW = {"prompt": PROMPT, "answer": "Alice did. In Rome.", "sources": PASSAGES, "evidence": PASSAGES[0]}
CHAT = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def tokenizer(request):
    return AutoTokenizer.from_pretrained(model_dir(request.param))


def view_of(row, tokenizer, kind=CAUSAL, max_length=128, **options):
    views, rejects = tokenise([row], tokenizer, kind=kind, max_length=max_length, words="all", **options)
    assert not rejects, rejects
    return views[0]


def why(row, tokenizer, kind=CAUSAL, max_length=128, **options):
    views, [reject] = tokenise([row], tokenizer, kind=kind, max_length=max_length, words="all", **options)
    assert not views
    return f"{reject['reason']}: {reject['detail']}"


def test_the_answers_tokens_stand_behind_the_prompts_and_are_explained_where_they_are_predicted(tokenizer):
    view = view_of(own(ROW), tokenizer)
    prompt = tokenizer(PROMPT)["input_ids"]
    assert view["input_ids"] == [*prompt, *view["answer_ids"][:-1]]
    assert tokenizer.decode(view["answer_ids"]) == " Alice did. In Rome."
    assert (view["position"], view["target_id"]) == (len(view["input_ids"]) - 1, view["answer_ids"][-1])


def test_units_are_the_passages_and_evidence_tells_which(tokenizer):
    view = view_of(own(ROW), tokenizer)
    for unit, passage in enumerate(PASSAGES):
        ids = [token for token, own_unit in zip(view["input_ids"], view["units"], strict=True) if own_unit == unit]
        assert tokenizer.decode(ids).strip() == passage
    assert view["unit_evidence"] == [True, False]
    assert set(view["units"][-len(view["answer_ids"]) :]) == {NO_UNIT}


def test_sentences_of_the_answer_are_told_by_token(tokenizer):
    view = view_of(own(ROW), tokenizer)
    texts = []
    for part in range(2):
        ids = [token for token, of in zip(view["answer_ids"], view["answer_parts"], strict=True) if of == part]
        texts.append(tokenizer.decode(ids).strip())
    assert texts == ["Alice did.", "In Rome."]
    assert [view["answer"][start:end] for start, end in view["answer_spans"]] == texts


def test_a_prompt_without_units_is_written_again_and_its_answer_is_not_split_again(tokenizer):
    view = view_of(own(ROW), tokenizer)
    [whole, first] = removed(view, np.array([[True, True], [False, True]]), tokenizer, open_ended=True)
    assert whole == view["input_ids"][: len(whole)]
    assert len(whole) == len(view["input_ids"]) - len(view["answer_ids"]) + 1
    assert first == tokenizer(PROMPT.replace(f" {PASSAGES[0]}", ""))["input_ids"]


def test_chats_are_read_through_the_template_and_messages_go_with_their_headers():
    tokenizer = AutoTokenizer.from_pretrained(model_dir("gpt2"), chat_template=CHAT)
    messages = [
        {"role": "user", "content": " Alice is old. "},
        {"role": "assistant", "content": "I see."},
        {"role": "user", "content": "Who is old?"},
    ]
    view = view_of(parse({"messages": messages, "answer": "Alice."}), tokenizer, units="turn")
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(view["input_ids"]) + "." == text + "Alice."
    units = [
        tokenizer.decode([token for token, of in zip(view["input_ids"], view["units"], strict=True) if of == unit])
        for unit in range(2)
    ]
    assert units == ["Alice is old.", "I see."]
    [without] = removed(view, np.array([[False, True]]), tokenizer, open_ended=True)
    assert tokenizer.decode(without) == "<assistant>I see.\n<user>Who is old?\n<assistant>"


def test_part_of_a_message_goes_without_its_header():
    tokenizer = AutoTokenizer.from_pretrained(model_dir("gpt2"), chat_template=CHAT)
    messages = [{"role": "user", "content": "Alice is old. Carl is not. Who is old?"}]
    row = parse({"messages": messages, "answer": "Alice.", "sources": ["Alice is old.", "Carl is not."]})
    view = view_of(row, tokenizer)
    [without] = removed(view, np.array([[True, False]]), tokenizer, open_ended=True)
    assert tokenizer.decode(without) == "<user>Alice is old. Who is old?\n<assistant>"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "the tokenizer has no chat template: give `prompt` in place of `messages`"),
        (
            "{{ raise_exception('roles must alternate') }}",
            "the chat template refuses the messages: roles must alternate",
        ),
        ("{% for m in messages %}{{ m['content'] | upper }}{% endfor %}", "the chat template changes the messages"),
        ("{{ messages[0]['content'] }}{{ messages[0]['content'] }}", "the chat template changes the messages"),
    ],
)
def test_chats_that_a_template_cannot_write_are_rejects(template, reason):
    tokenizer = AutoTokenizer.from_pretrained(model_dir("gpt2"), chat_template=template)
    row = parse({"messages": [{"role": "user", "content": "One. Two. Why?"}], "answer": "x", "units": [[0, 4], [5, 9]]})
    assert reason in why(row, tokenizer)


def test_logged_answers_are_read_as_they_are_written(tokenizer):
    log = {"prompt": PROMPT + "\n", "answer": "Alice\n did", "sources": PASSAGES}
    view = view_of(parse(log), tokenizer)
    assert tokenizer.decode(view["input_ids"] + view["answer_ids"][-1:]).endswith(PROMPT + "\nAlice\n did")


def test_the_tokens_of_an_answer_are_those_behind_its_prompt_where_it_would_be_split_otherwise_alone():
    words = Tokenizer(BPE({letter: number for number, letter in enumerate(ByteLevel.alphabet())}, []))
    words.pre_tokenizer, words.decoder = ByteLevel(add_prefix_space=True), ByteLevelDecoder()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    row = parse({"prompt": "A b. C d. Why?\n", "answer": "yes", "sources": ["A b.", "C d."]})
    view = view_of(row, tokenizer)
    assert tokenizer.decode(tokenizer("yes")["input_ids"]) == " yes", "alone it has a space"
    assert tokenizer.decode(view["answer_ids"]) == "yes"


def test_an_answer_that_melts_into_the_prompt_has_tokens_of_its_own(tokenizer):
    row = parse({"prompt": PROMPT[: -len("swer:")], "answer": "swer: yes", "sources": PASSAGES})
    view = view_of(row, tokenizer)
    assert view["input_ids"][: -len(view["answer_ids"]) + 1] == tokenizer(PROMPT[: -len("swer:")])["input_ids"]
    assert tokenizer.decode(view["answer_ids"]) == "swer: yes"


def test_an_encoder_decoder_reads_the_prompt_and_its_decoder_the_answer():
    tokenizer = AutoTokenizer.from_pretrained(model_dir("t5"))
    view = view_of(own(ROW), tokenizer, ENCODER_DECODER)
    assert view["input_ids"] == tokenizer(PROMPT)["input_ids"]
    assert view["decoder_input_ids"] == view["answer_ids"][:-1]
    assert view["position"] == len(view["answer_ids"]) - 1
    assert tokenizer.decode(view["answer_ids"]) == "Alice did. In Rome."


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"units": [[9, 37], [20, 65]]}, "overlapping units: [9, 37) and [20, 65)"),
        ({"sources": PASSAGES[:1]}, "fewer than two sources: 1"),
        ({"units": [[0, 30], [30, len(PROMPT)]]}, "the units cover the whole prompt"),
        ({"evidence": "Who opened a shop?"}, "the evidence is in no unit"),
        ({"units": [[9, 10], [10, 11]]}, "a unit has no token of its own: 'A'"),
    ],
)
def test_what_cannot_be_a_view_of_an_answer_is_told_in_a_line(changes, reason):
    assert reason in why(own(ROW | changes), AutoTokenizer.from_pretrained(model_dir("gpt2")))


def test_a_row_that_does_not_fit_the_context_is_a_reject_that_says_so(tokenizer):
    length = len(view_of(own(ROW), tokenizer)["input_ids"])
    assert view_of(own(ROW), tokenizer, max_length=length)["length"] == length
    assert why(own(ROW), tokenizer, max_length=length - 1) == f"too long: {length} tokens, the model takes {length - 1}"
    assert "too long" in why(own(ROW | {"answer": "yes " * 200}), tokenizer)


def test_an_answer_that_the_tokenizer_does_not_reproduce_is_a_reject():
    lower = AutoTokenizer.from_pretrained(model_dir("bert"))
    assert "the tokenizer does not reproduce the answer: ' Alice did. In Rome.'" in why(own(ROW), lower)


def test_special_tokens_in_what_is_said_are_refused(tokenizer):
    row = own(ROW | {"answer": f"yes {tokenizer.eos_token}"})
    assert "a special token of the tokenizer in the text" in why(row, tokenizer)


def test_an_answer_has_no_foil_and_stands_at_the_end(tokenizer):
    row = sample("x", "One. Two. ___", 10, "a", "b", meta={"units": [[0, 4], [5, 9]]})
    assert "no answer behind a prompt" in why(row, tokenizer)
    row = sample("x", "One. Two. Why", 13, "a", "b", meta={"units": [[0, 4], [5, 9]]})
    assert "has no foil" in why(row, tokenizer)


def test_views_of_answers_can_be_read_as_views():
    assert titled(ANSWER_VIEW) == titled(VIEW)
    assert ANSWER_VIEW.names[: len(VIEW.names)] == VIEW.names
    assert all(ANSWER_VIEW.field(name).nullable for name in set(ANSWER_VIEW.names) - set(VIEW.names))


def test_a_chats_turns_are_kept_for_writing_it_again():
    tokenizer = AutoTokenizer.from_pretrained(model_dir("gpt2"), chat_template=CHAT)
    messages = [{"role": "user", "content": "One. Two. Why?"}]
    view = view_of(parse({"messages": messages, "answer": "x", "units": [[0, 4], [5, 9]]}), tokenizer)
    assert json.loads(view["turns"]) == [["user", 0, 14]]
