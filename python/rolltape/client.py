"""The control listener, and the engine behind it: episodes, rewards, versions, weights."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rolltape import _servers
from rolltape._token import Token
from rolltape.http import Http, Json, Query, RolltapeError, patiently, segment
from rolltape.recording import Recording
from rolltape.replay import Replay

Status = Literal["completed", "truncated", "aborted", "failed", "infrastructure_failed"]

CONTROL_VARIABLE = "ROLLTAPE_CONTROL_URL"
DATA_VARIABLE = "ROLLTAPE_PROXY"
CA_VARIABLE = "ROLLTAPE_CONTROL_CA"
CONTROL = "http://127.0.0.1:8081"
DATA = "http://127.0.0.1:8080"
WEIGHTS_WAIT_S = 1800.0
ATTEMPTS_MAX = 10_000
"""Attempts that are looked at for the first that is not there."""


@dataclass(frozen=True)
class Key:
    """An API key that names one episode and attempt; `expires_at` in seconds since 1970."""

    api_key: str
    expires_at: int
    key_id: str | None = None
    """For `revoke_keys`; None from a server that cannot."""


class Client:
    """A running `rolltape serve`, from the trainer's side.

    `control` and `data` are the addresses of its two listeners (else ROLLTAPE_CONTROL_URL and
    ROLLTAPE_PROXY, else those of the only server that this user runs here, else the defaults).
    `token` is the control listener's, or `token_file` the file
    that holds it; else the variable that ROLLTAPE_CONTROL_TOKEN_ENV names, else
    ROLLTAPE_CONTROL_TOKEN, else the file that ROLLTAPE_CONTROL_TOKEN_FILE names, else that of the
    server here at this address, else the one beside `store`, which is ROLLTAPE_STORE or rolltape.db
    in this folder by default. The read token opens what only reads. `ca_file` (else
    ROLLTAPE_CONTROL_CA) holds certificates, in PEM, that are trusted beside the system's. Every
    method raises RolltapeError where the server refuses. Threads may share a client, and it may be
    pickled.
    """

    def __init__(
        self,
        control: str | None = None,
        data: str | None = None,
        *,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        store: str | os.PathLike[str] | None = None,
        timeout_s: float = 60.0,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        here = None if control or data or store else _servers.meant()
        control = control or os.environ.get(CONTROL_VARIABLE) or (here.control if here else CONTROL)
        found = Token(token, token_file, store, control)
        ca_file = ca_file or os.environ.get(CA_VARIABLE) or None
        self.http = Http(control, token=found, timeout_s=timeout_s, ca_file=ca_file)
        data = data or os.environ.get(DATA_VARIABLE) or (here.agents if here else DATA)
        self.data = Http(data).url

    def close_connections(self) -> None:
        """Closes this thread's connection; the next call opens it again."""
        self.http.close()

    # Looking

    def health(self) -> None:
        """Raises unless the server process responds."""
        self.http.get("/health")

    def ready(self) -> None:
        """Raises unless a call could be recorded now."""
        self.http.get("/ready")

    @property
    def recording(self) -> Recording:
        """What was recorded: episodes, turns, messages, tokens, groups, search, live events."""
        return Recording(self.http)

    def read_token(self) -> str | None:
        """The token that only reads, to give to people; None where none is required."""
        return self.http.get("/read-token")["read_token"]

    def metrics(self) -> str:
        """The metrics, in Prometheus' text format."""
        return self.http.raw("GET", "/metrics")[1].decode()

    # Episodes

    def base_url(self, episode_id: str | None = None, attempt: int = 0) -> str:
        """An agent's OPENAI_BASE_URL; its path names the episode, if one is given."""
        if episode_id is None:
            return f"{self.data}/v1"
        tail = f"/a/{attempt}" if attempt else ""
        return f"{self.data}/e/{segment(episode_id)}{tail}/v1"

    def announce(
        self,
        episode_id: str,
        attempt: int = 0,
        *,
        group_id: str | None = None,
        task_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        force_sampling: str | None = None,
        continues: Literal["off", "exact", "as_sampled"] | None = None,
        replay: Replay | None = None,
        **more: Json,
    ) -> None:
        """Announces an episode before its first call. `more` is added to the body.

        A recording answers its calls if `replay` names one.
        """
        told = {
            "group_id": group_id,
            "task_id": task_id,
            "labels": dict(labels) if labels else None,
            "force_sampling": force_sampling,
            "continue": continues,
            "replay": None if replay is None else replay.body(),
            **more,
        }
        body = {"episode_id": episode_id, "attempt": attempt}
        self.http.post("/episodes", body | _given(told))

    def mint_key(
        self,
        episode_id: str,
        attempt: int = 0,
        *,
        ttl_s: int | None = None,
        calls_max: int | None = None,
        tokens_max: int | None = None,
    ) -> Key:
        """An API key for this episode only, valid for `ttl_s` seconds (default: a day).

        From then on the episode takes only calls with a key. `calls_max` and `tokens_max` limit
        those with this one.
        """
        told = _given({"ttl_s": ttl_s, "calls_max": calls_max, "tokens_max": tokens_max})
        where = f"/episodes/{segment(episode_id)}/key"
        made = self.http.post(where, told, {"attempt": attempt})
        return Key(made["api_key"], made["expires_at"], made.get("key_id"))

    def revoke_keys(self, episode_id: str, attempt: int = 0, *, key_id: str | None = None) -> None:
        """Ends a key of an attempt, or all of them; later calls with it are refused."""
        where = f"/episodes/{segment(episode_id)}/keys/revoke"
        self.http.post(where, _given({"key_id": key_id}), {"attempt": attempt})

    def rotate_keys(self, *, old_keys_s: int = 0) -> None:
        """Signs keys with a new secret; those that were made before end after `old_keys_s`."""
        self.http.post("/keys/rotate", {"old_keys_s": old_keys_s})

    def show(self, episode_id: str, attempt: int = 0) -> Json:
        """The counts of an episode: calls, tokens, reward."""
        return self.recording.episode(episode_id, attempt)

    def next_attempt(self, episode_id: str) -> int:
        """The first attempt that is not recorded. Who asks at the same time gets the same."""
        for attempt in range(ATTEMPTS_MAX):
            try:
                self.show(episode_id, attempt)
            except RolltapeError as error:
                if error.status != 404:
                    raise
                return attempt
        raise ValueError(f"`{episode_id}` has {ATTEMPTS_MAX} attempts")

    def reward(
        self,
        episode_id: str,
        value: float | None,
        attempt: int = 0,
        *,
        name: str | None = None,
        source: str | None = None,
        **scope: Json,
    ) -> None:
        """Appends a reward. None says that it could not be scored, which is not zero.

        `scope` is what it is about, the whole episode unless told: `call_id`, `choice`, `start`,
        `end`, `scope`. Raises ValueError where the value is not finite: no store holds that, and no
        mean of a group would.
        """
        if value is not None and not math.isfinite(value):
            raise ValueError(f"a reward is a finite number, or None: {value}")
        body = {"value": value} | _given({"name": name, "source": source, **scope})
        where = f"/episodes/{segment(episode_id)}/rewards"
        patiently(lambda: self.http.post(where, body, {"attempt": attempt}))

    def close(self, episode_id: str, status: Status | None = None, attempt: int = 0) -> None:
        """Closes an episode: later calls are refused. Closing twice is no error."""
        body = _given({"status": status})
        where = f"/episodes/{segment(episode_id)}/close"
        patiently(lambda: self.http.post(where, body, {"attempt": attempt}))

    def annotate(
        self,
        trajectory_id: str,
        version: int | str,
        token_ids: Sequence[int],
        streams: Mapping[str, Sequence[float | None]],
        start: int = 0,
    ) -> Json:
        """Appends what a trainer says of tokens of a row: one number or None for each, by name.

        `token_ids` are the row's `input_ids` from `start` on, and are compared with the recording.
        Returns how many numbers were kept, and how many are about tokens that were not sampled.
        """
        told = {name: [_finite(value) for value in values] for name, values in streams.items()}
        said = {"trajectory_id": trajectory_id, "version": version, "start": start}
        return self.annotate_all([said | {"token_ids": list(token_ids), "streams": told}])

    def annotate_all(self, annotations: Sequence[Json]) -> Json:
        """Appends what `POST /annotations` takes, all of it or nothing."""
        body = {"annotations": list(annotations)}
        return patiently(lambda: self.http.post("/annotations", body))

    def comment(
        self,
        episode_id: str,
        text: str | None = None,
        attempt: int = 0,
        *,
        author: str | None = None,
        score: float | None = None,
        call_id: str | None = None,
    ) -> None:
        """Appends what a person says of an attempt, or of one call of it: a text, a score, or both."""
        said = {"text": text, "author": author, "score": _finite(score), "call_id": call_id}
        body = {"comments": [{"episode_id": episode_id, "attempt": attempt} | _given(said)]}
        patiently(lambda: self.http.post("/annotations", body))

    # Versions

    def versions(self) -> Json:
        """The policy versions that were seen: label, number, checksum, first time."""
        return self.http.get("/versions")["versions"]

    def set_version(self, version: int | str, checksum: str | None = None) -> None:
        """Reports the weights that sample from now on, for upstreams that do not report them."""
        self.http.post("/version", {"version": version} | _given({"checksum": checksum}))

    def set_admission(
        self, consumer: str, *, batch_attempts: int, max_versions: int, **more: Json
    ) -> Json:
        """Lets an episode begin only if it would be trained at most `max_versions` versions later.

        `consumer` is the name that the trainer reads the feed with, and `batch_attempts` what it
        trains on between two versions. `more` is `unit`, `group_size`, `wait_s`, `idle_s`. Returns
        the rule and what is under way.
        """
        rule = {"consumer": consumer, "batch_attempts": batch_attempts}
        body = rule | {"max_versions": max_versions, **more}
        return self.http.post("/admission", body)["admission"]

    def admission(self) -> Json:
        """The rule of admission and what is under way; None if there is no rule."""
        return self.http.get("/admission")["admission"]

    def lift_admission(self) -> None:
        """Lifts the rule of admission."""
        self.http.call("DELETE", "/admission")

    # The engine, whose routes the control listener passes on

    def pause(
        self, mode: Literal["abort", "wait", "keep"] = "keep", *, clear_cache: bool | None = None
    ) -> None:
        """Stops sampling. Replies in flight stop (`keep`), end (`wait`) or are cut (`abort`)."""
        query: Query = {"mode": mode, "clear_cache": clear_cache}
        patiently(lambda: self.http.post("/pause", query=query, timeout_s=WEIGHTS_WAIT_S))

    def resume(self) -> None:
        """Resumes sampling."""
        patiently(lambda: self.http.post("/resume"))

    def is_paused(self) -> bool:
        """True if the engine is paused."""
        return bool(self.http.get("/is_paused")["is_paused"])

    def update_weights(
        self, folder: str | os.PathLike[str], version: int | str | None = None
    ) -> Json:
        """Loads the safetensors of a folder that the engine can read, as `version`.

        All or nothing; may be repeated with the same folder and version.
        """
        update: dict[str, Json] = {"update_info": {"path": os.path.abspath(folder)}}
        named = _given({"weight_version": None if version is None else str(version)})

        def step(route: str, body: dict[str, Json]) -> Json:
            return patiently(lambda: self.http.post(route, body, timeout_s=WEIGHTS_WAIT_S))

        step("/start_weight_update", {"is_checkpoint_format": True})
        step("/update_weights", update)
        return step("/finish_weight_update", named)

    def reload_weights(self, folder: str | os.PathLike[str], version: int | str) -> None:
        """Lets vLLM load the safetensors of a folder that it can read, in place, as `version`.

        For vLLM with VLLM_SERVER_DEV_MODE=1, on whatever device: what it has for transfers between
        processes (`update_weights`) needs CUDA. It is paused meanwhile; replies under way go on
        with the new weights, and what was computed with the old ones is computed again.
        """
        reload = {"method": "reload_weights", "kwargs": {"weights_path": os.path.abspath(folder)}}
        again: Query = {"reset_running_requests": True}
        wait = WEIGHTS_WAIT_S
        self.pause("keep")
        try:
            self.http.post("/collective_rpc", reload, timeout_s=wait)
            self.http.post("/update_weight_version", {"new_version": str(version)})
            told = self.http.post("/reset_prefix_cache", query=again, timeout_s=wait)
            if isinstance(told, dict) and told.get("success") is False:
                raise RuntimeError("vLLM kept what it had computed with the weights before")
        finally:
            self.resume()

    def weight_info(self) -> Json:
        """Label and checksum of the weights that serve."""
        return self.http.get("/weight_info")

    def server_info(self) -> Json:
        """The engine's settings, in vLLM's form."""
        return self.http.get("/server_info", {"config_format": "json"})

    def sleep(self, level: Literal[1, 2] = 1) -> None:
        """Frees the engine's memory: level 1 drops the KV cache, level 2 also the weights."""
        self.http.post("/sleep", query={"level": level}, timeout_s=WEIGHTS_WAIT_S)

    def wake_up(self, *tags: Literal["weights", "kv_cache", "scheduling"]) -> None:
        """Takes the memory back, all of it or the parts that `tags` name."""
        route = "/wake_up" + "".join(f"{'&' if i else '?'}tags={t}" for i, t in enumerate(tags))
        self.http.post(route, timeout_s=WEIGHTS_WAIT_S)

    def is_sleeping(self) -> bool:
        """True if the engine sleeps."""
        return bool(self.http.get("/is_sleeping")["is_sleeping"])


def _finite(value: float | None) -> float | None:
    """The number, None where JSON has no form for it."""
    return None if value is None or not math.isfinite(value) else float(value)


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}
