"""A script that times how Captum or lxt explain texts by their own functions, for `closelook bench peers`.

It runs in the environment of the peer and imports only torch, transformers, tokenizers, safetensors and the peer. It
reads a JSON object from stdin, with the model to build and the texts, and prints the answer as JSON. Seconds are
processor seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

Explain = Callable[[list[str], list[int]], list[list[float]]]


def main() -> None:
    """Build the model that the order describes, explain its texts in batches of each size, and print the answer.

    The relevance is that of the last size, the seconds are by size.
    """
    order = json.load(sys.stdin)
    torch.set_num_threads(1)
    explain = PEERS[order["peer"]](order)
    texts, targets = order["texts"], order["targets"]
    explain(texts[:1], targets[:1])  # warms up
    seconds: dict[int, float] = {}
    relevance: list[list[float]] = []
    for size in order["batches"]:
        relevance = []
        start = time.process_time()
        for first in range(0, len(texts), size):
            relevance += explain(texts[first : first + size], targets[first : first + size])
        seconds[size] = time.process_time() - start
    versions = {name: version(name) for name in (order["peer"], "transformers", "torch")}
    print(json.dumps({"versions": versions, "seconds": seconds, "relevance": relevance}))


def build(order: dict[str, Any]) -> Any:
    """The model, with the weights of the file that the order names. Raises RuntimeError if a weight is missing."""
    config = transformers.AutoConfig.for_model(order["family"], **order["sizes"])
    model = getattr(transformers, order["auto"]).from_config(config, attn_implementation="sdpa")
    lacking = set(model.load_state_dict(load_file(order["weights"]), strict=False).missing_keys)
    tied = {name for name in lacking if name.startswith("lm_head")}
    if lacking - tied:
        raise RuntimeError(f"weights are missing: {', '.join(sorted(lacking - tied))}")
    model.tie_weights()
    return model.eval().requires_grad_(False)


def read(order: dict[str, Any]) -> Any:
    """The tokenizer, from the folder that the order names."""
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(Path(order["tokenizer"]) / "tokenizer.json"))
    fast.pad_token = order["pad_token"]
    fast.eos_token = fast.eos_token or order["pad_token"]
    fast.padding_side = "right"
    return fast


class Loop:
    """The code that users write around a gradient method: a padded batch, its embeddings, and the logit to explain."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.model, self.tokenizer = build(order), read(order)
        self.labels = "num_labels" in order["sizes"]

    def inputs(self, texts: list[str], targets: list[int]) -> dict[str, Any]:
        """The inputs of `explained` for texts: embeddings with gradients, mask, last position and target."""
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
        """The relevance [B, T] as lists of numbers, without padding."""
        return [row[:length].tolist() for row, length in zip(relevance, mask.sum(1).tolist(), strict=True)]


def captum(order: dict[str, Any]) -> Explain:
    """Captum's InputXGradient, on the token embeddings."""
    from captum.attr import InputXGradient

    loop = Loop(order)
    method = InputXGradient(loop.explained)

    def explain(texts: list[str], targets: list[int]) -> list[list[float]]:
        inputs = loop.inputs(texts, targets)
        more = inputs["mask"], inputs["position"], inputs["target"]
        return loop.listed(method.attribute(inputs["embeds"], additional_forward_args=more).sum(-1), inputs["mask"])

    return explain


def lxt(order: dict[str, Any]) -> Explain:
    """AttnLRP by lxt's efficient path, as the example in its README computes it."""
    from lxt.efficient import monkey_patch

    monkey_patch(import_module("transformers.models.{family}.modeling_{family}".format(**order)))
    loop = Loop(order)

    def explain(texts: list[str], targets: list[int]) -> list[list[float]]:
        inputs = loop.inputs(texts, targets)
        loop.explained(**inputs).sum().backward()
        embeds = inputs["embeds"]
        return loop.listed((embeds * embeds.grad).detach().sum(-1), inputs["mask"])

    return explain


PEERS: dict[str, Callable[[dict[str, Any]], Explain]] = {"captum": captum, "lxt": lxt}

if __name__ == "__main__":
    main()
