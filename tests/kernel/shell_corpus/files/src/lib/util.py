import os

VALUE = 1  # TODO later
