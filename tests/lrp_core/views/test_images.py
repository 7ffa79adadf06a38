"""Vision Transformers: every method against one written out for a picture, pixels and patches, and bad input."""

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedImageModeling

from closelook.lrp_core import METHODS, Batch, ModelView, Request, UnsupportedModel, UserError, attribute, random_model
from closelook.lrp_core.methods.gradients import explain_many
from closelook.lrp_core.opening.model import view_of
from tests.oracles import methods as oracles_methods
from tests.oracles import vit as oracles_vit
from tests.tiny import picture_rows, tiny_config, tiny_model

pytestmark = pytest.mark.numeric
CLOSE = {"rtol": 1e-9, "atol": 1e-10}
EXPLANATIONS = ("contrastive", "target", "log_prob")


@pytest.fixture(params=["sdpa", "eager"])
def view(request) -> ModelView:
    return tiny_model("vit", attn=request.param)


@pytest.fixture
def rows(view):
    return picture_rows(view)


@pytest.fixture
def batch(rows) -> Batch:
    return Batch.collate(rows, 0)


def of_patches(view: ModelView, pixels: torch.Tensor) -> torch.Tensor:
    """Numbers of one picture's pixels [H, W] summed over patches; the class token has 0."""
    height, width = view.patch_shape
    sums = [
        pixels[y : y + height, x : x + width].sum()
        for y in range(0, pixels.shape[0], height)
        for x in range(0, pixels.shape[1], width)
    ]
    return torch.stack([torch.zeros_like(sums[0]), *sums])


def test_the_model_written_out_is_the_stock_model(view, rows, batch):
    stock = oracles_methods.stock(view, pixel_values=batch.pixel_values.double()).logits
    logits = torch.stack([oracles_vit.logits(view, oracles_vit.tokens(view, oracles_vit.picture(row))) for row in rows])
    torch.testing.assert_close(logits, stock, **CLOSE)
    relevance = attribute("attnlrp", view, batch)
    torch.testing.assert_close(relevance.logit_target, logits.gather(1, batch.target_ids[:, None])[:, 0], **CLOSE)


@pytest.mark.parametrize("explanation", EXPLANATIONS)
def test_gradients_at_pixels(view, rows, batch, explanation):
    of = {name: attribute(name, view, batch, explanation=explanation).pixels for name in ("gradient_x_input",)}
    norms = {
        name: attribute(name, view, batch, explanation=explanation).pixels for name in ("gradient_l1", "gradient_l2")
    }
    for i, row in enumerate(rows):
        x = oracles_vit.picture(row)
        gradient = oracles_vit.at_pixels(view, row, x, explanation)
        torch.testing.assert_close(of["gradient_x_input"][i], (gradient * x).sum(0), **CLOSE)
        torch.testing.assert_close(norms["gradient_l1"][i], gradient.abs().sum(0), **CLOSE)
        torch.testing.assert_close(norms["gradient_l2"][i], gradient.square().sum(0), **CLOSE)


@pytest.mark.parametrize("method", ["gradient_x_input", "lrp", "attnlrp"])
def test_pixels_of_a_patch_have_what_its_token_has_but_for_the_bias(method):
    view = tiny_model("vit")
    view.model.vit.embeddings.patch_embeddings.projection.bias.zero_()
    relevance = attribute(method, view, Batch.collate(picture_rows(view), 0), embedding="partial")
    for pixels, tokens in zip(relevance.pixels, relevance.tokens, strict=True):
        torch.testing.assert_close(of_patches(view, pixels)[1:], tokens[1:], **CLOSE)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("explanation", EXPLANATIONS)
def test_integrated_gradients_go_from_a_picture_of_zeros(view, rows, batch, explanation):
    relevance = attribute("integrated_gradients", view, batch, steps=6, explanation=explanation)
    for i, row in enumerate(rows):
        expected = oracles_vit.integrated_gradients(view, row, explanation, 6).sum(0)
        torch.testing.assert_close(relevance.pixels[i], expected, **CLOSE)
        torch.testing.assert_close(relevance.tokens[i], of_patches(view, expected), **CLOSE)
    fine = attribute("integrated_gradients", view, batch, steps=60, rule="gauss_legendre", explanation=explanation)
    torch.testing.assert_close(fine.residual, torch.zeros(3, dtype=torch.float64), atol=1e-5, rtol=0)


def test_smoothgrad_is_the_signed_mean_gradient_at_noisy_pixels(view, rows, batch):
    from closelook.lrp_core.methods.path_gradients import Noise

    relevance = attribute("smoothgrad", view, batch, samples=3, sigma=0.05)
    noise = [Noise(batch, view.visible(batch), 12, 0)(k).double() for k in range(3)]
    for i, row in enumerate(rows):
        x = oracles_vit.picture(row)
        spread = 0.05 * (x.max() - x.min())
        expected = (
            sum(oracles_vit.at_pixels(view, row, x + spread * drawn[i], "contrastive") for drawn in noise).sum(0) / 3
        )
        torch.testing.assert_close(relevance.pixels[i], expected, **CLOSE)
        torch.testing.assert_close(relevance.tokens[i], of_patches(view, expected), **CLOSE)


@pytest.mark.parametrize("explanation", EXPLANATIONS)
def test_methods_on_attention_maps(view, rows, batch, explanation):
    for i, row in enumerate(rows):
        maps, gradients = oracles_vit.attention_maps(view, row, explanation)
        seen = torch.ones(view.max_length, view.max_length, dtype=torch.bool)
        expected = {
            "attention_rollout": oracles_methods.rollout(maps, seen, 1.0, 0.0)[0],
            "grad_attention_rollout": oracles_methods.grad_attention_rollout(maps, gradients, seen)[0],
            "gradcam": oracles_vit.gradcam(maps, gradients),
        }
        for name, oracle in expected.items():
            asked = {} if name == "attention_rollout" else {"explanation": explanation}
            relevance = attribute(name, view, batch, **asked)
            torch.testing.assert_close(relevance.tokens[i], oracle, **CLOSE)
            assert relevance.pixels is None


@pytest.mark.parametrize("similarity", [1.0, 0.1, 0.0])
def test_atman_suppresses_tokens_that_are_alike(view, rows, batch, similarity):
    relevance = attribute("atman", view, batch, similarity=similarity, suppression=0.7, score="logit")
    expected = [oracles_vit.atman(view, row, "contrastive", 0.7, similarity) for row in rows]
    torch.testing.assert_close(relevance.tokens, torch.stack(expected), **CLOSE)
    alone = attribute("atman", view, batch, suppression=0.7, score="logit").tokens
    assert torch.allclose(relevance.tokens, alone) == (similarity == 1.0)


def test_occlusion_zeroes_the_embedding_of_a_token(view, rows, batch):
    relevance = attribute("occlusion", view, batch).tokens
    expected = [oracles_vit.occlusion(view, row, "contrastive") for row in rows]
    torch.testing.assert_close(relevance, torch.stack(expected), **CLOSE)


@pytest.mark.parametrize("embedding", ["full", "partial"])
def test_explicit_attnlrp_agrees_with_modified_gradients(embedding):
    view = tiny_model("vit")
    batch = Batch.collate(picture_rows(view), 0)
    explicit = attribute("attnlrp_explicit", view, batch, embedding=embedding, heads=True, epsilon=1e-12)
    modified = attribute("attnlrp", view, batch, embedding=embedding, heads=True)
    torch.testing.assert_close(explicit.tokens, modified.tokens, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(explicit.heads, modified.heads, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("explanation", ["contrastive", "target"])
def test_lrp_conserves_the_logit_when_biases_are_zero(explanation):
    view = tiny_model("vit")
    for name, parameter in view.model.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
    relevance = attribute("lrp", view, Batch.collate(picture_rows(view), 0), explanation=explanation)
    torch.testing.assert_close(relevance.residual, torch.zeros(3, dtype=torch.float64), atol=1e-10, rtol=0)


def test_alti_logit_conserves_where_nothing_but_attention_writes():
    from closelook.jobs.methods import METHODS as EVERY

    view = tiny_model("vit")
    for name, parameter in view.model.named_parameters():
        if name.endswith("bias") or "mlp.fc2" in name:
            parameter.zero_()
    relevance = EVERY["alti_logit"](view, Batch.collate(picture_rows(view), 0))
    torch.testing.assert_close(relevance.residual, torch.zeros(3, dtype=torch.float64), atol=1e-10, rtol=0)


def test_a_batch_equals_single_pictures_and_leaves_the_model_as_it_was():
    view = tiny_model("vit", dtype="float32")
    rows = picture_rows(view)
    batch = Batch.collate(rows, 0)
    before = view.model(pixel_values=batch.pixel_values).logits
    for name, method in METHODS.items():
        together = method(view, batch, **({"samples": 30} if name == "kernel_shap" else {}))
        alone = method(view, Batch.collate(rows[1:2], 0), **({"samples": 30} if name == "kernel_shap" else {}))
        torch.testing.assert_close(together.tokens[1], alone.tokens[0], rtol=1e-3, atol=1e-5)
        if together.pixels is not None:
            torch.testing.assert_close(together.pixels[1], alone.pixels[0], rtol=1e-3, atol=1e-5)
        assert torch.equal(view.model(pixel_values=batch.pixel_values).logits, before)


def test_what_is_drawn_depends_on_the_picture_and_nothing_else(view, rows, batch):
    for name in ("random", "smoothgrad"):
        first = attribute(name, view, batch).tokens
        assert torch.equal(first, attribute(name, view, batch).tokens)
        assert not torch.allclose(first[0], first[1])
        alone = attribute(name, view, Batch.collate(rows[2:], 0)).tokens
        torch.testing.assert_close(alone[0], first[2])


def test_one_pass_gives_every_gradient_method_its_pixels(view, batch):
    requests = [Request(name, "target") for name in ("gradient_x_input", "lrp", "attnlrp")]
    together = explain_many(view, batch, requests)
    for request in requests:
        alone = attribute(request.method, view, batch, explanation="target")
        torch.testing.assert_close(together[request].pixels, alone.pixels, **CLOSE)
        torch.testing.assert_close(together[request].tokens, alone.tokens, **CLOSE)


def test_checkpointing_changes_nothing(view, batch):
    plain, again = (attribute("attnlrp", view, batch, checkpoint=flag) for flag in (False, True))
    torch.testing.assert_close(again.pixels, plain.pixels, **CLOSE)


def test_bad_input_is_one_line_that_says_what_is_wrong(view):
    row = picture_rows(view)[0]
    other = {**row, "pixel_values": torch.zeros(2, 8, 8).numpy()}
    grey = {**row, "pixel_values": torch.zeros(1, 8, 12).numpy()}
    bare = {name: value for name, value in row.items() if name != "pixel_values"}
    short = {**row, "input_ids": row["input_ids"][:-1]}
    for rows, says in (
        ([other], "the image is 2 x 8 x 8 .channels, height, width., the model takes 2 x 8 x 12"),
        ([grey], "the image is 1 x 8 x 12 .channels, height, width., the model takes 2 x 8 x 12"),
        ([bare], "vit models read images: give pixel_values"),
        ([short], "an image has 7 tokens for vit models, `input_ids` have 6: give 7 zeros"),
        ([row, other], "pictures of a batch have sizes 2 x 8 x 8 and 2 x 8 x 12: resize them to one size"),
        ([row, bare], "some rows of the batch have pixels and some have none"),
    ):
        with pytest.raises(UserError, match=says):
            attribute("random", view, Batch.collate(rows, 0))
    text = tiny_model("bert")
    with pytest.raises(UserError, match="bert models read text: leave pixel_values out"):
        attribute("random", text, Batch.collate([row], 0))
    with pytest.raises(UserError, match="names no pad token: use baseline 'zero'"):
        attribute("integrated_gradients", view, Batch.collate([row], 0), baseline="pad")


@pytest.mark.parametrize("auto", [AutoModel, AutoModelForMaskedImageModeling])
def test_a_model_without_a_classifier_is_refused(auto):
    model = auto.from_config(tiny_config("vit", image_size=8, patch_size=4, encoder_stride=4))
    with pytest.raises(UnsupportedModel, match="has no classifier of images: give a ViTForImageClassification model"):
        view_of(model)


def test_several_labels_at_once_are_refused():
    with pytest.raises(UnsupportedModel, match=r"vit models are supported with problem_type=.*labels that exclude"):
        random_model(tiny_config("vit", problem_type="multi_label_classification"))
