"""Weights are pushed into real vLLM by its own API, through rolltape's control listener."""

import json
import struct

import numpy as np
import openai
import pyarrow.parquet as pq
import pytest

import control
import harness
import package  # noqa: F401  puts the package on the path
import rolltape
from servers import truth
from servers.running import NAME
from test_servers import SCORE_ERROR_MAX

PROMPT = [389, 387, 16, 368, 22, 380, 18, 351, 390, 198, 389, 383]
HALVED = "model.norm.weight"

pytestmark = pytest.mark.timeout(900)


def flatter(folder):
    """The tiny model with logits of half the size."""
    raw = (harness.MODEL / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    begin, end = json.loads(raw[8 : 8 + length])[HALVED]["data_offsets"]
    begin, end = begin + 8 + length, end + 8 + length
    halved = (np.frombuffer(raw[begin:end], np.float32) * np.float32(0.5)).tobytes()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(raw[:begin] + halved + raw[end:])
    return folder


def row_of(proxy, episode, prompt):
    """One recorded completion, exported."""
    agent = openai.OpenAI(base_url=proxy.base_url(episode), api_key="k", max_retries=0)
    agent.completions.create(model=NAME, prompt=prompt, max_tokens=8, temperature=1.0, seed=3)
    control.close(proxy, episode)
    out = proxy.folder / f"export-{episode}"
    proxy.command("export", "--out", out, "--episode", episode)
    (row,) = pq.read_table(out / "trajectories.parquet").to_pylist()
    return row


def test_pushed_weights_sample_under_their_label(vllm, tmp_path):
    ids = [*PROMPT, 391, 386]
    before = truth.score(vllm, ids, 1)
    with harness.serve(tmp_path, "--upstream", vllm.url, *vllm.kind.told) as proxy:
        client = rolltape.Client(
            f"http://{harness.text(proxy.control)}", proxy.base_url()[:-3], store=proxy.store
        )
        try:
            client.reload_weights(flatter(tmp_path / "flat"), 7)
            after = truth.score(vllm, ids, 1)
            row = row_of(proxy, "flat", PROMPT)
        finally:
            client.reload_weights(harness.MODEL, "default")
        again = truth.score(vllm, ids, 1)
    assert max(abs(a - b) for a, b in zip(before, after) if a and b) > 0.1
    assert again == pytest.approx(before, abs=SCORE_ERROR_MAX)
    start = row["prompt_len"]
    assert row["verdict"] == "exact"
    if vllm.kind.versions:
        assert set(row["versions"][start:]) == {7}


def test_recorded_logprobs_are_of_the_pushed_weights(vllm, tmp_path):
    """Scored while they are served: nothing of the weights before is left in a cache."""
    with harness.serve(tmp_path, "--upstream", vllm.url, *vllm.kind.told) as proxy:
        client = rolltape.Client(
            f"http://{harness.text(proxy.control)}", proxy.base_url()[:-3], store=proxy.store
        )
        row_of(proxy, "warm", PROMPT)
        try:
            client.reload_weights(flatter(tmp_path / "flat"), 8)
            row = row_of(proxy, "cold", PROMPT)
            own = truth.score(vllm, row["input_ids"], row["prompt_len"])
        finally:
            client.reload_weights(harness.MODEL, "default")
    for at, logprob in enumerate(own, row["prompt_len"]):
        if logprob is not None:
            assert row["logprobs"][at] == pytest.approx(logprob, abs=SCORE_ERROR_MAX)


def test_transfers_between_processes_are_refused_on_a_cpu(vllm):
    """vLLM's own backends, NCCL and IPC, need CUDA; the day that they do not is to be noticed."""
    with pytest.raises(AssertionError, match="init_weight_transfer_engine: [45]"):
        vllm.post("/init_weight_transfer_engine", {"init_info": {}})
