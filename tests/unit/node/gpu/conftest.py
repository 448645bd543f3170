"""A fake NVML for each test, in this process and in the helpers it starts."""

from pathlib import Path

import pytest

from tests.rigs import fake_pynvml
from tests.rigs.fake_pynvml import FakeNvml, gpu


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Two healthy GPUs."""
    fake = FakeNvml(tmp_path / "nvml.json", gpu(0), gpu(1))
    monkeypatch.setenv(fake_pynvml.STATE, str(fake.path))
    monkeypatch.setenv("NVML_MODULE", fake_pynvml.MODULE)
    return fake
