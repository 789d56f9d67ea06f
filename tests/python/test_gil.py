"""The interpreter runs on while the library computes."""

import sys
import threading
import time

import numpy as np
import pytest
from attention import Problem
from formulas import problem

import gyrograd as gg


@pytest.fixture
def no_forced_switches():
    """Threads change only where one lets go of the GIL by itself."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


def rotary_call():
    dy, cos, sin, _ = problem(1, (64, 128, 4, 64), (1, 128, 1, 64))
    out = np.empty_like(dy)
    return lambda: gg.rotary_backward(dy, cos, sin, out=out)


def joint_problem():
    return Problem(seed=3, lengths=(300, 200, 100, 100), dim=64, norm="layer_affine", added="rms_affine", rope="half")


def joint_backward_call():
    joint = joint_problem()
    arrays = joint.backward_arrays()
    return lambda: gg.norm_rope_concat_backward(**arrays, **joint.options)


CALLS = [rotary_call, lambda: joint_problem().forward, joint_backward_call]


@pytest.mark.parametrize("make_call", CALLS, ids=["rotary", "joint forward", "joint backward"])
def test_other_threads_advance_during_a_call(no_forced_switches, make_call):
    call = make_call()
    steps = 0
    stop = threading.Event()

    def count():
        nonlocal steps
        while not stop.is_set():
            steps += 1
            time.sleep(0)  # lets go of the GIL

    counter = threading.Thread(target=count)
    counter.start()
    try:
        # One call may be over before the counter's turn comes; were the GIL held, its turn would never come.
        advanced = False
        for _ in range(1000):
            before = steps
            call()
            if steps > before:
                advanced = True
                break
    finally:
        stop.set()
        counter.join()
    assert advanced


def test_concurrent_calls_agree():
    arrays = problem(2, (4, 64, 4, 64), (1, 64, 1, 64))
    want = [result.tobytes() for result in gg.rotary_backward(*arrays)]
    wrong = []

    def work():
        for _ in range(20):
            if [result.tobytes() for result in gg.rotary_backward(*arrays)] != want:
                wrong.append(threading.current_thread())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
