"""transformers' code as it is, but without its rounding of float64 models to float32, which oracles would see.

Imported by `tests.tiny`. In other precisions nothing changes.
"""

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers.models.gpt_neo import modeling_gpt_neo
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.modernbert import modeling_modernbert
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter


class _Wide(TorchFunctionMode):
    """`x.float()`, `x.to(torch.float32)` and `dtype=torch.float32` leave float64 as it is."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        asked = torch.float32 if func is Tensor.float else args[1] if func is Tensor.to and len(args) > 1 else None
        kwargs = kwargs or {}
        if asked is torch.float32 and args[0].dtype == torch.float64:
            return args[0]
        read = args[0] if args and isinstance(args[0], Tensor) else None
        if kwargs.get("dtype") is torch.float32 and read is not None and read.dtype == torch.float64:
            kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)


def _unrounded(holder, name):
    stock = getattr(holder, name)

    def unrounded(*args, **kwargs):
        with _Wide():
            return stock(*args, **kwargs)

    setattr(holder, name, unrounded)


_unrounded(modeling_gpt_neo.GPTNeoSelfAttention, "_attn")
_unrounded(MixtralTopKRouter, "forward")
_unrounded(Qwen2MoeTopKRouter, "forward")
_unrounded(modeling_modernbert, "apply_rotary_pos_emb")
