"""Parts of the report's page of curves: figures and their tables, a module each.

A new figure is a module here, whose function reads what the figure shows and draws it with `evaluation.report.drawing`,
and a line in the table.
"""

from __future__ import annotations

from collections.abc import Callable

from evaluation.report.page import Part
from jobs.stages.report.parts.agreement import agreement_part
from jobs.stages.report.parts.composites import composites_part
from jobs.stages.report.parts.controls import controls_part
from jobs.stages.report.parts.extremes import extremes_part
from jobs.stages.report.parts.faithfulness import evidence_part, faithfulness_part
from jobs.stages.report.parts.layers import layers_part
from jobs.stages.report.parts.neurons import crossing_part, knockouts_part
from jobs.stages.report.parts.pruning import pruning_part
from jobs.stages.report.parts.runtime import runtime_part
from jobs.stages.report.parts.sample import sample_part
from jobs.stages.report.parts.shares import shares_part
from jobs.stages.report.parts.sources import sources_part
from jobs.stages.report.reported import Reported

#: In the order of the page. A part says itself what to run where there is nothing to show.
PARTS: tuple[Callable[[Reported], Part], ...] = (
    evidence_part,
    faithfulness_part,
    shares_part,
    composites_part,
    sources_part,
    controls_part,
    agreement_part,
    extremes_part,
    sample_part,
    layers_part,
    pruning_part,
    runtime_part,
    knockouts_part,
    crossing_part,
)
