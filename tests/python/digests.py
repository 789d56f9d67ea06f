"""Every call's results as digests, and as a program of its own that prints them: what must be the same in any process,
under any settings, on any processor. The numbers come from integers, so that no processor's libm has a part in them.
With the name of a way to start processes, the program first compares a pool's workers with itself.
"""

import hashlib
import json
import multiprocessing
import os
import sys

import ml_dtypes
import numpy as np

import gyrograd as gg

DTYPES = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)


class Numbers:
    """Arrays of one type: from -4 to 4, every seventh of them tiny."""

    def __init__(self, dtype):
        self.dtype = dtype
        self.generator = np.random.Generator(np.random.PCG64(5))

    def __call__(self, *shape):
        numbers = self.generator.integers(-(2**20), 2**20, shape) / 2.0**18
        numbers.flat[::7] /= 2.0**20 if self.dtype is np.float16 else 2.0**132
        return numbers.astype(self.dtype)


def rotary(numbers):
    """Sums over few table elements, and rows under many."""
    results = []
    for shape, tables in (((9000, 8), (1, 8)), ((2, 100, 4, 64), (1, 100, 1, 64))):
        dy, x, cos, sin = numbers(*shape), numbers(*shape), numbers(*tables), numbers(*tables)
        results += [gg.rotary(x, cos, sin, mode="interleave"), *gg.rotary_backward(dy, cos, sin, x, mode="interleave")]
    return results


def norm_rope(numbers):
    x, dy = numbers(2, 90, 5, 64), numbers(2, 5, 90, 64)
    tables = {"cos": numbers(70, 64), "sin": numbers(70, 64)}
    options = tables | {"norm_type": "layer_affine", "rope_type": "half", "rope_start": 11, "weight": numbers(64)}
    forward = gg.norm_rope(x, bias=numbers(64), **options)
    return [*forward, *gg.norm_rope_backward(dy, x, mean=forward.mean, rstd=forward.rstd, **options)]


def norm_rope_concat(numbers):
    inputs = [numbers(2, length, 3, 64) for length in (60, 50, 50, 20, 30, 30)]
    options = {
        "rope_cos": numbers(75, 64),
        "rope_sin": numbers(75, 64),
        "norm_type": "rms_affine",
        "norm_added_type": "layer",
        "rope_type": "interleave",
        "norm_query_weight": numbers(64),
        "norm_key_weight": numbers(64),
    }
    forward = gg.norm_rope_concat(*inputs, **options)
    saved = {name: array for name, array in forward._asdict().items() if name.endswith(("_mean", "_rstd"))}
    query, key, _, encoder_query, encoder_key, _ = inputs
    gradients = [numbers(2, 3, 80, 64) for _ in range(3)]
    backward = gg.norm_rope_concat_backward(
        *gradients, query, key, encoder_query=encoder_query, encoder_key=encoder_key, **saved, **options
    )
    return [array for array in (*forward, *backward) if array is not None]


CALLS = (rotary, norm_rope, norm_rope_concat)


def digests():
    """By call and type."""
    found = {}
    for call in CALLS:
        for dtype in DTYPES:
            digest = hashlib.sha256()
            for array in call(Numbers(dtype)):
                assert array.any() and np.isfinite(array).all()
                digest.update(np.ascontiguousarray(array).tobytes())
            found[f"{call.__name__} {np.dtype(dtype).name}"] = digest.hexdigest()
    return found


def in_a_worker(_number):
    """What a pool's worker sends home."""
    return os.getpid(), digests()


def check_pool(method):
    """Workers that start by `method` after this process has used its threads give what it gives."""
    want = digests()
    with multiprocessing.get_context(method).Pool(3) as pool:
        found = pool.map_async(in_a_worker, range(6), chunksize=1).get(timeout=240)
    assert os.getpid() not in [process for process, _ in found]
    assert all(got == want for _, got in found)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        check_pool(sys.argv[1])
    info = gg.info()
    report = {"target": info.cpu_target, "threads": info.threads, "file": gg.__file__, "digests": digests()}
    json.dump(report, sys.stdout)
