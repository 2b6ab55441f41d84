"""Chat templates that use what published ones use, and chats to render with them."""

from typing import Any

Chat = list[dict[str, Any]]
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TEMPLATES: dict[str, str] = {
    "default system message": """{% for message in messages %}
    {% if loop.first and message['role'] != 'system' %}
{{ '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}
    {%- endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "header blocks": """{{- bos_token }}
{%- set ns = namespace(num_users=0, last='') %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set ns.num_users = ns.num_users + 1 %}
    {%- endif %}
    {%- set ns.last = message['content'] | trim %}
    {{- '<|header|>' ~ message['role'] ~ '<|end|>\\n\\n' ~ ns.last ~ '<|eot|>' }}
{%- endfor %}
{{- '[' ~ ns.num_users ~ ']' }}
{%- if add_generation_prompt %}
    {{- '<|header|>assistant<|end|>\\n\\n' }}
{%- endif %}""",
    "system before the last user": """{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user and assistant') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.last and system_message is defined %}
            {{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- ' [INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- else %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}""",
    "marked answers": """{% for message in messages %}
{% if message['role'] == 'assistant' %}
{% generation %}<a>{{ message['content'] }}</a>
{% endgeneration %}
{% else %}<q>{{ message['content'] }}</q>
{% endif %}
{% endfor %}""",
    "json and loop controls": """{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {{- message | tojson }}
    {{- messages | length | tojson(indent=2) }}
    {%- if loop.index > 2 %}{% break %}{% endif %}
{%- endfor %}
{%- if tools is not none or documents %}{{ 'tools' }}{% endif %}""",
}
CHATS: dict[str, Chat] = {
    "one question": [{"role": "user", "content": "  What is <b>1 & 1</b>? "}],
    "with a system message": [
        {"role": "system", "content": "Answer in\nFrench."},
        {"role": "user", "content": "Café, naïve, 日本, 🌊 \"quoted\" 'too'"},
    ],
    "several turns": [
        {"role": "user", "content": "One."},
        {"role": "assistant", "content": "Two.\n\n"},
        {"role": "user", "content": "\tThree?"},
    ],
}
