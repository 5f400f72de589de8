"""Faults that routers, gateways and their parts have shown in production, one line each, in our own words.

Law: a row has tests that name it, or says here why it has none yet.
"""

from dataclasses import dataclass

KUBERNETES = "kubernetes discovery: later release"
REDIS = "for Redis: later release"
EXPERIMENTS = "experiments: later release"
HTTP2 = "HTTP/2 upstream is not offered: every replica is spoken to in HTTP/1.1"


@dataclass(frozen=True, slots=True)
class Row:
    number: int
    fault: str
    later: str = ""  # why no test names it yet


GROUPS: dict[str, tuple[Row, ...]] = {
    "Streams": (
        Row(1, "A replica dies inside a stream and the client takes the stump for a whole answer"),
        Row(2, "The error that ends a stream is in another family's words, so that family's SDK waits or retries"),
        Row(4, "A keep-alive timer that was not stopped cuts a connection in use"),
        Row(5, "A middleware around the app holds streams in memory or keeps hang-ups to itself"),
        Row(7, "A compressed stream blinds the router's own reading of it"),
        Row(8, "Somebody on the way collects small events before passing them on"),
    ),
    "Clients that leave": (
        Row(10, "Each client that hangs up stays counted as load for ever"),
        Row(11, "Closing a broken connection fails, and what should be given back after it is not"),
        Row(13, "Requests cancelled under contention take pool slots with them"),
        Row(14, "An answer that was cancelled half-read keeps its connection open"),
        Row(16, "A call that does not stream runs to its end for a client that has gone"),
        Row(17, "Nobody watches the client before the first token"),
        Row(19, "Nobody watches the client once a second replica is tried"),
        Row(20, "Requests of one session wait for its stalled first one"),
    ),
    "Heads": (
        Row(22, "A length announced for a body that the proxy replaced"),
        Row(23, "A body decoded and encoded anew under the framing of the old one"),
        Row(25, "Fields that say where a request went are added after the head has left"),
        Row(26, "Credentials are not passed on, and the 401s that follow are blamed on the replica"),
        Row(28, "Path or query arrive in another spelling"),
        Row(29, "100-continue and upgrades that nobody asked for hang a request"),
        Row(31, "Fields of one hop travel on"),
        Row(32, "Server and Date appear twice"),
    ),
    "Bodies": (
        Row(34, "Long prompts fail at the size of some buffer"),
        Row(35, "The last chunk of an upload arrives twice"),
        Row(37, "The router's own fields or members reach an engine that refuses them"),
        Row(38, "Large integers lose digits on the way"),
        Row(40, "Multipart is read as JSON, and answers that are not JSON become errors"),
        Row(41, "The first requests on a connection pass, later ones are damaged"),
        Row(43, "The router asks for usage in the client's name"),
    ),
    "Errors": (
        Row(44, "An engine's error on a stream request becomes an empty 200"),
        Row(46, "A malformed multipart body becomes a 500"),
        Row(47, "One cause has two statuses, and some causes none"),
        Row(49, "A body over the limit is answered by a reset that clients retry"),
    ),
    "Retries": (
        Row(50, "A retry starts while the first attempt still runs"),
        Row(52, "A retry under the same request id is refused as a duplicate"),
        Row(53, "A pooled connection is reused at the moment the replica closes it"),
        Row(55, "Retries multiply the load in an outage"),
        Row(56, "A second attempt is not built like the first one"),
    ),
    "Health and failover": (
        Row(58, "Hash policies send to a replica that is ejected"),
        Row(59, "Clients' mistakes eject replicas"),
        Row(61, "A busy engine's 503 or 429 counts as a fault"),
        Row(62, "A replica that still loads its weights gets requests"),
        Row(64, "A dead replica gets requests until discovery notices"),
        Row(65, "One replica that never answers delays the start"),
        Row(67, "One malformed probe answer ends the probes of all"),
        Row(68, "A request without a readable body kills the routing loop"),
        Row(70, "Engines that say 500 to bad prompts close down the whole fleet"),
        Row(71, "The list of models fails when one replica is down"),
        Row(73, "A list of models is taken for readiness"),
        Row(74, "A sleeping engine gets requests"),
        Row(76, "A second failure does not lengthen a cool-down"),
        Row(77, "Refusals and 500s in a row never eject"),
        Row(79, "One dead replica keeps the router from starting"),
        Row(80, "A busy engine whose health page is late is declared dead"),
    ),
    "Ring and affinity": (
        Row(82, "One replica more or less moves nearly every session"),
        Row(83, "Concurrent requests push sessions off their home though nothing is overloaded"),
        Row(85, "A session stays bound to a replica that restarted under the same name"),
        Row(86, "A known prefix leads to a replica that is gone"),
        Row(88, "A replica restarts with an empty cache and nobody notices"),
        Row(89, "One hot key overloads one replica, or a guard sheds at no load at all"),
        Row(91, "A session is bound to a replica that never served it"),
        Row(92, "First requests sent in parallel go to several replicas"),
    ),
    "Session keys": (
        Row(94, "A request id is taken for a session"),
        Row(95, "A session's name is found on some paths only"),
        Row(97, "One session with several models evicts its own bindings"),
        Row(98, "A gateway in front stamps each request with a name of its own"),
    ),
    "Prefixes": (
        Row(100, "The short end of a prompt is not hashed, so unlike prompts look alike"),
        Row(101, "Chats have no text for the hash and all look alike"),
        Row(103, "Text that changes each turn breaks the prefix"),
        Row(104, "The order of a JSON object's members changes the prefix, by accident"),
        Row(106, "Prefix hashes that can be made to collide"),
        Row(107, "Sampling parameters change the key, and large images cost milliseconds"),
    ),
    "Load": (
        Row(109, "Load is counted under some policies only"),
        Row(110, "Load is given back when a stream begins"),
        Row(112, "Of several ranks on a metrics page one is read"),
        Row(113, "Scraped queues lag, so that a burst all goes to one replica"),
        Row(115, "A clean-up by age forgets requests that still run"),
        Row(116, "A replica that leaves and returns gets a negative count"),
        Row(118, "An engine renames its metrics and the load is silently none"),
    ),
    "Memory": (
        Row(119, "What is remembered of prompts never ends"),
        Row(121, "A limit enforced now and then is overrun in between"),
        Row(122, "Timers of connections that were reset keep their requests in memory"),
        Row(124, "Statistics of requests outlive them"),
        Row(125, "A slow reader fills the router's memory"),
    ),
    "Metrics": (
        Row(127, "An error inside a 200 counts as a success"),
        Row(128, "Each scrape meets another process, so counters go up and down"),
        Row(130, "Clients' words become labels"),
        Row(131, "Requests whose clients left are not counted, or under the wrong word"),
        Row(133, "An event split over two packets loses its usage"),
        Row(134, "Usage of answers that ended badly is not counted"),
        Row(136, "Series of replicas that are gone stay"),
    ),
    "Reload": (
        Row(137, "Old probes go on after a reload"),
        Row(139, "A setting is taken and not obeyed"),
        Row(140, "Taking a replica away breaks the requests that it still answers"),
    ),
    "Several routers": (
        Row(142, "A store that hangs holds up every request", REDIS),
        Row(143, "A store that is away keeps the router from starting", REDIS),
        Row(145, "A cancelled look-up leaves its reply to the next one", REDIS),
        Row(146, "A move is not told to the other routers", REDIS),
        Row(148, "Routers that hear of replicas in another order place sessions elsewhere"),
        Row(149, "Each of several routers gives a session a home of its own"),
    ),
    "Kubernetes": (
        Row(151, "A pod that terminates still gets requests"),
        Row(152, "A deletion that fell into a gap of the watch is never seen", KUBERNETES),
        Row(154, "An evicted pod without an address stays", KUBERNETES),
        Row(155, "A pod keeps its old address beside its new one"),
        Row(157, "A watch goes silent without an error", KUBERNETES),
        Row(158, "A watch that ends at once is opened again in a busy loop", KUBERNETES),
        Row(160, "IPv6 addresses are joined to ports without brackets"),
        Row(161, "A replica that becomes ready later is never used", KUBERNETES),
        Row(163, "A name is resolved once, or a kept connection outlives its address"),
        Row(164, "A token that was rotated is not read again", KUBERNETES),
    ),
    "Security": (
        Row(166, "A client's header names where its request is sent"),
        Row(167, "Large heads get no reason, endless ones fill the memory"),
        Row(169, "A client chooses the address it is known by"),
        Row(170, "A client turns the operator's knobs from a body or a header"),
        Row(172, "A request that trickles in holds its place without end"),
        Row(173, "Connections that say nothing stay open"),
        Row(175, "A client has security fields removed by naming them in Connection"),
        Row(176, "A name that does not fit into a header fails a good answer"),
    ),
    "WebSocket": (
        Row(178, "One side closes a WebSocket and the other is not told"),
        Row(179, "The choice waits for a body that an upgrade does not have"),
    ),
    "HTTP/2": (
        Row(181, "A replica that recycles its connection fails requests that it never began", HTTP2),
        Row(182, "One connection carries all streams, and takes them with it", HTTP2),
    ),
    "Time": (
        Row(184, "A client library's default bound holds requests back unseen"),
        Row(185, "A replica freezes or goes after it was chosen, and the request hangs"),
        Row(187, "Something blocks the event loop, and the router's own probes fail"),
        Row(188, "Some default total timeout cuts long streams"),
    ),
    "Going down": (
        Row(190, "One stuck request keeps a router that serves nobody alive"),
        Row(191, "A router that goes down is still called ready"),
    ),
    "Experiments": (
        Row(193, "One sticky key takes a whole split, and tenants share their bindings"),
        Row(194, "A session changes arms from turn to turn", EXPERIMENTS),
        Row(196, "The arm and the replica follow from one hash", EXPERIMENTS),
    ),
}
