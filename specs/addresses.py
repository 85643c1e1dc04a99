"""Where a server may be reached: on the loopback as it is, elsewhere encrypted."""

import ipaddress
from urllib.parse import urlsplit


def is_loopback(url: str) -> bool:
    """Return whether an address is of this machine alone; False for what is no address."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port  # ValueError where the port is none
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_road(url: str) -> bool:
    """Return whether what is sent to an address can be read and changed on its way."""
    return not url.startswith("https://") and not is_loopback(url)
