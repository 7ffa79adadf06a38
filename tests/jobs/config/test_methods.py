"""Methods of a run: records under names, with options that enter the key; packages may bring more."""

import pytest

from closelook import methods as table
from closelook.jobs.cluster.reports import reports_in
from closelook.jobs.config import RunConfig
from closelook.jobs.config.methods import configured
from closelook.jobs.methods import METHODS
from closelook.jobs.plan.cells import make_plan, validate
from closelook.jobs.plan.units import WorkerOptions
from closelook.jobs.runner.worker import Worker
from closelook.jobs.store import Ledger
from closelook.lrp_core import Method
from closelook.lrp_core.records.registry import Registry
from closelook.lrp_core.records.types import UserError
from tests.jobs.small import config_of, prepared, relevance_of, rows_of
from tests.stages import missing_work

PUBLISHED = {"name": "alti_logit_published", "method": "alti_logit", "initial": False}


@pytest.mark.parametrize(
    ("written", "name", "method", "options"),
    [
        ("lrp", "lrp", "lrp", {}),
        ({"alti_logit": {"initial": False}}, "alti_logit", "alti_logit", {"initial": False}),
        ({"alti_logit": None}, "alti_logit", "alti_logit", {}),
        (PUBLISHED, "alti_logit_published", "alti_logit", {"initial": False}),
        ({"method": "alti_logit", "initial": False}, "alti_logit", "alti_logit", {"initial": False}),
    ],
)
def test_a_method_is_a_name_or_a_mapping_and_is_dumped_as_it_can_be_read(
    tmp_path, model, written, name, method, options
):
    config = config_of(tmp_path, model, methods=[written])
    (entry,) = config.methods
    assert (entry.name, entry.method, entry.options) == (name, method, options)
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config


def test_a_model_may_name_a_method_of_the_run(tmp_path, model):
    models = [{"name": "gpt2", "id": str(model), "methods": ["alti_logit_published", "lrp"]}]
    config = config_of(tmp_path, models=models, methods=[PUBLISHED])
    assert [entry.options for entry in config.methods_of(config.models[0])] == [{"initial": False}, {}]
    assert list(configured(config)) == ["alti_logit_published", "lrp"]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"alti_logit": {"inital": False}}, r"alti_logit has no option 'inital' \(did you mean 'initial'\?\)"),
        ({"alti_logit": {"initial": "no"}}, "alti_logit: option 'initial' must be true or false, not 'no'"),
        ({"gradient_l1": {"steps": 3}}, "gradient_l1 has no option 'steps'; it has none"),
        ({"name": "mine", "method": "alti_logi"}, r"unknown method 'alti_logi' \(did you mean 'alti_logit'\?\)"),
    ],
)
def test_options_that_do_not_exist_are_refused_before_anything_is_written(tmp_path, model, written, message):
    with pytest.raises(UserError, match=f"config key 'methods': {message}"):
        validate(config_of(tmp_path / "root", model, methods=[written]))
    assert not (tmp_path / "root").exists()


def test_options_enter_the_key_and_the_name_does_not(tmp_path, model):
    def key(*methods):
        config = config_of(tmp_path, model, methods=list(methods))
        return [planned.artifact.key for planned in make_plan(config, prepared(config, rows_of(4))).cells()]

    (plain,) = key("alti_logit")
    assert key({"alti_logit": {"initial": True}}) == [plain]
    assert key({"name": "another", "method": "alti_logit"}) == [plain]
    (other,) = key(PUBLISHED)
    assert other != plain
    assert key({"alti_logit": {"initial": False}}) == [other]


def test_one_method_under_two_options_runs_as_two_cells_of_one_unit(tmp_path, model):
    config = config_of(tmp_path, model, methods=["alti_logit", PUBLISHED, "lrp"], heads={"sva": 4})
    store = prepared(config, rows_of(6))
    (work,) = missing_work(config, Ledger(store), make_plan(config, store))
    worker = Worker(store, work.plan.resolved, WorkerOptions.of(config, work.plan.resolved.config))
    for unit in work.work().reader()():
        (report,) = reports_in(worker(unit))
        assert not report.error
        work.add(report)
    assert list(work.close()) == []
    assert all(Ledger(store).is_done(planned.artifact) for planned in make_plan(config, store).cells())
    record = store.manifest(
        next(
            n.artifact.name for group in work.groups for n in group.nodes if n.artifact.method == "alti_logit_published"
        )
    )
    assert record["method"] == ["alti_logit", 1, [["initial", False]]]
    relevance = relevance_of(config, store)
    whole, published = (
        relevance[f"relevance gpt2/sva/float32/{name}"] for name in ("alti_logit", "alti_logit_published")
    )
    for with_it, without in zip(whole.to_pylist(), published.to_pylist(), strict=True):
        *others, last = with_it["relevance"]
        *same, less = without["relevance"]
        assert same == others, "only the last token, where the prediction is read, differs"
        assert less != last
        assert without["residual"] - with_it["residual"] == pytest.approx(less - last, abs=1e-5)
    assert len(relevance) == 6, "relevance and heads of each"


def test_packages_may_bring_methods_and_collisions_name_both(monkeypatch):
    extra = Method("extra", 1, "Extra", explain=lambda view, batch, requests: {})
    monkeypatch.setattr(
        table, "METHODS", Registry("method", *METHODS.values(), group="closelook.none", record_class=Method)
    )
    table.METHODS.register(extra, by="plug")
    assert table.method("extra") is extra
    assert table.METHODS.owner("extra") == "plug"
    with pytest.raises(UserError, match="other and plug both bring a method named 'extra'"):
        table.METHODS.register(Method("extra", 2, "Extra", explain=extra.explain), by="other")


def test_a_label_says_which_options_are_tuned(tmp_path, model):
    plain = {"smoothgrad": {"sigma": [0.1, 0.2], "samples": 3}}
    named = {"name": "often", "method": "smoothgrad", "sigma": [0.1, 0.2], "samples": 3}
    result = configured(config_of(tmp_path, model, methods=[plain, named], select={}))
    assert result["smoothgrad"].label == "SmoothGrad (sigma tuned)"
    assert result["often"].label == "SmoothGrad (samples=3) (sigma tuned)"
