"""The image in the body of a request, which is the image itself or a form with a file."""

from __future__ import annotations

from email.message import EmailMessage, Message
from email.parser import BytesParser

from .errors import Refused

FORM = "multipart/form-data"
HINT = f"post an image with its own content type, such as image/jpeg, or a file in {FORM}"


def check_type(content_type: str) -> None:
    """Raise where it is neither an image nor a form."""
    kind = _header(content_type).get_content_type()
    if not content_type or not (kind.startswith("image/") or kind == FORM):
        raise Refused(415, f"the content type is {content_type or 'missing'}: {HINT}")


def image_in(body: bytes, content_type: str) -> bytes:
    header = _header(content_type)
    if header.get_content_type() != FORM:
        return body
    boundary = header.get_boundary()
    if not boundary:
        raise Refused(400, "the form has no boundary")
    # Each part is between two boundaries, and the line before a boundary belongs to it.
    _, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("ascii", "replace"))
    files: list[bytes] = []
    for part in parts:
        if part.startswith(b"--"):  # the end of the form
            break
        head, found, content = part.partition(b"\r\n\r\n")
        name = _file_name(BytesParser().parsebytes(head.lstrip(b"\r\n"), headersonly=True))
        if found and name is not None and (name or content):  # else a browser's field that was left empty
            files.append(content)
    if len(files) > 1:
        raise Refused(
            400, f"the form has {len(files)} files, and an answer is of one: post each in a request"
        )
    if not files:
        raise Refused(400, f"the form has no file: {HINT}")
    return files[0]


def _file_name(part: Message) -> str | None:
    return part.get_filename() if part.get_content_disposition() == "form-data" else None


def _header(content_type: str) -> Message:
    header = EmailMessage()
    try:
        header["content-type"] = content_type
    except ValueError:  # of several lines
        raise Refused(400, "Content-Type is not one line") from None
    return header
