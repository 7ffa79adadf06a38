"""Writes jobs/deploy/grafana.json, a dashboard of all metrics for a Grafana that reads those of Ray.

`python -m jobs.cluster.dashboard` rewrites the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from jobs.cluster.recorder import METRICS, TAGS, RayCounter
from jobs.store.spent import KINDS

FILE = Path(__file__).parents[1] / "deploy" / "grafana.json"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_CHOSEN = ", ".join(f'{tag}=~"${tag}"' for tag in TAGS)
_WIDTH, _HEIGHT = 12, 8  # of a panel; a row of the dashboard has 24


def dashboard() -> dict[str, Any]:
    """The dashboard for Grafana: the throughput of workers, the shares of their time, and their errors."""
    by_field = {metric.field: metric for metric in METRICS}
    seconds = [by_field[f"{kind}_s"] for kind in KINDS]
    panels = [_rates(by_field[field]) for field in ("rows", "tokens", "units")]
    panels.append(_spent(seconds))
    panels += [_counted(by_field[field]) for field in ("rejects", "splits", "errors")]
    for at, panel in enumerate(panels):
        row, column = divmod(at, 24 // _WIDTH)
        panel |= {"id": at + 1, "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}}
    time_shown = {"time": {"from": "now-3h", "to": "now"}, "refresh": "10s"}
    variables = {"list": [_source(), *map(_choice, TAGS)]}
    about = {"title": "closelook", "uid": "closelook", "schemaVersion": 39}
    return {**about, **time_shown, "templating": variables, "panels": panels}


def _rates(metric: RayCounter) -> dict[str, Any]:
    """A panel of the metric's increase per second, by model and stage."""
    query = f"sum by ({', '.join(TAGS)}) (rate({metric.exported}{{{_CHOSEN}}}[$__rate_interval]))"
    return _panel(f"{metric.field} a second", metric.about, [(query, _legend())])


def _counted(metric: RayCounter) -> dict[str, Any]:
    """A panel of the metric's increase over the shown time, by model and stage."""
    query = f"sum by ({', '.join(TAGS)}) (increase({metric.exported}{{{_CHOSEN}}}[$__range]))"
    return _panel(metric.field, f"{metric.about}, in the time shown", [(query, _legend())])


def _spent(metrics: Sequence[RayCounter]) -> dict[str, Any]:
    """A panel of how many workers do each kind of work: seconds spent per second are numbers of workers."""
    queries = [(f"sum(rate({m.exported}{{{_CHOSEN}}}[$__rate_interval]))", m.about) for m in metrics]
    panel = _panel("workers, by what they do", "a worker that is explaining all the time counts as one", queries)
    panel["fieldConfig"]["defaults"]["custom"] = {"stacking": {"mode": "normal"}, "fillOpacity": 30}
    return panel


def _panel(title: str, about: str, queries: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """A panel with a curve for each of `queries`: (expression, legend)."""
    targets = []
    for letter, (query, legend) in zip(ascii_uppercase, queries, strict=False):
        targets.append({"refId": letter, "expr": query, "legendFormat": legend, "datasource": SOURCE})
    fields: dict[str, Any] = {"defaults": {"min": 0}, "overrides": []}
    return {
        "type": "timeseries",
        "title": title,
        "description": about,
        "datasource": SOURCE,
        "fieldConfig": fields,
        "targets": targets,
    }


def _legend() -> str:
    """The legend of a curve: the values of its tags."""
    return " ".join(f"{{{{{tag}}}}}" for tag in TAGS)


def _source() -> dict[str, Any]:
    """The dashboard's variable for the Prometheus to read."""
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _choice(tag: str) -> dict[str, Any]:
    """The dashboard's variable that chooses values of a tag."""
    query = f"label_values({METRICS[0].exported}, {tag})"
    return {
        "name": tag,
        "type": "query",
        "datasource": SOURCE,
        "query": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
    }


def main() -> None:
    """Rewrite the file."""
    FILE.write_text(json.dumps(dashboard(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
