"""Embeddings of a batch's tokens that are multiplied while a model looks them up."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from closelook.lrp_core.operations.roots import LOOK_UPS, Roots


class ScaledEmbeddings(TorchFunctionMode):
    """Inside, the embeddings of tokens are multiplied by factors; what is added to them, such as positions, is not.

    Of modules that compute more than a look-up, what they put out is multiplied.
    """

    def __init__(self, model: nn.Module, ids: Mapping[str, Tensor], factors: Mapping[str, Tensor]) -> None:
        """`ids` are the batch's tokens by the name of their stream, `factors` of the same shapes those of a stream."""
        super().__init__()
        embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
        self.modules = [module for module in embeddings if type(module).forward is not nn.Embedding.forward]
        self.factors, self.roots = factors, Roots(ids)
        self.inside: Tensor | None = None  # the indices that the module that runs has looked up
        self.undo = ExitStack()

    def __enter__(self) -> Self:
        for module in self.modules:
            self.undo.enter_context(module.register_forward_hook(self._scale_output))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.undo.close()
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in LOOK_UPS:
            return result
        is_embedding = func is nn.functional.embedding
        indices = args[0] if is_embedding else args[-1]
        if is_embedding and any(module.weight is args[1] for module in self.modules):
            self.inside = indices
            return result
        return self._scale(indices, result)

    def _scale_output(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Forward hook of an embedding module: scales what it puts out if it has looked the batch's tokens up."""
        indices, self.inside = self.inside, None
        if indices is None:
            return output
        if isinstance(output, tuple):  # beside the rows ProphetNet gives their positions
            return self._scale(indices, output[0]), *output[1:]
        return self._scale(indices, output)

    def _scale(self, indices: Any, rows: Tensor) -> Tensor:
        """Rows of embeddings, scaled where they are those of the batch's tokens."""
        place = self.roots.place(indices) if isinstance(indices, Tensor) and rows.is_floating_point() else None
        if place is None or place[0] not in self.factors or self.roots.may_be_positions(indices, place[0]):
            return rows
        stream, is_transposed, first = place
        of_stream = self.factors[stream].to(rows)
        factors = torch.ones(indices.shape, dtype=rows.dtype, device=rows.device)
        within = factors.mT if is_transposed else factors.view(*of_stream.shape[:-1], -1)
        within[..., first : first + of_stream.shape[-1]] = of_stream
        return rows * factors[..., None]
