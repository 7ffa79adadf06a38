"""Gradient-, attention- and perturbation-based methods and baselines: the table of their records.

To add a method, write a module with its function here and a record in the table. A record names its function, which is
imported when it is first called. Imports no torch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.methods.records import PERTURBATION, REPRESENTATION
from closelook.lrp_core.records.capabilities import ATTENTION, GRADIENTS, ONE_STACK, STATES, UNCENTRED
from closelook.lrp_core.records.explained import EVERY, NO_CHOICE
from closelook.lrp_core.records.finer import FINER
from closelook.lrp_core.records.option import Option
from closelook.lrp_core.records.registry import Registry
from closelook.lrp_core.records.types import UnsupportedMethod, nearest
from closelook.lrp_core.rules import composite as composites

if TYPE_CHECKING:
    from closelook.lrp_core.records.types import Batch, Relevance
    from closelook.lrp_core.views.view import ModelView

EPSILON = 1e-9  # stabilises the denominators of explicit propagation

REDUCE = Option(
    "reduce",
    "sum",
    "how the embedding dimension is summed up; norms lose the sign, and do not sum to the explained number",
    choices=("sum", "l1", "l2"),
    per_request=True,
)
REDUCE_GRADIENT = replace(
    REDUCE,
    default="auto",
    choices=("auto", *REDUCE.choices),
    help="how the embedding dimension is summed up; auto: sum, or l2 where norms that subtract the mean make the sum 0",
    needs={"sum": UNCENTRED},
)
COMPOSITE = Option(
    "composite",
    composites.EPSILON,
    f"rules of groups of layers: {composites.EPSILON} (the same everywhere), {composites.VIT} (best for vision "
    "transformers), a name from the config's `composites`, or {group: rule}",
    per_request=True,
    reads=composites.OF_ATTNLRP.read,
    shows=composites.OF_ATTNLRP.show,
    named_in="composites",
    withholds=composites.withheld,
)
COMPOSITE_OF_LRP = replace(COMPOSITE, reads=composites.OF_LRP.read, shows=composites.OF_LRP.show)
DISCARD_THRESHOLD = Option(
    "discard_threshold", 1.0, "entries of a layer's map above this quantile are set to 0; 1 keeps all", low=0, high=1
)
LOWEST = Option(
    "lowest",
    0.0,
    "share of the entries of a layer's map that are set to 0, the lowest first; 0 keeps all",
    low=0,
    high=1,
)
IDENTITY, ATTENDED, LEFT_OUT = "identity", "attended", "zero"
ITSELF = Option(
    "itself",
    IDENTITY,
    "relevance of the token where the prediction is read: its value in the product (identity is added to each map), "
    "only what attention gives it, or 0, as in the authors' code",
    choices=(IDENTITY, ATTENDED, LEFT_OUT),
    added_later=True,
)


def _of_gradients(name: str, label: str, rules: str, conserves: bool = True, **record: Any) -> Method:
    """The record of a method of the gradient pass, under the composite `rules` ("plain": the model's own gradients)."""
    inside = [finer.name for finer in FINER.values() if finer.reader and (conserves or not finer.of_sums)]
    of_all: dict[str, Any] = {
        "explain": "closelook.lrp_core.methods.gradients:explain_many",
        "needs": (GRADIENTS,),
        "gives": ("tokens", *inside),
        "explanations": EVERY,
        "passes": "gradients",
        "spans": "together",
    }
    return Method(name, version=2, label=label, conserves=conserves, rules=rules, **of_all | record)


def _rival(name: str, label: str, softmax: str, **record: Any) -> Method:
    """The record of AttnLRP with another rule of the softmax."""
    return _of_gradients(
        name,
        label,
        f"attnlrp with {composites.SOFTMAX} {softmax}",
        explain="closelook.lrp_core.methods.gradients:explain_openly",
        passes="gradients_openly",
        unstable=True,
        **record,
    )


def _of_attention(name: str, label: str, function: str, **record: Any) -> Method:
    """The record of a method that reads attention maps."""
    of_all: dict[str, Any] = {"needs": (ATTENTION,), "explanations": NO_CHOICE}
    return Method(
        name,
        version=1,
        label=label,
        explain=f"closelook.lrp_core.methods.{function}",
        spans="together",
        family="attention",
        embeddings=NO_CHOICE,
        conserves=False,
        **of_all | record,
    )


METHODS: Registry[Method] = Registry(
    "method",
    # Norms of the gradient, gradient x input, and gradient x input under modified gradients. On BERT plain
    # gradient x full embedding is zero up to the norm's epsilon: the embedding norm undoes any scaling of its input.
    _of_gradients(
        "gradient_l1",
        "Gradient l1",
        "plain",
        measure="absolute",
        embeddings=NO_CHOICE,
        conserves=False,
        order=70,
        colour="#e69f00",
        about="the l1 norm of the gradient",
        source="Close Look 3.3",
    ),
    _of_gradients(
        "gradient_l2",
        "Gradient l2",
        "plain",
        measure="square",
        embeddings=NO_CHOICE,
        conserves=False,
        order=50,
        colour="#56b4e9",
        about="the squared l2 norm of the gradient",
        source="Close Look 3.3",
    ),
    _of_gradients(
        "gradient_x_input",
        "Gradient×Input",
        "plain",
        options=(REDUCE,),
        order=80,
        colour="#009e73",
        inverted=True,
        about="the gradient times the embedding",
        source="Close Look 3.3",
        weak="Expected: the gradient describes very small changes only. If a norm follows the embeddings, scaling them "
        "changes nothing, so gradient x input is zero up to rounding.",
    ),
    _of_gradients(
        "lrp",
        "LRP",
        "lrp",
        options=(REDUCE, COMPOSITE_OF_LRP),
        order=40,
        colour="#d55e00",
        about="norms, attention weights and gates held constant; activations pass relevance on as it is",
        source="Close Look 3.2 and C.4",
    ),
    _of_gradients(
        "attnlrp",
        "AttnLRP",
        "attnlrp",
        options=(REDUCE, COMPOSITE),
        order=30,
        colour="#0072b2",
        about="as lrp, but each factor of a product gets half, and the softmax has gradient x input",
        source="Close Look 3.2 and C.1; AttnLRP 3.3",
    ),
    _rival(
        "lrp_identity_softmax",
        "LRP, identity softmax",
        composites.IDENTITY,
        order=92,
        about="attnlrp with relevance that passes the softmax as it is, which explodes: for comparison",
        source="Ding et al. 2017; AttnLRP table 3 and figure 5",
    ),
    _rival(
        "lrp_distributed_bias",
        "LRP, distributed bias",
        composites.DISTRIBUTED_BIAS,
        order=94,
        about="attnlrp with the softmax's bias shared equally among scores, which explodes: for comparison",
        source="Voita et al. 2021; AttnLRP table 3 and figure 5",
    ),
    Method(
        "attnlrp_explicit",
        version=2,
        label="AttnLRP explicit",
        explain="closelook.lrp_core.methods.gradients:explain_explicitly",
        spans="summed",
        options=(Option("epsilon", EPSILON, "stabilises every denominator", low=0.0),),
        needs=(GRADIENTS, ONE_STACK, STATES),
        gives=("tokens", "heads"),
        passes="explicit",
        same_as=("attnlrp", {"epsilon": 1e-30}),
        forwards=6.0,
        again=5.0,
        order=90,
        about="AttnLRP with relevance divided by every sum: the slow original, kept as a baseline",
        source="AttnLRP section 3",
    ),
    Method(
        "integrated_gradients",
        version=1,
        label="IG",
        explain="closelook.lrp_core.methods.path_gradients:integrated_gradients",
        spans="together",
        options=(
            Option("steps", 50, "number of gradients along the path", low=1),
            Option(
                "rule", "right", "at which points of the path they are computed", choices=("right", "gauss_legendre")
            ),
            Option("baseline", "zero", "the embedding where the path starts", choices=("zero", "pad")),
            REDUCE,
        ),
        needs=(GRADIENTS,),
        explanations=EVERY,
        embeddings=("partial",),
        forwards=lambda values, _: 2.0 * values["steps"] + 2,
        again=lambda values, _: values["steps"],
        order=82,
        about="the mean gradient on the way from a baseline to the input, times that way",
        source="Sundararajan et al. 2017; AttnLRP equation 21",
    ),
    Method(
        "smoothgrad",
        version=1,
        label="SmoothGrad",
        explain="closelook.lrp_core.methods.path_gradients:smoothgrad",
        spans="together",
        options=(
            Option("samples", 20, "number of points drawn around the input", low=1),
            Option("sigma", 0.1, "standard deviation of the noise", low=0),
            Option(
                "scale",
                "relative",
                "relative: sigma is multiplied by the range of the embeddings; absolute: it is used as it is",
                choices=("relative", "absolute"),
            ),
            REDUCE_GRADIENT,
        ),
        seeded=True,
        needs=(GRADIENTS,),
        explanations=EVERY,
        embeddings=NO_CHOICE,
        conserves=False,
        forwards=lambda values, _: 2.0 * values["samples"] + 1,
        again=lambda values, _: values["samples"],
        instead="reduce 'l1' or 'l2'",
        order=84,
        about="the mean gradient at points drawn around the input",
        source="Smilkov et al. 2017; AttnLRP equation 22",
    ),
    _of_attention(
        "attention_rollout",
        "AttnRollout",
        "rollout:explain_many",
        options=(DISCARD_THRESHOLD, LOWEST),
        passes="rollout",
        forwards=1.2,
        order=60,
        about="the product of averaged attention maps",
        source="Abnar & Zuidema 2020; AttnLRP A.1.4",
    ),
    _of_attention(
        "attention_share",
        "Attention",
        "baselines:attention_share",
        forwards=1.2,
        order=61,
        about="the mean attention from where a prediction is read, over layers and heads",
        source="a baseline of Cohen-Wang et al. 2024",
    ),
    _of_attention(
        "grad_attention_rollout",
        "G×AttnRollout",
        "attention_gradients:grad_attention_rollout",
        options=(DISCARD_THRESHOLD, LOWEST, ITSELF),
        needs=(ATTENTION, GRADIENTS),
        explanations=EVERY,
        forwards=2.2,
        again=1.0,
        order=62,
        about="the product over layers of attention maps times their gradients, negative entries set to 0",
        source="Chefer et al. 2021; AttnLRP A.1.4",
    ),
    _of_attention(
        "gradcam",
        "Grad-CAM",
        "attention_gradients:gradcam",
        needs=(ATTENTION, GRADIENTS),
        explanations=EVERY,
        forwards=1.2,
        again=0.1,
        order=64,
        inverted=True,
        about="the last layer's attention maps weighted by the mean of their gradients",
        source="Chefer et al. 2021",
    ),
    *PERTURBATION,
    *REPRESENTATION,
    Method(
        "random",
        version=1,
        label="Random",
        explain="closelook.lrp_core.methods.baselines:random_relevance",
        spans="together",
        family="baseline",
        seeded=True,
        gives=("tokens", "layers"),
        explanations=NO_CHOICE,
        embeddings=NO_CHOICE,
        conserves=False,
        order=100,
        about="seeded noise: the floor of every metric",
    ),
)


def attribute(method: str, view: ModelView, batch: Batch, **options: Any) -> Relevance:
    """The relevance of a batch by the method of that name; `options` as in a call of :class:`Method`.

    Raises UnsupportedMethod for an unknown name.
    """
    if method not in METHODS:
        raise UnsupportedMethod(f"no method {method!r}{nearest(method, METHODS)}")
    return METHODS[method](view, batch, **options)
