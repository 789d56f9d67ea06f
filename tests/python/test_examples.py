"""The example programs run and show what they promise."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("numpy_attention.py", "gradients agree"),
        ("numpy_rotary.py", "by finite difference"),
        ("jax_rotary.py", "[5.0, 6.0, 7.0, 8.0, -1.0, -2.0, -3.0, -4.0]"),
        ("pytorch_rotary.py", "largest difference from autograd"),
        ("torch_dtensor.py", "heads     collectives 0  dx the same bits: True"),
        ("torch_learn_frequencies.py", "step  60  loss"),
        ("transformers_switch.py", "largest difference"),
    ],
)
def test_example(name, text):
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert text in done.stdout
