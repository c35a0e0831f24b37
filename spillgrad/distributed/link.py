"""What is known of the network between ranks: its speed, its latency, and what messages cost the processor."""

import dataclasses
import re

from spillgrad.errors import ArgumentError

# Of the 1538 bytes that a full Ethernet frame takes on the wire, 1448 are data of a TCP connection.
_DATA_SHARE = 1448 / 1538
_RATES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
_NUMBER = r"\s*(\d+(?:\.\d+)?)\s*"
# What messages cost a core, measured on an AMD EPYC (Zen 3) with Open MPI 5.0 over TCP: of exchanges of a thousand
# messages, each took 30 µs; of sums of buckets of 25 MiB, each byte took 2.2 ns, copies of the gradients included. The
# machine was busy with other programs, so these are the least of several measurements.
_BUSY_S_PER_MESSAGE, _BUSY_S_PER_BYTE = 3e-5, 2.2e-9
# How long MPI's thread sleeps between two looks at its messages.
LOOK_S = 3e-4


@dataclasses.dataclass(frozen=True)
class Link:
    """The network, as one rank sees it; it sends and receives at once, each at the full speed.

    Parameters
    ----------
    bytes_per_s : float
        Bytes that a rank sends in a second, while it receives as many.
    latency_s : float
        Seconds from the first byte sent to the first byte received.
    busy_s_per_byte : float
        Seconds of a core for each byte sent, and one received: copies, digests and sums.
    busy_s_per_message : float
        Seconds of a core for each message sent, and one received.
    look_s : float, default 0.0003
        Seconds until a rank notices that a message has arrived.
    """

    bytes_per_s: float
    latency_s: float
    busy_s_per_byte: float = _BUSY_S_PER_BYTE
    busy_s_per_message: float = _BUSY_S_PER_MESSAGE
    look_s: float = LOOK_S


def parse_link(text: str) -> float:
    """Return how many bytes of data a second a network carries.

    Parameters
    ----------
    text : str
        A speed such as "1Gbit", "100Mbit/s" or "117MB/s". Of bits, Ethernet and TCP take 6 %; bytes count in full.

    Returns
    -------
    float
        Bytes in a second.

    Raises
    ------
    ArgumentError
        If `text` is not a speed.
    """
    match = re.fullmatch(_NUMBER + r"([kmgt]?)(bit|bits|bps|b|byte|bytes)(?:/s)?\s*", text, re.ASCII | re.IGNORECASE)
    is_bare_b = match is not None and match[3].lower() == "b"
    if match is None or not float(match[1]) or (is_bare_b and match[3] != "B"):
        raise ArgumentError(f"link: got {text!r}; wanted a speed such as '1Gbit', '100Mbit' or '117MB/s'")
    units = float(match[1]) * _RATES[match[2].lower()]
    return units if is_bare_b or "byte" in match[3].lower() else units / 8 * _DATA_SHARE


def parse_latency(text: str) -> float:
    """Return a duration in seconds.

    Parameters
    ----------
    text : str
        A number with a unit: "50us", "0.2ms" or "1s".

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    ArgumentError
        If `text` is not a duration.
    """
    match = re.fullmatch(_NUMBER + r"([a-zµμ]+)\s*", text.strip().lower())
    if match is None or match[2] not in _SECONDS:
        raise ArgumentError(f"latency: got {text!r}; wanted a time such as '50us', '0.2ms' or '1s'")
    return float(match[1]) * _SECONDS[match[2]]
