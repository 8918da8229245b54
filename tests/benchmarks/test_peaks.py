"""The share of an accelerator's peak, for kinds as JAX names them."""

import pytest

from benchmarks._peaks import model_flops_utilisation, peak_of


@pytest.mark.parametrize(
    ("kind", "teraflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA GH200 480GB", 989),
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5p", 459),
        ("TPU v5", 459),
    ],
)
def test_peaks_by_device_kind(kind: str, teraflops: int) -> None:
    assert peak_of(kind) == teraflops * 1e12


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA A10", "NVIDIA A1000", "TPU v40"])
def test_an_unknown_kind_has_no_peak(kind: str) -> None:
    assert peak_of(kind) is None
    assert model_flops_utilisation(1e12, kind) is None


def test_utilisation_is_over_the_peak_of_all_devices() -> None:
    assert model_flops_utilisation(156e12, "NVIDIA A100-SXM4-40GB") == 0.5
    four = model_flops_utilisation(440e12, "TPU v4", devices=4)
    assert four == pytest.approx(0.4)
