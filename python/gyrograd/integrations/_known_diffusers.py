"""The code of diffusers that gyrograd knows, by fingerprint: data alone. docs/integrations.md is made from it."""

from dataclasses import dataclass, field

PACKAGE = "diffusers"
VERSIONS = ("0.42.1",)  # whose code the fingerprints are of


@dataclass(frozen=True)
class Known:
    """Code that gyrograd can stand for.

    make: the name of what makes the replacement. what: what it computes. how: by what it is replaced. places: where it
    is, under diffusers.models. helpers: functions that it calls and that its replacement computes or calls, too, and
    their fingerprints. is_joint: whether norms are replaced, too, and must fit. turns: whether there is a rotary.
    """

    make: str
    what: str
    how: str
    places: tuple[str, ...]
    helpers: dict[str, str] = field(default_factory=dict)
    is_joint: bool = True
    turns: bool = True


@dataclass(frozen=True)
class Model:
    """A row of the documentation's table, and a model of the tests.

    name: the transformer's class. replaced, left: what is and what is not, and why. exact: what has the stock model's
    bits in float32.
    """

    name: str
    replaced: str
    left: str
    exact: str


def _transformers(name: str, files: str) -> tuple[str, ...]:
    return tuple(f"transformers.{file}.{name}" for file in files.split())


# Norms by class: the fingerprint of their forward. PyTorch's own are known by their class.
NORMS = {"FP32LayerNorm": "221856adaa387b35", "RMSNorm": "a625cfd2bdb2cea8"}

_REAL_ROTARY = {"apply_rotary_emb": "0671de322677ce9a"}

# Functions that turn one tensor.
ROTARY = {
    "0671de322677ce9a": Known(
        "embeddings_rotary",
        "rotary",
        "gyrograd.torch.rotary: real tables of neighbours or halves, complex tables of neighbours",
        (
            "embeddings.apply_rotary_emb",
            *_transformers(
                "apply_rotary_emb",
                "ace_step_transformer transformer_bria transformer_bria_fibo transformer_flux transformer_flux2 "
                "transformer_flux3 transformer_krea2 transformer_longcat_image transformer_lumina2 "
                "transformer_motif_video transformer_ovis_image",
            ),
        ),
    ),
    "0b304b03415db59a": Known(
        "qwen_rotary",
        "rotary",
        "gyrograd.torch.rotary: complex tables; its real form, which no model calls, is left",
        (
            *_transformers("apply_rotary_emb_qwen", "transformer_qwenimage transformer_qwenimage21"),
            "transformers.transformer_nucleusmoe_image._apply_rotary_emb_nucleus",
        ),
    ),
    "f3f881c10e992c66": Known(
        "ltx_rotary",
        "rotary",
        "gyrograd.torch.rotary: neighbours, tables over all heads",
        (
            "transformers.transformer_ltx.apply_rotary_emb",
            *_transformers("apply_interleaved_rotary_emb", "transformer_ltx2 transformer_sana_wm_refiner"),
        ),
    ),
}

# Attention processors, by their `__call__`.
ATTENTION = {
    "305b881857dd6b7e": Known(
        "cogvideox",
        "QK-norm and rotary",
        "gyrograd.torch.norm_rope_concat: the text first, the image's positions turn",
        ("attention_processor.CogVideoXAttnProcessor2_0",),
        _REAL_ROTARY,
    ),
    "74794daba6604ff2": Known(
        "sd3",
        "QK-norm and concatenation",
        "gyrograd.torch.norm_rope_concat: the image first, nothing turns",
        ("attention_processor.JointAttnProcessor2_0",),
        turns=False,
    ),
    "4a9178eaf6cdc489": Known(
        "flux",
        "QK-norm, concatenation and rotary",
        "gyrograd.torch.norm_rope_concat: the text first, all positions turn",
        ("transformers.transformer_flux.FluxAttnProcessor",),
        _REAL_ROTARY
        | {
            "_get_projections": "f6e593b65e983a79",
            "_get_fused_projections": "5d6f6f124311dcd8",
            "_get_qkv_projections": "014ae36e6dfdb844",
        },
    ),
    "be21298c3f968a71": Known(
        "hunyuan_video",
        "QK-norm, concatenation and rotary",
        "gyrograd.torch.norm_rope_concat: the image first, its positions turn",
        (
            "transformers.transformer_hunyuan_video.HunyuanVideoAttnProcessor2_0",
            "transformers.transformer_hunyuanimage.HunyuanImageAttnProcessor",
        ),
        _REAL_ROTARY,
    ),
    "f0faf4716f69962d": Known(
        "qwen_image",
        "QK-norm, concatenation and rotary",
        "gyrograd.torch.norm_rope_concat: the text first, each stream by complex tables of its own",
        ("transformers.transformer_qwenimage.QwenDoubleStreamAttnProcessor2_0",),
        {"apply_rotary_emb_qwen": "0b304b03415db59a"},
    ),
    "3c6f2ea5cbe83e0f": Known(
        "wan",
        "rotary",
        "gyrograd.torch.rotary; its QK-norm is over all heads of a position and stays",
        _transformers("WanAttnProcessor", "transformer_wan transformer_chronoedit transformer_wan_animate"),
        {"_get_qkv_projections": "6c47e41c7be71ee5"},
        is_joint=False,
    ),
}

_JOINT_EXACT = "nothing: gyrograd's norms sum in float64"

MODELS = (
    Model(
        "CogVideoXTransformer3DModel",
        "LayerNorm of queries and keys, rotary of the image's positions",
        "after fuse_qkv_projections() the norms, where the rotary alone is replaced",
        _JOINT_EXACT,
    ),
    Model(
        "SD3Transformer2DModel",
        "RMSNorm of queries and keys of both streams, concatenation; the second attention's RMSNorm",
        "attention without QK-norm, where nothing turns and nothing is normed; fused projections",
        _JOINT_EXACT,
    ),
    Model(
        "FluxTransformer2DModel",
        "RMSNorm of queries and keys, concatenation, rotary, in blocks of two streams and one",
        "with an IP-Adapter the norms, where the rotary alone is replaced",
        _JOINT_EXACT,
    ),
    Model(
        "HunyuanVideoTransformer3DModel",
        "RMSNorm of queries and keys, rotary of the image's positions, concatenation, in blocks of two streams and one",
        "the token refiner, which has neither norm nor rotary",
        _JOINT_EXACT,
    ),
    Model(
        "QwenImageTransformer2DModel",
        "RMSNorm of queries and keys, rotary by complex tables of each stream's own, concatenation",
        "nothing",
        _JOINT_EXACT,
    ),
    Model(
        "WanTransformer3DModel",
        "rotary",
        "RMSNorm, which is over all heads of a position",
        "output and gradients",
    ),
    Model(
        "Lumina2Transformer2DModel",
        "rotary by complex tables",
        "RMSNorm: queries and keys of grouped heads in a processor that is not known",
        "nothing: the stock tables are in float64, and gyrograd rounds them to float32 first",
    ),
    Model(
        "LTXVideoTransformer3DModel",
        "rotary, with tables over all heads",
        "RMSNorm, which is over all heads of a position",
        "output and gradients",
    ),
)
