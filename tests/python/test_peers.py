"""gyrograd._peers: what gyrograd is timed against computes the same gradients."""

import functools

import numpy as np
import pytest
import torch

from gyrograd import _bench, _peers

ROTARY = [
    f"rotary:types={dtype},mode={mode},dy=2x5x3x8,tables={tables},outputs={outputs}"
    for dtype, tables in (("f32", "1x5x1x8"), ("bf16", "2x5x1x8"))
    for mode in ("half", "interleave")
    for outputs in ("dx", "dx+tables")
]
JOINT = [
    f"norm_rope_concat:types=f32,batch=2,heads=3,head_dim=8,query=5,key=4{encoder},norm={norm},norm_added=rms_affine"
    f",{rotation}"
    for norm in ("none", "layer", "layer_affine", "rms", "rms_affine")
    for encoder, rotation in (
        (",encoder_query=2,encoder_key=3", "rotary=half,rope=7"),
        (",encoder_query=2,encoder_key=3,order=encoder_first", "rotary=interleave,rope=4"),
        ("", "rope=0"),
    )
]


@pytest.fixture
def quick_compiler(monkeypatch):
    """The formulas are what is tested, not the compiler."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))


def as_arrays(results):
    """All results of a peer, in f64."""
    results = results if isinstance(results, tuple | list) else (results,)
    flat = []
    for result in results:
        flat += result if isinstance(result, list) else [result]
    return [
        np.asarray(one.to(torch.float64) if isinstance(one, torch.Tensor) else one, np.float64)
        for one in flat
        if one is not None
    ]


def names_of(case, peer):
    """The gradients of the joint operator in a peer's order."""
    if peer != "PyTorch compiled formula":
        return [*case.streams(), *case.parameters()]
    norms = {name: norm for name, norm, kind in case.normed() if kind.endswith("affine")}
    kinds = {name: kind for name, _, kind in case.normed()}
    names = []
    for image in _peers.IMAGES:
        for name in case._order(image):
            names.append(name)
            if name in norms:
                names.append(f"{norms[name]}_weight")
            if kinds.get(name) == "layer_affine":
                names.append(f"{norms[name]}_bias")
    return names


@pytest.mark.parametrize("text", ROTARY)
def test_rotary_peers_compute_the_gradients(text, quick_compiler):
    works = _peers.contestants(_bench.parse_problem(text), 1, True)
    assert len(works) == 6
    want = as_arrays(works["gyrograd"]())
    tolerance = 1e-5 if "f32" in text else 0.06
    for name, work in works.items():
        for got, wanted in zip(as_arrays(work()), want, strict=True):
            np.testing.assert_allclose(got, wanted, tolerance, tolerance, err_msg=name)


@pytest.mark.parametrize("text", JOINT)
def test_joint_peers_compute_the_gradients(text, quick_compiler):
    parts = _bench.parse_problem(text)
    works = _peers.contestants(parts, 1, True)
    case = _peers._ConcatCase(parts, 1)
    want = works["gyrograd"]()._asdict()
    assert set(works) == {"gyrograd", "PyTorch eager", "PyTorch compiled", "PyTorch compiled formula", "JAX jit"}
    for peer in set(works) - {"gyrograd"}:
        got = as_arrays(works[peer]())
        for name, array in zip(names_of(case, peer), got, strict=True):
            np.testing.assert_allclose(array, want[name], 2e-5, 2e-5, err_msg=f"{peer}: {name}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rotary:dy=8,tables=8,mode=quarter", "mode quarter"),
        ("rotary:dy=8,tables=4,per_pair=1", "per_pair_tables True"),
        ("rotary:dy=8,tables=4,rotary_dim=4", "rotary_dim 4"),
        ("rotary:dy=8,tables=8,outputs=tables", "table gradients alone"),
        ("rotary:dy=8,tables=8,types=f16", "f32 and bf16"),
        ("rotary:dy=8,tables=8,types=bf16/f32", "one type"),
        ("norm_rope_concat:heads=4,key_heads=2,head_dim=8,query=3,key=3", "one number of heads"),
    ],
)
def test_problems_that_peers_do_not_compute_are_named(text, words):
    assert words in _peers.refusal(_bench.parse_problem(text))


def test_steps_through_autograd_give_x_its_gradient():
    parts = _bench.parse_problem("rotary:dy=2x5x3x8,tables=1x5x1x8,outputs=dx")
    steps = _peers.autograd_steps(parts)
    assert list(steps) == ["PyTorch eager", "gyrograd.torch", "an empty autograd.Function"]
    for step in steps.values():
        step()
