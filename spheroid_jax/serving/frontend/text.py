"""Bytes as text: a model of bytes may write what isn't UTF-8, and JSON can't hold that.

So every answer has both: text, with U+FFFD where bytes are no UTF-8, and the bytes
themselves in base64.
"""

import base64
import codecs


def lossy(data: bytes) -> str:
    r"""The text of bytes; what isn't UTF-8 becomes U+FFFD.

    >>> lossy(b"a\xff") == "a\ufffd"
    True
    """
    return data.decode("utf-8", "replace")


def exact(data: bytes) -> str:
    """The bytes in base64."""
    return base64.b64encode(data).decode("ascii")


class TextStream:
    r"""Text of bytes that come in pieces; a character is given out once it is whole.

    The pieces of text make up the ``lossy`` text of all bytes, however they were cut.

    >>> stream = TextStream()
    >>> stream.add(b"\xc3"), stream.add(b"\xa9"), stream.end()
    ('', 'é', '')
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def waits(self) -> bool:
        """Whether the last bytes are of a character that isn't whole."""
        return bool(self._decoder.getstate()[0])

    def add(self, data: bytes) -> str:
        """The characters that are whole now."""
        return self._decoder.decode(data)

    def end(self) -> str:
        """What is left: U+FFFD for a character that was never finished."""
        return self._decoder.decode(b"", final=True)


def names(data: bytes) -> list[str]:
    r"""Each byte as a token's name, as OpenAI writes tokens that are no text.

    >>> names(b"a\xff")
    ['a', 'bytes:\\xff']
    """
    return [chr(b) if b < 128 else f"bytes:\\x{b:02x}" for b in data]
