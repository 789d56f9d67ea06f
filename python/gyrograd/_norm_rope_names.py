"""The names of what goes into and comes out of norm_rope and norm_rope_concat, as the frameworks' operators are made of
them: the forward's tensors, among them its rows and tables; its results, of which joints are differentiable; the
gradients of joints, as the backward calls them; the backward's other tensors, saved; and its results.
"""

from gyrograd._norm_rope import NormRope, NormRopeConcat, NormRopeConcatGradients, NormRopeGradients

JOINTS = ("query", "key", "value")
STREAMS = (*JOINTS, *(f"encoder_{joint}" for joint in JOINTS))
# Stream -> its norm.
NORMS = {
    "query": "norm_query",
    "key": "norm_key",
    "encoder_query": "norm_added_query",
    "encoder_key": "norm_added_key",
}


class SegmentNames:
    """Of norm_rope."""

    name = "norm_rope"
    tensors = ("x", "weight", "bias", "cos", "sin")
    rows = ("x",)
    tables = ("cos", "sin")
    results = NormRope._fields
    joints = ("y",)
    incoming = ("dy",)
    saved = ("x", "weight", "mean", "rstd", "cos", "sin")
    gradients = NormRopeGradients._fields


class ConcatNames:
    """Of norm_rope_concat."""

    name = "norm_rope_concat"
    gradients = NormRopeConcatGradients._fields
    tables = ("rope_sin", "rope_cos", "encoder_rope_sin", "encoder_rope_cos")
    tensors = (*gradients, *tables)
    rows = STREAMS
    results = NormRopeConcat._fields
    joints = JOINTS
    incoming = tuple(f"grad_{joint}_output" for joint in JOINTS)
    saved = (
        *NORMS,
        *(f"{norm}_{member}" for norm in NORMS.values() for member in ("weight", "mean", "rstd")),
        *tables,
    )
