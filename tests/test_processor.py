"""Which instructions matrix products may use."""

import os
import subprocess
import sys

import pytest
import torch

from evclplus import processor


@pytest.mark.parametrize(
    ("has", "maker", "expected"),
    [
        ("AVX512", "AuthenticAMD", "AVX512"),
        ("AVX512", "GenuineIntel", None),
        ("AVX512", "", None),
        ("AVX2", "AuthenticAMD", None),
    ],
)
def test_wide_vectors_are_asked_for_where_mkl_does_not_use_them_by_itself(
    has: str, maker: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(processor.SETTING, raising=False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: has)
    monkeypatch.setattr(processor, "_maker", lambda: maker)
    processor.use_wide_vectors()
    assert os.environ.get(processor.SETTING) == expected


@pytest.mark.parametrize(
    ("has", "maker", "family", "expected"),
    [
        ("AVX512", "AuthenticAMD", "26", True),
        ("AVX512", "AuthenticAMD", "25", False),
        ("AVX2", "AuthenticAMD", "26", False),
        ("AVX512", "GenuineIntel", "26", False),
        ("AVX512", "", "", False),
    ],
)
def test_where_mkl_leaves_half_of_the_processor_idle(
    has: str, maker: str, family: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"vendor_id": maker, "cpu family": family}
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: has)
    monkeypatch.setattr(processor, "_says", said.__getitem__)
    ask = processor.mkl_leaves_half.__wrapped__
    assert ask() == (expected and torch.backends.mkldnn.is_available())


def test_what_somebody_has_set_is_kept() -> None:
    code = f"import os, evclplus; print(os.environ['{processor.SETTING}'])"
    given = os.environ | {processor.SETTING: "AVX2"}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True)
    assert done.stdout.strip() == "AVX2", done.stderr
