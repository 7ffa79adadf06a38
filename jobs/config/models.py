"""Models and methods as a configuration names them."""

from __future__ import annotations

import re
from types import NoneType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_serializer, model_validator

from jobs.config.base import AtLeast1, Frozen, Names

Dtype = Literal["float16", "bfloat16", "float32", "float64"]


def _name(value: str) -> str:
    """`value` unchanged. Raises ValueError for one that could lead out of the store: names become its folders."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        raise ValueError(
            f"{value!r} may hold only letters, digits, '.', '_' and '-', and starts with a letter or digit"
        )
    return value


Name = Annotated[str, AfterValidator(_name)]
Device = Annotated[str, BeforeValidator(str)]  # a GPU by its number, or cpu
Candidates = Annotated[
    Names, BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]  # tried in order, the first that loads is used


class MethodConfig(Frozen):
    """A method of the run: a record under a name, options as further keys.

    In YAML `lrp`, `{integrated_gradients: {steps: 50}}`, or `{name: ig25, method: integrated_gradients, steps: 25}`.
    """

    model_config = ConfigDict(extra="allow")
    name: Name
    method: str

    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, raw: Any) -> Any:
        """{name, method, option: value} of any spelling of a method; invalid spellings are left to pydantic."""
        if isinstance(raw, str):
            return {"name": raw, "method": raw}
        if not isinstance(raw, dict):
            return raw
        if "name" in raw or "method" in raw:
            name = raw.get("name", raw.get("method"))
            return {"name": name, "method": name} | raw
        method, options = next(iter(raw.items()), (None, None))
        if len(raw) != 1 or not isinstance(options, dict | NoneType):
            raise ValueError("a method is NAME, {NAME: {option: value}} or {name: ..., method: NAME, option: value}")
        return {"name": method, **(options or {}), "method": method}  # an option may rename it, never change the method

    @model_serializer
    def _shortest(self) -> Any:
        """The method in the shortest form that a configuration takes."""
        if self.name != self.method:
            return {"name": self.name, "method": self.method, **self.options}
        return {self.name: self.options} if self.options else self.name

    @property
    def is_bare(self) -> bool:
        """True for a name alone, without options."""
        return self.name == self.method and not self.options

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class ModelConfig(Frozen):
    """A model: its source, its precisions, and its demands on the cluster."""

    name: Name
    """what tables and folders call it"""
    id: str
    """hub id, local directory, demo/<name>, or random/<geometry>"""
    revision: str | None = None
    """of the model on the hub"""
    tokenizer: Candidates = ()
    """empty: the model's own"""
    decoder_tokenizer: Candidates = ()
    """of an encoder-decoder whose answers another tokenizer writes than reads texts"""
    dtype: Dtype = "float32"
    """the precision of its weights"""
    dtypes: dict[str, tuple[Dtype, ...]] = Field(default_factory=dict)
    """task -> precisions, in place of `dtype`"""
    seed_of: str | None = None
    """a model of the run that was trained alike from another seed: its report says what tests find here, too"""
    tasks: Names | None = None
    """null: all whose answers are of the kind that the model gives"""
    classes: Names | None = Field(default=None, min_length=1)
    """Of a classifier, its labels in the order of its outputs, where its config.json does not name them as the tasks
    do. Of random weights, the labels to make; one alone is a score."""
    methods: tuple[MethodConfig, ...] | None = None
    """in place of the run's; a bare name may be one of the run's names"""
    family: Literal["generic"] | None = None
    """generic: run as a whole, by methods that need no description of it"""
    shape: str | None = None
    """a geometry, such as bert-base: what `plan` takes it for while it is out of reach"""
    adapter: str | None = None
    """a LoRA adapter: its folder or hub id"""
    merge: bool = True
    """the adapter into the weights, rather than beside them"""
    attn: Literal["sdpa", "eager"] = "sdpa"
    """which implementation of attention; rules and relevance are the same"""
    gpus: float = Field(default=1, gt=0)
    """share of each worker: whole, several or a fraction"""
    workers: tuple[int, int] = (1, 1)
    """fewest and most"""
    labels: dict[str, str] = Field(default_factory=dict)
    """node labels the workers need"""
    max_memory: dict[Device, str] | None = None
    """device -> limit ("12GiB"); what does not fit is offloaded"""
    offload: bool = False
    """spill to a scratch folder of the node what the CPU limit does not hold"""
    checkpoint: bool = False
    """recompute each block in the backward pass (always on when weights are offloaded)"""
    token_budget: AtLeast1 | None = None
    """in place of the run's"""

    @model_validator(mode="after")
    def _bounds(self) -> ModelConfig:
        if not 1 <= self.workers[0] <= self.workers[1]:
            raise ValueError(f"workers are [fewest, most] with 1 <= fewest <= most, not {list(self.workers)}")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(f"gpus is a fraction below 1 or a whole number, not {self.gpus}")
        if self.adapter is not None and (self.max_memory is not None or self.id.startswith("random/")):
            raise ValueError("an adapter needs a model with weights of its own, in memory: leave out max_memory")
        if self.gpus > 1 and self.max_memory is None:
            raise ValueError("a worker with several gpus needs max_memory, a limit for each of them")
        return self

    def dtypes_for(self, task: str) -> tuple[Dtype, ...]:
        return self.dtypes.get(task, (self.dtype,))
