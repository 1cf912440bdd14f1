"""Goldens of the Tekken tokenizer: what mistral-common makes of 500 strings, of id sequences and of audio prompts.

    python tools/goldens/tekken.py [--full FILE]

writes `crates/model/tests/data/tekken/`: `tekken.json`, a reduced tokenizer (the first ranks of the one that
mistral-common ships, with the special tokens and the audio section of Voxtral), and `golden.json`. With `--full` it
also writes the whole tokenizer, made a Voxtral one in the same way; the tests compare with it when the environment variable
WNW_TEKKEN names it.
"""

import argparse
import json
import random
import tempfile
from pathlib import Path

import mistral_common
import numpy as np
from mistral_common.tokens.tokenizers.audio import Audio
from mistral_common.protocol.instruct.chunk import RawAudio, TextChunk, AudioChunk
from mistral_common.protocol.instruct.messages import UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.transcription.request import TranscriptionRequest
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

OUT = Path(__file__).resolve().parents[2] / "crates/model/tests/data/tekken"
SOURCE = Path(mistral_common.__file__).parent / "data/tekken_240911.json"
KEPT, LISTED, SPECIALS = 6400, 6500, 1000

NAMED = {
    0: "<unk>", 1: "<s>", 2: "</s>", 3: "[INST]", 4: "[/INST]", 5: "[AVAILABLE_TOOLS]", 6: "[/AVAILABLE_TOOLS]",
    7: "[TOOL_RESULTS]", 8: "[/TOOL_RESULTS]", 9: "[TOOL_CALLS]", 10: "[IMG]", 11: "<pad>", 12: "[IMG_BREAK]",
    13: "[IMG_END]", 14: "[PREFIX]", 15: "[MIDDLE]", 16: "[SUFFIX]", 17: "[SYSTEM_PROMPT]", 18: "[/SYSTEM_PROMPT]",
    19: "[TOOL_CONTENT]", 24: "[AUDIO]", 25: "[BEGIN_AUDIO]", 34: "[TRANSCRIBE]",
}  # fmt: skip

AUDIO = {
    "sampling_rate": 16000,
    "frame_rate": 12.5,
    "audio_encoding_config": {"num_mel_bins": 128, "hop_length": 160, "window_size": 400},
    "chunk_length_s": 30.0,
}

SENTENCES = {
    "en": [
        "The harbour master wrote down every ship that passed the lighthouse before noon.",
        "Don't they've we'll I'm: it's 7 o'clock, isn't it?",
        "She said: “No—never!” and left; nobody knew why…",
        "Please transcribe this recording, then translate it to French.",
    ],
    "fr": [
        "L’été dernier, nous avons traversé la forêt à vélo jusqu’au château.",
        "Où est-ce qu'il a garé la voiture ? Là-bas, près de l'œuvre d'art.",
        "Cœur, naïveté, garçon, Noël, août : « ça suffit ! »",
    ],
    "de": [
        "Die Straßenbahn fährt übermorgen früher als gewöhnlich zur Universität.",
        "Donaudampfschifffahrtsgesellschaftskapitänsmütze ist ein langes Wort.",
        "Größe, Äpfel, Öl, Übung und ẞ.",
    ],
    "es": [
        "¿Dónde está la biblioteca? ¡Qué niño tan pequeño!",
        "El pingüino comió piñas mañana y noche en España.",
        "La canción terminó después de las ocho.",
    ],
    "it": [
        "Perché non c'è più caffè? Andrò giù in città domani.",
        "Gli gnocchi della nonna sono già pronti, però è tardi.",
        "L'università di Forlì è lì.",
    ],
    "pt": [
        "A programação não começou; amanhã haverá sessões às três.",
        "Coração, avó, avô, pães, lingüiça e maçã.",
        "Você já ouviu falar dessa região?",
    ],
    "nl": [
        "Het ijs smolt sneller dan de kinderen hadden gehoopt, 's middags al.",
        "Zeeën, coördinatie, reünie: dat zijn woorden met een trema.",
        "Gisteren zijn we met z'n vieren naar Scheveningen gefietst.",
    ],
    "hi": [
        "नमस्ते, आज मौसम बहुत अच्छा है और हम बाज़ार जा रहे हैं।",
        "क्या आप मुझे स्टेशन का रास्ता बता सकते हैं?",
        "क्षत्रिय, ज्ञान, श्रृंखला, १२३४५।",
    ],
    "ar": [
        "مرحبًا، كيف حالك اليوم؟ سنذهب إلى السوق غدًا.",
        "كَتَبَ الطَّالِبُ الدَّرْسَ فِي المَكْتَبَةِ.",
        "الرقم ٠١٢٣٤٥٦٧٨٩ طويل جدًا!",
    ],
}

ODD = [
    "", " ", "  ", "   a", "a   ", "a \n b", "\n", "\n\n\n", "\r\n\r\n", " \n \n x", "\t\tif x:\n\t\t\treturn\n", "a\u00a0b", "\u2003wide\u2003",
    "a\u200bb\u200d", "\u0000\u0001\u007f", "\ufeffBOM", "line\u2028sep\u2029end\x85next\x0b\x0c.",
    "0", "12", "123456789", "3.14159, -2e10; 0x1F", "1,000,000.00 €", "２０２６年１２月", "٣٫١٤", "Ⅳ ½ ² ₃ ①",
    "<s>[INST] hello [/INST]</s>", "[AUDIO][BEGIN_AUDIO][TRANSCRIBE]", "<SPECIAL_20><unk><pad>",
    "fn main() { println!(\"{}\", x[0]); } // ok", "for i in range(10):\n    print(i)\n\n\n", "SELECT * FROM t WHERE a='b';--", "https://example.org/a/b?c=d&e=%20#f",
    "path/to//file\\\\x\r\n///\n", "a+b=c!=d===e", "...!!!???---___***", "#$%^&*(){}[]|<>~`@", "CamelCaseWordXMLHttpRequestID", "ALLCAPS lower MiXeD ÉCOLE École",
    "👍", "👩‍👩‍👧‍👦 family", "🇫🇷🇩🇪🇳🇱", "❤️‍🔥✨🎉 party", "🏳️‍🌈🧑🏽‍🚀", "smile:)😀😀😀", "Ünïcödé e\u0301e\u0301 a\u0308\u0323", "Z̸̡͖a̷l̵g̶o̷",
    "日本語の文章です。カタカナとひらがな。", "中文没有空格，但是有标点。", "한국어 문장입니다.", "Привет, мир! Ёлка.", "Ελληνικά γράμματα", "עברית עם ניקוד: שָׁלוֹם", "ไทยไม่มีช่องว่าง", "தமிழ் எழுத்து", "ქართული", "አማርኛ",
    "ǅ ǈ ǋ titlecase ʰʲ modifiers ªº", "mixedСмешанныйمختلط混合मिश्र", "nl:nl lang:nl lang:xx", "𝕳𝖊𝖑𝖑𝖔 𐍈 𓀀 🂡", "a" * 40, " " * 40 + "x", "ab" * 30, "\n" * 20, "é" * 25, "あ" * 20, "ho" * 7 + " " * 3 + "!" * 9,
    "lang:en", "lang:fr", "lang:de", "lang:es", "lang:it", "lang:pt", "lang:nl", "lang:hi", "lang:ar", "Translate this to English.",
]  # fmt: skip


def strings():
    """The fixed ones, then seeded mixtures, 500 in all."""
    fixed = [s for group in SENTENCES.values() for s in group] + ODD
    rng = random.Random(20260806)
    words = [w for group in SENTENCES.values() for s in group for w in s.split()]
    glue = [" ", " ", " ", "  ", "\n", "", ", ", "-", "\t", "\u00a0", " \n", "…", "'", "/"]
    ranges = [(0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0x97F), (0x2000, 0x206F),
              (0x3040, 0x30FF), (0x4E00, 0x4FFF), (0xAC00, 0xADFF), (0x1F300, 0x1F6FF), (0x0, 0x1F)]  # fmt: skip
    made = []
    while len(fixed) + len(made) < 500:
        kind = len(made) % 4
        if kind == 0:
            s = "".join(rng.choice(words) + rng.choice(glue) for _ in range(rng.randint(2, 8)))
        elif kind == 1:
            s = "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randint(3, 20)))
        elif kind == 2:
            s = rng.choice(ODD)[:20] + rng.choice(glue) + rng.choice(words) + rng.choice(ODD)[:20]
        else:
            s = "".join(rng.choice(words)[: rng.randint(1, 5)] + rng.choice("0123456789 .ABz\n") for _ in range(6))
        made.append(s)
    return fixed + made


def voxtral_file(source, vocab, vocab_size):
    special = [
        {"rank": i, "token_str": NAMED.get(i, f"<SPECIAL_{i}>"), "is_control": True} for i in range(max(NAMED) + 1)
    ]
    return {
        "config": {
            "pattern": source["config"]["pattern"],
            "num_vocab_tokens": len(vocab),
            "default_vocab_size": vocab_size,
            "default_num_special_tokens": SPECIALS,
            "version": "v7",
        },
        "vocab": vocab,
        "special_tokens": special,
        "audio": AUDIO,
    }


def write_lines(path, tokenizer):
    """One vocabulary entry a line, so that a change can be read."""
    head = {k: v for k, v in tokenizer.items() if k != "vocab"}
    dump = lambda v: json.dumps(v, ensure_ascii=True, separators=(",", ":"))
    entries = ",\n".join(dump(v) for v in tokenizer["vocab"])
    body = ",\n".join(f'"{k}":{dump(v)}' for k, v in head.items())
    path.write_text("{" + body + ',\n"vocab":[\n' + entries + "\n]}\n")


def sequences(tokenizer, seed):
    """Random ids, special ones and broken characters among them, and their text."""
    rng = random.Random(seed)
    out = []
    for i in range(60):
        pool = [(SPECIALS, SPECIALS + 255), (SPECIALS, tokenizer.n_words - 1), (SPECIALS + 128, SPECIALS + 255)]
        ids = [rng.randint(*pool[i % 3]) for _ in range(rng.randint(1, 20))]
        if i % 2:
            for _ in range(3):
                ids.insert(rng.randint(0, len(ids)), rng.choice(list(NAMED)))
        out.append(
            {
                "ids": ids,
                "text": tokenizer.decode(ids, SpecialTokenPolicy.IGNORE),
                "kept": tokenizer.decode(ids, SpecialTokenPolicy.KEEP),
            }
        )
    return out


def prompts(path):
    """Audio prompts. Runs of one id are written as [id, count]."""
    tokenizer = MistralTokenizer.from_file(str(path))

    def runs(ids):
        out = []
        for i in ids:
            if out and out[-1][0] == i:
                out[-1][1] += 1
            else:
                out.append([int(i), 1])
        return out

    def sound(seconds):
        return Audio(np.zeros(int(seconds * 16000), dtype=np.float32), 16000, format="wav")

    out = []
    for language in [None, "en", "fr", "de", "es", "it", "pt", "nl", "hi", "ar"]:
        for seconds, chunks in [(1.0, 1), (30.0, 1), (61.7, 3)] if language in (None, "nl") else [(1.0, 1)]:
            request = TranscriptionRequest(
                model="x", language=language, audio=RawAudio.from_audio(sound(seconds)), temperature=0.0
            )
            ids = tokenizer.encode_transcription(request).tokens
            out.append({"language": language, "audio_tokens": 375 * chunks, "ids": runs(ids)})
    text = "Translate this to English."
    parts = [TextChunk(text="Listen:"), AudioChunk.from_audio(sound(1)), AudioChunk.from_audio(sound(31)), TextChunk(text=text)]
    ids = tokenizer.encode_chat_completion(ChatCompletionRequest(messages=[UserMessage(content=parts)])).tokens
    out.append({"chat": ["Listen:", 375, 750, text], "ids": runs(ids)})
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", type=Path)
    arguments = parser.parse_args()
    source = json.loads(SOURCE.read_text())
    OUT.mkdir(parents=True, exist_ok=True)

    small = OUT / "tekken.json"
    vocab = [dict(v, token_str=None) for v in source["vocab"][:LISTED]]
    write_lines(small, voxtral_file(source, vocab, SPECIALS + KEPT))
    reduced = Tekkenizer.from_file(small)

    with tempfile.TemporaryDirectory() as folder:
        full_path = arguments.full or Path(folder) / "tekken.json"
        full_path.write_text(
            json.dumps(voxtral_file(source, source["vocab"], source["config"]["default_vocab_size"]), indent=1)
        )
        full = Tekkenizer.from_file(full_path)
        golden = {
            "made_by": f"mistral-common {mistral_common.__version__}, {SOURCE.name}",
            "strings": [
                {
                    "text": s,
                    "reduced": reduced.encode(s, bos=False, eos=False),
                    "full": full.encode(s, bos=False, eos=False),
                }
                for s in strings()
            ],
            "sequences": {"reduced": sequences(reduced, 1), "full": sequences(full, 2)},
            "prompts": {"reduced": prompts(small), "full": prompts(full_path)},
        }
    assert len(golden["strings"]) == 500
    for case in golden["strings"]:
        assert reduced.decode(case["reduced"]) == case["text"] == full.decode(case["full"])
    dump = lambda v: json.dumps(v, ensure_ascii=False, separators=(",", ":"))
    lists = lambda items: "[\n" + ",\n".join(dump(i) for i in items) + "\n]"
    pairs = lambda d: "{" + ",\n".join(f'"{k}":{lists(v)}' for k, v in d.items()) + "}"
    parts = [
        f'"made_by":{dump(golden["made_by"])}',
        f'"strings":{lists(golden["strings"])}',
        f'"sequences":{pairs(golden["sequences"])}',
        f'"prompts":{pairs(golden["prompts"])}',
    ]
    text = "{" + ",\n".join(parts) + "}\n"
    assert json.loads(text) == golden
    (OUT / "golden.json").write_text(text)


if __name__ == "__main__":
    main()
