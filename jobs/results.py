"""`closelook.load`: the results of a run as tables, of artifacts alone that have a manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.benchmark.encoding import Pieces
from closelook.evaluation.benchmark.sources.own import ids_of
from closelook.evaluation.report.results import CellKey
from closelook.evaluation.schema import CURVES, GENERIC, RELEVANCE, SCORES, SCORES_SAMPLES, VIEW
from closelook.jobs.config import RunConfig
from closelook.jobs.config.kept import kept, models_kept
from closelook.jobs.plan.models import load_tokenizer
from closelook.jobs.store import Artifact, Ledger, Store, artifact_in, is_complete
from closelook.lrp_core.records.types import UserError, nearest

if TYPE_CHECKING:
    from closelook.jobs.tested import Tested

Form = Literal["pandas", "arrow", "datasets"]
_KNOWN = ("model", "task", "dtype", "method", "tokenizer")
_OF_VIEWS = ("input_ids", "position", "evidence_mask", "special_mask", "scope_mask")
_OF_SAMPLES = ("text", "target", "foil", "label", "score")


def load(root: str) -> Run:
    """Open the results of the run under `root`: a folder, `s3://` or `gs://`. Raises UserError if there are none.

    >>> run = load("runs/mine")
    >>> scores = run.scores(task="sva", method="attnlrp")  # a pandas frame
    >>> sorted(scores["metric"].unique())[:3]
    ['accuracy', 'ap', 'dot']
    """
    store = Store(str(root))
    run = Run(store, Ledger(store))
    if not any(True for _ in run.ledger.records()):
        raise UserError(f"{root} holds no run: compute one with `closelook run --root {root} --config CONFIG`")
    return run


def without_config(store: Store) -> str:
    """The beginning of an error message about a root that keeps no configuration, with the remedy."""
    return (
        f"{store.root} has no config.yaml: run `closelook run --root {store.root} --config CONFIG` with the config it "
        "was made with"
    )


@dataclass(frozen=True, eq=False)
class Run:
    """The results in a root. Methods that return a table take `form`: "pandas" (the default), "arrow" or "datasets".

    Of results that were computed under several settings, tables hold those that were written last.
    """

    store: Store
    ledger: Ledger

    def __repr__(self) -> str:
        return f"<Run {self.store.root}: {', '.join(self.tokenizers) or 'no model'}>"

    @cached_property
    def config(self) -> RunConfig | None:
        """The configuration that the root keeps; None if it keeps none."""
        return kept(self.store)

    @cached_property
    def tokenizers(self) -> dict[str, str]:
        """The name of the tokenizer under which the views of each model are stored, by model."""
        current = self.current("relevance")
        return {artifact.model: record["inputs"]["tokenizer"] for artifact, record in current if "inputs" in record}

    def scores(self, form: Form = "pandas", *, tested: bool = True, **picked: str) -> Any:
        """Scores: one row for each model, task, precision, method, variant and metric.

        With `tested`, scores that the report compares also have the ends of their 95 % interval, `low` and `high`, and
        the number of their `group`: 1 for methods than which no other is shown to be better. These columns are null for
        all other scores, such as those of random relevance, which the report compares by its exact chance. The ends are
        null, too, where the report's mean is over fewer samples (see `means`). `picked` chooses rows by `model`,
        `task`, `dtype` or `method`.
        """
        table = self._read("scores", SCORES, picked)
        return _in_form(self._with_tests(table) if tested else table, form)

    def means(self, form: Form = "pandas") -> Any:
        """Mean of each metric of evidence, and of areas of curves, by method, with interval and group.

        Means are over the samples that all compared methods explain.
        """
        from closelook.jobs import tested

        return _in_form(tested.means(self.tests), form)

    def differences(self, form: Form = "pandas") -> Any:
        """Differences between the means of every pair of methods, with intervals and p values for all pairs."""
        from closelook.jobs import tested

        return _in_form(tested.differences(self.tests), form)

    def groups(self, form: Form = "pandas") -> Any:
        """Groups of methods, the best first: none is shown to be better than a method of its group or one before it."""
        from closelook.jobs import tested

        return _in_form(tested.groups(self.tests), form)

    @cached_property
    def tests(self) -> list[Tested]:
        """The report's comparisons of methods. Raises UserError for a root that keeps no configuration."""
        from closelook.jobs.tested import tested

        if self.config is None:
            raise UserError(f"{without_config(self.store)}, to compare its methods")
        return tested(self.config, self.store)

    def scores_of_samples(self, form: Form = "pandas", **picked: str) -> Any:
        """Scores of every sample: one row for each model, task, precision, method, variant and sample."""
        return _in_form(self._read("scores", SCORES_SAMPLES, picked, folder=1), form)

    def relevance(self, form: Form = "pandas", *, tokens: bool = True, **picked: str) -> Any:
        """Relevance of every sample, with its tokens, text and evidence; `picked` chooses rows as for `scores`.

        If several rows of a user's own file have the same content, there is a row for each, with its `id`. Without
        `tokens` no tokenizer is loaded, and tokens are given by id alone (`input_ids`).

        Raises UserError if no relevance is picked, or a tokenizer cannot be loaded.
        """
        return _in_form(self._beside_texts(self._read("relevance", RELEVANCE, picked), tokens), form)

    def curves(self, form: Form = "pandas", **picked: str) -> Any:
        """Deletion and insertion curves: the models' predictions as tokens are removed."""
        return _in_form(self._read("curves", CURVES, picked), form)

    def samples(self, form: Form = "pandas", *, task: str | None = None) -> Any:
        """Samples as text, independent of any model."""
        return _in_form(self._read("benchmark", GENERIC, {"task": task}), form)

    def views(self, form: Form = "pandas", *, model: str | None = None, task: str | None = None) -> Any:
        """Samples as a model's tokenizer tokenises them."""
        tokenizer = None if model is None else self._tokenizer_of(model)
        views = self._read("views", VIEW, {"task": task, "tokenizer": tokenizer})
        return _in_form(views, form)

    def current(self, product: str) -> list[tuple[Artifact, dict[str, Any]]]:
        """(artifact, manifest) of every complete artifact of a product; of several in one place, the last written."""
        latest: dict[Artifact, tuple[Artifact, dict[str, Any]]] = {}
        for _, record in self.ledger.records(product):
            artifact = artifact_in(record)
            if not is_complete(record):
                continue
            before = latest.get(artifact.place)
            if before is None or before[1].get("written", "") <= record.get("written", ""):
                latest[artifact.place] = artifact, record
        return list(latest.values())

    def read_each(self, product: str, schema: pa.Schema, folder: int = 0) -> Iterator[tuple[CellKey, pa.Table]]:
        """(place, rows) of every complete artifact of a product; `folder` is the index of the artifact's folder."""
        for artifact, record in self.current(product):
            files = self._files(artifact, record, folder)
            if files:
                yield CellKey(*artifact.columns), self.store.read(files, schema)

    def _read(self, product: str, schema: pa.Schema, picked: Mapping[str, str | None], folder: int = 0) -> pa.Table:
        """The rows of a product with columns of their place, for the values in `picked` by column; None picks all."""
        current, root = self.current(product), self.store.root
        for name, value in picked.items():
            if name not in _KNOWN:
                raise UserError(f"{product} is picked by {', '.join(_KNOWN)}, not by {name!r}")
            if value is None or not current:
                continue
            known = sorted({getattr(artifact, name) for artifact, _ in current})
            if value not in known:
                raise UserError(f"{root} holds no {product} of {name} {value!r}{nearest(value, known)}")
            current = [item for item in current if getattr(item[0], name) == value]
        tables = []
        for artifact, record in current:
            files = self._files(artifact, record, folder)
            if files:
                tables.append(_placed(artifact, self.store.read(files, schema)))
        if not tables:
            raise UserError(f"{root} holds no complete {product}: `closelook status` shows what is missing")
        return pa.concat_tables(tables, promote_options="permissive")  # relevance of float64 models is float64

    def _with_tests(self, scores: pa.Table) -> pa.Table:
        """`scores` with the columns `low`, `high` and `group`, which are null where the report compares nothing."""
        from closelook.jobs.tested import KEY, of_scores

        compared = {} if self.config is None else of_scores(self.tests)
        keys = zip(*(scores[name].to_pylist() for name in KEY), strict=True)
        rows = [compared.get(key, {}) for key in keys]
        for name in ("low", "high"):
            same = zip(rows, scores["n"].to_pylist(), strict=True)
            ends = [row.get(name) if row.get("n") == n else None for row, n in same]
            scores = scores.append_column(name, pa.array(ends, pa.float64()))
        return scores.append_column("group", pa.array([row.get("group") for row in rows], pa.int64()))

    def _files(self, artifact: Artifact, record: Mapping[str, Any], folder: int) -> list[str]:
        """The paths of the artifact's files in its folder number `folder`. Raises UserError if one is damaged."""
        if damage := self.ledger.damage(artifact):
            raise UserError(damage)
        return [path for path in record["files"] if path.startswith(f"{artifact.folders[folder]}/")]

    def _beside_texts(self, relevance: pa.Table, tokens: bool) -> pa.Table:
        """Rows of relevance with columns of their views (`_OF_VIEWS`) and samples (`_OF_SAMPLES`) added."""
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
        """The text of every token, a list for each row of `ids`. Raises UserError if no tokenizer can be loaded."""
        models = models_kept(self.store)
        if not models:
            raise UserError(f"{without_config(self.store)}, or pass tokens=False")
        if model not in models:
            raise UserError(f"{self.store.root} keeps no model {model!r}{nearest(model, models)}; pass tokens=False")
        try:
            tokenizer = load_tokenizer(models[model])
        except (UserError, OSError) as error:
            raise UserError(f"{error}; or pass tokens=False") from None
        texts = Pieces(tokenizer)
        return pa.array([texts.of(row) for row in ids], pa.list_(pa.string()))

    def _tokenizer_of(self, model: str) -> str:
        """The name of the tokenizer of a model. Raises UserError for a model without relevance."""
        if model not in self.tokenizers:
            raise UserError(f"{self.store.root} holds no relevance of model {model!r}{nearest(model, self.tokenizers)}")
        return self.tokenizers[model]


def _each_row_of_the_file(table: pa.Table) -> pa.Table:
    """`table` with the users' `id` in place of `meta`; a sample that several rows of the file share is repeated."""
    metas = table["meta"].combine_chunks().dictionary_encode()
    by_meta = [ids_of(meta) for meta in metas.dictionary.to_pylist()]
    which = metas.indices.to_numpy()
    times = np.array([len(ids) for ids in by_meta])[which]
    ids = [name for at in which.tolist() for name in by_meta[at]]
    repeated = table if (times == 1).all() else table.take(pa.array(np.repeat(np.arange(len(table)), times)))
    return repeated.drop_columns(["meta"]).append_column("id", pa.array(ids, pa.string()))


def _placed(artifact: Artifact, table: pa.Table) -> pa.Table:
    """`table` with the columns of the artifact's place in front, unless the table has them already."""
    values = {name: getattr(artifact, name) for name in _KNOWN}
    missing = [name for name, value in values.items() if value and name not in table.column_names]
    for at, name in enumerate(missing):
        table = table.add_column(at, name, pa.repeat(pa.scalar(values[name]), table.num_rows))
    return table


def _in_form(table: pa.Table, form: str) -> Any:
    """`table` as pandas frame, Arrow table or data set. Raises UserError for another form or a missing package."""
    if form not in get_args(Form):
        raise UserError(f"no form {form!r}{nearest(form, get_args(Form))}")
    try:
        if form == "pandas":
            return table.to_pandas()
        if form == "datasets":
            from datasets import Dataset

            return Dataset(table)
    except ModuleNotFoundError as error:
        raise UserError(f"form {form!r} needs the package {error.name}: pip install {error.name}") from None
    return table
