"""One transformer block in many spellings."""

import math
import warnings

import torch
from torch import nn
from torch.nn import functional as F

from closelook.lrp_core.operations import explain_operations
from closelook.lrp_core.rules import ATTNLRP, LRP, PLAIN

HEADS, WIDTH, TOKENS = 4, 16, 7
EPS = 1e-6


class Block(nn.Module):
    """Causal attention and a gated MLP, each behind an RMS norm, with the embedding and the unembedding around them."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH, eps=EPS) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.gate, self.up = nn.Linear(WIDTH, 24), nn.Linear(WIDTH, 24)
        self.down, self.head = nn.Linear(24, WIDTH), nn.Linear(WIDTH, 50)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        x = x + self.attend(self.norm(0, x))
        x = x + self.feed(self.norm(1, x))
        return self.head(x)

    def norm(self, at, x):
        return self.norms[at](x)

    def attend(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        return self.o(self.join(self.weights(q, k) @ v))

    def weights(self, q, k):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return scores.masked_fill(future(scores), -torch.inf).softmax(-1)

    def feed(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))

    def split(self, x):
        return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)

    def join(self, x):
        return x.transpose(1, 2).reshape(*x.shape[:1], x.shape[2], -1)


def future(scores):
    return torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)


class NormByHand(Block):
    def norm(self, at, x):
        return self.norms[at].weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS))


class NormByDivision(Block):
    def norm(self, at, x):
        return x / ((x * x).mean(-1, keepdim=True) + EPS).sqrt() * self.norms[at].weight


class NormByPower(Block):
    def norm(self, at, x):
        return x * torch.pow(x.square().sum(-1, keepdim=True) / WIDTH + EPS, -0.5) * self.norms[at].weight


class SiluByHand(Block):
    def feed(self, x):
        gate = self.gate(x)
        return self.down(gate * torch.sigmoid(gate) * self.up(x))


class SiluByDivision(Block):
    def feed(self, x):
        gate = self.gate(x)
        return self.down(gate / (1 + torch.exp(-gate)) * self.up(x))


class SiluAsModule(Block):
    def __init__(self):
        super().__init__()
        self.act = nn.SiLU()

    def feed(self, x):
        return self.down(self.act(self.gate(x)) * self.up(x))


class GateSecond(Block):
    def feed(self, x):
        return self.down(torch.mul(self.up(x), other=F.silu(self.gate(x))))


class FeedByEinsum(Block):
    def feed(self, x):
        gate, up = (torch.einsum("btd,fd->btf", x, layer.weight) + layer.bias for layer in (self.gate, self.up))
        return self.down(torch.einsum("btf,btf->btf", F.silu(gate), up))


class FeedInPlace(Block):
    def feed(self, x):
        gate = F.silu(self.gate(x))
        gate.mul_(self.up(x))
        return self.down(gate)


class FeedAsOneLayer(Block):
    """One projection whose output is cut in two."""

    def feed(self, x):
        weight = torch.cat([self.gate.weight, self.up.weight])
        gate, up = F.linear(x, weight, torch.cat([self.gate.bias, self.up.bias])).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class FeedByMatrices(Block):
    def feed(self, x):
        gate, up = (torch.addmm(layer.bias, x.flatten(0, 1), layer.weight.t()) for layer in (self.gate, self.up))
        return (F.silu(gate) * up @ self.down.weight.t() + self.down.bias).view_as(x)


class StreamInPlace(Block):
    def forward(self, input_ids):
        x = self.embed(input_ids)
        update = self.attend(self.norm(0, x))
        update += x
        more = self.feed(self.norm(1, update))
        return self.head(more.add_(update))


class StreamInSlices(Block):
    def forward(self, input_ids):
        x = self.embed(input_ids)
        update = self.attend(self.norm(0, x))
        later = x.clone()
        for token in range(x.shape[1]):
            later[:, token] = x[:, token] + update[:, token]
        return self.head(later + self.feed(self.norm(1, later)))


class SoftmaxByHand(Block):
    def weights(self, q, k):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(future(scores), -1e9)
        e = torch.exp(scores - scores.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)


class SoftmaxByLogarithm(Block):
    def weights(self, q, k):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return torch.exp(torch.log_softmax(scores.masked_fill(future(scores), -torch.inf), -1))


class SoftmaxOfStableScores(Block):
    def weights(self, q, k):
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(
            future(q[..., :1] @ k[..., :1].mT), -1e9
        )
        return torch.softmax(scores - scores.max(-1, keepdim=True).values, -1)


class AttentionByEinsum(Block):
    def attend(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
        weights = torch.softmax(scores.masked_fill(future(scores), -torch.inf), -1)
        return self.o(torch.einsum("bhqk,bhkd->bqhd", weights, v).flatten(-2))


class AttentionByBatches(Block):
    def attend(self, x):
        q, k, v = (self.split(layer(x)).flatten(0, 1) for layer in (self.q, self.k, self.v))
        mask = torch.zeros(TOKENS, TOKENS, dtype=x.dtype).masked_fill(future(x @ x.mT), -torch.inf)
        scores = torch.baddbmm(mask.expand(len(q), -1, -1), q, k.mT, beta=1, alpha=1 / math.sqrt(q.shape[-1]))
        return self.o(self.join(torch.bmm(scores.softmax(-1), v).unflatten(0, (-1, HEADS))))


class FusedAttention(Block):
    def attend(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        return self.o(self.join(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


class TorchAttention(Block):
    def attend(self, x):
        layers = (self.q, self.k, self.v)
        mixed, _ = F.multi_head_attention_forward(
            *(x.transpose(0, 1),) * 3,
            embed_dim_to_check=WIDTH,
            num_heads=HEADS,
            in_proj_weight=torch.cat([layer.weight for layer in layers]),
            in_proj_bias=torch.cat([layer.bias for layer in layers]),
            bias_k=None,
            bias_v=None,
            add_zero_attn=False,
            dropout_p=0.0,
            out_proj_weight=self.o.weight,
            out_proj_bias=self.o.bias,
            training=False,
            attn_mask=future(x @ x.mT),
        )
        return mixed.transpose(0, 1)


class EmbeddingByIndex(Block):
    def forward(self, input_ids):
        x = self.embed.weight[input_ids]
        x = x + self.attend(self.norm(0, x))
        return self.head(x + self.feed(self.norm(1, x)))


class EmbeddingByOneHot(Block):
    def forward(self, input_ids):
        x = F.one_hot(input_ids, 50).to(self.embed.weight.dtype) @ self.embed.weight
        x = x + self.attend(self.norm(0, x))
        return self.head(x + self.feed(self.norm(1, x)))


def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return gate * torch.sigmoid(gate) * up


class ScriptedFeed(Block):
    def feed(self, x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            scripted = torch.jit.script(gated)
        return self.down(scripted(self.gate(x), self.up(x)))


class UnseenFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient


class FeedByFunction(Block):
    def feed(self, x):
        return self.down(UnseenFunction.apply(self.gate(x), self.up(x)))


class DetachedWeights(Block):
    def weights(self, q, k):
        return super().weights(q, k).detach()


class WeightsAsData(Block):
    def weights(self, q, k):
        return super().weights(q, k).data


class WithoutTorchFunction(Block):
    def feed(self, x):
        with torch._C.DisableTorchFunction():
            return super().feed(x)


class NoGradient(Block):
    def feed(self, x):
        with torch.no_grad():
            return super().feed(x)


class Vmapped(Block):
    def feed(self, x):
        return torch.vmap(super().feed)(x)


class NormWithMean(Block):
    """Not equal to the plain block: its norms subtract the mean."""

    def norm(self, at, x):
        return F.layer_norm(x, (WIDTH,), self.norms[at].weight)


class GatedLinear(Block):
    """Not equal to the plain block: its gate is a sigmoid."""

    def feed(self, x):
        return self.down(F.glu(torch.cat([self.up(x), self.gate(x)], -1)))


def explained(spelling):
    """Relevance [1, T] by composite of a block in this spelling, with the weights of the plain block."""
    torch.manual_seed(0)
    model = Block().double().requires_grad_(False)
    other = spelling().double().requires_grad_(False)
    other.load_state_dict(model.state_dict(), strict=False)
    ids = torch.tensor([[5, 17, 33, 41, 29, 11, 8]])
    result = explain_operations(other, {"input_ids": ids}, lambda logits: logits[:, -1, 23], [LRP, ATTNLRP, PLAIN])
    torch.testing.assert_close(result.numbers, other(ids)[:, -1, 23], rtol=0, atol=0)
    return {composite.name: result.relevance[composite]["input_ids"].full for composite in result.relevance}
