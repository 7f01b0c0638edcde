"""Small random models as checkpoints, and a training loop that publishes each step."""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

import deltachain as dc

# For models that compute the width of heads from the hidden size: makes the heads as wide as in the
# other models.
WIDE = {"hidden_size": 128}

# For each model, its class in transformers and its sizes.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    # Embedding and head are tied.
    "qwen3": ("Qwen3", {}),
    # A checkpoint in F32, and a server that computes in it.
    "f32": ("Qwen3", {"dtype": "float32"}),
    # Versions with NaN of every payload, -0, infinities and subnormal numbers.
    "edges": ("Qwen3", {"tie_word_embeddings": False}),
    "gpt-oss": (
        "GptOss",
        {
            "tie_word_embeddings": False,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    # The layers keep a view of a parameter, which vLLM packs on some CPUs.
    "mamba2": (
        "Mamba2",
        {
            "tie_word_embeddings": False,
            "num_heads": 4,
            "head_dim": 32,
            "state_size": 16,
            "n_groups": 1,
            "chunk_size": 32,
        },
    ),
    "moe": (
        "Qwen3Moe",
        {
            "tie_word_embeddings": False,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
        },
    ),
    "llama": ("Llama", {"tie_word_embeddings": False}),
    "mixtral": (
        "Mixtral",
        {"tie_word_embeddings": False, "num_local_experts": 4, "num_experts_per_tok": 2, **WIDE},
    ),
    "deepseek": (
        "DeepseekV3",
        {
            "tie_word_embeddings": False,
            "moe_intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "head_dim": 64,
            "n_shared_experts": 1,
            "n_routed_experts": 8,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "n_group": 2,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "kv_lora_rank": 512,
            "q_lora_rank": 64,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 32,
            "v_head_dim": 64,
        },
    ),
    # Embedding and head of the next three are tied.
    "gemma2": ("Gemma2", {}),
    "gemma3": ("Gemma3Text", {"layer_types": ["sliding_attention", "full_attention"]}),
    "cohere2": ("Cohere2", {"layer_types": ["sliding_attention", "full_attention"], **WIDE}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": False, **WIDE}),
    # vLLM loads the next two with modules of transformers. The first is tied.
    "starcoder2": ("Starcoder2", WIDE),
    "gpt-neox": ("GPTNeoX", {"tie_word_embeddings": False, **WIDE}),
    # Tied. The projections are transposed.
    "gpt2": ("GPT2", WIDE),
    # Tied. Loaders of the next two reorder queries, keys and values.
    "bloom": ("Bloom", WIDE),
    "falcon": (
        "Falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 512, **WIDE},
    ),
    "olmoe": (
        "Olmoe",
        {
            "tie_word_embeddings": False,
            "num_key_value_heads": 4,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            **WIDE,
        },
    ),
    # Tied. The experts are stacked in the checkpoint.
    "granitemoe": ("GraniteMoe", {"num_local_experts": 4, "num_experts_per_tok": 2, **WIDE}),
    # The experts are fused and transposed in the checkpoint.
    "llama4": (
        "Llama4Text",
        {"tie_word_embeddings": False, "num_local_experts": 4, "intermediate_size_mlp": 128},
    ),
    # The loader casts the gates of experts to F32.
    "glm4moe": (
        "Glm4Moe",
        {
            "tie_word_embeddings": False,
            "moe_intermediate_size": 64,
            "n_shared_experts": 1,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "num_nextn_predict_layers": 0,
        },
    ),
    # The loader computes with `A_log`. Like Mamba 2, the model keeps a view of a parameter, which
    # vLLM packs, except in F32.
    "falcon-h1": (
        "FalconH1",
        {
            "dtype": "float32",
            "tie_word_embeddings": False,
            "mamba_d_ssm": 128,
            "mamba_n_heads": 4,
            "mamba_d_head": 32,
            "mamba_d_state": 16,
            "mamba_chunk_size": 32,
        },
    ),
    # The loader casts `A_log` to F32. Where vLLM packs convolutions, it also keeps a copy of them.
    "qwen3-next": (
        "Qwen3Next",
        {
            "tie_word_embeddings": False,
            "head_dim": 64,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
        },
    ),
    # About half a billion parameters, as wide and deep as Qwen2.5-0.5B.
    "half": (
        "Qwen3",
        {
            "vocab_size": 151936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "head_dim": 64,
        },
    ),
}

# With this step, about 1 % of the large model's elements change.
LARGE_STEP = 4e-7

SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}


def make(kind: str, folder: Path, seed: int) -> Any:
    """Makes a random model, and saves it in its dtype."""
    name, changes = KINDS[kind]
    torch.manual_seed(seed)
    own = getattr(transformers, f"{name}Config")
    # Some configurations compute the width of heads from the other sizes.
    sizes = {
        size: value
        for size, value in SIZES.items()
        if not isinstance(getattr(own, size, None), property)
    }
    config = own(**{**sizes, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config)
    save(model, folder)
    if kind != "half":
        words().save_pretrained(folder)
    return model


def save(model: Any, folder: Path) -> None:
    """Saves a model in bfloat16 or F32. One bias stays in F32, as in DeepSeek-V3."""
    wide = {
        name: tensor.clone()
        for name, tensor in model.named_buffers()
        if "e_score_correction_bias" in name
    }
    model.to(torch.float32 if model.config.dtype in ("float32", torch.float32) else torch.bfloat16)
    for name, tensor in wide.items():
        place, _, own = name.rpartition(".")
        setattr(model.get_submodule(place), own, tensor.float())
    model.save_pretrained(folder)


def words() -> Any:
    """A tokenizer for models without a language: token 7 is the word `w7`."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {f"w{number}": number for number in range(SIZES["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="w0", eos_token="w1", unk_token="w0"
    )


def with_edges(tensor: torch.Tensor, number: int) -> torch.Tensor:
    """Returns the tensor with special bits in every 50th element, at other places in each
    version."""
    bits = tensor.clone().view(torch.int16).view(-1)
    own = bits[number::50]
    special = torch.tensor(
        [-0x8000, 0x7F80, -0x80, 0x0001, -0x7FFF, *range(0x7F81, 0x7FFF, 9), *range(-0x7F, 0, 9)]
    )
    own.copy_(special.roll(number).repeat(len(own) // len(special) + 1)[: len(own)])
    return bits.view(tensor.dtype).view(tensor.shape)


def train(kind: str, folder: Path, versions: int) -> None:
    """Publishes versions of a model to FOLDER/chain, one after each step of training. Each is saved
    by transformers as well, in FOLDER/saved-N: an updated server has to equal that. FOLDER/other is
    another random model of the same shape, for servers to start with.

    Master weights are in F32, as in real training; the checkpoint is bfloat16, or F32.
    """
    make(kind, folder / "other", seed=1)
    model = make(kind, folder / "base", seed=0).float()
    # The large model is trained by the signs of its gradients: Adam's first step does the same, but
    # needs more memory.
    optimizer = None if kind == "half" else torch.optim.AdamW(groups(model), lr=5e-6)
    generator = torch.Generator().manual_seed(0)
    rows = []
    with dc.Publisher(str(folder / "chain"), like=folder / "base", profile="local") as publisher:
        for number in range(versions):
            tokens = torch.randint(
                2, model.config.vocab_size, (1 if kind == "half" else 4, 16), generator=generator
            )
            model(input_ids=tokens, labels=tokens).loss.backward()
            if optimizer is None:
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.sub_(parameter.grad.sign_(), alpha=LARGE_STEP)
            else:
                optimizer.step()
            model.zero_grad()
            saved = folder / f"saved-{number}"
            save(copy.deepcopy(model), saved)
            if kind == "edges":
                tensors = {
                    name: with_edges(tensor, number) for name, tensor in tensors_of(saved).items()
                }
                save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
            if kind != "half":
                words().save_pretrained(saved)
            # The model as transformers saves it, with the names of a checkpoint.
            published = publisher.publish_async(
                tensors_of(saved), metadata={"step": number}
            ).result()
            rows.append(
                {
                    "version": published.version,
                    "digest": published.digest,
                    "changed": published.changed,
                    "elements": published.elements,
                    "bytes": published.bytes,
                }
            )
    (folder / "versions.json").write_text(json.dumps(rows, indent=1))


def groups(model: Any) -> list[dict[str, Any]]:
    """The parameter groups of the optimizer. Tensors that loaders compute with are trained faster,
    so that they change in each version, in bfloat16, too."""
    own: dict[bool, list[Any]] = {False: [], True: []}
    for name, parameter in model.named_parameters():
        own[name.endswith(("A_log", "dt_bias"))].append(parameter)
    return [{"params": own[False]}, {"params": own[True], "lr": 2e-2}]


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a saved model."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("versions", type=int)
    given = parser.parse_args()
    train(given.kind, given.folder, given.versions)
