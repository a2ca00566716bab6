"""`rolltape engine` as a process, called over HTTP."""

import concurrent.futures
import http.client
import json
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

WAITING = "vllm:num_requests_waiting"


class Engine:
    """An engine that runs until it is closed. Its output is kept beside the report."""

    def __init__(self, run, source, *flags, length=2304, under=(), name="engine"):
        """Starts `rolltape NAME`, perhaps `under` another program such as taskset."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.run, self.url = run, f"http://127.0.0.1:{port}"
        # The listener for agents has no health of its own.
        self.look = "/health" if name == "engine" else "/v1/models"
        command = [run.rolltape, name, *source, "--listen", f"127.0.0.1:{port}"]
        command += ["--max-model-len", length, *run.device, *flags]
        command = list(map(str, command))
        run.report.commands.append(["rolltape", *command[1:]])
        number = len(list(run.report.folder.glob("engine-*.txt")))
        self.log = run.report.folder / f"engine-{number}.txt"
        run.report.say("$ " + " ".join([*under, "rolltape", *command[1:]]))
        begun = time.monotonic()
        with open(self.log, "w", encoding="utf-8") as file:
            command = [*under, *command]
            self.process = subprocess.Popen(command, stdout=file, stderr=file, env=run.env)
        try:
            self.wait(time.monotonic() + run.report.limit(240))
        except BaseException:
            self.close()
            raise
        line = [x for x in self.log.read_text().splitlines() if x.startswith("running on ")]
        self.ready = time.monotonic() - begun
        run.report.say(f"   {'; '.join(line)} (ready after {self.ready:.1f} s)")

    def wait(self, until):
        while time.monotonic() < until:
            try:
                urllib.request.urlopen(f"{self.url}{self.look}", timeout=5).read()
                return
            except OSError:
                if self.process.poll() is not None:
                    said = self.log.read_text()[-2000:]
                    raise RuntimeError(f"the engine ended: {said}") from None
                time.sleep(0.1)
        raise TimeoutError("the engine did not begin to answer")

    def ask(self, prompts, count, **fields):
        """Makes one call. Returns its choices in order, with `token_ids` and perhaps logprobs."""
        return self.answer(prompts, count, **fields)["choices"]

    def answer(self, prompts, count, **fields):
        """Makes one call. Returns its whole answer, with the choices in order."""
        body = {"prompt": prompts, "max_tokens": count, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True, **fields}
        kind = {"Content-Type": "application/json"}
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/v1/completions", data, kind)
        try:
            with urllib.request.urlopen(request, timeout=self.run.report.limit(300)) as answer:
                whole = json.load(answer)
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()[:500]) from None
        except (OSError, http.client.HTTPException) as error:
            ended = self.process.poll()
            if ended is None:
                raise
            said = self.log.read_text()[-2000:]
            raise RuntimeError(f"the engine ended with {ended}: {said}") from error
        whole["choices"].sort(key=lambda choice: choice["index"])
        return whole

    def post(self, path, seconds=30, **fields):
        """Posts fields, or nothing. Returns the seconds that it took."""
        # Without a kind, urllib names that of a web page's form, which the engine refuses.
        kind = {"Content-Type": "application/json"}
        body = json.dumps(fields).encode() if fields else b""
        request = urllib.request.Request(f"{self.url}{path}", body, kind, method="POST")
        begun = time.perf_counter()
        try:
            urllib.request.urlopen(request, timeout=self.run.report.limit(seconds)).read()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {error.read().decode()[:500]}") from None
        return time.perf_counter() - begun

    def moments(self, prompt, count, **fields):
        """Makes one call that streams. Returns the moments at which its tokens came."""
        body = {"prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True,
                "stream": True, **fields}
        kind = {"Content-Type": "application/json"}
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/v1/completions", data, kind)
        with urllib.request.urlopen(request, timeout=self.run.report.limit(300)) as answer:
            return [time.perf_counter() for line in answer if line.startswith(b"data: {")]

    def metric(self, name):
        """Returns the sum of a metric's samples."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        found = [line for line in lines if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.split()[-1]) for line in found)

    def waiting(self):
        """Returns the number of choices that wait in the queue."""
        return self.metric(WAITING)

    def ask_at_once(self, calls):
        """Makes several calls `(prompts, count, fields)` whose choices begin in one step, in order.
        Returns all choices. Otherwise the first step of a choice differs between runs."""
        self.post("/pause?mode=keep")
        until, wanted, jobs = time.monotonic() + self.run.report.limit(60), 0, []
        with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
            for prompts, count, fields in calls:
                jobs.append(pool.submit(self.ask, prompts, count, **fields))
                wanted += len(prompts)
                while self.waiting() < wanted and time.monotonic() < until:
                    time.sleep(0.02)
            self.post("/resume")
            return [choice for job in jobs for choice in job.result()]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends the engine. After 20 seconds it is killed, because the next one needs its memory."""
        killer = threading.Timer(20, self.process.kill)
        killer.start()
        self.process.terminate()
        self.process.wait()
        killer.cancel()


def logprobs_of(choices):
    """Returns the logprobs of the sampled tokens, `[choice][token]`."""
    return [choice["logprobs"]["token_logprobs"] for choice in choices]
