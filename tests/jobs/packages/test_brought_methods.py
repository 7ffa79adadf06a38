"""Methods of packages that are at fault end their own cells, in a line that names them, and nothing else.

Runs do without Ray, which plays no part in it.
"""

from dataclasses import replace

import pytest
import torch

from closelook.jobs.methods import METHODS
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.products.explaining import check_against_model
from closelook.jobs.store import Ledger, Store
from closelook.lrp_core import Batch, Method, Request
from closelook.lrp_core.records.explained import relevance_of
from closelook.lrp_core.records.types import UserError
from tests.jobs.small import config_of, prepared, rows_of
from tests.stages import attribute
from tests.tiny import ragged_rows, tiny_classifier, tiny_model

ROWS = rows_of(24)
FAULTY = "relevance sva/float32"
POISON = ROWS[11]["input_ids"]


def sound(view, batch, requests):
    """The target's logit in equal parts, whatever is explained of it."""
    batch = batch.to(view.device)
    logits = view.logits(batch).detach()
    mask = (batch.attention_mask != 0).to(logits.dtype)
    parts = logits[:, :1] * mask / mask.sum(-1, keepdim=True)
    return {request: relevance_of(parts, logits, logits[:, 0]) for request in requests}


def poisoned(error):
    """Raises it for one sample."""

    def explain(view, batch, requests):
        if any(ids[: len(POISON)].tolist() == POISON for ids in batch.input_ids):
            raise error
        return sound(view, batch, requests)

    return explain


def changed(**changes):
    """A method that returns the results of `sound` with fields changed by these functions."""

    def explain(view, batch, requests):
        results = sound(view, batch, requests)
        return {
            request: replace(result, **{name: change(getattr(result, name)) for name, change in changes.items()})
            for request, result in results.items()
        }

    return explain


def method(explain, **record):
    of_all = {"explanations": ("target",), "embeddings": ("full",), **record}
    return Method("brought", 1, "Brought", explain=explain, **of_all)


@pytest.fixture
def run(tmp_path, model, inline, monkeypatch):
    """A run of the method `brought` beside others: (its summary, the states of cells by method)."""
    record = method(sound)
    monkeypatch.setitem(METHODS._records, record.name, record)
    monkeypatch.setitem(METHODS._owners, record.name, "their-package")

    def computed(explain, **options):
        monkeypatch.setitem(METHODS._records, record.name, method(explain, **options))
        config = config_of(tmp_path / "root", model, methods=["brought", "gradient_x_input", "random"])
        store = prepared(config, ROWS)
        summary, ledger = attribute(config, store), Ledger(store)
        return summary, {p.artifact.method: ledger.state(p.artifact) for p in make_plan(config, store).cells()}

    return computed


OTHERS = {"gradient_x_input": "done", "random": "done"}


def test_a_sound_method_of_a_package_is_stored(run):
    summary, states = run(sound)
    assert summary.complete
    assert states == {"brought": "done", **OTHERS}


def test_a_method_that_fails_on_a_row_names_the_sample(run):
    summary, states = run(poisoned(TypeError("poisoned row")))
    [failure] = [line for line in summary.failures if "failed on" in line]
    assert failure.startswith(f"model gpt2: brought failed on {FAULTY}: TypeError: poisoned row (sample s0")
    assert OTHERS.items() <= states.items()


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tokens": lambda tokens: tokens[:, :-1]}, "its tokens have the shape ["),
        ({"tokens": lambda tokens: tokens.sum(-1)}, "its tokens have the shape ["),
        ({"tokens": lambda tokens: tokens[:1].expand(len(tokens) + 1, -1)}, "its tokens have the shape ["),
        (
            {"tokens": lambda tokens: tokens.to(torch.complex64)},
            "its tokens are torch.complex64 instead of floating",
        ),
        ({"tokens": lambda tokens: tokens.long()}, "its tokens are torch.int64 instead of floating"),
        ({"explained": lambda explained: explained[:, None]}, "its explained have the shape ["),
        (
            {"explained": lambda explained: explained.long()},
            "its explained are torch.int64 instead of floating",
        ),
        ({"explained": lambda explained: explained + 1}, "its explained number is not that of its logits on row"),
        (
            dict.fromkeys(("explained", "logit_target"), lambda logit: 2 * logit + 1),
            "its logit_target of sample s0",
        ),
        ({"logit_foil": lambda logit: logit + 1}, "its logit_foil of sample s0"),
    ],
)
def test_relevance_that_is_none_of_the_model_is_not_stored(run, changes, says):
    summary, states = run(changed(**changes))
    assert states["brought"] == "missing"
    assert OTHERS.items() <= states.items()
    [failure] = [line for line in summary.failures if "failed on" in line]
    assert failure.startswith(f"model gpt2: brought failed on {FAULTY}: method brought: {says}")


def test_a_method_that_returns_nothing_for_a_request_says_so(run):
    summary, states = run(lambda view, batch, requests: {})
    assert states["brought"] == "missing"
    assert any("method brought returned no Relevance for 'target'" in line for line in summary.failures)


def test_an_explained_number_that_promises_no_sum_may_be_another(run):
    summary, _ = run(changed(explained=lambda explained: explained + 1, conserves=lambda conserves: False))
    assert summary.complete


@pytest.mark.parametrize("name", ["tokens", "logit_target", "explained"])
def test_what_a_method_must_tell_is_a_tensor(name):
    view = tiny_model("gpt2")
    with pytest.raises(UserError, match=f"method brought: its {name} is no tensor but NoneType"):
        method(changed(**{name: lambda value: None}))(view, Batch.collate(ragged_rows(view), 0))


def test_a_method_is_held_to_the_shape_where_it_is_called_too():
    view = tiny_model("gpt2")
    batch = Batch.collate(ragged_rows(view), 0)
    assert method(sound)(view, batch).tokens.shape == batch.input_ids.shape
    with pytest.raises(UserError, match="method brought: its tokens have the shape"):
        method(changed(tokens=lambda tokens: tokens.sum(-1)))(view, batch)


def test_relevance_for_each_label_is_held_to_the_logit_of_that_label():
    view = tiny_classifier("bert", labels=3)
    rows = [{**row, "target_id": 0, "foil_id": None, "sample_id": str(i)} for i, row in enumerate(ragged_rows(view))]
    batch = Batch.collate(rows, 0)
    requests = [Request("brought", "target", label=label) for label in range(3)]
    relevance = method(sound).compute(view, batch, requests)
    check_against_model(view, batch, rows, relevance)
    first, second, third = requests
    with pytest.raises(UserError, match="its logit_target of sample 0"):
        check_against_model(
            view, batch, rows, {first: relevance[second], second: relevance[third], third: relevance[first]}
        )


def _scaled(view):
    for parameter in view.model.parameters():
        parameter.mul_(1.5)


def _replaced(view):
    view.model.transformer.ln_f.weight = torch.nn.Parameter(view.model.transformer.ln_f.weight * 2)


def _zeroed(view):
    for buffer in view.model.buffers():
        buffer.zero_()
    view.model.transformer.ln_f.bias.zero_()  # some models have no buffers


def _hooked(view):
    view.model.transformer.ln_f.register_forward_hook(lambda module, inputs, output: output * 2)


def _configured(view):
    view.model.config.layer_norm_epsilon = 1.0


def _altered_then_failed(view):
    _scaled(view)
    raise ValueError("after the weights were changed")


ALTERATIONS = {
    _scaled: "parameter transformer.wte.weight",
    _replaced: "parameter transformer.ln_f.weight",
    _zeroed: "parameter transformer.ln_f.bias",
    _hooked: "forward_hooks of transformer.ln_f",
    _configured: "its config",
    _altered_then_failed: "parameter transformer.wte.weight",
}


@pytest.mark.parametrize(("alter", "names"), ALTERATIONS.items(), ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_method_that_changes_the_model_fails_alone_and_no_other_number_changes(run, tmp_path, alter, names, when):
    def explain(view, batch, requests):
        results = sound(view, batch, requests) if when == "after" else None
        with torch.no_grad():
            alter(view)
        return results or sound(view, batch, requests)

    root = Store(str(tmp_path / "root"))
    run(sound)
    untouched = relevance_in(root)
    for path in root.files("", "", recursive=True):
        root.delete(path)
    summary, states = run(explain)
    assert states["brought"] != "done"
    assert OTHERS.items() <= states.items()
    assert relevance_in(root) == untouched
    says = f"method brought changed the model ({names}): it must leave the model as it was"
    assert f"model gpt2: brought failed on {FAULTY}: {says}" in summary.failures


def relevance_in(store):
    """The files of other methods' relevance by name: their content."""
    paths = [path for path in store.files("relevance", recursive=True) if "method=brought" not in path]
    assert paths
    return dict(zip(paths, store.read_all(paths), strict=True))


def test_the_defaults_of_torch_that_a_method_changes_are_restored(run):
    def explain(view, batch, requests):
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        return sound(view, batch, requests)

    summary, _ = run(explain)
    assert summary.complete
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == (torch.float32, True)
