"""Which addresses are those of this machine, for which no proxy is asked."""

import ipaddress


def is_this_machine(host: str) -> bool:
    """Whether a host's name or address is this machine's own, `0.0.0.0` included, which servers print as theirs."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or address.is_unspecified or (mapped is not None and mapped.is_loopback)
