"""Numbers of one cell under one setting, sample by sample, from stored relevance, views and curves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from tests.recompute import metrics, statistics
from tests.recompute.stored import CELL, Root

#: Labels of methods in reports.
LABELS = {
    "gradient_l1": "Gradient l1",
    "gradient_l2": "Gradient l2",
    "gradient_x_input": "Gradient×Input",
    "lrp": "LRP",
    "attnlrp": "AttnLRP",
    "attnlrp_vit": "AttnLRP (composite=vit)",
    "attention_rollout": "AttnRollout",
    "alti": "ALTI",
    "alti_logit": "ALTI-Logit",
    "random": "Random",
    "occlusion": "Occlusion",
    "normxlogit": "NormXLogit",
    "lrp_identity_softmax": "LRP, identity softmax",
    "lrp_distributed_bias": "LRP, distributed bias",
    "activation": "Activation",
    "contextcite": "ContextCite",
    "leave_one_out": "Leave-one-out",
    "attention_share": "Attention",
    "shap_units": "Kernel SHAP (units=true)",
}
NAMES = {label: name for name, label in LABELS.items()}
METRICS = {
    "PG": "pg",
    "PG2": "pg2",
    "Tied tops": "tied_tops",
    "MRR": "mrr",
    "MRR strict": "mrr_strict",
    "RMA": "rma",
    "PTA": "pta",
    "IoU": "iou",
    "IoU positive": "iou_positive",
    "IoU soft": "iou_soft",
    "RRA": "rra",
    "AP": "ap",
    "Dot product": "dot",
    "Dot product, softmax": "dot_softmax",
}
METRICS |= {f"{label}, shuffled": f"{METRICS[label]}_shuffled" for label in ("RMA", "PTA", "IoU", "IoU positive")}
FLIPS = 9_999  # random signs
ROUNDING, TELLING = 1e-5, 1e-4  # of a logit: what no token of most samples exceeds is rounding, or may be


@dataclass(frozen=True)
class Setting:
    """A variant of relevance, and the tokens that are scored."""

    explanation: str = "contrastive"
    embedding: str = "full"
    tokens: str = "non_special"
    scope: str = "context"


class Facts:
    """The frames and settings of a root from which tables are recomputed."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.draws = int(root.config["report"]["resamples"])
        self.flips = FLIPS

    @cached_property
    def cells(self) -> dict[tuple[str, ...], pd.DataFrame]:
        """Rows of relevance by cell."""
        return dict(iter(self.root.relevance.groupby(CELL, sort=False)))

    @cached_property
    def models(self) -> list[str]:
        return [entry["name"] for entry in self.root.config["models"]]

    def dtype(self, model: str, task: str) -> str:
        """The first precision of a task."""
        return self.dtypes(model, task)[0]

    def dtypes(self, model: str, task: str) -> list[str]:
        [record] = [entry for entry in self.root.config["models"] if entry["name"] == model]
        return record["dtypes"].get(task, [record["dtype"]])

    def view(self, cell: tuple[str, ...], sample: str) -> dict[str, Any]:
        return self.root.views[self.root.tokenizers[cell], cell[1]][sample]

    @cached_property
    def label_ids(self) -> dict[tuple[str, str], dict[str, int]]:
        """The output of each label, by model and task: the one predicted for the samples that are stored as correct."""
        stored = self.root.flat("scores_samples")
        stored = stored[stored["correct"]].drop_duplicates(["model", "task", "sample_id"])
        ids: dict[tuple[str, str], dict[str, int]] = {}
        for model, task, dtype, method, sample in stored[[*CELL, "sample_id"]].itertuples(index=False):
            cell = (model, task, dtype, method)
            label = self.view(cell, sample)["label"]
            if label is not None:
                rows = self.cells[cell]
                predicted = rows.loc[rows["sample_id"] == sample, "predicted_id"].iloc[0]
                known = ids.setdefault((model, task), {}).setdefault(label, int(predicted))
                if known != predicted:
                    raise ValueError(f"{model} {task}: the label {label} is output {known} and {predicted}")
        for where, labels in ids.items():
            if len(set(labels.values())) != len(labels):
                raise ValueError(f"{where}: two labels are one output: {labels}")
        return ids

    def correct(self, cell: tuple[str, ...], row: Any) -> bool:
        """The target's logit is above the foil's; of labels, the predicted label is the gold label."""
        view = self.view(cell, row.sample_id)
        if view["label"] is not None:
            return self.label_ids.get(cell[:2], {}).get(view["label"], -1) == row.predicted_id
        if view["foil_id"] is None:
            return False
        return row.logit_target > row.logit_foil

    def judged_by_correctness(self, cell: tuple[str, ...]) -> bool:
        """Samples have a foil or a gold label, so that predictions are right or wrong."""
        views = [self.view(cell, sample) for sample in self.cells[cell]["sample_id"]]
        return any(view["foil_id"] is not None or view["label"] is not None for view in views)

    def variant(self, cell: tuple[str, ...], setting: Setting) -> pd.DataFrame:
        """Rows of relevance under a setting; a method without a choice has the only one there is."""
        rows = self.cells.get(cell)
        if rows is None:
            return pd.DataFrame()
        for column in ("explanation", "embedding"):
            if set(rows[column]) != {"none"}:
                rows = rows[rows[column] == getattr(setting, column)]
        return rows

    def chosen(self, cell: tuple[str, ...], sample: str, setting: Setting) -> np.ndarray:
        """The tokens that count: of the scope, or all; without special tokens, or with them."""
        view = self.view(cell, sample)
        special = np.array(view["special_mask"])
        scoped = setting.scope == "context" and view["scope_mask"] is not None
        chosen = np.array(view["scope_mask"]) if scoped else np.ones(len(special), bool)
        return chosen | special if setting.tokens == "all" else chosen & ~special

    @cache  # noqa: B019 - lives as long as the report is read
    def samples(self, cell: tuple[str, ...], setting: Setting = Setting()) -> pd.DataFrame:
        """Every metric of every sample that has evidence, `correct`, `tokens` and `evidence`, by sample."""
        rows = []
        for row in self.variant(cell, setting).itertuples():
            evidence = self.view(cell, row.sample_id)["evidence_mask"]
            if evidence is None:
                continue
            chosen = self.chosen(cell, row.sample_id, setting)
            r, g = np.array(row.relevance, np.float64)[chosen], np.array(evidence)[chosen]
            numbers = {}
            if g.any():  # stored in single precision
                numbers = {name: float(np.float32(metric(r, g))) for name, metric in metrics.SPECIFIED.items()}
            counts = {"correct": self.correct(cell, row), "tokens": len(r), "evidence": int(g.sum())}
            rows.append({"sample_id": row.sample_id, **counts, **numbers})
        return pd.DataFrame(rows).set_index("sample_id").sort_index() if rows else pd.DataFrame()

    def correctly(self, cell: tuple[str, ...], setting: Setting = Setting()) -> pd.DataFrame:
        """The samples that are predicted correctly, as they are stored."""
        frame = self.samples(cell, setting)
        return frame[frame["correct"]] if len(frame) else frame

    @cache  # noqa: B019
    def scored(self, cell: tuple[str, ...], setting: Setting = Setting()) -> pd.DataFrame:
        """The samples that are predicted correctly; of random relevance the chance."""
        frame = self.correctly(cell, setting).copy()
        for name in metrics.SPECIFIED if len(frame) and cell[3] == "random" else ():
            counts = zip(frame["tokens"], frame["evidence"], strict=True)
            frame[name] = np.array([_chance(name, n, g)[0] for n, g in counts], float)
        return frame

    def slack(self, cell: tuple[str, ...], metric: str) -> tuple[float, float]:
        """ERRORS standard errors of chance by draws, the product's and ours: of its mean, and of its interval's ends.

        The standard deviation of samples moves by at most that of their errors. 0 where nothing is drawn.
        """
        frame = self.scored(cell)
        if cell[3] != "random" or not len(frame):
            return 0.0, 0.0
        n = len(frame)
        counts = Counter(zip(frame["tokens"], frame["evidence"], strict=True))
        draws = 1 / statistics.CHANCE_DRAWS + 1 / statistics.PLACES
        variances = {of: draws * _chance(metric, *of)[1] for of in counts}
        of_mean = math.sqrt(sum((count / n) ** 2 * variances[of] for of, count in counts.items()))
        deviation = math.sqrt(sum(count * variances[of] for of, count in counts.items()) / max(1, n - 1))
        of_width = float(stats.t.ppf(statistics.LEVELS[1], max(1, n - 1))) * deviation / math.sqrt(n)
        return statistics.ERRORS * of_mean, statistics.ERRORS * (of_mean + of_width)

    @cache  # noqa: B019
    def noise(self, cell: tuple[str, ...], setting: Setting = Setting()) -> str:
        """The state of numbers of relevance that is, or may be, rounding; empty if it is more."""
        rows = self.variant(cell, setting)
        if not len(rows) or rows["residual"].isna().all():
            return ""
        peak = np.median(self.peaks(cell, setting))
        return "noise" if peak <= ROUNDING else "near noise" if peak <= TELLING else ""

    def peaks(self, cell: tuple[str, ...], setting: Setting) -> np.ndarray:
        """The largest relevance of a token of each sample, as a share of the larger of its logits."""
        peaks = []
        for row in self.variant(cell, setting).itertuples():
            largest = np.abs(np.array(row.relevance, np.float64)).max()
            foil = 0.0 if row.logit_foil is None or np.isnan(row.logit_foil) else row.logit_foil
            peaks.append(largest / max(abs(row.logit_target), abs(foil)))
        return np.array(peaks)

    def relevance_of(self, cell: tuple[str, ...], sample: str, setting: Setting = Setting()) -> np.ndarray:
        """Relevance of every token of a sample."""
        rows = self.variant(cell, setting)
        [row] = rows.loc[rows["sample_id"] == sample, "relevance"]
        return np.array(row, np.float64)

    def sign_flip(self, differences: np.ndarray, sizes: np.ndarray | None = None) -> list[statistics.Range]:
        return statistics.sign_flip(differences, self.flips, sizes)

    def pairs_of(self, columns: Mapping[str, pd.Series]) -> dict[tuple[str, str], statistics.Range]:
        """Adjusted p of every pair of methods, both ways round, on the samples that all columns have."""
        common = pd.concat(list(columns.values()), axis=1, join="inner").to_numpy() if columns else np.empty((0, 0))
        names, adjusted = list(columns), {}
        for (a, b), p in statistics.max_t(common, self.flips).items():
            adjusted[names[a], names[b]] = adjusted[names[b], names[a]] = p
        return adjusted

    def interval(self, values: np.ndarray, bounds: tuple[float, float] | None = None) -> statistics.Interval:
        return statistics.specified_interval(values, self.draws, bounds)


@cache
def _chance(metric: str, n: int, g: int) -> tuple[float, float]:
    """The mean of a metric of random relevance, and the variance of what it is drawn from; 0 of a closed form."""
    exact = statistics.chance(metric, n, g)
    return (exact, 0.0) if exact is not None else statistics.drawn_chance(metrics.SPECIFIED[metric], n, g)
