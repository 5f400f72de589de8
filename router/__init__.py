"""A proxy that sends every turn of a session to the replica whose KV cache already holds it.

The rooms, in the order a request walks through them:

    proxy       one request: read, choose, forward, settle. Raw ASGI, no framework.
    answer      the way back: a replica's reply as it comes, or an error of our own in the caller's dialect.
    dialects/   where messages, tools, ids, usage and errors live in each API family. Pure.
    core/       request, ring, affinity, fleet, cost, decision. Pure; `Fleet` is the only mutable object.
    policies/   which replica: one file each, one method each. Pure.
    upstream    HTTP/1.1 to one replica; foreign errors become ours here.
    metrics     the ledger: decisions and outcomes.

Around that path:

    app         the composition root: the only place that constructs objects.
    watch       the only feeder of Fleet: discovery, scrapes and probes, supervised.
    discovery/  async generators, each yields the whole set of replicas whenever it changes.
    engines/    what vLLM, SGLang and llama.cpp call their signals. Pure data.
    stores/     bindings that must outlive or outreach this process.
    control     our own paths, on FastAPI.
    settings    every knob, typed, with its reason.
    cli/        the commands.

The laws: nothing awaits between the snapshot and the lease; the pure rooms import no clock, no
randomness, no network and no framework; only `app` and `cli` read settings.
"""
