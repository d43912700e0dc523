"""Chat templates with tools, in the formats of Qwen 2.5 and of Llama 3.1."""

from typing import Any

from selfplay.models.tiny import build_tokenizer

QWEN = (
    "{% if tools %}{{ '<|im_start|>system\n' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}"
    "{{ '# Tools\n\n<tools>' }}{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}"
    '{{ \'\n</tools>\n\nReturn <tool_call>\n{"name": <function-name>, "arguments": '
    "<args-json-object>}\n</tool_call><|im_end|>\n' }}"
    "{% elif messages[0].role == 'system' %}"
    "{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) "
    "%}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% elif m.role == 'assistant' %}{{ '<|im_start|>assistant' }}"
    "{% if m.content %}{{ '\n' + m.content }}{% endif %}"
    "{% for c in m.tool_calls %}{% set c = c.function %}"
    '{{ \'\n<tool_call>\n{"name": "\' + c.name + \'", "arguments": \' + (c.arguments | tojson) '
    "+ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}"
    "{% endif %}{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Template in the format of Qwen 2.5 Instruct."""

LLAMA = (
    "{% for m in messages %}{% if m.role == 'assistant' and m.tool_calls %}"
    '{% set c = m.tool_calls[0].function %}{{ \'<|im_start|>assistant\n{"name": "\' + c.name + '
    "'\", \"parameters\": ' + (c.arguments | tojson) + '}<|im_end|>\n' }}"
    "{% elif m.role == 'tool' %}"
    "{{ '<|im_start|>ipython\n' + (m.content | tojson) + '<|im_end|>\n' }}"
    "{% elif m.role == 'user' and loop.first and tools %}{{ '<|im_start|>user\nRespond in the "
    'format {"name": function name, "parameters": dictionary}.\n\' }}'
    "{% for tool in tools %}{{ (tool | tojson) + '\n' }}{% endfor %}"
    "{{ m.content + '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Template in the format of Llama 3.1, with the tools in the first user message."""


def tokenizer(template: str | None = None) -> Any:
    """Return the tiny tokenizer with a chat template, by default its own one without tools."""
    made = build_tokenizer(["<think>", "</think>"])
    if template is not None:
        made.chat_template = template
    return made
