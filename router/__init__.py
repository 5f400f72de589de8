"""A proxy that sends every turn of a session to the replica whose KV cache already holds it.

The rooms, in the order a request walks through them:

    server/     the fast lane: a client's connection (lane), one request on it (passage), what it reads and says (wire).
    proxy       one request: read, choose, forward, settle. Raw ASGI, no framework.
    turn        what is known of one request so far, and how it ends.
    receipt     who asked, one protocol (`Client`) on two lanes: the fast one, and `Standard` under any ASGI server.
    headers     which fields pass. Pure.
    dialects/   where messages, tools, ids, usage and errors live in each API family. Pure.
    core/       pure; `Fleet` is the only mutable object.
                  the map: fleet, replica, request, decision, cost, pools
                  who a session is: keys, chain, ring
                  where it lives: affinity, home, bound, placed
                  a request's place and what it teaches: lease, health, budget, estimates
                  who may come in: admission, returns
                  what these are made of: bounded, value
    policies/   which replica: one file each, one method each. Pure.
    waiting     requests that admission holds, first come, first served.
    upstream/   HTTP/1.1 to one replica; foreign errors become ours here.
    answer      the way back: a replica's reply as it comes, or an error of our own in the caller's dialect.
    metrics     the ledger: decisions and outcomes.
    logs        standard error: a line per event, a line per request.

Around that path:

    app         the composition root: the only place that constructs objects.
    serving     runs it: sockets, signals, an end in good order. `asgi` is for other servers.
    watch       the only feeder of Fleet: discovery, and a `watcher` per replica that probes and scrapes.
    discovery/  async generators, each yields the whole set of replicas whenever it changes.
    engines/    what vLLM, SGLang and llama.cpp call their signals. Pure data.
    stores/     bindings that must outlive or outreach this process: memory, sqlite, and what all of them share.
    control     our own paths, on FastAPI; `explain` is the verdict behind one of them.
    settings    every knob, typed, with its reason.
    cli/        the commands.
    testing     fleets by hand and the contract of policies, for authors of their own.

The laws: nothing awaits between the snapshot and the lease; the pure rooms import no clock, no
randomness, no network and no framework; only `app` and `cli` read settings.
"""
