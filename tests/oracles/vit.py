"""A Vision Transformer written out for one picture, and the methods of AttnLRP's table 5 on it, one change at a time.

Weights are those of a view's model; nothing of `lrp_core` runs here. A sample is a view row with `pixel_values`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from closelook.lrp_core import ModelView
from tests.oracles import rules as oracles

Softmax = Callable[[int, int, Tensor], Tensor]  # (layer, head, scores [T, T]) to weights [T, T]


def picture(row: dict) -> Tensor:
    """Pixels [C, H, W]."""
    return torch.as_tensor(row["pixel_values"], dtype=torch.float64)


def tokens(view: ModelView, pixels: Tensor) -> Tensor:
    """The class token, then patches row by row, [T, D]; without positions."""
    root = view.model.vit.embeddings
    weight, bias = root.patch_embeddings.projection.weight, root.patch_embeddings.projection.bias
    _, _, height, width = weight.shape
    result = [root.cls_token[0, 0]]
    for y in range(0, pixels.shape[1], height):
        for x in range(0, pixels.shape[2], width):
            patch = pixels[:, y : y + height, x : x + width]
            result.append(torch.stack([(patch * of_output).sum() for of_output in weight]) + bias)
    return torch.stack(result)


def logits(view: ModelView, token: Tensor, softmax: Softmax | None = None, maps: list[Tensor] | None = None) -> Tensor:
    """Logits of all labels of token embeddings [T, D]; `maps` is filled with attention [H, T, T] of each layer."""
    root, states = view.model.vit, token + view.model.vit.embeddings.position_embeddings[0]
    for layer, block in enumerate(root.layers):
        states = states + attention(view, block, _norm(block.layernorm_before, states), layer, softmax, maps)
        hidden = torch.nn.functional.gelu(_linear(block.mlp.fc1, _norm(block.layernorm_after, states)))
        states = states + _linear(block.mlp.fc2, hidden)
    return _linear(view.model.classifier, _norm(root.layernorm, states)[0])


def attention(view, block, x: Tensor, layer: int, softmax: Softmax | None, maps: list[Tensor] | None) -> Tensor:
    """The output of attention that is added to the residual stream, [T, D], computed head by head."""
    heads, width = view.config.num_attention_heads, x.shape[-1] // view.config.num_attention_heads
    q, k, v = (
        _linear(linear, x) for linear in (block.attention.q_proj, block.attention.k_proj, block.attention.v_proj)
    )
    contexts, weights = [], []
    for h in range(heads):
        columns = slice(h * width, (h + 1) * width)
        scores = q[:, columns] @ k[:, columns].T / width**0.5
        weights.append(scores.softmax(-1) if softmax is None else softmax(layer, h, scores))
        contexts.append(weights[-1])
    stacked = torch.stack(contexts)  # one tensor, so that its gradient can be asked for
    if maps is not None:
        maps.append(stacked)
    context = torch.cat([stacked[h] @ v[:, h * width : (h + 1) * width] for h in range(heads)], -1)
    return _linear(block.attention.o_proj, context)


def number(result: Tensor, row: dict, explanation: str) -> Tensor:
    target = result[row["target_id"]]
    if explanation == "contrastive":
        return target - result[row["foil_id"]]
    return target if explanation == "target" else target - torch.logsumexp(result, 0)


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
    result = number(logits(view, tokens(view, picture(row)).detach().requires_grad_(), maps=maps), row, explanation)
    return [attention_map.detach() for attention_map in maps], list(torch.autograd.grad(result, maps))


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
    return torch.stack([whole - number(logits(view, token * mask[:, None]), row, explanation) for mask in kept])


def _norm(module, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / ((centred**2).mean(-1, keepdim=True) + module.eps) ** 0.5 * module.weight + module.bias


def _linear(module, x: Tensor) -> Tensor:
    return x @ module.weight.T + module.bias


def layerwise(view: ModelView, row: dict, rules: dict) -> tuple[Tensor, Tensor]:
    """Relevance of pixels [C, H, W] and of tokens [T, D], positions included, for target minus foil, layer by layer.

    AttnLRP section 3 with `rules`, (name, number) by group of layers; what is not there is epsilon. Every layer takes
    relevance of its outputs to relevance of its inputs, contribution by contribution.
    """
    root, config = view.model.vit, view.config
    heads, width = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    token = tokens(view, picture(row))
    position = root.embeddings.position_embeddings[0]
    states, seen = token + position, []
    for block in root.layers:  # forward, with what the way back needs
        x = _norm(block.layernorm_before, states)
        q, k, v = (
            _linear(linear, x) for linear in (block.attention.q_proj, block.attention.k_proj, block.attention.v_proj)
        )
        scores = [q[:, columns] @ k[:, columns].T / width**0.5 for columns in _heads(heads, width)]
        weights = [of_head.softmax(-1) for of_head in scores]
        context = torch.cat([w @ v[:, columns] for w, columns in zip(weights, _heads(heads, width), strict=True)], -1)
        attended = _linear(block.attention.o_proj, context)
        middle = states + attended
        y = _norm(block.layernorm_after, middle)
        hidden = _linear(block.mlp.fc1, y)
        active = torch.nn.functional.gelu(hidden)
        written = _linear(block.mlp.fc2, active)
        seen.append((states, x, q, k, v, scores, weights, context, attended, middle, y, hidden, active, written))
        states = middle + written
    final = _norm(root.layernorm, states)
    both = torch.tensor([row["target_id"], row["foil_id"]])
    weight, bias = view.model.classifier.weight[both], view.model.classifier.bias[both]
    logit = weight @ final[0] + bias
    relevance = torch.zeros_like(final)
    z = oracles.contributions(final[0], weight, bias)
    relevance[0] = oracles.shared(z, logit * torch.tensor([1.0, -1.0]), *rules.get("linear", ("epsilon", 0)))
    relevance = _through_norm(root.layernorm, states, relevance)
    for block, kept in zip(reversed(root.layers), reversed(seen), strict=True):
        states, x, q, k, v, scores, weights, context, attended, middle, y, hidden, active, written = kept
        whole = middle + written
        r = _through(block.mlp.fc2, active, relevance * written / whole, rules, "linear")
        r = _through(block.mlp.fc1, y, r, rules, "linear")  # the activation passes it as it is
        relevance = relevance * middle / whole + _through_norm(block.layernorm_after, middle, r)
        whole = states + attended
        r = _through(block.attention.o_proj, context, relevance * attended / whole, rules, "output_projection")
        of_q, of_k, of_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for h, columns in enumerate(_heads(heads, width)):
            of_weights, of_v[:, columns] = oracles.matmul_relevance(weights[h], v[:, columns], r[:, columns])
            rule = rules.get("softmax", ("epsilon", 0))[0]
            of_scores = torch.stack(
                [oracles.softmax_shared(a, b, rule) for a, b in zip(scores[h], of_weights, strict=True)]
            )
            of_q[:, columns], of_keys = oracles.matmul_relevance(q[:, columns], k[:, columns].T, of_scores)
            of_k[:, columns] = of_keys.T
        r = sum(
            _through(module, x, of_output, rules, "input_projection")
            for module, of_output in (
                (block.attention.q_proj, of_q),
                (block.attention.k_proj, of_k),
                (block.attention.v_proj, of_v),
            )
        )
        relevance = relevance * states / whole + _through_norm(block.layernorm_before, states, r)
    return _through_patches(view, row, relevance * token / (token + position), token, rules), relevance


def _through(module, x: Tensor, relevance: Tensor, rules: dict, group: str) -> Tensor:
    """Through a linear layer, token by token."""
    rule = rules.get(group, ("epsilon", 0))
    return torch.stack(
        [
            oracles.shared(oracles.contributions(a, module.weight, module.bias), r, *rule)
            for a, r in zip(x, relevance, strict=True)
        ]
    )


def _through_norm(module, x: Tensor, relevance: Tensor) -> Tensor:
    """Through a norm that is linear, its standard deviation constant, token by token; its bias keeps its share."""
    collected = []
    for a, r in zip(x, relevance, strict=True):
        matrix = oracles.norm_matrix(a, module.weight, module.eps, centred=True)
        collected.append(oracles.shared(oracles.contributions(a, matrix, module.bias), r, "epsilon"))
    return torch.stack(collected)


def _through_patches(view: ModelView, row: dict, relevance: Tensor, token: Tensor, rules: dict) -> Tensor:
    """Through the convolution, patch by patch, to pixels [C, H, W]."""
    pixels = picture(row)
    projection = view.model.vit.embeddings.patch_embeddings.projection
    _, channels, height, width = projection.weight.shape
    out, at = torch.zeros_like(pixels), 1
    for y in range(0, pixels.shape[1], height):
        for x in range(0, pixels.shape[2], width):
            window = (slice(None), slice(y, y + height), slice(x, x + width))
            z = oracles.contributions(pixels[window].flatten(), projection.weight.flatten(1), projection.bias)
            shares = oracles.shared(z, relevance[at], *rules.get("convolution", ("epsilon", 0)))
            out[window], at = shares.view(channels, height, width), at + 1
    return out


def _heads(heads: int, width: int) -> list[slice]:
    return [slice(h * width, (h + 1) * width) for h in range(heads)]
