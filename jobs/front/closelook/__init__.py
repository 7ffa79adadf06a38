"""The Python library: explain texts with a model, and read the results of a run.

    explanation = closelook.explain("The keys to the cabinet", target="are", foil="is", model="gpt2", method="attnlrp")
    scores = closelook.load("runs/demo").scores()

These names are the public ones; all are defined in other modules, and imported when first
used, so that `import closelook` does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.versions import versions
from lrp_core.lazy import lazily

if TYPE_CHECKING:
    from jobs.commands.questions.opened import open_model
    from jobs.commands.verify import Verification, verify
    from jobs.methods import METHODS
    from jobs.notebook.comparing import Comparison, compare
    from jobs.notebook.explaining import explain
    from jobs.notebook.explanation import Explanation, Explanations, NotExplained
    from jobs.results import Run, load
    from lrp_core import Batch, Method, Relevance, UnsupportedMethod, UnsupportedModel, UserError, load_model

__version__ = versions()["closelook"]
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
    "METHODS": "jobs.methods",
    "Batch": "lrp_core",
    "Comparison": "jobs.notebook.comparing",
    "Explanation": "jobs.notebook.explanation",
    "Explanations": "jobs.notebook.explanation",
    "Method": "lrp_core",
    "NotExplained": "jobs.notebook.explanation",
    "Relevance": "lrp_core",
    "Run": "jobs.results",
    "UnsupportedMethod": "lrp_core",
    "UnsupportedModel": "lrp_core",
    "UserError": "lrp_core",
    "Verification": "jobs.commands.verify",
    "compare": "jobs.notebook.comparing",
    "explain": "jobs.notebook.explaining",
    "load": "jobs.results",
    "load_model": "lrp_core",
    "open_model": "jobs.commands.questions.opened",
    "verify": "jobs.commands.verify",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
