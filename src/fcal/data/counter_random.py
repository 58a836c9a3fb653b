"""Random numbers by position: item i of a stream is the same whoever asks for it, in whatever order."""

import numpy as np
from numpy.typing import NDArray

_WORDS_PER_COUNT = 4  # Philox makes four 64-bit words of each value of its counter
_MANTISSA = 53


def uniforms(seed: int, start: int, stop: int, width: int) -> NDArray[np.float64]:
    """Uniform numbers within (0, 1) of the items ``start`` to ``stop - 1``, ``width`` for each.

    Philox computes a word from its key and its position alone, and the words become numbers by integer arithmetic, so
    they are the same on every machine.

    Args:
        seed: The stream, a non-negative integer below 2**64.
        start: First item.
        stop: One after the last item.
        width: Numbers per item.

    Returns:
        Shape ``(stop - start, width)``.

    Example:
        >>> whole = uniforms(7, 0, 10, width=3)
        >>> bool((whole[4:6] == uniforms(7, 4, 6, width=3)).all())
        True
    """
    counts = -(-width // _WORDS_PER_COUNT)
    stream = np.random.Philox(key=seed)
    stream.advance(start * counts)
    words = stream.random_raw((stop - start) * counts * _WORDS_PER_COUNT)
    table = words.reshape(stop - start, counts * _WORDS_PER_COUNT)[:, :width]
    return ((table >> np.uint64(64 - _MANTISSA)).astype(np.float64) + 0.5) * 2.0**-_MANTISSA
