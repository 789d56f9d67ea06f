"""Small random models of diffusers, from their configuration classes, with inputs of their own."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import diffusers
import torch
from diffusers.models.embeddings import get_3d_rotary_pos_embed

BATCH, TEXT = 2, 5


@dataclass(frozen=True)
class Case:
    """config: of the transformer's class of that name. inputs: keywords of its forward, new at every call. joint_calls,
    rotary_calls: how many of gyrograd's operators a switched forward has.
    """

    name: str
    config: dict[str, Any]
    inputs: Callable[[torch.Generator], dict[str, Any]]
    joint_calls: int = 0
    rotary_calls: int = 0

    def model(self, **changes: Any) -> torch.nn.Module:
        torch.manual_seed(3)
        model = getattr(diffusers, self.name)(**self.config | changes)
        with torch.no_grad():  # biases and norms that are 0 and 1 hide mistakes
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter += 0.2 * torch.randn_like(parameter)
        return model

    @property
    def calls(self) -> list[str]:
        """The operators, forward."""
        return ["norm_rope_concat"] * self.joint_calls + ["rotary"] * self.rotary_calls

    def batch(self, seed: int = 0) -> dict[str, Any]:
        return self.inputs(torch.Generator().manual_seed(seed))


def _normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


def _time(generator: torch.Generator) -> torch.Tensor:
    return torch.rand(BATCH, generator=generator)


def _steps(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 1000, (BATCH,), generator=generator)


def _cogvideox(g: torch.Generator) -> dict[str, Any]:
    grid = (4, 4)
    rotary = get_3d_rotary_pos_embed(16, ((0, 0), grid), grid, 2, device="cpu")
    return {
        "hidden_states": _normal(g, BATCH, 2, 4, 8, 8),
        "encoder_hidden_states": _normal(g, BATCH, TEXT, 8),
        "timestep": _steps(g),
        "image_rotary_emb": rotary,
    }


def _sd3(g: torch.Generator) -> dict[str, Any]:
    return {
        "hidden_states": _normal(g, BATCH, 4, 6, 4),
        "encoder_hidden_states": _normal(g, BATCH, TEXT, 16),
        "pooled_projections": _normal(g, BATCH, 16),
        "timestep": _steps(g),
    }


def _flux(g: torch.Generator) -> dict[str, Any]:
    places = torch.stack(torch.meshgrid(torch.zeros(1), torch.arange(3.0), torch.arange(4.0), indexing="ij"), dim=-1)
    return {
        "hidden_states": _normal(g, BATCH, 12, 4),
        "encoder_hidden_states": _normal(g, BATCH, TEXT, 16),
        "pooled_projections": _normal(g, BATCH, 16),
        "timestep": _time(g),
        "img_ids": places.reshape(-1, 3),
        "txt_ids": torch.zeros(TEXT, 3),
    }


def _hunyuan_video(g: torch.Generator) -> dict[str, Any]:
    mask = torch.ones(BATCH, TEXT)
    mask[1, 3:] = 0  # a padded batch
    return {
        "hidden_states": _normal(g, BATCH, 4, 2, 4, 4),
        "encoder_hidden_states": _normal(g, BATCH, TEXT, 16),
        "encoder_attention_mask": mask,
        "pooled_projections": _normal(g, BATCH, 8),
        "timestep": _steps(g),
        "guidance": 1000 * _time(g),
    }


def _qwen_image(g: torch.Generator) -> dict[str, Any]:
    mask = torch.ones(BATCH, TEXT, dtype=torch.bool)
    mask[1, 4:] = False
    return {
        "hidden_states": _normal(g, BATCH, 12, 16),
        "encoder_hidden_states": _normal(g, BATCH, TEXT, 16),
        "encoder_hidden_states_mask": mask,
        "timestep": _time(g),
        "img_shapes": [(1, 3, 4)] * BATCH,
    }


def _wan(g: torch.Generator) -> dict[str, Any]:
    return {
        "hidden_states": _normal(g, BATCH, 4, 2, 8, 8),
        "encoder_hidden_states": _normal(g, BATCH, TEXT, 16),
        "timestep": _steps(g),
    }


def _lumina2(g: torch.Generator) -> dict[str, Any]:
    mask = torch.ones(BATCH, TEXT, dtype=torch.bool)
    mask[1, 3:] = False
    return {
        "hidden_states": _normal(g, BATCH, 4, 8, 8),
        "encoder_hidden_states": _normal(g, BATCH, TEXT, 16),
        "encoder_attention_mask": mask,
        "timestep": _time(g),
    }


def _ltx(g: torch.Generator) -> dict[str, Any]:
    return {
        "hidden_states": _normal(g, BATCH, 12, 4),
        "encoder_hidden_states": _normal(g, BATCH, TEXT, 16),
        "encoder_attention_mask": torch.ones(BATCH, TEXT, dtype=torch.bool),
        "timestep": _steps(g),
        "num_frames": 1,
        "height": 3,
        "width": 4,
    }


CASES = (
    Case(
        "CogVideoXTransformer3DModel",
        dict(
            num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, time_embed_dim=8,
            text_embed_dim=8, num_layers=2, sample_width=8, sample_height=8, sample_frames=5, patch_size=2,
            temporal_compression_ratio=4, max_text_seq_length=TEXT, use_rotary_positional_embeddings=True,
        ),
        _cogvideox,
        joint_calls=2,
    ),
    Case(
        "SD3Transformer2DModel",
        dict(
            sample_size=8, patch_size=1, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=16,
            num_attention_heads=2, caption_projection_dim=32, joint_attention_dim=16, pooled_projection_dim=16,
            pos_embed_max_size=8, qk_norm="rms_norm", dual_attention_layers=(0,),
        ),
        _sd3,
        joint_calls=3,
    ),
    Case(
        "FluxTransformer2DModel",
        dict(
            patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
            num_attention_heads=2, joint_attention_dim=16, pooled_projection_dim=16, axes_dims_rope=(4, 4, 8),
        ),
        _flux,
        joint_calls=2,
    ),
    Case(
        "HunyuanVideoTransformer3DModel",
        dict(
            in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=16, num_layers=1,
            num_single_layers=1, num_refiner_layers=1, patch_size=2, patch_size_t=1, text_embed_dim=16,
            pooled_projection_dim=8, rope_axes_dim=(4, 6, 6),
        ),
        _hunyuan_video,
        joint_calls=2,
    ),
    Case(
        "QwenImageTransformer2DModel",
        dict(
            patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2,
            joint_attention_dim=16, axes_dims_rope=(4, 6, 6),
        ),
        _qwen_image,
        joint_calls=2,
    ),
    Case(
        "WanTransformer3DModel",
        dict(
            num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, text_dim=16, freq_dim=16,
            ffn_dim=32, num_layers=2, rope_max_seq_len=16,
        ),
        _wan,
        rotary_calls=4,
    ),
    Case(
        "Lumina2Transformer2DModel",
        dict(
            sample_size=8, patch_size=2, in_channels=4, out_channels=4, hidden_size=32, num_layers=1,
            num_refiner_layers=1, num_attention_heads=4, num_kv_heads=2, multiple_of=16,
            axes_dim_rope=(4, 2, 2), axes_lens=(16, 16, 16),
            cap_feat_dim=16,
        ),
        _lumina2,
        rotary_calls=6,
    ),
    Case(
        "LTXVideoTransformer3DModel",
        dict(
            in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=16, cross_attention_dim=32,
            num_layers=2, caption_channels=16,
        ),
        _ltx,
        rotary_calls=4,
    ),
)  # fmt: skip
