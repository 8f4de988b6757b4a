"""matplotlib animations: a model sees the first frame of an animation for browsers; videos need a missing program."""

# The matplotlib API used here has no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import os
import re
from typing import Any

_NO_VIDEO = "no video can be written here, because there is no ffmpeg"
_VIDEO_SUFFIXES = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".webm", ".wmv")
# The format in which matplotlib's HTMLWriter embeds frames.
_FIRST_FRAME = re.compile(r'frames\[0\] = "data:(image/(?:png|jpeg));base64,([A-Za-z0-9+/=\\\s]+)"')
_ONE_FRAME = re.compile(r"^ *frames\[\d+\] = ", re.MULTILINE)
_BREAK = re.compile(r"[\\\s]+")


class AnimationHTML(str):
    """The result of `to_jshtml`, with its first frame and a line that describes it."""

    __slots__ = ()

    def first_frame(self) -> dict[str, str]:
        """A mime bundle; empty if no frame is embedded."""
        found = _FIRST_FRAME.search(self)
        return {found[1]: _BREAK.sub("", found[2]), "text/plain": "<the first frame>"} if found else {}

    def line(self) -> str:
        return f"<animation of {len(_ONE_FRAME.findall(self)):,} frames, whose HTML plays it; the first one is shown>"


def know_what_can_be_written(animation: Any) -> None:
    """Patch matplotlib.animation."""
    kind = animation.Animation
    stock_save, stock_video, stock_html = kind.save, kind.to_html5_video, kind.to_jshtml

    def save(anim: Any, filename: Any, *args: Any, **options: Any) -> None:
        root, suffix = os.path.splitext(os.fspath(filename))
        if suffix.lower() in _VIDEO_SUFFIXES and not _has_ffmpeg(animation):
            raise ValueError(f"{_NO_VIDEO}: save the animation as a GIF, with .save({root + '.gif'!r})")
        stock_save(anim, filename, *args, **options)

    def to_html5_video(anim: Any, *args: Any, **options: Any) -> Any:
        if not _has_ffmpeg(animation):
            raise ValueError(f"{_NO_VIDEO}: to_jshtml() makes HTML that plays, and .save('animation.gif') a GIF")
        return stock_video(anim, *args, **options)

    def to_jshtml(anim: Any, *args: Any, **options: Any) -> AnimationHTML:
        return AnimationHTML(stock_html(anim, *args, **options))

    kind.save, kind.to_html5_video, kind.to_jshtml = save, to_html5_video, to_jshtml


def _has_ffmpeg(animation: Any) -> bool:
    return any(animation.writers.is_available(name) for name in ("ffmpeg", "ffmpeg_file"))
