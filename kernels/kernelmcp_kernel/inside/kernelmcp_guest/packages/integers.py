"""Makes NumPy's default integer 64 bits wide for a cell's calls, as on the machine that its code was written for.

It is compiled as C's `long`, which has 32 bits in WebAssembly: `np.arange(100000).sum()` was 704982704 and
`np.array([50000]) ** 2` negative, silently. So arrays that a cell makes from Python numbers or with `int`, and its
positions, counts and sums, are int64, as on a 64-bit Linux. Calls by libraries are unchanged: their compiled parts rely
on NumPy's size of a position (intp), which Python code cannot change. 32 bits remain in ufuncs of plain numbers and
lists (`np.power(10, 10)`), `np.int_`, `np.dtype(int)`, matrices and masked arrays; such arrays show `dtype=int32`.
"""

# The replaced functions are from a package that need not be installed.
# pyright: reportPrivateUsage=false, reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import functools
import gc
import sys
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, FunctionType
from typing import Any

from kernelmcp_guest.tracebacks import is_users

# They do not take `int` as a dtype, read files with own dtypes, inspect the caller's variables, or make no integers.
_AS_THEY_ARE = (
    *("apply_along_axis", "apply_over_axes", "bmat", "broadcast_shapes", "frompyfunc", "load", "ndim", "piecewise"),
    *("save", "savetxt", "savez", "savez_compressed", "shape", "size"),
)
# They compute, or return views: their arguments must have 64 bits before.
_OF_NUMBERS = (
    *("average", "broadcast_arrays", "broadcast_to", "convolve", "correlate", "cross", "cumulative_prod"),
    *("cumulative_sum", "diff", "dot", "ediff1d", "einsum", "inner", "kron", "matmul", "matrix_power", "meshgrid"),
    *("multi_dot", "nancumprod", "nancumsum", "nanprod", "nansum", "outer", "polyadd", "polymul", "polysub"),
    *("polyval", "ptp", "tensordot", "trapezoid", "vander", "vdot", "vecdot"),
)
_VIEWS = ("broadcast_arrays", "broadcast_to", "meshgrid")
# Their results have as many bits as their argument, unless that consists of Python numbers.
_AS_GIVEN = (
    "array",
    "asanyarray",
    "asarray",
    "asarray_chkfinite",
    "ascontiguousarray",
    "asfortranarray",
    "copy",
    "require",
)
# Array methods that return positions.
_FINDERS = ("argmax", "argmin", "argpartition", "argsort", "nonzero", "searchsorted")
_DRAWING = (
    *("choice", "permutation", "binomial", "geometric", "hypergeometric", "logseries", "multinomial"),
    *("negative_binomial", "poisson", "zipf"),
)
# Sums and products of integers overflow 32 bits more easily. The number: position of `dtype` after the array.
_REDUCTIONS = {"sum": 1, "prod": 1, "cumsum": 1, "cumprod": 1, "trace": 3}
# They take only 32 bits in one argument: its position and name.
_NARROW = {
    "binomial": (0, "n"),
    "choose": (0, ""),
    "put": (1, "indices"),
    "reduceat": (2, "indices"),
    "repeat": (1, "repeats"),
    "searchsorted": (3, "sorter"),
}

_FUNCTIONS = FunctionType | BuiltinFunctionType
_LISTS = frozenset((list, range, tuple))
_ORDERS = frozenset("ACFK")
_PASSED_BY = "<frozen importlib._bootstrap> of kernelmcp"
_INT64 = 9  # the number of its dtype: booleans and smaller integers have lower ones

_libraries: dict[str, bool] = {}  # by file


def use_64_bits(numpy: Any) -> None:
    """Patch NumPy's functions and the methods of its arrays."""
    if numpy.dtype(int).itemsize == 8:
        return
    in_numpy, of_arrays = vars(numpy), _methods(numpy.ndarray)
    functions = set(numpy.__all__).difference(_AS_THEY_ARE, _REDUCTIONS).intersection(in_numpy)
    functions = [name for name in functions if isinstance(in_numpy[name], _FUNCTIONS | type(in_numpy["concatenate"]))]
    _replace(numpy, _narrow, (of_arrays, ("choose", "put", "repeat", "searchsorted")))
    _replace(numpy, _narrow, (_methods(numpy.ufunc), ("reduceat",)))
    _replace(numpy, _wide, (in_numpy, functions), (of_arrays, _FINDERS))
    _replace(numpy, _reduction, (in_numpy, _REDUCTIONS), (of_arrays, _REDUCTIONS))
    _replace(numpy, _of_64_bits, (of_arrays, ("astype",)))
    _replace(numpy, _wide, (vars(numpy.linalg), _OF_NUMBERS))
    numpy.poly1d.__init__ = _wide(numpy, numpy.poly1d.__init__, computes=True)
    numpy.vectorize.__call__ = _wide(numpy, numpy.vectorize.__call__)
    for maker in (numpy.lib._index_tricks_impl.AxisConcatenator, numpy.lib._index_tricks_impl.nd_grid):
        maker.__getitem__ = _wide(numpy, maker.__getitem__)
    numpy._core.arrayprint._typelessdata[:1] = [numpy.int64]  # the default, so it is omitted when an array is shown
    sys._clear_type_cache()


def draw_64_bits(random: Any) -> None:
    """Patch NumPy's older generators; the newer one draws 64 bits everywhere."""
    numpy = sys.modules["numpy"]
    if numpy.dtype(int).itemsize == 8:
        return
    functions, methods = vars(random), _methods(random.RandomState)
    _replace(numpy, _narrow, (functions, ("binomial",)))
    _replace(numpy, functools.partial(_narrow, behind=1), (methods, ("binomial",)))
    _replace(numpy, _wide, (functions, _DRAWING), (methods, _DRAWING))
    _replace(numpy, _drawing, (functions, ("randint",)), (methods, ("randint",)))
    sys._clear_type_cache()


def use_64_bits_in_pandas(common: Any) -> None:
    """Patch pandas for dtype `int`: its own default integer has 64 bits everywhere."""
    import numpy

    known, wide = common.pandas_dtype, numpy.dtype(numpy.int64)

    @functools.wraps(known)
    def pandas_dtype(dtype: Any) -> Any:
        return wide if dtype is int or (type(dtype) is str and dtype == "int") else known(dtype)

    if numpy.dtype(int).itemsize == 4:
        common.pandas_dtype = pandas_dtype


def _methods(of: type) -> dict[str, Any]:
    """The methods of a compiled type: its __dict__ is a view of this dict."""
    (methods,) = gc.get_referents(of.__dict__)
    return methods


def _replace(numpy: Any, change: Callable[[Any, Any], Any], *those: tuple[dict[str, Any], Iterable[str]]) -> None:
    for where, names in those:
        for name in names:
            if name in where:
                where[name] = change(numpy, where[name])


def _beside_the_caller(function: Any) -> Any:
    """Attribute warnings to the caller: `warnings` skips frames that look like the import system."""
    function.__code__ = function.__code__.replace(co_filename=_PASSED_BY)
    return function


def _called_by_a_cell() -> bool:
    frame = sys._getframe(2)
    file = frame.f_code.co_filename
    known = _libraries.get(file)
    if known is not None:
        return not known
    name = frame.f_globals.get("__name__")
    if file.startswith("<"):  # compiled from text: by a library, if its globals are those of an imported module
        return name == "__main__" or (name not in sys.modules and not file.startswith("<frozen"))
    known = _libraries[file] = not is_users(file, name)
    return not known


def _is_int(value: Any) -> bool:
    """Return whether an argument requests the default integer."""
    return value is int or (type(value) is str and value == "int")


def _of_64_bits(numpy: Any, call: Any) -> Any:
    """Wrap `astype`: for a cell, `int` is int64."""

    @functools.wraps(call)
    def calls(array: Any, *values: Any, **named: Any) -> Any:
        if (_is_int(named.get("dtype")) or (values and _is_int(values[0]))) and _called_by_a_cell():
            values = tuple(numpy.int64 if _is_int(value) else value for value in values)
            named = {name: numpy.int64 if _is_int(value) else value for name, value in named.items()}
        return call(array, *values, **named)

    return _beside_the_caller(calls)


def _wide(numpy: Any, call: Any, *, computes: bool = False) -> Any:
    """Wrap a function that makes arrays or positions: 64 bits for a cell, unless its arguments have or request 32."""
    small, wide, name = numpy.dtype(int), numpy.int64, getattr(call, "__name__", "")
    computes, views, as_given = computes or name in _OF_NUMBERS, name in _VIEWS, name in _AS_GIVEN

    @functools.wraps(call)
    def makes(*values: Any, **named: Any) -> Any:
        if computes and any(type(value) in _LISTS for value in (*values, *named.values())) and _called_by_a_cell():
            values = tuple(_list_in_64_bits(numpy, value) for value in values)
            named = {name: _list_in_64_bits(numpy, value) for name, value in named.items()}
        if views and values and type(values[0]) is int and _called_by_a_cell():
            values = (numpy.asarray(values[0]).astype(wide), *values[1:])
        asks = _is_int(named.get("dtype")) or (len(values) > 1 and any(_is_int(value) for value in values[1:]))
        if asks and _called_by_a_cell():
            values = (*values[:1], *(wide if _is_int(value) else value for value in values[1:]))
            named = {name: wide if _is_int(value) else value for name, value in named.items()}
        made = call(*values, **named)
        kind = getattr(made, "dtype", None)
        if views or not (kind is small or (kind is None and isinstance(made, list | tuple))):
            return made
        if (as_given and values and not _is_plain(values[0])) or not _called_by_a_cell():
            return made
        return made if _decide(numpy, values, named) else _widened(numpy, made)

    return _beside_the_caller(makes)


def _list_in_64_bits(numpy: Any, value: Any) -> Any:
    """A list of plain integers as a 64-bit array, if NumPy would make a 32-bit one; anything else unchanged."""
    if type(value) not in _LISTS or not _is_plain(value):
        return value
    try:
        array = numpy.asarray(value)
    except (TypeError, ValueError, OverflowError):
        return value
    return array.astype(numpy.int64) if array.dtype is numpy.dtype(int) else value


def _is_plain(value: Any) -> bool:
    """Return whether it is a Python number, or a list that begins with one."""
    while type(value) in _LISTS and len(value):
        value = value[0]
    return type(value) is int or type(value) is bool


def _widened(numpy: Any, made: Any) -> Any:
    """Convert an array or number of the default integer to 64 bits; in a list or tuple, convert each item."""
    if getattr(made, "dtype", None) is numpy.dtype(int):
        return made.astype(numpy.int64)
    if not isinstance(made, list | tuple):
        return made
    parts = [_widened(numpy, part) for part in made]
    return getattr(type(made), "_make", type(made))(parts)


def _decide(numpy: Any, values: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Return whether the arguments already have the default integer, or name a dtype."""
    for value in (*values, *named.values()):
        each = value[0] if isinstance(value, list | tuple) and value else value
        if getattr(each, "dtype", None) is numpy.dtype(int) or isinstance(each, type | numpy.dtype):
            return True
    return named.get("dtype") is not None or any(_is_dtype(numpy, value) for value in values[1:])


def _is_dtype(numpy: Any, value: Any) -> bool:
    try:
        return isinstance(value, str) and value not in _ORDERS and bool(numpy.dtype(value))
    except TypeError:
        return False


def _drawing(numpy: Any, call: Any) -> Any:
    """Wrap `randint`, whose default dtype is `int`: 64 bits for a cell, and the same numbers."""

    @functools.wraps(call)
    def draws(*values: Any, **named: Any) -> Any:
        if named.get("dtype", int) is not int or len(values) > 4 or not _called_by_a_cell():
            return call(*values, **named)
        made = call(*values, **{**named, "dtype": numpy.int64})
        return made if isinstance(made, numpy.ndarray) else int(made)

    return _beside_the_caller(draws)


def _reduction(numpy: Any, call: Any) -> Any:
    """Wrap a function that adds or multiplies integers: it uses 64 bits for a cell."""
    position = _REDUCTIONS[call.__name__]
    kinds = {"b": numpy.int64, "i": numpy.int64, "u": numpy.uint64}

    @functools.wraps(call)
    def reduces(*values: Any, **named: Any) -> Any:
        array: Any = values[0] if values else named.get("a")
        if type(array) in _LISTS:
            array = numpy.asarray(array)
        is_small = type(array) is numpy.ndarray and array.dtype.num < _INT64
        out = values[position + 2] if len(values) > position + 2 else named.get("out")
        if is_small and out is None:
            wanted = values[position + 1] if len(values) > position + 1 else named.get("dtype")
            if (wanted is None or _is_int(wanted)) and _called_by_a_cell():
                named["dtype"] = kinds[array.dtype.kind]
                # By name: `out`, which is None, and later arguments keep their positions.
                values, behind = values[: position + 1], values[position + 2 :]
                if behind:
                    return call(*values, named.pop("dtype"), *behind, **named)
        return call(*values, **named)

    return _beside_the_caller(reduces)


def _narrow(numpy: Any, call: Any, behind: int = 0) -> Any:
    """Wrap a function that takes 32 bits: also accept 64 if the numbers fit. `behind`: arguments before it."""
    position, name = _NARROW[call.__name__]
    position += behind

    @functools.wraps(call)
    def takes(*values: Any, **named: Any) -> Any:
        try:
            return call(*values, **named)
        except (TypeError, ValueError):
            given = list(values) if position < len(values) else named
            key: Any = position if position < len(values) else name
            fitting = _fitting(numpy, given[key]) if given is not named or name in named else None
            if fitting is None:
                raise
            given[key] = fitting
            return call(*(values if given is named else given), **named)

    return _beside_the_caller(takes)


def _fitting(numpy: Any, value: Any) -> Any:
    """The same numbers as positions, if they are 64-bit integers that fit; otherwise None."""
    array = numpy.asarray(value)
    positions = array.astype(numpy.intp) if array.dtype == numpy.int64 else array
    return positions if array is not positions and (positions == array).all() else None
