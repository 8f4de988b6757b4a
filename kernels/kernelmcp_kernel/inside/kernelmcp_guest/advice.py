"""One line of advice at the end of a shown error, if the sandbox is the cause and there is an alternative.

The exception is not changed. Advice is only given for known cases: package names are from a table.
"""

import errno
import importlib.util
import os
import sys
from collections.abc import Iterator

from IPython.core.error import StdinNotImplementedError

from kernelmcp_guest.absent import NO_PROCESSES, NO_SOCKETS, ONE_PROCESS, SHELL_INSTEAD

# Import names that differ from the package name: all of packages/standins/known_packages.py, and some more.
_PACKAGES = {
    "attr": "attrs", "barcode": "python-barcode", "binance": "python-binance", "Bio": "biopython",
    "bs4": "beautifulsoup4", "bson": "pymongo", "cairo": "pycairo", "community": "python-louvain",
    "consul": "python-consul", "corsheaders": "django-cors-headers", "crontab": "python-crontab",
    "Crypto": "pycryptodome", "Cryptodome": "pycryptodomex", "cv2": "opencv-python", "dateutil": "python-dateutil",
    "decouple": "python-decouple", "dns": "dnspython", "docx": "python-docx", "dotenv": "python-dotenv",
    "engineio": "python-engineio", "faiss": "faiss-cpu", "ffmpeg": "ffmpeg-python", "fitz": "pymupdf",
    "frontmatter": "python-frontmatter", "gi": "pygobject", "git": "gitpython", "github": "pygithub",
    "gitlab": "python-gitlab", "gnupg": "python-gnupg", "googleapiclient": "google-api-python-client",
    "gridfs": "pymongo", "grpc": "grpcio", "jenkins": "python-jenkins", "jose": "python-jose", "jwt": "pyjwt",
    "kafka": "kafka-python", "ldap": "python-ldap", "lzo": "python-lzo", "magic": "python-magic",
    "memcache": "python-memcached", "mpl_toolkits": "matplotlib", "MySQLdb": "mysqlclient", "nacl": "pynacl",
    "nmap": "python-nmap", "OpenGL": "pyopengl", "OpenSSL": "pyopenssl", "osgeo": "gdal", "paho": "paho-mqtt",
    "PIL": "pillow", "pkg_resources": "setuptools", "pptx": "python-pptx", "pylab": "matplotlib",
    "pythoncom": "pywin32", "pywt": "pywavelets", "rest_framework": "djangorestframework", "ruamel": "ruamel.yaml",
    "sdl2": "pysdl2", "serial": "pyserial", "shapefile": "pyshp", "skimage": "scikit-image", "sklearn": "scikit-learn",
    "slugify": "python-slugify", "socketio": "python-socketio", "socks": "pysocks",
    "speech_recognition": "speechrecognition", "stdnum": "python-stdnum", "Stemmer": "pystemmer",
    "tabula": "tabula-py", "telegram": "python-telegram-bot", "tlz": "toolz", "umap": "umap-learn", "usb": "pyusb",
    "vlc": "python-vlc", "websocket": "websocket-client", "win32api": "pywin32", "win32com": "pywin32",
    "win32con": "pywin32", "win32gui": "pywin32", "wx": "wxpython", "Xlib": "python-xlib", "yaml": "pyyaml",
    "zmq": "pyzmq",
}  # fmt: skip

# Common packages whose import name is the package name.
_KNOWN = """
aiohttp altair anthropic arrow astropy asyncpg babel black bokeh boto3 botocore catboost celery chardet click
clickhouse_connect cloudpickle colorama control cryptography cvxpy dash dask datasets deap deepdiff dill django duckdb
elasticsearch emoji ephem faker fastapi feedparser fiona flake8 flask folium fsspec ftfy gensim geopandas geopy gevent
gradio gtts gunicorn gymnasium h5py holidays html5lib httpx humanize hypothesis imageio ipywidgets isort jellyfish
jinja2 jmespath joblib jsonschema kaleido langchain langdetect lark librosa lifelines lightgbm lime lmfit loguru lxml
markdown matplotlib mesa missingno modin moviepy mplfinance mpmath msgpack mypy nbconvert nbformat netCDF4 networkx
nltk notebook numpy openai openpyxl optuna oracledb orjson osmnx pandas papermill paramiko patsy pdfplumber peewee
pendulum phonenumbers pika pint playwright plotly plotnine pmdarima polars praw prettytable prophet psutil pulp
pyarrow pycountry pydantic pydeck pygal pygame pygments pylint pymongo pymysql pyodbc pyparsing pypdf pyperclip pyproj
pytesseract pytest pytz pyvis qrcode quantstats rapidfuzz rasterio redis regex reportlab requests rich ruff s3fs scipy
scrapy seaborn selenium sentence_transformers shap shapely simplejson simpy skyfield spacy sqlalchemy sqlmodel
squarify starlette statsmodels streamlit structlog sympy tables tabulate tenacity termcolor textblob textstat thefuzz
tiktoken toml tomlkit tqdm transformers trio tweepy typer typing_extensions tzdata ujson uncertainties unidecode
urllib3 uvicorn websockets wikipedia wordcloud xarray xgboost xlrd xlsxwriter xmltodict yfinance zarr zstandard
"""

# Packages that cannot be built for WebAssembly.
_IMPOSSIBLE = {
    "distributed": "dask computes without it, one task after the other", "jax": "numpy and scipy work",
    "keras": "scikit-learn works", "numba": "numpy works", "psycopg2": "sqlite3 works",
    "pyspark": "pandas and polars work", "tensorflow": "scikit-learn works", "torch": "scikit-learn works",
}  # fmt: skip

_THREADS = (
    "there are no threads here: call the function directly (await asyncio.to_thread(f) does no more than that), and to "
    "wait for several things at once use await asyncio.gather(...) with coroutines"
)
_PROCESSES = "instead of commands use pathlib and shutil for files, and %pip install NAME for packages"
_INPUT = "nobody can answer input() here: write the value into the code, or ask for it and run the cell again"
NO_DEBUGGER = "nobody can type into a debugger here: print what you want to see, or look at it in the next cell"
_NOBODY_ANSWERS = {
    "interaction": NO_DEBUGGER,
    "read_password": "nobody can answer getpass() here, and code in the sandbox should not have secrets: go on without",
}
_MEMORY = "work in pieces (read a file in chunks), and del what is not needed any more"

_TOO_BIG = "array is too big"  # numpy's, for an array that exceeds the 32-bit address space

_NO_SOLVERS = (
    "pulp's solvers are programs, which cannot be started here: scipy.optimize.milp and linprog solve such problems "
    "(they are HiGHS)"
)
_ABOUT_IMAGES = {
    "vl-convert-python": "a chart can be saved as SVG or HTML here: chart.save('chart.svg')",
    "requires the Kaleido package": (
        "plotly draws image files with a browser, and there is none here, with or without kaleido: fig.show() shows "
        "the figure, and fig.write_html('figure.html') saves it"
    ),
}
_ERRORS_OF_OTHERS = {
    "MaxRowsError": "alt.data_transformers.disable_max_rows() lifts the limit; a sample or sums make a smaller chart",
    "PulpSolverError": _NO_SOLVERS,
}

_GOOGLE = (
    "google.colab exists in Colab only: files are in /workspace, and figures show by themselves. Google's other "
    "modules come with the package that is named for them, such as google-cloud-storage or google-genai"
)

# Reasons why imports could not install their packages, by module.
not_installed: dict[str, str] = {}

# Access to the folder of a Jupyter notebook: "private" (none), "read", "write"; empty: no notebook.
notebook_folder, how_to_see_more = "", ""
_NOTEBOOK = "/volumes/notebook"
_PRIVATE = "a file beside the notebook is not visible in this sandbox"
_READ_ONLY = "the notebook's folder is read-only in this sandbox, /workspace is not"

_NO_SUBPROCESSES = "asyncio cannot wait for a command here; subprocess.run and !cmd do"
# Functions that raise NotImplementedError here.
_NOT_IMPLEMENTED = {
    "_check_system_limits": ONE_PROCESS,
    "subprocess_exec": _NO_SUBPROCESSES,
    "subprocess_shell": _NO_SUBPROCESSES,
    "create_connection": NO_SOCKETS,
    "create_datagram_endpoint": NO_SOCKETS,
    "create_server": NO_SOCKETS,
    "sock_connect": NO_SOCKETS,
}


def advice(error: BaseException | None) -> str | None:
    """Advice for an error, or None."""
    try:
        return _advice(error) if error is not None else None
    except Exception:  # noqa: BLE001  # an exception of the user's may have any attributes, and none is worth an error
        return None


def _advice(error: BaseException) -> str | None:
    text = str(error)
    if isinstance(error, StdinNotImplementedError):
        return next((_NOBODY_ANSWERS[name] for name in _functions(error) if name in _NOBODY_ANSWERS), _INPUT)
    if isinstance(error, MemoryError) or (isinstance(error, ValueError) and text.startswith(_TOO_BIG)):
        return _MEMORY
    if isinstance(error, RuntimeError) and "can't start new thread" in text:
        return _THREADS
    if isinstance(error, OSError) and text.startswith(NO_PROCESSES):
        return None if "%pip" in text or SHELL_INSTEAD in text else _PROCESSES
    if isinstance(error, OSError) and isinstance(error.filename, str):
        about_file = _file_advice(error, error.filename)
        if about_file is not None:
            return about_file
    if isinstance(error, NotImplementedError):
        return next((_NOT_IMPLEMENTED[name] for name in _functions(error) if name in _NOT_IMPLEMENTED), None)
    if isinstance(error, AttributeError) and error.name == "actualSolve" and error.obj is None:
        return _NO_SOLVERS  # pulp requests one that it does not have
    if isinstance(error, (ValueError, RuntimeError)) and (part := next(filter(text.__contains__, _ABOUT_IMAGES), None)):
        return _ABOUT_IMAGES[part]
    return _ERRORS_OF_OTHERS.get(type(error).__name__) or _absence_advice(error)


def _absence_advice(error: BaseException) -> str | None:
    text = str(error)
    if isinstance(error, ImportError) and text.startswith("Unable to find a usable engine"):
        return missing_module("pyarrow")  # requested by pandas, for Parquet
    for earlier in _chain(error):
        # A library words it itself, or something else failed while it worked without the module.
        if isinstance(earlier, ModuleNotFoundError) and earlier.name and (
            earlier is error or isinstance(error, ImportError) or earlier.name in text
        ):  # fmt: skip
            return missing_module(earlier.name)
    return None


def _file_advice(error: OSError, path: str) -> str | None:
    """For a notebook that looks for files beside it, or on the host."""
    if notebook_folder == "private" and isinstance(error, FileNotFoundError):
        outside = not os.path.isabs(path) or path.startswith(("/home/", "/Users/", "/mnt/"))
        return f"{_PRIVATE}: {how_to_see_more}" if outside else None
    if notebook_folder == "read" and error.errno == errno.EROFS and os.path.abspath(path).startswith(_NOTEBOOK):
        return f"{_READ_ONLY}: {how_to_see_more}"
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    earlier: BaseException | None = error
    while earlier is not None and id(earlier) not in seen:
        seen.add(id(earlier))
        yield earlier
        earlier = earlier.__cause__ or (None if earlier.__suppress_context__ else earlier.__context__)


def _functions(error: BaseException) -> Iterator[str]:
    entry = error.__traceback__
    while entry is not None:
        yield entry.tb_frame.f_code.co_name
        entry = entry.tb_next


def missing_module(name: str) -> str | None:
    """Advice about a missing module; None if no package provides it."""
    root = name.partition(".")[0]
    if root == "google":  # a namespace of many packages, which is no package on an index
        return _GOOGLE
    if root in not_installed:
        return f"{root} could not be installed: {not_installed[root]}"
    if root in sys.stdlib_module_names or not root.isidentifier():
        return None  # absent.py has given the reason
    if name != root and (root in sys.modules or importlib.util.find_spec(root) is not None):
        return None  # an installed package lacks this module
    if root == "pip":
        return "there is no pip to import: packages are installed with %pip install NAME in a cell"
    if root in _IMPOSSIBLE:
        return f"{root} does not exist for WebAssembly, so it cannot be installed; {_IMPOSSIBLE[root]}"
    package = _PACKAGES.get(root) or (root if root in _KNOWN.split() else None)
    if package is not None:
        return f"install it with install_package({package!r}), or with %pip install {package} in a cell"
    return (
        f"no package is known for {root}, and a stranger may have taken that name on the index: find out which package "
        "it is, then run %pip install NAME in a cell"
    )
