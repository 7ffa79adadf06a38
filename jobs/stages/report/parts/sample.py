"""A sample with its relevance by every method (AttnLRP's figure 7)."""

from __future__ import annotations

from evaluation.report.heatmaps.one_sample import picture_rows, token_rows, token_table
from evaluation.report.page import Part
from jobs.stages.report.reported import Reported
from jobs.stages.report.samples import one_sample
from lrp_core.records.explained import NONE, TARGET, needs_foil

TITLE = "One sample, every method"


def sample_part(report: Reported) -> Part:
    """One sample explained by every method. Explanations of the target's logit are shown if there are any."""
    page, how = "faithfulness.html", "Nothing is explained and scored: run `closelook attribute` and `evaluate`."
    entry = one_sample(report.run.plan, report.run.store, report.results)
    if entry is None:
        return Part(TITLE, how, page=page)
    explained = list(dict.fromkeys(row["explanation"] for row in entry["rows"] if row["explanation"] != NONE))
    shown_explanation = TARGET.name if TARGET.name in explained else next(iter(explained), NONE)
    rows = [row for row in entry["rows"] if row["explanation"] in (NONE, shown_explanation)]
    foil = f" rather than {entry['foil']!r}" if shown_explanation != NONE and needs_foil(shown_explanation) else ""
    right = f"{entry['model']} predicts rightly and " if entry["correct"] else ""
    caption = (
        f"Relevance for {entry['target']!r}{foil}. It is sample {entry['sample_id']}, the first by id of those that "
        f"{right}every method explains; others are on the page of samples."
    )
    shown = entry | {"rows": rows}
    details = [token_table(shown, f"{TITLE}: the numbers", "Relevance of every token, in the unit of each method.")]
    drawn = (picture_rows if "image" in entry else token_rows)(shown, f"{entry['task']}, {entry['model']}.", caption)
    return Part(TITLE, how, [drawn], page=page, details=details)
