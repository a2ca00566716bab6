"""Checks the engine's client of PyTorch's TCPStore against PyTorch: `store.py TEST_BINARY`.

Opens a store as vLLM's trainer side does, waits for the engine's test as the second member, and
writes the pickled name of a group as `broadcast_obj` does. `TEST_BINARY` is the engine's test
program, which `cargo test -p engine --lib --no-run` names.
"""

import ctypes
import os
import pickle
import subprocess
import sys
from datetime import timedelta

from torch.distributed import TCPStore

TEST = "nccl::tests::the_name_comes_from_pytorch_s_own_store"
WAIT = timedelta(seconds=60)


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = [("internal", ctypes.c_byte * 128)]


def main():
    name = os.urandom(128)
    for libuv in (False, True):
        # Without waiting here, since the other member starts once the port is known.
        store = TCPStore(
            "127.0.0.1", 0, 2, True, WAIT, wait_for_workers=False, use_libuv=libuv
        )
        store.set("broadcast_from/0/0", pickle.dumps(UniqueId.from_buffer_copy(name)))
        settings = {"ROLLTAPE_TEST_STORE_PORT": str(store.port), "ROLLTAPE_TEST_STORE_ID": name.hex()}
        arguments = [sys.argv[1], "--ignored", "--exact", TEST]
        subprocess.run(arguments, env=os.environ | settings, check=True)
        print(f"found, with{'' if libuv else 'out'} libuv")


if __name__ == "__main__":
    main()
