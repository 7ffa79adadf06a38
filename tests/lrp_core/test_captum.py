"""Our gradients against captum's, on stock models with the same noise."""

import pytest
import torch
from captum import attr as captum

from closelook.lrp_core import Batch, ModelView
from closelook.lrp_core.methods.path_gradients import Noise
from tests.asked import close, explain
from tests.oracles import methods as oracles
from tests.tiny import ragged_rows

pytestmark = pytest.mark.numeric
FLOAT32 = {"rtol": 1e-6, "atol": 1e-6}  # in which captum has the steps of a path, and deviations


@pytest.fixture
def rows(view) -> list[dict]:
    return ragged_rows(view)


def attribute(kind: type, view: ModelView, row: dict, **options) -> torch.Tensor:
    """Captum's attribution of the contrastive number to the token embeddings [T, D]."""

    def forward(embeddings: torch.Tensor) -> torch.Tensor:
        logits = oracles.stock(view, inputs_embeds=embeddings).logits[:, row["position"]]
        return logits[:, row["target_id"]] - logits[:, row["foil_id"]]

    tunnel = options.pop("tunnel", lambda inner: inner)
    leaf = oracles.tokens(view, row)[None].requires_grad_()
    return tunnel(kind(forward)).attribute(leaf, **options)[0].detach()


def test_gradient_l1_is_captums_saliency(view, rows):
    expected = [attribute(captum.Saliency, view, row).sum(-1) for row in rows]
    close(explain("gradient_l1", view, rows), expected)


@pytest.mark.parametrize("reduce", ["sum", "l1", "l2"])
def test_gradient_x_input_is_captums(view, rows, reduce):
    products = [attribute(captum.InputXGradient, view, row) for row in rows]
    expected = [p.sum(-1) if reduce == "sum" else p.norm(p=int(reduce[1]), dim=-1) for p in products]
    close(explain("gradient_x_input", view, rows, embedding="partial", reduce=reduce), expected)


@pytest.mark.parametrize(("rule", "theirs"), [("right", "riemann_right"), ("gauss_legendre", "gausslegendre")])
def test_integrated_gradients_are_captums(view, rows, rule, theirs):
    expected = [attribute(captum.IntegratedGradients, view, row, n_steps=9, method=theirs).sum(-1) for row in rows]
    close(explain("integrated_gradients", view, rows, steps=9, rule=rule), expected, **FLOAT32)


def test_smoothgrad_is_captums_noise_tunnel_on_the_same_noise(view, rows, monkeypatch):
    batch, expected = Batch.collate(rows, 0), []
    noise = Noise(batch, view.visible(batch), view.d_model, seed=0)
    for i, row in enumerate(rows):
        drawn = torch.stack([noise(k)[i, : len(row["input_ids"])] for k in range(6)]).double()
        monkeypatch.setattr(torch, "normal", lambda mean, deviation, drawn=drawn: mean + deviation * drawn)
        options = {"nt_type": "smoothgrad", "nt_samples": 6, "stdevs": 0.3, "tunnel": captum.NoiseTunnel, "abs": False}
        expected.append(attribute(captum.Saliency, view, row, **options).norm(dim=-1))
    close(explain("smoothgrad", view, rows, samples=6, sigma=0.3, scale="absolute", reduce="l2"), expected, **FLOAT32)


def test_kernel_shap_of_few_tokens_is_captums_shapley_value(view):
    (row,) = ragged_rows(view, (4,))
    embeddings = oracles.tokens(view, row)

    def forward(present: torch.Tensor) -> torch.Tensor:
        logits = oracles.stock(view, inputs_embeds=embeddings * present[..., None]).logits[:, row["position"]]
        return logits[:, row["target_id"]] - logits[:, row["foil_id"]]

    orders = captum.ShapleyValues(forward)
    expected = orders.attribute(torch.ones(1, 4, dtype=torch.float64))[0].double()  # captum sums in float32
    close(explain("kernel_shap", view, [row]), [expected], rtol=1e-4, atol=1e-5)
