# Types of the witnesses' module.
from typing import Any

_Verdict = tuple[bool, int, float, str]

def check_rotary_backward(
    dy: Any,
    cos: Any,
    sin: Any,
    x: Any,
    dx: Any,
    dcos: Any,
    dsin: Any,
    *,
    mode: str | int = "half",
    per_pair_tables: bool = False,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
) -> tuple[_Verdict, _Verdict, _Verdict]: ...
def check_norm_rope_concat_backward(keywords: dict[str, Any], results: dict[str, Any]) -> dict[str, _Verdict]: ...
