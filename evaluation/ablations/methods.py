"""The records of methods that give relevance of units, computed from ablations of sources."""

from __future__ import annotations

from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.explained import NO_CHOICE
from closelook.lrp_core.records.option import Option
from closelook.lrp_core.records.registry import Registry

BUDGETS = (32, 64, 128)  # numbers of ablations to fit to; a larger budget includes the ablations of a smaller one

METHODS: Registry[Method] = Registry(
    "method",
    Method(
        "contextcite",
        version=1,
        label="ContextCite",
        from_ablations="closelook.evaluation.ablations.units:contextcite",
        family="perturbation",
        options=(Option("budget", BUDGETS[-1], "ablated prompts that the Lasso is fitted to, at most", low=2),),
        gives=("units",),
        explanations=NO_CHOICE,
        embeddings=NO_CHOICE,
        conserves=False,
        forwards=lambda values, _: values["budget"],
        order=72,
        colour="#7a6a00",
        about="a Lasso of the answer's log-odds on which sources stay in the prompt",
        source="Cohen-Wang et al. 2024",
    ),
    Method(
        "leave_one_out",
        version=1,
        label="Leave-one-out",
        from_ablations="closelook.lrp_core.records.ablated:leave_one_out",
        family="perturbation",
        gives=("units",),
        explanations=NO_CHOICE,
        embeddings=NO_CHOICE,
        conserves=False,
        forwards=lambda _, units: units + 1,
        order=74,
        about="the drop of the answer's log-odds when a source goes",
        source="a baseline of Cohen-Wang et al. 2024",
    ),
)
