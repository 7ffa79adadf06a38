"""`closelook examples --root`: a neuron's max-activating examples that a run has stored."""

from __future__ import annotations

import pyarrow.compute as pc
from rich.text import Text

from closelook.evaluation.schema import ACTIVATIONS, CONTEXTS
from closelook.explaining.examples import ExplainedNeuron, check_name
from closelook.explaining.opening import chosen_device, open_model
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.models import load_tokenizer, open_view
from closelook.jobs.plan.node import Run
from closelook.jobs.products.neurons.contexts import ContextsNode, nodes
from closelook.jobs.store import Ledger, Store
from closelook.lrp_core.neurons.contexts import Context
from closelook.lrp_core.records.types import UserError, nearest
from closelook.terminal import say


def show_kept(
    config: RunConfig, store: Store, name: str, method: str, model: str | None, top: int, device: str
) -> None:
    """Print the `top` max-activating examples that a run has stored for the neuron `name` (LAYER.NEURON) of a model.

    Raises UserError if the run has none of the model, and for a model without such a neuron.
    """
    check_name(name)
    ledger = Ledger(store)
    cell = _kept(config, ledger, model)
    artifact, resolved, record = cell.artifact, cell.plan.resolved, ledger.record(cell.artifact) or {}
    view = open_view(resolved, artifact.dtype, chosen_device(device), config.seed)
    neuron = ExplainedNeuron.named(open_model(view, tokenizer=load_tokenizer(resolved.config)), name, method)
    shard = record["shards"][neuron.layer]
    contexts, activations = (f"{folder}/{shard}" for folder in artifact.folders)
    table = store.read([activations], ACTIVATIONS)
    (activity,) = table.filter(pc.equal(table["neuron"], neuron.number)).to_pylist()
    texts, mean = record["corpus"]["survey"]["texts"], activity["mean"] or 0
    say(
        f"{cell.plan.name}: neuron {name} in {texts:,} texts of {artifact.task}, explained by {method}; "
        f"mean {mean:+.3f} over {activity['tokens']:,} tokens"
    )
    table = store.read([contexts], CONTEXTS)
    for row in table.filter(pc.equal(table["neuron"], neuron.number)).to_pylist()[:top]:
        context = Context(row["activation"], -row["rank"], row["position"], tuple(row["input_ids"]))
        say(neuron.line(context) + Text(f"  {row['place']}", style="dim"))


def _kept(config: RunConfig, ledger: Ledger, model: str | None) -> ContextsNode:
    """The complete node of max-activating examples of `model`; None: of the only model that has them.

    Raises UserError if there is none, or several and no `model`.
    """
    done = {}
    for cell in nodes(Run(config, make_plan(config, ledger.store), ledger)):
        if ledger.is_done(cell.artifact):
            done[cell.plan.name] = cell
    if not done:
        raise UserError(
            f"{ledger.store.root} has no max-activating examples: set `neurons.corpus` and run `closelook neurons`"
        )
    if model is None and len(done) > 1:
        raise UserError(f"say which model: --model {' or '.join(done)}")
    name = model or next(iter(done))
    if name not in done:
        raise UserError(f"no max-activating examples of model {name!r} in {ledger.store.root}{nearest(name, done)}")
    return done[name]
