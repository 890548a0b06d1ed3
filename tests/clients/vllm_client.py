# SPDX-License-Identifier: Apache-2.0
"""Request completions of a vLLM server, and print the tokens and the seconds as JSON.

    python vllm_client.py URL REQUEST

REQUEST is the JSON of a completion. Waits for a server that is starting.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request


def main(url: str, request: str) -> None:
    while True:
        try:
            urllib.request.urlopen(f"{url}/health").close()
            break
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    headers = {"Content-Type": "application/json"}
    begun = time.monotonic()
    post = urllib.request.Request(f"{url}/v1/completions", request.encode(), headers)
    with urllib.request.urlopen(post) as answer:
        choices = json.load(answer)["choices"]
    seconds = time.monotonic() - begun
    print(json.dumps({"tokens": [each["token_ids"] for each in choices], "seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
