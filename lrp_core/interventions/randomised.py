"""A model whose trained weights are replaced by random ones, from the head down (Adebayo et al. 2018, cascading).

Random weights are drawn by the model's own `_init_weights`. An explanation of the model should change with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.families.base import Family
from closelook.lrp_core.families.images import ImageFamily
from closelook.lrp_core.interventions.in_place import check_weights, restored, tensors_of
from closelook.lrp_core.records.types import UnsupportedModel
from closelook.lrp_core.views.encoder_decoder import EncoderDecoderView
from closelook.lrp_core.views.guard import undisturbed
from closelook.lrp_core.views.view import ModelView

HEAD, EMBEDDINGS = "head", "embeddings"
_MARK = "_is_hf_initialized"  # transformers does not initialise modules and weights that have this attribute
_MISSING = object()


@dataclass(frozen=True)
class Depth:
    """The weights that become random together at one step: those of the head, of a block, or of the embeddings."""

    name: str
    weights: tuple[tuple[str, nn.Parameter], ...]  # (path, weight)


def depths_of(view: ModelView) -> list[str]:
    """The names of the depths, from the head to the embeddings.

    At a depth its weights and those of all depths before it are random. Blocks are counted from 0 at the embeddings,
    each stack of an encoder-decoder by itself. A block that shares its weights with a later one is no depth of its own.
    A model that no family describes has one depth with all its weights.
    """
    with undisturbed(view), _untied(view):
        return [depth.name for depth in _depths(view)]


@contextmanager
def randomised(view: ModelView, seed: int) -> Iterator[Iterator[tuple[str, ModelView]]]:
    """Inside, yields an iterator of (depth, view of the model with random weights down to that depth), deepest first.

    A view is valid until the next one is taken. All have the same random weights, drawn from `seed`; the global random
    state does not change. A head that is tied to the embeddings has a copy of the weights meanwhile, so that the
    embeddings can keep theirs. No other thread can use the model meanwhile; afterwards it is restored bit by bit.

    Raises UnsupportedModel for a model with offloaded weights or an adapter that is not merged, and for a model whose
    `_init_weights` leaves some weights unchanged.
    """
    check_weights(view)
    with undisturbed(view), torch.inference_mode(False), ExitStack() as undo:
        undo.enter_context(_untied(view))
        depths = _depths(view)
        kept = undo.enter_context(restored(view))
        _draw(view.model, seed)
        for buffer in view.model.buffers():  # buffers are not weights but constants, such as rotary frequencies
            buffer.copy_(kept[id(buffer)])
        _check_changed(view, kept)
        yield _cascade(view, depths, kept)


def _cascade(view: ModelView, depths: list[Depth], kept: dict[int, Tensor]) -> Iterator[tuple[str, ModelView]]:
    """Yield (depth, view), deepest first. After each view, that depth's weights are restored from `kept` (by id)."""
    for depth in reversed(depths):
        yield depth.name, replace(view)  # a new view: its cached properties may depend on weights
        for _, weight in depth.weights:
            with torch.no_grad():
                weight.copy_(kept[id(weight)])


@contextmanager
def _untied(view: ModelView) -> Iterator[None]:
    """Inside, a head that is tied to the embeddings has a copy of their weights, and the config says that it is not."""
    head: Any = view.model.get_output_embeddings() if view.family.is_generic else view.unembedding
    weight = None if head is None else head.weight
    holders = [module for module in view.model.modules() if vars(module)["_parameters"].get("weight") is weight]
    if weight is None or len(holders) < 2:
        yield
        return
    config = view.model.config
    tied = config.tie_word_embeddings
    head.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    config.tie_word_embeddings = False  # otherwise some `_init_weights` leave the head out
    try:
        yield
    finally:
        head.weight = weight
        config.tie_word_embeddings = tied


def _draw(model: Any, seed: int) -> None:
    """Initialise all weights again, from `seed`. The marks of modules that are initialised are restored afterwards."""
    with ExitStack() as undo:
        for holder in (*model.modules(), *tensors_of(model)):
            mark = vars(holder).pop(_MARK, _MISSING)
            undo.callback(_put_mark, holder, mark)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model.initialize_weights()


def _put_mark(holder: Any, mark: Any) -> None:
    """Give a module or weight its old mark, or none if it had none."""
    vars(holder).pop(_MARK, None)
    if mark is not _MISSING:
        setattr(holder, _MARK, mark)


def _check_changed(view: ModelView, kept: dict[int, Tensor]) -> None:
    """Raise UnsupportedModel, naming them, if some weights did not change from their values in `kept` (by id).

    Vectors of a single repeated number do not count: biases and weights of norms may have had their initial values.
    """
    same = []
    for path, weight in view.model.named_parameters():
        value = weight.detach().cpu()
        is_constant = bool((value == value.flatten()[0]).all())
        if torch.equal(value, kept[id(weight)]) and not (is_constant and weight.dim() == 1):
            same.append(path)
    if same:
        more = f" and {len(same) - 3} more" if len(same) > 3 else ""
        named = f"{', '.join(same[:3])}{more}"
        raise UnsupportedModel(
            f"{type(view.model).__name__} cannot be randomised: its _init_weights leaves {named} unchanged"
        )


def _depths(view: ModelView) -> list[Depth]:
    """The depths, from the head to the embeddings.

    A weight that several depths share belongs to the first of them. Weights outside of all described modules belong to
    the embeddings.
    """
    weights = dict(view.model.named_parameters())
    if view.family.is_generic:
        return [Depth(EMBEDDINGS, tuple(weights.items()))]
    stacks = _families(view)
    blocks = {path: name for family, prefix in stacks for path, name in _blocks(view, family, prefix)}
    embeddings = {path: EMBEDDINGS for family, _ in stacks for path in _embeddings(family)}
    places = {**_head(view, stacks), **blocks, **embeddings}
    names = list(dict.fromkeys([*places.values(), EMBEDDINGS]))
    groups: dict[str, dict[int, tuple[str, nn.Parameter]]] = {name: {} for name in names}
    known: dict[int, str] = {}
    for module_path, name in places.items():
        for path, weight in _weights_at(view, module_path):
            if known.setdefault(id(weight), name) == name:
                groups[name][id(weight)] = (path, weight)
    for path, weight in weights.items():
        if id(weight) not in known:
            groups[EMBEDDINGS][id(weight)] = (path, weight)
    return [Depth(name, tuple(group.values())) for name, group in groups.items() if group]


def _families(view: ModelView) -> list[tuple[Family, str]]:
    """(description of a stack, prefix of its blocks' names), from the output to the input."""
    if isinstance(view, EncoderDecoderView):
        return [(view.decoder.family, "decoder block"), (view.family, "encoder block")]
    return [(view.family, "block")]


def _head(view: ModelView, stacks: list[tuple[Family, str]]) -> dict[str, str]:
    """The paths of the unembedding and of the modules between the last block and it, each with the name HEAD."""
    unembedding = next(path for path, module in view.model.named_modules() if module is view.unembedding)
    last, _ = stacks[0]
    paths = (unembedding, view.family.head_dense, view.family.head_norm, last.final_norm)
    return {path: HEAD for path in paths if path}


def _blocks(view: ModelView, family: Family, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield (path, depth name) of a stack's blocks, the last first; an encoder's final norm joins its last block."""
    count = len(view.model.get_submodule(family.blocks))  # type: ignore[arg-type]
    if isinstance(view, EncoderDecoderView) and family is view.family and family.final_norm:
        yield family.final_norm, f"{prefix} {count - 1}"
    for block in reversed(range(count)):
        yield f"{family.blocks}.{block}", f"{prefix} {block}"


def _embeddings(family: Family) -> Iterator[str]:
    """Yield the paths of the modules before the first block of a stack."""
    if isinstance(family, ImageFamily):
        yield family.embeddings
    paths = (family.token_embedding, family.position_embedding, family.segment_embedding)
    for path in (*paths, family.embedding_norm, family.embedding_projection):
        if path:
            yield path


def _weights_at(view: ModelView, path: str) -> list[tuple[str, nn.Parameter]]:
    """(path, weight) of all weights in the module at `path`; empty if the model has no such module."""
    if path not in dict(view.model.named_modules()):
        return []
    module = view.model.get_submodule(path)
    return [(f"{path}.{name}", weight) for name, weight in module.named_parameters()]
