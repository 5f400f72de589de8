"""One llama.cpp server: `python -m tests.engines.replica MODEL.gguf PORT [--embeddings]`.

It prints its address when it serves, and ends when its standard input closes.
"""

import os
import sys

import xllamacpp

SLOTS = 4  # llama.cpp's own default for a server
CONTEXT = 8192  # tokens of one slot; half of what the model claims


def parameters(model: str, port: int) -> "xllamacpp.CommonParams":
    given = xllamacpp.CommonParams()
    given.model.path = model
    given.model_alias = {"tiny"}
    given.hostnames = ["127.0.0.1"]
    given.port = port
    given.n_ctx = CONTEXT * SLOTS
    given.n_parallel = SLOTS
    given.n_gpu_layers = 0
    given.cpuparams.n_threads = given.cpuparams_batch.n_threads = 1  # several run beside each other
    given.endpoint_metrics = given.endpoint_slots = given.endpoint_props = True
    given.warmup = False
    return given


def main() -> None:
    given = parameters(sys.argv[1], int(sys.argv[2]))
    if "--embeddings" in sys.argv:
        given.embedding = True
        given.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    server = xllamacpp.Server(given)
    print(server.listening_address, flush=True)
    sys.stdin.read()
    os._exit(0)  # an orderly end would wait for open connections


if __name__ == "__main__":
    main()
