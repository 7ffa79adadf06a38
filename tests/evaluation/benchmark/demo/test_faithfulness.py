"""Faithfulness of LRP on the trained models: its order of tokens beats a random one."""

import numpy as np
import pytest
from transformers import AutoTokenizer

from closelook.evaluation.benchmark.demo import MODELS, generate, model_dir
from closelook.evaluation.benchmark.samples import Beginning
from closelook.evaluation.benchmark.views import tokenise
from closelook.evaluation.scoring.faithfulness.flipping import Flips, PerturbedSample, compute_curves
from closelook.evaluation.scoring.intervals import Resampling
from closelook.evaluation.scoring.statistics import bootstrap_means, holm_adjusted, interval, sign_flip_p
from closelook.lrp_core import Batch, attribute, load_model
from closelook.lrp_core.readers.predictions import with_predictions

METHODS = ("lrp", "attnlrp", "random")
SAMPLES, RESAMPLES = 40, 1000


def differences(name, task):
    """Areas of LeRF minus MoRF [N, M] of the methods, explaining the target (on next_word the model's own)."""
    view, tokenizer = load_model(str(model_dir(name))), AutoTokenizer.from_pretrained(model_dir(name))
    rows, beginning = list(generate(task, SAMPLES)), Beginning(512, "prediction")
    options = {"kind": view.kind, "max_length": view.max_length, "beginning": beginning}
    views, rejects = tokenise(rows, tokenizer, **options)
    assert not rejects
    views = [row | {"foil_id": None} for row in with_predictions(view, views)]
    batch = Batch.collate(views, pad_id=0)
    tokens = [attribute(method, view, batch).tokens.double().numpy() for method in METHODS]  # [M] of [N, T]
    flips = Flips("zero", 100, True, seed=0)
    asked = [
        PerturbedSample.of(
            row, np.stack([of_method[at, : row["length"]] for of_method in tokens]), flips, view.kind.slot
        )
        for at, row in enumerate(views)
    ]
    curves, _ = compute_curves(view, asked, flips, 8192)
    return np.array([curve.areas()["delta_area"] for curve in curves])


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", MODELS)
def test_lrp_and_attnlrp_beat_random_and_random_is_no_better_than_its_reverse(name):
    p_random = []
    for task in ("sva", "next_word"):
        result = differences(name, task)
        low, high = interval(bootstrap_means(result, Resampling(RESAMPLES)))
        assert low[0] > high[2], f"{task}: lrp beside random"
        assert low[1] > high[2], f"{task}: attnlrp beside random"
        beside_zero = np.stack([result[:, 2], np.zeros(SAMPLES)], axis=1)
        p_random.append(float(sign_flip_p(beside_zero, 0)[0, 1]))
    assert min(holm_adjusted(p_random)) > 0.05
