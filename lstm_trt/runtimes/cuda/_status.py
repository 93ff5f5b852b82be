"""The status that each call of cuda-bindings returns, as a value or an error."""

from typing import Any

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


def checked(driver: Any, name: str, result: tuple, failure: type, exhausted: type) -> Any:
    """The value of a call of `driver`, cuda-bindings, a tuple unless it is one; raises `exhausted`
    or `failure`."""
    status, *values = result
    if status:
        _, text = driver.cuGetErrorString(status)
        kind = exhausted if int(status) == _OUT_OF_MEMORY else failure
        raise kind(f"{name} failed: {text.decode() if text else int(status)}")
    return values[0] if len(values) == 1 else tuple(values)
