"""Which model the scripts make: TINY_LAYOUT is `voxtral` (the embedded model) or `qwen2_5_omni`."""

import os

from data import WORK

NAME = os.environ.get("TINY_LAYOUT", "voxtral")
if NAME == "voxtral":
    from model import Config as config
    from model import Voxtral as Model
    from tokenizer import Tekken as Tokenizer

    TOKENIZER = WORK / "tekken.json"
    GUIDED = [(2, 0, 0.5), (4, 0, 0.15), (4, 1, 0.15), (6, 0, 0.15)]
elif NAME == "qwen2_5_omni":
    from omni import GUIDED, config  # noqa: F401
    from omni import ByteLevel as Tokenizer  # noqa: F401
    from omni import Omni as Model  # noqa: F401

    TOKENIZER = WORK / "tokenizer.json"
else:
    raise SystemExit(f"TINY_LAYOUT={NAME}: voxtral or qwen2_5_omni")
