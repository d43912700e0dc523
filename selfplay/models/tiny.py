"""The embedded default model: a million parameters and a tokenizer, made without any download."""

from collections.abc import Sequence

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

LARGEST = {
    "hidden": 16_384,
    "layers": 256,
    "heads": 1024,
    "intermediate": 65_536,
    "positions": 1_048_576,
}
"""Largest sizes of a model with random weights."""


def build_tokenizer(pieces: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes, plus one token for each of `pieces`.

    A regular expression cuts a text into the pieces and, elsewhere, into single characters. A cut
    that is in the vocabulary is one token; any other is split into its bytes, so that every text of
    any language has an encoding that decodes to itself.
    """
    strings = list(dict.fromkeys(["user\n", "assistant\n", "system\n", *pieces]))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocabulary = {PAD: 0, START: 1, END: 2}
    for symbol in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[symbol] = len(vocabulary)
    for string in strings:
        encoded = "".join(part for part, _ in level.pre_tokenize_str(string))
        vocabulary.setdefault(encoded, len(vocabulary))
    longest_first = sorted(strings, key=len, reverse=True)
    pattern = "|".join([*map(_escape, longest_first), r"[\s\S]"])
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), behavior="isolated"), level]
    )
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(
    vocabulary: int,
    *,
    seed: int,
    hidden: int = 128,
    layers: int = 4,
    heads: int = 4,
    intermediate: int = 384,
    positions: int = 1024,
) -> Qwen3ForCausalLM:
    """Return a Qwen3 model with random weights; torch's own random stream is not advanced.

    Args:
        vocabulary: Number of tokens.
        seed: Seed of the weights.
        hidden: Width per token; an even width for each head.
        layers: Number of blocks of attention and feed-forward.
        heads: Number of attention heads of a block.
        intermediate: Width of a feed-forward part.
        positions: Largest number of tokens of a text.
    Raises:
        ValueError: For impossible sizes.
    """
    sizes = {
        "hidden": hidden,
        "layers": layers,
        "heads": heads,
        "intermediate": intermediate,
        "positions": positions,
    }
    for name, size in sizes.items():
        if not 1 <= size <= LARGEST[name]:
            raise ValueError(f"{name}: {size} does not fit: 1 to {LARGEST[name]} is possible")
    if hidden % (2 * heads):
        raise ValueError(
            f"hidden: {hidden} does not fit: {heads} heads need an even width each, so choose "
            f"a multiple of {2 * heads}"
        )
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=intermediate,
        tie_word_embeddings=True,
        max_position_embeddings=positions,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


def _escape(text: str) -> str:
    """Return `text` as a pattern of the tokenizer's regular expressions."""
    return "".join(c if c.isalnum() or c in " \n'\"`<>=,:/" else "\\" + c for c in text)
