"""Small random models of transformers, made from their configurations, for the tests."""

import torch
import transformers

VOCABULARY = 64
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
}

# Model by name: its class, its configuration's class, and that configuration.
MODELS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", GROUPED),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**TEXT, "rotary_pct": 0.5}),
    "gpt_oss": ("GptOssForCausalLM", "GptOssConfig", {**GROUPED, **EXPERTS, "sliding_window": 4}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", "DeepseekV3Config", {**TEXT, **LATENT, "rope_interleave": True}),
    "deepseek_v3_half": ("DeepseekV3ForCausalLM", "DeepseekV3Config", {**TEXT, **LATENT, "rope_interleave": False}),
    "gemma4_vision": (
        "Gemma4VisionModel",
        "Gemma4VisionConfig",
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 8,
            "patch_size": 4,
            "pooling_kernel_size": 2,
            "position_embedding_size": 16,
        },
    ),
    # One of each further attention with QK-norm.
    "apertus": ("ApertusForCausalLM", "ApertusConfig", {**TEXT, "num_key_value_heads": 2}),
    "exaone4": ("Exaone4ForCausalLM", "Exaone4Config", {**GROUPED, "sliding_window": 4, "sliding_window_pattern": 2}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**GROUPED, "sliding_window": 4}),
    "glm4_moe": (
        "Glm4MoeForCausalLM",
        "Glm4MoeConfig",
        {
            **GROUPED,
            "use_qk_norm": True,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 16,
        },
    ),
    "glm4_moe_plain": (
        "Glm4MoeForCausalLM",
        "Glm4MoeConfig",
        {**GROUPED, "use_qk_norm": False, "first_k_dense_replace": 2, "n_group": 1, "topk_group": 1},
    ),
    "lfm2": (
        "Lfm2ForCausalLM",
        "Lfm2Config",
        {**TEXT, "num_key_value_heads": 2, "layer_types": ["full_attention", "conv"]},
    ),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {
            **GROUPED,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "qwen3_vl": (
        "Qwen3VLTextModel",
        "Qwen3VLTextConfig",
        {**GROUPED, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}},
    ),
}


def configuration(name, **changes):
    _, kind, options = MODELS[name]
    return getattr(transformers, kind)(**{**options, **changes})


def model(name, seed=1, **changes):
    """With parameters that a model has after some training: no norm's weight is one."""
    torch.manual_seed(seed)
    made = getattr(transformers, MODELS[name][0])(configuration(name, **changes))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape) * (0.2 if parameter.dim() == 1 else 0.1))
    return made.train()


def is_text(name):
    return name != "gemma4_vision"


def batch(name, seed=1, size=2, length=9):
    """Arguments of a call."""
    generator = torch.Generator().manual_seed(seed)
    if is_text(name):
        return {"input_ids": torch.randint(3, VOCABULARY, (size, length), generator=generator)}
    patches = torch.cartesian_prod(torch.arange(4), torch.arange(4)).expand(size, 16, 2)
    return {"pixel_values": torch.rand(size, 16, 48, generator=generator), "pixel_position_ids": patches}


def loss(made, inputs, seed=1):
    """A scalar of all results."""
    if hasattr(made, "lm_head") or hasattr(made, "embed_out"):
        return made(**inputs, labels=inputs["input_ids"]).loss
    hidden = made(**inputs).last_hidden_state
    target = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(seed))
    return (hidden.float() - target).pow(2).mean()
