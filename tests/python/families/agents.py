"""Agents that talk to a model of a family, through a proxy or past it.

An agent has one conversation, an episode. It offers tools, answers calls with results and replies
with questions, and sends back what it was given as its client gave it. `habits.py` says what else
it does.
"""

import copy
import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import habits
import words
from habits import chance_of

TURNS_MAX = 7
WAIT_S = 60
SYSTEMS = ("You are helpful.", "Be brief.\n\nAnswer in the user's language.", "  Spaces around.  ")
NAMED = ("<|im_end|>", "<think>", "</s>", "<|eot_id|>", "<|user|>", "<tool_call>")
"""Names of special tokens, which people write too."""
KEPT = ("role", "content", "reasoning", "tool_calls")
"""What of a reply goes back with the history."""
ENDS = ("s", "ing", " etc.", "...", "\n\n- so", "7", "é")
"""What an agent adds to a message that was cut."""
ALTERNATING = ("mistral",)
"""Models whose template wants a user after each answer."""


@dataclass
class Agent:
    """One conversation."""

    number: int
    model: str
    path: str = "/e/{}/v1/chat/completions"
    """Of the chat route; it gets the name of the episode."""
    calls: int = 0
    messages: list = field(default_factory=list)

    def __post_init__(self):
        self.habit = habits.habit(self.number)
        self._chance = chance = chance_of("agent", self.number)
        self._turns = chance.randint(3, TURNS_MAX)
        if chance.random() < 0.8:
            self.messages.append({"role": "system", "content": chance.choice(SYSTEMS)})
        self.messages.append(self._question())

    def run(self, address, part=0, parts=1):
        """Has the conversation, or a part of it."""
        self._wire = http.client.HTTPConnection(*address, timeout=WAIT_S)
        for _ in range(self._turns * part // parts, self._turns * (part + 1) // parts):
            self._turn()
        self._wire.close()

    def _turn(self):
        kind, chance = self.habit.kind, self._chance
        if kind == "edited" and self.calls and chance.random() < 0.4:
            self._edit()
        if kind == "aside" and chance.random() < 0.4:
            self._aside()
        count = chance.choice((1, 2, 3)) if kind == "fork" else 1
        choices = self._ask(self.messages, count)
        if kind == "retry" and chance.random() < 0.4:
            self.calls -= 1
            choices += self._ask(self.messages, 1)
        if kind == "fork" and len(choices) > 1 and chance.random() < 0.5:
            self._branch(choices.pop())
        self._go_on(self.messages, chance.choice(choices))

    def _go_on(self, messages, answer):
        """Takes an answer into the history, and says what comes next."""
        messages.append(self._kept(answer))
        if answer["finish"] == "length" and self._goes_on_alone(messages):
            return
        for call in answer.get("tool_calls") or ():
            result = {"role": "tool", "tool_call_id": call["id"], "content": self._result()}
            messages.append(result)
        if not answer.get("tool_calls"):
            messages.append(self._question())

    def _kept(self, answer):
        """An answer as this agent's client sends it back."""
        kept = {key: answer[key] for key in KEPT if answer.get(key) is not None}
        thought = kept.pop("reasoning", None)
        is_forgotten = self.habit.kind == "forgetful" and self._chance.random() < 0.5
        if thought is not None and not is_forgotten:
            kept["reasoning" if self.number % 2 else "reasoning_content"] = thought
        return {"content": None} | kept

    def _goes_on_alone(self, messages):
        """After a reply that was cut: ends the message, has the model end it, or has it speak again
        at once."""
        chance, last = self._chance, messages[-1]
        if last["content"] and chance.random() < 0.4:
            messages[-1] = last | {"content": last["content"] + chance.choice(ENDS)}
            return False
        if last["content"] and last["content"].strip() and chance.random() < 0.4:
            more = {"continue_final_message": True, "add_generation_prompt": False}
            (answer,) = self._ask(messages, 1, more)
            messages[-1] = last | {"content": last["content"] + (answer["content"] or "")}
            return False
        return self.model not in ALTERNATING and chance.random() < 0.4

    def _branch(self, answer):
        """Goes on from another choice for one call, and leaves it."""
        messages = copy.copy(self.messages)
        self._go_on(messages, answer)
        self._ask(messages, 1)

    def _aside(self):
        """Another conversation in the same episode."""
        messages = [{"role": "system", "content": "You summarize."}, self._question()]
        self._go_on(messages, self._ask(messages, 1)[0])
        self._ask(messages, 1)

    def _edit(self):
        """Changes one message of the history."""
        messages = copy.deepcopy(self.messages)
        message = self._chance.choice([m for m in messages[:-1] if m["role"] != "system"])
        message["content"] = "edited: " + words.text(self._chance, 4)
        self.messages = messages

    def _question(self):
        text = words.text(self._chance, 12)
        if not self.habit.is_clean and self._chance.random() < 0.2:
            text += self._chance.choice((*words.TRAILS, *words.COMBINING, *NAMED))
        if self._chance.random() < 0.1:
            return {"role": "user", "content": [{"type": "text", "text": text}]}
        return {"role": "user", "content": text}

    def _result(self):
        return self._chance.choice((words.text(self._chance, 8), '{"ok": true}', "", "12\n"))

    def _ask(self, messages, count, more=None):
        """The messages of the choices of one call."""
        chance = self._chance
        self.calls += 1
        body = {"model": self.model, "messages": messages, "tools": words.tools()} | (more or {})
        body["seed"] = self.number * habits.CALLS + self.calls
        if count > 1:
            body["n"] = count
        if self.habit.is_thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": self.habit.is_thinking}
        if not self.habit.is_clean and chance.random() < 0.1:
            body["stop"] = "\n\n"
        if chance.random() < 0.5:
            body["stream"] = True
            if chance.random() < 0.5:
                body["stream_options"] = {"include_usage": True}
        return self._sent(body)

    def _sent(self, body):
        data = json.dumps(body, ensure_ascii=self.number % 2 == 0).encode()
        path = self.path.format(episode(self.model, self.number))
        self._wire.request("POST", path, data, {"content-type": "application/json"})
        reply = self._wire.getresponse()
        said = reply.read()
        assert reply.status == 200, f"conversation {self.number}: {reply.status} {said[:2000]}"
        if not body.get("stream"):
            choices = json.loads(said)["choices"]
            return [renamed(c["message"]) | {"finish": c["finish_reason"]} for c in choices]
        return streamed(said)


def streamed(data):
    """The messages of a stream, as clients collect them."""
    events = data.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""], events[-2:]
    messages = {}
    for event in events[:-2]:
        for choice in json.loads(event.removeprefix("data: "))["choices"]:
            message = messages.setdefault(choice["index"], {"role": "assistant"})
            add(message, renamed(choice["delta"]))
            message["finish"] = choice["finish_reason"]
    return [messages[index] for index in sorted(messages)]


def renamed(message):
    """A message with its thoughts as vLLM names them."""
    thought = message.get("reasoning_content")
    return message | ({} if thought is None else {"reasoning": thought})


def add(message, delta):
    """Takes a delta into a message."""
    for key in ("content", "reasoning"):
        if delta.get(key):
            message[key] = message.get(key, "") + delta[key]
    for part in delta.get("tool_calls") or ():
        calls = message.setdefault("tool_calls", [])
        if part["index"] == len(calls):
            function = {"name": part["function"]["name"], "arguments": ""}
            calls.append({"id": part["id"], "type": "function", "function": function})
        calls[part["index"]]["function"]["arguments"] += part["function"].get("arguments") or ""


def converse(agents, address, part=0, parts=1, together=2):
    """Has conversations, or a part of each, some at a time."""
    with ThreadPoolExecutor(together) as pool:
        list(pool.map(lambda agent: agent.run(address, part, parts), agents))


def episode(family, number):
    """The name of the episode of a conversation."""
    return f"{family}-{number}"
