"""Records of planted methods, which ignore the model and so must fail the controls. Imports no torch.

The controls show them beside the run's methods: a control that a planted method passes is broken. Configs cannot name
them, and no other table shows them.
"""

from __future__ import annotations

from typing import Any

from lrp_core.methods.record import Method
from lrp_core.records.explained import NO_CHOICE
from lrp_core.records.registry import Registry


def _planted(name: str, label: str, **record: Any) -> Method:
    """The record of the function `name` in `planted.py`."""
    return Method(
        name,
        version=1,
        label=label,
        explain=f"lrp_core.methods.planted:{name}",
        family="planted",
        explanations=NO_CHOICE,
        embeddings=NO_CHOICE,
        conserves=False,
        **record,
    )


PLANTED: Registry[Method] = Registry(
    "planted method",
    _planted("position_only", "Position only", about="the number of a token in the text: the last says most"),
    _planted("constant", "Constant", about="1 for every token"),
    _planted("frequency", "Frequency", about="the logarithm of a token's id, high where a vocabulary is sorted by use"),
)
