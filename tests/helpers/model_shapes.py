"""Shapes of public models, from their config.json files."""

from selfplay.plan.model_shape import ModelShape


def qwen(
    layers: int, hidden: int, heads: int, kv: int, dim: int, wide: int, words: int, tied: bool
) -> ModelShape:
    """Return the shape of a Qwen2.5 model."""
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv,
        head_dim=dim,
        intermediate=wide,
        vocabulary=words,
        tied=tied,
        qkv_bias=True,
    )


QWEN_05B = qwen(24, 896, 14, 2, 64, 4864, 151936, True)
QWEN_15B = qwen(28, 1536, 12, 2, 128, 8960, 151936, True)
QWEN_3B = qwen(36, 2048, 16, 2, 128, 11008, 151936, True)
QWEN_7B = qwen(28, 3584, 28, 4, 128, 18944, 152064, False)
QWEN_14B = qwen(48, 5120, 40, 8, 128, 13824, 152064, False)
QWEN_32B = qwen(64, 5120, 40, 8, 128, 27648, 152064, False)
QWEN_72B = qwen(80, 8192, 64, 8, 128, 29568, 152064, False)
LLAMA_8B = ModelShape(
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate=14336,
    vocabulary=128256,
)
QWEN3_06B = ModelShape(
    layers=28,
    hidden=1024,
    heads=16,
    kv_heads=8,
    head_dim=128,
    intermediate=3072,
    vocabulary=151936,
    tied=True,
    qk_norm=True,
)
