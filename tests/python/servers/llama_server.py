"""llama.cpp's HTTP server out of the `xllamacpp` wheel: llama_server.py MODEL.gguf PORT

Its sampler chain does nothing unless a request asks for it, so that what is sampled is the model's
own distribution; a published llama.cpp cuts with top_k 40, top_p 0.95 and min_p 0.05.
"""

import signal
import sys

import xllamacpp

SLOTS = 4
CONTEXT = 1024
SEED = 11
"""Of requests that name none: on two wires they cannot."""


def parameters(model, port):
    """How the server is set up."""
    made = xllamacpp.CommonParams()
    made.model.path = model
    made.model_alias = {"tiny"}
    made.hostnames = ["127.0.0.1"]
    made.port = port
    made.n_ctx = CONTEXT * SLOTS
    made.n_parallel = SLOTS
    made.n_gpu_layers = 0
    made.fit_params = False
    made.warmup = False
    made.cpuparams.n_threads = 1
    made.cpuparams_batch.n_threads = 1
    made.sampling.seed = SEED
    made.sampling.temp = 1.0
    made.sampling.top_k = 0
    made.sampling.top_p = 1.0
    made.sampling.min_p = 0.0
    return made


server = xllamacpp.Server(parameters(sys.argv[1], int(sys.argv[2])))
print("listening on", server.listening_address, flush=True)
signal.sigwait([signal.SIGTERM, signal.SIGINT])
