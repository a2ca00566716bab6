"""Times decoding by another server's own engine, in a process of its own.

    peer.py QUESTION.json

QUESTION has the server, a model folder, prompts by batch, and two lengths of replies. The last line
of the output is JSON: the version, and the seconds of a step by batch.
"""

import json
import sys
import time

# Without this folder in the path: others may import packages by names that it contains.
sys.path.pop(0)

ROOM = 2_304


def vllm_of(folder):
    """Returns vLLM's version, and a function that samples greedily."""
    import vllm

    model = vllm.LLM(model=folder, max_model_len=ROOM, disable_log_stats=True, seed=0)

    def sample(prompts, count):
        params = vllm.SamplingParams(temperature=0, max_tokens=count, min_tokens=count,
                                     ignore_eos=True)
        model.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)

    return vllm.__version__, sample


def sglang_of(folder):
    """Returns SGLang's version, and a function that samples greedily."""
    import sglang

    model = sglang.Engine(model_path=folder, context_length=ROOM, log_level="error")

    def sample(prompts, count):
        params = {"temperature": 0, "max_new_tokens": count, "ignore_eos": True}
        model.generate(input_ids=prompts, sampling_params=params)

    return sglang.__version__, sample


SERVERS = {"vllm": vllm_of, "sglang": sglang_of}


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        asked = json.load(file)
    version, sample = SERVERS[asked["server"]](asked["folder"])
    (short, long), steps = asked["counts"], {}
    for batch, prompts in asked["prompts"].items():
        sample(prompts, short)
        least = {}
        for count in (short, long) * 2:
            begun = time.perf_counter()
            sample(prompts, count)
            took = time.perf_counter() - begun
            least[count] = min(took, least.get(count, took))
        steps[batch] = (least[long] - least[short]) / (long - short)
    print(json.dumps({"version": version, "steps": steps}), flush=True)


if __name__ == "__main__":
    main()
