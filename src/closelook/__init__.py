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
    from closelook.jobs.commands.questions.opened import open_model
    from closelook.jobs.commands.verify import Verification, verify
    from closelook.jobs.notebook.comparing import Comparison, compare
    from closelook.jobs.notebook.explaining import explain
    from closelook.jobs.notebook.explanation import Explanation, Explanations, NotExplained
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
    "Comparison",
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
    "compare",
    "explain",
    "load",
    "load_model",
    "open_model",
    "verify",
]

_HOMES = {
    "METHODS": "closelook.methods",
    "Batch": "closelook.lrp_core",
    "Comparison": "closelook.jobs.notebook.comparing",
    "Explanation": "closelook.jobs.notebook.explanation",
    "Explanations": "closelook.jobs.notebook.explanation",
    "Method": "closelook.lrp_core",
    "NotExplained": "closelook.jobs.notebook.explanation",
    "Relevance": "closelook.lrp_core",
    "Run": "closelook.jobs.results",
    "UnsupportedMethod": "closelook.lrp_core",
    "UnsupportedModel": "closelook.lrp_core",
    "UserError": "closelook.lrp_core",
    "Verification": "closelook.jobs.commands.verify",
    "compare": "closelook.jobs.notebook.comparing",
    "explain": "closelook.jobs.notebook.explaining",
    "load": "closelook.jobs.results",
    "load_model": "closelook.lrp_core",
    "open_model": "closelook.jobs.commands.questions.opened",
    "verify": "closelook.jobs.commands.verify",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
