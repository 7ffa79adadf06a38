"""Slow, obvious float64 forms of the propagation rules, one index at a time, as the papers print them."""

import torch
from torch import Tensor

from closelook.lrp_core import Batch


def linear_epsilon(x: Tensor, weight: Tensor, bias: Tensor, relevance: Tensor, epsilon: float = 0.0) -> Tensor:
    """Close Look equation 1, AttnLRP equation 8: x [I], weight [O, I], relevance [O] to [I]."""
    out = torch.zeros_like(x)
    for j in range(weight.shape[0]):
        z = bias[j] + sum(x[i] * weight[j, i] for i in range(len(x)))
        for i in range(len(x)):
            out[i] += x[i] * weight[j, i] / (z + epsilon * torch.sign(z)) * relevance[j]
    return out


def softmax_relevance(x: Tensor, relevance: Tensor) -> Tensor:
    """AttnLRP proposition 3.1: x [N], relevance of softmax(x) [N] to relevance of x [N]."""
    s = torch.exp(x) / torch.exp(x).sum()
    return torch.stack([x[i] * (relevance[i] - s[i] * sum(relevance)) for i in range(len(x))])


def matmul_relevance(a: Tensor, v: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """AttnLRP proposition 3.3 at epsilon 0: a [M, N], v [N, P], relevance of a v [M, P] to relevance of a and of v."""
    of_a, of_v, out = torch.zeros_like(a), torch.zeros_like(v), a @ v
    for j in range(a.shape[0]):
        for i in range(a.shape[1]):
            for p in range(v.shape[1]):
                share = a[j, i] * v[i, p] * relevance[j, p] / (2 * out[j, p])
                of_a[j, i] += share
                of_v[i, p] += share
    return of_a, of_v


def norm_matrix(x: Tensor, weight: Tensor, eps: float, centred: bool) -> Tensor:
    """The linear map [D, D] that a norm is for x [D] once its standard deviation is a constant (Close Look C.5)."""
    size = len(x)
    centre = torch.eye(size, dtype=x.dtype) - (1 / size if centred else 0)
    deviation = (((centre @ x) ** 2).mean() + eps) ** 0.5
    return torch.diag(weight) @ centre / deviation


def pool_heads(relevance: Tensor) -> Tensor:
    """Close Look figure 3: relevance of head outputs [B, T, H, K] to [B, H, 3] (ReLU dim, ReLU per token, no ReLU)."""
    samples, tokens, heads, width = relevance.shape
    pooled = torch.zeros(samples, heads, 3, dtype=relevance.dtype)
    for b in range(samples):
        for h in range(heads):
            for t in range(tokens):
                of_token = sum(float(relevance[b, t, h, k]) for k in range(width))
                pooled[b, h, 0] += sum(max(0.0, float(relevance[b, t, h, k])) for k in range(width))
                pooled[b, h, 1] += max(0.0, of_token)
                pooled[b, h, 2] += of_token
    return pooled


def rollout(attentions: list[Tensor], position: int) -> Tensor:
    """Abnar & Zuidema 2020: attention [H, T, T] of each layer, from the bottom, to the row of `position` [T]."""
    row = torch.zeros(attentions[0].shape[-1], dtype=attentions[0].dtype)
    row[position] = 1
    for attention in reversed(attentions):
        row = row @ (attention.mean(0) + torch.eye(len(row), dtype=row.dtype)) / 2
    return row


def contributions(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """z_ji = w_ji x_i [O, I + 1]; the bias is the last, one more contribution."""
    inputs = x.tolist()
    rows = zip(weight.tolist(), bias.tolist(), strict=True)
    return torch.tensor([[w * a for w, a in zip(row, inputs, strict=True)] + [b] for row, b in rows], dtype=x.dtype)


def shared(z: Tensor, relevance: Tensor, rule: str, number: float = 0.0) -> Tensor:
    """Relevance of inputs [I] from that of outputs [J] by contributions z [J, I + 1], the last the bias's."""
    of = {"epsilon": _epsilon, "gamma": _gamma, "zplus": _zplus, "alpha_beta": _alpha_beta}[rule]
    out = [0.0] * z.shape[1]
    for row, upper in zip(z.tolist(), relevance.tolist(), strict=True):  # numbers of Python: tensors of one are slow
        for i in range(len(row)):
            out[i] += of(row, i, number) * upper
    return torch.tensor(out[:-1], dtype=z.dtype)


def _epsilon(z: list[float], i: int, _: float) -> float:
    """AttnLRP equation 8 at epsilon 0."""
    return z[i] / sum(z)


def _gamma(z: list[float], i: int, gamma: float) -> float:
    """AttnLRP equation 24."""
    part = (lambda v: max(v, 0.0)) if sum(z) > 0 else (lambda v: min(v, 0.0))
    return (z[i] + gamma * part(z[i])) / (sum(z) + gamma * sum(part(v) for v in z))


def _zplus(z: list[float], i: int, _: float) -> float:
    """AttnLRP equation 25; nothing where no contribution is positive."""
    total = sum(max(v, 0.0) for v in z)
    return max(z[i], 0.0) / total if total > 0 else 0.0


def _alpha_beta(z: list[float], i: int, alpha: float) -> float:
    """Montavon et al. 2019: alpha times z+ minus alpha - 1 times its mirror image."""
    return alpha * _zplus(z, i, 0) - (alpha - 1) * _zplus([-v for v in z], i, 0)


def softmax_shared(x: Tensor, relevance: Tensor, rule: str) -> Tensor:
    """Relevance of scores x [N] from that of softmax(x) [N] by the rules that AttnLRP's tables 3 and 4 compare."""
    s = torch.exp(x - x.max()) / torch.exp(x - x.max()).sum()
    size = len(x)
    jacobian = torch.stack([torch.stack([s[j] * (float(i == j) - s[i]) for i in range(size)]) for j in range(size)])
    z = torch.stack([torch.stack([jacobian[j, i] * x[i] for i in range(size)]) for j in range(size)])
    if rule == "identity":
        return relevance.clone()
    if rule == "constant":
        return torch.zeros_like(relevance)
    out = torch.zeros_like(x)
    for j in range(size):
        bias = s[j] - sum(z[j])
        positive = sum(v.clamp_min(0) for v in z[j])
        for i in range(size):
            if rule == "zplus":
                out[i] += z[j, i].clamp_min(0) / positive * relevance[j] if positive > 0 else 0
            else:  # the true gradient; Voita et al. 2021 share the bias
                share = bias / size if rule == "distributed_bias" else 0
                out[i] += (z[j, i] + share) / s[j] * relevance[j]
    return out


def pruned_alone(view, row, removed):
    """Margin of one sample with these heads' outputs zeroed, by plain hooks that know of one mask only."""
    undo = []
    for layer, block in enumerate(view.blocks):
        heads = [head % view.n_heads for head in removed if head // view.n_heads == layer]

        def zero(_, args, heads=heads):
            context = args[0].clone()
            for head in heads:
                context[..., head * view.head_dim : (head + 1) * view.head_dim] = 0
            return (context,)

        undo.append(block.output.register_forward_pre_hook(zero))
    batch = Batch.collate([row], pad_id=0)
    target, foil = view.logits(batch)[0].tolist()
    for hook in undo:
        hook.remove()
    return target - foil
