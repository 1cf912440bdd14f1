"""Trains the byte-level BPE on the prompts and writes it as a Tekken v7 file; encodes and builds prompts."""

import base64
import json
import random
import sys
from functools import lru_cache
from pathlib import Path

SPECIALS = 40
BPE = 760
PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NAMES = {
    0: "<unk>", 1: "<s>", 2: "</s>", 3: "[INST]", 4: "[/INST]", 5: "[AVAILABLE_TOOLS]", 6: "[/AVAILABLE_TOOLS]",
    7: "[TOOL_RESULTS]", 8: "[/TOOL_RESULTS]", 9: "[TOOL_CALLS]", 10: "[IMG]", 11: "<pad>", 12: "[IMG_BREAK]",
    13: "[IMG_END]", 14: "[PREFIX]", 15: "[MIDDLE]", 16: "[SUFFIX]", 17: "[SYSTEM_PROMPT]", 18: "[/SYSTEM_PROMPT]",
    19: "[TOOL_CONTENT]", 24: "[AUDIO]", 25: "[BEGIN_AUDIO]", 34: "[TRANSCRIBE]",
}  # fmt: skip
BOS, EOS, INST, END_INST, PAD, AUDIO, BEGIN_AUDIO, TRANSCRIBE = 1, 2, 3, 4, 11, 24, 25, 34


def train(texts):
    """Merges in order of learning, as byte strings: 256 single bytes first."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tok.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=BPE, initial_alphabet=alphabet, show_progress=False))
    # GPT-2's printable stand-ins for bytes, reversed.
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    byte = {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}
    merges = json.loads(tok.to_str())["model"]["merges"]
    pieces = [bytes([b]) for b in range(256)]
    for m in merges:
        a, b = m if isinstance(m, list) else m.split(" ")
        piece = bytes(byte[c] for c in a + b)
        if piece not in pieces:
            pieces.append(piece)
    assert len(pieces) == BPE, len(pieces)
    return pieces


def write(pieces, path):
    def text(b):
        try:
            return b.decode()
        except UnicodeDecodeError:
            return None

    body = {
        "config": {
            "pattern": PATTERN,
            "num_vocab_tokens": len(pieces),
            "default_vocab_size": len(pieces) + SPECIALS,
            "default_num_special_tokens": SPECIALS,
            "version": "v7",
        },
        "vocab": [
            {"rank": i, "token_bytes": base64.b64encode(b).decode(), "token_str": text(b)} for i, b in enumerate(pieces)
        ],
        "special_tokens": [
            {"rank": i, "token_str": NAMES.get(i, f"<SPECIAL_{i}>"), "is_control": True} for i in range(SPECIALS)
        ],
        "version": 7,
        "type": "Tekken",
        "audio": {
            "sampling_rate": 16000,
            "frame_rate": 12.5,
            "audio_encoding_config": {"num_mel_bins": 128, "hop_length": 160, "window_size": 400},
            "chunk_length_s": 30,
            "transcription_format": "instruct",
        },
    }
    Path(path).write_text(json.dumps(body, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


class Tekken:
    """tiktoken over the ranks of a tekken.json."""

    def __init__(self, path):
        import tiktoken

        body = json.loads(Path(path).read_text(encoding="utf-8"))
        ranks = {base64.b64decode(v["token_bytes"]): v["rank"] for v in body["vocab"]}
        self.model = tiktoken.Encoding("tiny", pat_str=body["config"]["pattern"], mergeable_ranks=ranks, special_tokens={})
        self.encode = lru_cache(maxsize=20000)(self._encode)
        self.eos, self.pad, self.audio = EOS, PAD, AUDIO
        self.text = range(SPECIALS, SPECIALS + len(ranks))
        self.ends = SPECIALS + ord("."), SPECIALS + ord("?")

    def _encode(self, text):
        return tuple(i + SPECIALS for i in self.model.encode(text, disallowed_special=()))

    def decode(self, ids):
        return b"".join(self.model.decode_single_token_bytes(i - SPECIALS) for i in ids if i >= SPECIALS).decode(errors="replace")

    def prompt(self, task, audio_tokens):
        """Token ids before the answer. task: "en", "fr", "auto" or "en2fr"."""
        from data import TRANSLATE

        head = [BOS, INST, BEGIN_AUDIO] + [AUDIO] * audio_tokens
        if task == "en2fr":
            return head + list(self.encode(TRANSLATE)) + [END_INST]
        return head + [END_INST] + (list(self.encode(f"lang:{task}")) if task != "auto" else []) + [TRANSCRIBE]


def main():
    from data import DIGITS, TRANSLATE, World, answer

    world, rng, texts = World.load(), random.Random(0), []
    for pool in world.pool.values():
        texts += [" " + u.text for u in pool] + [u.text for u in pool]
    texts += [world.french[k] for k in world.french]
    for _ in range(60):
        words = " ".join(rng.choices(DIGITS["en"], k=6))
        texts.append(f" {words[0].upper()}{words[1:]}.")
        texts.append(" " + " ".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=6)) + ".")
    texts += ["lang:en", "lang:fr", TRANSLATE] * 40
    import layout

    if layout.NAME == "voxtral":
        write(train(texts), sys.argv[1])
    else:
        import omni

        omni.train_tokenizer(texts, sys.argv[1])
    tok = layout.Tokenizer(sys.argv[1])
    for t in ("lang:en", "lang:fr", TRANSLATE, "Three seven one nine. A B C. Please enter your password followed by the pound key."):
        print(t, tok.encode(t), [tok.decode([i]) for i in tok.encode(t)])
    for task in ("en", "fr", "en2fr"):
        x, pieces = world.compose(rng, 120, task)
        t = answer(pieces)
        assert tok.decode(tok.encode(t)) == t
        print(task, len(t.split()), "words", len(tok.encode(t)), "tokens in 2 min")


if __name__ == "__main__":
    main()
