"""The Python library: explain texts with a model, and read the results of a run.

    explanation = closelook.explain("The keys to the cabinet", target="are", foil="is", model="gpt2", method="attnlrp")
    scores = closelook.load("runs/demo").scores()

These names are the public ones; all are defined in other modules, and imported when first
used, so that `import closelook` does not wait for torch.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from closelook.lrp_core.lazy import lazily

if TYPE_CHECKING:
    from closelook.explaining.explanation import Explanation, Explanations, NotExplained
    from closelook.explaining.front import explain
    from closelook.explaining.opening import open_model
    from closelook.jobs.commands.verify import Verification, verify
    from closelook.jobs.results import Run, load
    from closelook.lrp_core import Batch, Method, Relevance, UnsupportedMethod, UnsupportedModel, UserError, load_model
    from closelook.methods import METHODS

try:
    __version__ = version("closelook")
except PackageNotFoundError:  # a clone whose `src` is on the path, on a machine where nothing is installed
    __version__ = "not installed"
__all__ = [
    "METHODS",
    "Batch",
    "Explanation",
    "Explanations",
    "Method",
    "NotExplained",
    "Relevance",
    "Run",
    "UnsupportedMethod",
    "UnsupportedModel",
    "UserError",
    "Verification",
    "explain",
    "load",
    "load_model",
    "open_model",
    "verify",
]

_HOMES = {
    "METHODS": "closelook.methods",
    "Batch": "closelook.lrp_core",
    "Explanation": "closelook.explaining.explanation",
    "Explanations": "closelook.explaining.explanation",
    "Method": "closelook.lrp_core",
    "NotExplained": "closelook.explaining.explanation",
    "Relevance": "closelook.lrp_core",
    "Run": "closelook.jobs.results",
    "UnsupportedMethod": "closelook.lrp_core",
    "UnsupportedModel": "closelook.lrp_core",
    "UserError": "closelook.lrp_core",
    "Verification": "closelook.jobs.commands.verify",
    "explain": "closelook.explaining.front",
    "load": "closelook.jobs.results",
    "load_model": "closelook.lrp_core",
    "open_model": "closelook.explaining.opening",
    "verify": "closelook.jobs.commands.verify",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
