"""What each rank of the distributed tests does: calls on DTensors against the same call on whole tensors."""

import functools
from collections import Counter

import ml_dtypes
import numpy as np
import pytest
import torch
from attention import Problem
from formulas import BF16, assert_table_gradient, backward_input, f64, has_mean, problem, table_terms
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch_ways import leaves, raised, to_numpy, to_torch

import gyrograd as gg
import gyrograd.torch as gt

DTYPES = {"f32": np.float32, "bf16": BF16}
BATCH, SEQUENCE, HEADS = 0, 1, 2  # of rows [B, S, N, D]
MARGIN = 2.0**-24  # of each rank's sum of magnitudes, for the addition of the ranks' sums


@functools.cache
def mesh_of(shape):
    """One for each shape: each has groups of processes of its own."""
    return init_device_mesh("cpu", shape)


def whole(tensor):
    return tensor.detach().full_tensor()


def distributed(mesh, placements, *tensors):
    """Leaves that require grad, where they are given."""
    return [distribute_tensor(tensor, mesh, placements).requires_grad_() for tensor in tensors]


class Collectives:
    """Runs a function, eager or compiled, and counts the collectives by name."""

    def __init__(self, function, compiled):
        self.counts, self.compiled = Counter(), compiled
        backend = aot_autograd(fw_compiler=self._read)
        self.function = torch.compile(function, fullgraph=True, backend=backend) if compiled else function
        if compiled:
            torch._dynamo.reset()

    def run(self, arguments, joints_of, dys):
        """The results, and their joints' backward."""
        if self.compiled:
            return self._run(arguments, joints_of, dys)
        with CommDebugMode() as watched:
            results = self._run(arguments, joints_of, dys)
        self.counts.update({kind.__name__.split(".")[-1]: n for kind, n in watched.get_comm_counts().items()})
        return results

    def _run(self, arguments, joints_of, dys):
        results = self.function(**arguments)
        torch.autograd.backward(joints_of(results), dys)
        return results

    def _read(self, graph, inputs):
        for node in graph.graph.nodes:
            if getattr(node.target, "namespace", "") == "_c10d_functional":
                self.counts[node.target._opname] += 1
        del self.counts["wait_tensor"]
        return make_boxed_func(graph.forward)


# ---- rotary


def check_rotary(mesh_shape, axes, table, types=("f32", "f32"), split_tables=False, compiled=False, mode="half",
                 shape=(4, 8, 4, 8)):  # fmt: skip
    """gt.rotary with rows split along `axes`, one for each axis of the mesh."""
    mesh = mesh_of(mesh_shape)
    arrays = problem(1, shape, table, *(DTYPES[name] for name in types))
    dy, cos, sin, x = map(to_torch, arrays)
    rows = [Shard(axis) for axis in axes]
    of_tables = [Shard(axis) if split_tables and table[axis] != 1 else Replicate() for axis in axes]
    inputs = [*distributed(mesh, rows, x), *distributed(mesh, of_tables, cos, sin)]
    watched = Collectives(gt.rotary, compiled)
    arguments = dict(zip(("x", "cos", "sin"), inputs, strict=True)) | {"mode": mode}
    y = watched.run(arguments, lambda y: [y], [distribute_tensor(dy, mesh, rows)])
    dx, dcos, dsin = (tensor.grad for tensor in inputs)

    summed = sum(table[axis] == 1 for axis in axes)
    is_narrow = types[1] == "bf16"
    expected = Counter({"all_reduce": 2 * summed} if is_narrow and summed else {})
    assert watched.counts == expected, watched.counts
    of_sums = [(Replicate() if is_narrow else Partial()) if table[axis] == 1 else Shard(axis) for axis in axes]
    assert (list(y.placements), list(dx.placements)) == (rows, rows), (y.placements, dx.placements)
    assert list(dcos.placements) == list(dsin.placements) == of_sums, dcos.placements

    plain = leaves(x, cos, sin)
    want = gt.rotary(*plain, mode)
    want.backward(dy)
    assert torch.equal(whole(y), want)
    assert torch.equal(whole(dx), plain[0].grad)
    for got, terms in zip((dcos, dsin), table_terms(arrays[0], arrays[3], mode), strict=True):
        gradient = to_numpy(whole(got))
        assert gradient.dtype == DTYPES[types[1]]
        assert_table_gradient(gradient, terms, table, mode, DTYPES[types[0]], ranks=mesh.size())


# ---- norm_rope, norm_rope_concat


class Magnitudes(Problem):
    """Bounds' terms in place of values: R = |cos*dy| + |sin*partner's dy| of rows."""

    def of_rows(self, stream):
        def function(dy, cos, sin, mode):
            signs = (1, -1)
            both = [backward_input(np.abs(dy), np.abs(cos), sign * np.abs(sin), mode) for sign in signs]
            return np.maximum(*both)

        return self.turned(np.abs(f64(self.grads[stream])), function)


def check_normed(operator, mesh_shape, splits, options, types=("f32", "f32"), split_tables=False, compiled=False,
                 layout="BNSD", joints=None):  # fmt: skip
    """gt.norm_rope_concat, or gt.norm_rope of its query alone, with B, N or S split for each axis of the mesh; joints:
    those that are split, or all.
    """
    mesh = mesh_of(mesh_shape)
    dtype, weights = (DTYPES[name] for name in types)
    p = Magnitudes(**({"seed": 3, "dtype": dtype, "weight_dtype": weights, "batch": 4} | options))
    arguments, plain, names, dys, whole_dys = {}, {}, [], [], []
    for name, array in (p.inputs | p.weights | p.tables).items():
        tensor = to_torch(array)
        placements = _placements(name, tensor, splits, split_tables, joints)
        arguments[name] = distribute_tensor(tensor, mesh, placements)
        plain[name] = tensor
        if name not in p.tables:
            names.append(name)
            arguments[name].requires_grad_()
            plain[name].requires_grad_()
    for stream, grad in p.grads.items():
        dy = to_torch(grad).transpose(1, 2) if layout == "BSND" else to_torch(grad)
        whole_dys.append(dy)
        dys.append(distribute_tensor(dy, mesh, _of_rows(stream, layout, splits, joints)))
    call, arguments, joints_of = _call(operator, p, arguments, layout)
    watched = Collectives(call, compiled)
    results = watched.run(arguments, joints_of, dys)
    want = call(**_call(operator, p, plain, layout)[1])
    torch.autograd.backward(joints_of(want), whole_dys)

    parameters = [name for name in names if name.startswith("norm")]
    split_of = {name: [s for s in splits if joints is None or _joint(name) in joints] for name in parameters}
    reductions = sum(len(split) for split in split_of.values()) if types[1] == "bf16" else 0
    assert watched.counts == Counter({"all_reduce": reductions} if reductions else {}), watched.counts
    for got, expected in zip(joints_of(results), whole_dys, strict=True):
        assert got.shape == expected.shape
    for name, got, expected in zip(type(results)._fields, results, want, strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            of = layout if got.shape[-1] == p.dim and name in ("y", "query", "key", "value") else "BSND"
            assert list(got.placements) == _of_rows(name, of, splits, joints), (name, got.placements)
            assert torch.equal(whole(got), expected), name
    bounds = _bounds(p, want)
    for name in names:
        got, expected = arguments[_given_name(operator, name)].grad, plain[name].grad
        assert got.dtype == expected.dtype
        if name in p.inputs:
            assert list(got.placements) == _of_rows(name, "BSND", splits, joints), (name, got.placements)
            assert torch.equal(whole(got), expected), name
        else:
            partial = Replicate() if types[1] == "bf16" else Partial()
            assert list(got.placements) == [partial if s in split_of[name] else Replicate() for s in splits], name
            _check_sum(to_numpy(whole(got)), *bounds[name], mesh.size())


def _call(operator, p, tensors, layout):
    """The call, its arguments and its joint results."""
    options = p.options | {"eps": p.eps, "out_layout": layout}
    given = {_given_name(operator, name): tensor for name, tensor in tensors.items()}
    if operator == "norm_rope":
        options = {name: value for name, value in options.items() if name not in ("norm_added_type", "concat_order")}
        return gt.norm_rope, given | options, lambda results: [results.y]
    return (
        gt.norm_rope_concat,
        {"query": None} | given | options,
        lambda results: [y for y in results[:3] if y is not None],
    )


def _given_name(operator, name):
    """norm_rope's name for a tensor of the joint call."""
    if operator == "norm_rope_concat":
        return name
    return {"query": "x"}.get(name, name.removeprefix("norm_query_").removeprefix("rope_"))


def _joint(name):
    return next((joint for joint in ("query", "key", "value") if joint in name), "query")


def _of_rows(name, layout, splits, joints):
    if joints is not None and _joint(name) not in joints:
        return [Replicate()] * len(splits)
    return [Shard(layout.index(axis)) for axis in splits]


def _placements(name, tensor, splits, split_tables, joints):
    if name.startswith("norm"):
        return [Replicate()] * len(splits)
    if not name.startswith("rope"):
        return _of_rows(name, "BSND", splits, joints)
    letters = "BNSD"[-tensor.ndim :]
    splits = [letters.find(axis) if split_tables else -1 for axis in splits]
    return [Shard(axis) if axis >= 0 and tensor.shape[axis] != 1 else Replicate() for axis in splits]


def _bounds(p, results):
    """The exact sums and the sums of magnitudes of every parameter."""
    results = results._asdict()
    saved = {}
    for name, value in results.items():
        if value is not None and name.endswith(("mean", "rstd")):
            saved[name if name.startswith("norm") else f"norm_query_{name}"] = to_numpy(value)
    exact = p.expected_backward(saved)
    bounds = {}
    for stream in ("query", "key"):
        if stream not in p.grads:
            continue
        lengths = [p.length(name) or 0 for name in (stream, f"encoder_{stream}")]
        joint = p.of_rows(stream).swapaxes(1, 2)
        first, second = (0, 1) if p.order == "stream_first" else (1, 0)
        parts = np.split(joint, [lengths[first]], axis=1)
        for name, rows in ((stream, parts[first]), (f"encoder_{stream}", parts[second])):
            norm = {"query": "norm_query", "key": "norm_key"}.get(name, f"norm_added_{stream}")
            if f"{norm}_weight" not in p.weights:
                continue
            mean = f64(saved[f"{norm}_mean"]) if has_mean(p.norm_of(name)) else 0
            x_hat = np.abs((f64(p.inputs[name]) - mean) * f64(saved[f"{norm}_rstd"]))
            bounds[f"{norm}_weight"] = exact[f"{norm}_weight"], (rows * x_hat).sum((0, 1, 2))
            bounds[f"{norm}_bias"] = exact.get(f"{norm}_bias"), rows.sum((0, 1, 2))
    return bounds


def _check_sum(got, exact, magnitude, ranks):
    rounding = np.abs(exact) * float(ml_dtypes.finfo(got.dtype).eps) / 2
    error = np.abs(f64(got) - exact)
    bound = (1.25e-6 + ranks * MARGIN) * magnitude + rounding
    assert (error <= bound).all(), f"worst error is {np.max(error / bound)} times the bound"


# ---- what the rules remember, and what they cannot split


def check_options_are_told_apart(mesh_shape):
    """Calls that differ in options alone, on the same tensors: each has its own shapes and placements."""
    mesh = mesh_of(mesh_shape)
    dy, cos, sin, x = map(to_torch, problem(5, (4, 8, 4, 8), (1, 8, 1, 8)))
    sharded = [distribute_tensor(tensor, mesh, [Shard(0)]) for tensor in (dy, x)]
    tables = [distribute_tensor(table, mesh, [Replicate()]) for table in (cos, sin)]
    for wanted in ([True, True, True], [True, False, False], [False, True, False], [False, False, True]):
        options = (wanted, "half", False, None, 0)
        got = torch.ops.gyrograd.rotary_backward(sharded[0], *tables, sharded[1], *options)
        want = torch.ops.gyrograd.rotary_backward(dy, cos, sin, x, *options)
        assert [result.shape for result in got] == [result.shape for result in want]
        assert [whole(result).shape for result in got] == [result.shape for result in want]
    weight, bias = (distribute_tensor(tensor.flatten()[:8].clone(), mesh, [Replicate()]) for tensor in (cos, sin))
    for norm, given in (("layer", ()), ("rms", ()), ("layer_affine", (weight, bias)), ("none", ()), ("layer", ())):
        for layout in ("BNSD", "BSND"):
            got = gt.norm_rope(sharded[1], *given, norm_type=norm, out_layout=layout)
            want = gt.norm_rope(x, *map(whole, given), norm_type=norm, out_layout=layout)
            for a, b in zip(got, want, strict=True):
                assert (a is None) == (b is None)
                assert a is None or (a.placements == (Shard(0),) and torch.equal(whole(a), b)), (norm, layout)


def check_gathered(mesh_shape):
    """Where tables cover a part of the sequence that is split, or two streams are joined along it: the framework
    gathers first, and the values are right.
    """
    mesh = mesh_of(mesh_shape)
    _, cos, sin, x = map(to_torch, problem(6, (4, 8, 4, 8), (6, 8)))
    rows = distribute_tensor(x, mesh, [Shard(1)])
    tables = [distribute_tensor(table, mesh, [Replicate()]) for table in (cos, sin)]
    with CommDebugMode() as watched:
        got = gt.norm_rope(rows, None, None, *tables, rope_type="half", rope_start=2).y
        joint = gt.norm_rope_concat(rows, encoder_query=rows, norm_type="rms", norm_added_type="rms").query
    assert watched.get_total_counts() > 0
    assert torch.equal(whole(got), gt.norm_rope(x, None, None, cos, sin, rope_type="half", rope_start=2).y)
    want = gt.norm_rope_concat(x, encoder_query=x, norm_type="rms", norm_added_type="rms").query
    assert torch.equal(whole(joint), want)


def check_wrong_shapes(mesh_shape, compiled):
    """On every rank, in the core's words and types, and of whole shapes."""
    mesh = mesh_of(mesh_shape)
    x, table = torch.randn(4, 8, 4, 8), torch.randn(1, 8, 4, 8)

    def split(tensor, axis=2):
        return distribute_tensor(tensor, mesh, [Shard(axis)])

    def replicated(tensor):
        return distribute_tensor(tensor, mesh, [Replicate()])

    few, heads = replicated(table[:, :, :3]), "must be 1 or x's, 4"
    calls = [
        (gt.rotary, (replicated(x), few, few), {}, "rotary: cos has shape [1, 8, 3, 8]"),
        (gt.rotary, (split(x), split(table[:, :, :2]), split(table[:, :, :2])), {}, heads),
        (gt.rotary_qk, (split(x), split(x), few, few), {}, heads if compiled else "must be 1 or q's, 4"),
        (gt.norm_rope, (split(x[0], 1),), {"norm_type": "rms"}, "norm_rope: x has shape"),
        (gt.norm_rope, (split(x[0], 1),), {"norm_type": "rms"}, "; its rank must be 4"),
        (gt.norm_rope_concat, (split(x), split(x[:, 1:]), split(x)), {"norm_type": "rms"}, "must be key's, 7"),
        (gt.norm_rope_concat, (split(x, 0), None, None, split(x[:3], 0)), {}, "its batch must be query's, 4"),
    ]  # fmt: skip
    for function, tensors, options, words in calls:
        if compiled:
            torch._dynamo.reset()
            function = torch.compile(function, fullgraph=True, backend="aot_eager")
        kind, text = raised(lambda: function(*tensors, **options))  # noqa: B023
        assert kind is ValueError, (kind, text)
        assert words in text, (words, text)


def check_plain_calls_refuse(mesh_shape):
    """They name DTensors as such."""
    x = distribute_tensor(torch.randn(4, 8, 4, 8), mesh_of(mesh_shape), [Shard(0)])
    for call, name in (
        (lambda: gg.rotary(x, x, x), "rotary: x"),
        (lambda: gg.rotary_backward(x, x, x), "rotary_backward: dy"),
        (lambda: gg.norm_rope(x, norm_type="rms"), "norm_rope: x"),
        (lambda: gg.norm_rope_concat(x, norm_type="rms"), "norm_rope_concat: query"),
    ):
        kind, text = raised(call)
        assert (kind, text.partition(" is a ")[0]) == (TypeError, name), (kind, text)
        assert "DTensor, a subclass of torch.Tensor without memory of its own" in text, text


def check_values_alone(mesh_shape):
    """Values reach the loss; of the keys, whose norm was saved, the backward has the lengths alone."""
    mesh = mesh_of(mesh_shape)
    dy, _, _, x = map(to_torch, problem(11, (4, 6, 4, 8), (1, 1, 1, 8)))
    for axis in (BATCH, SEQUENCE, HEADS):
        for encoder in ({}, {"encoder_key": x, "encoder_value": x}):
            inputs = {"key": x, "value": x} | encoder
            sharded = {name: leaves(distribute_tensor(x, mesh, [Shard(axis)]))[0] for name in inputs}
            plain = dict(zip(inputs, leaves(*inputs.values()), strict=True))
            options = {"norm_type": "rms", "norm_added_type": "rms", "out_layout": "BSND"}
            grad = torch.cat([dy, dy], 1) if encoder else dy
            gt.norm_rope_concat(None, **sharded, **options).value.backward(distribute_tensor(grad, mesh, [Shard(axis)]))
            gt.norm_rope_concat(None, **plain, **options).value.backward(grad)
            for name, tensor in plain.items():
                got = sharded[name].grad
                assert (got is None) == (tensor.grad is None) == ("key" in name)
                assert got is None or torch.equal(whole(got), tensor.grad)


def check_refusals(mesh_shape):
    """Of whole shapes: tables of half the batch are of one sample on each of two ranks, and go with no rows there."""
    mesh = mesh_of(mesh_shape)
    _, cos, sin, x = map(to_torch, problem(12, (4, 8, 2, 8), (2, 8, 1, 8)))
    rows, *tables = (distribute_tensor(tensor, mesh, [Shard(0)]) for tensor in (x, cos, sin))
    one = distribute_tensor(cos[:1], mesh, [Replicate()])
    heads = [distribute_tensor(table.transpose(1, 2), mesh, [Shard(0)]) for table in (cos, sin)]
    calls = {
        r"rotary: cos has shape \[2, 8, 1, 8\]; its extent of axis 0 must be 1 or x's, 4": lambda: gt.rotary(
            rows, *tables
        ),
        r"rotary: sin has shape \[2, 8, 1, 8\]; it must be cos's": lambda: gt.rotary(rows, one, tables[1]),
        r"norm_rope: cos has shape \[2, 1, 8, 8\]": lambda: gt.norm_rope(rows, None, None, *heads, rope_type="half"),
        r"norm_rope: x has shape \[8, 2, 8\]; its rank must be 4": lambda: gt.norm_rope(rows[0], norm_type="rms"),
        r"norm_rope_concat: key has shape \[2, 8, 1, 8\]": lambda: gt.norm_rope_concat(rows, tables[0]),
    }
    for message, call in calls.items():
        with pytest.raises(ValueError, match=message):
            call()


def check_rotary_qk(mesh_shape, types, compiled):
    """Queries split by heads, and one head of keys on every rank."""
    mesh = mesh_of(mesh_shape)
    dq, cos, sin, q = map(to_torch, problem(7, (2, 6, 4, 8), (1, 6, 1, 8), *(DTYPES[name] for name in types)))
    dk, _, _, k = map(to_torch, problem(8, (2, 6, 1, 8), (1, 6, 1, 8), *(DTYPES[name] for name in types)))
    whole_inputs = leaves(q, k, cos, sin)
    inputs = distributed(mesh, [Shard(2)], q) + distributed(mesh, [Replicate()], k, cos, sin)
    dys = [distribute_tensor(dq, mesh, [Shard(2)]), distribute_tensor(dk, mesh, [Replicate()])]
    watched = Collectives(gt.rotary_qk, compiled)
    got = watched.run(dict(zip(("q", "k", "cos", "sin"), inputs, strict=True)), list, dys)
    want = gt.rotary_qk(*whole_inputs)
    torch.autograd.backward(want, [dq, dk])
    expected = Counter({"all_reduce": 2} if types[1] == "bf16" else {})
    assert watched.counts == expected, watched.counts
    for a, b in zip((*got, *(t.grad for t in inputs[:2])), (*want, *(t.grad for t in whole_inputs[:2])), strict=True):
        assert torch.equal(whole(a), b)
    for a, b in zip(inputs[2:], whole_inputs[2:], strict=True):
        assert a.grad.dtype == b.dtype
        torch.testing.assert_close(whole(a.grad), b.grad, rtol=1e-2 if types[1] == "bf16" else 1e-5, atol=1e-5)


def check_double_backward(mesh_shape):
    """The gradients' gradients, of split rows too."""
    mesh = mesh_of(mesh_shape)
    _, cos, sin, x = map(to_torch, problem(9, (2, 4, 2, 8), (1, 4, 1, 8), np.float64))

    def second(x, cos, sin):
        first = torch.autograd.grad((gt.rotary(x, cos, sin) ** 3).sum(), (x, cos, sin), create_graph=True)
        return torch.autograd.grad(sum((gradient**2).sum() for gradient in first), (x, cos, sin))

    inputs = distributed(mesh, [Shard(0)], x) + distributed(mesh, [Replicate()], cos, sin)
    for a, b in zip(second(*inputs), second(*leaves(x, cos, sin)), strict=True):
        torch.testing.assert_close(whole(a), b, rtol=1e-12, atol=1e-12)


def check_autocast(mesh_shape):
    """Tables that autocast widens: their gradients are reduced before they are rounded."""
    mesh = mesh_of(mesh_shape)
    arrays = problem(10, (4, 8, 4, 8), (1, 8, 1, 8), np.float32, BF16)
    dy, cos, sin, x = map(to_torch, arrays)
    inputs = distributed(mesh, [Shard(0)], x) + distributed(mesh, [Replicate()], cos, sin)
    with torch.autocast("cpu", torch.bfloat16):
        y = gt.rotary(*inputs)
    y.backward(distribute_tensor(dy, mesh, [Shard(0)]))
    assert torch.equal(whole(y), gt.rotary(x, cos.float(), sin.float()))
    for leaf, terms in zip(inputs[1:], table_terms(arrays[0], arrays[3], "half"), strict=True):
        assert leaf.grad.dtype == torch.bfloat16
        assert_table_gradient(to_numpy(whole(leaf.grad)), terms, (1, 8, 1, 8), "half", np.float32, ranks=mesh.size())
