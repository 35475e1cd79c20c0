"""POST /generate and the OpenAI forms: from the request's body to events in SGLang's shapes."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

from sglang.simulation.tokens import encode
from sglang.srt.entrypoints.http_server import Exchange
from sglang.srt.managers.schedule_batch import Req

DEFAULT_NEW_TOKENS, OPENAI_DEFAULT_TOKENS = 128, 16


class BadRequestError(ValueError):
    """The body cannot be served; the text is SGLang's message."""


def parse(body: bytes) -> Dict[str, Any]:
    """The body as a mapping. Raises BadRequestError."""
    try:
        value = json.loads(body or b"null")
    except ValueError as error:
        raise BadRequestError(f"JSON decode error: {error}") from error
    if not isinstance(value, dict):
        raise BadRequestError("Input should be a valid dictionary or object to extract fields from")
    return value


def _prompts(texts: Any, ids: Any) -> Tuple[List[List[int]], bool]:
    """The prompts as tokens, and whether the body has a list of them. Raises BadRequestError."""
    many = isinstance(texts, list) or (isinstance(ids, list) and bool(ids) and isinstance(ids[0], list))
    if texts is not None:
        found = texts if many else [texts]
        if not found or not all(isinstance(text, str) for text in found):
            raise BadRequestError("text should be a string or a list of strings.")
        return [encode(text) for text in found], many
    found = ids if many else [ids]
    if not all(isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt) for prompt in found):
        raise BadRequestError("input_ids should be a list of integers or a list of such lists.")
    return found, many


class Generator:
    """Turns bodies into requests of the scheduler, and their output into answers."""

    def __init__(self, add: Callable[[Req], None], abort: Callable[[Req], None], settings: Dict[str, Any]) -> None:
        """``settings``: model, weight_version, context, vocabulary salt (``salt(temperature)``), eos_after, metrics,
        draft_tokens (None without speculation), incremental, stream_interval."""
        self._add, self._abort, self._settings = add, abort, settings

    def request(
        self, prompt: List[int], limit: Any, sampling: Dict[str, Any], on_output: Callable[[Req], None], rid: str = ""
    ) -> Req:
        """A checked request. Raises BadRequestError."""
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
            raise BadRequestError(f"max_new_tokens must be at least 0, got {limit}.")
        context = self._settings["context"]
        if len(prompt) >= context:
            raise BadRequestError(
                f"The input ({len(prompt)} tokens) is longer than the model's context length ({context} tokens)."
            )
        total = len(prompt) + limit
        if total > context:
            raise BadRequestError(
                f"Requested token count exceeds the model's maximum context length of {context} tokens. "
                f"You requested a total of {total} tokens: {len(prompt)} tokens from the input messages and {limit} "
                "tokens for the completion."
            )
        return Req(
            prompt,
            max(1, limit),
            bool(sampling.get("ignore_eos")),
            self._settings["salt"](sampling),
            self._settings["eos_after"],
            on_output,
            rid,
        )

    # ------------------------------------------------------------------ native
    def generate(self, exchange: Exchange, body: Dict[str, Any]) -> None:
        """``/generate``. Raises BadRequestError."""
        sampling = body.get("sampling_params") or {}
        if not isinstance(sampling, dict):
            raise BadRequestError("sampling_params should be a mapping.")
        texts, ids = body.get("text"), body.get("input_ids")
        if (texts is None) == (ids is None):
            raise BadRequestError("Either text, input_ids or input_embeds should be provided.")
        prompts, many = _prompts(texts, ids)
        if many and body.get("stream"):
            raise BadRequestError("The simulator does not stream batches: send one prompt a request.")
        if body.get("stream"):
            self._stream(exchange, body, prompts[0], sampling)
            return
        answers: List[Optional[Dict[str, Any]]] = [None] * len(prompts)

        def done(place: int) -> Callable[[Req], None]:
            def take(request: Req) -> None:
                if request.finish is not None:
                    answers[place] = {
                        "text": "".join(request.pieces),
                        "output_ids": request.ids,
                        "meta_info": self.meta(request),
                    }
                    if all(answer is not None for answer in answers):
                        exchange.json(200, answers if many else answers[0])

            return take

        limits = [self._limit(sampling)] * len(prompts)
        requests = [
            self.request(prompt, limit, sampling, done(place), str(body.get("rid") or ""))
            for place, (prompt, limit) in enumerate(zip(prompts, limits))
        ]
        self._submit(exchange, requests)

    @staticmethod
    def _limit(sampling: Dict[str, Any]) -> Any:
        return sampling.get("max_new_tokens", DEFAULT_NEW_TOKENS)

    def _submit(self, exchange: Exchange, requests: List[Req]) -> None:
        for request in requests:
            exchange.gone.append(partial(self._abort, request))
            self._add(request)

    def _stream(self, exchange: Exchange, body: Dict[str, Any], prompt: List[int], sampling: Dict[str, Any]) -> None:
        text, ids, sent = [""], [""], [0]
        incremental, interval = self._settings["incremental"], self._settings["stream_interval"]

        def output(request: Req) -> None:
            new = len(request.ids) - sent[0]
            if request.finish is None and sent[0] and new < interval:
                return
            piece, more = "".join(request.pieces[sent[0] :]), ",".join(map(str, request.ids[sent[0] :]))
            text[0] = piece if incremental else text[0] + piece
            ids[0] = more if incremental or not ids[0] else f"{ids[0]},{more}"
            first, sent[0] = not sent[0], len(request.ids)
            meta = self._meta_text(request, first)
            event = f'{{"text":"{text[0]}","output_ids":[{ids[0]}],"meta_info":{meta}}}'
            exchange.event(event.encode(), last=request.finish is not None)

        request = self.request(prompt, self._limit(sampling), sampling, output, str(body.get("rid") or ""))
        exchange.start_stream()
        self._submit(exchange, [request])

    def _meta_text(self, request: Req, first: bool) -> str:
        """meta_info of an event; written by hand, as it is written for every token."""
        if request.finish is not None:
            return json.dumps(self.meta(request), separators=(",", ":"))
        queue = f'"queue_time":{request.queue_s},' if self._settings["metrics"] else ""
        sent = f',"response_sent_to_client_ts":{time.time()}' if first and self._settings["metrics"] else ""
        return (
            f'{{"id":{json.dumps(request.rid)},"finish_reason":null,"prompt_tokens":{len(request.prompt)},'
            f'"weight_version":{json.dumps(self._settings["weight_version"])},"num_retractions":0,{queue}"reasoning_tokens":0,'
            f'"completion_tokens":{len(request.ids)},"cached_tokens":{request.cached},'
            f'"cached_tokens_details":{{"device":{request.cached},"host":0}},"dp_rank":null{sent}}}'
        )

    def meta(self, request: Req) -> Dict[str, Any]:
        """meta_info of a finished request."""
        version, count = self._settings["weight_version"], len(request.ids)
        meta: Dict[str, Any] = {
            "id": request.rid,
            "finish_reason": request.finish,
            "prompt_tokens": len(request.prompt),
            "weight_version": version,
            "num_retractions": 0,
        }
        if self._settings["metrics"]:
            meta["queue_time"] = request.queue_s
        latency = (request.done_at or time.monotonic()) - request.arrived
        meta.update(
            {
                "reasoning_tokens": 0,
                "completion_tokens": count,
                "cached_tokens": request.cached,
                "weight_versions": [{"version": version, "start": 0, "end": count}],
                "cached_tokens_details": {"device": request.cached, "host": 0},
                "dp_rank": None,
                "e2e_latency": latency,
            }
        )
        draft_tokens = self._settings["draft_tokens"]
        if draft_tokens and request.verify_ct:
            proposed = request.verify_ct * (draft_tokens - 1)
            meta.update(
                {
                    "spec_accept_rate": request.correct / proposed,
                    "spec_accept_length": count / request.verify_ct,
                    "spec_num_correct_drafts": request.correct,
                    "spec_num_proposed_drafts": proposed,
                    "spec_verify_ct": request.verify_ct,
                    "spec_correct_drafts_histogram": list(request.histogram),
                }
            )
        if self._settings["metrics"]:
            meta.update(
                {
                    "request_received_ts": request.created,
                    "request_finished_ts": request.created + latency,
                    "response_sent_to_client_ts": time.time(),
                }
            )
        return meta

    # ------------------------------------------------------------------ OpenAI
    def openai(self, exchange: Exchange, body: Dict[str, Any], chat: bool) -> None:
        """``/v1/chat/completions`` or ``/v1/completions``. Raises BadRequestError."""
        key = "messages" if chat else "prompt"
        if body.get(key) in (None, [], ""):
            raise BadRequestError(
                f"[{{'type': 'missing', 'loc': ('body', '{key}'), 'msg': 'Field required', 'input': {body!r}}}]"
            )
        source = "\n".join(str(message.get("content") or "") for message in body[key]) if chat else body[key]
        if isinstance(source, list):
            source = source[0] if len(source) == 1 or isinstance(source[0], int) else "\n".join(map(str, source))
        prompt = list(body[key]) if not chat and isinstance(body[key][0], int) else encode(str(source))
        limit = (
            body.get("max_completion_tokens")
            or body.get("max_tokens")
            or (self._settings["context"] - len(prompt) if chat else OPENAI_DEFAULT_TOKENS)
        )
        shape = _Shape(chat, str(body.get("model") or self._settings["model"]), body, self._settings["weight_version"])
        sent = [0]

        def output(request: Req) -> None:
            if not body.get("stream"):
                if request.finish is not None:
                    exchange.json(200, shape.whole(request))
                return
            events = shape.events(request, sent[0])
            sent[0] = len(request.ids)
            for place, event in enumerate(events):
                exchange.event(
                    json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode(),
                    last=request.finish is not None and place == len(events) - 1,
                )

        request = self.request(prompt, limit, body, output, str(body.get("rid") or ""))
        if body.get("stream"):
            exchange.start_stream()
        self._submit(exchange, [request])


class _Shape:
    """Answers in OpenAI's form, with SGLang's own keys."""

    def __init__(self, chat: bool, model: str, body: Dict[str, Any], weight_version: str) -> None:
        self._chat, self._model, self._weight_version = chat, model, weight_version
        options = body.get("stream_options") or {}
        self._usage = bool(options.get("include_usage"))

    def _base(self, request: Req, kind: str) -> Dict[str, Any]:
        return {"id": request.rid, "object": kind, "created": int(request.created), "model": self._model}

    @staticmethod
    def _reason(request: Req) -> Optional[str]:
        return str(request.finish["type"]) if request.finish else None

    @staticmethod
    def usage(request: Req) -> Dict[str, Any]:
        """Token counts."""
        count = len(request.ids)
        return {
            "prompt_tokens": len(request.prompt),
            "total_tokens": len(request.prompt) + count,
            "completion_tokens": count,
            "prompt_tokens_details": None,
            "reasoning_tokens": 0,
        }

    def whole(self, request: Req) -> Dict[str, Any]:
        """The answer without streaming."""
        text, end = "".join(request.pieces), {"finish_reason": self._reason(request), "matched_stop": None}
        choice: Dict[str, Any] = {"index": 0}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None}
        else:
            choice["text"] = text
        choice.update({"logprobs": None, **end})
        return {
            **self._base(request, "chat.completion" if self._chat else "text_completion"),
            "choices": [choice],
            "usage": self.usage(request),
            "metadata": {"weight_version": self._weight_version},
        }

    def events(self, request: Req, sent: int) -> List[Dict[str, Any]]:
        """The events for what is new since ``sent`` tokens."""
        piece, kind = "".join(request.pieces[sent:]), "chat.completion.chunk" if self._chat else "text_completion"
        found = []
        if self._chat:
            deltas: List[Any] = (
                [] if sent else [({"reasoning_content": None, "role": "assistant", "content": ""}, None)]
            )
            deltas.append(({"reasoning_content": None, "content": piece}, None))
            if request.finish is not None:
                deltas.append(({"reasoning_content": None}, self._reason(request)))
            for delta, reason in deltas:
                found.append(
                    {
                        **self._base(request, kind),
                        "choices": [
                            {
                                "index": 0,
                                "delta": delta,
                                "logprobs": None,
                                "finish_reason": reason,
                                "matched_stop": None,
                            }
                        ],
                    }
                )
        else:
            found.append(
                {
                    **self._base(request, kind),
                    "choices": [
                        {
                            "index": 0,
                            "text": piece,
                            "logprobs": None,
                            "finish_reason": self._reason(request),
                            "matched_stop": None,
                        }
                    ],
                    "usage": None,
                }
            )
        if request.finish is not None and self._usage:
            found.append({**self._base(request, kind), "choices": [], "usage": self.usage(request)})
        return found
