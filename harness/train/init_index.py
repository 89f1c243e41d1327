"""Random weights as a pure function of (seed, parameter name, global index).

Whoever holds an element computes the same bits for it: any rank, any world size, any strategy. No
generator state exists, so none has to be agreed upon.

An element's hash is splitmix64 (Steele, Lea, Flood, OOPSLA 2014) at counter ``index`` from a start
that a digest of seed and name gives. Its normal value is the quantile function, piecewise linear
over 256 pieces per octave of the tail probability (largest error 3e-6 standard deviations). Why not
Box-Muller: vectorised log and cos differ from their scalar tails in the last bit, so a value would
depend on where a shard happens to begin. Integer arithmetic, table look-up and one IEEE multiply
and add do not, on any device.
"""

from __future__ import annotations

import functools
import hashlib
from statistics import NormalDist

import torch

# Elements drawn at a time. Some seven temporaries of 8 bytes each, 7 MiB in all, stay in a core's
# cache; 2**20 took twice the time per element.
CHUNK_ELEMENTS = 1 << 17

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_PROBABILITY_BITS = 52
_PIECE_BITS = 8
_MANTISSA_BITS = 52
_EXPONENT_BIAS = 1023


def stream_key(seed: int, name: str) -> int:
    """Where the stream of parameter ``name`` starts: 64 bits of BLAKE2b, as a signed integer."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


@torch.no_grad()
def fill_normal(out: torch.Tensor, *, key: int, start: int, std: float) -> None:
    """Fill ``out`` with the values at global indices start, start + 1, ... of one stream.

    Args:
        out: Contiguous fp32 tensor of any shape (it may be empty), overwritten in C order.
        key: What ``stream_key`` gave.
        start: Global flat index of the first element of ``out``.
        std: Standard deviation; the mean is zero.
    """
    flat = out.view(-1)
    for begin in range(0, flat.numel(), CHUNK_ELEMENTS):
        chunk = flat[begin : begin + CHUNK_ELEMENTS]
        chunk.copy_(_standard_normal(key, start + begin, chunk.numel(), out.device).mul_(std))


def _standard_normal(key: int, start: int, count: int, device: torch.device) -> torch.Tensor:
    hash_n = _hash(key, start, count, device)
    is_negative = (hash_n & 1).bool()
    # An odd number of 53 bits, exact in fp64: twice the tail probability in units of 2**-54,
    # never 0 and never 1/2.
    odd = _shift_right(hash_n, 64 - _PROBABILITY_BITS).mul_(2).add_(1).double()
    piece = odd.view(torch.int64) >> (_MANTISSA_BITS - _PIECE_BITS)
    piece -= _EXPONENT_BIAS << _PIECE_BITS
    offset, slope = _quantile_table(device)
    value = odd.mul_(slope[piece]).add_(offset[piece])
    return torch.where(is_negative, -value, value)


def _hash(key: int, start: int, count: int, device: torch.device) -> torch.Tensor:
    first = _signed(key + (start + 1) * _GOLDEN)
    # int64 products and sums wrap modulo 2**64, as splitmix64 asks for.
    x = torch.arange(count, dtype=torch.int64, device=device).mul_(_signed(_GOLDEN)).add_(first)
    x = x.bitwise_xor_(_shift_right(x, 30)).mul_(_signed(_MIX_1))
    x = x.bitwise_xor_(_shift_right(x, 27)).mul_(_signed(_MIX_2))
    return x.bitwise_xor_(_shift_right(x, 31))


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    # torch shifts int64 arithmetically; the mask drops the copies of the sign bit.
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


@functools.cache
def _quantile_table(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    # Per piece, offset and slope of the chord of -quantile(y / 2**54) over y.
    normal = NormalDist()
    pieces = 1 << _PIECE_BITS
    nodes = [
        (1 << octave) * (1.0 + piece / pieces)
        for octave in range(_PROBABILITY_BITS + 1)
        for piece in range(pieces)
    ]
    nodes.append(2.0 ** (_PROBABILITY_BITS + 1))
    y = torch.tensor(nodes, dtype=torch.float64)
    z = torch.tensor([-normal.inv_cdf(n / 2.0**54) for n in nodes], dtype=torch.float64)
    slope = z.diff() / y.diff()
    offset = z[:-1] - slope * y[:-1]
    return offset.to(device), slope.to(device)
