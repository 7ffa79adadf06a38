"""Images through the job: prepared, explained, scored, flipped and shown; against slow forwards of single images."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from closelook.evaluation.benchmark.pictures import encoded
from closelook.evaluation.benchmark.sources.pictures import hub_rows
from closelook.evaluation.schema import CURVES, RELEVANCE, VIEW
from closelook.evaluation.scoring.faithfulness.flips import Flips, Ranking, tie_order
from closelook.jobs.config import ModelConfig, RunConfig
from closelook.jobs.geometries import geometry_of
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.models import resolve
from closelook.jobs.plan.taken import tasks_of
from closelook.jobs.products.curves import curves_of
from closelook.jobs.products.drawing import Claim, Drawing, shared_by_pixels
from closelook.jobs.stages.prepare import prepare
from closelook.jobs.store import Ledger, Store
from closelook.lrp_core import load_model
from closelook.lrp_core.records.types import UserError
from tests.jobs.small import config_of
from tests.stages import attribute, perturb, select


@pytest.fixture(scope="module")
def resolved():
    return resolve(ModelConfig(name="vit", id="demo/vit"))


@pytest.fixture(scope="module")
def view(resolved):
    return load_model(resolved.location)


@pytest.fixture(scope="module")
def rows(resolved):
    from closelook.evaluation.benchmark.demo import generate
    from closelook.evaluation.benchmark.pictures import look

    views, rejects = look(generate("shapes", 3), resolved.preprocessing)
    assert not rejects
    return [dict(row) for row in resolved.taken(views)]


def logit_slowly(view, values: np.ndarray, target: int) -> float:
    with torch.no_grad():
        return float(view.model(pixel_values=torch.from_numpy(values)[None]).logits[0, target])


def drawn_slowly(view, resolved, row, relevance, flips, order):
    """The logits along a curve, each state by a loop over patches or pixels and a forward of its own."""
    size = relevance.size if flips.pixels else relevance.size - 1
    values = relevance if flips.pixels else relevance[1:]
    with torch.no_grad():
        target = int(view.model(pixel_values=torch.from_numpy(row["pixel_values"])[None]).logits[0].argmax())
    ranked = sorted(range(size), key=lambda at: -values[at])
    ranked = ranked if order == "morf" else ranked[::-1]
    steps = min(size, flips.steps)
    collected = []
    for step in range(steps + 1):
        changed = row["pixel_values"].copy()
        for at in ranked[: round(size * step / steps)]:
            if flips.pixels:
                changed[:, at // 24, at % 24] = flips.fill
            else:
                top, left = 4 * (at // 6), 4 * (at % 6)
                changed[:, top : top + 4, left : left + 4] = np.array(flips.fill, np.float32)[:, None, None]
        collected.append(logit_slowly(view, changed, target))
    return collected


@pytest.mark.parametrize("way", ["zero", "black"])
@pytest.mark.parametrize("pixels", [False, True], ids=["patches", "pixels"])
def test_curves_are_those_of_slow_forwards(view, resolved, rows, way, pixels):
    rng = np.random.default_rng(5)
    flips = resolved.filled(Flips(way, 6, False, 0, pixels=pixels))
    assert flips.fill == ((0.0,) * 3 if way == "zero" else (-1.0,) * 3)
    claims = {}
    for row in rows:
        tokens, pixel_relevance = rng.normal(size=37).astype(np.float32), rng.normal(size=576).astype(np.float32)
        logit = max(logit_slowly(view, row["pixel_values"], target) for target in (0, 1))
        claims[row["sample_id"]] = [
            Claim("attnlrp", "target", "full", tokens, logit, pixel_relevance if pixels else None)
        ]
    drawing = Drawing(view, "float32", (flips,), 4096, {"attnlrp": claims})
    drawn = drawing.run(rows)
    assert not drawn.rejects
    assert len(drawn.rows["attnlrp"]) == 6
    for curve in drawn.rows["attnlrp"]:
        [claim] = claims[curve["sample_id"]]
        row = next(row for row in rows if row["sample_id"] == curve["sample_id"])
        relevance = claim.of(view, pixels)
        expected = drawn_slowly(view, resolved, row, relevance, flips, curve["order"])
        assert curve["perturbation"] == way
        np.testing.assert_allclose(curve["logit"], expected, atol=1e-4)


def test_pixels_of_a_method_without_them_share_their_patch(view):
    relevance = np.arange(37.0)
    shares = shared_by_pixels(view, relevance).reshape(24, 24)
    for row in range(24):
        for column in range(24):
            assert shares[row, column] == relevance[1 + 6 * (row // 4) + column // 4] / 16


def test_patches_rank_by_the_sum_of_their_pixels_where_a_method_reaches_them(view):
    pixels, of_tokens = np.random.default_rng(0).normal(size=576), np.arange(37.0)
    claim = Claim("lrp", "target", "full", of_tokens, 0.0, pixels)
    slowly = [0.0] * 37
    for row in range(24):
        for column in range(24):
            slowly[1 + 6 * (row // 4) + column // 4] += pixels[24 * row + column]
    np.testing.assert_allclose(claim.of(view, pixels=False)[1:], slowly[1:], rtol=1e-12)
    assert claim.ranked == "pixels"
    alone = replace(claim, pixels=None)
    assert alone.of(view, pixels=False) is of_tokens
    assert alone.ranked == "positions"


def test_a_run_that_flips_pixels_chooses_options_and_draws_curves(tmp_path, inline, resolved, view):
    """From `prepare` to `perturb`; every logit against a forward of its own."""
    config = config_of(
        tmp_path / "root",
        tasks={"shapes": {"source": "demo", "limit": 2}},
        models=[{"name": "vit", "id": "demo/vit"}],
        methods=[{"smoothgrad": {"sigma": [0.1, 0.5], "samples": 2}}, "attention_rollout"],
        select={"samples": 1},
        perturb={"pixels": True, "steps": 5, "explanations": ["target"], "embeddings": ["full"]},
    )
    store = Store(config.root)
    store.create()
    for stage in (prepare, select, attribute, perturb):
        summary = stage(config, store)
        assert (summary.failures, summary.complete) == ((), True)
    ledger, [model] = Ledger(store), make_plan(config, store).models
    views = {entry["sample_id"]: entry for entry in store.read(model.inputs["shapes"].folder, VIEW).to_pylist()}
    flips = resolved.filled(Flips("zero", 5, False, 0, pixels=True))
    for cell in curves_of(config, config.perturb, model):
        stored = ledger.read(cell.relevance, RELEVANCE).to_pylist()
        relevance = {entry["sample_id"]: entry["pixels"] for entry in stored if entry["explanation"] != "contrastive"}
        every = ledger.read(cell.artifact, CURVES).to_pylist()
        curves = [curve for curve in every if curve["score"] == "target"]
        assert len(curves) == 4  # two images, two orders
        for curve in curves:
            [row], target = resolved.taken([views[curve["sample_id"]]]), curve["target_id"]
            assert curve["removed"] == [0, 115, 230, 346, 461, 576]
            ends = [logit_slowly(view, picture, target) for picture in (row["pixel_values"], 0 * row["pixel_values"])]
            assert curve["logit"][:: len(curve["logit"]) - 1] == pytest.approx(ends, abs=1e-4)
            if cell.artifact.method == "smoothgrad":  # of rollouts, the pixels of a patch are equal
                pixels = np.array(relevance[curve["sample_id"]])
                slowly = drawn_slowly(view, resolved, row, pixels, flips, curve["order"])
                np.testing.assert_allclose(curve["logit"], slowly, atol=1e-4)


def test_ties_are_broken_otherwise_in_another_picture(rows):
    orders = {tuple(tie_order(row["input_ids"], 0, picture=row["pixel_values"].tobytes()).tolist()) for row in rows}
    assert len(orders) == 3


def test_the_class_token_never_goes(rows):
    for row in rows:
        chosen = Flips("zero", 100, False, 0, fill=(0.0,) * 3).chosen(row, slot=False)
        assert chosen.tolist() == [False] + [True] * 36
        ranking = Ranking.of(np.ones((1, 37)), chosen, np.arange(37))
        assert not ranking.curves(np.arange(37))[..., 0].any()


def test_keys_of_texts_are_what_they_were_before_there_were_images():
    assert "pixels" not in Flips("zero", 100, True, 0).key()
    assert "fill" not in Flips("zero", 100, True, 0).key()
    assert Flips("zero", 64, False, 0, pixels=True, fill=(0.0,)).key()["pixels"] is True


def test_model_sees_what_its_settings_make_of_a_picture(resolved, rows, view):
    row = rows[0]
    assert row["pixel_values"].shape == (3, 24, 24)
    assert row["pixel_values"].min() >= -1
    assert row["pixel_values"].max() <= 1
    assert resolved.max_length == resolved.preprocessing.tokens == 37


def test_a_model_of_images_without_settings_is_one_line(tmp_path, resolved):
    from shutil import copytree

    folder = copytree(resolved.location, tmp_path / "vit")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match=r"has no preprocessor_config\.json, which says how images are prepared"):
        resolve(ModelConfig(name="vit", id=str(folder)))
    (folder / "preprocessor_config.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        resolve(ModelConfig(name="vit", id=str(folder)))
    (folder / "preprocessor_config.json").write_text(json.dumps({"do_pad": True}))
    with pytest.raises(UserError, match=r"model vit: its preprocessor_config\.json asks for do_pad"):
        resolve(ModelConfig(name="vit", id=str(folder)))


@pytest.fixture(scope="module")
def shape(tmp_path_factory):
    """The file of a generated image."""
    from closelook.evaluation.benchmark.demo import generate

    path = tmp_path_factory.mktemp("shape") / "shape.png"
    path.write_bytes(next(generate("shapes", 1))["image"])
    return path


def test_a_picture_is_explained_in_the_terminal_on_a_page_and_as_json(closelook, shape, tmp_path):
    page, file = tmp_path / "page.html", tmp_path / "page.json"
    methods = ("--method", "attnlrp,attention_rollout")
    code, out, _ = closelook(
        "explain", "-m", "demo/vit", str(shape), *methods, "--html", str(page), "--json", str(file)
    )
    assert code == 0
    assert re.search(r"why (disc rather than cross|cross rather than disc) \(logit", out)
    assert re.search(r"^attnlrp +(class token|patch \d, \d) [+-]\d", out, re.MULTILINE)
    assert page.read_text().count("data:image/png;base64") == 3
    [written] = json.loads(file.read_text())["predictions"]
    of_pixels = [np.array(entry["pixels"]).shape if "pixels" in entry else None for entry in written["methods"]]
    assert of_pixels == [(24, 24), None]
    assert written["tokens"][:3] == ["class token", "patch 1, 1", "patch 1, 2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no/such.png"], "demo/vit reads images, but no/such.png cannot be read: No such file or directory"),
        (["{shape}", "--target", "disc"], "demo/vit predicts labels, not words: use --label 'disc' for --target"),
        (["{shape}", "--label", "disk"], "demo/vit has no label 'disk' (did you mean 'disc'?)"),
        (["{shape}", "--by-word"], "an image has no words"),
        (["{broken}"], "broken.png cannot be explained: not an image that can be read"),
    ],
    ids=["no file", "target", "label", "words", "broken"],
)
def test_pictures_that_cannot_be_explained_are_one_line(closelook, shape, tmp_path, arguments, message):
    (tmp_path / "broken.png").write_bytes(shape.read_bytes()[:100])
    places = {"shape": shape, "broken": tmp_path / "broken.png"}
    code, _, err = closelook("explain", "-m", "demo/vit", *(argument.format(**places) for argument in arguments))
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_models_of_images_are_planned_from_their_geometry():
    result = resolve(ModelConfig(name="vit", id="random/vit-base-patch16-224"))
    assert (result.max_length, result.preprocessing.tokens, len(result.labels)) == (197, 197, 1000)
    assert result.kind.images
    [of_paper] = [model for model in RunConfig.load("attnlrp").models if model.tasks == ("images",)]
    assert geometry_of(of_paper.id) == geometry_of("random/vit-base-patch16-224")


def test_models_of_text_and_of_images_take_their_own_tasks(resolved):
    demo = RunConfig.load("demo")
    assert tasks_of(demo, resolved) == ["shapes"]
    both = demo.model_copy(update={"tasks": {name: demo.tasks[name] for name in ("shapes", "sentiment")}})
    assert tasks_of(both, resolve(ModelConfig(name="b", id="demo/bert-sentiment"))) == ["sentiment"]
    wrong = resolve(ModelConfig(name="vit", id="demo/vit", tasks=["sentiment"]))
    with pytest.raises(UserError, match="predicts labels of images, and task sentiment asks for labels: leave"):
        tasks_of(demo, wrong)


def test_rows_of_a_hub_data_set_are_pictures_with_names_of_labels():
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    data = encoded(np.full((4, 4, 3), 7, np.uint8))
    rows = {"image": [{"bytes": data, "path": None}] * 2, "label": [1, -1]}
    first, second = hub_rows(datasets.Dataset.from_dict(rows, features=features))
    assert first == ("row 0", {"name": "row 0", "data": data, "label": "dog"})
    assert second[1].reason == "no gold label"
