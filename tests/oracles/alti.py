"""ALTI and ALTI-Logit by the letter: one sample, a forward from the state dict, all transformed vectors at once."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from closelook.lrp_core import ModelView


@dataclass
class Block:
    """The intermediate results of one attention block for its input x [T, D]."""

    x: Tensor  # [T, D]
    weights: Tensor  # [H, Ti, Tj]
    vectors: Tensor  # [H, Ti, Tj, D], every head's part of every transformed vector, before the residual
    bias: Tensor  # [D], of the output projection
    entries: Tensor  # [Ti, H, K], weighted values
    output: Tensor  # [H, K, D]
    mlp: Tensor | None = None  # [T, D]
    norm: tuple[Tensor, Tensor, float] | None = (
        None  # weight, bias, eps of the norm behind the residual, post-norm only
    )

    @property
    def transformed(self) -> Tensor:
        """T_i(x_j) [Ti, Tj, D], residual included."""
        total = self.vectors.sum(0)
        for i in range(len(self.x)):
            total[i, i] += self.x[i]
        return total


@dataclass
class Trace:
    """A forward in pieces."""

    blocks: list[Block] = field(default_factory=list)
    embedded: Tensor | None = None  # [T, D]
    last: Tensor | None = None  # [T, D], what the final norm reads
    hidden: Tensor | None = None  # [T, D]


def trace(view: ModelView, ids: Tensor) -> Trace:
    """The model's forward on ids [T], in float64."""
    return {"gpt2": _gpt2, "llama": _llama, "bert": _bert}[view.family.name](view, ids)


def contribution_map(block: Block) -> Tensor:
    """[Ti, Tj]; Ferrando et al. 2022, equations 9 to 13, one destination and source at a time."""
    vectors, output = block.transformed, block.transformed.sum(1) + block.bias
    if block.norm is not None:
        weight, shift, eps = block.norm
        deviation = (output.var(-1, unbiased=False) + eps).sqrt()  # [T]
        linear = lambda v, i: (v - v.mean(-1, keepdim=True)) * weight / deviation[i]  # noqa: E731
        vectors = torch.stack([linear(vectors[i], i) for i in range(len(vectors))])
        output = torch.stack([linear(output[i], i) + shift for i in range(len(output))])
    rows = torch.zeros(len(output), len(output), dtype=output.dtype)
    for i in range(len(output)):
        for j in range(len(output)):
            if i == j or block.weights[:, i, j].any():
                rows[i, j] = output[i].abs().sum() - (output[i] - vectors[i, j]).abs().sum()
        rows[i] = rows[i].clamp_min(0)
        rows[i] = rows[i] / rows[i].sum() if rows[i].any() else torch.eye(len(output), dtype=output.dtype)[i]
    return rows


def alti(view: ModelView, ids: Tensor, position: int) -> Tensor:
    """Tokens [T]: the row of `position` of the product of all maps."""
    total = torch.eye(len(ids), dtype=torch.float64)
    for block in trace(view, ids).blocks:
        total = contribution_map(block) @ total
    return total[position]


def alti_logit(view: ModelView, ids: Tensor, position: int, unembedding: Tensor) -> dict[str, Tensor]:
    """Parts of hidden[position] @ unembedding [D]; names and shapes as `LogitContributions` without B and E."""
    traced = trace(view, ids)
    state = view.model.state_dict()
    if view.family.name == "gpt2":
        deviation = (traced.last[position].var(unbiased=False) + view.config.layer_norm_epsilon).sqrt()
        linear = lambda v: (v - v.mean(-1, keepdim=True)) / deviation * state["transformer.ln_f.weight"]  # noqa: E731
        bias = state["transformer.ln_f.bias"] @ unembedding
    else:
        deviation = (traced.last[position].square().mean() + view.config.rms_norm_eps).sqrt()
        linear = lambda v: v / deviation * state["model.norm.weight"]  # noqa: E731
        bias = torch.zeros((), dtype=torch.float64)
    initial = linear(traced.embedded[position]) @ unembedding
    tokens = torch.zeros(len(ids), dtype=torch.float64)
    tokens[position] = initial
    mixed = torch.eye(len(ids), dtype=torch.float64)
    layers: dict[str, list[Tensor]] = {name: [] for name in ("attention", "heads", "pooled", "mlp", "attention_bias")}
    for block in traced.blocks:
        logits = linear(block.vectors[:, position]) @ unembedding  # [H, Tj]
        layers["attention"].append(logits.sum(0))
        layers["heads"].append(logits.sum(1))
        layers["mlp"].append(linear(block.mlp[position]) @ unembedding)
        layers["attention_bias"].append(linear(block.bias) @ unembedding)
        written = block.entries[position].unsqueeze(-1) * block.output  # [H, K, D]
        entries = linear(written) @ unembedding  # [H, K]
        layers["pooled"].append(torch.stack([entries.relu().sum(1), entries.sum(1).relu(), entries.sum(1)], -1))
        tokens += logits.sum(0) @ mixed
        mixed = contribution_map(block) @ mixed
    return {"tokens": tokens, "initial": initial, "bias": bias} | {k: torch.stack(v) for k, v in layers.items()}


def _attend(block_input: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, bias: Tensor, causal: bool):
    """Block of queries, keys, values [H, T, K] (keys and values maybe of fewer, shared heads), output [H, K, D]."""
    shared = query.shape[0] // key.shape[0]
    weights = []
    for h in range(query.shape[0]):
        scores = query[h] @ key[h // shared].T / query.shape[-1] ** 0.5
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1) == 1, -torch.inf)
        weights.append(scores.softmax(-1))
    weights = torch.stack(weights)
    values = torch.stack([value[h // shared] for h in range(query.shape[0])])
    vectors = torch.einsum("hij,hjk,hkd->hijd", weights, values, output)
    return Block(block_input, weights, vectors, bias, torch.einsum("hij,hjk->ihk", weights, values), output)


def _heads(x: Tensor, n: int) -> Tensor:
    """[T, n * K] to [n, T, K]."""
    return x.unflatten(-1, (n, -1)).transpose(0, 1)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (x.var(-1, unbiased=False, keepdim=True) + eps).sqrt() * weight + bias


def _gpt2(view: ModelView, ids: Tensor) -> Trace:
    state, config, n = view.model.state_dict(), view.config, view.n_heads
    norm = lambda x, name: _layer_norm(x, state[f"{name}.weight"], state[f"{name}.bias"], config.layer_norm_epsilon)  # noqa: E731
    conv = lambda x, name: x @ state[f"{name}.weight"] + state[f"{name}.bias"]  # noqa: E731
    traced = Trace()
    x = traced.embedded = state["transformer.wte.weight"][ids] + state["transformer.wpe.weight"][: len(ids)]
    for layer in range(view.n_layers):
        at = f"transformer.h.{layer}"
        query, key, value = (_heads(part, n) for part in conv(norm(x, f"{at}.ln_1"), f"{at}.attn.c_attn").chunk(3, -1))
        output = state[f"{at}.attn.c_proj.weight"].unflatten(0, (n, -1))
        block = _attend(x, query, key, value, output, state[f"{at}.attn.c_proj.bias"], causal=True)
        x = block.transformed.sum(1) + block.bias
        block.mlp = conv(gelu(conv(norm(x, f"{at}.ln_2"), f"{at}.mlp.c_fc"), approximate="tanh"), f"{at}.mlp.c_proj")
        x = x + block.mlp
        traced.blocks.append(block)
    traced.last, traced.hidden = x, norm(x, "transformer.ln_f")
    return traced


def _llama(view: ModelView, ids: Tensor) -> Trace:
    state, config = view.model.state_dict(), view.config
    norm = lambda x, name: x / (x.square().mean(-1, True) + config.rms_norm_eps).sqrt() * state[f"{name}.weight"]  # noqa: E731
    width = view.head_dim
    # a constant in float32, as transformers has it
    frequency = 1 / config.rope_parameters["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    angle = (torch.arange(len(ids))[:, None] * frequency.double()).repeat(1, 2)
    cosine, sine = angle.cos(), angle.sin()
    turn = lambda x: x * cosine + torch.cat([-x[..., width // 2 :], x[..., : width // 2]], -1) * sine  # noqa: E731
    traced = Trace()
    x = traced.embedded = state["model.embed_tokens.weight"][ids]
    for layer in range(view.n_layers):
        at = f"model.layers.{layer}"
        normed = norm(x, f"{at}.input_layernorm")
        query = turn(_heads(normed @ state[f"{at}.self_attn.q_proj.weight"].T, view.n_heads))
        key = turn(_heads(normed @ state[f"{at}.self_attn.k_proj.weight"].T, view.n_kv_heads))
        value = _heads(normed @ state[f"{at}.self_attn.v_proj.weight"].T, view.n_kv_heads)
        output = state[f"{at}.self_attn.o_proj.weight"].T.unflatten(0, (view.n_heads, -1))
        block = _attend(x, query, key, value, output, torch.zeros_like(x[0]), causal=True)
        x = block.transformed.sum(1)
        normed = norm(x, f"{at}.post_attention_layernorm")
        gate, up = (normed @ state[f"{at}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        block.mlp = (silu(gate) * up) @ state[f"{at}.mlp.down_proj.weight"].T
        x = x + block.mlp
        traced.blocks.append(block)
    traced.last, traced.hidden = x, norm(x, "model.norm")
    return traced


def _bert(view: ModelView, ids: Tensor) -> Trace:
    state, n, eps = view.model.state_dict(), view.n_heads, view.config.layer_norm_eps
    norm = lambda x, name: _layer_norm(x, state[f"{name}.weight"], state[f"{name}.bias"], eps)  # noqa: E731
    dense = lambda x, name: x @ state[f"{name}.weight"].T + state[f"{name}.bias"]  # noqa: E731
    at = "bert.embeddings"
    embedded = state[f"{at}.word_embeddings.weight"][ids] + state[f"{at}.position_embeddings.weight"][: len(ids)]
    traced = Trace(embedded=embedded + state[f"{at}.token_type_embeddings.weight"][0])
    x = norm(traced.embedded, f"{at}.LayerNorm")
    for layer in range(view.n_layers):
        at = f"bert.encoder.layer.{layer}"
        query, key, value = (_heads(dense(x, f"{at}.attention.self.{name}"), n) for name in ("query", "key", "value"))
        output = state[f"{at}.attention.output.dense.weight"].T.unflatten(0, (n, -1))
        block = _attend(x, query, key, value, output, state[f"{at}.attention.output.dense.bias"], causal=False)
        name = f"{at}.attention.output.LayerNorm"
        block.norm = state[f"{name}.weight"], state[f"{name}.bias"], eps
        x = norm(block.transformed.sum(1) + block.bias, name)
        x = norm(x + dense(gelu(dense(x, f"{at}.intermediate.dense")), f"{at}.output.dense"), f"{at}.output.LayerNorm")
        traced.blocks.append(block)
    traced.hidden = x
    return traced
