"""What is known about packages by name: module names that are not theirs, useless ones, dependencies to do without.

Each was checked, and tried.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kernelmcp_kernel.packages.package_errors import InvalidRequirement, PackageNotSupported

# Module names that are a stranger's packages on an index: a request for `serial` means pyserial. Only well-known ones,
# whose name is not that of a widely used package; many are also in the mapping of pipreqs.
_PACKAGES = {
    "attr": "attrs", "barcode": "python-barcode", "binance": "python-binance", "bio": "biopython",
    "bs4": "beautifulsoup4", "bson": "pymongo", "cairo": "pycairo", "community": "python-louvain",
    "consul": "python-consul", "corsheaders": "django-cors-headers", "crontab": "python-crontab",
    "crypto": "pycryptodome", "cryptodome": "pycryptodomex", "cv2": "opencv-python", "dateutil": "python-dateutil",
    "decouple": "python-decouple", "dns": "dnspython", "docx": "python-docx", "dotenv": "python-dotenv",
    "engineio": "python-engineio", "faiss": "faiss-cpu", "ffmpeg": "ffmpeg-python", "fitz": "pymupdf",
    "frontmatter": "python-frontmatter", "gi": "pygobject", "git": "gitpython", "github": "pygithub",
    "gitlab": "python-gitlab", "gnupg": "python-gnupg", "googleapiclient": "google-api-python-client",
    "gridfs": "pymongo", "grpc": "grpcio", "jenkins": "python-jenkins", "jose": "python-jose", "jwt": "pyjwt",
    "kafka": "kafka-python", "ldap": "python-ldap", "lzo": "python-lzo", "magic": "python-magic",
    "memcache": "python-memcached", "mysqldb": "mysqlclient", "nacl": "pynacl", "nmap": "python-nmap",
    "opengl": "pyopengl", "openssl": "pyopenssl", "osgeo": "gdal", "paho": "paho-mqtt", "pil": "pillow",
    "pkg-resources": "setuptools", "pptx": "python-pptx", "pythoncom": "pywin32", "pywt": "pywavelets",
    "rest-framework": "djangorestframework", "sdl2": "pysdl2", "serial": "pyserial", "shapefile": "pyshp",
    "skimage": "scikit-image", "sklearn": "scikit-learn", "slugify": "python-slugify", "socketio": "python-socketio",
    "socks": "pysocks", "speech-recognition": "speechrecognition", "stdnum": "python-stdnum", "stemmer": "pystemmer",
    "tabula": "tabula-py", "telegram": "python-telegram-bot", "tlz": "toolz", "umap": "umap-learn", "usb": "pyusb",
    "vlc": "python-vlc", "websocket": "websocket-client", "win32api": "pywin32", "win32com": "pywin32",
    "win32con": "pywin32", "win32gui": "pywin32", "wx": "wxpython", "xlib": "python-xlib", "yaml": "pyyaml",
    "zmq": "pyzmq",
}  # fmt: skip

# Packages that can be installed but not imported, because they need a system feature or an older Python. A request gets
# the reason and an alternative; as a dependency, such a package is installed: its dependent may work without it.
_NO_SCREEN = "it needs a screen and a keyboard, and the sandbox has neither"
_WHY = {
    "gitpython": "it runs the program git, and the sandbox has none. dulwich is git in Python",
    "nose": "it is of a Python from before 3.12. Use pytest",
    "pexpect": "it talks to programs, and the sandbox has none. A cell that begins with %%bash runs shell commands",
    "pynput": _NO_SCREEN,
    "pyautogui": _NO_SCREEN,
    "python-magic": "it needs the library libmagic, which the sandbox does not have. puremagic does without",
    "sh": "it starts programs, and the sandbox has none. A cell that begins with %%bash runs shell commands",
}

# Declared dependencies that a package can do without if they are unavailable: only those that it treats as optional, or
# needs for a feature that then reports it. Its code imports them in a `try`, or where they are used, or
# `inside/kernelmcp_guest/packages/shims.py` handles it.
# Package name -> dependency -> its purpose.
DISPENSABLE: dict[str, dict[str, str]] = {
    "langsmith": {"zstandard": "it sends traces uncompressed"},
    "pdfminer-six": {"cryptography": "PDFs that are encrypted with AES cannot be read"},
    "pyjwt": {"cryptography": "it signs and checks with HMAC only (HS256, HS384, HS512)"},
    "sqlalchemy": {"greenlet": "there are no engines of sqlalchemy.ext.asyncio"},
}


def packages() -> set[str]:
    """The packages that provide these modules."""
    return set(_PACKAGES.values())


def as_packages(requirements: list[Requirement]) -> list[str]:
    """Replace the names of modules in requirements by those of their packages; return notes about it.

    Raises InvalidRequirement for one with versions: these are not the package's.
    """
    said: list[str] = []
    for requirement in requirements:
        if (package := _PACKAGES.get(canonicalize_name(requirement.name))) is None:
            continue
        if requirement.specifier:
            raise InvalidRequirement(
                f"{requirement}: {requirement.name} is the name of a module, and its package is {package}; ask for that"
            )
        said.append(f"{requirement.name} is the name of a module; its package is {package}")
        requirement.name = package
    return said


def check_useful(asked: Iterable[Requirement], there: Container[str]) -> None:
    """Check requirements that are not present already. Raises PackageNotSupported."""
    for requirement in asked:
        name = canonicalize_name(requirement.name)
        if name in _WHY and name not in there:
            raise PackageNotSupported(f"{requirement.name}: {_WHY[name]}")
