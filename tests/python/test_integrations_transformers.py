"""gyrograd.integrations.transformers against the stock package."""

import copy
import functools
import importlib
import inspect
import os
import pickle

os.environ["HF_HUB_OFFLINE"] = "1"  # every model here is made from its configuration

import pytest
import torch
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers_inputs import arguments
from transformers_models import MODELS, batch, is_text, loss, model

import gyrograd.torch as gt
from gyrograd.integrations import _transformers_rotary
from gyrograd.integrations import transformers as switched
from gyrograd.integrations._fingerprint import fingerprint
from gyrograd.integrations._known_transformers import (
    ATTENTIONS,
    LEFT,
    LEFT_ATTENTIONS,
    OTHER_NORMS,
    ROTARIES,
    TRAINED,
    VERSION,
)

# ---- the list of known code


def modeling(place):
    """The modeling module of a "model.name"."""
    model, _, name = place.partition(".")
    for path in (f"{model}.modeling_{model}", MODULES.get(model, "")):
        try:
            return importlib.import_module(f"transformers.models.{path}"), name
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(place)


MODULES = {}
ALL = [
    (code, place) for table in (ROTARIES, ATTENTIONS, LEFT) for code, known in table.items() for place in known.places
]


def object_at(place):
    module, path = modeling(place)
    thing = module
    for name in path.split("."):
        thing = inspect.getattr_static(thing, name)
    return thing


@pytest.mark.parametrize("code", [*ROTARIES, *LEFT])
def test_every_place_has_the_code(code):
    for place in (ROTARIES.get(code) or LEFT[code]).places:
        thing = object_at(place)
        function = thing.__func__ if isinstance(thing, staticmethod) else thing
        assert switched._fingerprint(function) == code, place


@pytest.mark.parametrize("code", [*ATTENTIONS, *LEFT_ATTENTIONS])
def test_every_attention_has_the_code(code):
    for place in (ATTENTIONS.get(code) or LEFT_ATTENTIONS[code]).places:
        assert fingerprint(object_at(place).forward) == code, place


def test_one_attention_of_each_kind_is_run():
    for known in ATTENTIONS.values():
        assert {place.partition(".")[0] for place in known.places} & set(NORMED)


NAMES = sorted({place.partition(".")[0] for _, place in ALL})


def listed(table):
    return {place for known in table.values() for place in known.places}


def test_reports_say_what_the_list_says():
    """Of all modules of the package, at once: everything listed is replaced, or left, and there is nothing else."""
    modules = [importlib.import_module(f"transformers.models.{name}.modeling_{name}") for name in NAMES]
    with switched.switch_to_gyrograd(modules) as active:
        report = active.report
    assert all(finding.is_known for finding in report.findings)

    def places(findings):
        names = [finding.place.split(".modeling_")[1].removesuffix(".forward") for finding in findings]
        assert len(names) == len(set(names))
        return set(names)

    replaced = places(report.replaced)
    assert replaced == listed(ROTARIES) | listed(ATTENTIONS)
    assert places(report.left) == listed(LEFT) | listed(LEFT_ATTENTIONS) | {*OTHER_NORMS}


# ---- functions alone

# PyTorch multiplies complex numbers with other roundings.
INEXACT = ("complex q, k", "complex q, k, vision")
# Stock's keys are concatenated, its queries are not; gyrograd's have one memory order.
OTHER_STRIDES = ("q, k, memory",)


def both(code):
    known = ROTARIES[code]
    function = object_at(known.places[0])
    return known.form, function, _transformers_rotary.replacement(known.form, function)


def differentiable(x):
    return x.is_floating_point() or x.is_complex()


def leaves_of(rotary, inputs):
    """Copies that require grad: all that can, but not the tables of norm_rope."""
    has_tables = rotary.arguments != "q, k after a prefix"
    return [x.detach().requires_grad_(differentiable(x) and (has_tables or x.dim() == 4)) for x in inputs]


def outcome(rotary, function, inputs, seed=7, **options):
    """Results and gradients of all that is differentiable."""
    inputs = leaves_of(rotary, inputs)
    results = function(*inputs, **options)
    results = (results,) if isinstance(results, torch.Tensor) else results
    generator = torch.Generator().manual_seed(seed)
    dys = [torch.randn(y.shape, generator=generator).to(y.dtype) for y in results]
    leaves = [x for x in inputs if x.requires_grad]
    return [y.detach() for y in results], list(torch.autograd.grad(results, leaves, dys))


@pytest.fixture
def calls(monkeypatch):
    """The names of gyrograd.torch's functions that were called."""
    names = []
    for name in ("rotary", "rotary_qk", "norm_rope"):
        function = getattr(gt, name)

        def counted(*args, _function=function, _name=name, **kwargs):
            names.append(_name)
            return _function(*args, **kwargs)

        monkeypatch.setattr(gt, name, counted)
    return names


def assert_close(got, want, tolerance):
    """Of the largest value; NaN nowhere."""
    assert got.shape == want.shape and got.dtype == want.dtype
    assert not got.isnan().any() and not want.isnan().any()
    assert (got - want).abs().max() <= tolerance * want.abs().max()


def assert_same(got, want):
    """The same bits."""
    assert got.dtype == want.dtype and got.shape == want.shape
    assert not got.isnan().any() and torch.equal(got, want)


def is_row(x, result):
    """Whether an argument is what turns; the others are tables."""
    return x.shape[-1] == result.shape[-1] and x.dim() == result.dim() and x.shape[0] == result.shape[0]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("code", ROTARIES)
def test_function_in_float32(code, batch, calls):
    """Results have stock's bits and strides, and rows' gradients stock's bits."""
    rotary, function, replaced = both(code)
    inputs = arguments(rotary, 1, batch)
    (results, gradients), (want, want_gradients) = outcome(rotary, replaced, inputs), outcome(rotary, function, inputs)
    assert calls
    is_exact = rotary.arguments not in INEXACT
    for got, expected in zip(results, want, strict=True):
        assert_same(got, expected) if is_exact else assert_close(got, expected, 1e-6)
        assert got.stride() == expected.stride() or rotary.arguments in OTHER_STRIDES
    leaves = (x for x in leaves_of(rotary, inputs) if x.requires_grad)
    for x, got, expected in zip(leaves, gradients, want_gradients, strict=True):
        if is_exact and is_row(x, results[0]):
            assert_same(got, expected)
        else:
            assert_close(got, expected, 1e-5)


@pytest.mark.parametrize("one_head, swapped", [(True, (True, True)), (False, (True, False)), (False, (False, True))])
def test_queries_and_keys_have_orders_of_their_own(one_head, swapped, calls):
    """As stock's have: views of [B, S, N, D], or not, or one head of keys, which is both."""
    _, function, replaced = both("88a9b6c75b230609")
    generator = torch.Generator().manual_seed(3)

    def row(heads, is_swapped):
        x = torch.randn(2, 5, heads, 16, generator=generator).transpose(1, 2)
        return x if is_swapped else x.contiguous()

    q, k = row(4, swapped[0]), row(1 if one_head else 2, swapped[1])
    tables = torch.randn(2, 2, 5, 16, generator=generator)
    for got, want in zip(replaced(q, k, *tables), function(q, k, *tables), strict=True):
        assert_same(got, want)
        assert got.shape[1] == 1 or got.stride() == want.stride()
    assert calls == (["rotary_qk"] if one_head else ["rotary", "rotary"])


WITH_AXIS = [
    code
    for code, known in ROTARIES.items()
    if "fixed" not in known.form.arguments
    and known.form.arguments in ("q, k", "q, k, positions", "q, k or none", "q, optional k", "x")
]


@pytest.mark.parametrize("code", WITH_AXIS)
def test_function_with_another_axis(code, calls):
    """Rows [B, S, N, D], unsqueeze_dim 2, and -2, which is the same."""
    rotary, function, replaced = both(code)
    inputs = arguments(rotary, 2)
    inputs = [x.transpose(1, 2) if x.dim() == 4 else x for x in inputs]
    want = outcome(rotary, function, inputs, unsqueeze_dim=2)[0]
    for axis in (2, -2):
        got = outcome(rotary, replaced, inputs, unsqueeze_dim=axis)[0]
        for one, other in zip(got, want, strict=True):
            assert_same(one, other)
            assert one.stride() == other.stride()
    assert len(calls) == 2


NO_COMPLEX = [code for code, known in ROTARIES.items() if known.form.tables != "complex"]
HALVES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("code", NO_COMPLEX)
def test_function_in_16_bits(code, dtype, calls):
    """All of one type: the float32 result of the same values, rounded once, and so are rows' gradients. Stock rounds
    more often: it is within some roundings of that.
    """
    rotary, function, replaced = both(code)
    inputs = [x.to(dtype) if differentiable(x) else x for x in arguments(rotary, 3)]
    wide = [x.float() if differentiable(x) else x for x in inputs]
    results, gradients = outcome(rotary, replaced, inputs)
    assert calls
    stock_results, stock_gradients = outcome(rotary, function, inputs)
    eps = torch.finfo(dtype).eps
    wide_inputs = leaves_of(rotary, wide)
    exact = function(*wide_inputs)
    exact = (exact,) if isinstance(exact, torch.Tensor) else exact
    generator = torch.Generator().manual_seed(7)
    dys = [torch.randn(y.shape, generator=generator).to(dtype).float() for y in exact]
    exact_gradients = torch.autograd.grad(exact, [x for x in wide_inputs if x.requires_grad], dys)
    for got, want, stocks in zip(results, exact, stock_results, strict=True):
        assert_same(got, want.detach().to(dtype))
        assert_close(stocks, got, 3 * eps)
    leaves = (x for x in leaves_of(rotary, inputs) if x.requires_grad)
    for x, got, want, stocks in zip(leaves, gradients, exact_gradients, stock_gradients, strict=True):
        if is_row(x, results[0]):
            assert_same(got, want.to(dtype))
        else:
            assert_close(got, want.to(dtype), eps)
        assert_close(stocks, got, 8 * eps)


@pytest.mark.parametrize(
    "types",
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.float16, torch.bfloat16),
        (torch.float32, torch.float16),
    ],
)
@pytest.mark.parametrize("code", NO_COMPLEX)
def test_function_of_two_types(code, types, calls):
    """Rows of one type, tables of another: stock's type and, since stock then computes in float32, stock's bits."""
    rotary, function, replaced = both(code)
    inputs = arguments(rotary, 4)
    result = function(*inputs)
    shaped = result if isinstance(result, torch.Tensor) else result[0]
    inputs = [x if not differentiable(x) else x.to(types[0] if is_row(x, shaped) else types[1]) for x in inputs]
    (got, gradients), (want, want_gradients) = outcome(rotary, replaced, inputs), outcome(rotary, function, inputs)
    assert calls
    for one, other in zip(got, want, strict=True):
        assert_same(one, other)
    for one, other in zip(gradients, want_gradients, strict=True):
        assert_close(one, other, 4 * torch.finfo(other.dtype).eps + 1e-5)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("code", [code for code in ROTARIES if code not in NO_COMPLEX])
def test_complex_function_in_16_bits(code, dtype, calls):
    """Rows of 16 bits beside complex64 tables."""
    rotary, function, replaced = both(code)
    inputs = [x if x.is_complex() else x.to(dtype) for x in arguments(rotary, 5)]
    (got, gradients), (want, want_gradients) = outcome(rotary, replaced, inputs), outcome(rotary, function, inputs)
    assert calls
    for one, other in zip(got + gradients, want + want_gradients, strict=True):
        assert_close(one, other, 2 * torch.finfo(dtype).eps)


# ---- what gyrograd does not take

LLAMA, UPCAST = "88a9b6c75b230609", "b9518601cfd892b1"


def test_calls_that_gyrograd_does_not_take_are_stock(calls):
    """With stock's results, types and errors."""
    rotary, function, replaced = both(LLAMA)
    q, k, cos, sin = arguments(rotary, 6)
    odd = {
        "meta": [x.to("meta") for x in (q, k, cos, sin)],
        "integers": [(4 * x).long() for x in (q, k, cos, sin)],
        "complex rows": [torch.complex(x, x) for x in (q, k)] + [cos, sin],
        "two types of rows": [q.bfloat16(), k, cos, sin],
        "two types of tables": [q, k, cos, sin.double()],
        "one table value a row": [q, k, cos[..., :1], sin[..., :1]],
        "an odd width": [x[..., :15] for x in (q, k, cos, sin)],
        "tables of more positions": [q[:, :, :1], k[:, :, :1], cos, sin],
        "tables of more batches": [q[:1], k[:1], cos, sin],
    }
    for what, inputs in odd.items():
        got, want = replaced(*inputs), function(*inputs)
        for one, other in zip(got, want, strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape, what
            assert one.device == other.device and (one.is_meta or torch.equal(one, other)), what
    wrong = {
        "narrow": [q, k, cos[..., :8], sin[..., :8]],
        "numbers": [q, k, 1.0, 0.0],
        "ranks": [q, k, cos[None, None, None], sin[None, None]],
    }
    for what, inputs in wrong.items():
        with pytest.raises(Exception) as expected:
            function(*inputs)
        with pytest.raises(type(expected.value)) as raised:
            replaced(*inputs)
        assert str(raised.value) == str(expected.value), what
    assert not calls


def test_float64_beside_a_function_that_computes_in_float32(calls):
    rotary, function, replaced = both(UPCAST)
    inputs = [x.double() for x in arguments(rotary, 7)]
    for one, other in zip(replaced(*inputs), function(*inputs), strict=True):
        assert_same(one, other)
    assert not calls


def test_float64(calls):
    rotary, function, replaced = both(LLAMA)
    inputs = [x.double() for x in arguments(rotary, 8)]
    (got, gradients), (want, want_gradients) = outcome(rotary, replaced, inputs), outcome(rotary, function, inputs)
    assert calls
    for one, other in zip(got + gradients[:2], want + want_gradients[:2], strict=True):
        assert_same(one, other)


def test_forward_mode_tangents_are_stock():
    rotary, function, replaced = both(LLAMA)
    q, k, cos, sin = arguments(rotary, 9)
    for transformed in (function, replaced):
        value, tangent = torch.func.jvp(lambda q, f=transformed: f(q, k, cos, sin)[0], (q,), (q,))
        assert_same(value, tangent)


def test_double_backward_of_a_function():
    rotary, function, replaced = both(LLAMA)
    q, k, cos, sin = arguments(rotary, 10)

    def penalty(turn):
        leaf = q.detach().requires_grad_()
        table = cos.detach().requires_grad_()
        y = turn(leaf, k, table, sin)[0]
        (gradient,) = torch.autograd.grad((y**3).sum(), leaf, create_graph=True)
        return torch.autograd.grad((gradient**2).sum(), (leaf, table))

    for one, other in zip(penalty(replaced), penalty(function), strict=True):
        assert_close(one, other, 1e-5)


FORMS = list({known.form.arguments: code for code, known in ROTARIES.items()}.values())


@pytest.mark.parametrize("code", FORMS)
def test_compiled_functions_are_in_one_graph(code):
    """Of every signature."""
    rotary, _, replaced = both(code)
    inputs = arguments(rotary, 11)
    targets = []

    def backend(graph, _):
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch._dynamo.reset()
    got = torch.compile(replaced, fullgraph=True, backend=backend)(*inputs)
    want = replaced(*inputs)
    pairs = [(got, want)] if isinstance(got, torch.Tensor) else zip(got, want, strict=True)
    for one, other in pairs:
        assert_same(one, other)
    assert any(target.startswith("gyrograd.") for target in targets), targets


# ---- models


@pytest.fixture
def switch():
    """switch_to_gyrograd, undone after the test."""
    made = []

    def call(*args, **kwargs):
        made.append(switched.switch_to_gyrograd(*args, **kwargs))
        return made[-1]

    yield call
    for one in reversed(made):
        one.undo()


LISTED = tuple(TRAINED)
TEXTS = [name for name in MODELS if is_text(name)]
# Stock's statistics of QK-norm are summed in float32, gyrograd's in float64: these agree within roundings. Everywhere
# else rows, tables and memory orders are the same, and so are the bits of losses and gradients.
NORMED = ("glm4_moe", "qwen3", "apertus", "exaone4", "gemma3", "lfm2", "qwen3_next", "qwen3_vl")


def gradients_of(made, inputs):
    """The loss, and gradients by name."""
    made.zero_grad()
    value = loss(made, inputs)
    value.backward()
    return value.detach(), {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}


def assert_models_agree(name, got, want, tolerance=1e-4):
    """Loss and gradients."""
    assert got[1].keys() == want[1].keys() and len(want[1]) > 5
    if name in NORMED:
        assert_close(got[0], want[0], 1e-5)
        for key, gradient in got[1].items():
            assert_close(gradient, want[1][key], tolerance)
    else:
        assert_same(got[0], want[0])
        for key, gradient in got[1].items():
            assert_same(gradient, want[1][key])


ATTENTION_KERNELS = [
    (name, kind) for name in MODELS for kind in ("eager", "sdpa") if (name, kind) != ("gpt_oss", "sdpa")
]


@pytest.mark.parametrize("name, kernel", ATTENTION_KERNELS)
def test_loss_and_gradients(name, kernel, switch, calls):
    made, inputs = model(name, attn_implementation=kernel), batch(name)
    want = gradients_of(made, inputs)
    assert not calls
    report = switch(made).report
    got = gradients_of(made, inputs)
    expected = "norm_rope" if name in NORMED else "rotary"
    assert any(call.startswith(expected) for call in calls)
    assert ("rotary_qk" in calls) == (name not in NORMED and name != "gemma4_vision")
    assert any("QK-norm" in finding.what for finding in report.replaced) == (name in NORMED or "glm4_moe" in name)
    assert_models_agree(name, got, want)


def test_the_list_says_what_is_exact():
    assert {name: trained.is_exact for name, trained in TRAINED.items()} == {
        name: name not in NORMED for name in LISTED
    }


@pytest.mark.parametrize("name", LISTED)
def test_training(name, switch, calls):
    """20 steps of AdamW: the losses fall, and are stock's."""

    def losses():
        made = model(name)
        optimizer = torch.optim.AdamW(made.parameters(), lr=2e-3)
        values = []
        for step in range(20):
            optimizer.zero_grad()
            value = loss(made, batch(name, seed=step % 4))
            value.backward()
            optimizer.step()
            values.append(value.detach())
        return torch.stack(values)

    want = losses()
    switch(modeling_of(name))
    got = losses()
    assert calls
    assert want[-4:].mean() < want[:4].mean()
    assert_close(got, want, 1e-3) if name in NORMED else assert_same(got, want)


def modeling_of(name):
    return importlib.import_module(type(model(name)).__module__)


def assert_compiled_agrees(made, inputs, want, **options):
    got = gradients_of(torch.compile(made, fullgraph=True, **options), inputs)
    assert_close(got[0], want[0], 1e-5)
    assert len(got[1]) == len(want[1])
    for key, gradient in got[1].items():
        assert_close(gradient, want[1][key.removeprefix("_orig_mod.")], 1e-4)


@pytest.fixture
def targets():
    """The calls in graphs of the backend `watched`."""
    torch._dynamo.reset()
    return []


def watched_backend(targets):
    aot_eager = torch._dynamo.lookup_backend("aot_eager")

    def backend(graph, examples):
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return aot_eager(graph, examples)

    return backend


@pytest.mark.parametrize("name", LISTED)
def test_compiled_model(name, switch, targets):
    """In one graph, as stock, and with gyrograd's operators in it."""
    made, inputs = model(name, num_hidden_layers=1), batch(name)
    want = gradients_of(made, inputs)
    switch(made)
    assert_compiled_agrees(made, inputs, want, backend=watched_backend(targets))
    operator = "gyrograd.norm_rope" if name in NORMED else "gyrograd.rotary"
    assert any(target.startswith(operator) for target in targets)


def test_a_model_that_was_compiled_before(switch, targets):
    """It is compiled again once; after that, switching and undoing find what was compiled."""
    made, inputs = model("qwen3", num_hidden_layers=1), batch("qwen3")
    want = made(**inputs).logits
    compiled = torch.compile(made, fullgraph=True, backend=watched_backend(targets))

    def run():
        """The calls in newly compiled graphs."""
        targets.clear()
        assert_close(compiled(**inputs).logits, want, 1e-5)
        return [target.partition(".")[0] for target in targets]

    assert "gyrograd" not in run()
    assert not run()
    for again in range(3):
        active = switch(made)
        assert ("gyrograd" in run()) == (again == 0)
        active.undo()
        assert not run()


def test_model_compiled_by_inductor(switch):
    made, inputs = model("qwen3", num_hidden_layers=1), batch("qwen3")
    want = gradients_of(made, inputs)
    switch(made)
    torch._dynamo.reset()
    assert_compiled_agrees(made, inputs, want)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", LISTED)
def test_gradient_checkpointing(name, reentrant, switch, calls):
    made, inputs = model(name), batch(name)
    want = gradients_of(made, inputs)
    switch(made)
    made.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if is_text(name):
        made.enable_input_require_grads()
    once = gradients_of(made, inputs)
    assert len(calls) >= 2 * made.config.num_hidden_layers
    assert_models_agree(name, once, want)


# A rounding that sends a row to another expert is no rounding: these have one path for all rows.
WITHOUT_ROUTES = {
    "gpt_oss": {"num_local_experts": 1, "num_experts_per_tok": 1},
    "deepseek_v3": {"first_k_dense_replace": 2},
    "deepseek_v3_half": {"first_k_dense_replace": 2},
}


def assert_as_near_as_stock(got, stocks, exact):
    """Loss and gradients in bfloat16 are as near to float32's as stock's are."""
    assert_close(got[0].float(), stocks[0].float(), 1e-2)
    assert got[1].keys() == stocks[1].keys() == exact[1].keys()
    for key, want in exact[1].items():
        assert got[1][key].dtype == stocks[1][key].dtype
        mine, theirs = ((gradients[1][key].float() - want).norm() for gradients in (got, stocks))
        size = want.norm()
        assert mine <= 1.5 * theirs + 1e-2 * size, key
        assert theirs <= 0.3 * size, key


@pytest.mark.parametrize("name", LISTED)
def test_bfloat16_autocast(name, switch, calls):
    """Outside of QK-norm the loss has stock's bits: queries and keys have stock's type, and so its values."""
    made, inputs = model(name, attn_implementation="eager", **WITHOUT_ROUTES.get(name, {})), batch(name)
    exact = gradients_of(made, inputs)

    def run():
        with torch.autocast("cpu", torch.bfloat16):
            return gradients_of(made, inputs)

    want = run()
    switch(made)
    got = run()
    assert calls
    if name not in NORMED:
        assert_same(got[0], want[0])
    assert_as_near_as_stock(got, want, exact)


@pytest.mark.parametrize("name", LISTED)
def test_bfloat16_model(name, switch, calls):
    made, inputs = model(name, **WITHOUT_ROUTES.get(name, {})), batch(name)
    exact = gradients_of(made, inputs)
    made = made.bfloat16()
    want = gradients_of(made, inputs)
    switch(made)
    got = gradients_of(made, inputs)
    assert calls
    assert_as_near_as_stock(got, want, exact)


@pytest.mark.parametrize("name", LISTED)
def test_saved_and_loaded(name, switch, tmp_path, calls):
    made, inputs = model(name), batch(name)
    want = gradients_of(made, inputs)
    active = switch(made)
    made.save_pretrained(tmp_path)
    loaded = type(made).from_pretrained(tmp_path).train()
    got = gradients_of(loaded, inputs)
    assert calls
    assert_models_agree(name, got, want)
    active.undo()
    back = gradients_of(type(made).from_pretrained(tmp_path).train(), inputs)
    assert_same(back[0], want[0])


@pytest.mark.parametrize("name", LISTED)
def test_copies_and_pickles(name, switch, calls):
    made, inputs = model(name), batch(name)
    switch(made)
    want = gradients_of(made, inputs)
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        before = len(calls)
        got = gradients_of(other, inputs)
        assert len(calls) > before
        assert_same(got[0], want[0])


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "qwen3_vl"])
def test_generation(name, switch, calls):
    """With a cache: from the second token on, positions do not start at 0."""
    made = model(name).eval()
    inputs = batch(name, length=5)
    options = {"max_new_tokens": 8, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    options["eos_token_id"] = None
    want = made.generate(**inputs, **options)
    switch(made)
    got = made.generate(**inputs, **options)
    assert len(calls) >= 8
    assert got.sequences.shape == (2, 13)
    assert torch.equal(got.sequences, want.sequences)
    for one, other in zip(got.logits, want.logits, strict=True):
        assert_close(one, other, 1e-4) if name in NORMED else assert_same(one, other)


@pytest.mark.parametrize("name", [name for name in TEXTS if name in LISTED])
def test_batched_positions_and_padding(name, switch, calls):
    """Positions of each row's own, and a batch padded on the left."""
    made = model(name)
    inputs = batch(name)
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[0, :3] = 0
    inputs["attention_mask"] = mask
    inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0) + torch.tensor([[5], [0]])
    want = gradients_of(made, inputs)
    plain = gradients_of(made, batch(name))
    assert not torch.equal(plain[0], want[0])
    switch(made)
    assert_models_agree(name, gradients_of(made, inputs), want)
    assert calls


def test_learned_tables(switch, calls):
    """Frequencies that require grad reach the tables' gradients, with QK-norm by the rotary alone."""
    for name in ("llama", "qwen3"):
        made, inputs = model(name), batch(name)
        made.model.rotary_emb.inv_freq.requires_grad_()
        results = []
        for _ in range(2):
            made.model.rotary_emb.inv_freq.grad = None
            loss(made, inputs).backward()
            results.append(made.model.rotary_emb.inv_freq.grad.clone())
            switch(made)
        assert_close(results[1], results[0], 1e-5)
    assert set(calls) == {"rotary_qk"}


@pytest.mark.parametrize("name", [name for name in MODELS if name in NORMED])
def test_attention_is_called_as_before(name, switch):
    """With tensors of the same types and memory orders, and the same options, in training and not."""
    seen = []

    def attend(module, query, key, value, mask, **options):
        plain = {name: option for name, option in options.items() if not isinstance(option, torch.Tensor)}
        seen.append([(x.shape, x.dtype, x.stride()) for x in (query, key, value)] + [plain, set(options)])
        return sdpa_attention_forward(module, query, key, value, mask, **{**options, "dropout": 0.0})

    transformers.AttentionInterface.register("watched", attend)
    transformers.AttentionMaskInterface.register("watched", transformers.masking_utils.sdpa_mask)
    dropout = {} if name == "lfm2" else {"attention_dropout": 0.25}
    made, inputs = model(name, attn_implementation="watched", **dropout), batch(name)

    def run():
        seen.clear()
        made.train()(**inputs)
        made.eval()(**inputs)
        return list(seen)

    want = run()
    switch(made)
    assert run() == want
    assert len(want) >= 2
    assert ("dropout", 0.25) in want[0][3].items() or not dropout


def calls_of(attention, x, tables):
    """What calls of an attention's forward give: types of the results, or the words of the errors."""

    def call(*arguments, **keywords):
        try:
            return [type(one) for one in attention(*arguments, **keywords)]
        except TypeError as error:
            return str(error)

    cache = transformers.DynamicCache
    return {
        "old name": call(x, tables, None, past_key_values=cache()),
        "old name, None": call(x, tables, None, past_key_values=None),
        "both names": call(x, tables, None, cache=cache(), past_key_values=cache()),
        "no mask": call(x, tables),
        "rows alone": call(x),
        "nothing": call(),
        "one too many": call(x, tables, None, None, 3),
        "dropout": call(x, tables, None, dropout=0.5),
        "window": call(x, tables, None, sliding_window=3),
    }


@pytest.mark.filterwarnings("ignore:.*past_key_values:FutureWarning")
@pytest.mark.parametrize("name", ["qwen3", "gemma3", "exaone4"])
def test_arguments_of_an_attention_are_stocks(name, switch):
    """Its cache's old name, what it requires, and what it refuses."""
    made = model(name)
    attention = made.model.layers[0].self_attn
    generator = torch.Generator().manual_seed(1)
    x, tables = torch.randn(1, 4, 32, generator=generator), torch.randn(2, 1, 4, 8, generator=generator)
    want = calls_of(attention, x, tuple(tables))
    assert isinstance(want["old name"], list)
    switch(made)
    assert calls_of(attention, x, tuple(tables)) == want


# ---- finding


@pytest.mark.parametrize("name", MODELS)
def test_undo_restores_the_same_objects(name):
    made = model(name)
    owners = {module for module in map(type, made.modules()) if module.__module__.startswith("transformers.models")}
    owners |= {importlib.import_module(owner.__module__) for owner in owners}
    before = {owner: dict(vars(owner)) for owner in owners}

    def changed():
        return [
            (owner, name)
            for owner, names in before.items()
            for name, thing in vars(owner).items()
            if names.get(name) is not thing and not name.startswith("__")
        ]

    active = switched.switch_to_gyrograd(made)
    assert 0 < len(changed()) <= len(active.report.replaced)
    active.undo()
    assert not changed()
    with switched.switch_to_gyrograd(made), switched.switch_to_gyrograd(made) as second:
        assert second.report == active.report
    assert not changed()


def test_norms_may_be_left(switch, calls):
    made, inputs = model("qwen3"), batch("qwen3")
    want = gradients_of(made, inputs)
    report = switch(made, qk_norm=False).report
    got = gradients_of(made, inputs)
    assert [finding.what for finding in report.left] == ["QK-norm"]
    assert set(calls) == {"rotary_qk"}
    assert_same(got[0], want[0])


@pytest.mark.parametrize("is_global", [False, True])
def test_norms_that_are_watched_are_stock(switch, calls, is_global):
    """A hook sees what it saw."""
    made, inputs = model("qwen3"), batch("qwen3")
    seen = []

    def hook(module, *_):
        seen.append(module)

    switch(made)
    norms = [norm for layer in made.model.layers for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm)]
    if is_global:
        handles = [torch.nn.modules.module.register_module_forward_hook(hook)]
    else:
        handles = [norm.register_forward_hook(hook) for norm in norms]
    gradients_of(made, inputs)
    for handle in handles:
        handle.remove()
    assert [one for one in seen if one in norms] == norms
    assert set(calls) == {"rotary_qk"}
    gradients_of(made, inputs)
    assert "norm_rope" in calls


def test_a_norm_of_another_class_is_stock(switch, calls):
    made, inputs = model("qwen3"), batch("qwen3")
    for layer in made.model.layers:
        layer.self_attn.q_norm = torch.nn.LayerNorm(8)
    want = gradients_of(made, inputs)
    switch(made)
    assert_same(gradients_of(made, inputs)[0], want[0])
    assert set(calls) == {"rotary_qk"}


def test_a_norm_whose_class_is_changed_after_is_stock(switch, calls, monkeypatch):
    made, inputs = model("qwen3"), batch("qwen3")
    norm = modeling_of("qwen3").Qwen3RMSNorm
    forward = norm.forward
    switch(made)
    monkeypatch.setattr(norm, "forward", lambda self, x: 3 * forward(self, x))
    gradients_of(made, inputs)
    assert set(calls) == {"rotary_qk"}


def test_several_models_and_modules_at_once(switch):
    llama = modeling_of("llama")
    report = switch([model("qwen3"), llama]).report
    assert {finding.place.split(".")[2] for finding in report.replaced} == {"qwen3", "llama"}


@pytest.mark.parametrize(
    "thing, kind", [("a name", "str"), (3, "int"), ([None], "NoneType"), ({"a": 1}, "dict"), (torch.nn.Linear, "type")]
)
def test_other_things_are_refused(thing, kind):
    with pytest.raises(TypeError, match=rf"switch_to_gyrograd: a {kind} is neither"):
        switched.switch_to_gyrograd(thing)


def test_a_model_without_rotary_is_told(recwarn):
    with switched.switch_to_gyrograd(torch.nn.Linear(2, 2)) as active:
        assert active.report.findings == ()
    (warning,) = recwarn
    assert "nothing was replaced" in str(warning.message)
    assert warning.filename == __file__


CHANGED = """
import torch


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat(({}), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed
"""


@pytest.mark.parametrize("is_known", [True, False])
def test_a_version_that_is_not_known_is_left_with_one_warning(tmp_path, monkeypatch, recwarn, is_known):
    """Two modules whose functions differ in a helper alone."""
    name = f"modeling_changed_{is_known}"
    (tmp_path / f"{name}.py").write_text(CHANGED.format("-x2, x1" if is_known else "-x2, -x1"))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(name)
    before = module.apply_rotary_pos_emb
    with switched.switch_to_gyrograd(module) as active:
        assert (module.apply_rotary_pos_emb is before) == (not is_known)
        (finding,) = active.report.findings
        assert finding.replaced == finding.is_known == is_known
    if is_known:
        assert not list(recwarn)
    else:
        (warning,) = recwarn
        assert f"{name}.apply_rotary_pos_emb" in str(warning.message)
        assert f"transformers {transformers.__version__}" in str(warning.message)


def watched(function):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapped


@pytest.mark.parametrize("wrap", [watched, functools.partial, lambda function: lambda *args: function(*args)])
def test_what_another_package_put_there_is_left(monkeypatch, recwarn, wrap):
    llama = modeling_of("llama")
    other = wrap(llama.apply_rotary_pos_emb)
    monkeypatch.setattr(llama, "apply_rotary_pos_emb", other)
    with switched.switch_to_gyrograd(llama) as active:
        assert not active.report.replaced
        assert llama.apply_rotary_pos_emb is other
    assert "modeling_llama.apply_rotary_pos_emb" in str(recwarn.pop(UserWarning).message)


def test_a_layer_of_the_kernel_hook_is_seen_through(switch, monkeypatch, calls):
    """Where the package `kernels` is installed, the hook makes a layer of the function."""
    llama = modeling_of("llama")
    function = llama.apply_rotary_pos_emb

    class Layer(torch.nn.Module):
        kernel_layer_name = "rotary_pos_emb"

        def forward(self, *args, **kwargs):
            return function(*args, **kwargs)

    layer = Layer()
    monkeypatch.setattr(llama, "apply_rotary_pos_emb", layer)
    active = switch(llama)
    gradients_of(model("llama"), batch("llama"))
    assert calls
    active.undo()
    assert llama.apply_rotary_pos_emb is layer


def test_the_version_is_the_one_of_the_list():
    assert transformers.__version__ == VERSION
