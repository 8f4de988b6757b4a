"""Names of modules that are another's on an index: who asks for `serial` means pyserial, and would get a stranger's.

Only well-known ones, where the name is no widely used package's own; many are in the mapping of pipreqs, too.
"""

from __future__ import annotations

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kernelmcp_kernel.packages.errors import InvalidRequirement

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


def packages() -> set[str]:
    """The packages that the names lead to."""
    return set(_PACKAGES.values())


def as_packages(requirements: list[Requirement]) -> list[str]:
    """Give each requirement that names a module the package's name; returns what to say of it.

    Raises InvalidRequirement for one with versions: they are not the package's."""
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
