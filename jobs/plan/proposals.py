"""Bigrams of a task's texts (proposals), from which other tokens are drawn in place of removed ones.

The driver computes their hash for keys; every worker computes them again from the views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from closelook.evaluation.schema import VIEW
from closelook.evaluation.scoring.faithfulness.flips import Flips
from closelook.evaluation.scoring.faithfulness.resampling import TEXT_COLUMNS, Proposal
from closelook.jobs.plan.inputs import Inputs
from closelook.jobs.store import Store
from closelook.lrp_core.records.kinds import MASK, RESAMPLE
from closelook.lrp_core.records.types import UserError

if TYPE_CHECKING:
    from closelook.jobs.plan.models import Reading


@dataclass(frozen=True)
class Texts:
    """All texts of a task as a tokenizer reads them, and how tokens that replace others are drawn from them."""

    task: str
    paths: tuple[str, ...]  # of the files of the views
    flips: Flips
    digest: str  # of the proposal

    @classmethod
    def of(cls, inputs: Inputs, every: Sequence[Flips]) -> Texts | None:
        """The texts for the first of the `every` flips that replaces tokens by drawn ones; None if none does."""
        flips = next((each for each in every if each.way == RESAMPLE), None)
        if flips is None:
            return None
        return cls(inputs.task, inputs.paths, flips, inputs.proposal(flips.kept_ids).digest)

    def proposal(self, store: Store) -> Proposal:
        """The bigrams of the texts in the store. Raises UserError if the views have changed since they were planned."""
        views = store.read_each(self.paths, VIEW, list(TEXT_COLUMNS))
        proposal = Proposal.of(views, self.flips.kept_ids)
        if proposal.digest != self.digest:
            raise UserError(f"the views of task {self.task} changed while the run went on: run the command again")
        return proposal

    def replaced(self, proposal: Proposal, row: Mapping[str, Any]) -> dict[str, Any]:
        """A view row with its `replacements` [D, T]: other tokens for each of its T tokens, in D draws."""
        flips = self.flips
        drawn = proposal.replacements(row["input_ids"], flips.special(row), flips.draws, flips.seed)
        return {**row, "replacements": drawn}


def keyed(texts: Texts | None) -> dict[str, str]:
    """The key field of drawn tokens; empty if no tokens are replaced by drawn ones."""
    return {} if texts is None else {"proposal": texts.digest}


def with_tokens(flips: Flips, reading: Reading) -> Flips:
    """`flips` with the tokens of the tokenizer that its way needs: the mask token, or all special tokens."""
    if flips.way == MASK:
        return replace(flips, mask_id=reading.mask_id)
    if flips.way == RESAMPLE:
        return replace(flips, kept_ids=reading.special_ids)
    return flips
