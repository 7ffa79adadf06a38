"""`closelook methods`, `tasks` and `models`: lists records on the screen."""

from __future__ import annotations

from collections.abc import Collection

from closelook.evaluation.benchmark.sources.own import SAMPLES
from closelook.jobs.commands.listings.sums import in_words, percent
from closelook.jobs.config import FINER_KEYS
from closelook.jobs.methods import METHODS, method
from closelook.jobs.tasks import tasks
from closelook.lrp_core.families import FAMILIES
from closelook.lrp_core.families.generic import GENERIC, GenericFamily
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.capabilities import Capability
from closelook.lrp_core.records.kinds import KINDS, MASKED, Kind
from closelook.lrp_core.records.option import plain
from closelook.terminal import say, say_table

TOKENS = 30  # of the sample whose cost is shown


def show_tasks() -> None:
    """Print the prediction, the sources of samples, the evidence and the package of each task."""
    table = tasks()
    for name, task in table.items():
        say(f"{name}: {task.title}, brought by {table.owner(name)}", "bold")
        if task.about:
            say(f"  about: {task.about}")
        say(f"  predicts: {task.predicts}, words: {task.words}")
        sources = dict.fromkeys([*(source.name for source in task.sources), SAMPLES.name])
        say(f"  sources: {', '.join(sources)}")
        scope = f", looked for in the {task.scope}" if task.scope else ""
        say(f"  evidence: {task.evidence or 'none'}{scope}")
        metrics = "all" if task.metrics is None else ", ".join(task.metrics)
        if metrics:
            say(f"  metrics: {metrics}")
    say(f"Your own: tasks: {{NAME: {{source: {SAMPLES.name}, path: FILE}}}}")


def show_models() -> None:
    """Print the facts about every kind of models, and every family with its methods."""
    for kind in KINDS.values():
        say(f"{kind.name}: {kind.title}", "bold")
        say(f"  loaded by: {kind.auto}")
        say(f"  the prediction is read {_read_at(kind)}")
        say(f"  perturbations: {', '.join(kind.perturbations)}")
    rows = []
    for family in FAMILIES.values():
        kinds = family.kind.name
        if family.with_labels is not None:
            kinds = f"{kinds}, {family.with_labels.kind.name}"
        lacking = [name for name, applies in _applying(family.capabilities).items() if not applies]
        methods = f"all but {', '.join(lacking)}" if lacking else "all"
        rows.append((family.name, kinds, f"{family.norm}, {family.norm_order}", FAMILIES.owner(family.name), methods))
    say_table(("family", "kind", "norms", "brought by", "methods"), rows)
    say("family: `model_type` in the config.json of a checkpoint")
    say("adapter: FOLDER or hub id in a config, of a LoRA adapter, for any model that is loaded from weights")
    generic = _applying(GenericFamily(name=GENERIC, kind=MASKED).capabilities)
    known = ", ".join(name for name, applies in generic.items() if applies)
    say(
        f"family: {GENERIC}, that of every other masked or causal language model or text classifier of transformers "
        f"that takes embeddings in place of tokens: {known}"
    )


def _read_at(kind: Kind) -> str:
    """The readout position of a kind of models, in words."""
    if kind.reads != "anywhere":
        return f"at the {kind.reads} token"
    if kind.decoder:
        return "after what the decoder has seen"
    return "at the mask token inside the text" if kind.slot else "after the text"


def _applying(capabilities: Collection[Capability]) -> dict[str, bool]:
    """By name, True for each method that can explain models with these `capabilities`."""
    return {name: not method.missing(capabilities) for name, method in METHODS.items()}


def show_methods(name: str | None = None) -> None:
    """Print a table of all methods, or all facts about the method `name`.

    Raises UnsupportedMethod for an unknown name.
    """
    if name is not None:
        _show_one(method(name))
        return
    rows = []
    for record in METHODS.values():
        gives = ", ".join(kind for kind in record.gives if kind in FINER_KEYS)
        needs = ", ".join(need.name for need in record.needs)
        rows.append((record.name, record.family, gives, needs, percent(record), cost_of(record)))
    say_table(("method", "family", "also gives", "needs", "sum", "cost"), rows, numbers=("sum", "cost"))
    say("sum: of relevance, in percent of the explained number, as measured on models of the demo; empty: no sum")
    say(f"cost: forward passes for a sample of {TOKENS} tokens; b: plus one backward pass for each explanation")
    say("`closelook methods NAME` describes a method and its options")


def cost_of(record: Method) -> str:
    """The number of forward passes for a sample of TOKENS tokens, with "+ b" for a backward pass per explanation."""
    return f"{record.cost(TOKENS):g}" + (" + b" if record.rules else "")


def needs_of(record: Method) -> str:
    """The requirements of a method on a model, in words."""
    return "; ".join(need.says for need in record.needs)


def _show_one(record: Method) -> None:
    """Print all facts about a method, its options, and its entry for a config."""
    say(f"{record.name}: {record.label}, version {record.version}, brought by {METHODS.owner(record.name)}", "bold")
    backwards = " and a backward for each explanation" if record.rules else ""
    facts = {
        "about": record.about,
        "family": record.family,
        "needs": needs_of(record) or "nothing of a model",
        "instead": record.instead and f"{record.instead}, where a model lacks that",
        "gives": ", ".join(record.gives),
        "explanations": ", ".join(record.explanations),
        "embeddings": ", ".join(record.embeddings),
        "sums to": in_words(record),
        "seeded": "yes, the run's seed changes its numbers" if record.seeded else "",
        "cost": f"{record.cost(TOKENS):g} forwards of a sample of {TOKENS} tokens{backwards}",
        "scores low": record.weak.removeprefix("Expected: "),
        "source": record.source,
    }
    for fact, text in facts.items():
        if text:
            say(f"  {fact}: {text}")
    defaults = []
    for option in record.options:
        default = plain(option.default)
        defaults.append(f"{option.name}: {default}")
        say(f"  option {option.name}: {option.range}, by default {default}")
        say(f"    {option.help}")
        for value, need in option.needs.items():
            say(f"    {plain(value)} needs {need.says}")
    entry = f"{record.name}: {{{', '.join(defaults)}}}" if defaults else record.name
    say(f"  in a config: methods: [{entry}]")
