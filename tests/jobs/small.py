"""A run small enough for every test: a random one-layer model, a few random samples, no sources to prepare."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, PreTrainedTokenizerFast

from closelook.evaluation.schema import VIEW
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan, schema_of
from closelook.jobs.plan.models import load_tokenizer, tokenizer_key
from closelook.jobs.store import Ledger, Store
from closelook.jobs.store.artifacts import views_of
from closelook.lrp_core import random_model
from closelook.lrp_core.families import FAMILIES
from closelook.lrp_core.families.generic import GENERIC
from tests.patience import PATIENCE_S

VOCABULARY = 60
REPOSITORY = Path(__file__).parents[2]


def save_model(directory: Path, family: str = "gpt2", seed: int = 0) -> Path:
    """A model directory with weights, config and a whitespace tokenizer."""
    sizes = {
        "gpt2": {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 32, "bos_token_id": 1, "eos_token_id": 2},
        "bert": {
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "hidden_size": 8,
            "intermediate_size": 16,
            "max_position_embeddings": 32,
        },
        "mixtral": {
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "hidden_size": 8,
            "intermediate_size": 12,
            "num_local_experts": 3,
            "num_experts_per_tok": 1,
            "max_position_embeddings": 32,
        },
        "bloom": {"n_layer": 1, "n_head": 2, "hidden_size": 8},
    }[family]
    kind = None if family in FAMILIES else GENERIC
    view = random_model(AutoConfig.for_model(family, vocab_size=VOCABULARY, **sizes), seed, family=kind)
    view.model.save_pretrained(directory)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, mask_token="w3").save_pretrained(directory)
    return directory


def config_of(root: str | Path, *models: Path, **changes) -> RunConfig:
    """A run of one task over `models`, named as their directories."""
    settings = {
        "name": "small",
        "root": str(root),
        "tasks": {"sva": {"source": "demo"}},
        "models": [{"name": model.name, "id": str(model)} for model in models],
        "methods": ["attnlrp", "gradient_x_input", "random"],
        "token_budget": 64,
        "shard_rows": 8,
        "ray": {"no_progress_timeout_s": 600},
    }
    return RunConfig.model_validate(settings | changes)


def rows_of(n: int, seed: int = 0) -> list[dict]:
    """View rows of 3 to 12 random tokens; the first is evidence."""
    draw = random.Random(seed)
    rows = []
    for i in range(n):
        length = draw.randint(3, 12)
        rows.append(
            {
                "sample_id": f"s{i:03d}",
                "input_ids": [draw.randrange(4, VOCABULARY) for _ in range(length)],
                "position": length - 1,
                "target_id": draw.randrange(4, VOCABULARY),
                "foil_id": draw.randrange(4, VOCABULARY),
                "evidence_mask": [i == 0 for i in range(length)],
                "special_mask": [False] * length,
                "scope_mask": None,
                "length": length,
            }
        )
    return rows


def prepared(config: RunConfig, rows: list[dict]) -> Store:
    """A store that holds `rows` as the views of every task and model of the run."""
    store = Store(config.root)
    store.create()
    for model in config.models:
        key = tokenizer_key(load_tokenizer(model))
        for task in config.tasks:
            table = pa.Table.from_pylist(rows, schema=VIEW)
            views = views_of(key, task)
            store.write_shard(f"{views.folder}/part-0.parquet", table, VIEW)
            Ledger(store).commit(views, {"shards": ["part-0.parquet"], "rows": len(rows)})
    return store


def relevance_of(config: RunConfig, store: Store) -> dict[str, pa.Table]:
    """Every complete cell's rows, sorted."""
    collected = {}
    for planned in make_plan(config, store).cells():
        cell = planned.artifact
        table = Ledger(store).read(cell, schema_of(cell.product, cell.dtype))
        order = [name for name in ("sample_id", "explanation", "embedding", "pooling") if name in table.column_names]
        collected[str(cell)] = table.sort_by([(name, "ascending") for name in order]).combine_chunks()
    return collected


def closelook(*arguments: str, module: str = "closelook", **environment: str) -> subprocess.Popen[str]:
    """The command in a process group of its own.

    It starts a Ray of its own, or, as the module `tests.jobs.inline`, does without: `Forked` is that at less cost.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=inherited | {"PYTHONPATH": str(REPOSITORY / "src")} | environment,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) once it has ended; one that does not end is killed, and is an error."""
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, out, err
