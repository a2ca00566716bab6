"""The control listener, as a harness in Python would call it."""

import json
import urllib.error
import urllib.request

import harness
from harness import text


def post(proxy, path, body):
    """Posts JSON to the control listener; gives status and reply."""
    return post_at(proxy.control, path, body)


def headers_for(address):
    """The headers of a request to a listener: the token, if it asks for one."""
    token = harness.token_of(address)
    return {"authorization": f"Bearer {token}"} if token else {}


def page(proxy, path):
    """A page of the control listener, as JSON."""
    url = f"http://{text(proxy.control)}{path}"
    request = urllib.request.Request(url, headers=headers_for(proxy.control))
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.load(reply)


def post_at(address, path, body):
    """Posts JSON to a listener; gives status and reply."""
    request = urllib.request.Request(
        f"http://{text(address)}{path}",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"} | headers_for(address),
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def reward(proxy, episode, value, **more):
    """Gives an episode a reward."""
    status, reply = post(proxy, f"/episodes/{episode}/rewards", {"value": value, **more})
    assert status == 200, reply


def close(proxy, episode):
    """Closes an episode."""
    status, reply = post(proxy, f"/episodes/{episode}/close", {})
    assert status == 200, reply
