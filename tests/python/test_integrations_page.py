"""docs/integrations.md has the tables of the lists that the integrations use."""

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "integrations_page.py"


def test_the_page_is_current():
    run = subprocess.run([sys.executable, TOOL, "--check"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
