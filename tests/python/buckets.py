"""A bucket of an emulated S3."""

from contextlib import contextmanager

import boto3
from moto.server import ThreadedMotoServer

NAME = "runs"


@contextmanager
def emulated():
    """An S3 with the bucket `runs`: its client, and the variables that lead to it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT": f"http://{host}:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_REGION": "us-east-1",
    }
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=variables["AWS_ENDPOINT"], **keys)
    client.create_bucket(Bucket=NAME)
    try:
        yield client, variables
    finally:
        server.stop()


def upload(client, folder, prefix):
    """Puts the files of a folder under a prefix of the bucket."""
    for path in folder.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), NAME, f"{prefix}/{path.relative_to(folder)}")
