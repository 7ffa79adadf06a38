"""`python -m tools.real_page [ROOT]` writes the tables of docs/real.md, from the run of `make real` in ROOT.

The scores of every sample go to docs/real/samples.parquet first. Without a ROOT the tables are written from this file
as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

import closelook
from closelook.evaluation.report.results import attnlrp, close_look, normxlogit
from closelook.evaluation.schema import PRUNING
from closelook.evaluation.scoring.intervals import Resampling, cluster_numbers, difference_intervals, mean_intervals
from closelook.evaluation.tasks import TASKS
from closelook.jobs.plan.clusters import clusters_of
from closelook.jobs.results import Run
from closelook.methods import METHODS
from tools.pages import DOCS, markdown, with_table

PAGE = DOCS / "real.md"
SAMPLES = DOCS / "real" / "samples.parquet"
CLAIMS = DOCS / "real" / "claims.csv"
LANGUAGE_MODELS = ("smollm2", "gemma3")
KEY = ("model", "task", "method", "explanation", "embedding", "tokens", "metric")
EVIDENCE = ("pg", "rma")
RESAMPLES = 2000
FIRST = ("first", "first_top", "pg_rest")
IN_PERCENT = {*EVIDENCE, *FIRST, "heads"}
BETWEEN_0_AND_1 = {"pg", "rma", "first_top", "pg_rest"}


@dataclass(frozen=True)
class Side:
    """What is measured on one side of a comparison."""

    method: str
    explanation: str = "contrastive"
    embedding: str = "full"
    tokens: str = "non_special"

    def __str__(self) -> str:
        return "/".join((self.method, self.explanation, self.embedding, self.tokens))


@dataclass(frozen=True)
class Claim:
    """A paper says that `more` has higher scores than `less`; `published` are its two numbers, if it prints them."""

    paper: str
    says: str
    models: Sequence[str]
    task: str
    metric: str
    more: Side
    less: Side
    published: Sequence[float] | None
    about: str  # the model and table of the published numbers


ATTNLRP, LRP, ALTI_LOGIT = Side("attnlrp"), Side("lrp"), Side("alti_logit", embedding="none")
WITH_FIRST = Side("attnlrp", tokens="all")


def of_close_look(says: str, task: str, more: Side, less: Side, table: str = "1") -> Claim:
    """A claim by the pointing game, with the paper's numbers for Llama-3.2-1B."""
    model, metric = "Llama-3.2-1B", "pg"
    sides = ("left", "left") if table == "1" else ("left", "right")
    keys = zip(sides, (more.method, less.method), strict=True)
    numbers = [close_look()[table, side, task, model, method, metric] for side, method in keys]
    models = ("gemma3",) if less.tokens == "all" else LANGUAGE_MODELS  # SmolLM2 has no special tokens before a text
    return Claim("A Close Look", says, models, task, metric, more, less, numbers, f"{model}, table {table}")


def of_attnlrp(other: str) -> Claim:
    task, model, metric = "next_word", "Llama-2-7b-hf", "delta_area"
    says = f"AttnLRP's order of tokens is more faithful than {METHODS[other].label}'s ({task})"
    more, less = Side("attnlrp", "target", tokens="all"), Side(other, "target", tokens="all")
    numbers = [attnlrp()[task, model, side.method, metric] for side in (more, less)]
    return Claim("AttnLRP", says, LANGUAGE_MODELS, task, metric, more, less, numbers, f"{model}, table 1")


def of_normxlogit(other: str) -> Claim:
    task, model, metric = "sst2", "bert-base-uncased", "aopc"
    says = f"removing NormXLogit's top tokens costs more probability than removing {METHODS[other].label}'s ({task})"
    more, less = Side("normxlogit", "target", tokens="all"), Side(other, "target", tokens="all")
    numbers = [normxlogit()[task, model, side.method, metric] for side in (more, less)]
    return Claim("NormXLogit", says, ("minilm-sst2",), task, metric, more, less, numbers, f"{model}, table 1")


def claims() -> Iterator[Claim]:
    """Yield the papers' claims that the run can hold against its own numbers."""
    yield of_close_look("AttnLRP finds the subject more often than LRP", "sva", ATTNLRP, LRP)
    yield of_close_look("AttnLRP finds the subject more often than ALTI-Logit", "sva", ATTNLRP, ALTI_LOGIT)
    yield of_close_look("ALTI-Logit finds the antecedent more often than AttnLRP", "ra", ALTI_LOGIT, ATTNLRP)
    yield of_close_look("AttnLRP finds the antecedent more often than LRP", "ra", ATTNLRP, LRP)
    yield of_close_look("LRP finds the answer more often than AttnLRP", "qa", LRP, ATTNLRP)
    for task, noun in (("sva", "subject"), ("ra", "antecedent")):
        target = Side("attnlrp", "target")
        yield of_close_look(f"AttnLRP finds the {noun} more often if it is contrastive", task, ATTNLRP, target, "2")
    yield of_close_look("special tokens take AttnLRP's hits (subjects)", "sva", ATTNLRP, WITH_FIRST, "3")
    yield of_close_look("special tokens take AttnLRP's hits (antecedents)", "ra", ATTNLRP, WITH_FIRST, "3")
    says = "more predictions stay right if heads go in AttnLRP's order, the least relevant first, than in random order"
    figure = "figure 2, without numbers"
    yield Claim("A Close Look", says, ("smollm2",), "sva", "heads", Side("attnlrp"), Side("random"), None, figure)
    for other in ("gradient_x_input", "lrp"):
        yield of_attnlrp(other)
    for other in ("gradient_x_input", "logat"):
        yield of_normxlogit(other)


def reduced(root: str) -> pd.DataFrame:
    """A row for the score of a sample by a metric, of all samples that a run in `root` predicts correctly."""
    run = closelook.load(root)
    scores = run.scores_of_samples()
    default = scores["task"].map({task: TASKS[task].scope or "full" for task in scores["task"].unique()})
    scores = scores[scores["correct"] & (scores["scope"] == default)]
    evidence = scores.melt([*KEY[:-1], "sample_id"], list(EVIDENCE), "metric")
    curves = run.curves()
    right = scores[["model", "task", "sample_id"]].drop_duplicates()
    words = run.relevance(tokens=False)
    firsts = pd.DataFrame(first_tokens(words[words["model"].isin(LANGUAGE_MODELS) & words["task"].isin(("ra", "sva"))]))
    parts = [evidence, areas(curves), losses(curves), firsts.merge(right), pruned(run)]
    frame = pd.concat(parts, ignore_index=True)
    frame = frame[np.isfinite(frame["value"])]
    frame = frame.groupby([*KEY, "sample_id"], as_index=False)["value"].mean()  # over settings of the same sample
    clusters = {task: clusters_of(run.ledger, task) for task in frame["task"].unique()}
    pairs = zip(frame["task"], frame["sample_id"], strict=True)
    frame["cluster"] = [clusters[task].get(sample, sample) for task, sample in pairs]
    return frame.astype({"value": "float32"} | dict.fromkeys((*KEY, "sample_id", "cluster"), "category"))


def areas(curves: pd.DataFrame) -> pd.DataFrame:
    """The area under a sample's curve of least relevant first, minus that of most relevant first; tokens are zeroed."""
    rows = curves[(curves["perturbation"] == "zero") & (curves["score"] == "target")]
    labels = {"tokens": "all", "metric": "delta_area"}
    rows = rows.assign(**labels).set_index([*KEY, "sample_id"])
    lerf, morf = (rows.loc[rows["order"] == order, "area"] for order in ("lerf", "morf"))
    return (lerf - morf).rename("value").reset_index()


def losses(curves: pd.DataFrame) -> pd.DataFrame:
    """The probability that a label loses without its top tokens, mean over the shares of tokens."""
    rows = curves[(curves["order"] == "without_top") & curves["probability"].notna()]
    lost = [float(np.mean(kept[0] - np.asarray(kept[1:]))) for kept in rows["probability"]]
    rows = rows.assign(tokens="all", metric="aopc", value=lost)
    return rows[[*KEY, "sample_id", "value"]]


def pruned(run: Run) -> pd.DataFrame:
    """The area under a sample's curve of right predictions as heads go, the least relevant first or at random."""
    parts = []
    for place, table in run.read_each("pruning", PRUNING):
        rows = table.to_pandas()
        rows = rows[(rows["step"] == 0) & rows["half"].isna() & (rows["order"] != "most_first")]
        rows = rows[(rows["pooling"] == "relu_dim") | (rows["method"] == "random")]
        rows = rows.explode(["samples", "areas"]).rename(columns={"samples": "sample_id", "areas": "value"})
        labels = {"explanation": "contrastive", "embedding": "none", "tokens": "non_special", "metric": "heads"}
        parts.append(rows.assign(model=place.model, task=place.task, **labels)[[*KEY, "sample_id", "value"]])
    return pd.concat(parts).astype({"value": float})


def first_tokens(relevance: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Yield what the first token takes: its share of relevance, whether its word has the most, and who hits without it.

    `first` is the share, without signs, of the very first token, which may be BOS; the other two, as the pointing game,
    leave special tokens out.
    """
    for row in relevance.to_dict("records"):
        scores, evidence = np.asarray(row["relevance"], float), np.asarray(row["evidence_mask"], bool)
        size = np.abs(scores)
        words = np.flatnonzero(~np.asarray(row["special_mask"], bool))
        first, others = words[0], words[1:]
        found = {
            "first": size[0] / size.sum() if size.sum() > 0 else np.nan,
            "first_top": float(scores[first] >= scores[words].max()),
            "pg_rest": float(evidence[others[scores[others].argmax()]]) if len(others) else np.nan,
        }
        place = {name: row[name] for name in (*KEY[:-2], "sample_id")}
        for metric, value in found.items():
            yield {**place, "tokens": "non_special", "metric": metric, "value": value}


def values_of(frame: pd.DataFrame, model: str, task: str, side: Side, metric: str) -> pd.Series:
    """The values of a side by sample. Methods without explanation or embedding have `none`."""
    rows = frame[(frame.model == model) & (frame.task == task) & (frame.metric == metric)]
    rows = rows[(rows.method == side.method) & (rows.tokens == side.tokens)]
    for name in ("explanation", "embedding"):
        rows = rows[rows[name].isin([getattr(side, name), "none"])]
    values = rows.set_index("sample_id")["value"].astype(float)
    return values * (100 if metric in IN_PERCENT else 1)


def clusters_in(frame: pd.DataFrame, task: str, samples: Sequence[str]) -> np.ndarray | None:
    rows = frame[frame.task == task].drop_duplicates("sample_id")
    return cluster_numbers(dict(zip(rows["sample_id"], rows["cluster"], strict=True)), samples)


def held(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each claim and model: both means, their difference with its interval, and whether the claim holds."""
    rows = []
    for claim in claims():
        for model in claim.models:
            sides = [values_of(frame, model, claim.task, side, claim.metric) for side in (claim.more, claim.less)]
            both = pd.concat(sides, axis=1, join="inner").dropna()
            if both.empty:
                continue
            more, less = both.to_numpy().T
            clusters = clusters_in(frame, claim.task, list(both.index))
            reach = 100.0 if claim.metric in IN_PERCENT else None
            (low,), (high,) = difference_intervals((more - less)[:, None], reach, clusters)
            rows.append(
                {
                    "paper": claim.paper,
                    "claim": claim.says,
                    "published": "{:g} and {:g}".format(*claim.published) if claim.published else "–",
                    "of": claim.about,
                    "model": model,
                    "task": claim.task,
                    "metric": claim.metric,
                    "above": str(claim.more),
                    "below": str(claim.less),
                    "more": more.mean(),
                    "less": less.mean(),
                    "difference": (more - less).mean(),
                    "low": low,
                    "high": high,
                    "n": len(both),
                    "verdict": "holds" if low > 0 else "does not" if high < 0 else "cannot be told",
                }
            )
    return pd.DataFrame(rows)


def means(frame: pd.DataFrame, metric: str, tokens: str = "non_special") -> pd.DataFrame:
    """Mean scores with intervals by method, a column for each model and task, of contrastive or target relevance."""
    cells = {}
    rows = frame[(frame.metric == metric) & (frame.tokens == tokens) & (frame.embedding != "partial")]
    for (model, task, method), group in rows.groupby(["model", "task", "method"], observed=True):
        kinds = [kind for kind in ("contrastive", "none", "target") if kind in set(group["explanation"])]
        kind = "target" if metric in ("delta_area", "aopc") and "target" in kinds else kinds[0]
        group = group[group["explanation"] == kind]
        values = group["value"].to_numpy(float)[:, None]
        clusters = clusters_in(frame, task, list(group["sample_id"]))
        bounds = (0.0, 1.0) if metric in BETWEEN_0_AND_1 else None
        (low,), (high,) = mean_intervals(values, Resampling(RESAMPLES, clusters=clusters), bounds)
        scale, digits = (100, 0) if metric in IN_PERCENT else (1, 2)
        mean, low, high = (f"{scale * number:.{digits}f}" for number in (values.mean(), low, high))
        ends = "" if low == "nan" else f" [{low}, {high}]"  # there is none over few clusters of samples
        cells[METHODS[method].label, f"{model}, {task} (n = {len(group)})"] = mean + ends
    table = pd.Series(cells).unstack(fill_value="")
    return table.rename_axis("method").reset_index()


def told(claims: pd.DataFrame) -> str:
    """The table of the claims."""
    rows = []
    for row in claims.itertuples():
        ours = f"{row.more:.3g} and {row.less:.3g}"
        difference = f"{row.difference:.3g} [{row.low:.3g}, {row.high:.3g}]".replace("nan", "?")
        rows.append((row.paper, row.claim, row.published, row.of, row.model, ours, difference, str(row.n), row.verdict))
    heads = ("paper", "claim", "published", "of", "model", "ours", "difference, 95 % interval", "n", "verdict")
    return markdown(heads, rows)


def rewritten(frame: pd.DataFrame, claims: pd.DataFrame) -> str:
    """The page with its tables as the scores of samples in `frame` make them."""
    words = frame[frame.model.isin(LANGUAGE_MODELS)]
    labels = frame[frame.model.str.startswith("minilm")]
    found = {
        "evidence": means(words, "pg"),
        "classifiers": means(labels, "pg"),
        "mass": means(labels, "rma"),
        "areas": means(words, "delta_area", "all"),
        "losses": means(labels, "aopc", "all"),
        **{metric: means(words, metric) for metric in FIRST},
    }
    tables = {"claims": told(claims)} | {name: markdown(list(of), of.to_numpy()) for name, of in found.items()}
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables.items():
        text = with_table(text, name, "python -m tools.real_page", f"\n{table}\n")
    return text


def main(root: str | None = None) -> None:
    """Write the tables of the page, and the claims as CSV."""
    if root is not None:
        reduced(root).to_parquet(SAMPLES, compression="zstd", index=False)
    frame = pd.read_parquet(SAMPLES)
    claims = held(frame)
    claims.to_csv(CLAIMS, index=False, float_format="%.6g")
    PAGE.write_text(rewritten(frame, claims), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
