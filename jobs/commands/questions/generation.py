"""Generation as the model's own `generate` does it, but greedy: how it begins, which tokens it never gives."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationConfig

from closelook.evaluation.benchmark.samples import Row
from closelook.jobs.commands.questions.opened import Opened
from closelook.lrp_core.device.precision import unrounded
from closelook.lrp_core.records.types import UserError
from closelook.lrp_core.views.guard import undisturbed
from closelook.terminal import complain

#: Settings of generation_config.json that change predictions and are not followed, with the values that change nothing.
_NOT_FOLLOWED: dict[str, tuple[Any, ...]] = {
    "do_sample": (False,),
    "num_beams": (1,),
    "penalty_alpha": (0.0,),
    "repetition_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "bad_words_ids": (),
    "sequence_bias": (),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1.0,),
}
_told: set[tuple[str, ...]] = set()  # (model, its settings) that this process has told of


def tell_ignored(opened: Opened) -> None:
    """Tell, once for each model, which settings of its `generate` its explained predictions do not follow."""
    view = opened.view
    settings = None if view.kind.labels or view.kind.slot else view.model.generation_config
    if settings is None:  # a model that does not generate
        return
    values = {name: getattr(settings, name) for name in _NOT_FOLLOWED}
    if not view.kind.decoder:
        values["forced_bos_token_id"] = settings.forced_bos_token_id
    ignored = [f"{name} {value}" for name, value in values.items() if value not in (None, *_NOT_FOLLOWED.get(name, ()))]
    told = opened.id, *ignored
    if ignored and told not in _told:
        _told.add(told)
        complain(f"{opened.id}: the most probable token is explained; `generate` also follows {', '.join(ignored)}")


def generated(prompt: Row, most: int, opened: Opened) -> list[int]:
    """The token ids of the model's own answer, decoded greedily up to an end token or `most` tokens.

    Raises UserError if the first token is an end token.
    """
    view = opened.view
    tell_ignored(opened)
    usual = view.model.generation_config
    known = (opened.writer.eos_token_id, view.config.eos_token_id, usual.eos_token_id)
    ends = {end for ids in known if ids is not None for end in (ids if isinstance(ids, list) else [ids])}
    start = (prompt.get("decoder_input_ids") or [None])[0]
    settings = GenerationConfig(
        max_new_tokens=most,
        do_sample=False,
        eos_token_id=sorted(ends) or None,
        pad_token_id=view.pad_id,
        decoder_start_token_id=start,
        suppress_tokens=usual.suppress_tokens,
        begin_suppress_tokens=usual.begin_suppress_tokens,
    )
    read, options = torch.tensor([prompt["input_ids"]], device=view.device), {}
    if start is not None:
        options["decoder_input_ids"] = torch.tensor([prompt["decoder_input_ids"]], device=view.device)
    model: Any = view.model
    with undisturbed(view), torch.no_grad(), unrounded(view.dtype):
        try:  # the model's own may hold beams or penalties, which `generate` would add to `settings`
            model.generation_config = settings
            generated = model.generate(read, attention_mask=torch.ones_like(read), **options)
        finally:
            model.generation_config = usual
    new_ids: list[int] = generated[0, options.get("decoder_input_ids", read).shape[1] :].tolist()
    if new_ids and new_ids[-1] in ends:
        new_ids.pop()
    if not new_ids:
        raise UserError(f"{opened.id} generates no answer after this text, but an end token: give an `answer`")
    return new_ids
