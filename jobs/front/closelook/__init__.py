"""closelook for users of Python: explain a text with a model, and read what a run left in its root.

    explanation = closelook.explain("The keys to the cabinet", target="are", foil="is", model="gpt2", method="attnlrp")
    scores = closelook.load("runs/demo").scores()

Everything here is defined elsewhere; what is not here is not meant for users' code.
"""

from jobs.commands.opened import open_model
from jobs.methods import METHODS
from jobs.notebook.explaining import explain
from jobs.notebook.explanation import Explanation, Explanations
from jobs.results import Run, load
from jobs.versions import versions
from lrp_core import Batch, Method, Relevance, load_model
from lrp_core.types import UnsupportedMethod, UnsupportedModel, UserError

__version__ = versions()["closelook"]
__all__ = [
    "METHODS",
    "Batch",
    "Explanation",
    "Explanations",
    "Method",
    "Relevance",
    "Run",
    "UnsupportedMethod",
    "UnsupportedModel",
    "UserError",
    "explain",
    "load",
    "load_model",
    "open_model",
]
