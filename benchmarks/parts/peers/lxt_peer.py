"""A script that times explanations by lxt's efficient path, for `closelook bench lrp --lxt PYTHON`.

It runs in lxt's own environment, because lxt's model files need transformers 4, and imports only torch, transformers
and lxt. It reads one JSON object a line and answers each with a JSON line: first the model to build, then samples. lxt
imports torchvision's vision transformer; if torchvision is missing, empty modules take its place, so that lxt loads.
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
    """Builds the model that the first line describes, then times both variants on the sample of each further line."""
    order = json.loads(sys.stdin.readline())
    torch.set_num_threads(order["threads"])
    peer = Peer(order)
    answer({"versions": {name: version(name) for name in ("lxt", "transformers", "torch")}})
    for line in sys.stdin:
        sample = json.loads(line)
        variants = {"same_logits_s": peer.same_logits, "as_documented_s": peer.as_documented}
        answer({name: peer.timed(variant, sample) for name, variant in variants.items()})


def answer(record: dict[str, Any]) -> None:
    """Prints an answer as a line of JSON."""
    print(json.dumps(record), flush=True)


class Peer:
    """A model with random weights that lxt's AttnLRP explains."""

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
        """Seconds of a forward pass, a backward pass and the sum over embeddings, after an untimed run as warm-up."""
        ids = torch.tensor([sample["input_ids"]], device=self.device)
        for _ in range(2):
            self.synchronise()
            start = time.perf_counter()
            variant(ids, sample)
            self.synchronise()
        return time.perf_counter() - start

    def as_documented(self, ids: torch.Tensor, sample: dict[str, Any]) -> torch.Tensor:
        """The relevance of tokens, from all logits of the model at every position, as lxt's README does it."""
        embeds = self.model.get_input_embeddings()(ids).requires_grad_()
        logits = self.model(inputs_embeds=embeds, **self.options).logits[0, sample["position"]]
        return self.relevance(embeds, logits[sample["target_id"]] - logits[sample["foil_id"]])

    def same_logits(self, ids: torch.Tensor, sample: dict[str, Any]) -> torch.Tensor:
        """The relevance of tokens, from the logits of target and foil alone, as ours does it."""
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
        """The relevance [T] of tokens: embeddings times their gradients, summed over the embedding dimension."""
        explained.backward()
        assert embeds.grad is not None
        return (embeds * embeds.grad).float().sum(-1)

    def synchronise(self) -> None:
        """Waits until a GPU has computed all that was started."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()


def stand_in_for_torchvision() -> None:
    """Puts empty modules in the place of torchvision if it is not installed, so that lxt can be imported."""
    if importlib.util.find_spec("torchvision") is not None:
        return
    transformer: Any = types.ModuleType("torchvision.models.vision_transformer")
    models: Any = types.ModuleType("torchvision.models")
    transformer.nn, models.vision_transformer = torch.nn, transformer
    modules = {"torchvision": types.ModuleType("torchvision"), models.__name__: models}
    sys.modules.update(modules | {transformer.__name__: transformer})


if __name__ == "__main__":
    main()
