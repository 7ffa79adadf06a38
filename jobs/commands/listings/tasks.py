"""`closelook tasks`: lists all tasks from their records."""

from __future__ import annotations

from evaluation.benchmark.sources.own import SAMPLES
from jobs.commands.terminal import say
from jobs.tasks import tasks


def show() -> None:
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
