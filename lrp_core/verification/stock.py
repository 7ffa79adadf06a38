"""The logits of the stock model, called as its users call it, and the first module in which two computations differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.records.types import Batch
from closelook.lrp_core.verification.rounding import differ
from closelook.lrp_core.views.view import ModelView

Outputs = dict[str, list[Tensor]]  # by the path of a module: its outputs, in the order of its calls


def stock_logits(view: ModelView, row: Mapping[str, Any]) -> Tensor:
    """The stock model's logits [V] of all tokens or labels at the readout position of a row, which runs alone."""
    if view.kind.images:
        inputs = {"pixel_values": torch.as_tensor(row["pixel_values"])[None].to(view.device, view.dtype)}
    else:
        names = ("input_ids", "token_type_ids", "decoder_input_ids")
        known = {name: row[name] for name in names if row.get(name) is not None}
        inputs = {name: torch.tensor([ids], device=view.device) for name, ids in known.items()}
    with torch.no_grad():
        logits = view.model(**inputs).logits[0]
    return wide(logits if view.kind.labels else logits[row["position"]])


def explained_logits(view: ModelView, batch: Batch) -> Tensor:
    """The view's logits [B, V] of all tokens or labels at the readout positions of a batch."""
    with torch.no_grad():
        return view.all_logits(batch)[:, -1]


def first_difference(ours: Outputs, theirs: Outputs, bound: float) -> str | None:
    """The path of the first module, in the order of calls, whose output differs between two computations.

    Outputs may differ by `bound`, relative to the largest number. Returns None if all modules agree that both
    computations call.
    """
    for path, outputs in ours.items():
        for mine, other in zip(outputs, theirs.get(path, []), strict=False):
            if mine.shape == other.shape and differ(mine, other, bound):
                return path
    return None


def outputs_of(model: nn.Module, compute: Callable[[], Any]) -> Outputs:
    """The outputs of all modules of a model in a computation, on the CPU."""
    kept: Outputs = {}

    def hook(_: nn.Module, args: Any, output: Any, path: str) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            kept.setdefault(path, []).append(wide(tensor.detach()).cpu())

    with ExitStack() as undo:
        for path, module in model.named_modules():
            undo.enter_context(module.register_forward_hook(partial(hook, path=path)))
        compute()
    return kept
