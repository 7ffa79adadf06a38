"""docs/real.md: what it claims, recomputed by other code from the scores of samples that are kept beside it."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from closelook.evaluation.scoring.intervals import FEWEST_CLUSTERS
from tools import real_page

CLAIMS = pd.read_csv(real_page.CLAIMS)
MOST_BYTES = 5_000_000


@pytest.fixture(scope="module")
def samples() -> pd.DataFrame:
    return pd.read_parquet(real_page.SAMPLES)


def scores(samples: pd.DataFrame, claim: pd.Series, side: str) -> pd.DataFrame:
    """The score and cluster of each sample; methods without explanation or embedding have `none` in their place."""
    method, explanation, embedding, tokens = side.split("/")
    rows = samples[(samples.model == claim.model) & (samples.task == claim.task) & (samples.metric == claim.metric)]
    rows = rows[(rows.method == method) & (rows.tokens == tokens)]
    rows = rows[rows.explanation.isin([explanation, "none"]) & rows.embedding.isin([embedding, "none"])]
    assert rows["sample_id"].is_unique
    return rows.set_index("sample_id")[["value", "cluster"]].astype({"value": float})


@pytest.mark.parametrize("at", CLAIMS.index)
def test_a_claim_is_what_its_samples_say(at, samples):
    claim = CLAIMS.loc[at]
    above, below = (scores(samples, claim, claim[side]) for side in ("above", "below"))
    both = above.join(below["value"].rename("below"), how="inner")
    scale = 1 if claim.metric in ("delta_area", "aopc") else 100
    differences = scale * (both["value"] - both["below"])
    mean = differences.mean()
    assert claim.n == len(both)
    assert [claim.more, claim.less] == pytest.approx(
        [scale * both[side].mean() for side in ("value", "below")], rel=1e-4
    )
    assert claim.difference == pytest.approx(mean, rel=1e-4, abs=1e-6)
    residuals = (differences - mean).groupby(both["cluster"].astype(str)).sum()
    groups = len(residuals)
    error = np.sqrt(groups / (groups - 1) * (residuals**2).sum()) / len(both)
    half = stats.t.ppf(0.975, groups - 1) * error
    if np.isnan(claim.low):
        assert groups < FEWEST_CLUSTERS
    elif half > 0:  # the interval of differences that are all the same is another
        ends = [max(mean - half, -100 * scale), min(mean + half, 100 * scale)]
        assert [claim.low, claim.high] == pytest.approx(ends, rel=1e-3, abs=1e-4)
    verdict = "holds" if claim.low > 0 else "does not" if claim.high < 0 else "cannot be told"
    assert claim.verdict == verdict


def test_the_page_has_the_tables_of_its_samples(samples):
    assert real_page.rewritten(samples, real_page.held(samples)) == real_page.PAGE.read_text(encoding="utf-8")


def test_the_scores_of_samples_are_small():
    assert sum(file.stat().st_size for file in real_page.SAMPLES.parent.iterdir()) <= MOST_BYTES
