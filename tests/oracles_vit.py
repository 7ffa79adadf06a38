"""A Vision Transformer written out for one picture, and the methods of AttnLRP's table 5 on it, one change at a time.

Weights are those of a view's model; nothing of `lrp_core` runs here. A sample is a view row with `pixel_values`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lrp_core import ModelView

Softmax = Callable[[int, int, Tensor], Tensor]  # (layer, head, scores [T, T]) to weights [T, T]


def picture(row: dict) -> Tensor:
    """Pixels [C, H, W]."""
    return torch.as_tensor(row["pixel_values"], dtype=torch.float64)


def tokens(view: ModelView, pixels: Tensor) -> Tensor:
    """The class token, then patches row by row, [T, D]; without positions."""
    root = view.model.vit.embeddings
    weight, bias = root.patch_embeddings.projection.weight, root.patch_embeddings.projection.bias
    _, _, height, width = weight.shape
    found = [root.cls_token[0, 0]]
    for y in range(0, pixels.shape[1], height):
        for x in range(0, pixels.shape[2], width):
            patch = pixels[:, y : y + height, x : x + width]
            found.append(torch.stack([(patch * of_output).sum() for of_output in weight]) + bias)
    return torch.stack(found)


def logits(view: ModelView, token: Tensor, softmax: Softmax | None = None, maps: list[Tensor] | None = None) -> Tensor:
    """Logits of all labels of token embeddings [T, D]; `maps` is filled with attention [H, T, T] of each layer."""
    root, states = view.model.vit, token + view.model.vit.embeddings.position_embeddings[0]
    for layer, block in enumerate(root.layers):
        states = states + attention(view, block, _norm(block.layernorm_before, states), layer, softmax, maps)
        hidden = torch.nn.functional.gelu(_linear(block.mlp.fc1, _norm(block.layernorm_after, states)))
        states = states + _linear(block.mlp.fc2, hidden)
    return _linear(view.model.classifier, _norm(root.layernorm, states)[0])


def attention(view, block, x: Tensor, layer: int, softmax: Softmax | None, maps: list[Tensor] | None) -> Tensor:
    """What attention adds to the residual stream, [T, D], head by head."""
    heads, width = view.config.num_attention_heads, x.shape[-1] // view.config.num_attention_heads
    q, k, v = (_linear(one, x) for one in (block.attention.q_proj, block.attention.k_proj, block.attention.v_proj))
    contexts, weights = [], []
    for h in range(heads):
        own = slice(h * width, (h + 1) * width)
        scores = q[:, own] @ k[:, own].T / width**0.5
        weights.append(scores.softmax(-1) if softmax is None else softmax(layer, h, scores))
        contexts.append(weights[-1])
    stacked = torch.stack(contexts)  # one tensor, so that its gradient can be asked for
    if maps is not None:
        maps.append(stacked)
    context = torch.cat([stacked[h] @ v[:, h * width : (h + 1) * width] for h in range(heads)], -1)
    return _linear(block.attention.o_proj, context)


def number(found: Tensor, row: dict, explanation: str) -> Tensor:
    target = found[row["target_id"]]
    if explanation == "contrastive":
        return target - found[row["foil_id"]]
    return target if explanation == "target" else target - torch.logsumexp(found, 0)


def at_pixels(view: ModelView, row: dict, pixels: Tensor, explanation: str) -> Tensor:
    """Gradient of the explained number at these pixels, [C, H, W]."""
    leaf = pixels.detach().clone().requires_grad_()
    return torch.autograd.grad(number(logits(view, tokens(view, leaf)), row, explanation), leaf)[0]


def integrated_gradients(view: ModelView, row: dict, explanation: str, steps: int) -> Tensor:
    """AttnLRP equation 21 from a picture of zeros, [C, H, W]."""
    x = picture(row)
    return x * sum(at_pixels(view, row, x * (k + 1) / steps, explanation) for k in range(steps)) / steps


def attention_maps(view: ModelView, row: dict, explanation: str) -> tuple[list[Tensor], list[Tensor]]:
    """Attention [H, T, T] of each layer and its gradients."""
    maps: list[Tensor] = []
    found = number(logits(view, tokens(view, picture(row)).detach().requires_grad_(), maps=maps), row, explanation)
    return [one.detach() for one in maps], list(torch.autograd.grad(found, maps))


def gradcam(maps: list[Tensor], gradients: list[Tensor]) -> Tensor:
    """Chefer et al.'s ViT code: the class token's row over patches in the last layer, [T]; the class token has 0."""
    cam = sum(a[0, 1:] * g[0, 1:].mean() for a, g in zip(maps[-1], gradients[-1], strict=True)) / len(maps[-1])
    return torch.cat([torch.zeros(1, dtype=cam.dtype), cam.clamp_min(0)])


def atman(view: ModelView, row: dict, explanation: str, suppression: float, similarity: float) -> Tensor:
    """Deb et al. 2023 with suppression of alike tokens (of concepts), one forward a token, [T]."""
    token = tokens(view, picture(row))
    whole = number(logits(view, token), row, explanation)
    drops = []
    for key in range(len(token)):
        factors = torch.ones(len(token), dtype=token.dtype)
        for other in range(len(token)):
            cosine = token[key] @ token[other] / (token[key].norm() * token[other].norm())
            if other == key:
                factors[other] = 1 - suppression
            elif similarity < 1 and cosine >= similarity:
                factors[other] = suppression * (1 - cosine) + (1 - suppression)  # (1 - f)(1 - cos) + f

        def softmax(_, __, scores, factors=factors):
            least = scores.min(-1, keepdim=True).values
            return ((scores - least) * factors).softmax(-1)

        drops.append(whole - number(logits(view, token, softmax), row, explanation))
    return torch.stack(drops)


def occlusion(view: ModelView, row: dict, explanation: str) -> Tensor:
    """One forward a token, whose embedding is zero, [T]."""
    token = tokens(view, picture(row))
    whole = number(logits(view, token), row, explanation)
    kept = 1 - torch.eye(len(token), dtype=token.dtype)
    return torch.stack([whole - number(logits(view, token * one[:, None]), row, explanation) for one in kept])


def _norm(module, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / ((centred**2).mean(-1, keepdim=True) + module.eps) ** 0.5 * module.weight + module.bias


def _linear(module, x: Tensor) -> Tensor:
    return x @ module.weight.T + module.bias
