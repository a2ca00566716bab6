"""The scripted model's template: conversations to token ids and back.

A token is a byte: its id is the byte and 3. The ids 0, 1, 2 start the text, end a message, and
come before a role. A message is rendered by what it says, not by how a client spelled it, so the
prompt of a turn starts with the prompt and the sampled ids of the turn before if the client gave
the history back faithfully.
"""

import json
from dataclasses import dataclass

START, END, ROLE = 0, 1, 2
SPECIAL = 3
"""How many ids are no byte."""
SPELLED = {START: b"<|start|>", END: b"<|end|>", ROLE: b"<|role|>"}
SHOWN = ("name", "description", "parameters")
"""What the model sees of a tool."""
FOLD = "compaction_trigger"
"""The item that has a server fold the history; a user of that name asks for it in chat."""
PIECE_BYTES = 9
"""Length of one streamed piece; it cuts many characters in two."""


def ids_of(text):
    """Token ids of a text."""
    return [byte + SPECIAL for byte in text.encode()]


def text_of(ids):
    """The text of token ids, special ones shown."""
    parts = (SPELLED[i] if i < SPECIAL else bytes([i - SPECIAL]) for i in ids)
    return b"".join(parts).decode(errors="replace")


def canonical(value):
    """JSON of a value that does not depend on who wrote it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def plain(content):
    """Content as text, whether it came as a string or as parts."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part for part in content if part]
    return "".join(p["text"] if "text" in p else canonical(p) for p in parts)


def arguments(call):
    """Arguments of a tool call as canonical JSON, or as they are where they are none."""
    try:
        return canonical(json.loads(call["function"]["arguments"]))
    except ValueError:
        return call["function"]["arguments"]


def spoken(message):
    """What an assistant message is as sampled text."""
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    text = f"<think>{reasoning}</think>" if reasoning else ""
    text += plain(message.get("content"))
    for call in message.get("tool_calls") or []:
        name = json.dumps(call["function"]["name"])
        text += f'<call>{{"name":{name},"arguments":{arguments(call)}}}</call>'
    return text


def prompt_ids(messages, tools=None):
    """Token ids of a conversation, ready for the assistant's next words."""
    shown = [{key: tool["function"].get(key) for key in SHOWN} for tool in tools or []]
    head = [{"role": "tools", "content": canonical(shown)}] if shown else []
    ids = [START]
    for message in [*head, *messages]:
        role = message["role"]
        said = spoken(message) if role == "assistant" else plain(message.get("content"))
        ids += [ROLE, *ids_of(f"{role}\n{said}"), END]
    return [*ids, ROLE, *ids_of("assistant\n")]


@dataclass(frozen=True)
class Piece:
    """One output of the engine: sampled ids, and what a parser made of them."""

    ids: list[int]
    kind: str = ""
    """`reasoning`, `content`, `call` or `arguments`; empty where nothing came out of them."""
    text: str = ""


@dataclass(frozen=True)
class Reply:
    """What the model says in one turn."""

    text: str = ""
    reasoning: str = ""
    calls: tuple = ()
    """Pairs of a name and the arguments as JSON text."""
    search: dict | None = None
    """The search of the web that the server makes before it speaks: `query` and `results`."""

    @classmethod
    def of(cls, turn):
        """The reply of a turn of the script."""
        calls = tuple((c["name"], canonical(c["arguments"])) for c in turn.get("tool_calls", ()))
        return cls(turn.get("text", ""), turn.get("reasoning", ""), calls, turn.get("search"))

    def pieces(self):
        """The outputs of the engine, one after the other; the end of the message is the last."""
        if self.reasoning:
            yield Piece(ids_of("<think>"))
            yield from _cut("reasoning", self.reasoning)
            yield Piece(ids_of("</think>"))
        yield from _cut("content", self.text)
        for name, said in self.calls:
            yield Piece(ids_of("<call>"))
            yield Piece(ids_of(f'{{"name":{json.dumps(name)},"arguments":'), "call", name)
            yield from _cut("arguments", said)
            yield Piece(ids_of("}</call>"))
        yield Piece([END])

    def sampled(self):
        """All sampled ids."""
        return [i for piece in self.pieces() for i in piece.ids]


def _cut(kind, text):
    """Pieces of a text; bytes of an unfinished character wait for their rest."""
    data, held = text.encode(), b""
    for at in range(0, len(data), PIECE_BYTES):
        held += (now := data[at : at + PIECE_BYTES])
        whole = held.decode(errors="ignore")
        held = held[len(whole.encode()) :]
        yield Piece([byte + SPECIAL for byte in now], kind if whole else "", whole)


def chat_of_responses(body):
    """A Responses request as messages and tools of chat."""
    messages = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    given = body.get("input") or []
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for item in items:
        _add_item(messages, item)
    return messages, [
        _tool({key: tool.get(key) for key in SHOWN} | {"name": name})
        for name, (_, tool) in functions_of(body).items()
    ]


def functions_of(body):
    """The functions of a Responses request, with their namespaces, by the model's names for them;
    the model sees no other tools."""
    found = {}
    for tool in body.get("tools") or []:
        inner = tool["tools"] if tool["type"] == "namespace" else [tool]
        space = tool["name"] if tool["type"] == "namespace" else None
        named = [t for t in inner if t["type"] == "function"]
        found |= {f"{space}__{t['name']}" if space else t["name"]: (space, t) for t in named}
    return found


def _tool(function):
    return {"type": "function", "function": function}


def _add_item(messages, item):
    kind = item.get("type", "message")
    if kind == "function_call_output":
        output = item["output"]
        message = {"role": "tool", "tool_call_id": item["call_id"], "content": output}
        return messages.append(message)
    if kind == "message" and item["role"] != "assistant":
        return messages.append({"role": item["role"], "content": item["content"]})
    if kind == FOLD:
        return messages.append({"role": "user", "content": kind})
    if kind == "compaction":
        return messages.append({"role": "user", "content": item["encrypted_content"]})
    if kind == "web_search_call":
        return None
    # What the assistant did since anyone else spoke is one message.
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    last = messages[-1]
    if kind == "reasoning":
        last["reasoning"] = plain(item.get("content") or item.get("summary"))
    elif kind == "function_call":
        space = item.get("namespace")
        name = f"{space}__{item['name']}" if space else item["name"]
        function = {"name": name, "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        last.setdefault("tool_calls", []).append(call)
    else:
        last["content"] += plain(item["content"])


def chat_of_messages(body):
    """A Messages request as messages and tools of chat, as vLLM translates it."""
    messages = []
    system = _blocks(body.get("system") or [])
    said = "".join(b["text"] for b in system if not b["text"].startswith("x-anthropic-billing"))
    if said:
        messages.append({"role": "system", "content": said})
    for message in body["messages"]:
        _add_message(messages, message)
    tools = body.get("tools") or []
    return messages, [
        _tool(
            {
                "name": tool["name"],
                "description": tool.get("description"),
                "parameters": tool["input_schema"],
            }
        )
        for tool in tools
        if "input_schema" in tool
    ]


def _blocks(content):
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _add_message(messages, message):
    blocks = _blocks(message["content"])
    for block in blocks:
        if block["type"] == "tool_result":
            content = block.get("content") or ""
            texts = [part["text"] for part in _blocks(content) if part.get("text")]
            answer = {"tool_call_id": block["tool_use_id"], "content": "\n".join(texts)}
            messages.append({"role": "tool", **answer})
    made = {"role": message["role"]}
    if texts := [b["text"] for b in blocks if b["type"] == "text" and b["text"]]:
        made["content"] = "".join(texts)
    if thoughts := [b["thinking"] for b in blocks if b["type"] == "thinking"]:
        made["reasoning"] = "".join(thoughts)
    if uses := [b for b in blocks if b["type"] == "tool_use"]:
        made["tool_calls"] = [
            {
                "id": use["id"],
                "type": "function",
                "function": {"name": use["name"], "arguments": json.dumps(use["input"])},
            }
            for use in uses
        ]
    if len(made) > 1 or made["role"] == "assistant":
        messages.append(made)
