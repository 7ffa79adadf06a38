"""`closelook.load`: what a run left in its root, as tables, and nothing that no manifest vouches for."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from evaluation.report.heatmap import pieces
from evaluation.report.results import Place
from evaluation.schema import CURVES, GENERIC, RELEVANCE, SCORES, SCORES_SAMPLES, VIEW
from jobs.config import RunConfig
from jobs.config.file import ConfigError
from jobs.config.kept import as_known, models_kept
from jobs.config.lacking import told
from jobs.plan.models import load_tokenizer
from jobs.products.scores import metrics_lacking
from jobs.store import Artifact, Ledger, Store
from jobs.store.ledger import artifact_in
from lrp_core.types import UserError, nearest

Form = Literal["pandas", "arrow", "datasets"]
_FORMS: dict[str, str] = {"pandas": "pandas", "arrow": "pyarrow", "datasets": "datasets"}  # and the package of each
_log = logging.getLogger(__name__)
_KNOWN = ("model", "task", "dtype", "method", "tokenizer")
_OF_VIEWS = ("input_ids", "position", "evidence_mask", "special_mask", "scope_mask")
_OF_SAMPLES = ("text", "target", "foil", "label", "score")


def load(root: str) -> Run:
    """The run under `root`: a folder, `s3://` or `gs://`. Raises UserError where no run has written anything.

    What it was made with and no installed package brings any more is told, and its `lacking`.
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
        raise UserError(f"no run has left anything in {root}: compute one with `closelook run --root {root}`")
    return run


@dataclass(frozen=True, eq=False)
class Run:
    """Tables of one root. Each method takes `form`: "pandas" (the default), "arrow" or "datasets".

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

    def scores(self, form: Form = "pandas", **picked: str) -> Any:
        """Metrics, a row for each model, task, precision, method, variant and metric."""
        return _in_form(self._read("scores", SCORES, picked), form)

    def scores_of_samples(self, form: Form = "pandas", **picked: str) -> Any:
        """Metrics of every sample."""
        return _in_form(self._read("scores", SCORES_SAMPLES, picked, folder=1), form)

    def relevance(self, form: Form = "pandas", *, tokens: bool = True, **picked: str) -> Any:
        """Relevance beside what the model read, the text and the evidence; `picked` are `model`, `task`, `dtype` or
        `method`. Without `tokens` no tokenizer is loaded, and only their numbers are there (`input_ids`).

        Raises UserError for a place that holds no relevance, and where a tokenizer is out of reach.
        """
        return _in_form(self._beside_texts(self._read("relevance", RELEVANCE, picked), tokens), form)

    def curves(self, form: Form = "pandas", **picked: str) -> Any:
        """Predictions of models as tokens are removed."""
        return _in_form(self._read("curves", CURVES, picked), form)

    def samples(self, form: Form = "pandas", *, task: str | None = None) -> Any:
        """Samples, independent of any model."""
        return _in_form(self._read("benchmark", GENERIC, {"task": task}), form)

    def views(self, form: Form = "pandas", *, model: str | None = None, task: str | None = None) -> Any:
        """Samples as a model's tokenizer sees them."""
        tokenizer = None if model is None else self._tokenizer_of(model)
        return _in_form(self._read("views", VIEW, {"task": task, "tokenizer": tokenizer}), form)

    def current(self, product: str) -> list[tuple[Artifact, dict[str, Any]]]:
        """Complete artifacts of a product with their manifests; of several in one place, the one written last."""
        latest: dict[Artifact, tuple[Artifact, dict[str, Any]]] = {}
        for _, record in self.ledger.records(product):
            artifact = artifact_in(record)
            if artifact is None or record.get("state", "complete") != "complete":
                continue
            before = latest.get(artifact.place)
            if before is None or before[1].get("written", "") <= record.get("written", ""):
                latest[artifact.place] = artifact, record
        return list(latest.values())

    def read_each(self, product: str, schema: pa.Schema, folder: int = 0) -> Iterator[tuple[Place, pa.Table]]:
        """The rows of every complete artifact of a product, by its place; `folder` is which of its folders."""
        for artifact, record in self.current(product):
            files = self._files(artifact, record, folder)
            if files:
                cell = Place(artifact.model, artifact.task, artifact.dtype, artifact.method)
                yield cell, self.store.read(files, schema)

    def _read(self, product: str, schema: pa.Schema, picked: Mapping[str, str | None], folder: int = 0) -> pa.Table:
        """The rows of a product in the picked places, with the columns of their place; None picks all.

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
            samples = self.samples("arrow", task=task).select(["sample_id", *_OF_SAMPLES])
            for other in (views, samples):
                rows = other.take(pc.index_in(table["sample_id"], other["sample_id"].combine_chunks()))
                for name in other.column_names[1:]:
                    table = table.append_column(name, rows[name])
            tables.append(table)
        return pa.concat_tables(tables, promote_options="default")

    def _tokens(self, model: str, ids: Sequence[Sequence[int]]) -> pa.Array:
        """The text of every token."""
        models = models_kept(self.store)
        if not models:
            raise UserError(f"{self.store.root} keeps no configuration, so tokens have no tokenizer: say tokens=False")
        if model not in models:
            raise UserError(f"{self.store.root} keeps no model {model!r}{nearest(model, models)}; say tokens=False")
        try:
            tokenizer = load_tokenizer(models[model])
        except (UserError, OSError) as error:
            raise UserError(f"{error}; or say tokens=False") from None
        return pa.array([pieces(tokenizer, row) for row in ids], pa.list_(pa.string()))

    def _tokenizer_of(self, model: str) -> str:
        if model not in self.tokenizers:
            raise UserError(f"{self.store.root} holds no relevance of model {model!r}{nearest(model, self.tokenizers)}")
        return self.tokenizers[model]


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
