"""Slow, obvious forms of the methods that read hidden states, one sample and one change at a time, on stock models.

A sample is a view row: `input_ids`, `position`, `target_id`, `foil_id`.
"""

import torch
from torch import Tensor

from closelook.lrp_core import ModelView
from closelook.lrp_core.device.precision import unrounded
from tests.oracles.methods import attending, stock


def hidden_states(view: ModelView, row: dict) -> list[Tensor]:
    """The input of the first block, then the output of each block, [T, D]; of pre-norm models before the final norm."""
    states: list[Tensor] = []
    take = lambda output: (output if isinstance(output, Tensor) else output[0])[0]  # noqa: E731
    hooks = [block.module.register_forward_hook(lambda _, __, y: states.append(take(y))) for block in view.blocks]
    outputs = stock(view, input_ids=torch.tensor([row["input_ids"]]), output_hidden_states=True)
    for hook in hooks:
        hook.remove()
    return [outputs.hidden_states[0][0], *states]


def logat(view: ModelView, row: dict, state: Tensor) -> Tensor:
    """Logits of target and foil by the stock head applied to each token of `state` [T, D], each by itself: [T, 2]."""
    root, ids = view.model, [row["target_id"], row.get("foil_id", row["target_id"])]
    state = _behind_final_norm(view, state)
    if view.kind.labels:
        return torch.stack([_labels(view, state[t]) for t in range(len(state))])[:, ids]
    heads = {
        **dict.fromkeys(("bert", "megatron-bert", "deberta-v2"), lambda x: root.cls(x)),
        "roberta": lambda x: root.lm_head(x),
        "distilbert": lambda x: root.vocab_projector(root.vocab_layer_norm(root.activation(root.vocab_transform(x)))),
        "electra": lambda x: root.generator_lm_head(root.generator_predictions(x)),
        "modernbert": lambda x: root.decoder(root.head(x)),
    }
    head = heads.get(view.family.name, root.get_output_embeddings())
    if (cap := getattr(view.config, "final_logit_softcapping", None)) is not None:
        plain, head = head, lambda x: cap * torch.tanh(plain(x) / cap)
    return torch.stack([head(state[None, None, t])[0, 0, ids] for t in range(len(state))])


def _behind_final_norm(view: ModelView, state: Tensor) -> Tensor:
    with unrounded(view.dtype):
        return state if view.final_norm is None else view.final_norm.module(state)


def _labels(view: ModelView, state: Tensor) -> Tensor:
    """Logits of all labels, as the stock head reads them from one state [D] as if it were the text's."""
    root = view.model
    heads = {
        **dict.fromkeys(("bert", "megatron-bert"), lambda: root.classifier(root.bert.pooler(state[None, None]))[0]),
        "deberta-v2": lambda: root.classifier(root.pooler(state[None, None]))[0],
        "distilbert": lambda: root.classifier(root.pre_classifier(state).relu()),
        "modernbert": lambda: root.classifier(root.head(state)),
        **dict.fromkeys(("roberta", "electra"), lambda: root.classifier(state[None, None])[0]),
    }
    return heads.get(view.family.name, lambda: root.score(state))()


def norm(states: list[Tensor], view: ModelView, row: dict, which: str) -> Tensor:
    """Of what enters the first block, or of rows of the embedding matrix, [T]."""
    vectors = (
        states[0] if which == "embedding_output" else view.model.get_input_embeddings()(torch.tensor(row["input_ids"]))
    )
    return torch.stack([sum(x * x for x in vector).sqrt() for vector in vectors])


def norm_behind(view: ModelView, state: Tensor) -> Tensor:
    """Of each token of `state` [T, D] as the stock head reads it, behind the final norm where there is one: [T]."""
    read = _behind_final_norm(view, state)
    return torch.stack([sum(x * x for x in vector).sqrt() for vector in read])


def value_zeroing(view: ModelView, row: dict) -> list[Tensor]:
    """The map [T, T] of each layer: a run for each layer and token, with that layer's values of the token zeroed."""
    length, zeroed = len(row["input_ids"]), {"module": None, "token": None}

    def attend(module, query, key, value, mask, scaling=None, softcap=None, sliding_window=None, **_):
        if module is zeroed["module"]:
            value = value.clone()
            value[:, :, zeroed["token"]] = 0
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        if view.kind.causal:
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
        if sliding_window is not None:  # to either side, where a text is seen as a whole
            far = torch.ones(length, length).tril(-sliding_window).bool()
            scores = scores.masked_fill(far if view.kind.causal else far | far.T, -torch.inf)
        return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None

    with attending(view, attend):
        whole, maps = hidden_states(view, row), []
        for layer, block in enumerate(view.blocks):
            distances = torch.zeros(length, length, dtype=view.dtype)
            for token in range(length):
                zeroed.update(module=block.attention, token=token)
                changed = hidden_states(view, row)[layer + 1]
                for s in range(length):
                    seen = token <= s or not view.kind.causal
                    cosine = torch.nn.functional.cosine_similarity(whole[layer + 1][s], changed[s], dim=0)
                    distances[s, token] = 1 - cosine if seen else 0
            maps.append(distances / distances.sum(-1, keepdim=True))
    return maps
