"""Runs a model on a sample's ablated prompts.

Shapes: M masks, n units of the sample.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from closelook.evaluation.benchmark.answers.prompts import Prompt, encoded, written
from closelook.lrp_core import ModelView
from closelook.lrp_core.interventions.ablations import REMOVE, AnswerNumbers, answers_after, answers_without
from closelook.lrp_core.records.types import UnusableRows


def answers_of_masks(
    view: ModelView,
    tokenizer: PreTrainedTokenizerBase,
    row: Mapping[str, Any],
    kept: np.ndarray,
    way: str,
    token_budget: int,
) -> AnswerNumbers:
    """The numbers of a sample's answer after its ablated prompts, one prompt for each of the masks `kept` [M, n].

    `row` is the view of the answer. With the way REMOVE, prompts are written and tokenised again without the units that
    a mask removes; other ways replace the units' tokens in place. Raises what `answers_after` and `answers_without`
    raise, and UnusableRows for row 0 if nothing of a prompt is left.
    """
    answer = row["answer_ids"]
    if way == REMOVE:
        prompts = removed(row, kept, tokenizer, open_ended=not view.kind.decoder)
        if not all(prompts):
            raise UnusableRows((0,), "no_prompt", "nothing is left of the prompt without its units")
        return answers_after(view, prompts, answer, token_budget=token_budget)
    prompt = row["input_ids"] if view.kind.decoder else row["input_ids"][: len(row["input_ids"]) - len(answer) + 1]
    units = np.array(row["units"][: len(prompt)])
    belongs = units >= 0
    gone = np.zeros((len(kept), len(prompt)), bool)
    gone[:, belongs] = ~kept[:, units[belongs]]
    return answers_without(view, prompt, answer, gone, way, token_budget=token_budget)


def removed(
    row: Mapping[str, Any], kept: np.ndarray, tokenizer: PreTrainedTokenizerBase, open_ended: bool
) -> list[Sequence[int]]:
    """The token ids of a sample's prompt, written again for each of the masks `kept` [M, n] with the units it keeps."""
    whole = Prompt.of(row["prompt"], {"turns": None if row["turns"] is None else json.loads(row["turns"])})
    texts = [written(whole.without(row["unit_spans"], mask), tokenizer) for mask in kept]
    return [encoded(text, tokenizer, open_ended).ids for text in texts]
