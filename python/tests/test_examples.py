"""The examples run as they are, and the quantisation equals the reference's bit for bit."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="SKIPPED: torch is not installed"
)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            "train_and_follow.py --numpy",
            "the same for all 5 versions, in memory and on disk (numpy)",
        ),
        ("asyncio_follower.py", "each of 5 versions was followed"),
        ("serve_latest.py --numpy", "every answer was that of the version that it named (numpy"),
        pytest.param("train_and_follow.py", "in memory and on disk (torch)", marks=needs_torch),
        pytest.param("serve_latest.py", "that it named (torch", marks=needs_torch),
        pytest.param(
            "fp8_blocks.py", "is what the quantisation gives, bit for bit", marks=needs_torch
        ),
    ],
)
def test_examples_run(tmp_path: Path, command: str, says: str) -> None:
    name, *options = command.split()
    ran = subprocess.run(
        [sys.executable, EXAMPLES / name, *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    assert says in ran.stdout
    assert ran.stderr == ""


@needs_torch
@pytest.mark.parametrize("shape", [(128, 128), (300, 200), (1, 1), (129, 384)])
def test_blocks_are_quantised_as_the_reference_does(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    numpy, ml_dtypes = pytest.importorskip("numpy"), pytest.importorskip("ml_dtypes")
    import torch

    monkeypatch.syspath_prepend(EXAMPLES)
    from fp8_blocks import quantised

    torch.manual_seed(1)
    weight = (torch.randn(shape) * torch.logspace(-6, 3, shape[1])).bfloat16()
    weight[0, 0] = 0.0
    if shape == (300, 200):
        weight[128:256, :128] = 0.0
        weight[0, 1] = -0.0
    found, scales = quantised(weight)
    given = weight.float().numpy()
    # The reference: block by block, in float32.
    for row in range(0, shape[0], 128):
        for column in range(0, shape[1], 128):
            block = given[row : row + 128, column : column + 128]
            scale = numpy.abs(block).max() / numpy.float32(448)
            scale = scale if scale else numpy.float32(1)
            expected = (block / scale).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
            own = found.view(torch.uint8).numpy()[row : row + 128, column : column + 128]
            assert own.tobytes() == expected.tobytes()
            assert scales[row // 128, column // 128].numpy() == scale
