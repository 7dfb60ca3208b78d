"""`examples/async_orders.py` handles every order although a worker is cancelled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "async_orders.py"


@pytest.mark.slow
def test_every_order_is_handled() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every order was handled" in done.stdout
