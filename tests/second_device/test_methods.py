"""Every method, and every family, on a device of its own: no mixing, the CPU's numbers, and few waits.

What a method waits for at lines of the product is bounded and does not grow with layers and rows.
"""

from functools import partial

import pytest

from closelook.jobs.methods import METHODS
from closelook.lrp_core.families import FAMILIES
from closelook.lrp_core.families.generic import GENERIC
from closelook.lrp_core.records.finer import FINER
from tests.second_device.kinds import KINDS, OF_RULES, batch_of, check
from tests.tiny import BOTH, FEWER, IMAGES, MORE, TINY

#: They divide by scores near zero, which raises rounding up to 1e5 times: relevance of a ViT of 4 layers in float32 is
#: 1.5e-2 from that in float64, and 5e-2 from that of weights one unit of rounding away. They are compared in float64.
UNSTABLE = ("lrp_identity_softmax", "lrp_distributed_bias")
FEW = {"samples": 3, "steps": 3}  # their number is for other tests


def explained(view, rows, *, name, **options):
    few = {option.name: FEW[option.name] for option in METHODS[name].options if option.name in FEW}
    return METHODS[name](view, batch_of(view, rows), **few, **options)


def check_method(kind, name, most=None, a_row=0, **options):
    """Gradient methods wait twice at most besides what rules wait for, others six times."""
    most = most or (2 + OF_RULES if METHODS[name].family == "gradient" else 6)
    dtype = "float64" if name in UNSTABLE else "float32"
    check(kind, partial(explained, name=name, **options), most, a_row, dtype)


def has(kind, name, *finer):
    known = FAMILIES[kind].capabilities
    return METHODS[name].applies(known) and all(known.issuperset(FINER[finer_name].needs) for finer_name in finer)


#: Every method with two of the kinds of models that it applies to, which take turns.
_KINDS_OF = {name: [kind for kind in KINDS if has(kind, name)] for name in METHODS}
OF_KINDS = [
    (name, kind)
    for at, (name, kinds) in enumerate(_KINDS_OF.items())
    for kind in sorted({kinds[(2 * at + step) % len(kinds)] for step in range(2) if kinds})
]


@pytest.mark.thinned(4)
@pytest.mark.parametrize(("name", "kind"), OF_KINDS)
def test_a_method_neither_mixes_devices_nor_waits_often(name, kind):
    check_method(kind, name)


@pytest.mark.thinned(8)
@pytest.mark.parametrize(
    ("name", "finer", "kind"),
    [
        (name, finer, kind)
        for name, method in METHODS.items()
        for finer in method.given
        if finer in FINER
        for kind in KINDS
        if has(kind, name, finer) and (name == "attnlrp" or kind in ("bert", "llama"))
    ],
)
def test_what_is_told_beside_tokens_neither_mixes_devices_nor_waits_often(name, finer, kind):
    check_method(kind, name, **{finer: True})


#: Options under which methods take another way.
OPTIONS = [
    *(("occlusion", "t5", {"how": "zero"}), ("occlusion", "gpt2", {"how": "delete"})),
    *(("occlusion", "t5", {"how": "delete"}), ("atman", "llama", {"similarity": 0.3})),
    *((name, kind, {"discard_threshold": 0.8, "lowest": 0.1}) for name, kind in (("attention_rollout", "gpt2"),)),
    *(("grad_attention_rollout", kind, {"discard_threshold": 0.8}) for kind in ("bert", "t5")),
    *(("integrated_gradients", "gpt2", {"baseline": "pad"}), ("smoothgrad", "vit", {"scale": "absolute"})),
    *(("attnlrp", "vit", {"composite": "vit"}), ("lrp", "gpt2", {"checkpoint": True})),
    *(("normxlogit", "gpt2", {"norm": "word"}), ("alti_logit", "llama", {"byte_budget": 50_000})),
]


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("name", "kind", "options"), OPTIONS)
def test_a_method_under_its_options_neither_mixes_devices_nor_waits_often(name, kind, options):
    check_method(kind, name, **options)


OTHERS = sorted({*TINY, *MORE, *FEWER, *BOTH, *IMAGES}.difference(KINDS))
#: Every other family with some of the methods that it has, which take turns.
_TURNS = {kind: [name for name in METHODS if has(kind, name)] for kind in OTHERS}
OF_OTHERS = [
    (name, kind)
    for shift, (kind, names) in enumerate(_TURNS.items())
    for name in {names[(5 * shift + 7 * step) % len(names)]: 0 for step in range(3)}
]


@pytest.mark.thinned(8)
@pytest.mark.parametrize(("name", "kind"), OF_OTHERS)
def test_every_family_neither_mixes_devices_nor_waits_often(name, kind):
    check_method(kind, name)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("kind", ["bert classifier", "gpt2 classifier", f"llama {GENERIC}", f"bert {GENERIC}"])
@pytest.mark.parametrize("name", ["gradient_x_input", "smoothgrad", "occlusion", "random"])
def test_classifiers_and_models_of_no_family_neither_mix_devices_nor_wait_often(name, kind):
    is_generic = GENERIC in kind  # whose texts of other lengths run by themselves
    check_method(kind, name, most=6 if is_generic else None, a_row=5 if is_generic else 0)
