"""The `select:` block: how options that the methods' lists leave open are chosen."""

from __future__ import annotations

from pydantic import Field

from jobs.config.base import Frozen


class SelectConfig(Frozen):
    """A choice for every model, precision, task and method with a list: the largest area difference (AttnLRP B.2).

    Curves are drawn as `perturb` draws them, in the first of its `ways` that the model knows.
    """

    samples: int = Field(default=50, ge=1)  # of a task, the same for all methods
    seed: int = Field(default=0, ge=0)  # of the draw of these samples

    @property
    def draw(self) -> str:
        """What samples are drawn by: the draws of curves, of the same seed, are others."""
        return f"select:{self.seed}"
