"""Chat templates as `transformers` renders them, against the `template` crate.

    python tests/python/oracle/templates.py TEMPLATE.jinja MODEL_FOLDER ...

renders 36 conversations with every template given, by jinja2 set up as `transformers` sets it up
and by `cargo run -p template --example render`, and says where the two differ. A difference is an
exit code of 1. Where one of them refuses a conversation, the other must too.

    python tests/python/oracle/templates.py --goldens tests/tapes/engine/templates.json

writes what jinja2 makes of the templates below, which are ours and use what those of the Qwen and
Llama families use; `template/tests/goldens.rs` reads it. Without an argument those are compared.
"""

import argparse
import datetime
import functools
import json
import pathlib
import re
import subprocess
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

ROOT = pathlib.Path(__file__).resolve().parents[3]
NOW = 1_735_689_599  # 31 Dec 2024, UTC
SPECIAL = {"bos_token": "<|begin_of_text|>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>"}


class Generation(jinja2.ext.Extension):
    """The `generation` block: `transformers` notes where it is, and renders what is in it."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_inside")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _inside(self, caller):
        return caller()


@functools.cache
def compiled(source):
    """`_compile_jinja_template` of `transformers`."""

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def strftime_now(form):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment.from_string(source)


def prepared(message, keeps_parts):
    """A message as vLLM hands it to a template that wants strings, or parts of contents."""
    out = {"role": message["role"]}
    content = message.get("content") or ""
    if isinstance(content, list) and not keeps_parts:
        content = "\n".join(part["text"] for part in content)
    out["content"] = content
    for key in ("name", "tool_call_id"):
        if isinstance(message.get(key), str):
            out[key] = message[key]
    reasoning = message.get("reasoning", message.get("reasoning_content"))
    if isinstance(reasoning, str):
        out["reasoning"] = out["reasoning_content"] = reasoning
    if message.get("tool_calls"):
        out["tool_calls"] = []
        for call in message["tool_calls"]:
            function = call["function"]
            arguments = json.loads(function["arguments"] or "{}")
            function = function | {"arguments": arguments}
            out["tool_calls"].append(call | {"function": function})
    return out


def reads_parts(source, case):
    """Whether a template shows the texts of parts, and not the parts as a list is written."""
    if not isinstance(case["messages"][0].get("content"), list):
        return False
    parts = [{"type": "text", "text": text} for text in ("~first~", "~second~")]
    try:
        text = rendered(source, case | {"messages": [said("user", parts)]}, keeps_parts=True)
    except Exception:  # it takes strings
        return False
    return "~first~" in text and "~second~" in text and "type" not in text.split("~first~")[0][-30:]


def expected(source, case):
    """What `apply_chat_template` gives: of parts, if the template reads them."""
    return rendered(source, case, keeps_parts=reads_parts(source, case))


def rendered(source, case, keeps_parts):
    messages = [prepared(message, keeps_parts) for message in case["messages"]]
    text = compiled(source).render(
        messages=messages,
        tools=case["tools"],
        documents=case["documents"],
        add_generation_prompt=case["add_generation_prompt"] and not case["open"],
        **(SPECIAL | case["variables"]),
    )
    if not case["open"]:
        return text
    last = messages[-1]["content"]
    if last.strip() not in text:
        raise ValueError("the last message is not in the text")
    at = text.rindex(last.strip())
    spaced = last.lstrip()
    kept = spaced if text[at : at + len(spaced)] == spaced else last.strip()
    return text[: at + len(kept)]


def tool(name, properties, **more):
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    function = {"name": name, "description": f"Does {name}.", "parameters": parameters}
    return {"type": "function", "function": function | more}


TOOLS = [
    tool("weather", {"city": {"type": "string"}, "unit": {"enum": ["°C", "F"], "default": None}}),
    tool("add", {"a": {"type": "number", "minimum": -1.5e-7}, "b": {"type": "number"}}, strict=True),
]


def said(role, content, **more):
    return {"role": role, "content": content} | more


def called(*calls, content=None, **more):
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)
    ]
    return said("assistant", content, tool_calls=calls, **more)


def result(content, i=0):
    return said("tool", content, tool_call_id=f"c{i}")


def conversations():
    """36 of them, each with a name."""
    system, user = said("system", "Be brief."), said("user", "Hi")
    odd = 'A "quoted" <b>text</b> & \\ \u2028 é 😀\n\n  two\tlines  '
    paris = ("weather", '{"city": "Paris", "unit": "°C"}')
    tight = ("add", '{"a":1e16,"b":-0.00001}')
    think = "\nSo: 1 < 2.\n"
    turns = {
        "one turn": [user],
        "system": [system, user],
        "two turns": [user, said("assistant", "Hello."), said("user", "Bye")],
        "three turns": [system, user, said("assistant", "a"), user, said("assistant", "b"), user],
        "odd text": [said("system", odd), said("user", odd), said("assistant", odd), user],
        "tags in text": [said("user", "<think>x</think><|im_end|>{{ a }}{% b %}"), user],
        "parts": [said("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])],
        "empty": [said("user", ""), said("assistant", ""), user],
        "blanks": [said("user", " \n "), said("assistant", "\n\nyes\n\n"), user],
        "developer": [said("system", "x"), said("user", "y", name="ann")],
        "thought": [user, said("assistant", "\n\nyes", reasoning=think), user],
        "thought last": [user, said("assistant", "yes", reasoning=think)],
        "thought in text": [user, said("assistant", "<think>\nhm\n</think>\n\nyes"), user],
        "call": [user, called(paris), result("12"), user],
        "call in a loop": [user, called(paris), result("12")],
        "call with text": [user, called(paris, content="Well."), result("12"), user],
        "call with thought": [user, called(paris, reasoning=think), result('{"t": 12}')],
        "two loops": [system, user, called(paris), result("1"), called(tight), result("2")],
        "call after turns": [user, said("assistant", "a"), user, called(tight), result("é")],
        "two calls": [user, called(paris, tight), result("1"), result("2", 1), user],
        "empty call": [user, called(("add", "{}")), result("")],
        "nested call": [user, called(("add", '{"a": {"b": [1, 2.0, null, true]}, "é": "\\u00e9"}'))],
        "answer to a call": [user, called(paris), result("12"), said("assistant", "12 °C."), user],
        "odd result": [user, called(paris), result(odd), user],
        "long": [user, *([said("assistant", "x " * 50), user] * 12)],
    }
    for name, messages in turns.items():
        tools = TOOLS if "call" in name or "loop" in name or "result" in name else None
        yield name, case(messages, tools=tools)
    yield "tools unused", case([system, user], tools=TOOLS)
    yield "tools without system", case([user], tools=TOOLS)
    yield "one tool", case([user], tools=TOOLS[1:])
    yield "no opening", case([user, said("assistant", "x")], add_generation_prompt=False)
    yield "no thinking", case([user], variables={"enable_thinking": False})
    yield "thinking", case([system, user], variables={"enable_thinking": True})
    yield "a date", case([user], variables={"date_string": "01 Jan 2020"})
    yield "tools for the system", case(
        [system, user], tools=TOOLS, variables={"tools_in_user_message": False}
    )
    yield "open", case([user, said("assistant", "So the ")], open=True)
    yield "open with spaces", case([user, said("assistant", "  a\nb")], open=True)
    yield "documents", case([user], documents=[{"title": "T", "text": "é"}])


def case(messages, **more):
    return {
        "messages": messages,
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
        "variables": {},
        "special_tokens": SPECIAL,
        "now": NOW,
        "open": False,
    } | more


OURS = {
    "chatml": r"""
{%- macro call_text(call) -%}
  {{- '<tool_call>\n{"name": "' ~ call.name ~ '", "arguments": ' -}}
  {{- call.arguments if call.arguments is string else call.arguments | tojson -}}
  {{- '}\n</tool_call>' -}}
{%- endmacro -%}
{%- set state = namespace(open=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- if state.open and message.role == "user" and not message.content.startswith('<tool') %}
        {%- set state.open = false %}
        {%- set state.last = messages | length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- if tools %}
    {{- '<|im_start|>system\n' + (messages[0].content ~ '\n\n' if messages[0].role == 'system' else '') }}
    {%- for tool in tools %}
        {{- tool | tojson }}
        {{- '\n' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{% for message in messages %}
    {% if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
    {% elif message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- generation %}
        {%- if loop.index0 > state.last and (loop.last or thought) %}
            {{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if (loop.first and content) or not loop.first %}{{- '\n' }}{%- endif %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- call_text(call) }}
        {%- endfor %}
        {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\n' -}}
    {% elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
        {{- '\n<tool_response>\n' ~ message.content ~ '\n</tool_response>' }}
        {%- if loop.last or (loop.nextitem is defined and loop.nextitem.role != 'tool') %}
            {{- '<|im_end|>\n' -}}
        {% endif %}
    {% else %}
        {{- raise_exception('no such role: ' + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}""",
    "headers": r"""{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools_in_user_message is defined %}{%- set tools_in_user_message = true %}{%- endif %}
{#- The system's words are taken out of the list. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\nToday: " + date_string + "\n\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if loop.index > 20 %}{%- break %}{%- endif %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("one call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {{- '{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- {"output": message.content} }} {{ loop.first }} {{ [none, 1.5, 'a'] }}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if documents %}{% for d in documents %}{{ loop.index ~ d.title ~ d['text'] | upper }}{% endfor %}{% endif %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}""",
    "signs": r"""
{%- if tools is iterable and tools | length > 0 %}
    {%- for tool in tools %}
        {{- "Use '"|safe + tool.function.name + "' & " + ((tool | tojson)[:40] | safe) + '\n' }}
        {%- for name, field in tool.function.parameters.properties | items %}
            {{- "%s: %s%s\n" | format(name, field, field.default is defined) }}
            {{- 'from ' ~ field.minimum ~ '\n' if field.minimum is defined }}
        {%- endfor %}
    {%- endfor %}
{%- endif %}
{%- set roles = messages | map(attribute='role') %}
{%- if enable_thinking is defined %}
    {{- roles | tojson if enable_thinking else tools | length }}
{%- endif %}
{%- if date_string is defined %}{% for d in documents %}{{ d }}{% endfor %}{% endif %}
{{- '<' + roles | join(',') + '>' ~ roles | join(',') }}
{%- for message in messages | rejectattr('role', 'equalto', 'system') %}
    {{- loop.index ~ ' of ' ~ loop.length + (loop.index + 0.5) | string + '\n' }}
    {{- message.content + [message.role] | join + ([1] + [true, none, 1e-5]) ~ nothing }}
{%- endfor %}""",
}


def sources(paths):
    """The templates of files and of model folders, by name."""
    found = {}
    for path in map(pathlib.Path, paths):
        if path.is_file():
            found[path.name] = path.read_text()
        elif (path / "chat_template.jinja").exists():
            found[path.name] = (path / "chat_template.jinja").read_text()
        else:
            config = json.loads((path / "tokenizer_config.json").read_text())
            found[path.name] = config["chat_template"]
    return found


def ours_of(cases):
    """What the crate makes of the cases."""
    command = ["cargo", "run", "-q", "-p", "template", "--example", "render"]
    run = subprocess.run(command, cwd=ROOT, input=json.dumps(cases), text=True, capture_output=True)
    if run.returncode != 0:
        sys.exit(run.stderr)
    return json.loads(run.stdout)


def expectations(templates):
    for template, source in templates.items():
        for name, one in conversations():
            try:
                told = {"text": expected(source, one)}
            except Exception as error:  # a template may trip over anything
                told = {"error": re.sub(r"\s+", " ", str(error))}
            yield f"{template}: {name}", one | {"template": source}, told


def compare(templates):
    names, cases, theirs = zip(*expectations(templates))
    differ = refused = 0
    for name, told, found in zip(names, theirs, ours_of(cases)):
        refused += "error" in told
        if "error" in told and "error" in found or told == found:
            continue
        differ += 1
        print(f"{name}\n  transformers: {told}\n  template:     {found}")
    print(f"{len(names)} compared, {refused} of them refused by both, {differ} differ")
    return differ == 0


def goldens(path):
    made = []
    for name, one, told in expectations(OURS):
        template = name.split(":")[0]
        made.append({"name": name} | one | {"template": template} | told)
    body = {"templates": OURS, "cases": made}
    pathlib.Path(path).write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--goldens")
    given = parser.parse_args()
    if given.goldens:
        return goldens(given.goldens)
    templates = sources(given.paths) if given.paths else OURS
    sys.exit(0 if compare(templates) else 1)


if __name__ == "__main__":
    main()
