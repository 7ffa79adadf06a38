"""A method is a record: options are typed, checked and keyed; what a model lacks is named."""

import subprocess
import sys
from dataclasses import dataclass, fields
from inspect import signature

import pytest
import torch

from closelook.jobs.methods import METHODS
from closelook.lrp_core import Batch, Method, Option, Relevance, Request, UnsupportedMethod, UserError
from closelook.lrp_core.lazy import imported_object
from closelook.lrp_core.records.capabilities import POST_NORM
from closelook.lrp_core.records.finer import FINER
from tests.tiny import ragged_rows, tiny_model


def scaled(view, batch, requests, *, factor, sign, seed=0):
    """Relevance that tells what it was called with."""
    tokens = torch.full(batch.input_ids.shape, factor + seed)
    zero = torch.zeros(len(batch))
    return {request: Relevance(tokens if sign else -tokens, zero, zero, None) for request in requests}


OPTIONS = (
    Option("factor", 1.0, "what relevance is", low=0.0, high=10.0),
    Option("sign", True, "whether it is positive"),
)
SCALED = Method("scaled", 3, "Scaled", scaled, options=OPTIONS)


@pytest.fixture
def gpt2():
    return tiny_model("gpt2")


@pytest.fixture
def samples(gpt2):
    return Batch.collate(ragged_rows(gpt2), 0)


def test_options_have_defaults_and_are_keywords(gpt2, samples):
    assert SCALED(gpt2, samples).tokens.unique().tolist() == [1.0]
    assert SCALED(gpt2, samples, factor=2).tokens.unique().tolist() == [2.0]
    assert SCALED.configured("twice", factor=2)(gpt2, samples).tokens.unique().tolist() == [2.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factr": 2}, r"scaled has no option 'factr' \(did you mean 'factor'\?\)"),
        ({"checkpoint": True}, "scaled has no option 'checkpoint'"),
        ({"factor": 11}, "scaled: option 'factor' must be a number at least 0 and at most 10, not 11.0"),
        ({"factor": float("nan")}, "scaled: option 'factor' must be a number"),
        ({"factor": True}, "scaled: option 'factor' must be a number"),
        ({"sign": 1}, "scaled: option 'sign' must be true or false, not 1"),
    ],
)
def test_options_that_do_not_exist_or_do_not_fit_are_refused(gpt2, samples, options, message):
    with pytest.raises(UserError, match=message):
        SCALED(gpt2, samples, **options)
    with pytest.raises(UserError, match=message):
        SCALED.configured("other", **options)


def test_choices_are_named():
    chosen = Method("chosen", 1, "Chosen", scaled, options=(Option("rule", "right", "", choices=("right", "left")),))
    with pytest.raises(UserError, match="option 'rule' must be 'right' or 'left', not 'middle'"):
        chosen.configured(rule="middle")


def test_an_option_may_not_take_the_name_of_a_setting():
    with pytest.raises(UserError, match=r"the option name 'seed' is reserved .*: choose another"):
        Method("bad", 1, "Bad", scaled, options=(Option("seed", 0, ""),))


def test_the_key_holds_record_version_and_every_option_and_no_name():
    assert SCALED.key() == ["scaled", 3, [["factor", 1.0], ["sign", True]]]
    assert SCALED.configured("same").key() == SCALED.key()
    assert SCALED.configured("twice", factor=2).key() == ["scaled", 3, [["factor", 2.0], ["sign", True]]]
    assert SCALED.configured(factor=1).key() == SCALED.key(), "1 and 1.0 are one number"


def test_methods_of_one_function_and_equal_values_are_one_group():
    sister = Method("sister", 1, "Sister", scaled, options=OPTIONS)
    assert sister.group == SCALED.group
    assert SCALED.configured("twice", factor=2).group != SCALED.group
    assert SCALED.configured("twice", factor=2).pass_name == "scaled(factor=2.0)"
    assert SCALED.configured("same").pass_name == "scaled"


def test_a_configured_method_says_how_it_differs_and_has_a_column_of_its_own():
    twice = SCALED.configured("twice", factor=2, sign=False)
    assert (twice.name, twice.base, twice.column) == ("twice", "scaled", "twice")
    assert twice.label == "Scaled (factor=2.0, sign=false)"
    assert SCALED.configured(factor=2).label == "Scaled"


def test_only_methods_whose_key_holds_the_seed_get_it(gpt2, samples):
    assert SCALED(gpt2, samples, seed=5).tokens.unique().tolist() == [1.0]
    seeded = Method("seeded", 1, "Seeded", scaled, options=OPTIONS, seeded=True)
    assert seeded(gpt2, samples, seed=5).tokens.unique().tolist() == [6.0]


def test_functions_know_requests_by_the_name_of_the_record(gpt2, samples):
    asked = []

    def listening(view, batch, requests):
        asked.extend(requests)
        return scaled(view, batch, requests, factor=1.0, sign=True)

    Method("listening", 1, "Listening", listening).configured("renamed")(gpt2, samples, explanation="target")
    assert asked == [Request("listening", "target", "full")]


def test_what_a_model_lacks_is_named_with_the_method_to_use_instead(gpt2, samples):
    needy = Method("needy", 1, "Needy", scaled, needs=(POST_NORM,), instead="scaled")
    message = (
        r"^needy needs blocks that normalise after the sum \(post-norm\), which gpt2 models do not have: use scaled$"
    )
    with pytest.raises(UnsupportedMethod, match=message):
        needy(gpt2, samples)
    assert needy.missing(gpt2.family.capabilities) == (POST_NORM,)
    assert needy.missing(tiny_model("bert").family.capabilities) == ()


def test_heads_of_a_method_without_any_are_refused(gpt2, samples):
    with pytest.raises(UnsupportedMethod, match="scaled gives no relevance of attention heads"):
        SCALED(gpt2, samples, heads=True)


def test_records_need_no_torch():
    code = "import sys; from closelook.lrp_core import Method, Option, Capability; "
    code += "import closelook.lrp_core.records.kinds, closelook.lrp_core.families; "
    code += "from closelook.jobs.methods import METHODS; len(METHODS); raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_function_may_be_named_and_is_imported_when_it_is_called(gpt2, samples):
    named = Method("named", 1, "Named", "tests.lrp_core.records.test_method:scaled", options=OPTIONS)
    assert named(gpt2, samples).tokens.unique().tolist() == [1.0]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
    ],
)
def test_a_function_that_cannot_be_imported_is_named(code, reason, gpt2, samples, tmp_path, monkeypatch):
    (tmp_path / "broken_plugin.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError) as caught:
        Method("lost", 1, "Lost", "broken_plugin:scaled")(gpt2, samples)
    assert str(caught.value) == f"method lost: cannot import its function 'broken_plugin:scaled' ({reason})"


OF_TOKENS = {name: method for name, method in METHODS.items() if "tokens" in method.gives}


@pytest.mark.parametrize("method", OF_TOKENS.values(), ids=list(OF_TOKENS))
def test_the_function_that_a_record_names_takes_its_options(method):
    taken = signature(method.function).parameters
    assert {option.name for option in method.options if not option.per_request} <= set(taken)
    signature(method.function).bind_partial(**{name: True for name in method.gives if name in FINER})
    assert ("seed" in taken) == method.seeded


def test_the_function_of_ablations_takes_the_options_of_its_record():
    made = [method for method in METHODS.values() if method.from_ablations]
    assert {"contextcite", "leave_one_out"} <= {method.name for method in made}
    for method in made:
        options = {option.name: option.default for option in method.options if not option.per_request}
        signature(imported_object(method.from_ablations)).bind(None, **options)


@pytest.mark.parametrize(
    ("name", "before", "option"),
    [
        ("globenc", [], {"normalise": False}),
        ("grad_attention_rollout", [["discard_threshold", 1.0], ["lowest", 0.0]], {"itself": "zero"}),
    ],
)
def test_an_option_that_was_added_later_leaves_the_key_of_its_default_as_it_was(name, before, option):
    method = METHODS[name]
    assert method.key() == [name, method.version, before]
    assert method.configured(**option).key() == [name, method.version, sorted([*before, *map(list, option.items())])]


@dataclass(frozen=True)
class Told(Relevance):
    """A relevance that tells of one thing more."""

    more: torch.Tensor | None = None  # [B, 5]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    "name", [f.name for f in fields(Told) if "Tensor" in str(f.type) and f.name != "neuron_positions"]
)
def test_a_row_is_finite_where_every_number_told_of_it_is(name, value):
    numbers = {field: torch.ones(3) for field in ("explained", "logit_target", "logit_foil")} | {
        "tokens": torch.ones(3, 4)
    }
    numbers.setdefault(name, torch.ones(3, 2, 2))
    relevance = Told(**numbers, neuron_positions=torch.ones(3, 2, dtype=torch.int64))
    assert relevance.finite.tolist() == [True, True, True]
    numbers[name][1].fill_(value)
    assert relevance.finite.tolist() == [True, False, True]
