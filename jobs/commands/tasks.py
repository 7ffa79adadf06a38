"""The tasks there are, from their records."""

from __future__ import annotations

from rich.console import Console

from evaluation.benchmark.sources.own import SAMPLES
from jobs.tasks import tasks


def show(console: Console) -> None:
    """Print what each task predicts, where its samples come from, what counts as evidence, and who brings it."""
    table = tasks()
    for name, task in table.items():
        console.print(f"{name}: {task.title}, brought by {table.owner(name)}", style="bold", markup=False)
        sources = [source.name for source in task.sources]
        facts = {
            "about": task.about,
            "predicts": f"{task.predicts}, words: {task.words}",
            "sources": ", ".join(dict.fromkeys([*sources, SAMPLES.name])),
            "evidence": f"{task.evidence or 'none'}{f', looked for in the {task.scope}' if task.scope else ''}",
            "metrics": "all" if task.metrics is None else ", ".join(task.metrics),
        }
        for fact, text in facts.items():
            if text:
                console.print(f"  {fact}: {text}", markup=False)
    console.print(f"Your own: tasks: {{NAME: {{source: {SAMPLES.name}, path: FILE}}}}", markup=False)
