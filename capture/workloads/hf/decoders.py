"""Language models of the `hf` workload that guess the next token."""

from __future__ import annotations

from typing import Final

from tracekit.capture.workloads.hf.entry import HfEntry, entries

__all__ = ["ENTRIES"]

_WIDE: Final = {
    "vocab_size": 128,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
_LLAMA: Final = {**_WIDE, "intermediate_size": 64}
_GROUPED: Final = {**_LLAMA, "num_key_value_heads": 1}
_ENDS: Final = {"bos_token_id": 1, "eos_token_id": 2}  # the usual ones are not within the tiny vocabulary
_MAKES_MASK: Final = {"example_mask": ""}  # without reading values, or none
_GPT2: Final = {**_ENDS, "vocab_size": 128, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
_MIXTURE: Final = {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}

ENTRIES: Final[tuple[HfEntry, ...]] = entries(
    (
        ("gpt2", "GPT2LMHeadModel", "GPT2Config", _GPT2, {}),
        (
            "gpt-neo",
            "GPTNeoForCausalLM",
            "GPTNeoConfig",
            {
                **_ENDS,
                "vocab_size": 128,
                "hidden_size": 32,
                "num_layers": 2,
                "num_heads": 2,
                "max_position_embeddings": 64,
                "attention_types": [[["global", "local"], 1]],
                "window_size": 8,
            },
            {},
        ),
        ("gpt-j", "GPTJForCausalLM", "GPTJConfig", {**_GPT2, "rotary_dim": 4}, {}),
        (
            "gpt-neox",
            "GPTNeoXForCausalLM",
            "GPTNeoXConfig",
            _LLAMA,
            # Pythia 1.4B
            {
                "vocab_size": 50_304,
                "hidden_size": 2048,
                "num_hidden_layers": 24,
                "num_attention_heads": 16,
                "intermediate_size": 8192,
            },
        ),
        (
            "opt",
            "OPTForCausalLM",
            "OPTConfig",
            {**_WIDE, "ffn_dim": 64, "word_embed_proj_dim": 32},
            {},
            _MAKES_MASK,
        ),
        (
            "bloom",
            "BloomForCausalLM",
            "BloomConfig",
            {"vocab_size": 128, "hidden_size": 32, "n_layer": 2, "n_head": 2},
            {"hidden_size": 1024, "n_layer": 24, "n_head": 16},  # 560M
            _MAKES_MASK,
        ),
        (
            "llama",
            "LlamaForCausalLM",
            "LlamaConfig",
            _GROUPED,
            # TinyLlama 1.1B
            {
                "hidden_size": 2048,
                "intermediate_size": 5632,
                "num_hidden_layers": 22,
                "num_attention_heads": 32,
                "num_key_value_heads": 4,
            },
        ),
        ("mistral", "MistralForCausalLM", "MistralConfig", _GROUPED, {}),
        ("mixtral", "MixtralForCausalLM", "MixtralConfig", _MIXTURE, {}),
        (
            "qwen2",
            "Qwen2ForCausalLM",
            "Qwen2Config",
            _GROUPED,
            # 0.5B
            {
                "hidden_size": 896,
                "intermediate_size": 4864,
                "num_hidden_layers": 24,
                "num_attention_heads": 14,
                "num_key_value_heads": 2,
                "tie_word_embeddings": True,
            },
        ),
        (
            "qwen3",
            "Qwen3ForCausalLM",
            "Qwen3Config",
            {**_GROUPED, "head_dim": 16},
            # 0.6B
            {
                "hidden_size": 1024,
                "intermediate_size": 3072,
                "num_hidden_layers": 28,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "tie_word_embeddings": True,
            },
        ),
        (
            "qwen3-moe",
            "Qwen3MoeForCausalLM",
            "Qwen3MoeConfig",
            {
                **_GROUPED,
                "head_dim": 16,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
            },
            {"num_hidden_layers": 48, "head_dim": 128},  # 30B, of which 3B are active
        ),
        (
            "gemma",
            "GemmaForCausalLM",
            "GemmaConfig",
            {**_GROUPED, "head_dim": 16},
            # 2B
            {
                "hidden_size": 2048,
                "intermediate_size": 16_384,
                "num_hidden_layers": 18,
                "num_attention_heads": 8,
                "num_key_value_heads": 1,
            },
        ),
        (
            "gemma3",
            "Gemma3ForCausalLM",
            "Gemma3TextConfig",
            {**_GROUPED, "head_dim": 16, "sliding_window": 8},
            # 1B
            {
                "vocab_size": 262_144,
                "hidden_size": 1152,
                "intermediate_size": 6912,
                "num_attention_heads": 4,
                "num_key_value_heads": 1,
                "sliding_window": 512,
            },
        ),
        ("phi", "PhiForCausalLM", "PhiConfig", _LLAMA, {}),
        ("phi3", "Phi3ForCausalLM", "Phi3Config", {**_GROUPED, "pad_token_id": 0, "eos_token_id": 2}, {}),
        ("falcon", "FalconForCausalLM", "FalconConfig", _WIDE, {}),
        ("stablelm", "StableLmForCausalLM", "StableLmConfig", {**_LLAMA, "num_key_value_heads": 2}, {}),
        (
            "mpt",
            "MptForCausalLM",
            "MptConfig",
            {"vocab_size": 128, "d_model": 32, "n_layers": 2, "n_heads": 2, "max_seq_len": 64},
            {},
        ),
        (
            "olmo",
            "OlmoForCausalLM",
            "OlmoConfig",
            {**_GROUPED, **_ENDS},
            # 1B
            {
                "hidden_size": 2048,
                "intermediate_size": 8192,
                "num_hidden_layers": 16,
                "num_attention_heads": 16,
                "tie_word_embeddings": True,
            },
        ),
        (
            "olmo2",
            "Olmo2ForCausalLM",
            "Olmo2Config",
            {**_GROUPED, **_ENDS},
            # 1B
            {
                "vocab_size": 100_352,
                "hidden_size": 2048,
                "intermediate_size": 8192,
                "num_hidden_layers": 16,
                "num_attention_heads": 16,
                "max_position_embeddings": 4096,
            },
        ),
        (
            "gpt-oss",
            "GptOssForCausalLM",
            "GptOssConfig",
            {**_MIXTURE, "head_dim": 16, "sliding_window": 8, "max_position_embeddings": 131_072},
            {"num_hidden_layers": 24, "num_local_experts": 32},  # 20B
        ),
        (
            "deepseek-v3",
            "DeepseekV3ForCausalLM",
            "DeepseekV3Config",
            {
                **_LLAMA,
                "num_key_value_heads": 2,
                "moe_intermediate_size": 32,
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "n_group": 2,
                "topk_group": 1,
                "first_k_dense_replace": 1,
                "kv_lora_rank": 16,
                "q_lora_rank": 16,
                "qk_rope_head_dim": 8,
                "qk_nope_head_dim": 8,
                "v_head_dim": 8,
            },
            # Moonlight 16B, of which 3B are active: the 671B of V3 fit into no machine of one GPU
            {
                "vocab_size": 163_840,
                "hidden_size": 2048,
                "intermediate_size": 11_264,
                "moe_intermediate_size": 1408,
                "num_hidden_layers": 27,
                "num_attention_heads": 16,
                "num_key_value_heads": 16,
                "n_shared_experts": 2,
                "n_routed_experts": 64,
                "routed_scaling_factor": 2.446,
                "q_lora_rank": None,
                "n_group": 1,
                "topk_group": 1,
                "num_experts_per_tok": 6,
                "first_k_dense_replace": 1,
                "max_position_embeddings": 8192,
            },
        ),
        (
            "mamba",
            "MambaForCausalLM",
            "MambaConfig",
            {"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
            {"num_hidden_layers": 24},  # 130M
            _MAKES_MASK,
        ),
        (
            "mamba2",
            "Mamba2ForCausalLM",
            "Mamba2Config",
            {
                "vocab_size": 128,
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "state_size": 8,
                "num_heads": 8,
                "head_dim": 8,
                "n_groups": 1,
                "chunk_size": 8,
            },
            # 130M
            {
                "vocab_size": 50_288,
                "hidden_size": 768,
                "num_hidden_layers": 24,
                "num_heads": 24,
                "n_groups": 1,
                "tie_word_embeddings": True,
            },
        ),
        (
            "rwkv",
            "RwkvForCausalLM",
            "RwkvConfig",
            {"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 64},
            {"hidden_size": 768, "num_hidden_layers": 12},  # 169M
        ),
        (
            "gpt-bigcode",
            "GPTBigCodeForCausalLM",
            "GPTBigCodeConfig",
            _GPT2,
            # SantaCoder 1.1B
            {"vocab_size": 49_280, "n_embd": 2048, "n_layer": 24, "n_head": 16, "n_positions": 2048},
        ),
        ("ctrl", "CTRLLMHeadModel", "CTRLConfig", {**_GPT2, "dff": 64}, {}, {"size": 256}),
    ),
    task="language modelling",
    inputs="tokens",
    tiny_size=16,
    size=1024,
    batch=4,
    example_mask="causal",
)
