"""A small tokenizer in the manner of Qwen2, and what the tokenizers library makes of texts and prompts with it.

    python tools/goldens/byte_level.py

writes `crates/model/tests/data/qwen/tokenizer.json` and `tokenizer-golden.json`. Prompts are given to the library as the
one string that a chat template makes, control tokens and all; ids of long runs are written as [id, count].
"""

import itertools
import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

OUT = Path(__file__).resolve().parents[2] / "crates/model/tests/data/qwen"
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"]
CONTROL += ["<|audio_start|>", "<|audio_pad|>", "<|audio_end|>"]
CORPUS = """system user assistant language English French You are a helpful assistant. You are a speech recognition model.
Transcribe the English audio into text without any punctuation marks. Listen to the provided speech and produce a
translation in French text. What is said? Was wird gesagt?"""
TEXTS = [
    "What is said?",
    "You are a speech recognition model.",
    "I'LL say it's 1234, isn't it?  two  spaces\n\n\ttab \n end  ",
    "Caf\u0065\u0301 na\u00efve \u4f60\u597d \u043f\u0440\u0438\u0432\u0435\u0442 \U0001f600!",
    "<|im_end|> is text here",
    "",
    " ",
    "\r\n \r\n",
]
OMNI = "<|audio_bos|>" + "<|AUDIO|>" * 7 + "<|audio_eos|>"
ASR = "<|audio_start|>" + "<|audio_pad|>" * 7 + "<|audio_end|>"


def chat(system, user, begun=""):
    return (
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n{begun}"
    )


PROMPTS = [
    dict(family="omni", task="transcribe", language="en", text=chat("You are a speech recognition model.", OMNI + "Transcribe the English audio into text without any punctuation marks.")),
    dict(family="omni", task="transcribe", text=chat("You are a speech recognition model.", OMNI + "Transcribe the audio into text without any punctuation marks.")),
    dict(family="omni", task="translate", language="fr", text=chat("You are a speech translation model.", OMNI + "Listen to the provided speech and produce a translation in French text.")),
    dict(family="omni", task="chat", instruction="What is said?", text=chat("You are a helpful assistant.", OMNI + "What is said?")),
    dict(family="asr", task="transcribe", text=chat("", ASR)),
    dict(family="asr", task="transcribe", language="fr", text=chat("", ASR, "language French<asr_text>")),
    dict(family="asr", task="transcribe", language="zh", context="helpful audio, ", text=chat("helpful audio, ", ASR, "language Chinese<asr_text>")),
]


def runs(ids):
    return [[i, n] if n > 1 else i for i, n in ((i, len(list(g))) for i, g in itertools.groupby(ids))]


def main():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([CORPUS], trainer)
    plain = [tokenizer.encode(text).ids for text in TEXTS]
    tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in CONTROL])
    tokenizer.add_tokens([AddedToken("<asr_text>", special=False, normalized=False)])
    tokenizer.get_vocab_size()
    OUT.mkdir(parents=True, exist_ok=True)
    whole = json.loads(tokenizer.to_str())
    (OUT / "tokenizer.json").write_text(json.dumps(whole, separators=(",", ":"), ensure_ascii=False) + "\n")
    prompts = [dict(p, text=None, ids=runs(tokenizer.encode(p["text"]).ids)) for p in PROMPTS]
    for p in prompts:
        del p["text"]
    golden = dict(
        texts=[dict(text=t, ids=i) for t, i in zip(TEXTS, plain)],
        prompts=prompts,
        special={name: tokenizer.token_to_id(name) for name in [*CONTROL, "<asr_text>"]},
    )
    (OUT / "tokenizer-golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
