"""The page, put together from its parts; there is nothing to build and to fetch."""

import base64
import hashlib
import re
from importlib import resources

# In this order: each uses what is above it.
_SCRIPTS = ("format.js", "chart.js", "parts.js", "live.js")


def page() -> tuple[str, str]:
    """The page, and a policy that lets a browser run its own code and no other."""
    text = _read("page.html")
    for tag, names in (("style", ("page.css",)), ("script", _SCRIPTS)):
        inside = "".join(map(_read, names))
        text = text.replace(f"<{tag}></{tag}>", f"<{tag}>\n{inside}</{tag}>")
    script, style = (_fingerprint(text, tag) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return text, policy


def _read(name: str) -> str:
    return resources.files(__package__).joinpath("static", name).read_text("utf-8")


def _fingerprint(text: str, tag: str) -> str:
    parts = re.findall(f"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)
    digests = (hashlib.sha256(part.encode()).digest() for part in parts)
    return " ".join(f"'sha256-{base64.b64encode(d).decode()}'" for d in digests)
