"""Answers of several tokens: spans are sums of what each token has; shares of what was read."""

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoTokenizer

import closelook
from closelook.evaluation.benchmark.demo import model_dir
from closelook.evaluation.benchmark.encoding import encoding_of_ids
from closelook.explaining import explained as computing
from closelook.explaining.answer import AnswerText, Span
from closelook.explaining.reading import View
from closelook.lrp_core import Batch
from closelook.lrp_core.verification.stock import without_biases
from tests.explaining.test_one_call import CHAT

PROMPT, ANSWER = "The keys to the", "cabinet are old. The girl sees the dogs."
LINEAR = ["attnlrp", "lrp", "gradient_x_input", "alti_logit", "occlusion"]
FAMILIES = ["demo/gpt2", "demo/llama", "demo/t5"]


@pytest.fixture(scope="module")
def gpt2():
    return closelook.open_model("demo/gpt2")


def of(model, answer=ANSWER, **asked):
    return closelook.explain(
        "where did the clerk go ?" if "t5" in str(model) else PROMPT, answer=answer, model=model, **asked
    )


@pytest.mark.parametrize("model", FAMILIES)
def test_a_span_is_the_sum_of_its_tokens(model):
    opened = closelook.open_model(model)
    answer = "on Thursday" if "t5" in model else ANSWER
    methods = [name for name in LINEAR if not closelook.METHODS[name].missing(opened.view.family.capabilities)]
    whole = of(opened, answer, method=methods)
    rows = of(opened, answer, method=methods, spans="token")
    sentences = of(opened, answer, method=methods, spans="sentence")
    assert len(whole.answers) == 1
    assert len(rows.answers) == len(whole.answers[0].answer.ids)
    for name in methods:
        for coarse, parts in ((whole, rows), (whole, sentences)):
            expected = parts[name].nan_to_num()
            expected = expected.sum(0) if expected.dim() == 2 else expected
            total = parts[name].nan_to_num().abs().sum()
            assert (coarse[name] - expected).abs().max() <= 1e-5 * total
        explained = sum(float(answer.relevance[name].explained[0]) for answer in rows.answers)
        assert float(whole.relevance(name)[0].explained[0]) == pytest.approx(explained, rel=1e-5)


def test_a_row_of_a_token_is_that_token_explained_alone(gpt2):
    rows = of(gpt2, spans="token")
    answer = rows.answers[0].answer
    for at in (0, 3, len(answer.ids) - 1):
        before = [*answer.prompt.input_ids, *answer.ids[:at]]
        row = {"input_ids": before, "position": len(before) - 1, "target_id": answer.ids[at]}
        alone = closelook.METHODS["attnlrp"](gpt2.view, Batch.collate([row], 0)).tokens[0]
        torch.testing.assert_close(rows["attnlrp"][at, : len(before)], alone, rtol=1e-4, atol=1e-5)
        assert rows["attnlrp"][at, len(before) :].isnan().all()


def test_all_spans_share_one_forward(gpt2):
    forwards = []
    hook = gpt2.view.model.base_model.register_forward_hook(lambda *_: forwards.append(1))
    rows = of(gpt2, spans="token", method=["attnlrp", "gradient_l2"])
    hook.remove()
    assert len(forwards) == 1 + 1, "one of each method"
    assert len(rows.answers) > 10


def test_more_rows_than_are_held_at_once_are_the_same(gpt2, monkeypatch):
    whole = of(gpt2, spans="token")["attnlrp"]
    monkeypatch.setattr(computing, "_AT_ONCE", 3)
    torch.testing.assert_close(of(gpt2, spans="token")["attnlrp"], whole, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_spans_are_sentences_tokens_or_characters(gpt2):
    sentences = of(gpt2, spans="sentence")
    assert [answer.target for answer in sentences.answers] == ["cabinet are old.", "The girl sees the dogs."]
    assert [ANSWER[start:end] for start, end in sentences.spans] == ["cabinet are old.", "The girl sees the dogs."]
    assert sentences.answer == ANSWER
    girl = ANSWER.index("girl")
    chosen = of(gpt2, spans=[(girl, girl + 4), (0, 7)])
    assert [answer.target for answer in chosen.answers] == ["girl", "cabinet"]
    assert chosen.tokens == chosen.answers[0].tokens
    assert chosen["attnlrp"].isnan().sum(1).tolist() == [0, len(chosen.tokens) - len(chosen.answers[1].tokens)]
    both = of(gpt2, spans=[(0, len(ANSWER))])
    torch.testing.assert_close(both["attnlrp"], of(gpt2)["attnlrp"])
    assert "".join(answer.token for answer in of(gpt2, spans="token").answers).strip() == ANSWER


def test_a_sentence_without_a_token_of_its_own_is_left_out_but_no_part_that_a_caller_names():
    answer = AnswerText(
        View([], [], 0), [1, 2], "Yes. We. Not so.", np.array([[0, 4], [4, 16]]), ["Yes.", " We. Not so."]
    )
    assert answer.spans("sentence") == [Span(0, 4, 0, 1), Span(9, 16, 1, 2)]
    with pytest.raises(closelook.UserError, match=r"no token of the answer belongs to 'We\.': widen \(5, 8\)"):
        answer.spans([(0, 4), (5, 8), (9, 16)])


def test_the_tokens_of_an_answer_are_never_cut_again(gpt2):
    tokenizer = gpt2.tokenizer
    prompt = tokenizer(PROMPT)["input_ids"]
    odd = [token for word in (" cab", "in", "et", " are") for token in tokenizer(word)["input_ids"]]
    assert odd != tokenizer(" cabinet are")["input_ids"], "else the test sees nothing"
    for text in (PROMPT, prompt):
        explanation = closelook.explain(text, answer=odd, model=gpt2, spans=[(0, 7)])
        [answer] = explanation.answers
        assert explanation.answer == "cabinet are"
        assert answer.view.input_ids == [*prompt, *odd[:-2]]
        assert [token for _, token, _ in answer.view.span] == odd[:-1]


@pytest.mark.parametrize("text", ["The key 🔑 opens – naïve 東京!", "a\n\n b  c", "🔑🔑"])
def test_characters_of_tokens_are_told_from_their_ids(text):
    tokenizer = AutoTokenizer.from_pretrained(model_dir("gpt2"))
    ids = tokenizer(text)["input_ids"]
    encoding, spelt = encoding_of_ids(ids, tokenizer)
    assert spelt == text
    expected = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    for (start, end), (low, high) in zip(encoding.offsets.tolist(), expected, strict=True):
        assert text[start:end].strip() == text[low:high].strip()
    behind, rest = encoding_of_ids(ids[3:], tokenizer, after=ids[:3])
    assert len(behind) == len(ids) - 3
    assert text.endswith(rest.lstrip("�")) or "�" in tokenizer.decode(ids[:3])


def test_a_generated_answer_is_what_the_model_says_token_by_token(gpt2):
    for model, prompt in ((gpt2, PROMPT), ("demo/t5", "where did the clerk go ?"), ("demo/llama", PROMPT)):
        by_token = closelook.explain(prompt, generate=6, model=model, method="random")
        explanation = closelook.explain(prompt, generate=6, spans="token", model=model, method="random")
        stop = (gpt2 if model is gpt2 else closelook.open_model(model)).writer.eos_token_id
        expected = [answer.view.target_id for answer in by_token.answers]
        assert explanation.answers[0].answer.ids == expected[: expected.index(stop) if stop in expected else None]


@pytest.mark.parametrize("settings", [{"num_beams": 3}, {"repetition_penalty": 5.0, "do_sample": True}])
def test_an_answer_is_generated_without_the_settings_of_a_models_own(settings):
    opened = closelook.open_model("demo/llama")
    plain = closelook.explain(PROMPT, generate=6, spans="token", model=opened, method="random")
    usual = opened.view.model.generation_config
    usual.update(**settings)
    same = closelook.explain(PROMPT, generate=6, spans="token", model=opened, method="random")
    assert same.answers[0].answer.ids == plain.answers[0].answer.ids
    assert opened.view.model.generation_config is usual


def test_the_last_message_of_the_assistant_is_the_answer(gpt2):
    chat = AutoTokenizer.from_pretrained(model_dir("gpt2"), chat_template=CHAT)
    asked = [{"role": "system", "content": "the dogs"}, {"role": "user", "content": "The keys to the cabinet ?"}]
    settings = {
        "model": closelook.open_model(gpt2.view, tokenizer=chat),
        "method": ["lrp", "gradient_l2", "alti_logit"],
    }
    ours = closelook.explain([*asked, {"role": "assistant", "content": ANSWER}], spans="sentence", **settings)
    same = closelook.explain(asked, answer=ANSWER, spans="sentence", **settings)
    torch.testing.assert_close(ours["lrp"], same["lrp"], equal_nan=True)
    frame = ours.shares()
    kept = {"biases", "attention"}
    assert set(frame["part"]) == {"first token", "template", "system", "user", "answer so far", "rest", *kept}
    for (at, name), rows in frame.groupby(["answer", "method"]):
        relevance = ours.relevance(name)[at]
        assert rows["share"].sum() == pytest.approx(1)
        without = rows[rows["part"] != "first token"]
        assert without["share_without_first"].sum() == pytest.approx(1)
        assert rows[rows["part"] == "first token"]["share_without_first"].isna().all()
        parts = dict(zip(rows["part"], rows["relevance"], strict=True))
        if name == "gradient_l2":
            assert not {"rest", *kept} & set(parts)
            continue
        assert kept & set(parts) == (kept if name == "lrp" else set())
        assert sum(parts.values()) == pytest.approx(float(relevance.explained[0]), rel=1e-4)
    names, tokens = ours.answers[0].view.part_names, ours.answers[0].tokens
    assert "".join(token for name, token in zip(names, tokens, strict=True) if name == "system").strip() == "the dogs"
    user = "".join(token for name, token in zip(names, tokens, strict=True) if name == "user")
    assert user.replace(" ", "") == "Thekeystothecabinet?"
    of_user = sum(value for name, value in zip(names, ours["lrp"][0].tolist(), strict=False) if name == "user")
    assert float(
        frame.query("answer == 0 and method == 'lrp' and part == 'user'")["relevance"].iloc[0]
    ) == pytest.approx(of_user)


def test_shares_of_an_encoder_decoder_have_both_sides():
    explanation = closelook.explain("where did the clerk go ?", answer="on Thursday", spans="token", model="demo/t5")
    parts = explanation.shares().query("answer == 1").set_index("part")["relevance"]
    relevance = explanation.relevance("attnlrp")[1]
    assert list(parts.index) == ["prompt", "template", "first token", "answer so far", "rest"]
    assert parts["first token"] == pytest.approx(float(relevance.decoder_tokens[0, 0]))
    assert parts["answer so far"] == pytest.approx(float(relevance.decoder_tokens[0, 1:].sum()))
    assert parts.sum() == pytest.approx(float(relevance.explained[0]), rel=1e-4)


def test_a_decoder_goes_on_with_what_it_has_said():
    settings = {"model": "demo/t5", "method": "lrp"}
    whole = closelook.explain("where did the clerk go ?", answer="on Thursday", spans="token", **settings)
    behind = closelook.explain("where did the clerk go ?", prefix="on", answer="Thursday", **settings)
    ids = whole.answers[0].answer.ids
    assert behind.answers[0].view.decoder_input_ids == whole.answers[-1].view.decoder_input_ids
    assert behind.answers[0].answer.ids == ids[len(ids) - len(behind.answers[0].answer.ids) :]


def test_a_span_is_a_row_of_a_frame_and_a_record(gpt2):
    explanation = of(gpt2, spans="sentence")
    frame = explanation.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert set(frame["answer"]) == {0, 1}
    record = explanation.to_dict()
    assert record["answer"] == ANSWER
    assert [tuple(prediction["span"]) for prediction in record["predictions"]] == explanation.spans
    shares = record["predictions"][0]["methods"][0]["shares"]
    assert [share["part"] for share in shares] == [
        "first token",
        "prompt",
        "answer so far",
        "biases",
        "attention",
        "rest",
    ]


def test_a_model_without_biases_has_no_relevance_of_biases_but_what_attention_keeps(gpt2):
    with without_biases(gpt2.view.model):
        frame = of(gpt2, spans="sentence", method=["attnlrp", "lrp"]).shares()
    shares = frame.groupby(["method", "part"])["share"].max()
    assert shares[:, "biases"].tolist() == [0, 0]
    assert shares["attnlrp", "attention"] > 0.1, "the rule of the softmax keeps relevance"
    assert shares["lrp", "attention"] < 1e-4, "attention weights are constants"
    assert shares[:, "rest"].max() < 1e-4


@pytest.mark.parametrize("explanation", ["target", "log_prob"])
def test_the_explained_number_of_an_answer_may_be_its_log_probability(gpt2, explanation):
    ours = of(gpt2, explanation=explanation, method="gradient_x_input")
    answer = ours.answers[0].answer
    ids = torch.tensor([[*answer.prompt.input_ids, *answer.ids]])
    logits = gpt2.view.model(ids).logits[0, len(answer.prompt.input_ids) - 1 : -1].double()
    numbers = logits if explanation == "target" else logits.log_softmax(-1)
    expected = sum(numbers[at, token] for at, token in enumerate(answer.ids))
    assert float(ours.relevance("gradient_x_input")[0].explained[0]) == pytest.approx(float(expected), rel=1e-4)


def test_a_long_prompt_makes_room_for_its_answer(gpt2):
    long = "The girl sees the dogs. " * 30
    explanation = closelook.explain(long, answer=ANSWER, model=gpt2, truncate=True, method="lrp")
    [answer] = explanation.answers
    assert len(answer.view.input_ids) == gpt2.view.max_length
    assert answer.view.cut > 0
    assert len(answer.view.part_names) == len(answer.view.input_ids)


def test_a_list_of_answers_is_explained_one_by_one(gpt2):
    explained = closelook.explain(
        [PROMPT, "The girl", ""], answer=["cabinet are", "sees", "dogs"], model=gpt2, method="lrp"
    )
    assert [explanation.answer for explanation in explained[:2]] == ["cabinet are", "sees"]
    assert sorted(explained.errors) == [2]
