"""Starts an image of buildah as it says itself, and asks for its health as it says.

    unshare --net python3 packaging/check_image.py rolltape:0.1.0-x86_64

In a network of its own, so that the image's ports are free.
"""

import json
import subprocess
import sys
import time

HEALTHY_S = 30


def buildah(*words):
    """The output of a command of buildah."""
    return subprocess.run(["buildah", *words], check=True, text=True, capture_output=True).stdout


def main(image):
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    config = json.loads(buildah("inspect", "--type", "image", image))["Docker"]["config"]
    assert config["User"] == "10001:10001" and list(config["Volumes"]) == ["/data"], config
    assert sorted(config["ExposedPorts"]) == ["8080/tcp", "8081/tcp"], config
    container = buildah("from", image).strip()
    run = ["buildah", "run", "--env", "ROLLTAPE_UPSTREAM=http://127.0.0.1:9", container, "--"]
    server = subprocess.Popen([*run, *config["Entrypoint"], *config["Cmd"]])
    try:
        wait_until_healthy([*run, *config["Healthcheck"]["Test"][1:]], server)
        files = buildah("run", container, "--", "ls", "-ln", "/data")
        store = next(line for line in files.splitlines() if line.endswith(" rolltape.db"))
        assert store.startswith("-rw-------") and " 10001 10001 " in store, files
    finally:
        server.terminate()
        server.wait(30)
        buildah("rm", container)
    print(f"{image}: healthy, as user 10001")


def wait_until_healthy(check, server):
    """Returns when the image's own check passes."""
    end = time.monotonic() + HEALTHY_S
    while subprocess.run(check, stderr=subprocess.DEVNULL).returncode != 0:
        assert server.poll() is None, "the server has ended"
        assert time.monotonic() < end, "the server is not healthy"
        time.sleep(0.2)


main(*sys.argv[1:])
