"""Serves a config and a tokenizer in the shape of Qwen3-8B for vLLM's `--load-format=dummy`: `python shape.py FOLDER PORT`."""

from __future__ import annotations

import json
import runpy
import sys
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

MAKER = Path(__file__).parents[2] / "backends" / "tiny_tokenizer.py"

#: The shape of Qwen3-8B. Its vocabulary is that of the small tokenizer, rounded up.
SHAPE = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def main() -> None:
    folder = Path(sys.argv[1])
    runpy.run_path(str(MAKER))["make"](folder)
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **SHAPE}))
    HTTPServer(("127.0.0.1", int(sys.argv[2])), SimpleHTTPRequestHandler).serve_forever()


if __name__ == "__main__":
    main()
