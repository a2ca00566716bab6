"""Paths and methods: what an agent can reach on the data listener."""

import hostile


def test_a_call_passes_and_is_recorded(serve):
    proxy = serve()
    assert hostile.post(proxy, "/e/a/v1/chat/completions").status == 200
    (call,) = hostile.rows(proxy, "SELECT outcome FROM calls WHERE episode_id = 'a'")
    assert call["outcome"] == "complete"
    assert hostile.is_clean(proxy) and hostile.is_alive(proxy)
