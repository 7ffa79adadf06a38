"""The kinds and families of models there are, from their records, and which methods apply to them."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from jobs.methods import METHODS
from lrp_core.families import FAMILIES, Family
from lrp_core.families.generic import GENERIC, GenericFamily
from lrp_core.kinds import KINDS, MASKED, Kind


def show(console: Console) -> None:
    """Print what each kind has in common, then every family: its kind, its norms, the methods that do not apply."""
    for kind in KINDS.values():
        console.print(f"{kind.name}: {kind.title}", style="bold", markup=False)
        console.print(f"  loaded by: {kind.auto}", markup=False)
        console.print(f"  the prediction is read {_read_at(kind)}", markup=False)
        console.print(f"  perturbations: {', '.join(kind.perturbations)}", markup=False)
    table = Table(box=SIMPLE_HEAD, collapse_padding=True)
    for heading in ("family", "kind", "norms", "brought by", "methods"):
        table.add_column(heading)
    for family in FAMILIES.values():
        norms = f"{family.norm}, {family.norm_order}"
        table.add_row(family.name, _kinds(family), norms, FAMILIES.owner(family.name), _methods(family))
    console.print(table)
    console.print("family: `model_type` in the config.json of a checkpoint")
    console.print("adapter: FOLDER or hub id in a config, of a LoRA adapter, for any model that is loaded from weights")
    generic = GenericFamily(name=GENERIC, kind=MASKED)
    known = [name for name, method in METHODS.items() if not method.missing(generic.capabilities)]
    console.print(
        f"family: {GENERIC} in a config, for every other masked or causal language model or text classifier of "
        f"transformers that takes embeddings in place of tokens: {', '.join(known)}",
        markup=False,
    )


def _read_at(kind: Kind) -> str:
    if kind.reads != "anywhere":
        return f"at the {kind.reads} token"
    if kind.decoder:
        return "after what the decoder has seen"
    return "at the mask token inside the text" if kind.slot else "after the text"


def _kinds(family: Family) -> str:
    return family.kind.name if family.with_labels is None else f"{family.kind.name}, {family.with_labels.kind.name}"


def _methods(family: Family) -> str:
    """The methods that apply to a family: all, or all but those for which it lacks something."""
    lacking = [method.name for method in METHODS.values() if method.missing(family.capabilities)]
    return f"all but {', '.join(lacking)}" if lacking else "all"
