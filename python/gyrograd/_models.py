"""The command `gyrograd models`: how much of a small model's training step is rotary and QK-norm, with stock, compiled
stock and gyrograd. A step is a forward and a backward on the CPU; the share is what it loses in time when they are left
out.
"""

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gyrograd._inputs import InputError, require_writable

NOTE = "Figures of a CPU: on a GPU these operators do not run yet."
_WARM_UP = 2  # steps of each way before any is timed
_BAR = 20  # characters

# Of transformers: the model's class, its configuration's class, and what it needs beyond sizes.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {}),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {}),
    "gpt_oss": ("GptOssForCausalLM", "GptOssConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}


@dataclass(frozen=True)
class Measured:
    """A way of a step: medians over the rounds of milliseconds, and of the share of each round's step that rotary and
    QK-norm take. A share of less than nothing is noise.
    """

    way: str
    step_ms: float
    without_ms: float
    share: float


def add_arguments(command: argparse.ArgumentParser, positive: Callable[[str], int]) -> None:
    """positive: reads a number of at least 1."""
    command.add_argument("model", nargs="?", choices=sorted(MODELS), default="qwen3", help="default qwen3")
    for name, default, words in (
        ("layers", 2, "decoder layers"),
        ("heads", 8, "heads of queries, an even number; keys have half as many"),
        ("head-dim", 64, "channels of a head, a multiple of 4"),
        ("length", 512, "tokens of a sequence"),
        ("batch", 1, "sequences"),
        ("rounds", 9, "timed steps of each way, in turns"),
    ):
        text = f"{words}; default {default}"
        command.add_argument(f"--{name}", type=positive, default=default, metavar="N", help=text)
    command.add_argument("--threads", type=positive, metavar="N", help="of PyTorch and gyrograd; default PyTorch's")
    command.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="default float32")
    command.add_argument("--plot", type=Path, metavar="FILE", help="draw the bars, too: .svg, .png, .pdf")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """What the command prints, as an object.

    Raises:
      InputError: PyTorch or transformers is not there, or an option is refused.
    """
    try:
        import torch
        import transformers

        from gyrograd.integrations.transformers import switch_to_gyrograd
    except ImportError as error:
        raise InputError(f"models needs PyTorch and transformers: {error}") from error
    for name, divisor in (("heads", 2), ("head_dim", 4)):
        if getattr(options, name) % divisor:
            option = name.replace("_", "-")
            raise InputError(f"--{option} is {getattr(options, name)}; it must be a multiple of {divisor}")
    if options.plot:
        require_plot(options.plot)
    try:
        if options.threads:
            torch.set_num_threads(options.threads)
        model = _model(options)
        tokens = torch.randint(0, model.config.vocab_size, (options.batch, options.length))
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:  # as PyTorch refuses sizes
        raise InputError(f"models: PyTorch refuses an option: {str(error).splitlines()[0]}") from error
    compiled, identity = torch.compile(model), torch.nn.Identity()
    ways: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
        "stock": (model, contextlib.nullcontext),
        "compiled stock": (compiled, contextlib.nullcontext),
        "gyrograd": (model, lambda: switch_to_gyrograd(model)),
        "compiled gyrograd": (compiled, lambda: switch_to_gyrograd(model)),
    }
    times: dict[tuple[str, bool], list[float]] = {}
    for round_ in range(-_WARM_UP, options.rounds):
        for way, (called, switch) in ways.items():
            for is_without in (False, True):
                with _without(model, identity) if is_without else switch():
                    seconds = _step(called, model, tokens)
                if round_ >= 0:
                    times.setdefault((way, is_without), []).append(1e3 * seconds)
    measured = [_measured(way, times[way, False], times[way, True]) for way in ways]
    with switch_to_gyrograd(model) as switch:
        replaced = [asdict(finding) for finding in switch.report.replaced]
    return {
        "model": options.model,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "threads": torch.get_num_threads(),
        "sizes": {name: getattr(options, name) for name in ("layers", "heads", "head_dim", "length", "batch", "dtype")},
        "replaced": replaced,
        "ways": [asdict(one) for one in measured],
        "note": NOTE,
    }


def _measured(way: str, steps: Sequence[float], without: Sequence[float]) -> Measured:
    shares = [1 - less / step for step, less in zip(steps, without, strict=True)]
    return Measured(way, *map(statistics.median, (steps, without, shares)))


def _model(options: argparse.Namespace) -> Any:
    import torch
    import transformers

    name, configuration, more = MODELS[options.model]
    width = options.heads * options.head_dim
    sizes = {
        "vocab_size": 1024,
        "hidden_size": width,
        "intermediate_size": 3 * width,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.heads,
        "num_key_value_heads": options.heads // 2,
        "head_dim": options.head_dim,
        "max_position_embeddings": options.length,
        "pad_token_id": 0,
        "use_cache": False,
        **more,
    }
    torch.manual_seed(0)
    made = getattr(transformers, name)(getattr(transformers, configuration)(**sizes))
    return made.to(getattr(torch, options.dtype)).train()


def _step(called: Callable[..., Any], model: Any, tokens: Any) -> float:
    """Seconds of a forward and a backward."""
    model.zero_grad(set_to_none=True)
    start = time.perf_counter()
    called(input_ids=tokens, labels=tokens).loss.backward()
    return time.perf_counter() - start


@contextlib.contextmanager
def _without(model: Any, identity: Any) -> Iterator[None]:
    """The stock model without rotary and QK-norm: what a switch would replace does nothing."""
    from gyrograd.integrations._switch import Plan
    from gyrograd.integrations.transformers import plan_for

    found = plan_for(model, True)
    plan = Plan(found.package)
    norms = []
    for one, finding in zip(found.replacements, (f for f in found.findings if f.replaced), strict=True):
        if finding.what == "rotary":
            plan.replace(one.owner, one.attribute, lambda stock: _nothing, "rotary", "nothing")
        else:
            attentions = [part for part in model.modules() if type(part) is one.owner]
            norms += [(part, name) for part in attentions for name in ("q_norm", "k_norm") if hasattr(part, name)]
    stock = [getattr(part, name) for part, name in norms]
    with plan.switch():
        try:
            for part, name in norms:
                setattr(part, name, identity)
            yield
        finally:
            for (part, name), norm in zip(norms, stock, strict=True):
                setattr(part, name, norm)


def _nothing(q: Any, k: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
    return q, k


# ---- what is shown


def show(result: dict[str, Any], console: Console) -> None:
    sizes = ", ".join(f"{name} {value}" for name, value in result["sizes"].items())
    table = Table(
        "way",
        "step, ms",
        "without, ms",
        "share",
        "",
        title=f"{result['model']}: a training step, and without rotary and QK-norm",
        caption=f"{sizes}; {result['threads']} threads. {NOTE}",
        title_justify="left",
        caption_justify="left",
    )
    longest = max(way["step_ms"] for way in result["ways"])
    for way in result["ways"]:
        rest, part = _bar(way, longest)
        bar = "█" * rest + "░" * part
        table.add_row(way["way"], f"{way['step_ms']:.1f}", f"{way['without_ms']:.1f}", f"{way['share']:.1%}", bar)
    console.print(table)


def _bar(way: dict[str, Any], longest: float) -> tuple[int, int]:
    """Characters of the rest of a step, and of rotary and QK-norm."""
    whole = round(_BAR * way["step_ms"] / longest)
    part = min(whole, max(0, round(_BAR * (way["step_ms"] - way["without_ms"]) / longest)))
    return whole - part, part


def require_plot(path: Path) -> None:
    """What plot needs, before minutes of measuring.

    Raises:
      InputError: matplotlib is not there, it does not know the path's ending, or the path can't be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(f"--plot needs matplotlib: {error}") from error
    endings = Figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in endings:
        raise InputError(f"--plot {path}: {path.suffix or 'no ending'} is none of {', '.join(sorted(endings))}")
    require_writable("--plot", path)


def plot(result: dict[str, Any], path: Path) -> None:
    """The same bars as a picture, in the format of the path's ending.

    Raises:
      InputError: as require_plot.
    """
    require_plot(path)
    from matplotlib.figure import Figure

    ways = result["ways"]
    names = [way["way"] for way in ways]
    rest = [min(way["step_ms"], way["without_ms"]) for way in ways]
    part = [max(0.0, way["step_ms"] - way["without_ms"]) for way in ways]
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots()
    axes.barh(names, rest, color="tab:blue", label="all else")
    axes.barh(names, part, left=rest, color="tab:red", label="rotary and QK-norm")
    axes.invert_yaxis()
    axes.set_xlabel(f"ms a training step. {NOTE}")
    axes.set_title(f"{result['model']}, {result['sizes']['dtype']}, {result['threads']} threads")
    axes.legend()
    try:
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"--plot {path}: {error}") from error
