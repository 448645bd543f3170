"""What the gateway answers when it cannot do what was asked: OpenAI's shape for inference, RFC 9457 for operations."""

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

RETRY_AFTER_S = 5
"""Seconds a client is asked to stay away when no node is free."""


class ApiError(Exception):
    """An inference request failed; `status`, `code` and `param` go to the client as OpenAI's errors do."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    @property
    def body(self) -> bytes:
        """The error as JSON."""
        return orjson.dumps({
            "error": {"message": str(self), "type": _kind(self.status), "param": self.param, "code": self.code}
        })  # fmt: skip


class EngineRefusal(ApiError):
    """The engine's own refusal, passed on unchanged."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status, "the engine refused the request", code="engine_refused")
        self._body = body

    @property
    def body(self) -> bytes:
        """The engine's own words, or ours around them when they are not an error in OpenAI's shape."""
        try:
            shaped = "error" in orjson.loads(self._body)
        except (ValueError, TypeError):
            shaped = False
        if shaped:
            return self._body
        said = self._body[:500].decode("utf-8", "replace")
        return ApiError(self.status, f"the engine refused the request: {said}", code=self.code).body


class Problem(Exception):
    """An operations request failed (RFC 9457); `extra` members are added to the document."""

    def __init__(
        self, status: int, title: str, detail: str, *, headers: Mapping[str, str] | None = None, **extra: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title
        self.headers = dict(headers or {})
        self.extra = extra


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """Return the 400 for a field that is wrong."""
    return ApiError(400, message, code=code, param=param)


def unavailable(message: str, code: str = "no_node_available") -> ApiError:
    """Return the 503 that asks the client to come back."""
    return ApiError(503, message, code=code, headers={"Retry-After": str(RETRY_AFTER_S)})


def api_response(error: ApiError) -> Response:
    """Return an ApiError as an HTTP answer."""
    return Response(error.body, error.status, error.headers, "application/json")


def problem_response(problem: Problem) -> Response:
    """Return a Problem as an HTTP answer."""
    document = {
        "type": "about:blank",
        "title": problem.title,
        "status": problem.status,
        "detail": str(problem),
        **problem.extra,
    }
    return Response(orjson.dumps(document), problem.status, problem.headers, "application/problem+json")


def _kind(status: int) -> str:
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    return kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
