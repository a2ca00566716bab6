"""`rolltape audit` with real vLLM and SGLang, and with rolltape's engine, on what these sampled."""

import pytest
from openai import OpenAI

import audited
import harness
from servers.running import NAME
from test_audit import Shifting, audit

pytestmark = pytest.mark.timeout(900)

TEMPERATURE = 0.6


def record(folder, server, fault, *told):
    """Four episodes of two turns; gives the store."""
    told = told or server.kind.told
    with (
        audited.between([server.url], fault) as url,
        harness.serve(folder, "--upstream", url, *told) as proxy,
    ):
        for number in range(4):
            base_url = proxy.base_url(f"episode-{number}")
            with OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
                messages = [{"role": "user", "content": f"guess {number}"}]
                for turn in range(2):
                    reply = client.chat.completions.create(
                        model=NAME,
                        messages=messages,
                        max_tokens=24,
                        temperature=TEMPERATURE,
                        top_p=1,
                        seed=10 * number + turn,
                        extra_body={"ignore_eos": True},
                    )
                    said = reply.choices[0].message.content or "-"
                    messages.append({"role": "assistant", "content": said})
                    messages.append({"role": "user", "content": "higher"})
        return proxy.store


def test_what_a_server_sampled_is_what_both_say(takes_ids, tmp_path):
    store = record(tmp_path, takes_ids, audited.Fault())
    for scorer in (takes_ids.url, harness.MODEL):
        status, report = audit(tmp_path, store, "--with", scorer)
        assert (status, report["verdict"]) == (0, "clean"), report
        assert report["compared"] > 0.9 * report["tokens"] > 50
        assert report["gaps"]["mean_abs"] < 1e-3


def test_vllm_s_processed_logprobs_are_not_raw(vllm, tmp_path):
    """vLLM runs with processed logprobs here."""
    said = ("--logprobs-mode", "raw_logprobs")
    store = record(tmp_path, vllm, audited.Fault(), *said)
    status, report = audit(tmp_path, store, "--with", vllm.url)
    assert (status, report["causes"][0]["cause"]) == (1, "raw_against_processed"), report


def test_shifted_logprobs_are_found_by_a_server(takes_ids, tmp_path):
    store = record(tmp_path, takes_ids, Shifting())
    status, report = audit(tmp_path, store, "--with", takes_ids.url)
    assert (status, report["causes"][0]["cause"]) == (1, "shifted_ids"), report
