"""Relevance of an encoder-decoder, propagated layer by layer in float64 by the printed rules, apart from `lrp_core`.

Every step is a node with its value; `relevance_of` hands relevance from the logit down to the embeddings. `attnlrp`
halves products (AttnLRP propositions 3.2 and 3.3) and passes the softmax by proposition 3.1; `lrp` holds weights
and gates constant (Close Look C.4). No stabiliser: denominators are drawn at random and never zero.
"""

import torch
from torch import Tensor

from tests.oracles import rules as oracles


class Node:
    """A value, and what hands its relevance to the nodes that it was made of."""

    def __init__(self, value: Tensor, back=lambda relevance: None):
        self.value, self.back, self.relevance = value, back, torch.zeros_like(value)

    def take(self, relevance: Tensor) -> None:
        self.relevance = self.relevance + relevance


class Tape:
    def __init__(self, attnlrp: bool):
        self.attnlrp, self.nodes = attnlrp, []

    def node(self, value, back=lambda relevance: None):
        self.nodes.append(Node(value, back))
        return self.nodes[-1]

    def linear(self, x, weight, bias=None):
        """R_i = x_i sum_j w_ji R_j / z_j; the bias keeps its share."""
        z = x.value @ weight.T + (0 if bias is None else bias)
        return self.node(z, lambda r: x.take(x.value * ((r / z) @ weight)))

    def add(self, a, b):
        z = a.value + b.value
        return self.node(z, lambda r: (a.take(a.value * r / z), b.take(b.value * r / z)))

    def product(self, gate, signal):
        def back(r):
            if self.attnlrp:
                gate.take(r / 2)
            signal.take(r / 2 if self.attnlrp else r)

        return self.node(gate.value * signal.value, back)

    def activation(self, x, function):
        return self.node(function(x.value), x.take)

    def norm(self, x, weight, bias, eps, centred):
        maps = [oracles.norm_matrix(token, weight, eps, centred) for token in x.value]
        z = torch.stack([matrix @ token for matrix, token in zip(maps, x.value, strict=True)]) + (
            0 if bias is None else bias
        )

        def back(r):
            x.take(torch.stack([a * (m.T @ (b / c)) for a, m, b, c in zip(x.value, maps, r, z, strict=True)]))

        return self.node(z, back)

    def attention(self, q, k, v, heads, scale, bias, hidden):
        """q [N, H * K], k and v [M, H * K]; `bias` [H, N, M] is added to scores, `hidden` [N, M] is masked."""
        width = q.value.shape[1] // heads
        out = torch.zeros_like(q.value)
        weights = []
        for h in range(heads):
            columns = slice(h * width, (h + 1) * width)
            scores = scale * q.value[:, columns] @ k.value[:, columns].T + bias[h]
            weights.append(scores.masked_fill(hidden, -torch.inf).softmax(-1))
            out[:, columns] = weights[h] @ v.value[:, columns]

        def back(r):
            for h in range(heads):
                columns = slice(h * width, (h + 1) * width)
                self._head(q, k, v, columns, weights[h], r[:, columns], scale, bias[h], hidden)

        return self.node(out, back)

    def _head(self, q, k, v, columns, a, r, scale, bias, hidden):
        qs, ks, vs = q.value[:, columns], k.value[:, columns], v.value[:, columns]
        to_q, to_k, to_v = (torch.zeros_like(node.value) for node in (q, k, v))
        if not self.attnlrp:
            out = a @ vs
            to_v[:, columns] = vs * (a.T @ (r / out))
            return v.take(to_v)
        of_a, to_v[:, columns] = oracles.matmul_relevance(a, vs, r)
        products = scale * qs @ ks.T
        for n in range(len(qs)):
            seen = ~hidden[n]
            x = (products[n] + bias[n])[seen]
            of_scores = torch.zeros(len(ks), dtype=x.dtype)
            of_scores[seen] = oracles.softmax_relevance(x, of_a[n][seen])
            of_products = torch.zeros_like(of_scores)
            of_products[seen] = of_scores[seen] * products[n][seen] / x  # the position bias keeps its share
            for m in range(len(ks)):
                share = scale * qs[n] * ks[m] * of_products[m] / products[n, m] / 2
                to_q[n, columns] += share
                to_k[m, columns] += share
        return q.take(to_q), k.take(to_k), v.take(to_v)

    def run(self, last, index, start):
        """Hands `start` from entry `index` of node `last` down."""
        last.relevance[index] = start
        for node in reversed(self.nodes):
            node.back(node.relevance)


def _t5_attention(tape, module, x, read, bias, hidden):
    q = tape.linear(x, module.q.weight)
    k, v = (tape.linear(read, projection.weight) for projection in (module.k, module.v))
    mixed = tape.attention(q, k, v, module.n_heads, 1.0, bias, hidden)
    return tape.linear(mixed, module.o.weight)


def _t5_stack(tape, stack, x, read=None):
    size, causal = len(x.value), read is not None
    bias = stack.block[0].layer[0].SelfAttention.compute_bias(size, size)[0]
    hidden = torch.ones(size, size).triu(1).bool() if causal else torch.zeros(size, size).bool()
    norm = lambda x, layer: tape.norm(x, layer.weight, None, layer.variance_epsilon, False)  # noqa: E731
    for block in stack.block:
        normed = norm(x, block.layer[0].layer_norm)
        x = tape.add(x, _t5_attention(tape, block.layer[0].SelfAttention, normed, normed, bias, hidden))
        if causal:
            asked, nothing = norm(x, block.layer[1].layer_norm), torch.zeros(size, len(read.value))
            none = nothing.double().expand(len(bias), -1, -1)
            x = tape.add(x, _t5_attention(tape, block.layer[1].EncDecAttention, asked, read, none, nothing.bool()))
        mlp, inner = block.layer[-1].DenseReluDense, norm(x, block.layer[-1].layer_norm)
        gated = hasattr(mlp, "wi_0")
        active = tape.activation(tape.linear(inner, (mlp.wi_0 if gated else mlp.wi).weight), mlp.act)
        wide = tape.product(active, tape.linear(inner, mlp.wi_1.weight)) if gated else active
        x = tape.add(x, tape.linear(wide, mlp.wo.weight))
    return norm(x, stack.final_layer_norm)


def _bart_attention(tape, module, x, read, hidden):
    q, k, v = (
        tape.linear(source, projection.weight, projection.bias)
        for source, projection in ((x, module.q_proj), (read, module.k_proj), (read, module.v_proj))
    )
    none = torch.zeros(module.num_heads, *hidden.shape, dtype=torch.float64)
    mixed = tape.attention(q, k, v, module.num_heads, module.scaling, none, hidden)
    return tape.linear(mixed, module.out_proj.weight, module.out_proj.bias)


def _bart_stack(tape, stack, x, read=None):
    size = len(x.value)
    hidden = torch.ones(size, size).triu(1).bool() if read is not None else torch.zeros(size, size).bool()
    norm = lambda x, layer: tape.norm(x, layer.weight, layer.bias, layer.eps, True)  # noqa: E731
    x = norm(x, stack.layernorm_embedding)
    for block in stack.layers:
        x = norm(tape.add(x, _bart_attention(tape, block.self_attn, x, x, hidden)), block.self_attn_layer_norm)
        if read is not None:
            seen = torch.zeros(size, len(read.value)).bool()
            x = norm(
                tape.add(x, _bart_attention(tape, block.encoder_attn, x, read, seen)), block.encoder_attn_layer_norm
            )
        wide = tape.activation(tape.linear(x, block.fc1.weight, block.fc1.bias), block.activation_fn)
        x = norm(tape.add(x, tape.linear(wide, block.fc2.weight, block.fc2.bias)), block.final_layer_norm)
    return x


def relevance_of(model, ids, prefix, target: int, attnlrp: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Relevance [T] of the encoder's tokens and [U] of the decoder's, positions included, for the logit of `target`
    behind the last token of `prefix`; and that logit.
    """
    tape = Tape(attnlrp)
    family = model.config.model_type
    holder = model.model if family == "bart" else model
    stack = {"t5": _t5_stack, "bart": _bart_stack}[family]
    embedded = []
    for half, tokens in ((holder.encoder, ids), (holder.decoder, prefix)):
        full = half.embed_tokens(torch.tensor(tokens))
        if family == "bart":
            full = full + half.embed_positions.weight[2 : 2 + len(tokens)]
        embedded.append(tape.node(full))
    states = stack(tape, holder.decoder, embedded[1], stack(tape, holder.encoder, embedded[0]))
    scale = model.config.d_model**-0.5 if family == "t5" and model.config.scale_decoder_outputs else 1.0
    bias = model.final_logits_bias[0] if family == "bart" else None
    logits = tape.linear(states, scale * model.lm_head.weight, bias)
    logit = logits.value[-1, target]
    tape.run(logits, (-1, target), logit)
    return embedded[0].relevance.sum(-1), embedded[1].relevance.sum(-1), logit
