"""`closelook.load`: what a run left in its root, as tables, and nothing that no manifest vouches for."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.benchmark.forgotten import without_placeholders
from evaluation.benchmark.pieces import Pieces
from evaluation.benchmark.sources.own import ids_of
from evaluation.report.results import CellKey
from evaluation.schema import CURVES, GENERIC, RELEVANCE, SCORES, SCORES_SAMPLES, VIEW
from jobs.config import RunConfig
from jobs.config.file import ConfigError
from jobs.config.kept import as_known, models_kept
from jobs.config.lacking import told
from jobs.plan.models import load_tokenizer
from jobs.products.scores import metrics_lacking
from jobs.store import Artifact, Ledger, Store
from jobs.store.records import artifact_in
from lrp_core.records.types import UserError, nearest

if TYPE_CHECKING:
    from jobs.answers import Answers
    from jobs.tested import Tested

Form = Literal["pandas", "arrow", "datasets"]
_FORMS: dict[str, str] = {"pandas": "pandas", "arrow": "pyarrow", "datasets": "datasets"}  # and the package of each
_log = logging.getLogger(__name__)
_KNOWN = ("model", "task", "dtype", "method", "tokenizer")
_OF_VIEWS = ("input_ids", "position", "evidence_mask", "special_mask", "scope_mask")
_OF_SAMPLES = ("text", "target", "foil", "label", "score")


def load(root: str) -> Run:
    """The run under `root`: a folder, `s3://` or `gs://`. Raises UserError if no run has written to it.

    Methods, tasks and metrics of packages that are no longer installed are listed in `lacking`, and printed.

        closelook.load("runs/mine").scores(task="mine")  # a pandas frame
    """
    run = open_run(root)
    if run.lacking:
        _log.warning("%s: %s", run.store.root, told(run.lacking))
    return run


def open_run(root: str) -> Run:
    """As :func:`load`, telling nothing."""
    store = Store(str(root))
    run = Run(store, Ledger(store))
    if not any(True for _ in run.ledger.records()):
        raise UserError(f"no run has written anything to {root}: compute one with `closelook run --root {root}`")
    return run


@dataclass(frozen=True, eq=False)
class Run:
    """The tables of a root. Each method takes `form`: "pandas" (the default), "arrow" or "datasets".

    What has been computed under several settings is there once, as it was computed last.
    """

    store: Store
    ledger: Ledger

    def __repr__(self) -> str:
        return f"<Run {self.store.root}: {', '.join(self.tokenizers) or 'no model'}>"

    @cached_property
    def config(self) -> RunConfig | None:
        """The configuration that the root keeps, without what it is `lacking`."""
        return as_known(self.store)

    @cached_property
    def lacking(self) -> list[str]:
        """Methods, tasks, families and metrics of the run that no installed package brings."""
        try:
            config = self.config
        except ConfigError:  # of another version: told where it is needed
            config = None
        return [*(config.lacking if config is not None else ()), *metrics_lacking(self.ledger)]

    @cached_property
    def tokenizers(self) -> dict[str, str]:
        """The name under which each model's views are stored."""
        current = self.current("relevance")
        return {artifact.model: record["inputs"]["tokenizer"] for artifact, record in current if "inputs" in record}

    def scores(self, form: Form = "pandas", *, tested: bool = True, **picked: str) -> Any:
        """Metrics, a row for each model, task, precision, method, variant and metric.

        Those that the report compares are `tested`: they have the ends of their 95 % interval, `low` and `high`, and
        the number of their `group`, 1 for methods that no other is shown to beat. The others have null there, random
        relevance among them, which is compared by its exact chance.
        """
        table = self._read("scores", SCORES, picked)
        return _in_form(self._with_tests(table) if tested else table, form)

    def means(self, form: Form = "pandas") -> Any:
        """Means of methods on the samples that all have, with intervals and groups: evidence, and areas of curves."""
        from jobs import tested

        return _in_form(tested.means(self.tests), form)

    def differences(self, form: Form = "pandas") -> Any:
        """Differences of each two methods with intervals and p values, adjusted by Holm's method over the pairs."""
        from jobs import tested

        return _in_form(tested.differences(self.tests), form)

    def groups(self, form: Form = "pandas") -> Any:
        """Methods in groups, the best first: no other of a group and of those below is shown to be better."""
        from jobs import tested

        return _in_form(tested.groups(self.tests), form)

    @cached_property
    def tests(self) -> list[Tested]:
        """The report's comparisons of methods. Raises UserError for a root that keeps no configuration."""
        from jobs.tested import tested

        if self.config is None:
            raise UserError(f"{self.store.root} keeps no configuration, which says what is compared")
        return tested(self.config, self.store)

    def answers(self) -> Answers:
        """Answers with the sources of each sentence by every method, as the report shows them: an explorer in a
        notebook, and a frame. Raises UserError for a root that keeps no configuration.
        """
        from jobs.answers import answers_of

        if self.config is None:
            raise UserError(f"{self.store.root} keeps no configuration, which says what is shown")
        return answers_of(self.config, self.store)

    def scores_of_samples(self, form: Form = "pandas", **picked: str) -> Any:
        """Metrics of every sample."""
        return _in_form(self._read("scores", SCORES_SAMPLES, picked, folder=1), form)

    def relevance(self, form: Form = "pandas", *, tokens: bool = True, **picked: str) -> Any:
        """Relevance beside what the model read, the text and the evidence; `picked` are `model`, `task`, `dtype` or
        `method`. Rows of users' own files with the same content are there each, by their `id`. Without `tokens` no
        tokenizer is loaded, and only their numbers are there (`input_ids`).

        Raises UserError for a place that holds no relevance, and where a tokenizer is out of reach.
        """
        return _in_form(self._beside_texts(self._read("relevance", RELEVANCE, picked), tokens), form)

    def curves(self, form: Form = "pandas", **picked: str) -> Any:
        """Predictions of models as tokens are removed."""
        return _in_form(self._read("curves", CURVES, picked), form)

    def samples(self, form: Form = "pandas", *, task: str | None = None) -> Any:
        """Samples, independent of any model."""
        return _in_form(without_placeholders(self._read("benchmark", GENERIC, {"task": task})), form)

    def views(self, form: Form = "pandas", *, model: str | None = None, task: str | None = None) -> Any:
        """Samples as a model's tokenizer sees them."""
        tokenizer = None if model is None else self._tokenizer_of(model)
        views = self._read("views", VIEW, {"task": task, "tokenizer": tokenizer})
        return _in_form(without_placeholders(views), form)

    def current(self, product: str) -> list[tuple[Artifact, dict[str, Any]]]:
        """Complete artifacts of a product with their manifests; if several differ in the key alone, the one written
        last.
        """
        latest: dict[Artifact, tuple[Artifact, dict[str, Any]]] = {}
        for _, record in self.ledger.records(product):
            artifact = artifact_in(record)
            if artifact is None or record.get("state", "complete") != "complete":
                continue
            before = latest.get(artifact.place)
            if before is None or before[1].get("written", "") <= record.get("written", ""):
                latest[artifact.place] = artifact, record
        return list(latest.values())

    def read_each(self, product: str, schema: pa.Schema, folder: int = 0) -> Iterator[tuple[CellKey, pa.Table]]:
        """The rows of every complete artifact of a product, by its place; `folder` is which of its folders."""
        for artifact, record in self.current(product):
            files = self._files(artifact, record, folder)
            if files:
                cell = CellKey(artifact.model, artifact.task, artifact.dtype, artifact.method)
                yield cell, self.store.read(files, schema)

    def _read(self, product: str, schema: pa.Schema, picked: Mapping[str, str | None], folder: int = 0) -> pa.Table:
        """The rows of a product for the picked models, tasks and methods, with columns of these; None picks all.

        Raises UserError where there are none.
        """
        current, root = self.current(product), self.store.root
        for name, value in picked.items():
            if value is None:
                continue
            values = [getattr(artifact, name) if name in _KNOWN else None for artifact, _ in current]
            known = sorted({of for of in values if of is not None})
            if not known:
                raise UserError(f"{product} is picked by {', '.join(_KNOWN)}, not by {name!r}")
            if value not in known:
                raise UserError(f"{root} holds no {product} of {name} {value!r}{nearest(value, known)}")
            current = [item for item, of in zip(current, values, strict=True) if of == value]
        tables = []
        for artifact, record in current:
            files = self._files(artifact, record, folder)
            if files:
                tables.append(_placed(artifact, self.store.read(files, schema)))
        if not tables:
            raise UserError(f"{root} holds no complete {product}: `closelook status` says what is missing")
        return pa.concat_tables(tables, promote_options="permissive")  # relevance of float64 models is float64

    def _with_tests(self, scores: pa.Table) -> pa.Table:
        """Scores with the columns `low`, `high` and `group`."""
        from jobs.tested import KEY, of_scores

        compared = {} if self.config is None else of_scores(self.tests)
        keys = zip(*(scores[name].to_pylist() for name in KEY), strict=True)
        rows = [compared.get(key, {}) for key in keys]
        for name, kind in (("low", pa.float64()), ("high", pa.float64()), ("group", pa.int64())):
            scores = scores.append_column(name, pa.array([row.get(name) for row in rows], kind))
        return scores

    def _files(self, artifact: Artifact, record: Mapping[str, Any], folder: int) -> list[str]:
        """The files of one of the artifact's folders. Raises UserError for damaged ones."""
        if damage := self.ledger.described_damage(artifact):
            raise UserError(damage)
        prefix = f"{artifact.folders[folder]}/"
        listed = [path for path in self.ledger.belongings(artifact, record) if path.startswith(prefix)]
        if not listed and folder == 0:
            listed = [prefix + name for name in self.ledger.shards(artifact)]
        return listed

    def _beside_texts(self, relevance: pa.Table, tokens: bool) -> pa.Table:
        """The rows with columns of their views and samples."""
        tables = []
        places = zip(relevance["model"].to_pylist(), relevance["task"].to_pylist(), strict=True)
        for model, task in dict.fromkeys(places):
            rows = pc.and_(pc.equal(relevance["model"], model), pc.equal(relevance["task"], task))
            table = relevance.filter(rows)
            views = self.views("arrow", model=model, task=task).select(["sample_id", *_OF_VIEWS])
            if tokens:
                views = views.add_column(1, "tokens", self._tokens(model, views["input_ids"].to_pylist()))
            samples = self.samples("arrow", task=task).select(["sample_id", *_OF_SAMPLES, "meta"])
            for other in (views, samples):
                rows = other.take(pc.index_in(table["sample_id"], other["sample_id"].combine_chunks()))
                for name in other.column_names[1:]:
                    table = table.append_column(name, rows[name])
            tables.append(_each_row_of_the_file(table))
        return pa.concat_tables(tables, promote_options="default")

    def _tokens(self, model: str, ids: Sequence[Sequence[int]]) -> pa.Array:
        """The text of every token."""
        models = models_kept(self.store)
        if not models:
            raise UserError(f"{self.store.root} keeps no configuration, and with it no tokenizer: pass tokens=False")
        if model not in models:
            raise UserError(f"{self.store.root} keeps no model {model!r}{nearest(model, models)}; pass tokens=False")
        try:
            tokenizer = load_tokenizer(models[model])
        except (UserError, OSError) as error:
            raise UserError(f"{error}; or pass tokens=False") from None
        texts = Pieces(tokenizer)
        return pa.array([texts.of(row) for row in ids], pa.list_(pa.string()))

    def _tokenizer_of(self, model: str) -> str:
        if model not in self.tokenizers:
            raise UserError(f"{self.store.root} holds no relevance of model {model!r}{nearest(model, self.tokenizers)}")
        return self.tokenizers[model]


def _each_row_of_the_file(table: pa.Table) -> pa.Table:
    """`table` with the `id` of users' own samples in place of `meta`, and rows of equal content once for each id."""
    metas = table["meta"].combine_chunks().dictionary_encode()
    by_meta = [ids_of(meta) for meta in metas.dictionary.to_pylist()]
    which = metas.indices.to_numpy()
    times = np.array([len(ids) for ids in by_meta])[which]
    ids = [name for at in which.tolist() for name in by_meta[at]]
    repeated = table if (times == 1).all() else table.take(pa.array(np.repeat(np.arange(len(table)), times)))
    return repeated.drop_columns(["meta"]).append_column("id", pa.array(ids, pa.string()))


def _placed(artifact: Artifact, table: pa.Table) -> pa.Table:
    """`table` with the columns of the artifact's place in front, but for those that its rows have."""
    values = {name: getattr(artifact, name) for name in _KNOWN}
    missing = [name for name, value in values.items() if value and name not in table.column_names]
    for at, name in enumerate(missing):
        table = table.add_column(at, name, pa.repeat(pa.scalar(values[name]), table.num_rows))
    return table


def _in_form(table: pa.Table, form: str) -> Any:
    """`table` as pandas, Arrow or a data set. Raises UserError for another form, or one whose package is missing."""
    if form not in _FORMS:
        raise UserError(f"no form {form!r}{nearest(form, _FORMS)}")
    try:
        if form == "pandas":
            return table.to_pandas()
        if form == "datasets":
            from datasets import Dataset

            return Dataset(table)
    except ModuleNotFoundError as error:
        raise UserError(f"form {form!r} needs the package {error.name}: pip install {_FORMS[form]}") from None
    return table
