"""The numbers of an answer after ablated prompts, against plain forwards of the stock model in float64."""

import numpy as np
import pytest
import torch

from closelook.lrp_core import UnusableRows, UserError
from closelook.lrp_core.device.precision import unrounded
from closelook.lrp_core.interventions.ablations import AnswerNumbers, answers_after, answers_without
from tests.tiny import BOTH, MORE, TINY, tiny_classifier, tiny_model

pytestmark = pytest.mark.numeric
CAUSAL = sorted(name for name in TINY | MORE if tiny_model(name).kind.causal)
PROMPT, ANSWER = [5, 9, 12, 7, 20, 6, 14, 31], [11, 3, 30]
UNITS = np.array([-1, 0, 0, 1, 1, 2, 2, -1])
SETS = np.array([[False, False, False], [True, False, False], [False, True, True], [True, True, True]])  # units that go
GONE = (UNITS[None] == np.arange(3)[:, None]).T[None] & SETS[:, None]  # [M, P, n]
GONE = GONE.any(-1)


def looked_up(logits, answer=ANSWER):
    """f and l of the answer's tokens from logits [G, V], by the formula."""
    numbers = []
    for row, token in zip(logits.double(), answer, strict=True):
        others = torch.cat([row[:token], row[token + 1 :]])
        numbers.append((float(row[token]), float(row[token] - others.logsumexp(-1))))
    return np.array(numbers).T


@torch.no_grad()
def stock(view, prompt, answer=ANSWER, **options):
    """f and l by one forward of the model as transformers has it, but for its rounding to float32 inside."""
    with unrounded(view.dtype):
        return _stock(view, prompt, answer, **options)


def _stock(view, prompt, answer, **options):
    if view.kind.decoder:
        decoder_ids = torch.tensor([[view.config.decoder_start_token_id, *answer[:-1]]])
        return looked_up(
            view.model(input_ids=torch.tensor([prompt]), decoder_input_ids=decoder_ids, **options).logits[0]
        )
    ids = torch.tensor([[*prompt, *answer[:-1]]])
    return looked_up(view.model(input_ids=ids, **options).logits[0, len(prompt) - 1 :], answer)


def same(ours: AnswerNumbers, expected, bound=1e-9):
    logits, log_odds = zip(*expected, strict=True)
    np.testing.assert_allclose(ours.logits, np.stack(logits), rtol=bound, atol=bound)
    np.testing.assert_allclose(ours.log_odds, np.stack(log_odds), rtol=bound, atol=bound)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("family", [*CAUSAL, *sorted(BOTH)])
def test_prompts_without_some_tokens_are_read_as_by_plain_forwards(family):
    view = tiny_model(family)
    prompts = [[token for token, gone in zip(PROMPT, row, strict=True) if not gone] for row in GONE]
    prompts.append(prompts[1])  # one comes twice
    ours = answers_after(view, prompts, ANSWER, token_budget=24)
    same(ours, [stock(view, prompt) for prompt in prompts])
    same(answers_without(view, PROMPT, ANSWER, GONE, "delete"), [stock(view, prompt) for prompt in prompts[:-1]])


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox", "opt", "t5", "bart"])
def test_what_is_cut_is_seen_by_no_query_in_any_layer_and_positions_stay(family):
    view = tiny_model(family)
    expected = []
    for gone in GONE:
        seen = torch.tensor([(~gone).astype(int).tolist()])
        options = {"attention_mask": seen}
        if not view.kind.decoder:
            options["attention_mask"] = torch.nn.functional.pad(seen, (0, len(ANSWER) - 1), value=1)
            options["position_ids"] = torch.arange(len(PROMPT) + len(ANSWER) - 1)[None]
        expected.append(stock(view, PROMPT, **options))
    ours = answers_without(view, PROMPT, ANSWER, GONE, "cut", token_budget=24)
    same(ours, expected)
    assert np.ptp(ours.log_odds, axis=0).min() > 1e-6, "what is cut makes a difference"


def test_a_token_that_is_zeroed_has_a_zero_embedding():
    view = tiny_model("llama")
    expected = []
    for gone in GONE:
        ids = torch.tensor([[*PROMPT, *ANSWER[:-1]]])
        words = view.token_embedding(ids) * torch.tensor([*~gone, True, True])[None, :, None]
        with torch.no_grad(), unrounded(view.dtype):
            expected.append(looked_up(view.model(inputs_embeds=words).logits[0, len(PROMPT) - 1 :]))
    same(answers_without(view, PROMPT, ANSWER, GONE, "zero"), expected)


def test_bad_input_is_refused_in_a_line():
    view = tiny_model("gpt2")
    with pytest.raises(UserError, match="prompt 1 of 2 is empty: give at least one token"):
        answers_after(view, [PROMPT, []], ANSWER)
    with pytest.raises(UserError, match="`answer` is empty: give at least one token"):
        answers_after(view, [PROMPT], [])
    for way in ("burn", "mask"):
        with pytest.raises(UserError, match=f"no way '{way}' to ablate; choose cut"):
            answers_without(view, PROMPT, ANSWER, GONE, way)
    with pytest.raises(UserError, match="write the prompts again"):
        answers_without(view, PROMPT, ANSWER, GONE, "remove")
    with pytest.raises(UnusableRows, match="the model takes"):
        answers_after(view, [PROMPT * 40], ANSWER)
    with pytest.raises(UserError, match="write no answers"):
        answers_after(tiny_classifier("bert"), [PROMPT], ANSWER)
    with pytest.raises(UserError, match="write no answers"):
        answers_after(tiny_model("bert"), [PROMPT], ANSWER)
