"""Writes the script of the mocker's answers: `python script.py MODEL FILE`, in Dynamo's environment because of its tokenizers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

CALL = '<tool_call>\n{{"name": "find", "arguments": {{"city": "{}"}}}}\n</tool_call>'

#: Answers by the name that a request has in `nvext.annotations`.
SAYINGS = {
    "text": "The sky is blue, and the sea is as well.",
    "call": CALL.format("Rome"),
    "calls": CALL.format("Rome") + "\n" + CALL.format("Oslo"),
    "reasoning": "<think>I look it up.</think>It is Rome.",
    "reasoning and call": "<think>I look it up.</think>" + CALL.format("Rome"),
    "reasoning, cut": "<think>I look",
}


def rows(tokenizer: Path) -> list[str]:
    from tokenizers import Tokenizer

    words = Tokenizer.from_file(str(tokenizer))
    written = []
    for name, text in SAYINGS.items():
        ids = words.encode(text).ids
        row = {"request_id": name, "timestamp": 0, "input_length": 1, "hash_ids": [1]}
        written.append(json.dumps({**row, "output_length": len(ids), "output_token_ids": ids}))
    return written


if __name__ == "__main__":
    Path(sys.argv[2]).write_text("\n".join(rows(Path(sys.argv[1]) / "tokenizer.json")) + "\n")
