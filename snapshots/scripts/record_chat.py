"""Records chats as Jinja2 renders them, for `engine/models/src/chat`.

Packages: jinja2 3.1.6, gguf 0.19.0 (Python 3.11 or newer).
Usage: python snapshots/scripts/record_chat.py MODEL.gguf > snapshots/reference/chat_templates.json

MODEL is SmolLM2-135M-Instruct.Q4_1.gguf (see the README); its template is the first one. The others are written here, in the styles
that chat models use. The environment is the one that chat templates are made for: sandboxed, blocks trimmed, loop controls, and
`raise_exception`, `strftime_now` and a `tojson` without escapes.
"""

import datetime
import json
import sys

import gguf
import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

TIME = datetime.datetime(2024, 2, 29, 23, 59, 59, tzinfo=datetime.timezone.utc)


class Refused(Exception):
    pass


def raise_exception(message):
    raise Refused(message)


def tojson(value, ensure_ascii=False, indent=None):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = TIME.strftime
    return env


CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

HEADERS = """\
{{- bos_token }}
{%- set loop_messages = messages %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'].strip() %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' ~ strftime_now('%d %b %Y') ~ '\\n\\n' ~ system_message ~ '<|eot_id|>' }}
{%- for message in loop_messages %}
    {{- '<|start_header_id|>' ~ message['role'] ~ '<|end_header_id|>\\n\\n' ~ message['content'] | trim ~ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
"""

INSTRUCT = """\
{% if messages[0]['role'] == 'system' %}
{% set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}
{% set rest = messages[1:] %}
{% else %}
{% set system = '' %}
{% set rest = messages %}
{% endif %}
{% for message in rest %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate user/assistant/user/assistant') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ bos_token + '[INST] ' + (system if loop.first else '') + message['content'].strip() + ' [/INST]' }}
{%- else %}
{{ ' ' + message['content'].strip() + ' ' + eos_token }}
{%- endif %}
{% endfor %}
"""

FALLBACK = """\
{%- set ns = namespace(system='You are a careful helper.', found=false) -%}
{%- for message in messages if message.role == 'system' -%}
    {%- set ns.system = message.content -%}
    {%- set ns.found = true -%}
{%- endfor -%}
{{ '<|system|>\\n' ~ ns.system ~ ('' if ns.found else ' (default)') ~ eos_token ~ '\\n' }}
{%- for message in messages -%}
    {%- if message.role == 'system' -%}{%- continue -%}{%- endif %}
<|{{ message.role }}|>
{{ message.content }}{{ eos_token }}
    {%- if loop.nextitem is defined and loop.nextitem.role == message.role %}
[same again]
    {%- endif %}
    {%- if not loop.last %}

    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}

<|assistant|>
{% endif -%}
"""

THINKING = """\
{%- macro turn(role, text) -%}
<|im_start|>{{ role }}
{{ text }}<|im_end|>
{% endmacro -%}
{%- if tools %}{{ raise_exception('no tools here') }}{% endif -%}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else '' -%}
    {%- if message.role == 'assistant' and '</think>' in content -%}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
    {%- endif -%}
    {{- turn(message.role, content) -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
<think>

</think>

{% endif -%}
"""

PLAIN = """\
{# What the tests of functions, filters and methods look at. #}
{% for message in messages %}
{% if message.content.startswith('!') %}
{{ raise_exception("no commands: " ~ message.content[1:]) }}
{% endif %}
{% for key, value in message.items() %}
{{ key }}={{ value | tojson }};
{% endfor %}
{{ message | tojson }}
{{ [message.role, 1, 2.5, true, none] | tojson(indent=2) }}
{{ message.content | length }} {{ message.content.upper() }} {{ message.content.split() | join('+') }}
{{ message.get('name', 'nobody') }} {{ message.content.replace("a", "b").capitalize() | replace("B", "C") }}
{{ "%s has %d" | format(message.role, loop.length) }} {{ loop.index }}/{{ loop.revindex }} {{ loop.cycle('x', 'y') }}
{{ message.content.endswith('?') }} {{ message.content.find('e') }} {{ message.content[:3] }} {{ message.content[::-1] }}
{% if loop.index > 2 %}{% break %}{% endif %}
{% endfor %}
{{ missing }}{{ (1, 2)[0] }}{{ 7 // 2 }}{{ 7 / 2 }}{{ 2 ** 3 }}{{ -7 % 3 }}{{ "é" ~ 1 }}
{{ strftime_now("%Y-%m-%d %H:%M") }}
"""

CHATS = [
    [["user", "Hello"]],
    [["system", "  Be brief.\n"], ["user", "What is 2 + 2?"]],
    [["user", "Hi!"], ["assistant", " Hello there. "], ["user", "  Two\nlines,\n\ttabs and \u00e9\U0001f642  "]],
    [["system", ""], ["user", "a\\b \"c\" 'd' <e> & {f}"], ["assistant", "<think>\nwell\n</think>\n\nYes?"], ["user", "Go on"]],
    [["user", "{{ 1 + 1 }} {% raw %}"], ["user", "again"]],
    [["assistant", "I begin"], ["user", "!stop"]],
    [["user", ""]],
]


def main():
    fields = gguf.GGUFReader(sys.argv[1]).fields
    templates = [
        ("smollm2", fields["tokenizer.chat_template"].contents()),
        ("chatml", CHATML),
        ("headers", HEADERS),
        ("instruct", INSTRUCT),
        ("fallback", FALLBACK),
        ("thinking", THINKING),
        ("plain", PLAIN),
    ]
    out = []
    for name, source in templates:
        template = environment().from_string(source)
        cases = []
        for chat in CHATS:
            for prompt in (False, True):
                messages = [{"role": role, "content": content} for role, content in chat]
                case = {"messages": chat, "add_generation_prompt": prompt}
                try:
                    case["text"] = template.render(
                        messages=messages,
                        add_generation_prompt=prompt,
                        bos_token="<s>",
                        eos_token="</s>",
                        tools=None,
                        documents=None,
                    )
                except Refused as refused:
                    case["refused"] = str(refused)
                cases.append(case)
        out.append({"name": name, "source": source, "cases": cases})
    record = {"made_with": f"jinja2 {jinja2.__version__}", "bos": "<s>", "eos": "</s>", "time": int(TIME.timestamp()), "templates": out}
    json.dump(record, sys.stdout, ensure_ascii=False, indent=1)
    print()


main()
