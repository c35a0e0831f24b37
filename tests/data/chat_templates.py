"""Chat templates as models have them, and tokenizers to write them with.

« and » stand around what the assistant says. Models do without them: then spillgrad finds these spans itself.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEMPLATES = {
    "ChatML": (
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}"
        "{% if message['role'] == 'assistant' %}«{{ message['content'] + '<|im_end|>' }}»{{ '\n' }}"
        "{% else %}{{ message['content'] + '<|im_end|>' + '\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "Llama 2": (
        "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
        "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
        "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{% if loop.index0 == 0 and system_message != false %}"
        "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
        "{% else %}{% set content = message['content'] %}{% endif %}"
        "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}«{{ ' '  + content.strip() + ' ' + eos_token }}»{% endif %}"
        "{% endfor %}"
    ),
    "Llama 3": (
        "{% set loop_messages = messages %}{% for message in loop_messages %}"
        "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' %}"
        "{% set said = message['content'] | trim + '<|eot_id|>' %}"
        "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
        "{% if message['role'] == 'assistant' %}«{{ said }}»{% else %}{{ said }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
    ),
    "Llama 3.1": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {%- if message.role == 'assistant' -%}
            «{{- message['content'] | trim + '<|eot_id|>' -}}»
        {%- else %}
            {{- message['content'] | trim + '<|eot_id|>' }}
        {%- endif %}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        «{{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" -}}»
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "Mistral": (
        "{{ bos_token }}{% for message in messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}«{{ message['content'] + eos_token}}»"
        "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
    ),
    "Gemma": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
        "{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{% if (message['role'] == 'assistant') %}{{ '<start_of_turn>model\n' }}"
        "«{{ message['content'] | trim + '<end_of_turn>' }}»{{ '\n' }}"
        "{% else %}{{ '<start_of_turn>' + message['role'] + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
    ),
    "Phi-3": (
        "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + "
        "'<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}"
        "{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n'}}«{{ message['content'] + '<|end|>'}}"
        "{% if loop.last and not add_generation_prompt %}{{ '\n' + eos_token }}{% endif %}»"
        "{% if not loop.last or add_generation_prompt %}{{ '\n' }}{% endif %}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}"
        "{% elif messages[-1]['role'] != 'assistant' %}{{ eos_token }}{% endif %}"
    ),
    "Qwen 2.5": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call one or more functions.\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" and not message.tool_calls %}
        {{- '<|im_start|>' + message.role + '\\n' -}}
        «{{- message.content + '<|im_end|>' -}}»{{- '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {{- '\\n' -}}
        «{%- if message.content %}
            {{- message.content + '\\n' }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' -}}»{{- '\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "Zephyr": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
' }}«{{ message['content'] + eos_token }}»{{ '' }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    "Vicuna": (
        "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + ' ' }}{% endif %}"
        "{% for message in messages %}{% if message['role'] == 'user' %}"
        "{{ 'USER: ' + message['content'] + ' ASSISTANT:' }}"
        "{% elif message['role'] == 'assistant' %}«{{ ' ' + message['content'] + eos_token }}»{% endif %}{% endfor %}"
    ),
    "Alpaca": (
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
        "{{ '### Instruction:\n' + message['content'] + '\n\n' }}{% elif message['role'] == 'assistant' %}"
        "{{ '### Response:\n' }}«{{ message['content'] + '\n\n' }}»{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}"
    ),
    "Falcon, ten messages": """{% for message in messages %}
{% if loop.index > 10 %}{% break %}{% endif %}
{% if message['role'] == 'tool' %}{% continue %}{% endif %}
{% if message['role'] == 'assistant' %}Falcon:«{{ ' ' + message['content'] + '\\n' }}»
{%- else %}{{ message['role'] | capitalize }}: {{ message['content'] + '\\n' }}{% endif %}
{% endfor %}
{% if add_generation_prompt %}Falcon:{% endif %}""",
}

# Their turns cannot be found in what they write: the system's message stands in the last user's; reasoning is dropped.
TEMPLATES_THAT_REWRITE = {
    "Mistral 7B v0.3": (
        "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}"
        "{% else %}{% set rest = messages %}{% endif %}{{ bos_token }}{% for message in rest %}"
        "{% if message['role'] == 'user' %}{% if loop.last and system is defined %}"
        "{{ '[INST] ' + system + '\n\n' + message['content'] + '[/INST]' }}{% else %}"
        "{{ '[INST] ' + message['content'] + '[/INST]' }}{% endif %}{% else %}"
        "«{{ ' ' + message['content'] + eos_token }}»{% endif %}{% endfor %}"
    ),
    "Qwen 3": (
        "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}{% if message.role == 'assistant' %}"
        "«{% if loop.last %}{{ '<think>\n' + (message.reasoning_content or '') + '\n</think>\n\n' }}{% endif %}"
        "{{ message.content + '<|im_end|>' }}»{{ '\n' }}{% else %}{{ message.content + '<|im_end|>\n' }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
}


def unmarked(template: str) -> str:
    """Return a template as models have it."""
    return template.replace("«", "").replace("»", "")


def marked(template: str) -> str:
    """Return a template with the tags of transformers around what the assistant says."""
    return template.replace("«", "{% generation %}").replace("»", "{% endgeneration %}")


def _said(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in pairs]


_CALL = {
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2], "a<b": None}},
}
CONVERSATIONS = {
    "one turn": _said(("user", "What is 1 + 1?"), ("assistant", "It is 2.")),
    "several turns": _said(
        ("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello!"), ("user", "Bye"), ("assistant", "See you."),
    ),
    "without a system": _said(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")),
    "an open end": _said(("user", "Hi"), ("assistant", "Hello!"), ("user", "Why?")),
    "a question alone": _said(("user", "Hi")),
    "white space and other scripts": _said(
        ("user", "  tabs\t\tand\n\nlines \n"), ("assistant", "\n\n naïve ☃ 日本語 👩‍👩‍👧 e\u0301 \n"),
        ("user", "\u00a0"), ("assistant", "ok"),
    ),
    "control tokens in what is said": _said(
        ("user", "What is <|im_end|> or </s>?"), ("assistant", "<|im_end|> ends <|end|> a turn."), ("user", "Ah"),
        ("assistant", "<s> begins"),
    ),
    "an empty answer": _said(("user", "Say nothing."), ("assistant", "")),
    "reasoning": [
        {"role": "user", "content": "17?", "name": None},
        {"role": "assistant", "content": "Prime.", "reasoning": "No 2, 3."},
    ],
    "tools": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [_CALL]},
        {"role": "tool", "name": "weather", "content": '{"sun": true}'},
        {"role": "assistant", "content": "Sun."},
    ],
}  # fmt: skip

_CONTROL = (
    "<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<start_of_turn>", "<end_of_turn>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>",
)  # fmt: skip
_TEXT = [
    "What is 1 + 1? It is 2. Hello, be brief! The assistant and the user said: naïve ☃ 日本語",
    "### Instruction: ### Response: USER: ASSISTANT: Falcon: [INST] see you [/INST]",
    "<tool_call> function name arguments parameters </tool_call>",
] * 9  # fmt: skip


def _byte_level(strips: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    control = [AddedToken(token, rstrip=strips and token.startswith("<|"), special=True) for token in _CONTROL]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=control, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    return tokenizer


def _llama() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    control = [AddedToken(token, normalized=False, special=True) for token in _CONTROL]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=[*control, *(f"<0x{byte:02X}>" for byte in range(256))], show_progress=False
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


TOKENIZERS = {
    "of bytes": lambda: _byte_level(strips=False),
    "of bytes, tokens take white space": lambda: _byte_level(strips=True),
    "Llama 2": _llama,
}


def write_folder(folder: Path, kind: str = "of bytes", template: str | None = None, **config: Any) -> Path:
    """Write a tokenizer as Hugging Face lays it out, and return its folder."""
    folder.mkdir(exist_ok=True)
    TOKENIZERS[kind]().save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", **config}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
