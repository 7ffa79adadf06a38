"""The parts of the report's pages, such as figures with their tables, in modules by subject.

A new part is a function here that reads what the part shows and builds it with `evaluation.report`, and a line in
PARTS.
"""

from __future__ import annotations

from collections.abc import Callable

from closelook.evaluation.report.page import Part
from closelook.jobs.stages.report.parts.faithfulness import (
    composites_part,
    evidence_part,
    faithfulness_part,
    shares_part,
)
from closelook.jobs.stages.report.parts.layers import crossing_part, knockouts_part, layers_part, pruning_part
from closelook.jobs.stages.report.parts.methods import (
    agreement_part,
    controls_part,
    extremes_part,
    runtime_part,
)
from closelook.jobs.stages.report.parts.sources import sources_part
from closelook.jobs.stages.report.reported import Reported

#: In the order of the page. A part with nothing to show is left out.
PARTS: tuple[Callable[[Reported], Part], ...] = (
    evidence_part,
    faithfulness_part,
    shares_part,
    composites_part,
    sources_part,
    controls_part,
    agreement_part,
    extremes_part,
    layers_part,
    pruning_part,
    runtime_part,
    knockouts_part,
    crossing_part,
)
