"""Methods that packages bring: they end nothing but their own cells, and explain logits of the model."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from jobs.methods import METHODS
from jobs.products.record import Exited
from lrp_core import Batch, ModelView, Relevance, Request
from lrp_core.guard import ROUNDING, undisturbed
from lrp_core.method import Method
from lrp_core.readout import label_logits
from lrp_core.registry import OURS
from lrp_core.types import UserError


@contextmanager
def staying() -> Iterator[None]:
    """A method runs inside. Raises Exited where it would end the process; Ctrl-C and Ray's SIGTERM do end it."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        # Signals are raised in the main thread alone; Ray's say so.
        stopped = isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
        if stopped or getattr(error, "ray_terminate_msg", None) is not None:
            raise
        raise Exited(": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))) from error


def is_brought(method: Method) -> bool:
    """True of a method whose function an installed package brings."""
    return method.base not in METHODS or METHODS.owner(method.base) != OURS


def check_against_model(
    view: ModelView, batch: Batch, rows: Sequence[Mapping[str, Any]], relevance: Mapping[Request, Relevance]
) -> None:
    """Raises UserError where `relevance` is of other logits than one more forward gives, but for rounding."""
    batch = batch.to(view.device)
    with torch.no_grad(), undisturbed(view):
        state = view.prediction(view.hidden(batch), batch)
        of_targets = view.unembed(state, batch)  # [B, 2], [B, 1] without foils
        of_labels = label_logits(view, state) if any(request.label is not None for request in relevance) else None
    rounding = ROUNDING[str(view.dtype).removeprefix("torch.")]
    for request, told in relevance.items():
        own = of_targets if request.label is None or of_labels is None else of_labels[:, [request.label]]
        given = {"logit_target": told.logit_target, "logit_foil": told.logit_foil}
        for (name, values), expected in zip(given.items(), own.unbind(1), strict=False):
            if values is not None:
                _check(f"method {request.method}: its {name}", values.cpu(), expected.cpu(), rounding, rows)


def _check(
    what: str, values: torch.Tensor, expected: torch.Tensor, rounding: float, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Raises UserError where two tensors [B] differ."""
    wrong = (values - expected).abs() > rounding * expected.abs().clamp(min=1)
    if wrong.any():
        at = int(wrong.nonzero()[0])
        told = f"{what} of sample {rows[at]['sample_id']} is {values[at]:g}"
        raise UserError(f"{told}, and the model's is {expected[at]:g}")
