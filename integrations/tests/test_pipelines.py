"""Models in folders, made, saved and loaded by the libraries that use such folders: the pulled
files equal the saved ones bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import tool

import deltachain as dc

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")
transformers = pytest.importorskip("transformers", reason="SKIPPED: transformers is not installed")

LETTERS = [chr(letter) for letter in range(ord("a"), ord("z") + 1)]


def files(directory: Path) -> dict[str, bytes]:
    """All files of a directory and its folders."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in found}


def train(module: Any) -> None:
    """Changes some of the weights."""
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.view(-1)[::10] += 0.5


def pulled(
    tmp_path: Path, save: Callable[[Path], None], step: Callable[[], None]
) -> Iterator[tuple[Path, Path]]:
    """Publishes the saved files before a step and after it. Yields for each version the directory
    that was saved and the directory of a follower."""
    url, follower = tmp_path / "chain", tmp_path / "follower"
    tool("init", url)
    for version in range(2):
        saved = tmp_path / f"saved {version}"
        save(saved)
        # A trainer's checkpoint inside the model's folder.
        save(saved / "checkpoint-500")
        published = json.loads(
            tool("--json", "publish", url, saved, "--work", tmp_path / "work").splitlines()[-1]
        )
        assert [route["from"] for route in published["routes"]] == [
            version - 1 if version else None
        ]
        tool("pull", url, follower)
        whole, here = files(saved), files(follower / "current")
        expected = {
            name: data for name, data in whole.items() if not name.startswith("checkpoint-500/")
        }
        assert len(expected) < len(whole)
        assert here.keys() == expected.keys()
        # Headers may have another order, which the libraries ignore.
        other = [name for name in expected if ".safetensors" not in name]
        assert {name: here[name] for name in other} == {name: expected[name] for name in other}
        yield saved, follower / "current"
        step()


def assert_same(module: Any, loaded: Any) -> None:
    """Asserts that two modules have the same weights, bit for bit."""
    expected, found = module.state_dict(), loaded.state_dict()
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        bits = [
            weights.detach().contiguous().view(-1).view(torch.uint8)
            for weights in (tensor, found[name])
        ]
        assert tensor.dtype == found[name].dtype and torch.equal(*bits), name


def test_a_diffusion_pipeline(tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers", reason="SKIPPED: diffusers is not installed")
    torch.manual_seed(1)
    words = ["<|startoftext|>", "<|endoftext|>", *LETTERS, *(letter + "</w>" for letter in LETTERS)]
    written = tmp_path / "tokenizer"
    written.mkdir()
    (written / "vocab.json").write_text(
        json.dumps({word: number for number, word in enumerate(words)})
    )
    (written / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.CLIPTokenizer.from_pretrained(written)
    text = transformers.CLIPTextConfig(
        bos_token_id=0,
        eos_token_id=1,
        hidden_size=32,
        intermediate_size=37,
        num_attention_heads=4,
        num_hidden_layers=2,
        projection_dim=32,
        vocab_size=len(words),
    )
    unet = diffusers.UNet2DConditionModel(
        block_out_channels=(8, 16),
        layers_per_block=1,
        sample_size=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 1),
        projection_class_embeddings_input_dim=80,
        cross_attention_dim=64,
        norm_num_groups=1,
    )
    vae = diffusers.AutoencoderKL(
        block_out_channels=[8, 8],
        down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2,
        norm_num_groups=1,
    )
    pipeline = diffusers.StableDiffusionXLPipeline(
        vae=vae,
        # Two encoders of one kind, so that both have tensors of the same names.
        text_encoder=transformers.CLIPTextModelWithProjection(text),
        text_encoder_2=transformers.CLIPTextModelWithProjection(text),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        unet=unet,
        scheduler=diffusers.EulerDiscreteScheduler(),
    )
    parts = ["unet", "vae", "text_encoder", "text_encoder_2"]

    def save(path: Path) -> None:
        pipeline.save_pretrained(path, max_shard_size="100KB")

    def step() -> None:
        for part in parts:
            train(getattr(pipeline, part))

    for saved, current in pulled(tmp_path, save, step):
        assert (saved / "unet/diffusion_pytorch_model.safetensors.index.json").is_file()
        loaded = diffusers.StableDiffusionXLPipeline.from_pretrained(current)
        for part in parts:
            assert_same(getattr(pipeline, part), getattr(loaded, part))
        assert loaded.tokenizer("a chain").input_ids == tokenizer("a chain").input_ids

    names = set(dc.HostCopy(tmp_path / "follower").tensors())
    inside = {
        part: {name.removeprefix(f"{part}/") for name in names if name.startswith(f"{part}/")}
        for part in parts
    }
    assert len(inside["text_encoder"]) > 30 and inside["text_encoder"] == inside["text_encoder_2"]
    assert sum(map(len, inside.values())) == len(names)


def test_a_sentence_transformer(tmp_path: Path) -> None:
    library = pytest.importorskip(
        "sentence_transformers", reason="SKIPPED: sentence-transformers is not installed"
    )
    from sentence_transformers.sentence_transformer import modules

    torch.manual_seed(1)
    base = tmp_path / "base"
    base.mkdir()
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *LETTERS,
        *("##" + letter for letter in LETTERS),
    ]
    (base / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(base / "vocab.txt")).save_pretrained(base)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    transformers.BertModel(config).save_pretrained(base)
    stack = [modules.Transformer(str(base)), modules.Pooling(16), modules.Dense(16, 8)]
    model = library.SentenceTransformer(modules=stack, device="cpu")

    for saved, current in pulled(
        tmp_path, lambda path: model.save_pretrained(str(path)), lambda: train(model)
    ):
        for name in [
            "modules.json",
            "1_Pooling/config.json",
            "2_Dense/model.safetensors",
            "model.safetensors",
        ]:
            assert (saved / name).is_file(), name
        loaded = library.SentenceTransformer(str(current), device="cpu")
        assert_same(model, loaded)
        text = "a chain of versions"
        assert (model.encode(text) == loaded.encode(text)).all()
    names = set(dc.HostCopy(tmp_path / "follower").tensors())
    assert {name for name in names if "/" in name} == {
        "2_Dense/linear.bias",
        "2_Dense/linear.weight",
    }
