"""The functions of `bc -l`: s(ine), c(osine), a(rctangent), l(ogarithm) and e(xponential), to any number of places."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decimal import Decimal

NAMES = frozenset("scale")
_MOST_EXPONENT = 9000
_SPARE_DIGITS = 12
_HALVINGS = 8


def function(name: str, value: int, places: int, scale: int) -> int | None:
    """A function of value / 10**places, times 10**scale and cut off; None: it has none here."""
    import decimal

    argument = decimal.Decimal(value).scaleb(-places)
    if name == "e" and abs(argument) > _MOST_EXPONENT:
        return None if value > 0 else 0
    if name == "l" and value <= 0:
        return None
    with decimal.localcontext() as context:
        context.prec = len(str(abs(value))) + scale + _SPARE_DIGITS
        if name == "e":
            context.prec += max(0, int(argument)) // 2
        one = decimal.Decimal(1)
        if name == "e":
            found = argument.exp()
        elif name == "l":
            found = argument.ln()
        elif name == "a":
            found = _arctangent(argument)
        else:
            pi = 4 * _arctangent(one)
            found = _sine((argument + (pi / 2 if name == "c" else 0)) % (2 * pi))
        found = round(found, scale + _SPARE_DIGITS // 2)  # c(0) is 1, not .999...
        return int(found.scaleb(scale))


def _arctangent(argument: Decimal) -> Decimal:
    for _ in range(_HALVINGS):
        argument /= 1 + (1 + argument * argument).sqrt()
    total, power, number = argument, argument, 1
    while True:
        power *= -argument * argument
        number += 2
        if total + power / number == total:
            return total * 2**_HALVINGS
        total += power / number


def _sine(argument: Decimal) -> Decimal:
    total, term, number = argument, argument, 1
    while True:
        term *= -argument * argument / ((number + 1) * (number + 2))
        number += 2
        if total + term == total:
            return total
        total += term
