"""Checks results before they are committed: code of packages may return anything."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jobs.products.record import Made, Product, Reject
from jobs.products.table import is_of_package

_SAMPLE = "sample_id"


class Unfit(Exception):
    """A result that cannot be stored; the message says why."""


def checked(product: Product, made: Any, samples: Collection[str]) -> Made:
    """The result of a part, checked: every row and reject belongs to one of the unit's `samples`, and none has both.

    For products of packages, samples with numbers that are not finite become rejects. Rows of other things than
    samples, and units without samples, are not checked. Raises Unfit, naming a sample, for any other result.
    """
    if not isinstance(made, Made) or not isinstance(made.table, pa.Table):
        raise Unfit(f"product {product.name} must return Made with a pyarrow.Table as `table`, not {_kind(made)}")
    if not samples or _SAMPLE not in made.table.column_names:
        return made
    explained = set(made.table[_SAMPLE].to_pylist())
    rejected = {reject.sample_id for reject in made.rejects}
    for kind, ids in (("rows", explained), ("rejects", rejected)):
        foreign = ids.difference(samples)
        if foreign:
            raise Unfit(f"there are {kind} of sample {min(map(str, foreign))}, which is not in this unit")
    if both := explained & rejected:
        raise Unfit(f"there are both rows and a reject of sample {min(both)}")
    return _without_infinite(made) if is_of_package(product.name) else made


def _kind(made: Any) -> str:
    """The type of a wrong result, for the message."""
    return type(made.table).__name__ if isinstance(made, Made) else type(made).__name__


def _without_infinite(made: Made) -> Made:
    """The result without samples that have a number that is not finite: they become rejects. Nulls are allowed."""
    fine = pa.array([True] * made.table.num_rows)
    for column in made.table.columns:
        fine = pc.and_(fine, _finite(column.combine_chunks()))
    if pc.all(fine).as_py() in (True, None):
        return made
    lost = made.table.filter(pc.invert(fine))[_SAMPLE].unique()
    rejects = tuple(Reject(name, "not_finite", "one of its numbers is not finite") for name in lost.to_pylist())
    kept = made.table.filter(pc.invert(pc.is_in(made.table[_SAMPLE], lost)))
    return replace(made, table=kept, rejects=(*made.rejects, *rejects))


def _finite(values: pa.Array) -> pa.Array:
    """For each value, False if it is or has (in a list) an infinite number or NaN."""
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        inner, owners = _finite(pc.list_flatten(values)), pc.list_parent_indices(values)
        bad = set(owners.filter(pc.invert(inner)).to_pylist())
        return pa.array([at not in bad for at in range(len(values))])
    if not pa.types.is_floating(values.type):
        return pa.array([True] * len(values))
    return pc.fill_null(pc.is_finite(values), True)


def explained_by_none(rejects: Sequence[Collection[str]]) -> set[str]:
    """The samples that every part of a unit rejects; `rejects` has the ids that each part rejects."""
    return set.intersection(*map(set, rejects)) if rejects else set()
