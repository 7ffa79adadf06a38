"""Texts explained by a peer's own calls, timed, for `closelook bench peers`: Captum, Inseq or lxt.

Runs in the peer's own environment, as a script that imports torch, transformers, tokenizers, safetensors and the peer
alone. It reads one JSON object a line and answers each with one: first the model to build, then texts in batches.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

Explain = Callable[[list[str], list[int]], list[list[float]]]


def main() -> None:
    order = json.loads(sys.stdin.readline())
    torch.set_num_threads(order["threads"])
    explain = PEERS[order["peer"]](order)
    answer({"versions": {name: _version(name) for name in (order["peer"], "transformers", "torch")}})
    for line in sys.stdin:
        asked = json.loads(line)
        size, relevance = asked["batch"], []
        start = time.perf_counter()
        for first in range(0, len(asked["texts"]), size):
            some = slice(first, first + size)
            relevance += explain(asked["texts"][some], asked["targets"][some])
        answer({"seconds": time.perf_counter() - start, "relevance": relevance})


def answer(record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def build(order: dict[str, Any]) -> Any:
    """The model with the weights of the order's file. Raises RuntimeError where a weight is missing."""
    config = transformers.AutoConfig.for_model(order["family"], **order["sizes"])
    model = getattr(transformers, order["auto"]).from_config(config, attn_implementation="sdpa")
    lacking = set(model.load_state_dict(load_file(order["weights"]), strict=False).missing_keys)
    tied = {name for name in lacking if name.startswith("lm_head")}
    if lacking - tied:
        raise RuntimeError(f"weights are missing: {', '.join(sorted(lacking - tied))}")
    model.tie_weights()
    return model.eval().requires_grad_(False)


def read(order: dict[str, Any]) -> Any:
    """The tokenizer of the order's folder."""
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(Path(order["tokenizer"]) / "tokenizer.json"))
    fast.pad_token = order["pad_token"]
    fast.eos_token = fast.eos_token or order["pad_token"]
    fast.padding_side = "right"
    return fast


class Loop:
    """Gradients of the explained logits by the embeddings of a padded batch, as users write it."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.model, self.tokenizer = build(order), read(order)
        self.labels = order["labels"]

    def inputs(self, texts: list[str], targets: list[int]) -> dict[str, Any]:
        encoded = self.tokenizer(texts, return_tensors="pt", padding=True)
        mask = encoded["attention_mask"]
        embeds = self.model.get_input_embeddings()(encoded["input_ids"]).detach().requires_grad_()
        return {"embeds": embeds, "mask": mask, "position": mask.sum(1) - 1, "target": torch.tensor(targets)}

    def explained(self, embeds: Any, mask: Any, position: Any, target: Any) -> Any:
        """The target's logit of each text [B]."""
        logits = self.model(inputs_embeds=embeds, attention_mask=mask).logits
        rows = torch.arange(len(target))
        return logits[rows, target] if self.labels else logits[rows, position, target]

    def listed(self, relevance: Any, mask: Any) -> list[list[float]]:
        """Relevance [B, T] without padding."""
        return [row[:length].tolist() for row, length in zip(relevance, mask.sum(1).tolist(), strict=True)]


def captum(order: dict[str, Any]) -> Explain:
    """InputXGradient on the token embeddings."""
    from captum.attr import InputXGradient

    loop = Loop(order)
    method = InputXGradient(loop.explained)

    def explain(texts: list[str], targets: list[int]) -> list[list[float]]:
        inputs = loop.inputs(texts, targets)
        more = inputs["mask"], inputs["position"], inputs["target"]
        return loop.listed(method.attribute(inputs["embeds"], additional_forward_args=more).sum(-1), inputs["mask"])

    return explain


def lxt(order: dict[str, Any]) -> Explain:
    """AttnLRP by lxt's efficient path, in the loop of its README."""
    sys.path.insert(0, str(Path(__file__).parent))  # an isolated interpreter does not look there
    from lxt_peer import stand_in_for_torchvision

    stand_in_for_torchvision()
    from lxt.efficient import monkey_patch

    monkey_patch(import_module("transformers.models.{family}.modeling_{family}".format(**order)))
    loop = Loop(order)

    def explain(texts: list[str], targets: list[int]) -> list[list[float]]:
        inputs = loop.inputs(texts, targets)
        loop.explained(**inputs).sum().backward()
        embeds = inputs["embeds"]
        return loop.listed((embeds * embeds.grad).detach().sum(-1), inputs["mask"])

    return explain


def inseq(order: dict[str, Any]) -> Explain:
    """Inseq's input_x_gradient of the next token, by its `attribute`."""
    import inseq as package

    model, tokenizer = build(order), read(order)
    wrapped = package.load_model(model, "input_x_gradient", tokenizer=tokenizer)

    def explain(texts: list[str], targets: list[int]) -> list[list[float]]:
        words = [tokenizer.decode([target]) for target in targets]
        generated = [f"{text}{word}" for text, word in zip(texts, words, strict=True)]
        out = wrapped.attribute(texts, generated, attributed_fn="logit", batch_size=len(texts), show_progress=False)
        return list(_first_steps(out.sequence_attributions))

    return explain


def _first_steps(sequences: Any) -> Iterator[list[float]]:
    """The relevance of the tokens read before the first that was generated, summed over embeddings."""
    for sequence in sequences:
        step = sequence.target_attributions[:, 0]
        step = step.sum(-1) if step.ndim == 2 else step
        yield step[: sequence.attr_pos_start].tolist()


PEERS: dict[str, Callable[[dict[str, Any]], Explain]] = {"captum": captum, "inseq": inseq, "lxt": lxt}

if __name__ == "__main__":
    main()
