"""The stage `report`: tables, figures and a static site from the store, without Ray and without models."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from closelook.evaluation.benchmark.demo import IDS
from closelook.evaluation.report.explorers import Explorer, sample_explorer
from closelook.evaluation.report.leaves import Entry
from closelook.evaluation.report.overview.first_screen import first_screen, noting
from closelook.evaluation.report.overview.leaderboard import boards
from closelook.evaluation.report.page import Provenance, Site
from closelook.evaluation.report.results import Results
from closelook.evaluation.report.sections.costs import explicit_against_modified
from closelook.evaluation.report.sections.tables import glance_figure, score_tables
from closelook.evaluation.report.table import DONE
from closelook.evaluation.schema import SchemaMismatch
from closelook.jobs.bench.storage import measured_by
from closelook.jobs.config import RunConfig
from closelook.jobs.methods import METHODS
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.choices import undecided
from closelook.jobs.plan.node import Plan, Run
from closelook.jobs.products.table import of_packages
from closelook.jobs.products.whole import REPORT_VERSION, report_of
from closelook.jobs.stages.record import StageSummary
from closelook.jobs.stages.report import neurons, samples
from closelook.jobs.stages.report.answers import answer_entries
from closelook.jobs.stages.report.parts import PARTS
from closelook.jobs.stages.report.reported import Reported
from closelook.jobs.stages.report.results import results_of
from closelook.jobs.store import Artifact, Ledger, Store, StoreError
from closelook.versions import versions


def report(config: RunConfig, store: Store) -> StageSummary:
    """Write ROOT/report unless it is up to date. Raises StoreError for a store of another schema version."""
    plan = make_plan(config, store)
    try:
        return write_report(config, plan, store)
    except SchemaMismatch as error:
        raise StoreError(str(error)) from None


def write_report(config: RunConfig, plan: Plan, store: Store) -> StageSummary:
    """Write the report of `plan` unless it is up to date, and its manifest.

    Raises SchemaMismatch for a store of another schema version.
    """
    ledger = Ledger(store)
    run = Run(config, plan, ledger)
    artifact = report_of(config, ledger)
    first_page = f"{artifact.folder}/index.html"
    where = f"open {store.url(first_page)}"
    if ledger.is_done(artifact) and store.exists(first_page):
        return StageSummary("report", 0, 1, (), (where,))
    results = results_of(run)
    reported = Reported(run, results)
    shown_boards = boards(results, reported.other_numbers)
    *tables, last = score_tables(results)
    tables += [*explicit_against_modified(measured_by("lrp", store), METHODS), last]  # table 8, where it was measured
    added = [product.report(run) for product in of_packages() if product.report is not None]
    telling: list[Entry] = []
    of_samples = sample_explorer(noting(samples.entries(run, results), telling))
    explorers = {
        "samples.html": of_samples,
        "neurons.html": neurons.explorer(run, results, of_samples.names),
        "sources.html": Explorer.of("answer", answer_entries(run, results.methods)),
    }
    site = Site(
        provenance=provenance(run),
        results=results,
        tables=tables,
        parts=(*(part(reported) for part in PARTS), *added),
        explorers={page: explorer for page, explorer in explorers.items() if explorer.count},
        summary=_summary(run, results),
        notes=tuple(notes(run, results)),
        boards=shown_boards,
        first_screen=first_screen(results, shown_boards, telling[0] if telling else None) if shown_boards else None,
        glance=glance_figure(tables[1], results),
    )
    files, written = site.files(), {}
    for name, content in files.items():
        path = f"{artifact.folder}/{name}"
        written[path] = store.write_bytes(path, content.encode() if isinstance(content, str) else content)
    for old in store.files(artifact.folder, ".html", recursive=True):  # pages of a former report with more samples
        if old not in written:
            store.delete(old)
    groups = [[board.model, board.task, board.groups] for board in shown_boards]
    record = {"version": REPORT_VERSION, "groups": groups, "shards": list(files)}
    ledger.commit(artifact, record, files=written)
    return StageSummary("report", 1, 0, (), (where,), (artifact,))


def provenance(run: Run) -> Provenance:
    """The provenance of the report: the config, versions, hashes of data and identities of models.

    Versions are those in the manifests of relevance; if they differ, all are listed.
    """
    used: dict[str, list[str]] = {name: [] for name in versions()}
    for planned in run.plan.cells():
        for name, number in (run.ledger.record(planned.artifact) or {}).get("versions", {}).items():
            if number not in used.setdefault(name, []):
                used[name].append(number)
    data = {}
    for model in run.plan.models:
        for inputs in model.inputs.values():
            data[f"{inputs.task} · {inputs.tokenizer}"] = inputs.digest
    installed = versions()
    listed = {name: ", ".join(numbers) or installed[name] for name, numbers in used.items()}
    settings = yaml.safe_dump(run.settings, sort_keys=False, allow_unicode=True)
    models = [(model.name, model.resolved.identity) for model in run.plan.models]
    return Provenance(run.config.name, settings, listed, sorted(data.items()), models)


def _summary(run: Run, results: Results) -> str:
    """The first sentences of the report: how many methods and models, which tasks, and how methods are scored."""

    def count(number: int, name: str) -> str:
        return f"{number:,} {name}" + "s" * (number != 1)

    samples = dict.fromkeys(run.config.tasks, 0)
    for model in run.plan.models:
        for task, inputs in model.inputs.items():
            samples[task] = max(samples[task], inputs.rows)
    titles = {name: run.config.task(name).title for name in samples}
    tasks = ", ".join(f"{name} ({titles[name]}, {count(rows, 'sample')})" for name, rows in samples.items())
    methods = count(len(results.methods) - len(results.baselines), "method")
    beside = " and random relevance" if results.baselines else ""
    return (
        f"{methods}{beside} explain {count(len(results.models), 'model')} on {tasks}. "
        "An explanation gives every token, or patch of an image, a relevance for the model's answer. It is scored by "
        "how well it finds the parts that decide the answer, and by what the model does without the parts it names."
    )


def notes(run: Run, results: Results) -> Iterator[str]:
    """Yield sentences about demo models, incomplete parts of the run, and defects of its samples."""
    plan = run.plan
    if any(model.resolved.config.id.startswith(IDS) for model in plan.models):
        yield (
            "Models of the demo are small and trained on a generated language: which method to use for them says "
            "nothing of published models of the same architecture."
        )
    lost = [state for state in results.states.values() if state != DONE]
    if lost:
        yield (
            f"{len(lost)} of {len(results.states)} cells are not complete: they are marked missing or partial, "
            "and have no means."
        )
    yield from plan.failures.values()
    for model, task in plan.unprepared:
        yield f"{task} is not prepared for {model}: run `closelook prepare`."
    for choice in plan.undecided:
        yield f"{undecided(choice)}."
    for cell_key, state in results.states.items():
        record = run.ledger.latest(Artifact("scores", *cell_key)) or {} if state == DONE else {}
        for name, times in record.get("defects", {}).items():
            yield f"{' · '.join(cell_key)}: {times} times {name}, counted as wrong."
