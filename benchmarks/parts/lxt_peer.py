"""One explanation after the other by lxt's efficient path, timed, for `closelook bench lrp --lxt PYTHON`.

Runs in lxt's own environment (its model files need transformers 4), as a script that imports torch, transformers and
lxt alone. It reads one JSON object a line and answers each with one: first the model to build, then samples. lxt knows
torchvision's vision transformer too; where torchvision is missing, an empty stand-in lets the language models load.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
import types
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

import torch
import transformers


def main() -> None:
    order = json.loads(sys.stdin.readline())
    torch.set_num_threads(order["threads"])
    peer = Peer(order)
    answer({"versions": {name: version(name) for name in ("lxt", "transformers", "torch")}})
    for line in sys.stdin:
        sample = json.loads(line)
        variants = {"same_logits_s": peer.same_logits, "as_documented_s": peer.as_documented}
        answer({name: peer.timed(variant, sample) for name, variant in variants.items()})


def answer(record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)


class Peer:
    """A model of random weights under lxt's AttnLRP."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.device = order["device"]
        modeling = import_module("transformers.models.{family}.modeling_{family}".format(**order))
        stand_in_for_torchvision()
        from lxt.efficient import monkey_patch

        monkey_patch(modeling)
        config = transformers.AutoConfig.for_model(order["family"], **order["sizes"])
        auto = getattr(transformers, order["auto"])
        with torch.device(self.device):
            model = auto.from_config(config, attn_implementation="sdpa", torch_dtype=getattr(torch, order["dtype"]))
        self.model = model.eval().requires_grad_(False)
        self.options = order["options"]
        self.transform = model.get_submodule(order["transform"]) if order["transform"] else None

    def timed(self, variant: Callable[..., Any], sample: dict[str, Any]) -> float:
        """Seconds of forward, backward and aggregation; an untimed run before it warms caches up."""
        ids = torch.tensor([sample["input_ids"]], device=self.device)
        for _ in range(2):
            self.synchronise()
            start = time.perf_counter()
            variant(ids, sample)
            self.synchronise()
        return time.perf_counter() - start

    def as_documented(self, ids: torch.Tensor, sample: dict[str, Any]) -> torch.Tensor:
        """The model's own logits for all tokens, as in lxt's README."""
        embeds = self.model.get_input_embeddings()(ids).requires_grad_()
        logits = self.model(inputs_embeds=embeds, **self.options).logits[0, sample["position"]]
        return self.relevance(embeds, logits[sample["target_id"]] - logits[sample["foil_id"]])

    def same_logits(self, ids: torch.Tensor, sample: dict[str, Any]) -> torch.Tensor:
        """The two logits that are explained and no others, as ours does it."""
        embeds = self.model.get_input_embeddings()(ids).requires_grad_()
        hidden = self.model.base_model(inputs_embeds=embeds, **self.options).last_hidden_state
        state = hidden[0, sample["position"]]
        if self.transform is not None:
            state = self.transform(state)
        head = self.model.get_output_embeddings()
        pair = [sample["target_id"], sample["foil_id"]]
        logits = (head.weight[pair] @ state).float()
        if head.bias is not None:
            logits = logits + head.bias[pair]
        return self.relevance(embeds, logits[0] - logits[1])

    def relevance(self, embeds: torch.Tensor, explained: torch.Tensor) -> torch.Tensor:
        explained.backward()
        assert embeds.grad is not None
        return (embeds * embeds.grad).float().sum(-1)

    def synchronise(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()


def stand_in_for_torchvision() -> None:
    if importlib.util.find_spec("torchvision") is not None:
        return
    transformer: Any = types.ModuleType("torchvision.models.vision_transformer")
    models: Any = types.ModuleType("torchvision.models")
    transformer.nn, models.vision_transformer = torch.nn, transformer
    modules = {"torchvision": types.ModuleType("torchvision"), models.__name__: models}
    sys.modules.update(modules | {transformer.__name__: transformer})


if __name__ == "__main__":
    main()
