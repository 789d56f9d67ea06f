"""Models of diffusers switched to gyrograd: the same losses, gradients and training as stock, and what stays stock."""

import collections
import copy
import importlib
import inspect
import warnings

import diffusers
import numpy as np
import pytest
import torch
from diffusers.models import attention_processor, embeddings
from diffusers.models.transformers import transformer_flux, transformer_ltx, transformer_qwenimage, transformer_wan
from diffusers_models import BATCH, CASES, TEXT
from safetensors.torch import load_file
from torch_ways import Watched

from gyrograd.integrations import _diffusers_attention, _diffusers_rotary, _known_diffusers
from gyrograd.integrations._fingerprint import fingerprint
from gyrograd.integrations.diffusers import switch_to_gyrograd

BY_NAME = {case.name: case for case in CASES}
COGVIDEOX, SD3, FLUX, HUNYUAN, QWEN, WAN, LUMINA2, LTX = CASES
EVERY = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
# float32 rounds to 6e-8; a gradient here is a few sums of up to 64 products, of which either side rounds each.
CLOSE = 1e-5
# bfloat16 rounds to 4e-3; stock rounds between norm, rotary and their gradients, gyrograd once.
CLOSE_16 = 3e-2


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def output(model, batch):
    return model(**batch, return_dict=False)[0]


def loss_of(y):
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(7))
    return (y.float() * weights).sum() + (y.float() ** 2).sum()


def results(model, batch):
    """The output, the loss and every gradient."""
    model.zero_grad()
    y = output(model, batch)
    loss = loss_of(y)
    loss.backward()
    named = {name.removeprefix("_orig_mod."): parameter.grad for name, parameter in model.named_parameters()}
    return y.detach(), loss.detach(), {name: grad.clone() for name, grad in named.items() if grad is not None}


def assert_close(got, want, tolerance=CLOSE):
    """Within tolerance of a tensor's largest element; gradients within that or, where they vanish but for rounding, a
    tenth of it of the largest gradient.
    """
    largest = max(grad.abs().max().item() for grad in want[2].values())
    assert got[2].keys() == want[2].keys()
    pairs = [(got[0], want[0], 0.0), (got[1], want[1], 0.0)]
    pairs += [(got[2][name], want[2][name], tolerance * largest / 10) for name in want[2]]
    for one, other, floor in pairs:
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.isfinite().all()
        assert other.isfinite().all()
        allowed = max(tolerance * other.abs().max().item(), floor)
        assert (one - other).abs().max().item() <= allowed


def assert_same(got, want):
    """Bit for bit."""
    for one, other in ((got[0], want[0]), (got[1], want[1])):
        assert one.isfinite().all()
        assert torch.equal(one, other)
    assert got[2].keys() == want[2].keys()
    for name in want[2]:
        assert torch.equal(got[2][name], want[2][name]), name


def forward_calls(watched):
    return sorted(name for name in watched.calls if not name.endswith("_backward"))


# ---- what is known


def places(table):
    return [(digits, known, place) for digits, known in table.items() for place in known.places]


def found(place):
    module, name = place.rsplit(".", 1)
    return importlib.import_module(f"diffusers.models.{module}"), name


def test_the_known_version_is_installed():
    assert diffusers.__version__ in _known_diffusers.VERSIONS


@pytest.mark.parametrize(
    ("digits", "known", "place"), places(_known_diffusers.ROTARY), ids=lambda value: str(value)[:60]
)
def test_known_functions_are_where_the_list_says(digits, known, place):
    module, name = found(place)
    assert fingerprint(getattr(module, name)) == digits
    assert callable(getattr(_diffusers_rotary, known.make))


@pytest.mark.parametrize(
    ("digits", "known", "place"), places(_known_diffusers.ATTENTION), ids=lambda value: str(value)[:60]
)
def test_known_processors_are_where_the_list_says(digits, known, place):
    module, name = found(place)
    assert fingerprint(vars(getattr(module, name))["__call__"]) == digits
    assert callable(getattr(_diffusers_attention, known.make))
    for helper, its_digits in known.helpers.items():
        assert fingerprint(getattr(module, helper, None) or getattr(embeddings, helper)) == its_digits


def test_known_norms():
    assert len(_diffusers_attention._NORM_CLASSES) == 4


def test_every_model_of_the_list_is_tested():
    assert [model.name for model in _known_diffusers.MODELS] == [case.name for case in CASES]


# ---- models


@EVERY
def test_loss_and_gradients_are_those_of_stock(case):
    model, batch = case.model(), case.batch()
    want = results(model, batch)
    with switch_to_gyrograd(model):
        with Watched() as watched:
            registered = results(model, batch)
        direct = results(model, batch)
    assert forward_calls(watched) == case.calls
    assert len(watched.calls) == 2 * len(case.calls)  # each has its backward
    assert_close(direct, want)
    assert_same(registered, direct)


@pytest.mark.parametrize("case", [WAN, LTX], ids=lambda case: case.name)
def test_where_the_rotary_alone_is_replaced_the_bits_are_those_of_stock(case):
    model, batch = case.model(), case.batch()
    want = results(model, batch)
    with switch_to_gyrograd(model):
        assert_same(results(model, batch), want)


def trained(case, steps=20):
    model, batch = case.model(), case.batch(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with torch.no_grad():
        goal = torch.randn(output(model, batch).shape, generator=torch.Generator().manual_seed(5))
    losses = []
    for _ in range(steps):
        loss = ((output(model, batch) - goal) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


@EVERY
def test_twenty_steps_of_training_have_the_losses_of_stock(case):
    want = trained(case)
    with switch_to_gyrograd(case.model()):
        got = trained(case)
    assert want[-1] < 0.8 * want[0]  # it learns
    np.testing.assert_allclose(got, want, rtol=CLOSE, equal_nan=False)


def attentions(model):
    return [module for module in model.modules() if hasattr(module, "processor")]


@EVERY
def test_bfloat16_autocast(case):
    model, batch = case.model(), case.batch()
    types = []
    for attn in attentions(model):
        attn.register_forward_hook(
            lambda _, __, y: types.append(torch.utils._pytree.tree_map(lambda one: one.dtype, y))
        )

    def cast():
        types.clear()
        with torch.autocast("cpu", torch.bfloat16):
            return results(model, batch), list(types)

    want, want_types = cast()
    with switch_to_gyrograd(model), Watched() as watched:
        got, got_types = cast()
    assert forward_calls(watched) == case.calls
    assert got_types == want_types
    assert_close(got, want, CLOSE_16)


@pytest.mark.parametrize("case", CASES[:5], ids=lambda case: case.name)
def test_eps_is_the_models(case):
    """One that can be seen."""
    model, batch = case.model(), case.batch()
    small = results(model, batch)
    for attn in attentions(model):
        for name in ("norm_q", "norm_k", "norm_added_q", "norm_added_k"):
            if getattr(attn, name, None) is not None:
                getattr(attn, name).eps = 0.5
    want = results(model, batch)
    assert (want[0] - small[0]).abs().max() > 100 * CLOSE * want[0].abs().max()
    with switch_to_gyrograd(model):
        assert_close(results(model, batch), want)


@pytest.mark.parametrize("case", CASES[:6], ids=lambda case: case.name)
def test_a_model_in_bfloat16(case):
    model = case.model().to(torch.bfloat16)
    batch = {
        name: value.bfloat16() if torch.is_tensor(value) and value.is_floating_point() else value
        for name, value in case.batch().items()
    }
    with torch.no_grad():
        want = output(model, batch)
        with switch_to_gyrograd(model), Watched() as watched:
            got = output(model, batch)
    assert watched.calls == case.calls
    assert got.dtype == want.dtype == torch.bfloat16
    assert got.isfinite().all()
    assert (got - want).abs().max() <= CLOSE_16 * want.abs().max()


@EVERY
def test_gradient_checkpointing(case):
    model, batch = case.model(), case.batch()
    model.train()
    with switch_to_gyrograd(model):
        want = results(model, batch)
        model.enable_gradient_checkpointing()
        with Watched() as watched:
            got = results(model, batch)
    assert len(forward_calls(watched)) > len(case.calls)  # some are made again
    assert_same(got, want)


def loaded_from(kind, path):
    """from_pretrained; of a class that needs the package accelerate for it, the same by hand."""
    if not getattr(kind, "_keep_in_fp32_modules", None):
        return kind.from_pretrained(path)
    model = kind.from_config(kind.load_config(path))
    model.load_state_dict(load_file(path / "diffusion_pytorch_model.safetensors"))
    return model


@EVERY
def test_saved_and_loaded_after_switching(case, tmp_path):
    model, batch = case.model().eval(), case.batch()
    with switch_to_gyrograd(model), torch.no_grad():
        want = output(model, batch)
        model.save_pretrained(tmp_path)
        loaded = loaded_from(type(model), tmp_path).eval()
        assert torch.equal(output(loaded, batch), want)
        assert torch.equal(output(copy.deepcopy(model), batch), want)
    assert not any("gyrograd" in key for key in loaded.state_dict())


@pytest.mark.parametrize("case", [FLUX, QWEN, WAN], ids=lambda case: case.name)
def test_compiled_whole(case):
    """fullgraph, as stock compiles."""
    torch._dynamo.reset()
    model, batch = case.model(), case.batch()
    want = results(model, batch)
    with switch_to_gyrograd(model):
        got = results(torch.compile(model, backend="aot_eager", fullgraph=True), batch)
    assert_close(got, want)


@pytest.mark.parametrize("case", [COGVIDEOX, SD3, HUNYUAN, LTX], ids=lambda case: case.name)
def test_traced_whole(case):
    """One graph without a break, which holds the operators' calls."""
    torch._dynamo.reset()
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    model, batch = case.model(), case.batch()
    with torch.no_grad():
        want = output(model, batch)
        with switch_to_gyrograd(model):
            got = output(torch.compile(model, backend=backend, fullgraph=True), batch)
    (graph,) = graphs
    assert [node.target._opname for node in graph.graph.nodes if "gyrograd" in str(node.target)] == case.calls
    assert (got - want).abs().max() <= CLOSE * want.abs().max()


def test_positions_do_not_wander():
    """Of a model whose text has positions of its own, each text row moves the output; so does each table."""
    model, batch = QWEN.model().eval(), QWEN.batch()
    batch["img_shapes"] = [(1, 4, 3)] * BATCH
    want = results(model, batch)
    with switch_to_gyrograd(model):
        got = results(model, batch)
    assert_close(got, want)
    other = results(model, QWEN.batch())
    assert (other[0] - want[0]).abs().max() > 100 * CLOSE * want[0].abs().max()


# ---- rotary functions


def angles(*shape):
    theta = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(2))
    return theta.cos(), theta.sin()


def activations(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()


def both(stock, make, x, *arguments, **keywords):
    """Result and gradient, of stock and of gyrograd, and how often the latter called the stock function."""
    calls = []

    def counted(*given, **named):
        calls.append(given)
        return stock(*given, **named)

    counted.__wrapped__ = stock
    pairs = []
    for function in (make(counted), stock):
        y = function(x, *arguments, **keywords)
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(4)).to(y.dtype)
        pairs.append((y.detach(), *torch.autograd.grad(y, x, dy)))
    return *pairs, len(calls)


TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
REAL = [(unbind, axis) for unbind in (-1, -2) for axis in (1, 2)]


def assert_bits(got, want, dtype):
    """The result's bits; the gradient's in float32, where 16-bit stock rounds it more than once."""
    assert got[0].dtype == want[0].dtype == dtype
    assert torch.equal(got[0], want[0])
    if dtype == torch.float32:
        assert torch.equal(got[1], want[1])
    else:
        assert (got[1] - want[1]).abs().max() <= CLOSE_16 * want[1].abs().max()


@TYPES
@pytest.mark.parametrize(("unbind", "axis"), REAL)
def test_real_form_has_the_bits_of_stock(dtype, unbind, axis):
    rows = activations(2, 7, 3, 10, dtype=dtype) if axis == 1 else activations(2, 3, 7, 10, dtype=dtype)
    tables = angles(7, 10)  # unequal within pairs
    keywords = {"use_real_unbind_dim": unbind, "sequence_dim": axis}
    got, want, calls = both(embeddings.apply_rotary_emb, _diffusers_rotary.embeddings_rotary, rows, tables, **keywords)
    assert calls == 0
    assert_bits(got, want, dtype)


@TYPES
def test_ltx_form_has_the_bits_of_stock(dtype):
    got, want, calls = both(
        transformer_ltx.apply_rotary_emb,
        _diffusers_rotary.ltx_rotary,
        activations(2, 7, 24, dtype=dtype),
        angles(2, 7, 24),
    )
    assert calls == 0
    assert_bits(got, want, dtype)


def wan_formula(rows, cos, sin):
    pairs = rows.unflatten(-1, (-1, 2))
    c, s = cos[..., 0::2], sin[..., 1::2]
    turned = torch.stack([pairs[..., 0] * c - pairs[..., 1] * s, pairs[..., 0] * s + pairs[..., 1] * c], dim=-1)
    return turned.flatten(-2).type_as(rows)


@TYPES
def test_wan_form_has_the_formulas_bits(dtype):
    tables = angles(1, 7, 1, 12)
    got, want, _ = both(
        wan_formula, lambda _: _diffusers_rotary.wan_turned, activations(2, 7, 3, 12, dtype=dtype), *tables
    )
    assert_bits(got, want, dtype)


@TYPES
@pytest.mark.parametrize("width", [6, 16])
@pytest.mark.parametrize("form", ["embeddings", "qwen"])
def test_complex_form(form, width, dtype):
    """Within a rounding of each operation: a complex product of PyTorch may fuse them."""
    shape = (2, 7, width // 2) if form == "embeddings" else (7, width // 2)
    freqs = torch.complex(*angles(*shape))
    stock, make = {
        "embeddings": (embeddings.apply_rotary_emb, _diffusers_rotary.embeddings_rotary),
        "qwen": (transformer_qwenimage.apply_rotary_emb_qwen, _diffusers_rotary.qwen_rotary),
    }[form]
    rows = activations(2, 7, 3, width, dtype=dtype)
    got, want, calls = both(stock, make, rows, freqs, use_real=False)
    assert calls == 0
    eps = torch.finfo(dtype).eps
    for one, other in zip(got, want, strict=True):
        assert one.dtype == other.dtype == dtype
        assert one.isfinite().all()
        scale = 2 * max(rows.abs().max().item(), other.abs().max().item())
        assert (one.float() - other.float()).abs().max() <= eps * scale


@pytest.mark.parametrize("name", ["embeddings", "qwen"])
@pytest.mark.parametrize("start", [0, 2])
def test_the_result_has_stocks_memory_order(name, start):
    """Of heads before positions that lie the other way round, whole and in part."""
    x = torch.randn(2, 9, 3, 10, generator=torch.Generator().manual_seed(1))
    if name == "embeddings":
        x = x.transpose(1, 2)[:, :, start:]
        stock, make = embeddings.apply_rotary_emb, _diffusers_rotary.embeddings_rotary
        arguments = (angles(9 - start, 10),)
    else:
        x = x.transpose(1, 2).contiguous().transpose(1, 2)[:, start:]
        stock, make = transformer_qwenimage.apply_rotary_emb_qwen, _diffusers_rotary.qwen_rotary
        arguments = (torch.complex(*angles(9 - start, 5)), False)
    got, want = make(stock)(x, *arguments), stock(x, *arguments)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=0, atol=CLOSE, equal_nan=False)


def test_tables_get_gradients():
    cos, sin = (table.requires_grad_() for table in angles(7, 10))
    rows, dy = activations(2, 3, 7, 10), torch.randn(2, 3, 7, 10, generator=torch.Generator().manual_seed(4))
    replacement = _diffusers_rotary.embeddings_rotary(embeddings.apply_rotary_emb)
    got, want = (
        torch.autograd.grad(function(rows, (cos, sin)), (cos, sin), dy)
        for function in (replacement, embeddings.apply_rotary_emb)
    )
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=CLOSE * other.abs().max().item(), equal_nan=False)


STOCKS = {  # what gyrograd does not take: rows, tables
    "float64": (activations(2, 3, 7, 10, dtype=torch.float64), angles(7, 10)),
    "16-bit tables": (activations(2, 3, 7, 10), [table.half() for table in angles(7, 10)]),
    "float64 tables": (activations(2, 3, 7, 10), [table.double() for table in angles(7, 10)]),
    "unlike tables": (activations(2, 3, 7, 10), [angles(7, 10)[0], angles(1, 10)[1]]),
    "tables of one channel": (activations(2, 3, 7, 10), angles(7, 1)),
    "rows that broadcast": (activations(2, 3, 1, 10), angles(7, 10)),
    "a subclass": (activations(2, 3, 7, 10).as_subclass(type("Own", (torch.Tensor,), {})), angles(7, 10)),
}


@pytest.mark.parametrize("name", STOCKS)
def test_what_gyrograd_does_not_take_is_stocks(name):
    rows, tables = STOCKS[name]
    got, want, calls = both(embeddings.apply_rotary_emb, _diffusers_rotary.embeddings_rotary, rows, tables)
    assert calls == 1
    for one, other in zip(got, want, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("keywords", [{"sequence_dim": 3}, {"use_real_unbind_dim": 0}], ids=str)
def test_stocks_errors_stay(keywords):
    replacement = _diffusers_rotary.embeddings_rotary(embeddings.apply_rotary_emb)
    with pytest.raises(ValueError, match="should be"):
        replacement(activations(2, 3, 7, 10), angles(7, 10), **keywords)


def test_forward_mode_is_stocks():
    tables = angles(7, 10)
    replacement = _diffusers_rotary.embeddings_rotary(embeddings.apply_rotary_emb)
    rows, tangent = activations(2, 3, 7, 10).detach(), torch.ones(2, 3, 7, 10)
    got, want = (
        torch.func.jvp(lambda x, f=function: f(x, tables), (rows,), (tangent,))
        for function in (replacement, embeddings.apply_rotary_emb)
    )
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)


# ---- attention that stays stock


def joint_calls(model, batch):
    with torch.no_grad(), Watched() as watched:
        y = output(model, batch)
    return y, collections.Counter(watched.calls)["norm_rope_concat"]


def changed_hook(model):
    model.transformer_blocks[0].attn.norm_q.register_forward_hook(lambda *_: None)


def changed_eps(model):
    model.transformer_blocks[0].attn.norm_added_k.eps = 0.3


def changed_class(model):
    attn = model.transformer_blocks[0].attn
    attn.norm_k = torch.nn.Sequential(attn.norm_k)


def changed_kind(model):
    attn = model.transformer_blocks[0].attn
    attn.norm_k = torch.nn.LayerNorm(16, eps=1e-6)


def changed_type(model):
    attn = model.transformer_blocks[0].attn
    attn.norm_k.weight.data = attn.norm_k.weight.data.bfloat16()


@pytest.mark.parametrize("change", [changed_hook, changed_eps, changed_class, changed_kind, changed_type])
def test_norms_that_do_not_fit_stay_with_stock(change):
    """One module; the other's are gyrograd's."""
    model, batch = FLUX.model().eval(), FLUX.batch()
    change(model)
    with torch.no_grad():
        want = output(model, batch)
    with switch_to_gyrograd(model) as switch:
        got, calls = joint_calls(model, batch)
    assert calls == 1
    assert (got - want).abs().max() <= CLOSE * want.abs().max()
    if change is not changed_type:  # which is seen when it runs
        assert "1 of 2 attention modules stay" in switch.report.replaced[0].reason


@pytest.mark.parametrize("case", CASES[:6], ids=lambda case: case.name)
def test_float64_is_projected_once(case):
    """Projections may have hooks, and draw random numbers: where stock is called, nothing was computed before."""
    model = case.model().to(torch.float64)
    batch = {name: in_float64(value) for name, value in case.batch().items()}
    seen = []
    for name, module in model.named_modules():
        if name.endswith(("to_q", "add_q_proj")):
            module.register_forward_hook(lambda *_, name=name: seen.append(name))
    want = results(model, batch)
    stocks = [*seen]
    seen.clear()
    with switch_to_gyrograd(model), Watched() as watched:
        assert_same(results(model, batch), want)
    assert watched.calls == []
    assert seen == stocks and stocks


def in_float64(value):
    if isinstance(value, tuple):
        return tuple(map(in_float64, value))
    return value.double() if torch.is_tensor(value) and value.is_floating_point() else value


def test_norms_that_a_global_hook_sees_are_stocks():
    model, batch = FLUX.model().eval(), FLUX.batch()
    seen = []
    with switch_to_gyrograd(model):
        hook = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
        _, calls = joint_calls(model, batch)
        hook.remove()
        assert calls == 0
        assert model.transformer_blocks[0].attn.norm_q in seen
        assert joint_calls(model, batch)[1] == 2


@pytest.mark.parametrize("case", [FLUX, HUNYUAN, QWEN, WAN], ids=lambda case: case.name)
def test_attention_that_is_put_there_after_is_called(case, monkeypatch):
    model, batch = case.model().eval(), case.batch()
    module = inspect.getmodule(type(model))
    attend, calls = module.dispatch_attention_fn, []

    def counted(*arguments, **keywords):
        calls.append(1)
        return attend(*arguments, **keywords)

    def count():
        with monkeypatch.context() as patch, torch.no_grad():
            patch.setattr(module, "dispatch_attention_fn", counted)
            calls.clear()
            output(model, batch)
        return len(calls)

    want = count()
    with switch_to_gyrograd(model):
        assert count() == want > 0


def test_a_model_without_norms_is_left():
    model = SD3.model(qk_norm=None, dual_attention_layers=())
    before = attention_processor.JointAttnProcessor2_0.__call__
    with pytest.warns(UserWarning, match="nothing was replaced"):
        switch = switch_to_gyrograd(model)
    assert attention_processor.JointAttnProcessor2_0.__call__ is before
    (finding,) = switch.report.left
    assert "no norm" in finding.reason
    switch.undo()


def test_tables_that_require_grad_stay_with_stock():
    attn = FLUX.model().transformer_blocks[0].attn
    rows = torch.randn(2, BATCH, 6, 32, generator=torch.Generator().manual_seed(1))
    tables = [table.requires_grad_() for table in angles(12, 16)]

    def gradients():
        image, text = attn(*rows, image_rotary_emb=tables)
        return torch.autograd.grad(loss_of(image) + loss_of(text), tables)

    want = gradients()
    with switch_to_gyrograd(attn):
        got = gradients()
    for one, other in zip(got, want, strict=True):
        assert other.abs().max() > 0
        assert one.isfinite().all()
        assert (one - other).abs().max() <= CLOSE * other.abs().max()


MASKED = {
    "CogVideoXTransformer3DModel": lambda seen: seen.float().log().clamp(min=-1e4)[:, None],
    "FluxTransformer2DModel": lambda seen: seen[:, None, None],
}


@pytest.mark.parametrize("name", MASKED)
def test_attention_masks(name):
    """That a model's forward does not pass, but its attention takes."""
    case = BY_NAME[name]
    attn = case.model().transformer_blocks[0].attn1 if case is COGVIDEOX else case.model().transformer_blocks[0].attn
    image, text = torch.randn(2, BATCH, 6, 32, generator=torch.Generator().manual_seed(1))
    seen = torch.ones(BATCH, 12, dtype=torch.bool)
    seen[1, 2:5] = False
    tables = angles(6 if case is COGVIDEOX else 12, 16)

    def call(mask):
        keywords = {"encoder_hidden_states": text, "attention_mask": mask, "image_rotary_emb": tables}
        with torch.no_grad(), Watched() as watched:
            rows = torch.cat(attn(image, **keywords), dim=1)
        return rows, watched.calls

    unmasked, _ = call(None)
    want, _ = call(MASKED[name](seen))
    assert (want - unmasked).abs().max() > 100 * CLOSE * want.abs().max()
    with switch_to_gyrograd(attn):
        got, calls = call(MASKED[name](seen))
    assert calls == ["norm_rope_concat"]
    assert got.isfinite().all()
    assert (got - want).abs().max() <= CLOSE * want.abs().max()


def test_wans_attention_to_an_image_stays_with_stock():
    """Keys of two kinds: 512 of the text, after those of the image."""
    processor = transformer_wan.WanAttnProcessor()
    attn = transformer_wan.WanAttention(8, heads=1, dim_head=8, added_kv_proj_dim=8, processor=processor)
    image, text = torch.randn(1, 512, 8), torch.randn(1, 515, 8)
    tables = angles(1, 512, 1, 8)
    with torch.no_grad():
        want = attn(image, text, rotary_emb=tables)
        with switch_to_gyrograd(attn), Watched() as watched:
            got = attn(image, text, rotary_emb=tables)
    assert watched.calls == []
    assert torch.equal(got, want)


def test_a_model_without_rotary_is_normed():
    """CogVideoX by learned positions: nothing turns."""
    model, batch = COGVIDEOX.model(use_rotary_positional_embeddings=False).eval(), COGVIDEOX.batch()
    batch["image_rotary_emb"] = None
    with torch.no_grad():
        want = output(model, batch)
    with switch_to_gyrograd(model):
        got, calls = joint_calls(model, batch)
    assert calls == 2
    assert (got - want).abs().max() <= CLOSE * want.abs().max()


def test_wrong_tables_are_refused_as_by_stock():
    model, batch = COGVIDEOX.model(), COGVIDEOX.batch()
    batch["image_rotary_emb"] = tuple(table[:-1] for table in batch["image_rotary_emb"])
    with pytest.raises(RuntimeError) as want:
        output(model, batch)
    with switch_to_gyrograd(model), pytest.raises(RuntimeError) as got:
        output(model, batch)
    assert str(got.value) == str(want.value)


def test_fused_projections_of_flux_are_gyrograds():
    model, batch = FLUX.model().eval(), FLUX.batch()
    model.fuse_qkv_projections()
    with torch.no_grad():
        want = output(model, batch)
    with switch_to_gyrograd(model):
        got, calls = joint_calls(model, batch)
    assert calls == 2
    assert (got - want).abs().max() <= CLOSE * want.abs().max()


def test_another_processor_keeps_its_norms():
    """With projections fused, CogVideoX has another processor: the rotary alone is replaced, bit for bit."""
    model, batch = COGVIDEOX.model().eval(), COGVIDEOX.batch()
    model.fuse_qkv_projections()
    with torch.no_grad():
        want = output(model, batch)
        with switch_to_gyrograd(model) as switch, Watched() as watched:
            got = output(model, batch)
    assert watched.calls == ["rotary"] * 4
    assert torch.equal(got, want)
    assert [one.what for one in switch.report.left] == ["QK-norm"]


# ---- the switch

PLACES = {
    "CogVideoXTransformer3DModel": [
        (attention_processor.CogVideoXAttnProcessor2_0, "__call__"),
        (embeddings, "apply_rotary_emb"),
    ],
    "SD3Transformer2DModel": [(attention_processor.JointAttnProcessor2_0, "__call__")],
    "FluxTransformer2DModel": [
        (transformer_flux.FluxAttnProcessor, "__call__"),
        (transformer_flux, "apply_rotary_emb"),
    ],
    "HunyuanVideoTransformer3DModel": [
        (diffusers.models.transformers.transformer_hunyuan_video.HunyuanVideoAttnProcessor2_0, "__call__"),
        (embeddings, "apply_rotary_emb"),
    ],
    "QwenImageTransformer2DModel": [
        (transformer_qwenimage.QwenDoubleStreamAttnProcessor2_0, "__call__"),
        (transformer_qwenimage, "apply_rotary_emb_qwen"),
    ],
    "WanTransformer3DModel": [(transformer_wan.WanAttnProcessor, "__call__")],
    "Lumina2Transformer2DModel": [(diffusers.models.transformers.transformer_lumina2, "apply_rotary_emb")],
    "LTXVideoTransformer3DModel": [(transformer_ltx, "apply_rotary_emb")],
}


@EVERY
def test_the_report_names_what_is_replaced_and_undo_puts_it_back(case):
    there = PLACES[case.name]
    before = [vars(owner)[name] for owner, name in there]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        switch = switch_to_gyrograd(case.model())
    during = [vars(owner)[name] for owner, name in there]
    assert len(switch.report.replaced) == len(there)
    assert all(one is not other for one, other in zip(during, before, strict=True))
    for (owner, name), stock, replacement in zip(there, before, during, strict=True):
        full = f"{owner.__module__}.{owner.__name__}.{name}" if inspect.isclass(owner) else f"{owner.__name__}.{name}"
        assert full in [finding.place for finding in switch.report.replaced]
        assert inspect.signature(replacement) == inspect.signature(stock)
        assert replacement.__name__ == stock.__name__
    assert "replaced" in str(switch.report)
    switch.undo()
    switch.undo()
    assert all(vars(owner)[name] is stock for (owner, name), stock in zip(there, before, strict=True))


def test_switching_again_is_counted():
    model = FLUX.model()
    before = transformer_flux.FluxAttnProcessor.__call__
    outer = switch_to_gyrograd(model)
    with switch_to_gyrograd(model) as inner:
        assert [one.place for one in inner.report.replaced] == [one.place for one in outer.report.replaced]
    assert transformer_flux.FluxAttnProcessor.__call__ is not before
    outer.undo()
    assert transformer_flux.FluxAttnProcessor.__call__ is before


def test_unknown_code_is_left_with_one_warning(monkeypatch):
    def other(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, image_rotary_emb=None):
        return hidden_states, encoder_hidden_states

    def turned(x, freqs_cis, use_real=True, use_real_unbind_dim=-1, sequence_dim=2):
        return x

    monkeypatch.setattr(transformer_flux.FluxAttnProcessor, "__call__", other)
    monkeypatch.setattr(transformer_flux, "apply_rotary_emb", turned)
    with pytest.warns(UserWarning, match="FluxAttnProcessor.__call__") as caught:
        switch = switch_to_gyrograd(FLUX.model())
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert not switch.report.replaced
    assert transformer_flux.FluxAttnProcessor.__call__ is other
    assert transformer_flux.apply_rotary_emb is turned
    switch.undo()


def test_a_known_processor_whose_helper_is_not_known_is_left(monkeypatch):
    def other(attn, hidden_states, encoder_hidden_states=None):
        return (hidden_states,) * 6

    monkeypatch.setattr(transformer_flux, "_get_qkv_projections", other)
    before = transformer_flux.FluxAttnProcessor.__call__
    with pytest.warns(UserWarning, match="FluxAttnProcessor.__call__"), switch_to_gyrograd(FLUX.model()) as switch:
        assert transformer_flux.FluxAttnProcessor.__call__ is before
    assert "_get_qkv_projections" in switch.report.left[0].reason


def test_a_rotary_of_a_processors_own_is_left_with_a_warning():
    """EasyAnimate's neighbours in attention_processor: Mochi defines its rotary within."""
    attn = torch.nn.Module()
    attn.processor = attention_processor.MochiAttnProcessor2_0()
    with pytest.warns(UserWarning, match="MochiAttnProcessor2_0"):
        switch = switch_to_gyrograd(attn)
    assert not switch.report.replaced


@pytest.mark.parametrize("wrong", [None, "FluxTransformer2DModel", diffusers.FluxTransformer2DModel])
def test_what_is_no_model_is_refused(wrong):
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        switch_to_gyrograd(wrong)


def test_text_of_any_length():
    """No text, one token, more text than image."""
    model = FLUX.model().eval()
    for length in (1, TEXT, 31):
        batch = FLUX.batch()
        generator = torch.Generator().manual_seed(length)
        batch["encoder_hidden_states"] = torch.randn(BATCH, length, 16, generator=generator)
        batch["txt_ids"] = torch.zeros(length, 3)
        want = results(model, batch)
        with switch_to_gyrograd(model):
            got = results(model, batch)
        assert_close(got, want)
