"""Which part of a GPU is trained on beside an engine; what there is to decide without a GPU."""

from __future__ import annotations

import ctypes

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from headway.llm.engine.gpu_share import GpuShare, generating, is_generating  # noqa: E402
from headway.llm.engine.gpu_share_part_of_gpu import NoPart, num_multiprocessors, stream_on_part  # noqa: E402

CPU = torch.device("cpu")


@given(st.floats(0.001, 1), st.integers(16, 400))
def test_a_part_leaves_eight_multiprocessors_at_least_and_has_eight_at_least(share: float, total: int) -> None:
    found = num_multiprocessors(share, total)
    assert found % 8 == 0
    assert 8 <= found <= total - 8
    assert found == 8 or found + 8 > total - 8 or abs(found - share * total) <= 4


def test_half_of_an_h200_is_64_of_132_and_a_larger_share_is_never_fewer() -> None:
    assert num_multiprocessors(0.5, 132) == 64
    counts = [num_multiprocessors(percent / 100, 132) for percent in range(1, 101)]
    assert counts == sorted(counts)
    assert counts[-1] == 120


def test_a_device_is_generating_while_anybody_waits_for_it_and_no_other_is() -> None:
    with generating(CPU):
        with generating(CPU):
            assert is_generating(CPU)
            assert not is_generating(torch.device("cuda:1"))
        assert is_generating(CPU)
    assert not is_generating(CPU)


def test_who_waits_in_vain_is_gone_too() -> None:
    with pytest.raises(ValueError, match="gone"), generating(CPU):
        raise ValueError("gone")
    assert not is_generating(CPU)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=r"must be in \(0, 1\], received"):
        GpuShare(CPU, share)


def test_a_cpu_is_not_divided() -> None:
    subject = GpuShare(CPU, 0.5)
    with generating(CPU), subject.turn():
        assert torch.ones(2).sum() == 2
    assert subject.num_shared == 0


def test_a_machine_without_a_driver_says_so() -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with pytest.raises(NoPart, match="libcuda"):
            stream_on_part(0, 8)
    else:
        pytest.skip("needs a machine without a GPU's driver")
