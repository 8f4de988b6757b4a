"""Scales a picture down until it fits."""

import io
import warnings
from contextlib import suppress

from PIL import ExifTags, Image, JpegImagePlugin, MpoImagePlugin, PngImagePlugin, TiffImagePlugin

# All that Pillow would import for such files (a camera's JPEG holds MPO and TIFF): later no file can be opened.
PLUGINS = (JpegImagePlugin, MpoImagePlugin, PngImagePlugin, TiffImagePlugin)

# By EXIF's number.
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# The models' APIs reject larger pictures (8000), or scale them down anyway (about 1600).
MAX_SIDE_PIXELS = 4096
# The first size to try for a picture that has too many bytes at its own size.
FIRST_SIDE_PIXELS = 2048
# 64 million pixels unpack to 256 MB.
MAX_PIXELS = 64_000_000
SCALE_ATTEMPTS = 6
JPEG_QUALITY = 80
# A picture that exceeds the limit by this factor as PNG is a photograph, or noise.
PHOTOGRAPH_RATIO = 1.5
MIN_SIDE_PIXELS = 16
# A larger picture is first reduced by an integer factor, strip by strip: scaling it at once takes a copy or two of it.
MAX_WHOLE_PIXELS = 16_000_000
STRIP_PIXELS = 4_000_000


def shrink(data: bytes, max_bytes: int) -> tuple[str, bytes] | None:
    """The picture in at most `max_bytes`, and its format (PNG or JPEG); None if that fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data), formats=["PNG", "JPEG"])
            return None if image.width * image.height > MAX_PIXELS else _shrink(image, max_bytes)
    except Exception:  # noqa: BLE001  # whatever a hostile file makes of the decoder
        return None


def _shrink(image: Image.Image, max_bytes: int) -> tuple[str, bytes] | None:
    kind = image.format or "PNG"
    turn = _turn(image)
    image = _reduced(image)
    scale = min(1.0, FIRST_SIDE_PIXELS / max(image.size))
    target = kind
    for _ in range(SCALE_ATTEMPTS):
        size = (max(MIN_SIDE_PIXELS, round(image.width * scale)), max(MIN_SIDE_PIXELS, round(image.height * scale)))
        scaled = image.resize(size, Image.Resampling.LANCZOS) if size != image.size else image
        scaled = scaled if turn is None else scaled.transpose(turn)
        encoded = _encoded(scaled, target)
        if len(encoded) <= max_bytes:
            return target, encoded
        if target == "PNG" and len(encoded) > PHOTOGRAPH_RATIO * max_bytes:
            target = "JPEG"
        else:
            scale *= min(0.8, (max_bytes / len(encoded)) ** 0.5)
    return None


def _encoded(image: Image.Image, target: str) -> bytes:
    out = io.BytesIO()
    if target == "PNG":
        image.save(out, "PNG")
    else:
        if "A" in image.getbands():  # on white, as on a page
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
        image.convert("RGB").save(out, "JPEG", quality=JPEG_QUALITY)
    return out.getvalue()


def _reduced(image: Image.Image) -> Image.Image:
    """The picture in a mode that can be scaled; a very large one is reduced to at most `MAX_SIDE_PIXELS` per side."""
    factor = -(-max(image.size) // MAX_SIDE_PIXELS)
    if factor == 1 or image.width * image.height <= MAX_WHOLE_PIXELS:
        return _scalable(image)
    # A JPEG is decoded at a half, a quarter or an eighth of its size, which takes a fraction of the time and memory.
    image.draft(None, (image.width // factor, image.height // factor))
    factor = -(-max(image.size) // MAX_SIDE_PIXELS)
    rows = max(1, STRIP_PIXELS // image.width // factor) * factor
    reduced: Image.Image | None = None
    for top in range(0, image.height, rows):
        strip = _scalable(image.crop((0, top, image.width, min(image.height, top + rows)))).reduce(factor)
        if reduced is None:
            reduced = Image.new(strip.mode, (strip.width, -(-image.height // factor)))
        reduced.paste(strip, (0, top // factor))
    return reduced or image


def _scalable(image: Image.Image) -> Image.Image:
    if image.mode in ("L", "LA", "RGB", "RGBA"):
        return image
    if image.mode in ("P", "PA"):
        return image.convert("RGBA")
    if image.mode in ("I;16", "I"):  # 16 bits
        return image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    return image.convert("L" if image.mode in ("1", "F") else "RGB")


def _turn(image: Image.Image) -> Image.Transpose | None:
    """How a camera's picture is turned, which only its own metadata say."""
    with suppress(Exception):
        return TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return None
