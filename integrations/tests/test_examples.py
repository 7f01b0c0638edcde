"""The example runs as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_example_runs(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="SKIPPED: accelerate is not installed")
    ran = subprocess.run(
        [sys.executable, EXAMPLES / "publish_from_trainer.py"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
    )
    assert ran.returncode == 0, ran.stderr
    assert "the trainer's weights do, bit for bit" in ran.stdout
