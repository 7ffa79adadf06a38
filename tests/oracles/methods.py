"""Slow, obvious forms of the methods that AttnLRP compares with, one sample and one step at a time, on stock models.

A sample is a view row: `input_ids`, `position`, `target_id`, `foil_id`. Nothing of `lrp_core` runs here but the lookup
of embeddings, and what keeps stock models in float64 from rounding to float32, so that padding, batching, hooks and
readouts are checked as well.
"""

from contextlib import contextmanager
from functools import partial
from itertools import combinations
from math import factorial, tanh

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from closelook.lrp_core import ModelView
from closelook.lrp_core.device.precision import unrounded


def stock(view: ModelView, **inputs):
    """The outputs of the stock model; a model in float64 computes in float64 throughout."""
    with unrounded(view.dtype):
        return view.model(**inputs)


def tokens(view: ModelView, row: dict) -> Tensor:
    """Token embeddings [T, D]."""
    return view.token_embedding(torch.tensor(row["input_ids"]))


def logits(view: ModelView, row: dict, embeddings: Tensor | None = None, **options) -> Tensor:
    """Logits of the whole vocabulary, or of all labels, [V] of token `embeddings` [T, D] (default: its own)."""
    embeddings = tokens(view, row) if embeddings is None else embeddings
    if row.get("token_type_ids") is not None:
        options["token_type_ids"] = torch.tensor([row["token_type_ids"]])
    if view.kind.causal:
        options["use_cache"] = False
    outputs = stock(view, inputs_embeds=embeddings[None], **options)
    return read(view, row, outputs.logits[0])


def read(view: ModelView, row: dict, result: Tensor) -> Tensor:
    """Logits [V] at the predicted position of what a model puts out: [T, V], or [V] where it predicts labels."""
    return result if view.kind.labels else result[row["position"]]


def number(of_vocabulary: Tensor, row: dict, explanation: str) -> Tensor:
    """The explained number: logit, logit difference or log-probability of the target."""
    target = of_vocabulary[row["target_id"]]
    if explanation == "contrastive":
        return target - of_vocabulary[row["foil_id"]]
    return target if explanation == "target" else target - torch.logsumexp(of_vocabulary, 0)


def gradient(view: ModelView, row: dict, embeddings: Tensor, explanation: str) -> Tensor:
    """Of the explained number at token `embeddings` [T, D]."""
    leaf = embeddings.detach().clone().requires_grad_()
    return torch.autograd.grad(number(logits(view, row, leaf), row, explanation), leaf)[0]


def integrated_gradients(
    view: ModelView, row: dict, explanation: str, steps: int, rule: str, baseline: Tensor
) -> Tensor:
    """AttnLRP equation 21, [T, D]; Gauss-Legendre points and weights are those of the interval from -1 to 1."""
    x, total = tokens(view, row), 0.0
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    for k in range(steps):
        alpha, weight = ((k + 1) / steps, 1 / steps) if rule == "right" else ((nodes[k] + 1) / 2, weights[k] / 2)
        total = total + weight * gradient(view, row, baseline + alpha * (x - baseline), explanation)
    return (x - baseline) * total


def smoothgrad(view: ModelView, row: dict, explanation: str, noise: list[Tensor]) -> Tensor:
    """AttnLRP equation 22 for noise [T, D] that is given, [T, D]."""
    x = tokens(view, row)
    return sum(gradient(view, row, x + drawn, explanation) for drawn in noise) / len(noise)


def discard(attention: Tensor, seen: Tensor, threshold: float, lowest: float) -> Tensor:
    """AttnLRP A.1.4 and Gildenblat's code: [T, T] without the entries above a quantile, and without the lowest ones."""
    values = sorted(float(attention[entry]) for entry in seen.nonzero().unbind(0) for entry in [tuple(entry)])
    above = float(np.quantile(values, threshold))
    below = set(values[: int(lowest * len(values))])
    kept = attention.clone()
    for q, k in seen.nonzero().tolist():
        if (threshold < 1 and float(attention[q, k]) > above) or float(attention[q, k]) in below:
            kept[q, k] = 0
    return kept


def attention_maps(view: ModelView, row: dict, explanation: str) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Attention [H, T, T] of each layer, its gradients, and the entries that the model may look at [T, T]."""
    before = view.config._attn_implementation
    view.model.set_attn_implementation("eager")
    length = len(row["input_ids"])
    leaf = tokens(view, row).requires_grad_()
    options = {"use_cache": False} if view.kind.causal else {}
    outputs = stock(view, inputs_embeds=leaf[None], output_attentions=True, **options)
    of_vocabulary = read(view, row, outputs.logits[0])
    gradients = torch.autograd.grad(number(of_vocabulary, row, explanation), outputs.attentions)
    view.model.set_attn_implementation(before)
    seen = torch.ones(length, length, dtype=torch.bool)
    maps = [a[0].detach() for a in outputs.attentions]
    return maps, [g[0] for g in gradients], seen.tril() if view.kind.causal else seen


def grad_attention_rollout(
    maps: list[Tensor], gradients: list[Tensor], seen: Tensor, threshold=1.0, lowest=0.0
) -> Tensor:
    """AttnLRP A.1.4: the product over layers from the bottom, [T, T]."""
    total = torch.eye(len(seen), dtype=maps[0].dtype)
    for attention, upper in zip(maps, gradients, strict=True):
        weighted = torch.stack([(a * g).clamp_min(0) for a, g in zip(attention, upper, strict=True)]).mean(0)
        if threshold < 1 or lowest > 0:
            weighted = discard(weighted, seen, threshold, lowest)
        total = total + weighted @ total
    return total


def rollout(maps: list[Tensor], seen: Tensor, threshold: float, lowest: float) -> Tensor:
    """Abnar & Zuidema 2020 with outliers discarded, rows of Gildenblat's brought back to 1, [T, T]."""
    identity = torch.eye(len(seen), dtype=maps[0].dtype)
    total = identity
    for attention in maps:
        step = discard(attention.mean(0), seen, threshold, lowest) + identity
        step = step / step.sum(-1, keepdim=True) if lowest else step / 2
        total = step @ total
    return total


def gradcam(attention: Tensor, upper: Tensor, position: int) -> Tensor:
    """Chefer et al. 2021, the last layer: attention and gradient [H, T, T] to the row of `position` [T]."""
    cam = torch.stack([a * g.mean() for a, g in zip(attention, upper, strict=True)]).mean(0)
    return cam.clamp_min(0)[position]


@contextmanager
def attending(view: ModelView, attend):
    """Inside, `attend(module, query, key, value, mask, scaling, ...)` is the kernel: context [B, T, H, K], weights."""

    def windowed(module, query, key, value, mask):  # GPT-Neo
        window = module.config.window_size if module.attention_type == "local" else None
        return attend(module, query, key, value, mask, 1.0, sliding_window=window)[0].transpose(1, 2), None

    def whole_forward(module, hidden, attention_mask=None, **_):  # Megatron-BERT
        projected = (part(hidden) for part in (module.query, module.key, module.value))
        by_head = [x.unflatten(-1, (-1, module.attention_head_size)).transpose(1, 2) for x in projected]
        context, weights = attend(module, *by_head, attention_mask, module.attention_head_size**-0.5)
        return context.flatten(2), weights

    AttentionInterface.register("oracle", attend)
    AttentionMaskInterface.register("oracle", lambda *_, **__: None)
    before, method = view.config._attn_implementation, view.family.own_kernel
    if method is None:
        view.config._attn_implementation = "oracle"
    else:
        for block in view.blocks:
            stand_in = {"_attn": windowed, "forward": whole_forward}[method]
            setattr(block.attention, method, partial(stand_in, block.attention))
    yield
    view.config._attn_implementation = before
    for block in view.blocks if method else ():
        delattr(block.attention, method)


def atman(view: ModelView, row: dict, explanation: str, suppression: float, as_printed: bool) -> Tensor:
    """Deb et al. 2023: one forward a token, one query of one head at a time, [T]."""
    state = {"key": None}

    def attend(module, query, key, value, mask, scaling=None, softcap=None, sliding_window=None, **_):
        heads, length, width = query.shape[1:]
        groups = heads // key.shape[1]
        context = torch.zeros(1, length, heads, width, dtype=query.dtype)
        for h in range(heads):
            keys, values = key[0, h // groups], value[0, h // groups]
            for q in range(length):
                last = q + 1 if view.kind.causal else length
                seen = [k for k in range(last) if sliding_window is None or abs(q - k) < sliding_window]
                scale = width**-0.5 if scaling is None else scaling
                raw = [float(query[0, h, q] @ keys[k]) * scale for k in seen]
                raw = raw if softcap is None else [softcap * tanh(x / softcap) for x in raw]
                least = 0.0 if as_printed else min(raw)
                if state["key"] in seen:
                    at = seen.index(state["key"])
                    raw[at] = least + (raw[at] - least) * (1 - suppression)
                weights = torch.softmax(torch.tensor(raw, dtype=torch.float64), 0).to(value.dtype)
                context[0, q, h] = weights @ values[seen]
        return context, None

    values = []
    with attending(view, attend):
        for key in (None, *range(len(row["input_ids"]))):
            state["key"] = key
            values.append(number(logits(view, row), row, explanation))
    return torch.stack([values[0] - value for value in values[1:]])


def occlusion(view: ModelView, row: dict, explanation: str, how: str) -> Tensor:
    """One forward a token, [T]."""
    ids, position = row["input_ids"], row["position"]
    whole = number(logits(view, row), row, explanation)
    drops = torch.zeros(len(ids), dtype=whole.dtype)
    for j in range(len(ids)):
        if view.kind.slot and j == position:
            continue
        changed, embeddings = row, tokens(view, row).clone()
        if how == "zero":
            embeddings[j] = 0
        elif how == "mask":
            embeddings[j] = embeddings[position]
        else:
            changed = {**row, "input_ids": ids[:j] + ids[j + 1 :], "position": position - 1}
            embeddings = tokens(view, changed)
        drops[j] = whole - number(logits(view, changed, embeddings), changed, explanation)
    return drops


def shapley(view: ModelView, row: dict, explanation: str) -> Tensor:
    """The mean gain of a token over all orders in which tokens come; an absent token has a zero embedding, [T]."""
    x, size = tokens(view, row), len(row["input_ids"])

    def worth(present: tuple[int, ...]) -> Tensor:
        mask = torch.zeros(size, 1, dtype=x.dtype)
        mask[list(present)] = 1
        return number(logits(view, row, x * mask), row, explanation)

    worths = {s: worth(s) for n in range(size + 1) for s in combinations(range(size), n)}
    values = torch.zeros(size, dtype=x.dtype)
    for subset, value in worths.items():
        for j in set(range(size)) - set(subset):
            share = factorial(len(subset)) * factorial(size - len(subset) - 1) / factorial(size)
            values[j] += share * (worths[tuple(sorted((*subset, j)))] - value)
    return values


def encoder_decoder_rollout(encoder, decoder, cross, position: int) -> tuple[Tensor, Tensor]:
    """Chefer et al. 2021, equations 5 to 10: mean maps of the encoder [T, T], the decoder's own [U, U] and those that
    read the encoder [U, T], from the bottom, to the rows of `position`: relevance [T] and [U].
    """
    of_encoder = torch.eye(encoder[0].shape[0], dtype=encoder[0].dtype)
    of_decoder = torch.eye(decoder[0].shape[0], dtype=decoder[0].dtype)
    mixed = torch.zeros(len(of_decoder), len(of_encoder), dtype=decoder[0].dtype)
    for step in encoder:
        of_encoder = of_encoder + step @ of_encoder
    for before, step in zip(decoder, cross, strict=True):
        mixed, of_decoder = mixed + before @ mixed, of_decoder + before @ of_decoder
        mixed = mixed + _normalised(of_decoder).T @ (step @ _normalised(of_encoder))
    return mixed[position], of_decoder[position]


def _normalised(relevance: Tensor) -> Tensor:
    """Equations 8 and 9, row by row; a row without anything beside its identity stays as it is."""
    out = torch.eye(len(relevance), dtype=relevance.dtype)
    for i, row in enumerate(relevance - torch.eye(len(relevance), dtype=relevance.dtype)):
        if row.sum() != 0:
            out[i] += row / row.sum()
    return out


def encoder_decoder_suppressed(view, batch, position: int, suppression: float) -> Tensor:
    """Target minus foil of a batch of one sample with attention to encoder token `position` suppressed (Deb et al.
    2023): in the encoder, and where the decoder reads it.
    """
    import sys

    modelling = sys.modules[type(view.model).__module__]
    eager, over_text = modelling.eager_attention_forward, [layer.attention for layer in view.attentions_over_text]

    def attend(module, query, key, value, mask, scaling=None, position_bias=None, **options):
        scores = query @ key.transpose(-1, -2) * scaling + (0 if position_bias is None else position_bias)
        if any(module is attention for attention in over_text):
            for head in scores[0]:
                for row in head:
                    least = row.min()
                    row[position] = least + (1 - suppression) * (row[position] - least)
        scores = scores if mask is None else scores + mask
        return (scores.softmax(-1) @ value).transpose(1, 2), None

    before = view.model.config._attn_implementation
    view.model.set_attn_implementation("eager")
    modelling.eager_attention_forward = attend
    try:
        logits = stock(view, input_ids=batch.input_ids, decoder_input_ids=batch.decoder_input_ids).logits
    finally:
        modelling.eager_attention_forward = eager
        view.model.set_attn_implementation(before)
    result = logits[0, batch.position[0]]
    return result[batch.target_ids[0]] - result[batch.foil_ids[0]]
