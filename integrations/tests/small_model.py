"""A small random model with a tokenizer, as a checkpoint, and the objects to train it for a few
steps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import deltachain as dc

# Set before the imports: no network requests, no telemetry.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TRL_EXPERIMENTAL_SILENCE="1")

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")
transformers = pytest.importorskip("transformers", reason="SKIPPED: transformers is not installed")

WORDS = [
    "a",
    "and",
    "cat",
    "dog",
    "fly",
    "had",
    "hat",
    "in",
    "mat",
    "owl",
    "ran",
    "red",
    "sat",
    "saw",
    "the",
    "to",
]

TEXTS = [
    "the cat sat in the hat",
    "a dog ran to the mat",
    "the owl saw a red fly",
    "the dog and the cat had a mat",
]


def write_checkpoint(folder: Path, kind: str = "Qwen3", **changes: Any) -> Path:
    """Writes a random model in bfloat16, of the class `<kind>ForCausalLM`, with the other files of
    a checkpoint."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    sizes = {
        "vocab_size": len(vocabulary),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": None,
    }
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **changes})
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
    return folder


def version(url: Path, number: int | None = None) -> dict[str, Any]:
    """The tensors of a version, by default the newest."""
    with dc.Subscriber(url, kind="torch") as subscriber:
        subscriber.prepare(number, timeout=60).apply()
        return dict(subscriber.state())


def assert_is(found: dict[str, Any], model: Any) -> None:
    """Asserts that a follower has the model's tensors as its checkpoint has them, bit for bit."""
    expected = {
        name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"
    }
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype is torch.bfloat16
        assert torch.equal(
            found[name].view(torch.int16), tensor.detach().cpu().bfloat16().view(torch.int16)
        ), name
