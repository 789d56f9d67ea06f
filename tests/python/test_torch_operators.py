"""gyrograd.torch as the rest of PyTorch sees it: operators, compilers, transforms, checkpoints, processes."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from formulas import BF16, MODES
from test_torch_rotary import tensors
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
from torch_ways import WAYS, assert_equal, grads, leaves, way

import gyrograd as gg
import gyrograd.torch as gt

PLAIN = ("half", False, None, 0)
PARTIAL = ("interleave", True, 4, 3)


# ---- opcheck


def rotary_samples():
    dy, cos, sin, x = tensors(1, (2, 3, 5, 16), (1, 1, 5, 16))
    _, small_cos, small_sin, small = tensors(2, (3, 2, 8), (3, 1, 2))
    return [
        (*leaves(x, cos, sin), *PLAIN),
        (x.transpose(1, 2).detach().requires_grad_(), *leaves(cos.transpose(1, 2), sin.transpose(1, 2)), *PLAIN),
        (dy[..., :1].expand(2, 3, 5, 16), cos, sin, *PLAIN),
        (small, *leaves(small_cos, small_sin), *PARTIAL),
        (x.bfloat16().requires_grad_(), *leaves(cos, sin), *PLAIN),
    ]


@pytest.mark.parametrize("sample", range(5))
def test_opcheck_of_rotary(sample):
    torch.library.opcheck(torch.ops.gyrograd.rotary.default, rotary_samples()[sample])


@pytest.mark.parametrize("sample", range(5))
@pytest.mark.parametrize("wanted", [(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 1, 1)])
def test_opcheck_of_rotary_backward(sample, wanted):
    x, cos, sin, *options = rotary_samples()[sample]
    (dy,) = leaves(x)
    wanted = [bool(one) for one in wanted]
    needs_x = wanted[1] or wanted[2]
    arguments = (dy, cos, sin, x if needs_x else None, wanted, *options)
    torch.library.opcheck(torch.ops.gyrograd.rotary_backward.default, arguments)


# ---- compilers


class Attention(torch.nn.Module):
    """What models do around the operators: packed projections, transposed views, one key head beside many of queries,
    learned tables.
    """

    def __init__(self, heads=4, dim=16, rows=6):
        super().__init__()
        self.heads, self.dim = heads, dim
        generator = torch.Generator().manual_seed(3)
        self.projection = torch.nn.Parameter(torch.randn(8, (heads + 2) * dim, generator=generator))
        self.weight = torch.nn.Parameter(torch.randn(dim, generator=generator))
        self.frequencies = torch.nn.Parameter(torch.rand(dim // 2, generator=generator))
        self.register_buffer("positions", torch.arange(float(rows)))

    def forward(self, x):
        angles = torch.outer(self.positions, self.frequencies)
        tables = torch.cat([angles, angles], -1)
        cos, sin = tables.cos()[None, None], tables.sin()[None, None]
        packed = (x @ self.projection).unflatten(-1, (self.heads + 2, self.dim))
        q, k, v = packed.split([self.heads, 1, 1], -2)
        q, k = gt.rotary_qk(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        fixed = (tables.cos().detach(), tables.sin().detach())
        v = gt.norm_rope(v, self.weight, None, *fixed, norm_type="rms_affine", rope_type="half").y
        joint = gt.norm_rope_concat(x[:, :, None], encoder_query=x[:, :, None], norm_type="layer").query
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True), joint


def step(model, function, batch):
    """The results and all gradients."""
    generator = torch.Generator().manual_seed(batch)
    x = torch.randn(batch, 6, 8, generator=generator).requires_grad_()
    results = function(x)
    dys = [torch.randn(result.shape, generator=generator).to(result.dtype) for result in results]
    return [*results, *torch.autograd.grad(results, [x, *model.parameters()], dys)]


def test_compiled_by_inductor():
    """In one graph, without another compilation for new batch sizes; the gradients are the eager model's."""
    model = Attention()
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for batch in (2, 3, 5):
            for got, want in zip(step(model, compiled, batch), step(model, model, batch), strict=True):
                assert got.dtype == want.dtype
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_compiled_calls_have_the_same_bits(mode):
    """Of a transposed x, on the operators alone."""
    dy, cos, sin, x = tensors(4, (2, 3, 5, 16), (2, 1, 5, 16))
    x = x.transpose(1, 2).contiguous().transpose(1, 2)
    compiled = torch.compile(gt.rotary, fullgraph=True, backend="aot_eager")
    results = []
    for function in (compiled, gt.rotary):
        inputs = [x.detach().requires_grad_(), *leaves(cos, sin)]
        y = function(*inputs, mode)
        results.append([y, *grads(y, inputs, dy)])
    assert_equal(*results)
    assert results[0][0].is_contiguous()


def test_compiled_double_backward_of_a_transform():
    """torch.func.grad inside of torch.compile."""
    _, cos, sin, x = tensors(5)

    def function(x, cos, sin):
        return torch.func.grad(lambda x, cos: (gt.rotary(x, cos, sin) ** 2).sum(), (0, 1))(x, cos)

    got = torch.compile(function, fullgraph=True, backend="aot_eager")(x, cos, sin)
    assert_equal(got, function(x, cos, sin))


def test_compiled_refusals_have_their_message():
    _, cos, sin, x = tensors(6)
    compiled = torch.compile(gt.rotary, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=r"rotary: cos has shape \[1, 5, 1, 8\]"):
        compiled(x, cos[..., :8], sin[..., :8])
    with pytest.raises(Exception, match=r"norm_rope: x has shape \[5, 3, 16\]; its rank must be 4"):
        torch.compile(gt.norm_rope, fullgraph=True, backend="aot_eager")(x[0])
    with pytest.raises(Exception, match="norm_rope: eps is '1e-5'; it must be of type float"):
        torch.compile(gt.norm_rope, fullgraph=True, backend="aot_eager")(x, eps="1e-5")
    with pytest.raises(TypeError, match="rotary: mode is None; it must be 'half'"):
        torch.compile(gt.rotary, backend="aot_eager")(x, cos, sin, None)


class Rotate(torch.nn.Module):
    def forward(self, x, cos, sin):
        return gt.rotary(x.transpose(1, 2), cos, sin, "interleave")


@pytest.mark.parametrize("strict", [False, True])
def test_export_keeps_the_operator(strict):
    _, cos, sin, x = tensors(7, (2, 5, 3, 16), (1, 1, 5, 16))
    shapes = ({0: torch.export.Dim("batch")}, None, None)
    program = torch.export.export(Rotate(), (x, cos, sin), dynamic_shapes=shapes, strict=strict)
    assert torch.ops.gyrograd.rotary.default in {node.target for node in program.graph.nodes}
    more = torch.cat([x, x, x])
    assert torch.equal(program.module()(more, cos, sin), gg.rotary(more.transpose(1, 2), cos, sin, mode="interleave"))


def test_traces_keep_the_operator():
    """torch.fx's make_fx and torch.jit.trace; neither takes the result for a constant."""
    _, cos, sin, x = tensors(8)
    want = gg.rotary(2 * x, cos, sin)
    for trace in (lambda function, inputs: make_fx(function)(*inputs), torch.jit.trace):
        traced = trace(lambda x, cos, sin: gt.rotary(x, cos, sin), (x, cos, sin))
        assert torch.equal(traced(2 * x, cos, sin), want)


def test_functionalized():
    _, cos, sin, x = tensors(9)

    def function(x):
        rows = x.clone()
        rows.mul_(2)
        return gt.rotary(rows, cos, sin)

    assert torch.equal(torch.func.functionalize(function)(x), gg.rotary(2 * x, cos, sin))


# ---- functorch's transforms


def loss(x, cos, sin):
    return (gt.rotary(x, cos, sin, "interleave") ** 2).sum()


def test_func_grad_and_vjp():
    dy, cos, sin, x = tensors(10)
    inputs = leaves(x, cos, sin)
    assert_equal(torch.func.grad(loss, (0, 1, 2))(x, cos, sin), grads(loss(*inputs), inputs, None))
    y, pull = torch.func.vjp(gt.rotary, x, cos, sin)
    assert torch.equal(y, gg.rotary(x, cos, sin))
    assert_equal(pull(dy), gg.rotary_backward(dy, cos, sin, x))


def test_func_grad_of_grad():
    _, cos, sin, x = tensors(11, (1, 2, 1, 4), (1, 2, 1, 4), np.float64)

    def cubed(x, cos):
        return (gt.rotary(x, cos, sin) ** 3).sum()

    want = torch.autograd.functional.hessian(cubed, (x, cos))[1][0]
    torch.testing.assert_close(torch.func.jacrev(torch.func.grad(cubed, 1), 0)(x, cos), want)
    (leaf,) = leaves(x)  # a transform inside of the usual autograd
    gradient = torch.func.grad(cubed, 1)(leaf, cos)
    rows = [grads(element, [leaf], None, retain_graph=True)[0] for element in gradient.flatten()]
    torch.testing.assert_close(torch.stack(rows).reshape(want.shape), want)


@pytest.mark.parametrize("axes", [(0, None, None), (None, 0, 0), (1, 0, None), (2, None, 1), (0, 0, 0)])
def test_vmap(axes):
    """Samples are those of single calls, gradients too."""
    samples = [tensors(20 + i)[1:] for i in range(3)]
    inputs = []
    for position, axis in zip((2, 0, 1), axes, strict=True):
        stacked = torch.stack([sample[position] for sample in samples], axis or 0)
        inputs.append(samples[0][position] if axis is None else stacked)

    def sample(i):
        return [t if axis is None else t.select(axis, i) for t, axis in zip(inputs, axes, strict=True)]

    got = torch.func.vmap(gt.rotary, axes)(*inputs)
    assert_equal([got], [torch.stack([gg.rotary(*sample(i)) for i in range(3)])])
    got = torch.func.vmap(torch.func.grad(loss, (0, 1, 2)), axes)(*inputs)
    singles = [torch.func.grad(loss, (0, 1, 2))(*sample(i)) for i in range(3)]
    assert_equal(got, [torch.stack(results) for results in zip(*singles, strict=True)])


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, None), (None, 0, None)])
def test_vmap_over_scalars_is_refused(axes):
    """The batch is no row of channels."""
    values = torch.rand(4)
    inputs = [values[0] if axis is None else values for axis in axes]
    with pytest.raises(ValueError, match=r"rotary: x has shape \[\]; its rank must be at least 1"):
        torch.func.vmap(gt.rotary, axes)(*inputs)


def test_vmap_over_no_samples():
    _, cos, sin, x = tensors(31)
    none, tables = x.new_empty(0, *x.shape), cos.new_empty(0, *cos.shape)
    assert torch.func.vmap(gt.rotary, (0, None, None))(none, cos, sin).shape == none.shape
    assert torch.func.vmap(gt.rotary, (None, 0, 0))(x, tables, tables).shape == none.shape
    got = torch.func.vmap(torch.func.grad(loss, (0, 1, 2)), (0, None, None))(none, cos, sin)
    assert [tensor.shape for tensor in got] == [none.shape, tables.shape, tables.shape]


def test_tensors_of_no_transform_inside_of_one():
    """Plain tensors, that a usual graph follows, beside batched ones."""
    dy, cos, sin, x = tensors(30)
    inputs = leaves(x, cos, sin)
    y = torch.func.vmap(lambda factor: factor * gt.rotary(*inputs))(torch.tensor([1.0, 2.0]))
    assert torch.equal(y[1], 2 * gg.rotary(x, cos, sin))
    assert_equal(grads(y[0], inputs, dy), gg.rotary_backward(dy, cos, sin, x))


# ---- autocast


@pytest.mark.parametrize("backward_inside", [False, True])
def test_autocast_casts_nothing_that_goes_together(backward_inside):
    dy, cos, sin, x = tensors(12, dtype=BF16, table_dtype=np.float32)
    inputs = leaves(x, cos, sin)
    with torch.autocast("cpu", torch.bfloat16):
        y = gt.rotary(*inputs)
        got = grads(y, inputs, dy) if backward_inside else None
    got = got or grads(y, inputs, dy)
    assert_equal([y, *got], [gg.rotary(x, cos, sin), *gg.rotary_backward(dy, cos, sin, x)])


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_widens_tables_that_do_not_go_with_x(compiled):
    dy, cos, sin, x = tensors(13)
    inputs = leaves(x, cos.bfloat16(), sin.bfloat16())
    function = torch.compile(gt.rotary, fullgraph=True, backend="aot_eager") if compiled else gt.rotary
    with torch.autocast("cpu", torch.bfloat16):
        y = function(*inputs)
    wide = [cos.bfloat16().float(), sin.bfloat16().float()]
    dx, dcos, dsin = gg.rotary_backward(dy, *wide, x)
    assert_equal([y, *grads(y, inputs, dy)], [gg.rotary(x, *wide), dx, dcos.bfloat16(), dsin.bfloat16()])
    with pytest.raises(TypeError, match="rotary: cos has type bf16"):
        gt.rotary(*inputs)


def test_autocast_of_rows_and_weights():
    """Rows in the widest of their types, as PyTorch does for cat; weights as go with them."""
    _, _, _, x = tensors(14)
    weights = torch.rand(16) + 0.5
    with torch.autocast("cpu", torch.bfloat16):
        got = gt.norm_rope_concat(
            x.bfloat16(), x, norm_query_weight=weights.bfloat16(), norm_key_weight=weights, norm_type="rms_affine"
        )
        y = gt.norm_rope(x.bfloat16(), weights, norm_type="rms_affine").y
    rounded = (x.bfloat16().float(), weights.bfloat16().float())
    want = gg.norm_rope(rounded[0], rounded[1], norm_type="rms_affine").y
    assert torch.equal(got.query, want)
    assert torch.equal(got.key, gg.norm_rope(x, weights, norm_type="rms_affine").y)
    assert torch.equal(y, gg.norm_rope(x.bfloat16(), weights, norm_type="rms_affine").y)


# ---- checkpoints, hooks, subclasses, copies


@pytest.mark.parametrize("way_name", WAYS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(way_name, reentrant):
    dy, cos, sin, x = tensors(15)
    inputs = leaves(x, cos, sin)
    with way(way_name):
        y = checkpoint(lambda x, c, s: gt.rotary(2 * x, c, s), *inputs, use_reentrant=reentrant)
        y.backward(dy)
    dx, dcos, dsin = gg.rotary_backward(dy, cos, sin, 2 * x)
    assert_equal([tensor.grad for tensor in inputs], [2 * dx, dcos, dsin])


def test_saved_tensor_hooks():
    dy, cos, sin, x = tensors(16)
    inputs = leaves(x, cos, sin)
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = gt.rotary(*inputs)
    assert len(packed) == 3
    assert_equal(grads(y, inputs, dy), gg.rotary_backward(dy, cos, sin, x))


class Tagged(torch.Tensor):
    """A subclass without rules of its own: results are of it, too."""


def test_subclasses_stay():
    _, cos, sin, x = tensors(17)
    y = gt.rotary(x.as_subclass(Tagged), cos, sin)
    assert type(y) is Tagged
    assert torch.equal(y.as_subclass(torch.Tensor), gg.rotary(x, cos, sin))


def test_parameters_are_plain():
    dy, cos, sin, x = tensors(18)
    inputs = [torch.nn.Parameter(tensor) for tensor in (x, cos, sin)]
    y = gt.rotary(*inputs)
    assert type(y.grad_fn).__name__ == "_RotaryBackward"
    assert_equal(grads(y, inputs, dy), gg.rotary_backward(dy, cos, sin, x))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_modules(copied):
    model = Attention()
    other = copied(model)
    assert_equal(step(other, other, 2), step(model, model, 2))


# ---- processes


def test_a_worker_forked_after_a_call():
    """In a process without other libraries' threads."""
    program = Path(__file__).parent / "forked_worker.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=300)
    assert "the same bits" in done.stdout, done.stderr


ORDERS = {
    "torch first": "import torch, gyrograd as gg, gyrograd.torch as gt",
    "torch between": "import gyrograd as gg, torch, gyrograd.torch as gt",
    "torch last": "import gyrograd as gg\nassert 'torch' not in sys.modules\nimport gyrograd.torch as gt, torch",
    "after a call": (
        "import gyrograd as gg, numpy as np\n"
        "a = np.ones((1, 4), np.float32)\n"
        "gg.rotary(a, a, a)\n"
        "import torch\n"
        "gg.rotary(torch.ones(1, 4), a, a)\n"
        "import gyrograd.torch as gt"
    ),
}


@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_import(order):
    code = f"""import sys
{ORDERS[order]}
x = torch.arange(1.0, 9).reshape(1, 8).requires_grad_()
tables = torch.zeros(1, 8), torch.ones(1, 8)
gt.rotary(x, *tables).backward(torch.arange(1.0, 9).reshape(1, 8))
assert x.grad.tolist() == [[5, 6, 7, 8, -1, -2, -3, -4]], x.grad
assert torch.equal(gg.rotary(x.detach(), *tables), gt.rotary(x, *tables))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
