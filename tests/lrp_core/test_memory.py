"""The meter of live bytes."""

import torch

from lrp_core.memory import peak_memory


def test_peak_is_what_lives_together_and_views_are_free():
    with peak_memory() as peak:
        a = torch.zeros(1000)
        b = a + 1
        half = b[:500]
        del b
        c = torch.empty(250)
        torch.add(half[:250], 1, out=c)
        del half
        assert peak.live_bytes == 5000
        a.add_(c[0])
    assert peak.peak_bytes == 9000


def test_what_was_there_before_does_not_count():
    before = torch.zeros(1000)
    with peak_memory() as peak:
        before.view(10, 100).add_(1)
    assert peak.peak_bytes == 0
