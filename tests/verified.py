"""``python -m tests.verified``: writes the shipped registry of verified models, jobs/verification/verified.csv.

Verified are tiny random models of every family in every precision, those with labels and the demo's in float32.
"""

from collections.abc import Iterator

from closelook.evaluation.benchmark.demo import EVERY
from closelook.jobs.commands.verify import Verification, verify
from closelook.jobs.methods import METHODS
from closelook.jobs.verification.registry import SHIPPED, Verified, write
from closelook.lrp_core import ModelView
from closelook.lrp_core.families import FAMILIES
from closelook.lrp_core.opening.loading import DTYPES
from closelook.lrp_core.records.registry import OURS
from tests.tiny import tiny_classifier, tiny_model

METHODS_OF_OURS = [name for name in METHODS if METHODS.owner(name) == OURS]
WITH_LABELS = [name for name, family in FAMILIES.items() if family.with_labels is not None]


def main() -> None:
    lines = []
    for name, verification in every():
        lines.append(Verified.of(verification))
        print(f"{name}: {verification}", flush=True)
    write(SHIPPED, lines)


def every() -> Iterator[tuple[str, Verification]]:
    """(name, its verification) of every model."""
    for family in FAMILIES:
        for dtype in DTYPES:
            yield named(f"tiny {family}", tiny_model(family, dtype=dtype))
    for family in WITH_LABELS:
        yield named(f"tiny {family} with labels", tiny_classifier(family, dtype="float32"))
    for name in EVERY:
        yield f"demo/{name}", verify(f"demo/{name}", device="cpu", method=METHODS_OF_OURS)


def named(name: str, view: ModelView) -> tuple[str, Verification]:
    view.model.config._name_or_path = view.model.name_or_path = name
    return name, verify(view, method=METHODS_OF_OURS)


if __name__ == "__main__":
    main()
