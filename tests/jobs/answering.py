"""A run about the sources of answers that is small enough for tests: random models, prompts of made-up words."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, PreTrainedTokenizerFast

from closelook.jobs.config import RunConfig
from closelook.jobs.stages.prepare import prepare
from closelook.jobs.store import Store
from closelook.lrp_core import random_model
from tests.jobs.inline import without_ray
from tests.stages import ablations, attribute

VOCABULARY = 60
METHODS = [
    "lrp",
    "gradient_l2",
    "attention_share",
    "contextcite",
    "leave_one_out",
    {"name": "shap_units", "method": "kernel_shap", "units": True},
    "random",
]
_SIZES = {
    "llama": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 24,
        "max_position_embeddings": 96,
    },
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0},
}


def answering_model(directory: Path, family: str = "llama", seed: int = 0) -> Path:
    """A model directory with weights, config and a tokenizer of white space."""
    view = random_model(AutoConfig.for_model(family, vocab_size=VOCABULARY, **_SIZES[family]), seed)
    view.model.save_pretrained(directory)
    numbers = {f"w{number}": number for number in range(VOCABULARY - 1)}
    words = Tokenizer(models.WordLevel(numbers | {".": VOCABULARY - 1}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, clean_up_tokenization_spaces=False).save_pretrained(directory)
    return directory


def log_rows(passages: Sequence[int] = (4, 10, 6, 9), seed: int = 0) -> list[dict]:
    """Prompts of so many passages of made-up words, with an answer of two sentences; the first passage is evidence."""
    draw = random.Random(seed)

    def words(least: int, most: int) -> str:
        return " ".join(f"w{draw.randrange(1, VOCABULARY - 1)}" for _ in range(draw.randint(least, most)))

    rows = []
    for number in passages:
        text, sources = words(1, 2), []
        for _ in range(number):
            passage = words(2, 4)
            sources.append([len(text) + 1, len(text) + 1 + len(passage)])
            text += f" {passage}"
        answer = f"{words(1, 2)} . {words(1, 2)} ."
        prompt = f"{text} {words(2, 3)}"
        rows.append({"prompt": prompt, "answer": answer, "sources": sources, "evidence": sources[0]})
    return rows


def run_of(folder: Path, model: Path, rows: list[dict], **changes) -> RunConfig:
    """A run of these rows as users' own samples, under `folder`."""
    file = folder / "rows.jsonl"
    if not file.exists():
        file.write_text("\n".join(map(json.dumps, rows)))
    settings = {
        "name": "answers",
        "root": str(folder / "root"),
        "tasks": {"sources": {"source": "samples", "path": str(file)}},
        "models": [{"name": model.name, "id": str(model)}],
        "methods": METHODS,
        "ablations": {"fit": 40, "judge": 20, "shapley": 30, "shown": 2},
        "report": {"resamples": 50, "samples": 1},
    }
    return RunConfig.model_validate(settings | changes)


def computed(config: RunConfig) -> Store:
    """The store of a run, with everything but its report, in this process."""
    store = Store(config.root)
    store.create()
    with without_ray():
        for stage in (prepare, attribute, ablations):
            summary = stage(config, store)
            assert not summary.failures, summary.failures
    return store
