"""What every Python test needs before it starts."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis

# One profile: the same examples in every run, and no deadline, since the machine may be busy.
hypothesis.settings.register_profile("gyrograd", derandomize=True, deadline=None, max_examples=200)
hypothesis.settings.load_profile("gyrograd")
