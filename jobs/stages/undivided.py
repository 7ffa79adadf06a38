"""What actors have in common whose units are committed as a whole: curves of heads, knock-outs of neurons."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from jobs.cluster.attempts import loading
from jobs.cluster.pools import own_device
from jobs.plan.models import ResolvedModel, open_view
from jobs.store import Store

if TYPE_CHECKING:
    from lrp_core import ModelView

T = TypeVar("T")


class UndividedWorker:
    """Holds a model in one precision, opened when the first unit comes."""

    def __init__(
        self, store: Store, model: ResolvedModel, dtype: str, seed: int, max_attempts: int, run: str = ""
    ) -> None:
        """`run` tells the notes of this run's workers from those of earlier ones."""
        self._store, self._model, self._dtype = store, model, dtype
        self._seed, self._max_attempts, self._run_name = seed, max_attempts, run
        self._view: ModelView | None = None

    def _opened(self) -> ModelView:
        """The model, on the device that the worker was given."""
        if self._view is None:
            with loading(self._store, self._model.config.name, self._max_attempts, self._run_name):
                self._view = open_view(self._model, self._dtype, own_device(), self._seed)
        return self._view


def that_fits(compute: Callable[[int], T], token_budget: int) -> tuple[T, int]:
    """`compute` of the token budget, halved while memory runs out, and how often that was."""
    from lrp_core.memory import is_out_of_memory

    splits = 0
    while True:
        try:
            return compute(token_budget >> splits), splits
        except Exception as error:
            if not is_out_of_memory(error) or token_budget >> splits <= 1:
                raise
            splits += 1
