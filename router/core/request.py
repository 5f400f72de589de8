"""What a policy may know of one request."""

from router.core.value import value


@value
class Request:
    """A request as read by its dialect; everything a decision needs and nothing of the prompt's text.

    Keys are integers from xxh3 so that maps of them stay small. Zero means "none".
    `chain[i]` covers the prompt up to and including its i-th part (part 0: model, salt, tools, system);
    `sizes[i]` is how many bytes of the body that is, so `sizes` is non-decreasing and as long as `chain`.
    """

    dialect: str  # "chat", "messages", ..., "other"
    model: str = ""  # "" = not named
    session: int = 0  # a strong source named it (scoped by model and cache salt); 0 = the conversation names itself
    source: str = "none"  # which source answered; a bounded word, exported
    key: int = 0  # 64 bits: where the ring starts for this session; a pure function of the request
    chain: tuple[int, ...] = ()  # 128 bits each
    sizes: tuple[int, ...] = ()
    opening: int = 0  # index of the first link that tells this conversation from its siblings (first user message)
    stable: int = 0  # index of the last link of the stable prefix (cache breakpoint, else tools and system)
    body_bytes: int = 0
    response_id: str = ""  # the earlier response that this request continues or names
    stream: bool = False

    @property
    def prompt_bytes(self) -> int:
        """Bytes of prompt: what the chain covers, or the whole body where it was not read. Audio is no prompt."""
        if self.sizes:
            return self.sizes[-1]
        return self.body_bytes if self.dialect != "other" else 0


@value
class Usage:
    """What a reply says of itself. `None` is unknown, never zero."""

    prompt_tokens: int | None = None  # the whole prompt, cached part included
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish: str = ""  # the engine's word: stop, tool_calls, length, abort, ...
    failed: bool = False  # a 200 that carries a failure (error object in the stream, finish "abort")
    response_id: str = ""
