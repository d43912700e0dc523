"""Chat templates with the rules of known families, and trained tokenizers with their tokens.

Each template is written for the tests and has only the rules that its docstring or comment states.
The facts about the families are those of their public templates in 2024 to 2026.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

TEXTS = [
    "one two three, one two three. The quick brown fox jumps over the lazy dog.",
    "<think>\nFirst I think. Then I answer.\n</think>\n\n<answer>two</answer>",
    "You play a game. Be brief. Today is 26 Jul 2024. user assistant system model",
]


@dataclass(frozen=True, kw_only=True)
class Family:
    """The rules of a family of chat templates."""

    template: str
    """Chat template."""
    special: Sequence[str]
    """Control tokens."""
    eos: str
    """End-of-sequence token of the tokenizer."""
    ends: Sequence[str]
    """Tokens that end a completion, the template's own first."""
    prompt: str
    """Text of the prompt for the system message S and the user message U."""
    markers: Sequence[str] = ()
    """Tokens that begin a turn and are not flagged as special."""
    bos: str | None = None
    """Begin-of-sequence token of the tokenizer."""
    further_ends: Sequence[str] = ()
    """Tokens in eos_token_id of generation_config.json."""
    opening: str = ""
    """Thinking tag at the end of the generation prompt."""
    drops_thinking: bool = False
    """True if the template leaves out the thinking of earlier turns."""
    folds_system: bool = False
    """True if the text of a system message must become the beginning of the user message."""
    merges_roles: bool = False
    """True if the template refuses neighbouring messages of one role."""
    spaced: bool = False
    """True if the tokenizer writes spaces as sentencepiece does."""

    def tokenizer(self) -> Any:
        """Return a tokenizer that is trained on a few sentences, with the template."""
        tokenizer = Tokenizer(models.BPE(byte_fallback=self.spaced, unk_token=None))
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        if self.spaced:
            tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
            tokenizer.decoder = decoders.Sequence(
                [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
            )
            alphabet = [chr(code) for code in range(33, 127)] + ["\u2581", "\n"]
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
        trainer = BpeTrainer(
            vocab_size=400,
            show_progress=False,
            initial_alphabet=alphabet,
            special_tokens=[f"<0x{byte:02X}>" for byte in range(256)] if self.spaced else [],
        )
        tokenizer.train_from_iterator(TEXTS * 3, trainer)
        # The trainer flags bytes as control tokens. In the models they are not control tokens.
        tokenizer = Tokenizer.from_str(
            json.dumps({**json.loads(tokenizer.to_str()), "added_tokens": []})
        )
        tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in self.special])
        # In Qwen3 and DeepSeek-R1 the tags are tokens, but not control tokens.
        plain = ("<think>", "</think>", *self.markers)
        tokenizer.add_tokens([AddedToken(text, normalized=False) for text in plain])
        fast = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, eos_token=self.eos, bos_token=self.bos
        )
        fast.chat_template = self.template
        return fast


LOOP = "{% for m in messages %}"
CHATML = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
CHATML_ASK = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

# The template adds a system message of its own if the conversation has none.
SMOLLM2 = Family(
    template=(
        "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nMine<|im_end|>\n' }}"
        "{% endif %}" + LOOP + CHATML + "{% endfor %}" + CHATML_ASK
    ),
    special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    bos="<|im_start|>",
    eos="<|im_end|>",
    ends=["<|im_end|>"],
    prompt="<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n",
)

# The same template; generation_config.json has [151645, 151643].
QWEN2_5 = Family(
    template=SMOLLM2.template,
    special=SMOLLM2.special,
    eos="<|im_end|>",
    further_ends=["<|im_end|>", "<|endoftext|>"],
    ends=["<|im_end|>", "<|endoftext|>"],
    prompt=SMOLLM2.prompt,
)

# The template keeps thinking only after the last user message. enable_thinking: false begins the
# answer with an empty thinking block. An answer at the end of the conversation always has a block.
_QWEN_ANSWER = (
    "{% if m.role == 'assistant' %}{% set parts = m.content.split('</think>') %}"
    "{% set said = parts[-1].lstrip('\n') %}"
    "{% if loop.index0 > last.user and (loop.last or parts | length > 1) %}"
    "{% set thought = parts[0].split('<think>')[-1].strip('\n') if parts | length > 1 else '' %}"
    "{{ '<|im_start|>assistant\n<think>\n' + thought + '\n</think>\n\n' + said + '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>assistant\n' + said + '<|im_end|>\n' }}{% endif %}"
    "{% else %}" + CHATML + "{% endif %}"
)
_QWEN_LAST = (
    "{% set last = namespace(user=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set last.user = loop.index0 %}{% endif %}{% endfor %}"
)
_NO_THINKING = "{% if enable_thinking is defined and not enable_thinking %}"
QWEN3 = Family(
    template=(
        _QWEN_LAST
        + LOOP
        + _QWEN_ANSWER
        + "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
        + _NO_THINKING
        + "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
    ),
    special=SMOLLM2.special,
    eos="<|im_end|>",
    further_ends=["<|im_end|>", "<|endoftext|>"],
    ends=["<|im_end|>", "<|endoftext|>"],
    prompt=SMOLLM2.prompt,
    drops_thinking=True,
)

# QwQ, Qwen3-Thinking-2507 and Qwen3.5: the generation prompt opens a thinking block. Qwen3.6 adds
# preserve_thinking.
QWEN3_THINKING = Family(
    template=(
        _QWEN_LAST
        + LOOP
        + "{% if preserve_thinking is defined and preserve_thinking %}"
        + CHATML
        + "{% else %}"
        + _QWEN_ANSWER
        + "{% endif %}{% endfor %}"
        + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
    ),
    special=SMOLLM2.special,
    eos="<|im_end|>",
    ends=["<|im_end|>"],
    prompt=SMOLLM2.prompt + "<think>\n",
    opening="<think>\n",
    drops_thinking=True,
)

# The system text has no marker. Of an answer, the template keeps the text after </think> with its
# white space.
_R1 = ["<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"]
R1_DISTILL = Family(
    template=(
        "{{ bos_token }}" + LOOP + "{% if m.role == 'user' %}{{ '<\uff5cUser\uff5c>' + m.content }}"
        "{% elif m.role == 'assistant' %}"
        "{{ '<\uff5cAssistant\uff5c>' + m.content.split('</think>')[-1] + eos_token }}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<\uff5cAssistant\uff5c><think>\n' }}{% endif %}"
    ),
    special=_R1,
    markers=["<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"],
    bos=_R1[0],
    eos=_R1[1],
    further_ends=[_R1[1]],
    ends=[_R1[1]],
    prompt=f"{_R1[0]}S<\uff5cUser\uff5c>U<\uff5cAssistant\uff5c><think>\n",
    opening="<think>\n",
    drops_thinking=True,
)

# Contents are trimmed; generation_config.json has [128001, 128008, 128009].
_LLAMA_TOKENS = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
]
_LLAMA_HEAD = "'<|start_header_id|>' + %s + '<|end_header_id|>\n\n'"
_LLAMA_MESSAGE = "{{ " + _LLAMA_HEAD % "m.role" + " + m.content | trim + '<|eot_id|>' }}"
_LLAMA_ASK = "{% if add_generation_prompt %}{{ " + _LLAMA_HEAD % "'assistant'" + " }}{% endif %}"
_LLAMA_PROMPT = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n%sS<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
_LLAMA_ENDS = ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]
LLAMA3 = Family(
    template="{{ bos_token }}" + LOOP + _LLAMA_MESSAGE + "{% endfor %}" + _LLAMA_ASK,
    special=_LLAMA_TOKENS,
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
    further_ends=_LLAMA_ENDS,
    ends=["<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"],
    prompt=_LLAMA_PROMPT % "",
)

# The template adds a system message with the date to every conversation. 3.1 has a default for
# date_string; 3.2 and 3.3 use the current date.
LLAMA3_2 = Family(
    template=(
        "{% if date_string is not defined %}{% set date_string = strftime_now('%d %b %Y') %}"
        "{% endif %}{% if messages[0].role == 'system' %}"
        "{% set first, rest = messages[0].content | trim, messages[1:] %}"
        "{% else %}{% set first, rest = '', messages %}{% endif %}{{ bos_token + "
        + _LLAMA_HEAD
        % "'system'"
        + " + 'Today Date: ' + date_string + '\n\n' + first + '<|eot_id|>' }}"
        "{% for m in rest %}" + _LLAMA_MESSAGE + "{% endfor %}" + _LLAMA_ASK
    ),
    special=_LLAMA_TOKENS,
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
    further_ends=_LLAMA_ENDS,
    ends=LLAMA3.ends,
    prompt=_LLAMA_PROMPT % "Today Date: 26 Jul 2024\n\n",
)

# Gemma 1 and 2 refuse system messages. Gemma 3 puts their text before the first user message. Roles
# must alternate. Contents are trimmed. Gemma 3's generation_config.json has [1, 106].
_ALTERNATE = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}"
    "{% endif %}"
)
_GEMMA_TURN = (
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + "
    "%sm.content | trim + '<end_of_turn>\n' }}"
)
_GEMMA_ASK = "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
GEMMA2 = Family(
    template=(
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}"
        "{% endif %}" + LOOP + _ALTERNATE + _GEMMA_TURN % "" + "{% endfor %}" + _GEMMA_ASK
    ),
    special=["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
    bos="<bos>",
    eos="<eos>",
    further_ends=["<eos>", "<end_of_turn>"],
    ends=["<end_of_turn>", "<eos>"],
    prompt="<bos><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\n",
    folds_system=True,
    merges_roles=True,
    spaced=True,
)
GEMMA3 = Family(
    template=(
        "{{ bos_token }}{% if messages[0].role == 'system' %}"
        "{% set first, rest = messages[0].content + '\n\n', messages[1:] %}"
        "{% else %}{% set first, rest = '', messages %}{% endif %}{% for m in rest %}"
        + _ALTERNATE
        + _GEMMA_TURN % "(first if loop.first else '') + "
        + "{% endfor %}"
        + _GEMMA_ASK
    ),
    special=GEMMA2.special,
    bos="<bos>",
    eos="<eos>",
    further_ends=["<eos>", "<end_of_turn>"],
    ends=["<end_of_turn>", "<eos>"],
    prompt=GEMMA2.prompt,
    merges_roles=True,
    spaced=True,
)

# 0.1 and 0.2 refuse system messages; 0.3 and Nemo put their text before the last user message. The
# templates write a space before each answer, and no generation prompt.
MISTRAL_1 = Family(
    template=(
        "{{ bos_token }}"
        + LOOP
        + _ALTERNATE
        + "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
        "{% elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}"
        "{% else %}{{ raise_exception('user and assistant only') }}{% endif %}{% endfor %}"
    ),
    special=["<s>", "</s>"],
    bos="<s>",
    eos="</s>",
    further_ends=["</s>"],
    ends=["</s>"],
    prompt="<s>[INST] S\n\nU [/INST]",
    folds_system=True,
    merges_roles=True,
    spaced=True,
)
MISTRAL_3 = Family(
    template=(
        "{% if messages[0].role == 'system' %}"
        "{% set first, rest = messages[0].content + '\n\n', messages[1:] %}"
        "{% else %}{% set first, rest = '', messages %}{% endif %}{{ bos_token }}"
        "{% for m in rest %}"
        + _ALTERNATE
        + "{% if m.role == 'user' %}{{ '[INST] ' + (first if loop.last else '') + m.content }}"
        "{{ '[/INST]' }}{% else %}{{ ' ' + m.content | trim + eos_token }}{% endif %}{% endfor %}"
    ),
    special=["<s>", "</s>", "[INST]", "[/INST]"],
    bos="<s>",
    eos="</s>",
    ends=["</s>"],
    prompt="<s>[INST] S\n\nU[/INST]",
    folds_system=True,
    merges_roles=True,
    spaced=True,
)

FAMILIES = {
    "SmolLM2": SMOLLM2,
    "Qwen2.5": QWEN2_5,
    "Qwen3": QWEN3,
    "Qwen3-Thinking": QWEN3_THINKING,
    "DeepSeek-R1-Distill": R1_DISTILL,
    "Llama-3": LLAMA3,
    "Llama-3.2": LLAMA3_2,
    "Gemma-2": GEMMA2,
    "Gemma-3": GEMMA3,
    "Mistral-0.1": MISTRAL_1,
    "Mistral-0.3": MISTRAL_3,
}
