"""A tiny random Llama as a GGUF file: one token per character, so a test can count a prompt by its length.

The vocabulary is printable ASCII and the newline, plus one end token, which is never drawn. What the model says is
therefore always text of the length asked for, and in the next prompt it has the very tokens that were generated.
"""

import os
import sys
from pathlib import Path

import gguf
import numpy as np

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
END = "</s>"
CONTEXT = 16384  # tokens the model was "trained" for; a replica gives each slot half of it

_HIDDEN, _LAYERS, _HEADS, _KV_HEADS, _FEED_FORWARD = 64, 2, 2, 1, 128  # 0.2 MB; a prompt of 4,000 takes 0.1 s


def prompt_tokens(messages: list[dict[str, str]]) -> int:
    """How many tokens a replica counts for these messages."""
    return sum(len(f"{each['role']}: {each['content']}\n") for each in messages) + len("assistant: ")


def build(path: Path) -> Path:
    """Write the model unless it is there. The same bytes every time; safe when two test runs start at once."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.part")
    _write(unfinished)
    return unfinished.replace(path)


def _vocabulary() -> list[str]:
    """Byte-level BPE spells a space Ġ and a newline Ċ."""
    return [END, "Ċ", "Ġ", *(chr(code) for code in range(0x21, 0x7F))]


def _write(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    words = _vocabulary()
    _describe(writer, len(words))
    _add_tokenizer(writer, words)
    _add_weights(writer, len(words))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: gguf.GGUFWriter, words: int) -> None:
    writer.add_name("tiny-random")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_vocab_size(words)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(_HIDDEN)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_rope_dimension_count(_HIDDEN // _HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)


def _add_tokenizer(writer: gguf.GGUFWriter, words: list[str]) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.CONTROL, *[gguf.TokenType.NORMAL] * (len(words) - 1)])
    writer.add_token_merges(["< >"])  # the list must not be empty; "<>" is no word, so nothing ever merges
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def _add_weights(writer: gguf.GGUFWriter, words: int) -> None:
    random = np.random.default_rng(0)

    def noise(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * 0.02).astype(np.float16)

    kv = _HIDDEN // _HEADS * _KV_HEADS
    ones = np.ones(_HIDDEN, np.float32)
    embedding, output = noise(words, _HIDDEN), noise(words, _HIDDEN)
    embedding[:, 0], output[:, 0] = 0.1, 0.0  # the first dimension is large whatever was said,
    output[0, 0] = -10.0  # and speaks against the end
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", output)
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        writer.add_tensor(f"{block}.attn_norm.weight", ones)
        writer.add_tensor(f"{block}.attn_q.weight", noise(_HIDDEN, _HIDDEN))
        writer.add_tensor(f"{block}.attn_k.weight", noise(kv, _HIDDEN))
        writer.add_tensor(f"{block}.attn_v.weight", noise(kv, _HIDDEN))
        writer.add_tensor(f"{block}.attn_output.weight", noise(_HIDDEN, _HIDDEN))
        writer.add_tensor(f"{block}.ffn_norm.weight", ones)
        writer.add_tensor(f"{block}.ffn_gate.weight", noise(_FEED_FORWARD, _HIDDEN))
        writer.add_tensor(f"{block}.ffn_up.weight", noise(_FEED_FORWARD, _HIDDEN))
        writer.add_tensor(f"{block}.ffn_down.weight", noise(_HIDDEN, _FEED_FORWARD))


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
