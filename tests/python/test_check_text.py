"""`gyrograd check` of one problem as a line of text."""

import pytest

from gyrograd.cli import main


@pytest.mark.parametrize(
    "text",
    [
        "rotary:types=bf16/f32,mode=quarter,dy=2x5x3x16,tables=1x5x1x8,rotary_dim=8,rotary_offset=4",
        "rotary:dy=2x5x3x16,tables=2x5x1x8,per_pair=1,dy_layout=reversed_all,x_layout=packed,tables_layout=last_stride_2",
        "rotary:types=f16,mode=interleave,dy=6x4,tables=1x4,dy_layout=expanded_outer",
        "norm_rope_concat:types=bf16,heads=3,head_dim=8,query=5,key=4,encoder_query=2,encoder_key=3,norm=layer_affine,"
        "norm_added=rms,rotary=interleave,rope=6",
        "rotary:dy=" + "1x" * 60 + "2x8,tables=" + "1x" * 60 + "2x8,x_layout=packed",  # longer than a file's name
    ],
)
def test_a_problem_as_text_is_checked(text, capsys):
    assert main(["check", text]) == 0
    assert capsys.readouterr().out.endswith("1 passed\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rotary:dy=8", "tables is missing"),
        ("rotary:dy=2x8,tables=3x8", "its extent of axis 0"),
        ("norm_rope_concat:heads=2,head_dim=8,query=3,key=3,joint_layout=swapped", "only contiguous rows"),
        ("norm_rope_concat:heads=2,head_dim=8,query=3,key=3,rotary=half,rope=9", "rope"),
    ],
)
def test_a_text_that_is_no_problem_is_refused(text, words, capsys):
    assert main(["check", text]) == 2
    assert words in capsys.readouterr().err
