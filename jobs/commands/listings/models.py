"""`closelook models`: lists kinds and families of models, the methods that apply, and verified models."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from jobs.commands.terminal import say, say_table
from jobs.methods import METHODS
from jobs.verification.registry import FOLDER, Verified
from jobs.verification.registry import known as registered
from lrp_core.families import FAMILIES
from lrp_core.families.generic import GENERIC, GenericFamily
from lrp_core.records.capabilities import Capability
from lrp_core.records.kinds import KINDS, MASKED, Kind


def show() -> None:
    """Print the facts about every kind of models, every family with its methods, and the models that were verified."""
    for kind in KINDS.values():
        say(f"{kind.name}: {kind.title}", "bold")
        say(f"  loaded by: {kind.auto}")
        say(f"  the prediction is read {_read_at(kind)}")
        say(f"  perturbations: {', '.join(kind.perturbations)}")
    rows = []
    for family in FAMILIES.values():
        kinds = family.kind.name
        if family.with_labels is not None:
            kinds = f"{kinds}, {family.with_labels.kind.name}"
        lacking = [name for name, applies in _applying(family.capabilities).items() if not applies]
        methods = f"all but {', '.join(lacking)}" if lacking else "all"
        rows.append((family.name, kinds, f"{family.norm}, {family.norm_order}", FAMILIES.owner(family.name), methods))
    say_table(("family", "kind", "norms", "brought by", "methods"), rows)
    say("family: `model_type` in the config.json of a checkpoint")
    say("adapter: FOLDER or hub id in a config, of a LoRA adapter, for any model that is loaded from weights")
    generic = _applying(GenericFamily(name=GENERIC, kind=MASKED).capabilities)
    known = ", ".join(name for name, applies in generic.items() if applies)
    say(
        f"family: {GENERIC} in a config, for every other masked or causal language model or text classifier of "
        f"transformers that takes embeddings in place of tokens: {known}"
    )
    say(f"verified by `closelook verify`, with the number of checks passed (yours: files of --json in ${FOLDER}):")
    say_table(("model", "family", "kind", "passed in", "on", "torch", "transformers", "by"), _verified())


def _verified() -> Iterator[tuple[str, ...]]:
    """A row for each verified model, device and versions, with the outcome in each precision."""
    alike: dict[tuple[str, ...], list[Verified]] = {}
    for by, line in registered():
        key = (line.model, line.family, line.kind, line.device, line.torch, line.transformers, by)
        alike.setdefault(key, []).append(line)
    for (model, family, kind, *found_with), lines in alike.items():
        yield model, family, kind, ", ".join(map(_outcome, lines)), *found_with


def _outcome(line: Verified) -> str:
    """A precision with the number of passed checks, or with the checks that failed."""
    return f"{line.dtype} FAILED ({line.failed})" if line.failed else f"{line.dtype} ({line.passed})"


def _read_at(kind: Kind) -> str:
    """The readout position of a kind of models, in words."""
    if kind.reads != "anywhere":
        return f"at the {kind.reads} token"
    if kind.decoder:
        return "after what the decoder has seen"
    return "at the mask token inside the text" if kind.slot else "after the text"


def _applying(capabilities: Collection[Capability]) -> dict[str, bool]:
    """By name, True for each method that can explain models with these `capabilities`."""
    return {name: not method.missing(capabilities) for name, method in METHODS.items()}
