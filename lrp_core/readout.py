"""What a prediction says of the whole vocabulary, at the positions where it is read and nowhere else."""

from __future__ import annotations

import torch
from torch import Tensor

from lrp_core.parts import weights_of
from lrp_core.view import ModelView

_ROWS, _TOKENS = 1024, 8192  # logits held at once; fixed, so that a row's neighbours change its sums little


def over_vocabulary(view: ModelView, state: Tensor) -> tuple[Tensor, Tensor]:
    """Log of the summed exponentials of all logits, and the token with the largest logit, both [B].

    `state` [B, D] is what the unembedding reads (`ModelView.prediction`). Sums are taken in float32 at least; logits
    of a part of the vocabulary are held at a time. Of several largest logits the first counts.
    """
    found = [_over_vocabulary(view, rows) for rows in state.split(_ROWS)]
    total, largest = zip(*found, strict=True)
    return torch.cat(total), torch.cat(largest)


def _over_vocabulary(view: ModelView, state: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(state.dtype, torch.float32)
    with weights_of(view.unembedding) as module:
        weight, bias = module.weight.detach(), module.bias
        state = state.to(weight.device, wide)
        total = state.new_full((len(state),), -torch.inf)
        best, largest = total.clone(), torch.zeros(len(state), dtype=torch.int64, device=state.device)
        for start in range(0, len(weight), _TOKENS):
            logits = state @ weight[start : start + _TOKENS].to(wide).T
            if bias is not None:
                logits += bias.detach()[start : start + _TOKENS].to(wide)
            total = torch.logaddexp(total, logits.logsumexp(-1))
            top, token = logits.max(-1)
            largest = torch.where(top > best, token + start, largest)
            best = torch.maximum(best, top)
    return total, largest
