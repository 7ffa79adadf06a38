"""The entries `models:` and `methods:` of a configuration, and the composites that options of methods name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import NoneType
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_serializer,
    model_validator,
)

from closelook.jobs.config.base import AtLeast1, Frozen, Names, Some
from closelook.jobs.methods import METHODS
from closelook.lrp_core.records.option import Option
from closelook.lrp_core.records.types import UserError, nearest
from closelook.lrp_core.rules.composite import UnknownComposite, named_in

Dtype = Literal["float16", "bfloat16", "float32", "float64"]
KEY = "composites"  # the config key, which `Option.named_in` of options that take a composite refers to


def _name(value: str) -> str:
    """`value` unchanged. Raises ValueError if it cannot be the name of a folder, which names of the config become."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        raise ValueError(
            f"the name {value!r} may contain only letters, digits, '.', '_' and '-', and begins with a letter or digit"
        )
    return value


Name = Annotated[str, AfterValidator(_name)]
Device = Annotated[str, BeforeValidator(str)]  # the number of a GPU, or "cpu"
Candidates = Annotated[
    Names, BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]  # tried in order, the first that loads is used


class MethodConfig(Frozen):
    """A method of the run: its name there, the method that it is, and its options as further keys.

    In YAML `lrp`, `{integrated_gradients: {steps: 50}}`, or `{name: ig25, method: integrated_gradients, steps: 25}`.
    """

    model_config = ConfigDict(extra="allow")
    name: Name
    method: str

    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, raw: Any) -> Any:
        """{name, method, option: value} from any form of an entry. Raises ValueError for a mapping of another form."""
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
        return {"name": method, **(options or {}), "method": method}  # options may set `name`, not `method`

    @model_serializer
    def _shortest(self) -> Any:
        """The entry in the shortest form that a configuration accepts."""
        if self.name != self.method:
            return {"name": self.name, "method": self.method, **self.options}
        return {self.name: self.options} if self.options else self.name

    @property
    def is_bare(self) -> bool:
        """True if the entry is a name alone, without options."""
        return self.name == self.method and not self.options

    @property
    def options(self) -> dict[str, Any]:
        """The options of the entry by name: all its keys but `name` and `method`."""
        return dict(self.model_extra or {})


class ModelConfig(Frozen):
    """A model of the run: its source, its precisions, and its demands on the cluster."""

    name: Name
    """name of the model in tables and folders"""
    id: str
    """hub id, local directory, demo/<name>, or random/<geometry>"""
    revision: str | None = None
    """revision of the model on the hub"""
    tokenizer: Candidates = ()
    """tokenizers by path or hub id, of which the first that loads is used; empty: the model's own"""
    decoder_tokenizer: Candidates = ()
    """for an encoder-decoder whose decoder has another tokenizer: that tokenizer, as `tokenizer`"""
    dtype: Dtype = "float32"
    """precision of its weights"""
    dtypes: dict[str, Some[Dtype]] = Field(default_factory=dict)
    """task -> precisions, in place of `dtype`"""
    seed_of: str | None = None
    """another model of the run that differs only in its training seed; the report compares the results of both"""
    tasks: Names | None = None
    """tasks of the model; null: all whose output (token, label or score) is the model's"""
    classes: Names | None = Field(default=None, min_length=1)
    """For a classifier whose config.json does not name its labels as the tasks do: its labels, in the order of its
    outputs. For random weights: the labels to make; a single one makes a regressor."""
    methods: tuple[MethodConfig, ...] | None = None
    """methods of this model, in place of the run's; a bare name may be that of a method of the run"""
    family: Literal["generic"] | None = None
    """generic: treat the model as a black box, with methods that need no description of its family"""
    adapter: str | None = None
    """LoRA adapter: its folder or hub id"""
    merge: bool = True
    """true: merge the adapter into the weights; false: run it beside them"""
    attn: Literal["sdpa", "eager"] = "sdpa"
    """implementation of attention; rules and relevance are the same"""
    gpus: float = Field(default=1, gt=0)
    """GPUs of each worker: a fraction below 1, or a whole number"""
    workers: tuple[int, int] = (1, 1)
    """fewest and most workers"""
    labels: dict[str, str] = Field(default_factory=dict)
    """labels that the nodes of its workers must have"""
    max_memory: dict[Device, str] | None = None
    """device -> memory limit ("12GiB"); weights that do not fit are offloaded"""
    offload: bool = False
    """true: weights beyond the CPU limit are offloaded to a scratch folder of the node"""
    checkpoint: bool = False
    """true: recompute each block in the backward pass, to save memory (always if weights are offloaded)"""
    token_budget: AtLeast1 | None = None
    """tokens of a batch, in place of the run's"""

    @model_validator(mode="after")
    def _bounds(self) -> ModelConfig:
        """Raise ValueError for numbers of workers or GPUs, or an adapter, that cannot be."""
        if not 1 <= self.workers[0] <= self.workers[1]:
            raise ValueError(f"workers must be [fewest, most] with 1 <= fewest <= most, not {list(self.workers)}")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(f"gpus must be a fraction below 1 or a whole number, not {self.gpus}")
        if self.adapter is not None and (self.max_memory is not None or self.id.startswith("random/")):
            raise ValueError("an adapter needs trained weights, all in memory: leave out max_memory, or a random/ id")
        if self.gpus > 1 and self.max_memory is None:
            raise ValueError("a worker with several gpus needs max_memory: a limit for each, as {0: 40GiB, 1: 40GiB}")
        return self

    def dtypes_for(self, task: str) -> tuple[Dtype, ...]:
        """The precisions in which the model computes this task."""
        return self.dtypes.get(task, (self.dtype,))

    def first_dtype(self, task: str) -> Dtype:
        """The first of these precisions, in which most products are computed."""
        return self.dtypes_for(task)[0]


def composed(raw: dict[str, Any]) -> dict[str, Any]:
    """The raw keys of a config in which its methods' options hold composites written out instead of their names.

    A composite that lists several rules for a group of layers becomes a list, one for each combination. Raises
    UserError for an invalid composite, and for a name that neither the config nor the option knows.
    """
    written = raw.get(KEY)
    if not isinstance(written, dict) or not written:
        return raw
    known = {name: [str(spec) for spec in specs] for name, specs in named_in(written)}
    changed = _with_methods(raw, known)
    if isinstance(raw.get("models"), list):
        changed["models"] = [_with_methods(model, known) for model in raw["models"]]
    return changed


def _with_methods(section: Any, known: Mapping[str, list[str]]) -> Any:
    """`section`, the raw keys of the config or of a model, with composites written out in its `methods`."""
    if not isinstance(section, dict):
        return section
    methods = section.get("methods")
    return section | ({"methods": [_entry(entry, known) for entry in methods]} if isinstance(methods, list) else {})


def _entry(entry: Any, known: Mapping[str, list[str]]) -> Any:
    """An entry of `methods` with its composites written out; unchanged if it is invalid, which is reported later."""
    try:
        method = MethodConfig.model_validate(entry)
    except ValidationError:
        return entry
    options = METHODS[method.method].options if method.method in METHODS else ()
    filled = dict(method.options)
    try:
        for option in options:
            if option.named_in == KEY and option.name in filled:
                filled[option.name] = _value(filled[option.name], option, known)
    except UnknownComposite as error:
        near = nearest(error.name, [*error.known, *known])
        raise UserError(f"config key 'methods': {method.method}: no composite {error.name!r}{near}") from None
    return {"name": method.name, "method": method.method, **filled}


def _value(value: Any, option: Option, known: Mapping[str, list[str]]) -> Any:
    """The value of an option, a name or a list of names, with composites in place of names. Raises UnknownComposite."""
    every: list[Any] = []
    for name in value if isinstance(value, list) else [value]:
        if isinstance(name, str) and name not in known and option.reads is not None:
            try:
                option.reads(name)
            except UnknownComposite:
                raise
            except UserError:
                pass  # another error of the value, which is reported where the option is checked
        every += known.get(name, [name]) if isinstance(name, str) else [name]
    return every[0] if len(every) == 1 and not isinstance(value, list) else every
