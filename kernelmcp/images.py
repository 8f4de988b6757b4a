"""Pictures for a result: checked, and made small enough to fit. Runs in a worker thread when it has to scale.

The bytes come from a guest: only PNG and JPEG are opened, and never one that would unpack to more than a fixed size.
Above: results. Below: Pillow.
"""

import base64
import binascii
import io
import warnings

IMAGE_TYPES = {"image/png": "PNG", "image/jpeg": "JPEG"}
# Larger pictures are refused by the models' APIs (8000) or scaled down by them anyway (about 1600).
MAX_SIDE_PIXELS = 4096
# 64 million pixels unpack to 256 MB.
MAX_PIXELS = 64_000_000
SCALE_ATTEMPTS = 6
JPEG_QUALITY = 80
MIN_SIDE_PIXELS = 16


def decode(encoded: str) -> bytes | None:
    try:
        return base64.b64decode("".join(encoded.split()), validate=True)
    except (binascii.Error, ValueError):
        return None


def fits(data: bytes, max_bytes: int) -> bool:
    """Whether a picture can go out as it is. `max_bytes` counts its base64 form."""
    if 4 * len(data) > 3 * max_bytes:
        return False
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return max(int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")) <= MAX_SIDE_PIXELS
    return data[:2] == b"\xff\xd8"


def shrink(data: bytes, max_bytes: int) -> tuple[str, bytes] | None:
    """The picture scaled until its base64 form has at most `max_bytes`: (mime type, bytes), or None. Blocking."""
    from PIL import Image  # 30 ms to import, and most results have no large picture

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data), formats=["PNG", "JPEG"])
            if image.width * image.height > MAX_PIXELS:
                return None
            image.load()
    except Exception:  # noqa: BLE001  # whatever a hostile file makes of the decoder
        return None
    kind = image.format or "PNG"
    limit = 3 * max_bytes // 4
    scale = min(1.0, MAX_SIDE_PIXELS / max(image.size))
    for attempt in range(SCALE_ATTEMPTS):
        size = (max(MIN_SIDE_PIXELS, int(image.width * scale)), max(MIN_SIDE_PIXELS, int(image.height * scale)))
        # A picture that stays too large as PNG is a photograph or noise.
        target = kind if attempt < 2 else "JPEG"
        out = io.BytesIO()
        scaled = image.resize(size, Image.Resampling.LANCZOS) if size != image.size else image
        if target == "JPEG":
            scaled.convert("RGB").save(out, "JPEG", quality=JPEG_QUALITY)
        else:
            (scaled.convert("RGBA") if scaled.mode == "P" else scaled).save(out, "PNG")
        if out.tell() <= limit:
            return f"image/{target.lower()}", out.getvalue()
        scale *= min(0.8, (limit / out.tell()) ** 0.5)
    return None
