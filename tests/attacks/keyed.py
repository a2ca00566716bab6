"""Episodes, keys and calls, as harnesses and hostile agents make them."""

import base64
import json
import urllib.parse

import control
import hostile
import http1


def announce(proxy, episode, attempt=0, **words):
    """Announces an episode; gives the status."""
    return control.post(proxy, "/episodes", {"episode_id": episode, "attempt": attempt, **words})[0]


def mint(proxy, episode, attempt=0, **body):
    """A key for an attempt, with its id."""
    status, reply = control.post(proxy, f"/episodes/{episode}/key?attempt={attempt}", body)
    assert status == 200, reply
    return reply["api_key"], reply.get("key_id")


def bearer(key):
    """The header in which most clients send a key."""
    return ("authorization", f"Bearer {key}")


def call(proxy, episode=None, key=None, headers=(), attempt=0, **options):
    """A call of an agent, tagged by its path, its key or its headers."""
    tag = f"/e/{episode}/a/{attempt}" if episode else ""
    headers = [*headers, *([bearer(key)] if key else [])]
    return hostile.post(proxy, f"{tag}{hostile.CHAT}", headers=headers, **options)


def episodes(proxy):
    """The episodes of the store, by their names and attempts."""
    found = hostile.rows(proxy, "SELECT * FROM episodes")
    return {(row["episode_id"], row["attempt"]): row for row in found}


def recorded(proxy, episode):
    """The calls of an episode."""
    return hostile.rows(proxy, "SELECT * FROM calls WHERE episode_id = ?", episode)


def labels(proxy, episode):
    """The labels of an episode."""
    found = hostile.rows(proxy, "SELECT name, value FROM labels WHERE episode_id = ?", episode)
    return {row["name"]: row["value"] for row in found}


def message(reply):
    """What an error says."""
    return json.loads(reply.body)["error"]["message"]


def spellings(key):
    """A key as it may stand in a request: itself, escaped, and in HTTP's Basic scheme."""
    return [
        key,
        "%72%74" + key[2:],
        urllib.parse.quote(key, safe="").replace(".", "%2E").replace("-", "%2D"),
        base64.b64encode(f"agent:{key}".encode()).decode(),
    ]


def heard(proxy):
    """All that the upstream heard, but for the bodies."""
    lines = []
    for request in proxy.upstream.heard:
        lines += [request.first_line, *(f"{name}: {value}" for name, value in request.headers)]
    return "\n".join(lines)


def kept(proxy):
    """All bytes of the store's files."""
    files = [path for path in proxy.store.parent.glob(f"{proxy.store.name}*")]
    return {path.name: path.read_bytes() for path in files if path.is_file()}


def assert_unseen(proxy, key):
    """Neither the upstream nor the store has seen the key."""
    everything = heard(proxy)
    stored = b"".join(kept(proxy).values())
    for spelled in spellings(key):
        assert spelled not in everything, "the upstream heard the key"
        assert spelled.encode() not in stored, "the store holds the key"


def sent(path, headers=(), body=hostile.BODY):
    """The bytes of a chat request that is alone on its connection."""
    content = json.dumps(body).encode()
    return http1.request("POST", path, content, [("content-type", "application/json"), *headers])
