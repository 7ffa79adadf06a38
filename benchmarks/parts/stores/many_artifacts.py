"""A root with very many artifacts, as complete runs leave it. Only files that `closelook status` reads have content."""

from __future__ import annotations

from tempfile import TemporaryDirectory

from benchmarks.parts.runs import Facts, enter_views, small_run
from benchmarks.parts.stores.listed_store import Objects
from benchmarks.parts.stores.object_store import BUCKET
from closelook.jobs.config import RunConfig
from closelook.jobs.methods import applicable
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.known import Known
from closelook.jobs.plan.node import Node, Run
from closelook.jobs.products.table import nodes
from closelook.jobs.store import Ledger, Store, Written
from closelook.jobs.store.files import written
from closelook.lrp_core.families import FAMILIES

TASKS = ("sva", "ra", "qa", "next_word")
ROWS, TOKENS = 64, 8  # samples of each task, and tokens of each sample
SHARD_BYTES, SHARD_ROWS = 60_000, 64
MODEL = "demo/gpt2"
_HASH = "0" * 64


def run_of(root: str, models: int) -> RunConfig:
    """The config of a run with `models` models of about 500 artifacts each.

    It asks for every method, faithfulness curves and relevance of heads.
    """
    known = [method.name for method in applicable(FAMILIES["gpt2"].capabilities)]
    again: list[str | Facts] = [{"name": f"{name}-2", "method": name} for name in known]
    entries = [{"name": f"model-{number:04d}", "id": MODEL} for number in range(models)]
    methods = [*known, *again[: 41 - len(known)]]
    return small_run(root, dict.fromkeys(TASKS), entries, methods=methods, perturb={"samples": 32}, heads={"sva": 32})


class _Recording(Store):
    """A store that keeps what is written in memory, by path. Only samples and their manifests reach the disk."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.objects: dict[str, bytes | int] = {}

    def write_bytes(self, path: str, data: bytes) -> Written:
        """Keeps the content in memory; samples and their manifests are also written to the disk."""
        self.objects[path] = data
        if path.startswith(("benchmark/", "manifest/views.")):
            super().write_bytes(path, data)
        return written(data)


def complete_root(models: int) -> tuple[RunConfig, Objects, int]:
    """The config of a complete run on s3://, the objects of its root by key, and the number of its artifacts."""
    with TemporaryDirectory() as folder:
        store, config = _Recording(folder), run_of(folder, models)
        for task in TASKS:
            enter_views(store, config.models[0], task, ROWS, TOKENS)
        run = Run(config, make_plan(config, store), Ledger(store))
        planned = [node for _, node in nodes(run) if node.artifact.product != "views"]
        for node in planned:
            _enter(store, run.ledger, node)
        store.create()
        Known.of(store).save()
    name = f"status-{models}"
    objects = {f"{name}/{path}": content for path, content in store.objects.items()}
    return run_of(f"s3://{BUCKET}/{name}", models), objects, len(planned)


def _enter(store: _Recording, ledger: Ledger, node: Node) -> None:
    """Commits an artifact to the ledger, with files and a record as a run leaves them.

    Contents of shards are only sizes.
    """
    artifact = node.artifact
    names = ["index.html"] if artifact.product == "report" else [artifact.shard("00000-0123abcd")]
    files = {}
    for folder in artifact.folders:
        for name in names:
            files[f"{folder}/{name}"] = Written(SHARD_BYTES, _HASH, SHARD_ROWS)
            store.objects[f"{folder}/{name}"] = SHARD_BYTES
    record = {
        "shards": names,
        "model": {"identity": "sha256:" + _HASH, "id": MODEL},
        "rejects": {},
        "rows": node.samples,
        "explained": node.samples,
        "fallbacks": {"batches_halved": 0},
        "examples": {},
        "again": [],
        "inputs": {"tokenizer": "bpe-01234567", "sha256": _HASH},
    }
    ledger.commit(artifact, record, files=files, made_of=node.sources)
