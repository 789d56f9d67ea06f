"""gyrograd._models: what `gyrograd models` measures and shows."""

import argparse
import functools
import io
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from rich.console import Console
from transformers.models.qwen3 import modeling_qwen3

from gyrograd import _models
from gyrograd._inputs import InputError

WAYS = ["stock", "compiled stock", "gyrograd", "compiled gyrograd"]
TINY = ["qwen3", "--layers=1", "--heads=2", "--head-dim=8", "--length=8", "--rounds=1"]


def options(*arguments):
    parser = argparse.ArgumentParser()
    _models.add_arguments(parser, int)
    return parser.parse_args(arguments)


@pytest.fixture(scope="module")
def result():
    """Measured once, with the quickest of compilers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
        return _models.measure(options(*TINY))


def test_every_way_is_measured(result):
    assert [way["way"] for way in result["ways"]] == WAYS
    for way in result["ways"]:
        assert way["step_ms"] > 0 and way["without_ms"] > 0
        assert way["share"] == pytest.approx(1 - way["without_ms"] / way["step_ms"])
    assert [finding["what"] for finding in result["replaced"]] == ["rotary", "QK-norm and rotary"]


def test_stock_is_put_back(result):
    assert modeling_qwen3.apply_rotary_pos_emb.__globals__ is vars(modeling_qwen3)
    assert modeling_qwen3.Qwen3Attention.forward.__globals__["__name__"].startswith("transformers.")


def test_without_leaves_both_out():
    model = _models._model(options(*TINY))
    attention = model.model.layers[0].self_attn
    norm, identity = attention.q_norm, torch.nn.Identity()
    with _models._without(model, identity):
        assert attention.q_norm is attention.k_norm is identity
        assert modeling_qwen3.apply_rotary_pos_emb(1, 2, 3, 4) == (1, 2)
    assert attention.q_norm is norm


def test_shown_as_a_table(result):
    console = Console(width=120, file=io.StringIO())
    _models.show(result, console)
    text = console.file.getvalue()
    for way in result["ways"]:
        assert way["way"] in text and f"{way['step_ms']:.1f}" in text
    assert _models.NOTE in " ".join(text.split())


def test_shown_as_a_picture(result, tmp_path):
    _models.plot(result, tmp_path / "bars.svg")
    picture = (tmp_path / "bars.svg").read_text()
    for text in (*WAYS, "rotary and QK-norm", _models.NOTE):  # matplotlib writes a text's words beside its outlines
        assert text in picture


def test_unknown_kind_of_picture(result, tmp_path):
    with pytest.raises(InputError, match=r"--plot .*bars\.xyz: .*xyz"):
        _models.plot(result, tmp_path / "bars.xyz")


@pytest.mark.parametrize("path", ["bars.xyz", "bars", "absent/bars.svg", "folder.svg"])
def test_a_picture_that_can_not_be_is_refused_first(tmp_path, monkeypatch, path):
    """Before anything is measured."""
    (tmp_path / "folder.svg").mkdir()
    monkeypatch.setattr(_models, "_step", None)
    with pytest.raises(InputError, match=rf"--plot .*{path}: "):
        _models.measure(options(*TINY, f"--plot={tmp_path / path}"))


def test_a_picture_without_room(result, tmp_path):
    (tmp_path / "bars.svg").symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"--plot .*bars\.svg: .*No space"):
        _models.plot(result, tmp_path / "bars.svg")


def test_bars_of_noise_have_a_size():
    way = {"way": "stock", "step_ms": 10.0, "without_ms": 11.0, "share": -0.1}
    assert _models._bar(way, 20.0) == (_models._BAR // 2, 0)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--heads=3"], "--heads is 3"),
        (["--head-dim=6"], "--head-dim is 6"),
        ([*TINY, f"--threads={10**12}"], "PyTorch refuses"),
        ([*TINY, f"--batch={10**15}"], "PyTorch refuses"),
    ],
)
def test_other_sizes_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        _models.measure(options(*arguments))
