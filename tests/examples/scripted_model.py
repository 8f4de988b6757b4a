"""A language model whose answers a test has written, behind the HTTP APIs of Anthropic and OpenAI.

The examples and the frameworks in them do what they do with a real model: they only have another address in their
environment. What they send is kept: it is what a model would have seen.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

USAGE = {"input_tokens": 1, "output_tokens": 1}


@dataclass(frozen=True)
class Call:
    """A tool that the model calls."""

    tool: str
    arguments: dict[str, Any]


Answer = str | Call


class ScriptedModel:
    """Gives one answer after the other. A request more than there are answers is refused."""

    def __init__(self, answers: list[Answer]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.address = ""
        self._answers = answers
        self._lock = Lock()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": self.address,
            "ANTHROPIC_API_KEY": "scripted",
            "OPENAI_BASE_URL": f"{self.address}/v1",
            "OPENAI_API_KEY": "scripted",
            "NO_PROXY": "127.0.0.1",
        }

    @property
    def is_done(self) -> bool:
        return len(self.requests) == len(self._answers)

    def results(self) -> list[dict[str, Any]]:
        """The results of the tools, in the order of the calls, as Anthropic's API has them."""
        blocks = [
            block
            for message in self.requests[-1]["messages"]
            if message["role"] == "user" and isinstance(message["content"], list)
            for block in message["content"]
        ]
        return [block for block in blocks if block["type"] == "tool_result"]

    def reply(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            number = len(self.requests)
            self.requests.append(request)
        answer = self._answers[number]
        if path.startswith("/v1/messages"):
            return _of_anthropic(answer, number, request["model"])
        assert path == "/v1/chat/completions", path
        assert isinstance(answer, str)
        message = {"role": "assistant", "content": answer}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        names = {"id": f"chat-{number}", "object": "chat.completion", "created": 0, "model": request["model"]}
        return {**names, "choices": [choice], "usage": usage}


def _of_anthropic(answer: Answer, number: int, model: str) -> dict[str, Any]:
    if isinstance(answer, str):
        content, reason = {"type": "text", "text": answer}, "end_turn"
    else:
        call = {"id": f"toolu_{number}", "name": answer.tool, "input": answer.arguments}
        content, reason = {"type": "tool_use", **call}, "tool_use"
    names = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": model}
    return {**names, "content": [content], "stop_reason": reason, "stop_sequence": None, "usage": USAGE}


def _as_events(message: dict[str, Any]) -> bytes:
    """A message of Anthropic's API as a stream of events: frameworks stream where an answer may become long."""
    block = message["content"][0]
    if block["type"] == "text":
        delta = {"type": "text_delta", "text": block["text"]}
        begun = {**block, "text": ""}
    else:
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        begun = {**block, "input": {}}
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events = [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": begun},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": USAGE},
        {"type": "message_stop"},
    ]
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


@contextmanager
def scripted(*answers: Answer) -> Iterator[ScriptedModel]:
    model = ScriptedModel(list(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            streams = request.get("stream", False)
            try:
                message = model.reply(self.path.partition("?")[0], request)
            except (AssertionError, IndexError) as refusal:  # 400: clients do not try again
                error = {"type": "invalid_request_error", "message": str(refusal)}
                return self.send(400, "application/json", json.dumps({"type": "error", "error": error}).encode())
            if streams:
                return self.send(200, "text/event-stream", _as_events(message))
            return self.send(200, "application/json", json.dumps(message).encode())

        def send(self, status: int, media_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", media_type)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        model.address = f"http://127.0.0.1:{server.server_address[1]}"
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield model
        finally:
            server.shutdown()
