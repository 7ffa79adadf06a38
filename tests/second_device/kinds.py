"""Tiny models of every kind on both devices, and how what they give is compared."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

from closelook.lrp_core import Batch, ModelView, Relevance
from closelook.lrp_core.families.generic import GENERIC
from closelook.lrp_core.opening.model import view_of
from tests.second_device.device import counted_waits, numbers_of, on_second_device
from tests.tiny import picture_rows, ragged_rows, tiny_classifier, tiny_config, tiny_model

KINDS = ("gpt2", "bert", "llama", "t5", "vit", "mixtral")
SIZES = ((2, 2), (4, 5))  # layers and rows
#: Relevance is a sum of products of about 1 that cancel: its rounding error in float32 does not shrink with it.
SMALLEST = 0.1
_LENGTHS = (7, 4, 10, 6, 5)
_DEPTHS = ("num_hidden_layers", "n_layers", "num_layers", "encoder_layers")  # how configs call the number of layers


@cache
def models(kind: str, layers: int, dtype: str = "float32") -> tuple[ModelView, ModelView]:
    """A tiny model of so many layers on the CPU, and its copy on the second device.

    `kind` is a family, or "<family> classifier", or "<family> generic".
    """
    family, _, form = kind.partition(" ")
    config = tiny_config(family)
    depth = next(name for name in _DEPTHS if name in {**config.to_dict(), **config.attribute_map})
    make = tiny_classifier if form == "classifier" else tiny_model
    view = make(family, dtype=dtype, **{depth: layers})
    view = view_of(view.model, GENERIC) if form == GENERIC else view
    return view, on_second_device(view)


def rows_of(view: ModelView, rows: int) -> list[dict[str, Any]]:
    return picture_rows(view, rows) if view.kind.images else ragged_rows(view, _LENGTHS[:rows])


def batch_of(view: ModelView, rows: int) -> Batch:
    return Batch.collate(rows_of(view, rows), pad_id=0)


#: Waits of a forward under rules: whether look-ups have the batch's ids, and what the model itself reads of its mask.
OF_RULES = 9


def check(
    kind: str, compute: Callable[[ModelView, int], Any], most: int, a_row: int = 0, dtype: str = "float32"
) -> None:
    """Check that `compute(model, rows)` gives the same on the second device and the CPU, for both SIZES.

    Numbers are compared in `dtype`. In float32 it must wait at most `most` times, for the larger size not more often,
    besides `a_row` times for each row.
    """
    fixed, waits = [], []
    for layers, rows in SIZES:
        cpu_view, device_view = models(kind, layers)
        with counted_waits() as counted:
            result = compute(device_view, rows)
        if dtype != "float32":
            cpu_view, device_view = models(kind, layers, dtype)
            result = compute(device_view, rows)
        waits.append(dict(counted))
        fixed.append(sum(counted.values()) - a_row * rows)
        assert_same(numbers_of(result), compute(cpu_view, rows))
    assert fixed[1] <= fixed[0] <= most, waits


def assert_same(result: Any, expected: Any) -> None:
    """Equal up to rounding, relative to the largest number, or to SMALLEST where all are smaller."""
    if isinstance(expected, Relevance):
        parts = {name: value for name, value in vars(expected).items() if isinstance(value, torch.Tensor)}
        for name, value in parts.items():  # rounding decides between positions that are as good
            if name not in ("neuron_positions", "neuron_values"):
                assert_same(getattr(result, name), value)
    elif isinstance(expected, dict):
        assert result.keys() == expected.keys()
        assert_same(list(result.values()), list(expected.values()))
    elif isinstance(expected, list | tuple):
        assert len(result) == len(expected)
        for part, other in zip(result, expected, strict=True):
            assert_same(part, other)
    else:
        result, expected = (torch.as_tensor(np.asarray(values), dtype=torch.float64) for values in (result, expected))
        scale = expected[expected.isfinite()].abs().amax().clamp_min(SMALLEST) if expected.isfinite().any() else 1
        torch.testing.assert_close(result / scale, expected / scale, rtol=0, atol=1e-4, equal_nan=True)
