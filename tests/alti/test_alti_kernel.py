"""The fused kernel against the chunked path: on the GPU where there is one, else in Triton's interpreter."""

import os
import subprocess
import sys

import pytest
import torch

from closelook.alti import kernel

pytestmark = pytest.mark.numeric
_CHECK = """
from closelook.alti import fused, transformed
from closelook.alti.kernel import _sample
from closelook.alti.transformed import AttentionParts, Chunk
from tests.alti.test_alti_transformed import random_parts

def single(parts):
    tensors = {name: x if name in ("allowed", "causal") else x.float() for name, x in vars(parts).items()}
    return AttentionParts(**tensors)

padded = [single(random_parts(causal, length=19, d_model=70)) for causal in (True, False)]
many_heads = single(random_parts(causal=True, samples=2, length=70, heads=20, d_model=64))
for parts in (_sample("cpu"), *padded, many_heads):
    expected = transformed.contributions(parts, Chunk(64, 4096))
    for sources in (1, 7, 50, 1000):
        relevance = fused.contributions(parts, Chunk(sources, 1))
        assert (relevance - expected).abs().max() < 1e-5 * expected.max(), sources
"""


@pytest.mark.usefixtures("triton")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel itself runs here")
def test_fused_kernel_equals_the_chunked_path_in_the_interpreter():
    subprocess.run([sys.executable, "-c", _CHECK], env=os.environ | {"TRITON_INTERPRET": "1"}, check=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_fused_kernel_runs_and_agrees_on_this_gpu():
    assert kernel.fused_on(torch.device("cuda", 0))


def test_without_triton_the_chunked_path_is_taken_and_said(monkeypatch, caplog):
    monkeypatch.setattr(kernel, "find_spec", lambda _: None)
    assert not kernel.fused_on.__wrapped__(torch.device("cuda", 0))
    assert "chunked path" in caplog.text
