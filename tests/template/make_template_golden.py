#!/usr/bin/env python3
"""Write tests/golden/template/cases.json: small templates of our own with what jinja2 makes of them.

Usage: make_template_golden.py > tests/golden/template/cases.json. Needs only jinja2. A case is {"template", "vars",
"text"} or {"template", "vars", "fails": true}; the last ones are whole conversations through a chat template of our own.
SPDX-License-Identifier: MIT
"""
import json
import os
import time

os.environ["TZ"] = "UTC"
time.tzset()

import message_sets
import template_oracle

NOW = 1753900800
V = {"s": "Hello", "u": "ΟΔΟΣ straße ǅ", "n": 7, "m": -7, "f": 2.5, "l": [3, 1, 2], "d": {"b": 1, "a": None}, "e": "", "nil": None,
     "rows": [{"k": "x", "v": 2}, {"k": "Y", "v": 1}, {"k": "x"}], "q": "it's", "qq": "it's \"x\"", "lines": "a\n\nb"}

SMALL = """
{{ none }} {{ true }} {{ 1.0 }} {{ 1e22 }} {{ 1e-7 }} {{ [1, 'a', none, {'k': (1,)}] }}
{{ q }} {{ [q, qq, '\\n\\x00\\u200b'] }}
{{ m // 2 }} {{ m % 3 }} {{ n / 2 }} {{ m / 7 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -7.5 // 2 }} {{ 7.5 % -2 }}
{{ 'a' ~ none ~ 1 }}|{{ 1 < 2 < 3 }}|{{ 1 < 2 > 3 }}|{{ 'a' in 'cat' }}|{{ 'b' not in d }}
{{ missing }}|{{ missing is defined }}|{{ d.missing is defined }}|{{ nil.x is defined }}
{{ missing.x is defined }}
{{ 'a' + none }}
{{ l[::-1] }}{{ l[1:] }}{{ l[-1] }}{{ s[1:3] }}{{ s[::-1] }}{{ s[99:] }}{{ l[5] }}{{ u[-1] }}
{{ 'x' if false }}|{{ 'x' if true else 'y' }}|{{ nil or 'z' }}|{{ s and l }}
{{ s is sequence }}{{ d is sequence }}{{ d is iterable }}{{ none is iterable }}{{ true is number }}{{ true is integer }}
{{ u|upper }} {{ u|lower }} {{ u|title }} {{ u.title() }} {{ u|capitalize }} {{ 'ﬁ ǆ'|upper }}
{{ rows|tojson }} {{ d|tojson(indent=2) }} {{ '</é"'|tojson }} {{ [1.0, 1e100, true]|tojson }}
{{ rows|map(attribute='k')|join(',') }} {{ rows|selectattr('v', 'defined')|map(attribute='v')|sum }}
{{ rows|rejectattr('v')|list|length }} {{ rows|groupby('k')|list }} {{ rows|sort(attribute='k')|map(attribute='k')|list }}
{{ rows|selectattr('v')|length }}
{{ d|dictsort }} {{ d|items|list }} {{ d.items() }} {{ d.keys() }} {{ d|length }}
{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }}
{{ '  x\\u00a0'.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'xxaxx'.lstrip('x') }}|{{ 'abc'.find('c') }}|{{ 'é'.find('z') }}
{{ 3.5|round }} {{ 2.5|round }} {{ 2.675|round(2) }} {{ 42|round }} {{ 2.1|round(0, 'ceil') }} {{ '42.9'|int }} {{ 'x'|int(5) }}
{{ '%s is %05.1f%%' % (s, f) }} {{ '{:>5}|{!r}|{x}'.format(1, 'a', x=2) }} {{ '%-5s|'|format('a') }}
{{ lines|indent(2) }}|{{ lines|indent(2, true, true) }}
{{ 'a-b c'|title }} {{ 'HELLO wORLD'|capitalize }} {{ 'one two'|wordcount }} {{ 'abcdefghij klm'|truncate(5) }}
{{ '<a>'|e }} {{ '<a>'|safe + '<b>' }} {{ '<a>' + '<b>'|safe }}
{{ [1, 2, 3, 4, 5]|batch(2)|list }} {{ [1, 2, 3, 4, 5]|slice(2)|list }} {{ ['a', 'A', 'b']|unique|list }}
{{ l|sort }} {{ l|sort(reverse=true) }} {{ ['b', 'A']|sort }} {{ l|min }} {{ l|max }} {{ []|max }} {{ [[1, 2], [0]]|sum(start=[]) }}
{{ range(3)|list }} {{ range(5, 0, -2) }} {{ dict(a=1) }} {{ namespace(a=1) }}
{% for k, v in d.items() %}{{ loop.index }}/{{ loop.length }}:{{ k }}={{ v }}{{ ',' if not loop.last }}{% endfor %}
{% for x in l if x > 1 %}{{ loop.index0 }}{{ x }}{{ loop.previtem }}{{ loop.nextitem }};{% else %}none{% endfor %}
{% for x in [] %}{% else %}empty{% endfor %}{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in [1] %}{% break %}{% else %}else runs{% endfor %}
{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}
{% for i in [1, 2] %}{{ s }}{% endfor %}{% set s = 5 %}{{ s }}
{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}
{% set ns = {} %}{% set ns.x = 1 %}
{% macro m(a, b=2, c=a) %}[{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}]{% endmacro %}{{ m(1) }}{{ m(1, 3, 4, 5) }}{{ m(a=0, z=9) }}
{% macro m(a) %}{{ a }}{{ caller('x') }}{% endmacro %}{% call(y) m(1) %}<{{ y }}>{% endcall %}
{% macro m() %}{% endmacro %}{{ m(1) }}
{% set x %} a {{ n }} {% endset %}[{{ x }}]{% set y | trim | upper %} b {% endset %}[{{ y }}]
{% filter upper %}abc{{ s }}{% endfilter %}{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}
{% raw %}{{ x }}{% endraw %}{# c #}{% generation %}G{% endgeneration %}
{% for x in [[1, [2]], [3]] recursive %}{% if x is number %}{{ x }}{% else %}({{ loop(x) }}){% endif %}{% endfor %}
{% if l is mapping %}m{% elif l is string %}s{% else %}other{% endif %}
{{ strftime_now('%d %b %Y %H:%M %A %j %-d') }} {{ strftime_now is defined }}
{{ raise_exception('no') }}
{{ l.append(4) }}
{{ l.append is defined }}
{% for a, b in [(1, 2), (3,)] %}{{ a }}{% endfor %}
{{ loop is defined }}{% for loop in l %}{% endfor %}
{{ nil[1:] }}
{{ none|list }}
{{ 1 | missing_filter }}
{% if false %}{{ 1 | missing_filter }}{% endif %}ok
{{ 'a' 'b' "c" }} {{ '\\é' }} {{ "\\t|\\x41\\u00e9\\U0001f600\\101|\\q" }}
{{ 0x1F }} {{ 1_000 }} {{ 0b101 }} {{ 0o17 }} {{ 1e3 }} {{ .5 }}
{{ 0x1F }} {{ 1_000 }} {{ 0b101 }} {{ 0o17 }} {{ 1e3 }}
""".strip().split("\n")

BLOCKS = [
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  {%- if true -%}\n  b\n  {%- endif -%}\nc\n\n",
    "a\n  {%+ if true +%}\n  b\n  {%+ endif %}\nc", "  {{ 1 }}\n  {# x #}\n  {#- y -#}\n z", "{{ 1 -}}\n\n {{- 2 }}",
    "x {% set a = 1 %} y\n\t{% set b = 2 %}\t\n{{ a }}", "\r\na\rb\r\n", "{% raw -%}\n {{ a }} \n{%- endraw %}\n{{ 1 }}\n",
    "  {% raw %}\n  {% endraw %}  \n", "{{ {'a': {'b': 1}}['a']['b'] }}}", "{% if 1 %}{% for i in [1,2] %}\n  {{ i }}\n{% endfor %}{% endif %}",
    "é {{ 'ü' }} 😀{{ '😀'|length }}\n", "{{ 1 }}\n\n", "{#\n#}\n{{ 2 }}", "{{ '}}' }}{{ '%}' }}", "{", "{{ 1 ", "{% if %}", "{% else %}",
    "{% for x in %}{% endfor %}", "{{ (1 }}", "{{ 1) }}", "{{ a b }}", "{% set 1 = 2 %}", "{% macro (a) %}{% endmacro %}",
    "{% macro m(a=1, b) %}{% endmacro %}", "{{ f(a=1, 2) }}", "{{ x is }}", "{{ x| }}", "{{ x. }}", "{% endfor %}", "{{ }}", "{% %}",
]

CHAT = """{%- set ns = namespace(system='', last=-1) -%}
{%- macro text(content) -%}
    {%- if content is string -%}{{ content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for part in content if part.type == 'text' -%}{{ part.text }}{%- endfor -%}
    {%- elif content is not none and content is defined -%}{{ raise_exception('Unexpected content: ' ~ content) }}{%- endif -%}
{%- endmacro -%}
{{- bos_token -}}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- if messages and messages[0].role == 'system' -%}
    {%- set ns.system = text(messages[0].content)|trim -%}{%- set messages = messages[1:] -%}
{%- endif %}
{% if ns.system or tools %}
<system>{{ ns.system }}{% if tools %}
{% for tool in tools %}

{{ loop.index }}. {{ tool.function.name }}: {{ tool | tojson }}
{%- endfor %}
{% endif %}</system>
{% endif %}
{% for message in messages %}
    {%- if message.role not in ['user', 'assistant', 'tool'] %}{{ raise_exception('Unknown role: ' ~ message.role) }}{% endif %}
<{{ message.role }}>
{%- if message.reasoning_content is defined and message.reasoning_content and (enable_thinking is not defined or enable_thinking) %}
[think]{{ message.reasoning_content.strip() }}[/think]
{%- endif %}
{%- set body = text(message.content) %}
{%- if '</think>' in body %}{% set body = body.split('</think>')[-1].lstrip('\\n') %}{% endif %}
{{ body|trim }}
    {%- for tool_call in message.tool_calls or [] %}
        {%- if tool_call.function is defined %}{% set tool_call = tool_call.function %}{% endif %}

{{ tool_call.name }}(
        {%- for name, value in tool_call.arguments|items -%}
            {{ name }}={{ value if value is string else value|tojson }}{{ ', ' if not loop.last }}
        {%- endfor -%})
    {%- endfor %}
{%- if loop.previtem and loop.previtem.role == message.role %} (again){% endif %}
</{{ message.role }}>
{% endfor %}
{% if add_generation_prompt %}
<assistant>
{% endif %}
"""


def case(source, variables):
    text, error = template_oracle.render(source, variables, NOW)
    out = {"template": source, "vars": variables}
    out.update({"fails": True} if error else {"text": text})
    return out


def main():
    cases = [case(s, V) for s in SMALL] + [case(s, V) for s in BLOCKS]
    chat = []
    for name, variables in message_sets.variables():
        if name.split("/")[1] in ("gen", "tools", "no_think") and "text_args" not in name:
            text, error = template_oracle.render(CHAT, variables, NOW)
            extra = {k: v for k, v in variables.items() if k not in ("messages", "tools", "documents", "unk_token", "pad_token")}
            if variables["tools"]:
                extra["tools"] = message_sets.TOOLS
            entry = {"messages": variables["messages"], "vars": extra}
            entry.update({"fails": True} if error else {"text": text})
            chat.append(entry)
    print('{"now": %d, "cases": [' % NOW)
    print(",\n".join(json.dumps({k: v for k, v in c.items() if k != "vars"}) for c in cases))
    print('],\n"vars": %s,' % json.dumps(V))
    print('"chat_template": %s,\n"chat": [' % json.dumps(CHAT))
    print(",\n".join(json.dumps(c) for c in chat))
    print("]}")


main()
