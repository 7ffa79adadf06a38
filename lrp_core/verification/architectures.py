"""Tiny random models of every architecture in transformers' auto classes, and checks of the rules on each of them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from itertools import cycle, islice
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import EncoderDecoderConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from closelook.lrp_core.device.precision import unrounded
from closelook.lrp_core.operations.embeddings import ScaledEmbeddings
from closelook.lrp_core.operations.explain import Explanation, explain_operations
from closelook.lrp_core.operations.marks import INSERTED
from closelook.lrp_core.records.types import UnsupportedModel
from closelook.lrp_core.rules import ATTNLRP, LRP, PLAIN
from closelook.lrp_core.verification.recipes import NEEDS, OVERRIDES, SIZES
from closelook.lrp_core.verification.stock import without_biases

#: By the kind of head: the name of transformers' auto mapping.
HEADS = {
    "causal": "CAUSAL_LM",
    "masked": "MASKED_LM",
    "encoder-decoder": "SEQ_TO_SEQ_CAUSAL_LM",
    "sequence": "SEQUENCE_CLASSIFICATION",
    "token": "TOKEN_CLASSIFICATION",
    "answer": "QUESTION_ANSWERING",
    "choice": "MULTIPLE_CHOICE",
    "image": "IMAGE_CLASSIFICATION",
}
#: By the claim: how far the two numbers that it compares may be apart, relative to the larger one.
TOLERANCES = {"logits": 0.0, "sum": 1e-6, "derivative": 1e-5, "padding": 1e-9}
LENGTHS = (7, 4)  # the numbers of tokens of the samples
TIMEOUT_S = 120
STEPS = (2.0**-13, 2.0**-17)  # of difference quotients, relative to the embeddings: one may cross a kink


@dataclass(frozen=True)
class Architecture:
    """A model class of transformers with a kind of head."""

    head: str
    name: str
    config_class: type[PreTrainedConfig]


@dataclass
class Checked:
    """An architecture that was checked: the gap of each claim, or the reason why there is none."""

    architecture: Architecture
    built: bool = False
    gaps: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    wall_s: float = 0.0

    @property
    def passed(self) -> bool:
        """True if every claim that applies (is not NaN) was compared and holds."""
        return not any(self.gaps.get(claim, torch.inf) > bound for claim, bound in TOLERANCES.items())

    @property
    def outcome(self) -> str:
        """The reason in one line why it does not pass; empty if it passes."""
        if self.passed:
            return ""
        far = [claim for claim, bound in TOLERANCES.items() if self.gaps.get(claim, 0) > bound]
        reason = self.reason or f"differs: {', '.join(f'{claim} by {self.gaps[claim]:.0e}' for claim in far)}"
        return " ".join(reason.replace("|", "/").split())[:200]


def architectures(heads: Iterable[str] = HEADS) -> list[Architecture]:
    """The model classes of transformers' auto mappings for these kinds of heads."""
    found: dict[str, Architecture] = {}
    for head in heads:
        mapping = getattr(modeling_auto, f"MODEL_FOR_{HEADS[head]}_MAPPING_NAMES")
        for model_type, names in mapping.items():
            for name in (names,) if isinstance(names, str) else names:
                found.setdefault(name, Architecture(head, name, CONFIG_MAPPING[model_type]))
    return list(found.values())


def tiny_config(config_class: type[PreTrainedConfig]) -> PreTrainedConfig:
    """A config of tiny sizes, with every kind of layer that the default config has."""
    default = config_class()
    names = {known.name for known in fields(config_class)}
    sizes: dict[str, Any] = {name: size for name, size in SIZES.items() if name in names}
    for name in names & set(NEEDS):
        sizes |= NEEDS[name]
    kinds = {
        name: list(dict.fromkeys(getattr(default, name) or ())) for name in names & {"layer_types", "mlp_layer_types"}
    }
    number = max([2, *map(len, kinds.values())])
    for name, several in kinds.items():
        if several:
            sizes |= {"num_hidden_layers": number, name: list(islice(cycle(several), number))}
    for name in config_class.sub_configs:
        if isinstance(inner := getattr(default, name, None), PreTrainedConfig):
            sizes[name] = tiny_config(type(inner))
    if config_class is EncoderDecoderConfig:  # its default decoder reads nothing of the encoder
        sizes["decoder"].update({"is_decoder": True, "add_cross_attention": True})
    return config_class(**(sizes | OVERRIDES.get(config_class.__name__, {})))


def tiny_model(architecture: Architecture) -> PreTrainedModel:
    """A model of this architecture in float64, with random weights and biases."""
    torch.manual_seed(0)
    model_class = getattr(transformers, architecture.name)
    config = tiny_config(model_class.config_class or architecture.config_class)
    config.use_cache = False
    config._attn_implementation = config._experts_implementation = "eager"
    model: PreTrainedModel = model_class(config).double().eval()
    with torch.no_grad():
        for parameter in model.requires_grad_(False).parameters():
            spread = 0.8 / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 0.1
            parameter.copy_(spread * torch.randn_like(parameter) + (parameter if parameter.dim() == 1 else 0))
    return model


class Samples:
    """Samples for a model of an architecture, and the number that is explained of each."""

    def __init__(self, architecture: Architecture, model: PreTrainedModel) -> None:
        self.head, self.model = architecture.head, model
        if self.head in (
            "causal",
            "masked",
            "encoder-decoder",
        ):  # BART is in two mappings; some audio models are causal
            decodes = model.config.is_encoder_decoder
            self.head = "encoder-decoder" if decodes else self.head.replace("encoder-decoder", "causal")
        self.ids = torch.randint(10, 90, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            logits = [self.logits(model(**self.inputs([row])), [row]) for row in range(len(LENGTHS))]
        self.targets = [int(each[0].abs().argmax()) for each in logits]

    def inputs(self, rows: list[int], copies: int = 1) -> dict[str, Tensor]:
        """Inputs of the model for some rows, padded on the right, each `copies` times."""
        if self.head == "image":
            pixels = torch.randn(len(LENGTHS), 3, 16, 16, generator=torch.Generator().manual_seed(0))
            return {"pixel_values": pixels[rows].double()}
        length = max(LENGTHS[row] for row in rows)
        mask = torch.tensor([[at < LENGTHS[row] for at in range(length)] for row in rows]).long()
        pad = getattr(self.model.config.get_text_config(), "pad_token_id", None) or 0
        ids = torch.where(mask == 1, self.ids[rows, :length], pad)
        inputs = {"input_ids": ids, "attention_mask": mask}
        if self.head == "choice":
            inputs = {name: torch.stack([value, value.flip(1)], 1) for name, value in inputs.items()}
        if self.head == "encoder-decoder":
            inputs["decoder_input_ids"] = torch.tensor([[1, 17, 29]]).repeat(len(rows), 1)
        return {name: value.repeat_interleave(copies, 0) for name, value in inputs.items()}

    def logits(self, output: Any, rows: list[int]) -> Tensor:
        """The logits [R, V] of each row at its readout position, from the output of the model."""
        logits = output.start_logits if self.head == "answer" else output.logits
        if self.head == "encoder-decoder":
            return logits[:, -1]
        if self.head in ("causal", "masked", "token"):
            positions = [LENGTHS[row] - 1 if self.head == "causal" else LENGTHS[row] // 2 for row in rows]
            return logits[range(len(rows)), positions]
        return logits

    def numbers(self, output: Any, rows: list[int]) -> Tensor:
        """The explained number of each row: its largest logit."""
        logits = self.logits(output, rows)
        return torch.stack([logits[at, self.targets[row]] for at, row in enumerate(rows)])

    def explained(self, rows: list[int], composites: Any = (LRP, ATTNLRP, PLAIN)) -> Explanation:
        """Relevance of some rows by the rules on operations."""
        return explain_operations(self.model, self.inputs(rows), lambda output: self.numbers(output, rows), composites)

    def quotient(self, row: int, step: float) -> Tensor:
        """By the token of a row: the difference quotient of the stock model's number, its embeddings times 1 ± step."""
        inputs = self.inputs([row], copies=2 * LENGTHS[row])
        ids = inputs["input_ids"]
        factors = torch.ones(ids.shape, dtype=torch.float64)
        for at in range(LENGTHS[row]):
            factors[2 * at, ..., at] += step
            factors[2 * at + 1, ..., at] -= step

        with torch.no_grad(), ScaledEmbeddings(self.model, {"input_ids": ids}, {"input_ids": factors}):
            numbers = self.numbers(self.model(**inputs), [row] * len(ids))
        return (numbers[::2] - numbers[1::2]) / (2 * step)


def compare(samples: Samples) -> Iterator[tuple[str, float]]:
    """Yield (claim, gap between its two numbers)."""
    model = samples.model
    together, alone = samples.explained([0, 1]), [samples.explained([row]) for row in (0, 1)]
    with torch.no_grad():
        stock = samples.numbers(model(**samples.inputs([0])), [0])
    yield "logits", 0.0 if torch.equal(alone[0].numbers, stock) else distance(alone[0].numbers, stock)
    if samples.head == "image":
        yield "derivative", torch.nan
    else:
        words = alone[0].relevance[PLAIN]["input_ids"].partial[0]
        yield "derivative", min(distance(words, samples.quotient(0, step)) for step in STEPS)
    gaps, single_streams = [], []
    for composite in (LRP, ATTNLRP):
        for row, single in enumerate(alone):
            padded = together.relevance[composite]
            for name, relevance in single.relevance[composite].items():
                expected = relevance.full[0]
                single_streams.append(relevance)
                if name != INSERTED:  # of which there may be fewer beside a longer text
                    gaps.append(distance(padded[name].full[row][..., : expected.shape[-1]], expected))
    with torch.no_grad():
        numbers = samples.numbers(model(**samples.inputs([0, 1])), [0, 1])
    depends = distance(numbers, torch.cat([each.numbers for each in alone])) > TOLERANCES["padding"]
    finite = all(relevance.full.isfinite().all() for relevance in single_streams)
    yield "padding", torch.nan if depends and finite else max(gaps)
    with without_biases(model):
        of_lrp = samples.explained([0], [LRP])
    total = torch.stack([relevance.full.sum() for relevance in of_lrp.relevance[LRP].values()]).sum()
    yield "sum", distance(total, of_lrp.numbers[0])


def distance(a: Tensor, b: Tensor) -> float:
    """The largest difference between two tensors, relative to the largest number; infinite if one is not finite."""
    if not (a.isfinite().all() and b.isfinite().all()):
        return torch.inf
    return float((a - b).abs().max() / torch.maximum(a.abs().max(), b.abs().max()).clamp_min(1e-300))


def check(architecture: Architecture) -> Checked:
    """Build an architecture and compare the numbers of every claim; what goes wrong is the result's `reason`."""
    checked, begun, before = Checked(architecture), perf_counter(), torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        with unrounded(torch.float64):
            samples = Samples(architecture, tiny_model(architecture))
            checked.built = True
            for claim, gap in compare(samples):
                checked.gaps[claim] = gap
    except UnsupportedModel as error:
        checked.reason = f"refused: {error}"
    except Exception as error:
        checked.reason = f"{type(error).__name__}: {error}"
    finally:
        torch.set_default_dtype(before)
    checked.wall_s = perf_counter() - begun
    return checked


def check_all(
    chosen: Iterable[Architecture],
    timeout_s: float = TIMEOUT_S,
    check: Callable[[Architecture], Checked] = check,
) -> Iterator[Checked]:
    """Check architectures, each in a process of its own: a crash, or the timeout, ends that one alone."""
    context = multiprocessing.get_context("forkserver")  # a fork of this process would wait for its threads forever
    context.set_forkserver_preload([__name__])
    for architecture in chosen:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_send, args=(theirs, check, architecture))
        process.start()
        theirs.close()
        checked = Checked(architecture, reason=f"no result within {timeout_s:.0f} s", wall_s=timeout_s)
        try:
            checked = ours.recv() if ours.poll(timeout_s) else checked
        except EOFError:
            checked.reason = "the process crashed"
        process.kill()
        process.join()
        yield checked


def _send(to: Connection, check: Callable[[Architecture], Checked], architecture: Architecture) -> None:
    to.send(check(architecture))


def as_table(results: Iterable[Checked]) -> str:
    """A Markdown table of results, with a line that counts them."""
    results = list(results)
    built, passed = sum(each.built for each in results), sum(each.passed for each in results)
    lines = [f"{passed} of {len(results)} architectures pass; {len(results) - built} cannot be built.", ""]
    lines += [f"| model | head | {' | '.join(TOLERANCES)} | seconds | verdict |", "|---" * (len(TOLERANCES) + 4) + "|"]
    for each in results:
        gaps = " | ".join(f"{each.gaps[claim]:.0e}" if claim in each.gaps else "" for claim in TOLERANCES)
        verdict = each.outcome or "passes"
        lines.append(
            f"| {each.architecture.name} | {each.architecture.head} | {gaps} | {each.wall_s:.1f} | {verdict} |"
        )
    return "\n".join(lines) + "\n"
