"""The code of transformers 5.24.0 that is known, by its fingerprint, and the models that have it. Tests, reports and
docs/integrations.md read these tables.
"""

from typing import Generic, NamedTuple, TypeVar

from gyrograd.integrations._transformers_attention import Attention, Norm
from gyrograd.integrations._transformers_rotary import Rotary

Form = TypeVar("Form")
VERSION = "5.24.0"


class Known(NamedTuple, Generic[Form]):
    """form: what the code is. places: where it is, as "model.function" or "model.Class"."""

    form: Form
    places: tuple[str, ...]


class Trained(NamedTuple):
    """A model that the tests train with stock and with gyrograd.

    is_exact: its losses and gradients have stock's bits in float32; otherwise they agree within roundings, since the
    statistics of norms are summed in float64.
    """

    model: str
    turns: str
    is_exact: bool


TRAINED = {
    "llama": Trained("LlamaForCausalLM", "half", True),
    "qwen3": Trained("Qwen3ForCausalLM", "QK-norm, half", False),
    "gpt_neox": Trained("GPTNeoXForCausalLM", "half, partial", True),
    "gpt_oss": Trained("GptOssForCausalLM", "half, tables per pair", True),
    "deepseek_v3": Trained("DeepseekV3ForCausalLM", "interleave-half, tables per pair", True),
    "deepseek_v3_half": Trained("DeepseekV3ForCausalLM with rope_interleave=False", "half", True),
    "gemma4_vision": Trained("Gemma4VisionModel", "quarter", True),
}


def _functions(name: str, models: str) -> tuple[str, ...]:
    return tuple(f"{model}.{name}" for model in models.split())


# Functions and what they call, hashed together.
ROTARIES: dict[str, Known[Rotary]] = {
    "88a9b6c75b230609": Known(
        Rotary("q, k", "half"),
        _functions(
            "apply_rotary_pos_emb",
            "afmoe apertus apertus1p5 arcee aria axk1 axk2 bitnet chameleon cohere_compass cosmos3_edge csm "
            "cwm dbrx deepseek_ocr2 deepseek_v3 deepseek_v32 dia diffllama doge dory dots1 embedding_gemma2 "
            "emu3 esmc esmfold2 eurobert exaone4 exaone4_5 exaone_moe falcon falcon_h1 flint gemma gemma2 "
            "gemma3 glm4_moe_lite gpt_neox_japanese gradium_phonon_tts granite granite4_vision "
            "granite_docling granite_swa granitemoe granitemoe_swa granitemoehybrid granitemoeshared gte "
            "higgs_audio_v2 hrm_text hunyuan_v1_dense hunyuan_v1_moe hy_v3 hy_v4 hyperclovax idefics jais2 "
            "jamba jetmoe jina_embeddings_v3 kolibri1 kyutai_speech_to_text lara_mini lasr lfm2 lfm2_moe "
            "llama mellum mimi minicpm3 minimax ministral ministral3 mistral mistral4 mixtral mllama molmo2 "
            "moshi muse_glimmer muse_spark nemotron_asr_streaming nemotron_h neucodec nomic_bert olmoe "
            "paddleocr_vl parakeet persimmon phi phimoe pixtral pocket_tts pocket_tts_audio_tokenizer qwen2 "
            "qwen2_5_omni qwen2_5_vl qwen2_moe qwen2_vl qwen3 qwen3_moe qwen3_omni_moe qwen3_vl qwen3_vl_moe "
            "seed_oss smollm3 solar_open stablelm starcoder2 t5gemma t5gemma2 timesfm2_5 ultrabert "
            "unlimited_ocr vaultgemma voxtral_realtime xcodec2 youtu zamba2",
        ),
    ),
    "31970c69124017f7": Known(
        Rotary("q, k", "half", part="first", is_elementwise=False),
        _functions(
            "apply_rotary_pos_emb",
            "bamba glm4_moe glm4v_moe glm_image gpt_neox laguna mimo_v2_flash minimax_m2 minimax_m3_vl neomme "
            "qwen3_5 qwen3_5_moe qwen3_next recurrent_gemma step3p7 zaya",
        ),
    ),
    "f70d5cbe807c8f08": Known(
        Rotary("q, k, positions", "half", part="first", is_elementwise=False),
        (
            "glmasr.apply_rotary_pos_emb",
            "nemotron3_5_transcribe.apply_rotary_pos_emb",
            "nemotron3_diarization.apply_rotary_pos_emb",
        ),
    ),
    "b0d904d74f709dd7": Known(
        Rotary("q, k", "half", part="first", is_elementwise=False),
        ("dots3_note.apply_rotary_pos_emb", "nemotron.apply_rotary_pos_emb"),
    ),
    "e2df839931de57eb": Known(
        Rotary("q, k", "half", part="first", is_elementwise=False),
        ("phi3.apply_rotary_pos_emb", "phi4_multimodal.apply_rotary_pos_emb"),
    ),
    "7a8087be1eb390a8": Known(
        Rotary("q, optional k", "half", part="first", is_elementwise=False), ("qwen4_exp.apply_rotary_pos_emb",)
    ),
    "a7525e86d438a986": Known(
        Rotary("q, k", "interleave", part="first", is_elementwise=False),
        ("glm4v.apply_rotary_pos_emb", "glm_ocr.apply_rotary_pos_emb"),
    ),
    "5f8fe49a513f5f09": Known(
        Rotary("q, k", "half", types="kept"),
        _functions("apply_rotary_pos_emb", "beam flex_olmo lfm3 olmo olmo2 olmo3 olmo_hybrid"),
    ),
    "b9518601cfd892b1": Known(
        Rotary("q, k", "half", types="upcast"),
        _functions("apply_rotary_pos_emb", "esm evolla modernbert modernbert_decoder"),
    ),
    "816fc0f433a488f6": Known(Rotary("q, k", "half", types="upcast"), ("hunyuan_vl.apply_rotary_pos_emb",)),
    "faed1155a050c49f": Known(
        Rotary("q, k, fixed axis", "half", types="upcast", unsqueeze=-2),
        _functions(
            "apply_rotary_pos_emb_vision",
            "cohere_compass dots3_note ernie4_5_vl_moe exaone4_5 glm4v glm4v_moe glm5_next glm_ocr kimi_k25 "
            "lfm3_vl mlcd muse_glimmer muse_spark paddleocr_vl qwen2_5_omni qwen2_5_vl qwen2_vl qwen3_5 "
            "qwen3_5_moe qwen3_omni_moe qwen3_vl qwen3_vl_moe qwen4_exp step3p7 video_llama_3",
        ),
    ),
    "43b994fb1e4ad56d": Known(
        Rotary("q, k, fixed axis", "half", unsqueeze=1, part="first", is_elementwise=False),
        ("minimax_m3_vl.apply_rotary_pos_emb_vision",),
    ),
    "bc5dc1afd80cc94a": Known(
        Rotary("q, k, fixed axis", "interleave", types="upcast", unsqueeze=-2),
        ("inkling2.apply_rotary_pos_emb_vision",),
    ),
    "b31b9acba403af83": Known(
        Rotary("q, k, fixed axis", "interleave", types="upcast"),
        ("edgetam_video.apply_rotary_pos_emb_2d_self_attn", "sam3.apply_rotary_pos_emb_2d"),
    ),
    "827b54eeb137cf6e": Known(
        Rotary("q, k, memory", "interleave", types="upcast"),
        ("sam2_video.apply_rotary_pos_emb_2d", "sam3_tracker_video.apply_rotary_pos_emb_2d"),
    ),
    "57be914c6468926c": Known(Rotary("q, k", "interleave"), ("blt.apply_rotary_pos_emb",)),
    "b4f95f90973d74a9": Known(
        Rotary("q, k", "interleave", types="upcast"),
        _functions("apply_rotary_pos_emb", "cohere cohere2 cohere2_moe efficientloftr lightglue"),
    ),
    "c266ab856cc0767c": Known(
        Rotary("q, k", "interleave", tables="first half", part="first", is_elementwise=False),
        _functions("apply_rotary_pos_emb", "glm glm4 moonshine moonshine_streaming"),
    ),
    "789620838066a5eb": Known(Rotary("q, k", "interleave", tables="first half"), ("helium.apply_rotary_pos_emb",)),
    "c4d89573dc4981ea": Known(
        Rotary("q, k", "interleave", tables="first half", types="upcast"),
        ("ernie4_5.apply_rotary_pos_emb", "ernie4_5_moe.apply_rotary_pos_emb", "hy_v4_vl.apply_rotary_pos_emb"),
    ),
    "8018e0de96c474a8": Known(Rotary("q, k", "interleave", types="upcast"), ("ernie4_5_vl_moe.apply_rotary_pos_emb",)),
    "85477e2fb9be3fa6": Known(
        Rotary("q, k", "interleave", tables="first half", is_elementwise=False),
        ("pe_audio.apply_rotary_pos_emb", "pe_audio_video.apply_rotary_pos_emb", "pe_video.apply_rotary_pos_emb"),
    ),
    "f1d2907ae51de2d5": Known(
        Rotary("q, k", "interleave", tables="pairs", is_elementwise=False),
        ("openai_privacy_filter.apply_rotary_pos_emb",),
    ),
    "a42c6c858b2e9cc1": Known(
        Rotary("tensor, sin, cos", "interleave", tables="pairs", unsqueeze=2),
        ("codegen.apply_rotary_pos_emb", "gptj.apply_rotary_pos_emb"),
    ),
    "d7b2433f42761961": Known(
        Rotary("x", "interleave", tables="pairs", part="last", types="upcast", is_elementwise=False),
        ("deepseek_v4.apply_rotary_pos_emb",),
    ),
    "998b0431e15b5b52": Known(
        Rotary("q, k", "half", tables="pairs", is_elementwise=False), ("gpt_oss.apply_rotary_pos_emb",)
    ),
    "cb76d9bd4d64e149": Known(
        Rotary("q, k, positions", "interleave-half", tables="first half", is_elementwise=False),
        _functions(
            "apply_rotary_pos_emb_interleave",
            "axk1 axk2 bailing_hybrid deepseek_v3 deepseek_v32 dots3_note glm4_moe_lite glm_moe_dsa "
            "longcat_flash mistral4 youtu",
        ),
    ),
    "5c661c76a7c6cd96": Known(
        Rotary("q, k or none", "interleave-half", tables="first half", is_elementwise=False),
        ("mistral_large4.apply_rotary_pos_emb_interleave",),
    ),
    "71cadcb04c0f61de": Known(
        Rotary("x", "half"), _functions("apply_rotary_pos_emb", "diffusion_gemma gemma3n gemma4 gemma4_unified")
    ),
    "de24758895e379a4": Known(
        Rotary("x, positions", "quarter", is_elementwise=False), ("gemma4.apply_multidimensional_rope",)
    ),
    "b0eec37ca7866bd3": Known(Rotary("q, k", "half", negates_sin=True), ("nanochat.apply_rotary_pos_emb",)),
    "00e7b229306b272e": Known(Rotary("q, k, v, positions", "half"), ("clvp.apply_rotary_pos_emb",)),
    "059bd4fb2ec53827": Known(Rotary("q of the last, k", "half"), ("muse_glimmer_assistant.apply_rotary_pos_emb",)),
    "80cbe083012b30fe": Known(
        Rotary("q, k after a prefix", "half", is_elementwise=False),
        ("dinov3_vit.apply_rotary_pos_emb", "eomt_dinov3.apply_rotary_pos_emb", "sapiens2.apply_rotary_pos_emb"),
    ),
    "ed1a7745fa7d86c0": Known(
        Rotary("complex q, k", "interleave", tables="complex", types="upcast", unsqueeze=2, is_elementwise=False),
        ("llama4.apply_rotary_emb",),
    ),
    "d4e875ee44d93856": Known(
        Rotary("complex q, k", "interleave", tables="complex", types="upcast", unsqueeze=1),
        ("deepseek_v2.apply_rotary_emb",),
    ),
    "5502c65089014893": Known(
        Rotary("complex q, k, vision", "interleave", tables="complex", types="upcast", is_elementwise=False),
        ("llama4.vision_apply_rotary_emb",),
    ),
}

# Known, and left for the reason that is given.
LEFT: dict[str, Known[str]] = {
    "92c627d92cbf1276": Known(
        "groups of keys turn, each after keys that do not", ("edgetam_video.apply_rotary_pos_emb_2d_cross_attn",)
    ),
    "3ef9b506c1d59317": Known("computed in float64 whatever the type", ("musicflamingo.apply_rotary_time_emb",)),
    "3a2a5e1c3c0368e8": Known("computes its tables at each call", ("vjepa2.rotate_queries_or_keys",)),
    "a9769f19adbfec22": Known(
        "a method that also reorders its rows",
        (
            "seamless_m4t.SeamlessM4TConformerSelfAttention._apply_rotary_embedding",
            "wav2vec2_bert.Wav2Vec2BertSelfAttention._apply_rotary_embedding",
            "wav2vec2_conformer.Wav2Vec2ConformerSelfAttention._apply_rotary_embedding",
        ),
    ),
    "f7839653a0e73d2d": Known(
        "a method with one table of sines and cosines",
        ("roformer.RoFormerSelfAttention.apply_rotary_position_embeddings",),
    ),
    "5d90e2571851baac": Known(
        "a method that turns three groups of channels, each by tables that it computes",
        ("vjepa2.VJEPA2RopeAttention.apply_rotary_embeddings",),
    ),
}

# Forwards of attention classes.
ATTENTIONS: dict[str, Known[Attention]] = {
    "990ec4132188d3ae": Known(
        Attention(passes_window=True),
        (
            "dots1.Dots1Attention",
            "mellum.MellumAttention",
            "qwen3.Qwen3Attention",
            "qwen3_moe.Qwen3MoeAttention",
            "qwen3_omni_moe.Qwen3OmniMoeThinkerTextAttention",
            "qwen3_omni_moe.Qwen3OmniMoeTalkerCodePredictorAttention",
            "qwen3_omni_moe.Qwen3OmniMoeCode2WavAttention",
        ),
    ),
    "9c7122c56118cade": Known(
        Attention(), ("apertus.ApertusAttention", "apertus1p5.Apertus1p5TextAttention", "hy_v3.HYV3Attention")
    ),
    "1e6994cce1d36c71": Known(Attention(), ("qwen3_vl.Qwen3VLTextAttention", "qwen3_vl_moe.Qwen3VLMoeTextAttention")),
    "90f0823a8f456afe": Known(
        Attention(passes_window=True), ("gemma3.Gemma3Attention", "t5gemma2.T5Gemma2SelfAttention")
    ),
    "8576ea9888ef441b": Known(
        Attention(passes_window=True, has_layer_types=True),
        (
            "exaone4.Exaone4Attention",
            "exaone4_5.Exaone4_5_Attention",
            "exaone_moe.ExaoneMoeAttention",
            "kolibri1.Kolibri1Attention",
        ),
    ),
    "73776291f6d37409": Known(
        Attention(has_gate=True),
        ("qwen3_5.Qwen3_5Attention", "qwen3_5_moe.Qwen3_5MoeAttention", "qwen3_next.Qwen3NextAttention"),
    ),
    "3b341f5ad141e076": Known(Attention(condition="use_qk_norm"), ("glm4_moe.Glm4MoeAttention",)),
    "b881ebff90ab96f2": Known(
        Attention(("q_layernorm", "k_layernorm"), "out_proj", has_dropout=False),
        ("lfm2.Lfm2Attention", "lfm2_moe.Lfm2MoeAttention"),
    ),
}

_OVER_HEADS = "a norm over all heads of a position"
_AFTER = "norm after rotary"
_ONE_BY_ONE = "queries and keys one after the other, keys shared by layers"
_UNWRITTEN = "no replacement of this forward is written"
_PACKED = "rows of rank 3, the images of a batch end to end"
_SPLIT = "LayerNorm, and the channels that turn are split off before"

# Forwards with QK-norm that are left, and why; their rotary is replaced.
LEFT_ATTENTIONS: dict[str, Known[str]] = {
    "5cafc6d33b565dba": Known(
        _OVER_HEADS, ("flex_olmo.FlexOlmoAttention", "minimax_m2.MiniMaxM2Attention", "olmo2.Olmo2Attention")
    ),
    "d13d60e71584f730": Known(_OVER_HEADS, ("olmo_hybrid.OlmoHybridAttention",)),
    "9f93ec0c038df052": Known(_OVER_HEADS, ("olmo3.Olmo3Attention",)),
    "a76a422f657726ed": Known(_OVER_HEADS, ("olmoe.OlmoeAttention",)),
    "15ed79d5510cd896": Known(_OVER_HEADS, ("esmc.EsmcAttention",)),
    "0b8b2064e71cb65f": Known(
        _AFTER,
        (
            "hunyuan_v1_dense.HunYuanDenseV1Attention",
            "hunyuan_v1_moe.HunYuanMoEV1Attention",
            "hunyuan_vl.HunYuanVLDenseV1Attention",
        ),
    ),
    "ef8739e4785e57d7": Known(_AFTER, ("nanochat.NanoChatAttention",)),
    "ed0e781cf8cec183": Known(_AFTER, ("llama4.Llama4TextAttention",)),
    "598008c54891493c": Known(_AFTER, ("timesfm2_5.TimesFm2_5Attention",)),
    "d73f21d708805d07": Known(_ONE_BY_ONE, ("gemma4.Gemma4TextAttention", "gemma4_unified.Gemma4UnifiedTextAttention")),
    "b047b91ef5f6f08a": Known(_ONE_BY_ONE, ("diffusion_gemma.DiffusionGemmaEncoderTextAttention",)),
    "4ecc5c8e09b7bbd2": Known(_ONE_BY_ONE, ("diffusion_gemma.DiffusionGemmaDecoderTextAttention",)),
    "80b24fd4211d0968": Known(_ONE_BY_ONE, ("gemma3n.Gemma3nTextAttention",)),
    "7cd7f11048c8bdc2": Known(
        _PACKED,
        ("dots3_note.Dots3NoteVisionAttention", "glm5_next.Glm5NextVisionAttention", "glm_ocr.GlmOcrVisionAttention"),
    ),
    "58637ae75e60a019": Known(_PACKED, ("lfm3_vl.Lfm3VlVisionAttention",)),
    "4cfa814fcf66270f": Known(_SPLIT, ("phi.PhiAttention",)),
    "37a9e179c2085071": Known(_SPLIT, ("persimmon.PersimmonAttention",)),
    "a6427c9c39a1b05a": Known(
        "weights for each head, and the channels that turn are split off before", ("stablelm.StableLmAttention",)
    ),
    "a5587ff640667256": Known("norm and quarter mode are not one call", ("gemma4.Gemma4VisionAttention",)),
    "924d139e7e67ad7f": Known("norm, and rotary after a prefix, are not one call", ("sapiens2.Sapiens2Attention",)),
    "31d87d43c65aa160": Known("a norm with weights for each head", ("chameleon.ChameleonAttention",)),
    "328dcd73ccc08651": Known("a norm of both at once", ("zaya.ZayaAttention",)),
    "a7a7a52c867c55f5": Known("a norm of another kind", ("dory.DoryAttention",)),
    "95333794794e8198": Known(
        _UNWRITTEN,
        (
            "pe_audio.PeAudioEncoderAttention",
            "pe_audio_video.PeAudioVideoEncoderAttention",
            "pe_video.PeVideoEncoderAttention",
        ),
    ),
    "b9116ba91791d571": Known(_UNWRITTEN, ("afmoe.AfmoeAttention",)),
    "7a4362b34b483225": Known(_UNWRITTEN, ("beam.BeamAttention",)),
    "23f2119525d7c9a2": Known(_UNWRITTEN, ("doge.DogeAttention",)),
    "5c7a95b69696a140": Known(_UNWRITTEN, ("embedding_gemma2.EmbeddingGemma2Attention",)),
    "3bf740cc2a6228ec": Known(_UNWRITTEN, ("esmfold2.EsmFold2AtomAttention",)),
    "d4e35566ab6a9530": Known(_UNWRITTEN, ("flint.FlintAttention",)),
    "e095eebb9555320c": Known(_UNWRITTEN, ("laguna.LagunaAttention",)),
    "a4f93e9902a721fc": Known(_UNWRITTEN, ("lara_mini.LaraMiniAttention",)),
    "6c15a0adb1778532": Known(_UNWRITTEN, ("lfm3.Lfm3Attention",)),
    "7e10ccb6d6761e51": Known(_UNWRITTEN, ("minimax_m3_vl.MiniMaxM3VLAttention",)),
    "cbe7d6eac5eaf279": Known(_UNWRITTEN, ("minimax_m3_vl.MiniMaxM3VLIndexer",)),
    "371019eaa8be6ba5": Known(_UNWRITTEN, ("molmo2.Molmo2Attention",)),
    "ef1ce00fe4bc3996": Known(_UNWRITTEN, ("muse_glimmer.MuseGlimmerTextAttention",)),
    "32a143cf08dbbc17": Known(_UNWRITTEN, ("muse_glimmer_assistant.MuseGlimmerAssistantAttention",)),
    "d4d4695213d2dfad": Known(_UNWRITTEN, ("muse_spark.MuseSparkTextAttention",)),
    "652e8c3b67b92737": Known(_UNWRITTEN, ("nemotron3_5_transcribe.Nemotron3_5TranscribeAttention",)),
    "3e804256dd120f13": Known(_UNWRITTEN, ("neomme.NeoMMEAttention",)),
    "cabe8b9b2d6a36c0": Known(_UNWRITTEN, ("qwen4_exp.Qwen4ExpTextQSAIndexer",)),
    "aee48e42473bd16c": Known(_UNWRITTEN, ("qwen4_exp.Qwen4ExpTextAttention",)),
    "aea39f8872deea22": Known(_UNWRITTEN, ("step3p7.Step3p7Attention",)),
    "10a88bd1ae402810": Known(_UNWRITTEN, ("t5gemma2.T5Gemma2MergedAttention",)),
}

# Attention whose forward is known, with a norm that is not: its rotary alone is replaced.
OTHER_NORMS = ("cohere.CohereAttention",)

# Forwards of norms with the methods that they call.
NORMS: dict[str, Norm] = {
    "1ee42456c7aca18a": Norm("variance_epsilon", adds_one=False),
    "d9200421c89ed63d": Norm("eps", adds_one=True),
}
