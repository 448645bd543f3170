"""Who may call what: the dependency behind every route that needs a key."""

from collections.abc import Callable

from fastapi import Request

from api.errors import ApiError, Problem
from recovery.auth import Key, Keys, Scope


def inference_key(request: Request) -> Key | None:
    """Require a key with scope inference. Raises ApiError: 401 without a valid key, 403 without the scope."""
    return _check(request, Scope.INFERENCE, lambda status, message, code: ApiError(
        status, message, code=code, headers=_challenge(status)
    ))  # fmt: skip


def operator_key(request: Request) -> Key | None:
    """Require a key with scope operator. Raises Problem: 401, 403."""
    return _check(request, Scope.OPERATOR, lambda status, message, code: Problem(
        status, "Not authorised", message, headers=_challenge(status), code=code
    ))  # fmt: skip


def _check(request: Request, scope: Scope, refuse: Callable[[int, str, str], Exception]) -> Key | None:
    keys: Keys = request.app.state.keys
    if keys.open_to_all:
        return None
    kind, _, presented = request.headers.get("authorization", "").partition(" ")
    key = keys.find(presented.strip()) if kind.lower() == "bearer" and presented else None
    if key is None:
        raise refuse(401, "a valid API key is required: Authorization: Bearer <key>", "invalid_api_key")
    if scope not in key.scopes:
        raise refuse(403, f"the key {key.name!r} lacks the scope {scope.value!r}", "missing_scope")
    return key


def _challenge(status: int) -> dict[str, str]:
    return {"WWW-Authenticate": "Bearer"} if status == 401 else {}
