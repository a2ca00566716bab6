"""What attacks on paths share: raw requests, an upstream that reports ids, what it heard."""

import json

import hostile
import http1

CHAT_IDS = {
    **hostile.REPLY,
    "choices": [
        {
            **hostile.REPLY["choices"][0],
            "token_ids": [5],
            "logprobs": {
                "content": [{"token": "yes", "logprob": -0.5, "bytes": None, "top_logprobs": []}]
            },
        }
    ],
    "prompt_token_ids": [1],
}


def vllm(request):
    """Answers as vLLM does: with ids if they are asked for."""
    return hostile.reply(CHAT_IDS if b"return_token_ids" in request.body else hostile.REPLY)


def raw(proxy, first_line, headers=(), body=b""):
    """Sends a request whose head is written as it is given, without a host of its own."""
    lines = [first_line, "connection: close", *(f"{name}: {value}" for name, value in headers)]
    if body:
        lines.append(f"content-length: {len(body)}")
    sent = "\r\n".join(lines).encode("latin-1") + http1.HEAD_END + body
    return http1.exchange(proxy.data, sent)


def agents_requests(proxy):
    """What the upstream heard beside what rolltape asks for itself."""
    own = {"/v1/models", "/server_info?config_format=json", "/server_info", "/props"}
    return [r for r in proxy.upstream.heard if r.method != "GET" or r.path not in own]


def error_of(reply):
    """The message of an error in OpenAI's form."""
    return json.loads(reply.body)["error"]["message"]


def stored_files(proxy):
    """The bytes of every file of the store."""
    files = proxy.store.parent.glob(proxy.store.name + "*")
    return b"".join(file.read_bytes() for file in files if file.is_file())
