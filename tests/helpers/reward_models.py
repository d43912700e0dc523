"""Small reward models with random or chosen weights, in folders that `save_pretrained` wrote."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from selfplay.models.tiny import build_tokenizer

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "sea",
    "sun",
    "blue",
    "hot",
    "[",
    "]",
    "SEP",
    "S",
    "EP",
]
SMALL: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


def saved_llama(
    folder: Path, *, outputs: int = 1, positions: int = 256, seed: int = 0, **changes: Any
) -> Path:
    """Save a decoder whose tokenizer has a chat template."""
    tokenizer = build_tokenizer([])
    torch.manual_seed(seed)
    known: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": positions,
        "num_labels": outputs,
        "pad_token_id": 0,
    }
    config = LlamaConfig(**{**known, **changes})
    model = LlamaForSequenceClassification(config)
    torch.nn.init.normal_(model.score.weight, std=1.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def saved_bert(folder: Path) -> Path:
    """Save an encoder whose tokenizer has no chat template: it reads a pair of texts."""
    _pair_tokenizer(WORDS, types=True).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(max_position_embeddings=64, **SMALL)
    config.num_labels = 1
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def saved_roberta(folder: Path, *, positions: int) -> Path:
    """Save an encoder whose positions begin after the position of padding, which is 1.

    It has no token types.
    """
    _pair_tokenizer([WORDS[1], WORDS[0], *WORDS[2:]], types=False).save_pretrained(folder)
    torch.manual_seed(0)
    config = RobertaConfig(
        max_position_embeddings=positions, pad_token_id=1, type_vocab_size=1, **SMALL
    )
    config.num_labels = 1
    RobertaForSequenceClassification(config).save_pretrained(folder)
    return folder


def _pair_tokenizer(words: Sequence[str], *, types: bool) -> PreTrainedTokenizerFast:
    vocabulary = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    read = ["input_ids", *["token_type_ids"] * types, "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=read, **names)


def train_to_prefer(folder: Path, wanted: Callable[[str], float], texts: Sequence[str]) -> None:
    """Train a saved decoder, by squared error, to give each answer the reward `wanted`."""
    model = LlamaForSequenceClassification.from_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for start in range(0, len(texts), 32):
        part = texts[start : start + 32]
        chats = [chat("Say something.", text) for text in part]
        written = [tokenizer.apply_chat_template(each, tokenize=False) for each in chats]
        rows = tokenizer(written, add_special_tokens=False, padding=True, return_tensors="pt")
        found = model(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"])
        goal = torch.tensor([wanted(text) for text in part])
        loss = (found.logits[:, 0] - goal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)


def chat(question: str, answer: str) -> list[dict[str, str]]:
    """Return the conversation that a reward model reads."""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
